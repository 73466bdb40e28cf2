//! ACL, as far as it makes sense with one user who may do all.

use super::categories::{ALL, categories};
use super::entry::{container, help, plain};
use super::table::shown;
use super::{Call, Command, flag, table, word};
use ecotone_keyspace::error::{Failure, Outcome};

const ALWAYS: u32 = flag::NOSCRIPT | flag::LOADING | flag::STALE;

const fn subcommand(name: &'static str, arity: i32, flags: u32, summary: &'static str, run: super::Run) -> Command {
    plain(name, arity, flags, "server", "6.0.0", summary, run)
}

/// The family.
pub const COMMANDS: &[Command] =
    &[container("acl", "server", "6.0.0", "A container for Access List Control commands.", SUBCOMMANDS)];

const SUBCOMMANDS: &[Command] = &[
    Command {
        usage: "[categoryname]",
        complexity: "O(1) since the categories and commands are a fixed set.",
        ..subcommand("acl|cat", -2, ALWAYS, "Lists the ACL categories, or the commands inside a category.", cat)
    },
    subcommand("acl|users", 2, ALWAYS | flag::ADMIN, "Lists all ACL users.", users),
    subcommand("acl|whoami", 2, ALWAYS, "Returns the authenticated username of the current connection.", whoami),
    subcommand(
        "acl|help",
        2,
        flag::LOADING | flag::STALE,
        "Returns helpful text about the different subcommands.",
        acl_help,
    ),
];

fn cat(call: &mut Call<'_>) -> Outcome {
    let names: Vec<&str> = match call.arguments[2..] {
        [] => ALL.to_vec(),
        [asked] => {
            let lower = word::lower(asked);
            let is_asked = |category: &str| *category.as_bytes() == *lower;
            if !ALL.into_iter().any(is_asked) {
                return Err(Failure::repeating("ERR Unknown category '", shown(asked), "'"));
            }
            let commands = table::all_with_subcommands();
            commands.filter(|command| categories(command).any(is_asked)).map(|command| command.name).collect()
        }
        _ => return Err(super::entry::unknown_or_wrong_number("ACL", call.arguments[1])),
    };
    call.reply.array(names.len());
    names.iter().for_each(|name| call.reply.bulk_text(name));
    Ok(())
}

fn users(call: &mut Call<'_>) -> Outcome {
    call.reply.array(1);
    call.reply.bulk_text("default");
    Ok(())
}

fn whoami(call: &mut Call<'_>) -> Outcome {
    call.reply.bulk_text("default");
    Ok(())
}

fn acl_help(call: &mut Call<'_>) -> Outcome {
    help(
        call,
        &[
            "CAT [<category>]",
            "    List all commands that belong to <category>, or all command categories",
            "    when no category is specified.",
            "USERS",
            "    List all the registered usernames.",
            "WHOAMI",
            "    Return the current connection username.",
        ],
    );
    Ok(())
}
