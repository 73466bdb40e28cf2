//! COMMAND: what commands there are, made from the table.
//!
//! Different from Redis: summaries and complexities are this server's own, `DOCS` has no history,
//! and a key spec has no notes; its flags say only whether the command writes the key.

use super::arguments::Usage;
use super::categories::categories;
use super::entry::{container, help, plain};
use super::key_access::{self, Access};
use super::tips::tips;
use super::{Call, Command, Deprecation, KeyPositions, flag, table, word};
use crate::protocol::reply::Reply;
use ecotone_keyspace::error::{Failure, Outcome, texts};
use ecotone_keyspace::memory::MemoryReservation;

const ALWAYS: u32 = flag::LOADING | flag::STALE;

const fn subcommand(
    name: &'static str,
    arity: i32,
    since: &'static str,
    summary: &'static str,
    complexity: &'static str,
    run: super::Run,
) -> Command {
    Command { complexity, ..plain(name, arity, ALWAYS, "server", since, summary, run) }
}

const OF_ALL: &str = "O(N) where N is the total number of commands";
const OF_ASKED: &str = "O(N) where N is the number of commands to look up";

/// The family.
pub const COMMANDS: &[Command] = &[Command {
    arity: -1,
    flags: ALWAYS,
    complexity: OF_ALL,
    run: command,
    ..container("command", "server", "2.8.13", "Returns detailed information about all commands.", SUBCOMMANDS)
}];

const SUBCOMMANDS: &[Command] = &[
    subcommand("command|count", 2, "2.8.13", "Returns a count of commands.", "O(1)", count),
    Command {
        usage: "[command-name...]",
        ..subcommand(
            "command|info",
            -2,
            "2.8.13",
            "Returns information about one, multiple or all commands.",
            OF_ASKED,
            info,
        )
    },
    Command {
        usage: "[FILTERBY (filterby: MODULE module-name | ACLCAT category | PATTERN pattern)]",
        ..subcommand("command|list", -2, "7.0.0", "Returns a list of command names.", OF_ALL, list)
    },
    Command {
        usage: "[command-name...]",
        ..subcommand("command|docs", -2, "7.0.0", "Returns documentary information about commands.", OF_ASKED, docs)
    },
    Command {
        usage: "command [arg...]",
        ..subcommand(
            "command|getkeys",
            -3,
            "2.8.13",
            "Extracts the key names from an arbitrary command.",
            "O(N) where N is the number of arguments to the command",
            |call| getkeys(call, false),
        )
    },
    Command {
        usage: "command [arg...]",
        ..subcommand(
            "command|getkeysandflags",
            -3,
            "7.0.0",
            "Extracts the key names and access flags for an arbitrary command.",
            "O(N) where N is the number of arguments to the command",
            |call| getkeys(call, true),
        )
    },
    subcommand(
        "command|help",
        2,
        "5.0.0",
        "Returns helpful text about the different subcommands.",
        "O(1)",
        command_help,
    ),
];

fn command(call: &mut Call<'_>) -> Outcome {
    call.reply.array(table::all().count());
    for command in table::all() {
        describe(call.reply, command);
    }
    Ok(())
}

fn count(call: &mut Call<'_>) -> Outcome {
    call.reply.integer(table::all().count() as i64);
    Ok(())
}

fn info(call: &mut Call<'_>) -> Outcome {
    let asked = &call.arguments[2..];
    if asked.is_empty() {
        return command(call);
    }
    describe_asked(call.reply, asked);
    Ok(())
}

fn describe_asked(reply: &mut Reply, asked: &[&[u8]]) {
    reply.array(asked.len());
    for name in asked {
        if reply.is_over() {
            return;
        }
        match table::find_full(name) {
            Some(command) => describe(reply, command),
            None => reply.null(),
        }
    }
}

fn describe(reply: &mut Reply, command: &'static Command) {
    const NAMES: [(u32, &str); 13] = [
        (flag::WRITE, "write"),
        (flag::READONLY, "readonly"),
        (flag::DENYOOM, "denyoom"),
        (flag::ADMIN, "admin"),
        (flag::NOSCRIPT, "noscript"),
        (flag::LOADING, "loading"),
        (flag::STALE, "stale"),
        (flag::SKIP_SLOWLOG, "skip_slowlog"),
        (flag::FAST, "fast"),
        (flag::NO_AUTH, "no_auth"),
        (flag::NO_ASYNC_LOADING, "no_async_loading"),
        (flag::NO_MULTI, "no_multi"),
        (flag::ALLOW_BUSY, "allow_busy"),
    ];
    let mut flags: Vec<&str> = NAMES.iter().filter(|(flag, _)| command.has(*flag)).map(|(_, name)| *name).collect();
    if command.has(flag::MOVABLE_KEYS) || matches!(command.keys, KeyPositions::Counted { .. }) {
        flags.push("movablekeys");
    }
    let (first, last, step) = positions(command.keys);
    let categories: Vec<&str> = categories(command).collect();
    reply.array(10);
    reply.bulk_text(command.name);
    reply.integer(command.arity.into());
    reply.set(flags.len());
    flags.iter().for_each(|flag| reply.simple(flag));
    reply.integer(first);
    reply.integer(last);
    reply.integer(step);
    reply.set(categories.len());
    categories.iter().for_each(|category| reply.simple(&format!("@{category}")));
    let tips: Vec<&str> = tips(command).collect();
    reply.set(tips.len());
    tips.iter().for_each(|tip| reply.bulk_text(tip));
    key_specs(reply, command);
    if command.subcommands.is_empty() {
        reply.set(0);
        return;
    }
    reply.array(command.subcommands.len());
    for subcommand in command.subcommands {
        describe(reply, subcommand);
    }
}

/// The first key, the last and the step between, as clients knew them before key specs.
fn positions(keys: KeyPositions) -> (i64, i64, i64) {
    match keys {
        KeyPositions::Range { first, last, step } => (first as i64, last as i64, step as i64),
        KeyPositions::Counted { also, .. } if also > 0 => (also as i64, also as i64, 1),
        KeyPositions::Counted { .. } | KeyPositions::None => (0, 0, 0),
    }
}

/// How the keys that a spec begins with are found.
enum Find {
    /// To the last one, counted from the first or from the end of the arguments.
    Range { last: i64, step: i64 },
    /// Their number is where the spec begins.
    Number,
}

fn key_specs(reply: &mut Reply, command: &Command) {
    let accesses = key_access::of(command);
    let [access, ..] = *accesses else { return reply.set(0) };
    let second = accesses.get(1).copied().unwrap_or(access);
    match command.keys {
        KeyPositions::None => reply.set(0),
        KeyPositions::Range { first, last, .. } if Usage::of(command).keys == 2 => {
            reply.set(2);
            key_spec(reply, access, first, &Find::Range { last: 0, step: 1 });
            let last = last.min(0) as i64;
            key_spec(reply, second, first + 1, &Find::Range { last, step: 1 });
        }
        KeyPositions::Range { first, last, step } => {
            let last = if last < 0 { last as i64 } else { last as i64 - first as i64 };
            reply.set(1);
            key_spec(reply, access, first, &Find::Range { last, step: step as i64 });
        }
        KeyPositions::Counted { count, also } => {
            reply.set(1 + usize::from(also > 0));
            if also > 0 {
                key_spec(reply, access, also, &Find::Range { last: 0, step: 1 });
            }
            key_spec(reply, second, count, &Find::Number);
        }
    }
}

fn key_spec(reply: &mut Reply, access: Access, begin: usize, find: &Find) {
    reply.map(3);
    reply.bulk_text("flags");
    reply.set(access.len());
    access.iter().for_each(|word| reply.simple(word));
    reply.bulk_text("begin_search");
    typed_map(reply, "index", &[("index", begin as i64)]);
    reply.bulk_text("find_keys");
    match *find {
        Find::Range { last, step } => {
            typed_map(reply, "range", &[("lastkey", last), ("keystep", step), ("limit", 0)]);
        }
        Find::Number => typed_map(reply, "keynum", &[("keynumidx", 0), ("firstkey", 1), ("keystep", 1)]),
    }
}

fn typed_map(reply: &mut Reply, of: &str, numbers: &[(&str, i64)]) {
    reply.map(2);
    reply.bulk_text("type");
    reply.bulk_text(of);
    reply.bulk_text("spec");
    reply.map(numbers.len());
    for (name, number) in numbers {
        reply.bulk_text(name);
        reply.integer(*number);
    }
}

fn list(call: &mut Call<'_>) -> Outcome {
    let names: Vec<&str> = match call.arguments[2..] {
        [] => table::all_with_subcommands().map(|command| command.name).collect(),
        [filter, by, text] if filter.eq_ignore_ascii_case(b"FILTERBY") => {
            filtered(by, text, &mut call.keys.reserve_memory())?
        }
        _ => return Err(texts::SYNTAX),
    };
    call.reply.array(names.len());
    names.iter().for_each(|name| call.reply.bulk_text(name));
    Ok(())
}

fn filtered(by: &[u8], text: &[u8], reservation: &mut MemoryReservation<'_>) -> Outcome<Vec<&'static str>> {
    let all = table::all_with_subcommands();
    Ok(match word::upper(by).as_slice() {
        b"MODULE" => Vec::new(),
        b"ACLCAT" => all
            .filter(|command| categories(command).any(|category| category.as_bytes().eq_ignore_ascii_case(text)))
            .map(|command| command.name)
            .collect(),
        b"PATTERN" => {
            let patterns = word::patterns(&[text], reservation)?;
            let matches = |name: &&str| patterns.iter().all(|pattern| pattern.matches(name.as_bytes()));
            all.map(|command| command.name).filter(matches).collect()
        }
        _ => return Err(texts::SYNTAX),
    })
}

fn docs(call: &mut Call<'_>) -> Outcome {
    let asked = &call.arguments[2..];
    let commands: Vec<&Command> = match asked {
        [] => table::all().collect(),
        names => names.iter().filter_map(|name| table::find_full(name)).collect(),
    };
    document(call.reply, commands.into_iter());
    Ok(())
}

fn document<'t>(reply: &mut Reply, commands: impl ExactSizeIterator<Item = &'t Command>) {
    reply.map(commands.len());
    for command in commands {
        if reply.is_over() {
            return;
        }
        reply.bulk_text(command.name);
        let texts = [
            ("summary", command.summary),
            ("since", command.since),
            ("group", command.group),
            ("complexity", command.complexity),
        ];
        let begin = reply.begin();
        let mut told = texts.len();
        for (name, text) in texts {
            reply.bulk_text(name);
            reply.bulk_text(text);
        }
        let flags = [(command.deprecated.is_some(), "deprecated"), (command.has(flag::INTERNAL), "syscmd")];
        if let Some((_, flag)) = flags.iter().find(|(is_set, _)| *is_set) {
            reply.bulk_text("doc_flags");
            reply.set(1);
            reply.simple(flag);
            told += 1;
        }
        if let Some(Deprecation { since, instead }) = command.deprecated {
            for (name, text) in [("deprecated_since", since), ("replaced_by", instead)] {
                reply.bulk_text(name);
                reply.bulk_text(text);
                told += 1;
            }
        }
        let usage = Usage::of(command);
        if !usage.is_empty() {
            reply.bulk_text("arguments");
            usage.tell(reply);
            told += 1;
        }
        if !command.subcommands.is_empty() {
            reply.bulk_text("subcommands");
            document(reply, command.subcommands.iter());
            told += 1;
        }
        reply.end_map(begin, told);
    }
}

fn getkeys(call: &mut Call<'_>, with_flags: bool) -> Outcome {
    let arguments = &call.arguments[2..];
    let unknown = Failure::text("ERR Invalid command specified");
    let Ok(command) = table::find_called(arguments) else { return Err(unknown) };
    if command.keys == KeyPositions::None {
        return Err(Failure::text("ERR The command has no key arguments"));
    }
    if !command.takes(arguments.len()) {
        return Err(Failure::text("ERR Invalid number of arguments specified for command"));
    }
    let keys: Vec<usize> = command.keys.of(arguments).collect();
    // A number of keys that is 0 is none.
    if keys.is_empty() || matches!(command.keys, KeyPositions::Counted { also, .. } if keys == [also]) {
        return Err(Failure::text("ERR Invalid arguments specified for command"));
    }
    let accesses = key_access::of_call(command, arguments);
    let has_two_specs = matches!(command.keys, KeyPositions::Counted { also: 1.., .. }) || Usage::of(command).keys == 2;
    call.reply.array(keys.len());
    for (number, index) in keys.into_iter().enumerate() {
        if with_flags {
            call.reply.array(2);
        }
        call.reply.bulk(arguments[index]);
        if with_flags {
            let access = accesses.get(usize::from(has_two_specs && number > 0)).or(accesses.first());
            let access = access.copied().unwrap_or_default();
            call.reply.set(access.len());
            access.iter().for_each(|word| call.reply.simple(word));
        }
    }
    Ok(())
}

fn command_help(call: &mut Call<'_>) -> Outcome {
    help(
        call,
        &[
            "(no subcommand)",
            "    Return details about all Redis commands.",
            "COUNT",
            "    Return the total number of commands in this Redis server.",
            "LIST",
            "    Return a list of all commands in this Redis server.",
            "INFO [<command-name> ...]",
            "    Return details about multiple Redis commands.",
            "    If no command names are given, documentation details for all",
            "    commands are returned.",
            "DOCS [<command-name> ...]",
            "    Return documentation details about multiple Redis commands.",
            "    If no command names are given, documentation details for all",
            "    commands are returned.",
            "GETKEYS <full-command>",
            "    Return the keys from a full Redis command.",
            "GETKEYSANDFLAGS <full-command>",
            "    Return the keys and the access flags from a full Redis command.",
        ],
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::reply::Version;

    const MAX_BYTES: usize = 64 * 1024;

    /// What `tell` replies where a reply may have so many bytes.
    fn bytes_of(tell: impl FnOnce(&mut Reply)) -> usize {
        let mut reply = Reply::new(Version::Resp2);
        reply.bound_to(MAX_BYTES);
        tell(&mut reply);
        assert!(reply.is_over());
        reply.len()
    }

    #[test]
    fn docs_of_very_many_names_take_no_more_than_a_reply_may() {
        let commands = vec![table::find(b"set").unwrap(); 100_000];
        assert!(bytes_of(|reply| document(reply, commands.into_iter())) < 2 * MAX_BYTES);
    }

    #[test]
    fn infos_of_very_many_names_take_no_more_than_a_reply_may() {
        let asked = vec![&b"set"[..]; 100_000];
        assert!(bytes_of(|reply| describe_asked(reply, &asked)) < 2 * MAX_BYTES);
    }
}
