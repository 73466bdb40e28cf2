//! INSPECT, which Redis does not have: a check of the store by the server that has it open. See
//! [`crate::inspections`].

use super::entry::{container, help, plain};
use super::{Call, Command, flag, word};
use crate::inspections::{InspectError, Question};
use ecotone_keyspace::error::{Failure, Outcome, texts};

const ADMIN: u32 = flag::ADMIN | flag::NOSCRIPT | flag::NO_MULTI;

/// Redis has none; the version that clients may take this server for.
const SINCE: &str = "7.0.0";

const fn subcommand(name: &'static str, arity: i32, flags: u32, summary: &'static str, run: super::Run) -> Command {
    plain(name, arity, flags, "server", SINCE, summary, run)
}

/// The family.
pub const COMMANDS: &[Command] = &[container(
    "inspect",
    "server",
    SINCE,
    "A container for commands that check the store while it is served.",
    INSPECT,
)];

const INSPECT: &[Command] = &[
    Command {
        usage: "(VERIFY | SPACE) [EXACT]",
        complexity: "O(1), and O(N) in the background where N is the number of bytes in the store",
        ..subcommand("inspect|start", -3, ADMIN, "Begins an inspection of the store in the background.", start)
    },
    subcommand("inspect|status", 2, ADMIN, "Returns as JSON how the inspection is, and once what came of it.", status),
    subcommand("inspect|stop", 2, ADMIN, "Ends the inspection of this client.", stop),
    subcommand(
        "inspect|help",
        2,
        flag::LOADING | flag::STALE,
        "Returns helpful text about the different subcommands.",
        inspect_help,
    ),
];

fn start(call: &mut Call<'_>) -> Outcome {
    let words: Vec<_> = call.arguments[2..].iter().map(|argument| word::upper(argument)).collect();
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_slice()).collect();
    let question = match words[..] {
        [b"VERIFY"] => Question::Verify,
        [b"SPACE"] => Question::Space { exact: false },
        [b"SPACE", b"EXACT"] => Question::Space { exact: true },
        _ => return Err(texts::SYNTAX),
    };
    call.service.inspections.begin(&call.service.keyspace, &call.client.info, question)?;
    call.reply.simple("OK");
    Ok(())
}

impl From<InspectError> for Failure {
    fn from(error: InspectError) -> Self {
        match error {
            InspectError::Running { .. } => Self::with(format!("BUSY {error}")),
            error => Self::with(format!("ERR {error}")),
        }
    }
}

fn status(call: &mut Call<'_>) -> Outcome {
    let status = call.service.inspections.status(&call.client.info);
    call.reply.bulk_text(&status.to_string());
    Ok(())
}

fn stop(call: &mut Call<'_>) -> Outcome {
    if !call.service.inspections.end(&call.client.info) {
        return Err(Failure::text("ERR no inspection of this client is under way"));
    }
    call.reply.simple("OK");
    Ok(())
}

fn inspect_help(call: &mut Call<'_>) -> Outcome {
    help(
        call,
        &[
            "START VERIFY",
            "    Check in the background whether all of the store is as it was written.",
            "START SPACE [EXACT]",
            "    Find out where the bytes of the store are; EXACT reads all tables.",
            "STATUS",
            "    Return as JSON how the inspection is, and once it has ended what came of it.",
            "STOP",
            "    End the inspection. It ends with its connection as well.",
        ],
    );
    Ok(())
}
