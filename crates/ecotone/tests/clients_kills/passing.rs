//! What goes by itself: keys that expire before the next write. A client has found them gone.

use crate::families::{Family, members, named, number, padded};

/// 2100, in ms: what has a time from then on stays.
const FAR_MS: u64 = 4_102_444_800_000;

/// Writes of one life of a collection that goes at the end of it: more than fit into a packed one.
const LIFE: u64 = 140;

pub const FAMILIES: [Family; 2] = [
    // Over one that would have stayed, so that there is an older version to come back, and beside
    // one whose time must be what it was.
    Family {
        write: |who, number| {
            vec![
                format!("SET pass:{who} {number}"),
                "MULTI".into(),
                format!("SET pass:{who} {number} PX 1"),
                format!("SET dated:{who} {} PXAT {}", padded(number), FAR_MS + number),
                "EXEC".into(),
            ]
        },
        passes: |who, _| Some(format!("pass:{who}")),
        last: |client, who| {
            let last = number(&client.ask(&format!("GET dated:{who}")).unwrap());
            let back = number(&client.ask(&format!("GET pass:{who}")).unwrap());
            // The first request of the next one may have been carried out.
            assert!(back == 0 || back == last + 1, "{back} is there, and {last} was found gone");
            if last > 0 {
                assert_eq!(client.ask(&format!("PEXPIRETIME dated:{who}")).unwrap(), (FAR_MS + last).to_string());
            }
            last
        },
        // Each is a wait.
        least: 50,
    },
    // A collection that becomes large and then goes. The kinds take turns under one key, each
    // writer begins with another, and none finds elements of the one before.
    Family {
        write: |who, number| {
            let key = format!("brief:{who}");
            let turn = number / LIFE + if who == "0" { 0 } else { 2 };
            let change = match turn % 4 {
                _ if is_last_of_life(number) => format!("PEXPIRE {key} 1"),
                0 => format!("HSET {key} m{number} {}", padded(number)),
                1 => format!("SADD {key} m{number}"),
                2 => format!("RPUSH {key} m{number}"),
                _ => format!("ZADD {key} {number} m{number}"),
            };
            vec!["MULTI".into(), change, format!("SET briefly:{who} {number}"), "EXEC".into()]
        },
        passes: |who, number| is_last_of_life(number).then(|| format!("brief:{who}")),
        last: |client, who| {
            let last = number(&client.ask(&format!("GET briefly:{who}")).unwrap());
            let first = (last / LIFE * LIFE).max(1);
            let expected = if is_last_of_life(last) || last == 0 { Vec::new() } else { named("m", first..=last) };
            assert_eq!(members(client, &format!("brief:{who}")), expected, "after {last}");
            last
        },
        least: LIFE + LIFE / 2,
    },
];

fn is_last_of_life(number: u64) -> bool {
    number % LIFE == LIFE - 1
}
