//! BACKUP: how `ecotone backup` takes a copy of the store through a client's connection. Redis has
//! no such command.
//!
//! `BEGIN` holds a checkpoint, of the only store or of that of a shard; `FILES` lists its files,
//! `READ` returns their bytes; `END` releases it. All of it is for who runs the server: what is
//! read are files as they are, with all keys and values. See [`crate::backups`] for the bounds.

use super::entry::{container, help, plain};
use super::{Call, Command, flag};
use crate::backups::{BackedUp, BackupError, MAX_HASHED_BYTES, MAX_IDLE, MAX_READ_BYTES, sha256};
use crate::protocol::number::parse_integer;
use ecotone_keyspace::ShardId;
use ecotone_keyspace::error::{Failure, Outcome, texts};

/// Files in one reply.
const MAX_FILES: usize = 1000;

/// Nothing of it waits for the keys, but for the device.
const ADMIN: u32 = flag::ADMIN | flag::NOSCRIPT | flag::NO_MULTI | flag::NO_ASYNC_LOADING | flag::WAITS;

const fn subcommand(
    name: &'static str,
    arity: i32,
    flags: u32,
    usage: &'static str,
    complexity: &'static str,
    summary: &'static str,
    run: super::Run,
) -> Command {
    Command { usage, complexity, ..plain(name, arity, flags, "server", "7.2.0", summary, run) }
}

/// The family.
pub const COMMANDS: &[Command] = &[container(
    "backup",
    "server",
    "7.2.0",
    "A container for the commands that a backup of the store is copied with; not of Redis.",
    SUBCOMMANDS,
)];

const SUBCOMMANDS: &[Command] = &[
    subcommand(
        "backup|begin",
        -2,
        ADMIN,
        "[SHARD shard:integer]",
        "O(N) where N is the number of files",
        "Holds the store, or that of a shard, as it is now, to be copied.",
        begin,
    ),
    subcommand(
        "backup|files",
        5,
        ADMIN,
        "id first:integer count:integer",
        "O(N) where N is the number of files",
        "Returns files of a backup: path, bytes, and a stamp that another backup has for the same file.",
        files,
    ),
    subcommand(
        "backup|read",
        6,
        ADMIN | flag::SKIP_SLOWLOG,
        "id path offset:integer bytes:integer",
        "O(N) where N is the number of bytes",
        "Returns a part of a file of a backup, and its SHA-256.",
        read,
    ),
    subcommand(
        "backup|hash",
        6,
        ADMIN | flag::SKIP_SLOWLOG,
        "id path offset:integer bytes:integer",
        "O(N) where N is the number of bytes",
        "Returns the SHA-256 of a part of a file of a backup.",
        hash,
    ),
    subcommand(
        "backup|end",
        -3,
        ADMIN,
        "id [COMPLETED]",
        "O(N) where N is the number of files",
        "Ends a backup and gives back the space that it holds.",
        end,
    ),
    subcommand(
        "backup|help",
        2,
        flag::LOADING | flag::STALE,
        "",
        "O(1)",
        "Returns helpful text about the different subcommands.",
        backup_help,
    ),
];

impl From<BackupError> for Failure {
    fn from(error: BackupError) -> Self {
        match error {
            BackupError::Store(error) => error.into(),
            error
            @ (BackupError::Unknown | BackupError::Stops | BackupError::TooMany | BackupError::NotPrimary(..)) => {
                Self::with(format!("NOBACKUP {error}"))
            }
            error => Self::with(format!("ERR {error}")),
        }
    }
}

fn begin(call: &mut Call<'_>) -> Outcome {
    let of = match call.arguments[2..] {
        [] => BackedUp::OnlyStore,
        [option, shard] if option.eq_ignore_ascii_case(b"SHARD") => {
            let shard = u32::try_from(number(shard)?).map_err(|_| texts::OUT_OF_RANGE_POSITIVE)?;
            BackedUp::Shard(ShardId(shard))
        }
        _ => return Err(texts::SYNTAX),
    };
    let held = call.service.backups.begin(&call.service.keyspace, of)?;
    // What has no position is of a shard without copies, or of no federation.
    let place = held.place.map(|place| [("epoch", place.epoch), ("number", place.number)]);
    call.reply.map(if place.is_some() { 9 } else { 7 });
    for (name, number) in place.into_iter().flatten() {
        call.reply.bulk_text(name);
        call.reply.integer(number as i64);
    }
    for (name, number) in [
        ("time_ms", held.time_ms),
        ("files", held.checkpoint.files().len() as u64),
        ("bytes", held.bytes()),
        ("idle_ms", MAX_IDLE.as_millis() as u64),
        ("read_bytes", MAX_READ_BYTES as u64),
    ] {
        call.reply.bulk_text(name);
        call.reply.integer(number as i64);
    }
    for (name, text) in [("id", &held.id), ("store", &held.store)] {
        call.reply.bulk_text(name);
        call.reply.bulk_text(text);
    }
    Ok(())
}

fn files(call: &mut Call<'_>) -> Outcome {
    let held = call.service.backups.find(call.arguments[2])?;
    let (first, count) = (number(call.arguments[3])? as usize, number(call.arguments[4])? as usize);
    let told = || held.checkpoint.files().iter().skip(first).take(count.min(MAX_FILES));
    call.reply.array(3 * told().count());
    for (path, file) in told() {
        call.reply.bulk_text(path);
        call.reply.integer(file.bytes as i64);
        call.reply.bulk_text(&file.stamp);
    }
    Ok(())
}

fn number(argument: &[u8]) -> Outcome<u64> {
    let number = parse_integer(argument).and_then(|number| u64::try_from(number).ok());
    number.ok_or(texts::OUT_OF_RANGE_POSITIVE)
}

/// The file, and where in it.
fn part<'c>(call: &Call<'c>) -> Outcome<(&'c str, u64, u64)> {
    let path = std::str::from_utf8(call.arguments[3]).map_err(|_| Failure::text("ERR the path is no text"))?;
    Ok((path, number(call.arguments[4])?, number(call.arguments[5])?))
}

fn read(call: &mut Call<'_>) -> Outcome {
    let backups = &call.service.backups;
    let (held, (path, offset, bytes)) = (backups.find(call.arguments[2])?, part(call)?);
    let bytes = bytes.min(MAX_READ_BYTES as u64) as usize;
    // What is read, and its copy in the reply counts itself.
    let mut reservation = call.keys.reserve_memory();
    reservation.take(bytes)?;
    let read = backups.read(&held, path, offset, bytes)?;
    call.reply.array(2);
    call.reply.bulk(&read);
    call.reply.bulk_text(&sha256(&read));
    Ok(())
}

fn hash(call: &mut Call<'_>) -> Outcome {
    let backups = &call.service.backups;
    let (held, (path, offset, bytes)) = (backups.find(call.arguments[2])?, part(call)?);
    let mut reservation = call.keys.reserve_memory();
    reservation.take(MAX_READ_BYTES)?;
    call.reply.bulk_text(&backups.hash(&held, path, offset, bytes.min(MAX_HASHED_BYTES))?);
    Ok(())
}

fn end(call: &mut Call<'_>) -> Outcome {
    let is_completed = match call.arguments[3..] {
        [] => false,
        [option] if option.eq_ignore_ascii_case(b"COMPLETED") => true,
        _ => return Err(texts::SYNTAX),
    };
    call.service.backups.end(call.arguments[2], is_completed)?;
    call.reply.simple("OK");
    Ok(())
}

fn backup_help(call: &mut Call<'_>) -> Outcome {
    help(
        call,
        &[
            "BEGIN [SHARD <shard>]",
            "    Hold the store, or that of a shard whose primary is here, as it is now. Use `ecotone backup`, or",
            "    `ecotone cluster backup` for all shards, which copy all of it.",
            "FILES <id> <first> <count>",
            "    Return path, bytes and stamp of files, at most 1000.",
            "READ <id> <path> <offset> <bytes>",
            "    Return a part of a file, at most 524288 bytes, and its SHA-256.",
            "HASH <id> <path> <offset> <bytes>",
            "    Return the SHA-256 of a part of a file, at most 16777216 bytes.",
            "END <id> [COMPLETED]",
            "    End a backup and give back the space that it holds.",
        ],
    );
    Ok(())
}
