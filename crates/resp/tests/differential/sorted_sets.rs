//! Sorted sets.

use crate::generate::Compare::{AnyOrder, Exact, Kind, WholeScan};
use crate::generate::Family;

pub const FAMILY: Family = Family {
    templates: &[
        (14, Exact, "ZADD <key> { <score> <member> }"),
        (8, Exact, "ZADD <key> [ NX | XX ] [ GT | LT ] [ CH ] [ INCR ] <score> <member>"),
        (3, Exact, "ZADD <key> [ XX | NX ] [ GT | LT ] [ CH ] { <score> <member> }"),
        (2, Exact, "ZADD <key> { NX | XX | GT | LT | CH | INCR | KEEPTTL } { <score> <member> }"),
        (4, Exact, "ZINCRBY <key> <score> <member>"),
        (4, Exact, "ZREM <key> { <member> }"),
        (3, Exact, "ZSCORE <key> <member>"),
        (2, Exact, "ZMSCORE <key> { <member> }"),
        (2, Exact, "ZCARD <key>"),
        (4, Exact, "( ZRANK | ZREVRANK ) <key> <member>"),
        (4, Exact, "ZCOUNT <key> <bound> <bound>"),
        (4, Exact, "ZLEXCOUNT <key> <name> <name>"),
        (4, Exact, "( ZRANGE | ZREVRANGE ) <key> <index> <index> [ WITHSCORES ]"),
        (2, Exact, "ZRANGE <key> <index> <index> [ REV ] [ WITHSCORES ] [ LIMIT 0 -1 | LIMIT <index> <index> ]"),
        (4, Exact, "ZRANGE <key> <bound> <bound> BYSCORE [ REV ] [ WITHSCORES ] [ LIMIT <index> <index> ]"),
        (4, Exact, "ZRANGE <key> <name> <name> BYLEX [ REV ] [ LIMIT <index> <index> ]"),
        (
            2,
            Exact,
            "ZRANGE <key> <bound> <bound> { BYSCORE | BYLEX | REV | WITHSCORES | LIMIT <index> <index> | LIMIT 1 | WITHSCORE }",
        ),
        (
            4,
            Exact,
            "( ZRANGEBYSCORE | ZREVRANGEBYSCORE ) <key> <bound> <bound> [ WITHSCORES ] [ LIMIT <index> <index> ] [ REV | BYSCORE | WITHSCORES ]",
        ),
        (
            3,
            Exact,
            "( ZRANGEBYLEX | ZREVRANGEBYLEX ) <key> <name> <name> [ LIMIT <index> <index> ] [ REV | WITHSCORES ]",
        ),
        (2, Exact, "ZREMRANGEBYRANK <key> <index> <index>"),
        (2, Exact, "ZREMRANGEBYSCORE <key> <bound> <bound>"),
        (2, Exact, "ZREMRANGEBYLEX <key> <name> <name>"),
        (3, Exact, "( ZPOPMIN | ZPOPMAX ) <key> [ <count> ]"),
        (3, WholeScan { cursor: 2 }, "ZSCAN <key> 0 [ MATCH <pattern> ] [ COUNT <count> ]"),
        (1, Exact, "ZSCAN <key> ( x | 0 ) [ MATCH ] [ COUNT <integer> ] [ TYPE zset ]"),
        (2, Kind, "ZRANDMEMBER <key>"),
        (
            2,
            AnyOrder,
            "ZRANDMEMBER <key> ( 1000 | 0 | 9223372036854775807 | -9223372036854775808 | x ) [ WITHSCORES | x ]",
        ),
        (1, Kind, "ZRANDMEMBER <key> ( 2 | -3 )"),
    ],
};
