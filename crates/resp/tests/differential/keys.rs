//! Keys, whatever they hold, and their times.

use crate::generate::Compare::{AnyOrder, Exact, Kind, Plant, WholeScan, Within};
use crate::generate::Family;

pub const FAMILY: Family = Family {
    templates: &[
        (5, Plant, "PLANT <planted> <key>"),
        (3, Exact, "( DEL | UNLINK ) { <key> }"),
        (2, Exact, "( EXISTS | TOUCH ) { <key> }"),
        (4, Exact, "TYPE <key>"),
        (5, Exact, "( EXPIRE <key> <seconds> | PEXPIRE <key> <milliseconds> ) [ NX | XX | GT | LT | XX GT | LT XX ]"),
        (
            5,
            Exact,
            "( EXPIREAT <key> <at-seconds> | PEXPIREAT <key> <at-milliseconds> ) [ NX | XX | GT | LT | XX GT | LT XX ]",
        ),
        (2, Exact, "( EXPIREAT | PEXPIREAT ) <key> ( 1 | 1000 | -5 | <at-seconds> ) { NX | XX | GT | LT | PX }"),
        (3, Within(10), "( TTL | EXPIRETIME ) <key>"),
        (3, Within(10_000), "( PTTL | PEXPIRETIME ) <key>"),
        (2, Exact, "PERSIST <key>"),
        (4, Exact, "( RENAME | RENAMENX ) <key> <key>"),
        (4, Exact, "COPY <key> <key> [ REPLACE ]"),
        (1, Exact, "COPY <key> <key> { REPLACE | DB 0 | DB <integer> | DB }"),
        (2, AnyOrder, "KEYS <pattern>"),
        (3, WholeScan { cursor: 1 }, "SCAN 0 [ COUNT <count> ] [ MATCH <pattern> ] [ TYPE <type> ]"),
        (1, Kind, "SCAN <integer> [ COUNT <count> ]"),
        (1, Kind, "RANDOMKEY"),
        (1, Exact, "DBSIZE"),
        (1, Exact, "( FLUSHDB | FLUSHALL ) [ SYNC | ASYNC ]"),
    ],
};
