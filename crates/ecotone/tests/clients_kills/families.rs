//! What writers do, and what must be there of it afterwards.

use std::collections::BTreeSet;

use crate::client::Client;

/// What one writer does for its `number`th write, as requests, and what they leave; `who` names its
/// keys.
pub struct Family {
    pub write: fn(who: &str, number: u64) -> Vec<String>,
    /// A key that this write has given so short a time that it goes by itself. The writer sees it
    /// gone before it goes on.
    pub passes: fn(who: &str, number: u64) -> Option<String>,
    /// Asks for the last number that was written, 0 where there is none, and sees that what is
    /// there is what so many writes leave. A move, a copy or a removal that was not begun is made
    /// up for.
    pub last: fn(client: &mut Client, who: &str) -> u64,
    /// With fewer writes in all it was not what it is for.
    pub least: u64,
}

/// Nothing of it goes by itself, and it needs a [`LIFE`] or as many elements.
pub const LASTING: Family = Family { write: |_, _| Vec::new(), passes: |_, _| None, last: |_, _| 0, least: LIFE };

/// The number that a reply is, 0 where there is nothing.
pub fn number(text: &str) -> u64 {
    if text == "nothing" { 0 } else { text.trim_start_matches('0').parse().unwrap_or(0) }
}

/// Long enough to lie in the value log now and then.
pub fn padded(number: u64) -> String {
    format!("{number:0width$}", width = 1 + (number % 300) as usize)
}

/// `prefix` with each of `numbers`.
pub fn named(prefix: &str, numbers: impl Iterator<Item = u64>) -> Vec<String> {
    numbers.map(|number| format!("{prefix}{number}")).collect()
}

/// Elements that are kept where others are moved away from: more than fit into a packed collection.
const KEPT: u64 = 140;

/// Writes of one life of a collection, in [`life`].
const LIFE: u64 = 200;

/// A collection that grows from packed to large, is then given another name, over the one of the
/// life before, and every second time deleted. The kinds take turns. Each step is a transaction
/// with its own number, which tells afterwards what must be there.
fn life(who: &str, number: u64) -> Vec<String> {
    let (turn, step) = (number / LIFE, number % LIFE);
    let (grown, kept) = (format!("grown:{who}"), format!("kept:{who}"));
    let change = match step {
        180 => format!("RENAME {grown} {kept}"),
        190 if turn % 2 == 1 => format!("DEL {kept} nothing:{who}"),
        181.. => format!("EXISTS {grown} {kept}"),
        _ => match turn % 4 {
            0 => format!("SADD {grown} m{step}"),
            1 => format!("RPUSH {grown} m{step}"),
            2 => format!("HSET {grown} m{step} {}", padded(number)),
            _ => format!("ZADD {grown} {step} m{step}"),
        },
    };
    vec!["MULTI".into(), change, format!("SET step:{who} {number}"), "EXEC".into()]
}

/// The members of what [`life`] has under `key`, whatever its type, in their order where it has
/// one.
pub fn members(client: &mut Client, key: &str) -> Vec<String> {
    let request = match &client.ask(&format!("TYPE {key}")).unwrap()[..] {
        "none" => return Vec::new(),
        "set" => format!("SMEMBERS {key}"),
        "list" => format!("LRANGE {key} 0 -1"),
        "hash" => format!("HKEYS {key}"),
        _ => format!("ZRANGE {key} 0 -1"),
    };
    let has_order = !matches!(&request[..1], "S" | "H");
    let mut found: Vec<String> = client.ask(&request).unwrap().split(' ').map(str::to_owned).collect();
    if !has_order {
        found.sort_by_key(|member| number(&member[1..]));
    }
    found
}

fn last_of_life(client: &mut Client, who: &str) -> u64 {
    let last = number(&client.ask(&format!("GET step:{who}")).unwrap());
    let (turn, step) = (last / LIFE, last % LIFE);
    let (grown, kept) = (members(client, &format!("grown:{who}")), members(client, &format!("kept:{who}")));
    // The first write of all has the number 1.
    let grown_in = |turn: u64, to: u64| named("m", u64::from(turn == 0)..=to);
    let expected = if last == 0 || step >= 180 { Vec::new() } else { grown_in(turn, step) };
    assert_eq!(grown, expected, "after step {step} of life {turn}");
    let expected = match turn % 2 {
        0 if step >= 180 => grown_in(turn, 179),
        1 if step < 180 => grown_in(turn - 1, 179),
        1 if step < 190 => grown_in(turn, 179),
        _ => Vec::new(),
    };
    assert_eq!(kept, expected, "after step {step} of life {turn}");
    last
}

pub const FAMILIES: [Family; 10] = [
    Family {
        write: |who, number| vec![format!("SET s:{who} {}", padded(number))],
        last: |client, who| number(&client.ask(&format!("GET s:{who}")).unwrap()),
        ..LASTING
    },
    Family {
        write: |who, _| vec![format!("INCR i:{who}")],
        last: |client, who| number(&client.ask(&format!("GET i:{who}")).unwrap()),
        ..LASTING
    },
    // These two become large on the way: one field, one member for each write.
    Family {
        write: |who, number| vec![format!("HSET h:{who} f{number} {}", padded(number))],
        last: |client, who| {
            let fields = number(&client.ask(&format!("HLEN h:{who}")).unwrap());
            if fields > 0 {
                let last = client.ask(&format!("HGET h:{who} f{fields}")).unwrap();
                assert_eq!(number(&last), fields, "every field up to the last");
            }
            fields
        },
        ..LASTING
    },
    Family {
        write: |who, number| vec![format!("ZADD z:{who} {number} m{number}")],
        last: |client, who| {
            let members = number(&client.ask(&format!("ZCARD z:{who}")).unwrap());
            if members > 0 {
                assert_eq!(client.ask(&format!("ZRANGE z:{who} -1 -1")).unwrap(), format!("m{members}"));
                assert_eq!(client.ask(&format!("ZRANK z:{who} m{members}")).unwrap(), (members - 1).to_string());
            }
            members
        },
        ..LASTING
    },
    // Keys of several slots and types, changed together.
    Family {
        write: |who, number| {
            vec![
                "MULTI".into(),
                format!("SET a:{who} {}", padded(number)),
                format!("INCR b:{who}"),
                format!("HSET c:{who} field {number}"),
                "EXEC".into(),
            ]
        },
        last: |client, who| {
            let one = number(&client.ask(&format!("GET a:{who}")).unwrap());
            assert_eq!(number(&client.ask(&format!("GET b:{who}")).unwrap()), one, "whole or not at all");
            assert_eq!(number(&client.ask(&format!("HGET c:{who} field")).unwrap()), one, "whole or not at all");
            one
        },
        // Nothing of it grows.
        least: 100,
        ..LASTING
    },
    // A set and a list, which become large as well.
    Family {
        write: |who, number| vec![format!("SADD set:{who} m{number}")],
        last: |client, who| {
            let found = number(&client.ask(&format!("SCARD set:{who}")).unwrap());
            let members = members(client, &format!("set:{who}"));
            assert_eq!(members, named("m", 1..=found), "every member up to the last");
            found
        },
        ..LASTING
    },
    Family {
        write: |who, number| vec![format!("RPUSH list:{who} e{number}")],
        last: |client, who| {
            let found = number(&client.ask(&format!("LLEN list:{who}")).unwrap());
            let elements = members(client, &format!("list:{who}"));
            assert_eq!(elements, named("e", 1..=found), "every element up to the last");
            found
        },
        ..LASTING
    },
    // From one to the other, which are in different slots: whatever happens, an element is in
    // exactly one of them.
    Family {
        write: |who, number| {
            let mut requests = vec![format!("SADD from:{who} m{number}")];
            requests.extend(moved(number).map(|moved| format!("SMOVE from:{who} to:{who} m{moved}")));
            requests
        },
        last: |client, who| {
            let (from, to) = (members(client, &format!("from:{who}")), members(client, &format!("to:{who}")));
            let both: BTreeSet<&String> = from.iter().chain(&to).collect();
            assert_eq!(both.len(), from.len() + to.len(), "no member is in both");
            let last = both.len() as u64;
            assert_eq!(both, named("m", 1..=last).iter().collect(), "and none in neither");
            if let Some(moved) = moved(last).filter(|moved| to.len() as u64 != *moved) {
                assert_eq!(to.len() as u64, moved - 1);
                client.ask(&format!("SMOVE from:{who} to:{who} m{moved}")).unwrap();
            }
            last
        },
        ..LASTING
    },
    Family {
        write: |who, number| {
            let mut requests = vec![format!("RPUSH left:{who} e{number}")];
            requests.extend(moved(number).map(|_| format!("LMOVE left:{who} right:{who} LEFT RIGHT")));
            requests
        },
        last: |client, who| {
            let (left, right) = (members(client, &format!("left:{who}")), members(client, &format!("right:{who}")));
            let last = (left.len() + right.len()) as u64;
            assert_eq!([&right[..], &left[..]].concat(), named("e", 1..=last), "each is in one, in its place");
            if let Some(moved) = moved(last).filter(|moved| right.len() as u64 != *moved) {
                assert_eq!(right.len() as u64, moved - 1);
                client.ask(&format!("LMOVE left:{who} right:{who} LEFT RIGHT")).unwrap();
            }
            last
        },
        ..LASTING
    },
    Family { write: life, last: last_of_life, ..LASTING },
];

/// The element that moves after the `number`th was added: those that were added first do, once
/// there are more than [`KEPT`].
fn moved(number: u64) -> Option<u64> {
    number.checked_sub(KEPT).filter(|moved| *moved > 0)
}
