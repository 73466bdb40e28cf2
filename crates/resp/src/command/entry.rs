//! What entries of the table have in common: plain commands, containers of subcommands, and their
//! `HELP`.

use super::table::shown;
use super::{Call, Command, KeyPositions, Run};
use ecotone_keyspace::error::{Failure, Outcome};

/// A command without keys and subcommands that takes constant time.
pub(super) const fn plain(
    name: &'static str,
    arity: i32,
    flags: u32,
    group: &'static str,
    since: &'static str,
    summary: &'static str,
    run: Run,
) -> Command {
    Command {
        name,
        arity,
        flags,
        keys: KeyPositions::None,
        group,
        since,
        deprecated: None,
        summary,
        complexity: "O(1)",
        usage: "",
        subcommands: &[],
        run,
    }
}

/// A container of subcommands.
pub(super) const fn container(
    name: &'static str,
    group: &'static str,
    since: &'static str,
    summary: &'static str,
    subcommands: &'static [Command],
) -> Command {
    let complexity = "Depends on subcommand.";
    Command { complexity, subcommands, ..plain(name, -2, 0, group, since, summary, without_subcommand) }
}

fn without_subcommand(call: &mut Call<'_>) -> Outcome {
    Err(Failure::with(format!("ERR wrong number of arguments for '{}' command", call.command.name)))
}

/// Replies what the subcommands of a container are: `lines` between the title and `HELP` itself.
pub(super) fn help(call: &mut Call<'_>, lines: &[&str]) {
    let container = call.command.name.split('|').next().unwrap_or_default().to_ascii_uppercase();
    call.reply.array(lines.len() + 3);
    call.reply.simple(&format!("{container} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"));
    for line in lines {
        call.reply.simple(line);
    }
    call.reply.simple("HELP");
    call.reply.simple("    Prints this help.");
}

/// Redis' error where a subcommand takes a number of arguments that its arity does not express.
pub(super) fn unknown_or_wrong_number(container: &str, subcommand: &[u8]) -> Failure {
    let behind = format!("'. Try {container} HELP.");
    Failure::repeating("ERR unknown subcommand or wrong number of arguments for '", shown(subcommand), &behind)
}
