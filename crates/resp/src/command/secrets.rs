//! Which arguments of commands are passwords: they are written down nowhere.
//!
//! Where a request is refused before Redis has looked so far more is taken for a secret than Redis does.

use super::{Command, flag};
use crate::service::Service;

/// What stands in the place of a secret, as in Redis.
const REDACTED: &[u8] = b"(redacted)";

/// The request without what is secret of it.
pub(crate) fn redacted<'a>(service: &Service, command: &Command, arguments: &[&'a [u8]]) -> Vec<&'a [u8]> {
    let mut shown = arguments.to_vec();
    if !command.has(flag::SECRET) {
        return shown;
    }
    match command.name {
        // User and password.
        "hello" => {
            for (at, option) in arguments.iter().enumerate().skip(2) {
                if option.eq_ignore_ascii_case(b"AUTH") {
                    shown.iter_mut().skip(at + 1).take(2).for_each(|secret| *secret = REDACTED);
                }
            }
        }
        "config|set" => {
            for (pair, shown) in arguments[2..].chunks(2).zip(shown[2..].chunks_mut(2)) {
                let name = String::from_utf8_lossy(pair[0]).to_ascii_lowercase();
                if let [_, value] = shown
                    && service.host.is_secret(&name)
                {
                    *value = REDACTED;
                }
            }
        }
        _ => shown[1..].fill(REDACTED),
    }
    shown
}
