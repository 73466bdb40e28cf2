//! Hashes, small and large: the long values make them grow.

use crate::generate::Compare::{AnyOrder, Exact, Kind, PairsInAnyOrder, WholeScanOfPairs};
use crate::generate::Family;

pub const FAMILY: Family = Family {
    templates: &[
        (12, Exact, "( HSET | HMSET ) <key> { <field> <value> }"),
        (6, Exact, "( HSET | HMSET ) <key> { <field> <value> } [ <field> ]"),
        (6, Exact, "HSET <key> { <field> <long> }"),
        (3, Exact, "HSET <key> field1 <long> field2 <long> field3 <long> field4 <long> field5 <long> field6 <long>"),
        (3, Exact, "HSETNX <key> <field> <value>"),
        (6, Exact, "HGET <key> <field>"),
        (4, Exact, "HMGET <key> { <field> }"),
        (4, Exact, "( HEXISTS | HSTRLEN ) <key> <field>"),
        (4, Exact, "HLEN <key>"),
        (8, Exact, "HDEL <key> { <field> }"),
        (4, PairsInAnyOrder, "HGETALL <key>"),
        (3, AnyOrder, "( HKEYS | HVALS ) <key>"),
        (6, Exact, "HINCRBY <key> <field> <integer>"),
        (6, Exact, "HINCRBYFLOAT <key> <field> <float>"),
        (
            4,
            WholeScanOfPairs { cursor: 2 },
            "HSCAN <key> 0 [ COUNT <count> ] [ MATCH <pattern> | MATCH field1* | MATCH *3 ]",
        ),
        (1, Kind, "HSCAN <key> <integer> [ COUNT <count> ] [ TYPE hash ]"),
        // Redis does not come back from the least counts.
        (2, Kind, "HRANDFIELD <key> [ <count> | -7 | -300 ] [ WITHVALUES ]"),
        (1, Exact, "HRANDFIELD <key> 0 [ WITHVALUES | <integer> ]"),
        (1, AnyOrder, "HRANDFIELD <key> 1000 [ WITHVALUES ]"),
        (2, Exact, "EXPIREAT <key> <at-seconds>"),
        (1, Exact, "( RENAME <key> <key> | COPY <key> <key> REPLACE | DEL <key> )"),
    ],
};
