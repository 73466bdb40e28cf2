//! Which arguments of commands are passwords: they are written down nowhere.
//!
//! Where a request is refused before Redis has parsed so far, or is malformed, more is taken for a
//! secret than Redis does: a password may be anywhere then.

use super::{Command, flag, word};
use crate::protocol::number::parse_integer;
use crate::service::Service;

/// Replaces a secret, as in Redis.
const REDACTED: &[u8] = b"(redacted)";

/// The request without what is secret of it.
pub(crate) fn redacted<'a>(service: &Service, command: &Command, arguments: &[&'a [u8]]) -> Vec<&'a [u8]> {
    let mut shown = arguments.to_vec();
    if !command.has(flag::SECRET) {
        return shown;
    }
    match command.name {
        "hello" => redact_hello(&mut shown[1..]),
        "config|set" => redact_settings(service, &mut shown[2..]),
        _ => shown[1..].fill(REDACTED),
    }
    shown
}

/// Shown are the version, options, and the name that the client gives itself.
fn redact_hello(arguments: &mut [&[u8]]) {
    let mut at = usize::from(arguments.first().is_some_and(|version| parse_integer(version).is_some()));
    while let Some(option) = arguments.get(at).copied() {
        at += 1;
        if option.eq_ignore_ascii_case(b"SETNAME") {
            at += 1;
        } else if option.eq_ignore_ascii_case(b"AUTH") {
            // User and password.
            arguments.iter_mut().skip(at).take(2).for_each(|secret| *secret = REDACTED);
            at += 2;
        } else {
            return arguments[at - 1..].fill(REDACTED);
        }
    }
}

/// Shown are settings that there are, and values that are no passwords. What is no setting may be
/// one that was misspelt, or a part of a password with a blank in it.
fn redact_settings(service: &Service, arguments: &mut [&[u8]]) {
    let (pairs, []) = arguments.as_chunks_mut::<2>() else {
        return arguments.fill(REDACTED);
    };
    let known = service.host.settings(&|_| true);
    for [name, value] in pairs {
        let text = String::from_utf8_lossy(&word::lower(name)).into_owned();
        let is_secret = service.host.is_secret(&text);
        let is_known = is_secret || known.contains_key(&text);
        if !is_known {
            *name = REDACTED;
        }
        if is_secret || !is_known {
            *value = REDACTED;
        }
    }
}
