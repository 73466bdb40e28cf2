//! COMPACT: frees the garbage of the store now. Redis has no such command; stores on LSM trees do.

use super::entry::plain;
use super::{Call, Command, flag};
use crate::client::{Awaited, Then};
use crate::compactions::CompactionError;
use ecotone_keyspace::error::{Failure, Outcome, texts};

/// The family.
pub const COMMANDS: &[Command] = &[Command {
    complexity: "O(N) where N is the number of bytes that the store takes.",
    usage: "[NOWAIT | STATUS | CANCEL]",
    ..plain(
        "compact",
        -1,
        flag::ADMIN | flag::NOSCRIPT | flag::NO_MULTI | flag::NO_ASYNC_LOADING,
        "server",
        "7.2.0",
        "Compacts the whole store, so that what was deleted, overwritten or has expired takes no space any more.",
        compact,
    )
}];

impl From<CompactionError> for Failure {
    fn from(error: CompactionError) -> Self {
        Self::with(format!("ERR {error}"))
    }
}

fn compact(call: &mut Call<'_>) -> Outcome {
    let compactions = &call.service.compactions;
    match call.arguments[1..] {
        [] => {
            call.client.awaited = Some(Awaited::Compaction(compactions.follow(&call.service.keyspace)?));
            call.client.then = Then::Follow;
            // Reported once it is over, unless something else is.
            call.reply.simple("OK");
        }
        [option] if option.eq_ignore_ascii_case(b"NOWAIT") => {
            compactions.begin_in_background(&call.service.keyspace)?;
            call.reply.simple("Background compaction started");
        }
        [option] if option.eq_ignore_ascii_case(b"STATUS") => status(call),
        [option] if option.eq_ignore_ascii_case(b"CANCEL") => {
            if !compactions.end() {
                return Err(Failure::text("ERR No compaction in progress."));
            }
            call.reply.simple("OK");
        }
        _ => return Err(texts::SYNTAX),
    }
    Ok(())
}

/// Names and values by turns, as in a hash.
fn status(call: &mut Call<'_>) {
    let status = call.service.compactions.status();
    let progress = status.as_ref().map(|status| status.progress).unwrap_or_default();
    let state = match &status {
        None => "none",
        Some(status) if status.runs => "running",
        Some(status) if status.failure.is_some() => "failed",
        Some(_) => "done",
    };
    let took = status.as_ref().map_or(0.0, |status| status.took.as_secs_f64());
    let failure = status.and_then(|status| status.failure).unwrap_or_default();
    let numbers = [
        ("pieces", progress.pieces),
        ("pieces_done", progress.pieces_done),
        ("bytes_before", progress.bytes_before),
        ("bytes", progress.bytes),
    ];
    call.reply.map(4 + numbers.len());
    for (name, text) in [("state", state), ("stage", progress.stage.name())] {
        call.reply.bulk_text(name);
        call.reply.bulk_text(text);
    }
    for (name, number) in numbers {
        call.reply.bulk_text(name);
        call.reply.integer(i64::try_from(number).unwrap_or(i64::MAX));
    }
    call.reply.bulk_text("seconds");
    call.reply.bulk_text(&format!("{took:.1}"));
    call.reply.bulk_text("failure");
    call.reply.bulk_text(&failure);
}
