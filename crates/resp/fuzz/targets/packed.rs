//! Stored collections with any bytes in them.

use ecotone_keyspace::collections::packed::{Small, items};
use ecotone_keyspace::collections::{Large, MAX_SMALL_BYTES};
use ecotone_keyspace::{Blocking, Slot, Tag, Type};

use super::Input;
use super::service::with_live;

const TYPES: [Type; 5] = [Type::String, Type::Hash, Type::SortedSet, Type::Set, Type::List];

/// What clients may ask about `k`, all but what draws from it at random without end. `o` is another
/// key.
const REQUESTS: &[&str] = &[
    "type k",
    "exists k",
    "object encoding k",
    "get k",
    "strlen k",
    "hgetall k",
    "hlen k",
    "hget k a",
    "hmget k a b",
    "hkeys k",
    "hscan k 0 count 3",
    "hrandfield k",
    "hrandfield k 3 withvalues",
    "hincrby k n 1",
    "hset k a 1 b 2",
    "hdel k a",
    "scard k",
    "smembers k",
    "sismember k a",
    "sscan k 0",
    "spop k",
    "srandmember k 3",
    "sadd k a b",
    "srem k a",
    "smove k o a",
    "sunion k o",
    "sinterstore o k k",
    "llen k",
    "lrange k 0 -1",
    "lindex k 1",
    "lpos k a",
    "lpush k a",
    "rpush k b",
    "lpop k",
    "rpop k 2",
    "lset k 0 x",
    "linsert k before a x",
    "lrem k 0 a",
    "ltrim k 0 5",
    "lmove k o left right",
    "zcard k",
    "zrange k 0 -1 withscores",
    "zrangebyscore k -inf +inf",
    "zrangebylex k - +",
    "zscore k a",
    "zrank k a",
    "zadd k 1 a 2 b",
    "zincrby k 1 a",
    "zrem k a",
    "zpopmin k",
    "zremrangebyrank k 0 1",
    "zscan k 0",
    "zcount k 0 1",
    "copy k o",
    "rename k o",
    "rename o k",
    "persist k",
    "append k x",
    "del k",
];

/// The input is a type, whether it says that it is large, and the payload.
pub fn run(input: &[u8]) {
    decode(input);
    let mut input = Input(input);
    let kind = input.byte();
    let tag = Tag { of: TYPES[usize::from(kind & 0x7F) % TYPES.len()], is_large: kind & 0x80 != 0 };
    let payload = input.0;
    with_live(|live| {
        live.clear();
        for request in REQUESTS {
            // Each meets it as it was.
            let mut group = live.group();
            let mut slots = [Slot::of(b"k"), Slot::of(b"o")];
            slots.sort();
            assert!(group.hold(&slots, Blocking::Allowed));
            let mut keys = group.keys(Blocking::Allowed);
            keys.set(b"k", tag, None, payload).expect("it is not read");
            keys.remove(b"o").expect("it is not read");
            drop(keys);
            group.keep();
            group.commit(Blocking::Allowed).expect("a store in memory takes writes");
            let words: Vec<&[u8]> = request.split(' ').map(str::as_bytes).collect();
            let mut client = live.client();
            let reply = client.ask(&mut group, &words);
            assert!(!reply.starts_with(b"-") || group.is_empty(), "{request} has left something");
            assert!(!reply.starts_with(b"-ERR the server failed"), "{request} panicked");
            group.commit(Blocking::Allowed).expect("a store in memory takes writes");
        }
    });
}

/// The encodings alone.
fn decode(bytes: &[u8]) {
    let mut found = Vec::new();
    for item in items(bytes) {
        match item {
            Ok(item) => found.push(item),
            Err(_) => return large(bytes),
        }
    }
    let all = Small::all(found.iter().copied());
    assert_eq!(all.bytes(), bytes.len());
    assert_eq!(all.pack()[..], *bytes, "what decodes has one encoding");
    assert_eq!(Small::of(found.iter().copied()).is_some(), bytes.len() <= MAX_SMALL_BYTES);
    large(bytes);
}

fn large(bytes: &[u8]) {
    if let Ok((large, rest)) = Large::decode(bytes) {
        let mut again = Vec::new();
        large.encode(&mut again);
        again.extend_from_slice(rest);
        assert_eq!(again, bytes);
    }
}
