//! Errors that repeat what was sent.

use crate::generate::Compare::Exact;
use crate::generate::Family;

pub const FAMILY: Family = Family {
    templates: &[
        (2, Exact, "<junk> [ { <value> } ]"),
        (1, Exact, "NOTHING { <junk> | <value> }"),
        (1, Exact, "( CLIENT | CONFIG | SLOWLOG | ACL ) <junk>"),
        (1, Exact, "EXPIRE <key> <seconds> <junk>"),
        (1, Exact, "( CLIENT LIST TYPE <junk> | CLIENT KILL TYPE <junk> | CLIENT KILL USER <junk> | ACL CAT <junk> )"),
        (1, Exact, "CONFIG SET <junk> <value>"),
        (1, Exact, "HELLO <junk> x"),
    ],
};
