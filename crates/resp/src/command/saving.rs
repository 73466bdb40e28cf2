//! SAVE, BGSAVE, LASTSAVE, SHUTDOWN. See [`crate::saves`] for what a save is here.

use super::entry::plain;
use super::{Call, Command, flag, word};
use crate::client::Then;
use crate::saves::SaveError;
use crate::service::Service;
use ecotone_keyspace::error::{Failure, Outcome, texts};

const ADMIN: u32 = flag::ADMIN | flag::NOSCRIPT;

const fn command(name: &'static str, arity: i32, flags: u32, summary: &'static str, run: super::Run) -> Command {
    plain(name, arity, flags, "server", "1.0.0", summary, run)
}

/// The family.
pub const COMMANDS: &[Command] = &[
    Command {
        complexity: "O(N) where N is the number of bytes in memory that are not in a table yet",
        ..command(
            "save",
            1,
            ADMIN | flag::NO_ASYNC_LOADING | flag::NO_MULTI | flag::WAITS,
            "Synchronously saves the keys to disk.",
            save,
        )
    },
    Command {
        usage: "[SCHEDULE]@3.2.2",
        ..command(
            "bgsave",
            -1,
            ADMIN | flag::NO_ASYNC_LOADING | flag::WAITS,
            "Asynchronously saves the keys to disk.",
            bgsave,
        )
    },
    command(
        "lastsave",
        1,
        flag::LOADING | flag::STALE | flag::FAST,
        "Returns the Unix timestamp of the last successful save to disk.",
        lastsave,
    ),
    Command {
        usage: "[save-selector: NOSAVE | SAVE] [NOW]@7.0.0 [FORCE]@7.0.0 [ABORT]@7.0.0",
        ..command(
            "shutdown",
            -1,
            ADMIN | flag::LOADING | flag::STALE | flag::NO_MULTI | flag::ALLOW_BUSY,
            "Synchronously saves the keys to disk and shuts down the server.",
            shutdown,
        )
    },
];

fn save(call: &mut Call<'_>) -> Outcome {
    call.service.saves.save(call.keys.keyspace())?;
    call.reply.simple("OK");
    Ok(())
}

impl From<SaveError> for Failure {
    fn from(error: SaveError) -> Self {
        match error {
            SaveError::Store(error) => error.into(),
            SaveError::Backup(error) => error.into(),
            error => Self::with(format!("ERR {error}")),
        }
    }
}

fn bgsave(call: &mut Call<'_>) -> Outcome {
    match call.arguments[1..] {
        [] => {}
        // There is nothing that it could have to wait for.
        [option] if option.eq_ignore_ascii_case(b"SCHEDULE") => {}
        _ => return Err(texts::SYNTAX),
    }
    let Service { saves, keyspace, backups, host, .. } = call.service;
    saves.save_in_background(keyspace, backups, host.backup_target())?;
    call.reply.simple("Background saving started");
    Ok(())
}

fn lastsave(call: &mut Call<'_>) -> Outcome {
    call.reply.integer(call.service.saves.last().at_s as i64);
    Ok(())
}

/// The options change nothing: no client is waited for, a failure to write stops no shutdown, and
/// what was acknowledged is kept by the log, so that there is no state to go back to without a
/// save.
fn shutdown(call: &mut Call<'_>) -> Outcome {
    let (mut saves, mut spares, mut aborts, mut hurries) = (false, false, false, false);
    for option in &call.arguments[1..] {
        match word::upper(option).as_slice() {
            b"SAVE" => saves = true,
            b"NOSAVE" => spares = true,
            b"ABORT" => aborts = true,
            b"NOW" | b"FORCE" => hurries = true,
            _ => return Err(texts::SYNTAX),
        }
    }
    if (saves && spares) || (aborts && (saves || spares || hurries)) {
        return Err(texts::SYNTAX);
    }
    if aborts {
        return Err(Failure::text("ERR No shutdown in progress."));
    }
    call.service.host.shut_down();
    call.client.then = Then::Close;
    Ok(())
}
