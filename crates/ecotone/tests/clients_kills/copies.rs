//! What is made of other keys by one request: it is whole, or it is what was there before.

use crate::client::Client;
use crate::families::{Family, LASTING, members, named, number, padded};

/// Writes from one copy to the next.
const COPIED_EVERY: u64 = 25;

pub const FAMILIES: [Family; 2] = [
    // A hash that becomes large, and copies of it, each over the one before.
    Family {
        write: |who, number| {
            let mut requests = vec![format!("HSET original:{who} m{number} {}", padded(number))];
            requests.extend(copies_at(number).then(|| copy(who, number)));
            requests
        },
        last: |client, who| {
            let last = number(&client.ask(&format!("HLEN original:{who}")).unwrap());
            assert_eq!(members(client, &format!("original:{who}")), named("m", 1..=last));
            made_at_last(client, last, &format!("copy:{who}"), |made| named("m", 1..=made), &copy(who, last));
            let made = last / COPIED_EVERY * COPIED_EVERY;
            if made > 0 {
                let value = client.ask(&format!("HGET copy:{who} m{made}")).unwrap();
                assert_eq!(number(&value), made, "with its values");
            }
            last
        },
        least: 4 * COPIED_EVERY,
        ..LASTING
    },
    // Two sets of two slots, and in turn their union, what is in both, and what is in one alone.
    Family {
        write: |who, number| {
            let mut requests = vec![format!("SADD all:{who} m{number}")];
            if number.is_multiple_of(2) {
                requests.insert(0, "MULTI".into());
                requests.extend([format!("SADD even:{who} m{number}"), "EXEC".into()]);
            }
            requests.extend(copies_at(number).then(|| combine(who, number)));
            requests
        },
        last: |client, who| {
            let last = number(&client.ask(&format!("SCARD all:{who}")).unwrap());
            assert_eq!(members(client, &format!("all:{who}")), named("m", 1..=last));
            assert_eq!(members(client, &format!("even:{who}")), named("m", (2..=last).step_by(2)));
            let combined = |made: u64| match made / COPIED_EVERY % 3 {
                _ if made == 0 => Vec::new(),
                0 => named("m", 1..=made),
                1 => named("m", (2..=made).step_by(2)),
                _ => named("m", (1..=made).step_by(2)),
            };
            made_at_last(client, last, &format!("combined:{who}"), combined, &combine(who, last));
            last
        },
        least: 4 * COPIED_EVERY,
        ..LASTING
    },
];

fn copies_at(number: u64) -> bool {
    number.is_multiple_of(COPIED_EVERY)
}

fn copy(who: &str, _: u64) -> String {
    format!("COPY original:{who} copy:{who} REPLACE")
}

fn combine(who: &str, number: u64) -> String {
    let command = match number / COPIED_EVERY % 3 {
        0 => "SUNIONSTORE",
        1 => "SINTERSTORE",
        _ => "SDIFFSTORE",
    };
    format!("{command} combined:{who} all:{who} even:{who}")
}

/// Sees that under `key` is what was made after the last write that it is made after, of `last`
/// ones, or the time before where this was the `last` one, which is then made up for by `request`.
fn made_at_last(client: &mut Client, last: u64, key: &str, made: impl Fn(u64) -> Vec<String>, request: &str) {
    let due = last / COPIED_EVERY * COPIED_EVERY;
    let found = members(client, key);
    if due == last && due > 0 && found == made(due - COPIED_EVERY) {
        client.ask(request).unwrap();
        assert_eq!(members(client, key), made(due), "made up for");
        return;
    }
    assert_eq!(found, made(due), "{key} after {last} writes");
}
