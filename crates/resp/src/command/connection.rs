//! HELLO, AUTH, PING, ECHO, SELECT, QUIT, RESET.
//!
//! There is one user, `default`, and one database, 0.

use std::hint::black_box;
use std::sync::atomic::Ordering;

use super::clients::{check_name, set_name};
use super::entry::plain;
use super::{Call, Command, Deprecation, flag, transactions};
use crate::client::Then;
use crate::protocol::number::parse_integer;
use crate::protocol::reply::Version;
use crate::service::COMPATIBLE_VERSION;
use ecotone_keyspace::error::{Failure, Outcome, texts};

const ALWAYS: u32 = flag::LOADING | flag::STALE | flag::FAST;
const FIRST: u32 = ALWAYS | flag::NOSCRIPT | flag::NO_AUTH | flag::ALLOW_BUSY;

const fn command(name: &'static str, arity: i32, flags: u32, summary: &'static str, run: super::Run) -> Command {
    plain(name, arity, flags, "connection", "1.0.0", summary, run)
}

/// The family.
pub const COMMANDS: &[Command] = &[
    Command {
        usage: "[arguments: protover:integer [auth: AUTH username password] [SETNAME clientname]]",
        since: "6.0.0",
        ..command("hello", -1, FIRST | flag::SECRET, "Handshakes with the server.", hello)
    },
    Command {
        usage: "[username]@6.0.0 password",
        complexity: "O(N) where N is the number of passwords defined for the user",
        ..command("auth", -2, FIRST | flag::SECRET, "Authenticates the connection.", auth)
    },
    Command {
        usage: "[message]",
        ..command("ping", -1, flag::FAST, "Returns the server's liveliness response.", ping)
    },
    Command { usage: "message", ..command("echo", 2, ALWAYS, "Returns the given string.", echo) },
    Command { usage: "index:integer", ..command("select", 2, ALWAYS, "Changes the selected database.", select) },
    Command {
        deprecated: Some(Deprecation { since: "7.2.0", instead: "just closing the connection" }),
        ..command("quit", -1, FIRST | flag::NOT_QUEUED, "Closes the connection.", quit)
    },
    Command { since: "6.2.0", ..command("reset", 1, FIRST | flag::NOT_QUEUED, "Resets the connection.", reset) },
];

fn hello(call: &mut Call<'_>) -> Outcome {
    let mut rest = &call.arguments[1..];
    let mut version = None;
    if let [asked, behind @ ..] = rest {
        let refusal = Failure::text("ERR Protocol version is not an integer or out of range");
        version = match parse_integer(asked).ok_or(refusal)? {
            2 => Some(Version::Resp2),
            3 => Some(Version::Resp3),
            _ => return Err(Failure::text("NOPROTO unsupported protocol version")),
        };
        rest = behind;
    }
    // A request that is refused changes nothing.
    let (mut login, mut name) = (None, None);
    while let [option, behind @ ..] = rest {
        rest = match behind {
            [user, password, behind @ ..] if option.eq_ignore_ascii_case(b"AUTH") => {
                login = Some((user, password));
                behind
            }
            [asked, behind @ ..] if option.eq_ignore_ascii_case(b"SETNAME") => {
                check_name(asked)?;
                name = Some(asked);
                behind
            }
            _ => return Err(Failure::repeating("ERR Syntax error in HELLO option '", option, "'")),
        };
    }
    if let Some((user, password)) = login {
        authenticate(call, user, password)?;
    }
    if !call.client.is_authenticated {
        return Err(Failure::text(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> \
             option can be used to authenticate the client and select the RESP protocol version at the same time",
        ));
    }
    if let Some(name) = name {
        set_name(call.client, name)?;
    }
    if let Some(version) = version {
        speak(call, version);
    }
    let protocol = call.client.info.protocol.load(Ordering::Relaxed);
    let seen = call.client.seen(&call.service.cluster);
    let (is_cluster, view) = (seen.is_cluster(), seen.view());
    let is_replica = view.replica_of(view.own()).is_some();
    let reply = &mut *call.reply;
    reply.map(7);
    reply.bulk_text("server");
    reply.bulk_text("redis");
    reply.bulk_text("version");
    reply.bulk_text(COMPATIBLE_VERSION);
    reply.bulk_text("proto");
    reply.integer(protocol.into());
    reply.bulk_text("id");
    reply.integer(call.client.info.id as i64);
    reply.bulk_text("mode");
    reply.bulk_text(if is_cluster { "cluster" } else { "standalone" });
    reply.bulk_text("role");
    reply.bulk_text(if is_replica { "replica" } else { "master" });
    reply.bulk_text("modules");
    reply.array(0);
    Ok(())
}

fn speak(call: &mut Call<'_>, version: Version) {
    call.reply.set_version(version);
    let number = match version {
        Version::Resp2 => 2,
        Version::Resp3 => 3,
    };
    call.client.info.protocol.store(number, Ordering::Relaxed);
}

fn auth(call: &mut Call<'_>) -> Outcome {
    match call.arguments[1..] {
        [password] => {
            if call.service.limits.read().password.is_none() {
                return Err(Failure::text(
                    "ERR AUTH <password> called without any password configured for the default user. Are you sure \
                     your configuration is correct?",
                ));
            }
            authenticate(call, b"default", password)?;
        }
        [user, password] => authenticate(call, user, password)?,
        _ => return Err(texts::SYNTAX),
    }
    call.reply.simple("OK");
    Ok(())
}

/// Without a password of the server's, every one is right.
fn authenticate(call: &mut Call<'_>, user: &[u8], password: &[u8]) -> Outcome {
    let limits = call.service.limits.read().clone();
    let is_right = limits.password.as_ref().is_none_or(|expected| is_same(password, expected.as_bytes()));
    if user != b"default" || !is_right {
        call.service.statistics.wrong_passwords.fetch_add(1, Ordering::Relaxed);
        return Err(Failure::text("WRONGPASS invalid username-password pair or user is disabled."));
    }
    call.client.is_authenticated = true;
    Ok(())
}

/// Takes as long as `given` is, whatever is expected: the time says nothing of how much of it is
/// right.
fn is_same(given: &[u8], expected: &[u8]) -> bool {
    let mut differs = u8::from(given.len() != expected.len());
    for (index, byte) in given.iter().enumerate() {
        differs |= black_box(byte ^ expected.get(index).copied().unwrap_or_default());
    }
    black_box(differs) == 0
}

fn ping(call: &mut Call<'_>) -> Outcome {
    match call.arguments[1..] {
        [] => call.reply.simple("PONG"),
        [message] => call.reply.bulk(message),
        _ => return Err(Failure::text("ERR wrong number of arguments for 'ping' command")),
    }
    Ok(())
}

fn echo(call: &mut Call<'_>) -> Outcome {
    call.reply.bulk(call.arguments[1]);
    Ok(())
}

fn select(call: &mut Call<'_>) -> Outcome {
    let number = parse_integer(call.arguments[1]).ok_or(texts::NOT_AN_INTEGER)?;
    match i32::try_from(number) {
        Ok(0) => call.reply.simple("OK"),
        Ok(_) if call.client.seen(&call.service.cluster).is_cluster() => {
            return Err(Failure::text("ERR SELECT is not allowed in cluster mode"));
        }
        Ok(_) => return Err(Failure::text("ERR DB index is out of range")),
        Err(_) => {
            let (least, most) = (i32::MIN, i32::MAX);
            let text = format!("ERR value is out of range, value must between {least} and {most}");
            return Err(Failure::with(text));
        }
    }
    Ok(())
}

fn quit(call: &mut Call<'_>) -> Outcome {
    call.client.then = Then::Close;
    call.reply.simple("OK");
    Ok(())
}

fn reset(call: &mut Call<'_>) -> Outcome {
    transactions::end(call.client, call.service);
    call.client.info.name.lock().clear();
    let info = &call.client.info;
    for switched in [&info.is_no_evict, &info.is_no_touch, &info.is_readonly] {
        switched.store(false, Ordering::Relaxed);
    }
    call.client.set_level(None);
    let seen = call.client.seen(&call.service.cluster);
    (seen.reads_replicas, seen.follows_redirects) = (false, false);
    call.client.is_authenticated = call.service.limits.read().password.is_none();
    speak(call, Version::Resp2);
    call.reply.simple("RESET");
    Ok(())
}
