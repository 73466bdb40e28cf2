//! Transactions: what one client watches, queues and ends, and what another does meanwhile.

use crate::generate::Compare::Exact;
use crate::generate::{Family, Random, Request};

/// Before `MULTI`.
const WATCH: Family =
    Family { templates: &[(6, Exact, "WATCH { <key> }"), (1, Exact, "WATCH"), (1, Exact, "UNWATCH")] };

const BEGIN: Family = Family { templates: &[(20, Exact, "MULTI"), (1, Exact, "MULTI x")] };

/// Among what is queued: what is not, what is refused, and what concerns all keys.
const WITHIN: Family = Family {
    templates: &[
        (2, Exact, "UNWATCH"),
        (2, Exact, "WATCH { <key> }"),
        (1, Exact, "MULTI"),
        (1, Exact, "DISCARD x"),
        (4, Exact, "PING [ <value> ]"),
        (4, Exact, "( FLUSHALL | FLUSHDB ) [ SYNC | ASYNC | x ]"),
        (1, Exact, "<junk> { <value> }"),
        (1, Exact, "( GET | SET <key> | HSET <key> <field> | LPUSH | EXPIRE <key> )"),
        (2, Exact, "DBSIZE"),
    ],
};

/// What another client does to the keys that are watched.
const OTHER: Family = Family {
    templates: &[
        (4, Exact, "( FLUSHALL | FLUSHDB )"),
        (2, Exact, "SET <key> <value>"),
        (2, Exact, "( DEL | UNLINK ) { <key> }"),
        (2, Exact, "( EXPIREAT <key> <at-seconds> | EXPIREAT <key> 1 | PERSIST <key> )"),
    ],
};

const END: Family = Family { templates: &[(14, Exact, "EXEC"), (1, Exact, "EXEC x"), (2, Exact, "DISCARD")] };

/// Requests of two clients around one transaction. Those in it are of `families`.
pub fn requests(random: &mut Random, families: &[Family]) -> Vec<Request> {
    let client = random.below(2) as usize;
    let other = 1 - client;
    let mut requests = Vec::new();
    let mut add = |client, mut request: Request| {
        request.client = client;
        requests.push(request);
    };
    for _ in 0..random.below(3) {
        add(client, random.request(&[WATCH]));
    }
    for _ in 0..random.below(2) {
        let of = if random.below(2) == 0 { &[OTHER][..] } else { families };
        // Its own writes count as well.
        let by = if random.below(4) == 0 { client } else { other };
        add(by, random.request(of));
    }
    add(client, random.request(&[BEGIN]));
    for _ in 0..random.below(7) {
        match random.below(10) {
            0 => add(client, random.request(&[WITHIN])),
            1 => add(other, random.request(&[OTHER])),
            2 => add(other, random.request(families)),
            _ => add(client, random.request(families)),
        }
    }
    add(client, random.request(&[END]));
    requests
}
