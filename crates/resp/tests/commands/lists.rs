//! Lists: requests and the replies of Redis 7.0.15 to them.

use crate::common;

use common::Fixture;
use ecotone_resp::protocol::reply::Version;

#[test]
fn elements_are_pushed() {
    Fixture::check(PUSHES);
}

#[test]
fn elements_are_popped_and_the_list_with_the_last() {
    Fixture::check(POPS);
}

#[test]
fn elements_are_read() {
    Fixture::check(READS);
}

#[test]
fn elements_are_set_inserted_and_removed() {
    Fixture::check(CHANGES);
}

#[test]
fn elements_are_moved() {
    Fixture::check(MOVES);
}

#[test]
fn elements_are_looked_for() {
    Fixture::check(POSITIONS);
}

#[test]
fn the_time_of_a_list_stays_when_it_is_changed() {
    Fixture::check(TIMES);
}

#[test]
fn what_is_no_list_is_refused() {
    Fixture::check(WRONG_TYPES);
}

#[test]
fn nothing_is_told_as_such_in_resp3() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    client.speak(Version::Resp3);
    for (request, reply) in READS_3 {
        assert_eq!(client.ask(request), *reply, "{request}");
    }
}

const PUSHES: &[(&str, &str)] = &[
    ("RPUSH a 1 2", ":2\r\n"),
    ("LPUSH a 3 4", ":4\r\n"),
    ("LRANGE a 0 -1", "*4\r\n$1\r\n4\r\n$1\r\n3\r\n$1\r\n1\r\n$1\r\n2\r\n"),
    ("LPUSH a ", ":5\r\n"),
    ("LINDEX a 0", "$0\r\n\r\n"),
    ("LPUSHX b 1", ":0\r\n"),
    ("RPUSHX b 1", ":0\r\n"),
    ("EXISTS b", ":0\r\n"),
    ("LPUSHX a x y", ":7\r\n"),
    ("RPUSHX a z", ":8\r\n"),
    ("LRANGE a 0 -1", "*8\r\n$1\r\ny\r\n$1\r\nx\r\n$0\r\n\r\n$1\r\n4\r\n$1\r\n3\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\nz\r\n"),
    ("LLEN a", ":8\r\n"),
    ("LLEN b", ":0\r\n"),
    ("TYPE a", "+list\r\n"),
    ("RPUSH a", "-ERR wrong number of arguments for 'rpush' command\r\n"),
    ("LPUSH", "-ERR wrong number of arguments for 'lpush' command\r\n"),
    ("LPUSHX a", "-ERR wrong number of arguments for 'lpushx' command\r\n"),
    ("LLEN a b", "-ERR wrong number of arguments for 'llen' command\r\n"),
];

const POPS: &[(&str, &str)] = &[
    ("LPOP a", "$-1\r\n"),
    ("RPOP a 2", "*-1\r\n"),
    ("LPOP a 0", "*-1\r\n"),
    ("RPUSH a 1 2 3 4 5 6", ":6\r\n"),
    ("LPOP a", "$1\r\n1\r\n"),
    ("RPOP a", "$1\r\n6\r\n"),
    ("LPOP a 2", "*2\r\n$1\r\n2\r\n$1\r\n3\r\n"),
    ("RPOP a 0", "*0\r\n"),
    ("RPOP a -1", "-ERR value is out of range, must be positive\r\n"),
    ("RPOP a x", "-ERR value is out of range, must be positive\r\n"),
    ("RPOP a 9223372036854775808", "-ERR value is out of range, must be positive\r\n"),
    ("RPOP b -1", "-ERR value is out of range, must be positive\r\n"),
    ("LPOP a 1 2", "-ERR wrong number of arguments for 'lpop' command\r\n"),
    ("RPOP b 1 2", "-ERR wrong number of arguments for 'rpop' command\r\n"),
    ("LPOP", "-ERR wrong number of arguments for 'lpop' command\r\n"),
    ("RPOP a 9", "*2\r\n$1\r\n5\r\n$1\r\n4\r\n"),
    ("EXISTS a", ":0\r\n"),
    ("RPUSH a 1", ":1\r\n"),
    ("LPOP a 1", "*1\r\n$1\r\n1\r\n"),
    ("TYPE a", "+none\r\n"),
];

const READS: &[(&str, &str)] = &[
    ("LRANGE a 0 -1", "*0\r\n"),
    ("LINDEX a 0", "$-1\r\n"),
    ("LINDEX a x", "$-1\r\n"),
    ("LRANGE a x 1", "-ERR value is not an integer or out of range\r\n"),
    ("LRANGE a 0 1.5", "-ERR value is not an integer or out of range\r\n"),
    ("RPUSH a 1 2 3", ":3\r\n"),
    ("LRANGE a 1 1", "*1\r\n$1\r\n2\r\n"),
    ("LRANGE a -2 -1", "*2\r\n$1\r\n2\r\n$1\r\n3\r\n"),
    ("LRANGE a -100 100", "*3\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n"),
    ("LRANGE a 2 1", "*0\r\n"),
    ("LRANGE a 3 5", "*0\r\n"),
    ("LRANGE a 0 -4", "*0\r\n"),
    ("LRANGE a -9223372036854775808 9223372036854775807", "*3\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n"),
    ("LINDEX a 0", "$1\r\n1\r\n"),
    ("LINDEX a 2", "$1\r\n3\r\n"),
    ("LINDEX a 3", "$-1\r\n"),
    ("LINDEX a -3", "$1\r\n1\r\n"),
    ("LINDEX a -4", "$-1\r\n"),
    ("LINDEX a -9223372036854775808", "$-1\r\n"),
    ("LINDEX a x", "-ERR value is not an integer or out of range\r\n"),
    ("LINDEX a", "-ERR wrong number of arguments for 'lindex' command\r\n"),
    ("LRANGE a 0", "-ERR wrong number of arguments for 'lrange' command\r\n"),
];

const CHANGES: &[(&str, &str)] = &[
    ("LSET a 0 x", "-ERR no such key\r\n"),
    ("LSET a x x", "-ERR no such key\r\n"),
    ("RPUSH a 1 2 3 2 1", ":5\r\n"),
    ("LSET a 0 9", "+OK\r\n"),
    ("LSET a -1 8", "+OK\r\n"),
    ("LSET a 5 x", "-ERR index out of range\r\n"),
    ("LSET a -6 x", "-ERR index out of range\r\n"),
    ("LSET a x x", "-ERR value is not an integer or out of range\r\n"),
    ("LSET a 1", "-ERR wrong number of arguments for 'lset' command\r\n"),
    ("LRANGE a 0 -1", "*5\r\n$1\r\n9\r\n$1\r\n2\r\n$1\r\n3\r\n$1\r\n2\r\n$1\r\n8\r\n"),
    ("LINSERT a BEFORE 9 first", ":6\r\n"),
    ("LINSERT a after 8 last", ":7\r\n"),
    ("LINSERT a BEFORE 2 x", ":8\r\n"),
    ("LINSERT a AFTER none y", ":-1\r\n"),
    ("LINSERT b AFTER 1 y", ":0\r\n"),
    ("LINSERT a BEHIND 2 y", "-ERR syntax error\r\n"),
    ("LINSERT b BEHIND 2 y", "-ERR syntax error\r\n"),
    ("LINSERT a BEFORE 2", "-ERR wrong number of arguments for 'linsert' command\r\n"),
    (
        "LRANGE a 0 -1",
        "*8\r\n$5\r\nfirst\r\n$1\r\n9\r\n$1\r\nx\r\n$1\r\n2\r\n$1\r\n3\r\n$1\r\n2\r\n$1\r\n8\r\n$4\r\nlast\r\n",
    ),
    ("LREM a 1 2", ":1\r\n"),
    ("LREM a -1 none", ":0\r\n"),
    ("LREM a x 2", "-ERR value is not an integer or out of range\r\n"),
    ("LREM b 0 2", ":0\r\n"),
    ("LREM b x 2", "-ERR value is not an integer or out of range\r\n"),
    ("RPUSH a x x x", ":10\r\n"),
    ("LREM a -2 x", ":2\r\n"),
    (
        "LRANGE a 0 -1",
        "*8\r\n$5\r\nfirst\r\n$1\r\n9\r\n$1\r\nx\r\n$1\r\n3\r\n$1\r\n2\r\n$1\r\n8\r\n$4\r\nlast\r\n$1\r\nx\r\n",
    ),
    ("LREM a 0 x", ":2\r\n"),
    ("LRANGE a 0 -1", "*6\r\n$5\r\nfirst\r\n$1\r\n9\r\n$1\r\n3\r\n$1\r\n2\r\n$1\r\n8\r\n$4\r\nlast\r\n"),
    ("LTRIM a x 1", "-ERR value is not an integer or out of range\r\n"),
    ("LTRIM a 0 x", "-ERR value is not an integer or out of range\r\n"),
    ("LTRIM b 0 1", "+OK\r\n"),
    ("LTRIM a 1 -2", "+OK\r\n"),
    ("LRANGE a 0 -1", "*4\r\n$1\r\n9\r\n$1\r\n3\r\n$1\r\n2\r\n$1\r\n8\r\n"),
    ("LTRIM a 5 1", "+OK\r\n"),
    ("EXISTS a", ":0\r\n"),
    ("RPUSH a x x", ":2\r\n"),
    ("LREM a 0 x", ":2\r\n"),
    ("EXISTS a", ":0\r\n"),
];

const MOVES: &[(&str, &str)] = &[
    ("LMOVE a b LEFT RIGHT", "$-1\r\n"),
    ("RPOPLPUSH a b", "$-1\r\n"),
    ("LMOVE a b UP LEFT", "-ERR syntax error\r\n"),
    ("LMOVE a b LEFT", "-ERR wrong number of arguments for 'lmove' command\r\n"),
    ("RPUSH a 1 2 3", ":3\r\n"),
    ("LMOVE a b left RIGHT", "$1\r\n1\r\n"),
    ("LMOVE a b RIGHT LEFT", "$1\r\n3\r\n"),
    ("RPOPLPUSH a b", "$1\r\n2\r\n"),
    ("EXISTS a", ":0\r\n"),
    ("LRANGE b 0 -1", "*3\r\n$1\r\n2\r\n$1\r\n3\r\n$1\r\n1\r\n"),
    ("LMOVE b b LEFT RIGHT", "$1\r\n2\r\n"),
    ("LRANGE b 0 -1", "*3\r\n$1\r\n3\r\n$1\r\n1\r\n$1\r\n2\r\n"),
    ("LMOVE b b RIGHT RIGHT", "$1\r\n2\r\n"),
    ("RPOPLPUSH b b", "$1\r\n2\r\n"),
    ("LRANGE b 0 -1", "*3\r\n$1\r\n2\r\n$1\r\n3\r\n$1\r\n1\r\n"),
    ("RPUSH one 1", ":1\r\n"),
    ("PEXPIREAT one 4102444800000", ":1\r\n"),
    ("LMOVE one one LEFT RIGHT", "$1\r\n1\r\n"),
    ("PEXPIRETIME one", ":4102444800000\r\n"),
    ("SET s 1", "+OK\r\n"),
    ("LMOVE b s LEFT LEFT", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("LMOVE none s LEFT LEFT", "$-1\r\n"),
    ("LMOVE s b LEFT LEFT", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("RPOPLPUSH b s", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("LRANGE b 0 -1", "*3\r\n$1\r\n2\r\n$1\r\n3\r\n$1\r\n1\r\n"),
];

const POSITIONS: &[(&str, &str)] = &[
    ("LPOS a x", "$-1\r\n"),
    ("LPOS a x COUNT 0", "*0\r\n"),
    ("RPUSH a x y x z x", ":5\r\n"),
    ("LPOS a x", ":0\r\n"),
    ("LPOS a none", "$-1\r\n"),
    ("LPOS a none COUNT 1", "*0\r\n"),
    ("LPOS a x RANK 2", ":2\r\n"),
    ("LPOS a x RANK -1", ":4\r\n"),
    ("LPOS a x RANK -2 COUNT 0", "*2\r\n:2\r\n:0\r\n"),
    ("LPOS a x RANK 4", "$-1\r\n"),
    ("LPOS a x COUNT 0", "*3\r\n:0\r\n:2\r\n:4\r\n"),
    ("LPOS a x COUNT 2", "*2\r\n:0\r\n:2\r\n"),
    ("LPOS a x COUNT 0 MAXLEN 3", "*2\r\n:0\r\n:2\r\n"),
    ("LPOS a x RANK -1 COUNT 0 MAXLEN 3", "*2\r\n:4\r\n:2\r\n"),
    ("LPOS a z MAXLEN 3", "$-1\r\n"),
    (
        "LPOS a x RANK 0",
        "-ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... or use negative to start from the end of the list\r\n",
    ),
    ("LPOS a x RANK x", "-ERR value is not an integer or out of range\r\n"),
    ("LPOS a x COUNT -1", "-ERR COUNT can't be negative\r\n"),
    ("LPOS a x COUNT x", "-ERR COUNT can't be negative\r\n"),
    ("LPOS a x MAXLEN -1", "-ERR MAXLEN can't be negative\r\n"),
    ("LPOS a x RANK", "-ERR syntax error\r\n"),
    ("LPOS a x FOO 1", "-ERR syntax error\r\n"),
    // As Redis 7.2 has it: no number is the negative of this one.
    (
        "LPOS a x RANK -9223372036854775808",
        "-ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807\r\n",
    ),
    (
        "LPOS no x RANK -9223372036854775808 COUNT 1",
        "-ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807\r\n",
    ),
    ("LPOS a x RANK -9223372036854775807", "$-1\r\n"),
    ("LPOS a x RANK -9223372036854775809", "-ERR value is not an integer or out of range\r\n"),
    ("LPOS a", "-ERR wrong number of arguments for 'lpos' command\r\n"),
];

const TIMES: &[(&str, &str)] = &[
    ("RPUSH a 1 2 3 4 5", ":5\r\n"),
    ("PEXPIREAT a 4102444800000", ":1\r\n"),
    ("RPUSH a 6", ":6\r\n"),
    ("LPUSH a 0", ":7\r\n"),
    ("LPOP a", "$1\r\n0\r\n"),
    ("RPOP a 1", "*1\r\n$1\r\n6\r\n"),
    ("LSET a 0 x", "+OK\r\n"),
    ("LINSERT a BEFORE x y", ":6\r\n"),
    ("LREM a 0 y", ":1\r\n"),
    ("LTRIM a 0 2", "+OK\r\n"),
    ("LMOVE a b LEFT LEFT", "$1\r\nx\r\n"),
    ("PEXPIRETIME a", ":4102444800000\r\n"),
    ("PEXPIRETIME b", ":-1\r\n"),
    ("LPOP a 9", "*2\r\n$1\r\n2\r\n$1\r\n3\r\n"),
    ("RPUSH a 1", ":1\r\n"),
    ("PEXPIRETIME a", ":-1\r\n"),
];

const WRONG_TYPES: &[(&str, &str)] = &[
    ("SET s 1", "+OK\r\n"),
    ("LPUSH s 1", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("RPUSH s 1", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("LPUSHX s 1", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("RPUSHX s 1", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("LPOP s", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("RPOP s 0", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("RPOP s x", "-ERR value is out of range, must be positive\r\n"),
    ("LRANGE s 0 -1", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("LRANGE s x 1", "-ERR value is not an integer or out of range\r\n"),
    ("LLEN s", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("LINDEX s x", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("LSET s x 1", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("LTRIM s 0 1", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("LTRIM s x 1", "-ERR value is not an integer or out of range\r\n"),
    ("LREM s 0 1", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("LREM s x 1", "-ERR value is not an integer or out of range\r\n"),
    ("LINSERT s BEFORE 1 1", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("LINSERT s x 1 1", "-ERR syntax error\r\n"),
    ("LMOVE s a LEFT LEFT", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("RPOPLPUSH s a", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("LPOS s 1", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    (
        "LPOS s 1 RANK 0",
        "-ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... or use negative to start from the end of the list\r\n",
    ),
    ("RPUSH l 1", ":1\r\n"),
    ("GET l", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("HGET l f", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("GET s", "$1\r\n1\r\n"),
];

const READS_3: &[(&str, &str)] = &[
    ("LPOP a", "_\r\n"),
    ("LPOP a 1", "_\r\n"),
    ("LINDEX a 0", "_\r\n"),
    ("LPOS a x", "_\r\n"),
    ("LMOVE a b LEFT LEFT", "_\r\n"),
    ("RPUSH a 1 2", ":2\r\n"),
    ("LINDEX a 5", "_\r\n"),
    ("LPOS a x", "_\r\n"),
    ("LPOS a x COUNT 1", "*0\r\n"),
    ("LRANGE a 0 -1", "*2\r\n$1\r\n1\r\n$1\r\n2\r\n"),
    ("LPOP a 0", "*0\r\n"),
    ("LPOP a 5", "*2\r\n$1\r\n1\r\n$1\r\n2\r\n"),
];
