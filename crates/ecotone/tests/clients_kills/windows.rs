//! Collections that each write adds an element to and takes the oldest one from: what was taken
//! does not come back, and nothing else goes.

use crate::client::Client;
use crate::families::{Family, LASTING, members, named, number, padded};

/// Elements that stay: more than fit into a packed collection.
const KEPT: u64 = 140;

const HASH: usize = 0;
const SET: usize = 1;
const SORTED_SET: usize = 2;
const LIST: usize = 3;

fn key<const KIND: usize>(who: &str) -> String {
    format!("window{KIND}:{who}")
}

fn add<const KIND: usize>(who: &str, number: u64) -> String {
    let key = key::<KIND>(who);
    match KIND {
        HASH => format!("HSET {key} m{number} {}", padded(number)),
        SET => format!("SADD {key} m{number}"),
        SORTED_SET => format!("ZADD {key} {number} m{number}"),
        _ => format!("RPUSH {key} m{number}"),
    }
}

/// Takes `m{oldest}`, by one command or another.
fn take<const KIND: usize>(who: &str, oldest: u64) -> String {
    let key = key::<KIND>(who);
    match (KIND, oldest % 3) {
        (HASH, _) => format!("HDEL {key} m{oldest} nothing"),
        (SET, _) => format!("SREM {key} m{oldest} nothing"),
        (SORTED_SET, 0) => format!("ZREM {key} m{oldest}"),
        (SORTED_SET, 1) => format!("ZPOPMIN {key}"),
        (SORTED_SET, _) => format!("ZREMRANGEBYSCORE {key} -inf {oldest}"),
        (_, 0) => format!("LPOP {key}"),
        (_, 1) => format!("LREM {key} 1 m{oldest}"),
        (_, _) => format!("LTRIM {key} 1 -1"),
    }
}

fn write<const KIND: usize>(who: &str, number: u64) -> Vec<String> {
    let mut requests = vec![add::<KIND>(who, number)];
    requests.extend(number.checked_sub(KEPT).filter(|oldest| *oldest > 0).map(|oldest| take::<KIND>(who, oldest)));
    requests
}

fn last<const KIND: usize>(client: &mut Client, who: &str) -> u64 {
    let found = members(client, &key::<KIND>(who));
    let Some(newest) = found.last() else { return 0 };
    let last = number(&newest[1..]);
    let first = last.saturating_sub(KEPT) + 1;
    if last > KEPT && found.len() as u64 == KEPT + 1 {
        // The oldest was not taken before the server was gone.
        assert_eq!(found, named("m", first - 1..=last));
        client.ask(&take::<KIND>(who, first - 1)).unwrap();
        assert_eq!(members(client, &key::<KIND>(who)), named("m", first..=last), "made up for");
    } else {
        assert_eq!(found, named("m", first..=last));
    }
    last
}

pub const FAMILIES: [Family; 4] = [
    Family { write: write::<HASH>, last: last::<HASH>, ..LASTING },
    Family { write: write::<SET>, last: last::<SET>, ..LASTING },
    Family { write: write::<SORTED_SET>, last: last::<SORTED_SET>, ..LASTING },
    Family { write: write::<LIST>, last: last::<LIST>, ..LASTING },
];
