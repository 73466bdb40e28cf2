//! Lists, small and large: the long elements make them grow.

use crate::generate::Compare::Exact;
use crate::generate::Family;

pub const FAMILY: Family = Family {
    templates: &[
        (14, Exact, "( LPUSH | RPUSH ) <key> { <member> }"),
        (4, Exact, "( LPUSH | RPUSH ) <key> { <value> }"),
        (6, Exact, "( LPUSH | RPUSH ) <key> { <member> | <long> }"),
        (
            3,
            Exact,
            "RPUSH <key> <long> <member> <long> <member> <long> <member> <long> <member> <long> <member> <long>",
        ),
        (4, Exact, "( LPUSHX | RPUSHX ) <key> { <member> }"),
        (8, Exact, "( LPOP | RPOP ) <key>"),
        (3, Exact, "( LPOP | RPOP ) <key> [ 1 | 2 | 3 | 0 | <integer> ]"),
        (6, Exact, "LRANGE <key> <index> <index>"),
        (2, Exact, "LRANGE <key> 0 -1"),
        (4, Exact, "LLEN <key>"),
        (6, Exact, "LINDEX <key> <index>"),
        (5, Exact, "LSET <key> <index> <member>"),
        (2, Exact, "LSET <key> <index> <long>"),
        (2, Exact, "LTRIM <key> <index> <index>"),
        (3, Exact, "LTRIM <key> ( 0 | 1 | -40 ) ( -1 | -2 | 40 )"),
        (6, Exact, "LREM <key> ( 0 | 1 | -1 | 2 | -2 | <integer> ) <member>"),
        (8, Exact, "LINSERT <key> ( BEFORE | AFTER | BEHIND ) <member> <member>"),
        (6, Exact, "LINSERT <key> ( BEFORE | AFTER ) <member> <member>"),
        (5, Exact, "LMOVE <key> <key> ( LEFT | RIGHT ) ( LEFT | RIGHT )"),
        (1, Exact, "LMOVE <key> <key> ( LEFT | UP ) ( RIGHT | x )"),
        (3, Exact, "RPOPLPUSH <key> <key>"),
        (5, Exact, "LPOS <key> <member> [ RANK <index> ] [ COUNT <count> ] [ MAXLEN <count> ]"),
        (2, Exact, "LPOS <key> <member> { RANK <integer> | COUNT <integer> | MAXLEN <integer> | RANK | LEN 1 }"),
    ],
};
