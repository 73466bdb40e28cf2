//! Strings.

use crate::generate::Compare::Exact;
use crate::generate::Family;

pub const FAMILY: Family = Family {
    templates: &[
        (6, Exact, "GET <key>"),
        (8, Exact, "SET <key> <value>"),
        (
            8,
            Exact,
            "SET <key> <value> [ NX | XX ] [ GET ] [ EX <seconds> | PX <milliseconds> | EXAT <at-seconds> | PXAT <at-milliseconds> | KEEPTTL ]",
        ),
        (
            2,
            Exact,
            "SET <key> <value> { NX | XX | GET | EX <seconds> | PX <milliseconds> | EXAT <at-seconds> | KEEPTTL | PERSIST }",
        ),
        (2, Exact, "SETNX <key> <value>"),
        (2, Exact, "SETEX <key> <seconds> <value>"),
        (2, Exact, "PSETEX <key> <milliseconds> <value>"),
        (3, Exact, "MGET { <key> }"),
        (2, Exact, "MSET { <key> <value> }"),
        (2, Exact, "MSETNX { <key> <value> }"),
        (2, Exact, "GETSET <key> <value>"),
        (2, Exact, "GETDEL <key>"),
        (
            3,
            Exact,
            "GETEX <key> [ EX <seconds> | PX <milliseconds> | EXAT <at-seconds> | PXAT <at-milliseconds> | PERSIST ]",
        ),
        (1, Exact, "GETEX <key> { EX <seconds> | PERSIST | PXAT 1 | EXAT 1000 | NX | KEEPTTL }"),
        (4, Exact, "APPEND <key> <value>"),
        (2, Exact, "STRLEN <key>"),
        (4, Exact, "( GETRANGE | SUBSTR ) <key> <index> <index>"),
        (3, Exact, "SETRANGE <key> <offset> <value>"),
        (5, Exact, "( INCR | DECR ) <key>"),
        (5, Exact, "( INCRBY | DECRBY ) <key> <integer>"),
        (5, Exact, "INCRBYFLOAT <key> <float>"),
    ],
};
