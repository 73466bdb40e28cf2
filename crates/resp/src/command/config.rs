//! CONFIG: the settings of the server around.

use std::collections::BTreeSet;

use super::entry::{container, help, plain};
use super::{Call, Command, flag, word};
use ecotone_keyspace::error::{Failure, Outcome, texts};

const ADMIN: u32 = flag::ADMIN | flag::NOSCRIPT | flag::LOADING | flag::STALE;
const OF_PARAMETERS: &str = "O(N) when N is the number of configuration parameters provided";

const fn subcommand(
    name: &'static str,
    arity: i32,
    flags: u32,
    since: &'static str,
    summary: &'static str,
    run: super::Run,
) -> Command {
    plain(name, arity, flags, "server", since, summary, run)
}

/// The family.
pub const COMMANDS: &[Command] =
    &[container("config", "server", "2.0.0", "A container for server configuration commands.", SUBCOMMANDS)];

const SUBCOMMANDS: &[Command] = &[
    Command {
        usage: "parameter...",
        complexity: OF_PARAMETERS,
        ..subcommand("config|get", -3, ADMIN, "2.0.0", "Returns the effective values of configuration parameters.", get)
    },
    Command {
        usage: "(data: parameter value)...",
        complexity: OF_PARAMETERS,
        ..subcommand(
            "config|set",
            -4,
            ADMIN | flag::WAITS | flag::SECRET,
            "2.0.0",
            "Sets configuration parameters in-flight.",
            set,
        )
    },
    subcommand(
        "config|rewrite",
        2,
        ADMIN | flag::WAITS,
        "2.8.0",
        "Persists the effective configuration to file.",
        rewrite,
    ),
    subcommand("config|resetstat", 2, ADMIN, "2.0.0", "Resets the server's statistics.", resetstat),
    subcommand(
        "config|help",
        2,
        flag::LOADING | flag::STALE,
        "5.0.0",
        "Returns helpful text about the different subcommands.",
        config_help,
    ),
];

/// What Redis says of a setting that it does not have, before its name.
const UNKNOWN: &str = "ERR Unknown option or number of arguments for CONFIG SET - '";

/// No setting has a longer value: one would be copied, and repeated where it is refused.
const MAX_VALUE_BYTES: usize = 1 << 16;

fn get(call: &mut Call<'_>) -> Outcome {
    let mut reservation = call.keys.reserve_memory();
    let patterns = word::patterns(&call.arguments[2..], &mut reservation)?;
    let matches = |name: &str| patterns.iter().any(|pattern| pattern.matches(name.as_bytes()));
    let settings = call.service.host.settings(&matches);
    call.reply.map(settings.len());
    for (name, value) in settings {
        // A name is repeated as it was asked for; one that a pattern found is as the server has it.
        let place = patterns.iter().position(|pattern| pattern.matches(name.as_bytes()));
        match place.map(|place| call.arguments[place + 2]) {
            Some(asked) if asked.eq_ignore_ascii_case(name.as_bytes()) => call.reply.bulk(asked),
            _ => call.reply.bulk_text(&name),
        }
        call.reply.bulk_text(&value);
    }
    Ok(())
}

fn set(call: &mut Call<'_>) -> Outcome {
    let (pairs, []) = call.arguments[2..].as_chunks::<2>() else {
        return Err(texts::SYNTAX);
    };
    let failed = |name: &str, why: &str| {
        Failure::with(format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {why}"))
    };
    let known = call.service.host.settings(&|_| true);
    let (mut settings, mut names) = (Vec::new(), BTreeSet::new());
    for [name, value] in pairs {
        // Before duplicates: an unknown setting is reported first.
        let lower = String::from_utf8_lossy(&word::lower(name)).into_owned();
        let name = match std::str::from_utf8(name) {
            Ok(text) if known.contains_key(&lower) => text,
            _ => return Err(Failure::repeating(UNKNOWN, name, "'")),
        };
        if !names.insert(lower) {
            return Err(failed(name, "duplicate parameter"));
        }
        settings.push((name, *value));
    }
    let text = |(name, value): (&str, &[u8])| match std::str::from_utf8(value) {
        Ok(_) if value.len() > MAX_VALUE_BYTES => Err(failed(name, "the value is longer than any setting takes")),
        Ok(value) => Ok((name.to_owned(), value.to_owned())),
        Err(_) => Err(failed(name, "the value is not UTF-8")),
    };
    let settings = settings.into_iter().map(text).collect::<Result<Vec<_>, _>>()?;
    call.service.host.change(&settings).map_err(|why| Failure::with(format!("ERR {why}")))?;
    call.reply.simple("OK");
    Ok(())
}

fn rewrite(call: &mut Call<'_>) -> Outcome {
    call.service.host.rewrite().map_err(|why| Failure::with(format!("ERR {why}")))?;
    call.reply.simple("OK");
    Ok(())
}

fn resetstat(call: &mut Call<'_>) -> Outcome {
    call.service.statistics.reset();
    call.service.client_events.reset();
    call.service.keyspace.reset_reclaimed_collections();
    call.reply.simple("OK");
    Ok(())
}

fn config_help(call: &mut Call<'_>) -> Outcome {
    help(
        call,
        &[
            "GET <pattern>",
            "    Return parameters matching the glob-like <pattern> and their values.",
            "SET <directive> <value>",
            "    Set the configuration <directive> to <value>.",
            "RESETSTAT",
            "    Reset statistics reported by the INFO command.",
            "REWRITE",
            "    Rewrite the configuration file.",
        ],
    );
    Ok(())
}
