//! Sets, small and large: the long members make them grow.

use crate::generate::Compare::{AnyOrder, Exact, Kind, PopOne, WholeScan};
use crate::generate::Family;

pub const FAMILY: Family = Family {
    templates: &[
        (12, Exact, "SADD <key> { <field> }"),
        (6, Exact, "SADD <key> { <member> }"),
        (5, Exact, "SADD <key> { <long> }"),
        (3, Exact, "SADD <key> <long> <long> <long> <long> <long> <long> { <field> }"),
        (8, Exact, "SREM <key> { <field> | <member> }"),
        (5, Exact, "SISMEMBER <key> <field>"),
        (3, Exact, "SMISMEMBER <key> { <field> | <member> }"),
        (4, Exact, "SCARD <key>"),
        (4, AnyOrder, "SMEMBERS <key>"),
        (5, Exact, "SMOVE <key> <key> ( <field> | <member> )"),
        (2, PopOne, "SPOP <key>"),
        // Which member of several it is differs: what is left would as well.
        (1, AnyOrder, "SPOP <key> ( 1000 | 0 | x | -1 ) [ x ]"),
        (1, Kind, "SRANDMEMBER <key>"),
        // Redis does not come back from the least counts.
        (2, Kind, "SRANDMEMBER <key> ( <count> | -7 | -300 )"),
        (2, AnyOrder, "SRANDMEMBER <key> ( 1000 | 0 | x ) [ x ]"),
        (4, WholeScan { cursor: 2 }, "SSCAN <key> 0 [ COUNT <count> ] [ MATCH <pattern> | MATCH field1* ]"),
        (1, Kind, "SSCAN <key> <integer> [ COUNT <count> ] [ TYPE set ]"),
        (6, AnyOrder, "( SINTER | SUNION | SDIFF ) { <key> }"),
        (4, Exact, "SINTERCARD 1 <key> [ LIMIT <count> ]"),
        (4, Exact, "SINTERCARD 2 <key> <key> [ LIMIT <count> ] [ LIMIT ]"),
        (1, Exact, "SINTERCARD <integer> { <key> }"),
        (4, Exact, "( SINTERSTORE | SDIFFSTORE ) <key> { <key> }"),
        (4, Exact, "SUNIONSTORE <key> { <key> }"),
        (2, Exact, "EXPIREAT <key> <at-seconds>"),
        (1, Exact, "( RENAME <key> <key> | COPY <key> <key> REPLACE | DEL <key> )"),
    ],
};
