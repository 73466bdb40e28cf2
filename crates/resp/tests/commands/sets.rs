//! Sets: requests and the replies of Redis 7.0.15 to them.

use crate::common;

use common::Fixture;
use ecotone_resp::protocol::reply::Version;

#[test]
fn members_are_added_and_removed_and_the_set_with_the_last() {
    Fixture::check(ADDS);
}

#[test]
fn members_are_read() {
    Fixture::check(READS);
    let fixture = Fixture::new();
    let mut client = fixture.client();
    client.speak(Version::Resp3);
    for (request, reply) in READS_3 {
        assert_eq!(client.ask(request), *reply, "{request}");
    }
}

#[test]
fn members_move() {
    Fixture::check(MOVES);
}

#[test]
fn members_are_drawn() {
    Fixture::check(DRAWS);
}

#[test]
fn members_are_scanned() {
    Fixture::check(SCANS);
}

#[test]
fn sets_are_combined() {
    Fixture::check(COMBINES);
}

#[test]
fn what_is_combined_replaces_whatever_was_there() {
    Fixture::check(STORES);
}

#[test]
fn the_time_of_a_set_stays_when_it_is_changed() {
    Fixture::check(TIMES);
}

#[test]
fn what_is_no_set_is_refused() {
    Fixture::check(WRONG_TYPES);
}

const ADDS: &[(&str, &str)] = &[
    ("SADD a 1", ":1\r\n"),
    ("SADD a 1", ":0\r\n"),
    ("SADD a 2 3 2", ":2\r\n"),
    ("SMEMBERS a", "*3\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n"),
    ("SCARD a", ":3\r\n"),
    ("SADD a 1 2 3", ":0\r\n"),
    ("SADD a", "-ERR wrong number of arguments for 'sadd' command\r\n"),
    ("SADD", "-ERR wrong number of arguments for 'sadd' command\r\n"),
    ("SADD e ", ":1\r\n"),
    ("SISMEMBER e ", ":1\r\n"),
    ("SMEMBERS e", "*1\r\n$0\r\n\r\n"),
    ("TYPE a", "+set\r\n"),
    ("SREM a 1 1 9", ":1\r\n"),
    ("SMEMBERS a", "*2\r\n$1\r\n2\r\n$1\r\n3\r\n"),
    ("SREM a 9", ":0\r\n"),
    ("SREM x 9", ":0\r\n"),
    ("SREM a", "-ERR wrong number of arguments for 'srem' command\r\n"),
    ("SREM a 2 3", ":2\r\n"),
    ("EXISTS a", ":0\r\n"),
    ("SCARD a", ":0\r\n"),
    ("SADD a 1", ":1\r\n"),
    ("SREM a 1", ":1\r\n"),
    ("TYPE a", "+none\r\n"),
];

const READS: &[(&str, &str)] = &[
    ("SISMEMBER a 1", ":0\r\n"),
    ("SMISMEMBER a 1 2", "*2\r\n:0\r\n:0\r\n"),
    ("SMEMBERS a", "*0\r\n"),
    ("SCARD a", ":0\r\n"),
    ("SADD a 1 2 3", ":3\r\n"),
    ("SISMEMBER a 1", ":1\r\n"),
    ("SISMEMBER a 01", ":0\r\n"),
    ("SISMEMBER a x", ":0\r\n"),
    ("SMISMEMBER a 1 9 1 x", "*4\r\n:1\r\n:0\r\n:1\r\n:0\r\n"),
    ("SISMEMBER a", "-ERR wrong number of arguments for 'sismember' command\r\n"),
    ("SISMEMBER a 1 2", "-ERR wrong number of arguments for 'sismember' command\r\n"),
    ("SMISMEMBER a", "-ERR wrong number of arguments for 'smismember' command\r\n"),
    ("SMISMEMBER", "-ERR wrong number of arguments for 'smismember' command\r\n"),
    ("SMEMBERS", "-ERR wrong number of arguments for 'smembers' command\r\n"),
    ("SMEMBERS a b", "-ERR wrong number of arguments for 'smembers' command\r\n"),
    ("SCARD", "-ERR wrong number of arguments for 'scard' command\r\n"),
    ("SCARD a b", "-ERR wrong number of arguments for 'scard' command\r\n"),
];

const READS_3: &[(&str, &str)] = &[
    ("SMEMBERS a", "~0\r\n"),
    ("SADD a 1 2", ":2\r\n"),
    ("SMEMBERS a", "~2\r\n$1\r\n1\r\n$1\r\n2\r\n"),
    ("SISMEMBER a 1", ":1\r\n"),
    ("SMISMEMBER a 1 3", "*2\r\n:1\r\n:0\r\n"),
    ("SPOP b", "_\r\n"),
    ("SPOP b 1", "~0\r\n"),
    ("SPOP a 0", "~0\r\n"),
    ("SRANDMEMBER b", "_\r\n"),
    ("SRANDMEMBER b 1", "*0\r\n"),
    ("SRANDMEMBER a 5", "*2\r\n$1\r\n1\r\n$1\r\n2\r\n"),
    ("SINTER a b", "~0\r\n"),
    ("SINTER a a", "~2\r\n$1\r\n1\r\n$1\r\n2\r\n"),
    ("SUNION a b", "~2\r\n$1\r\n1\r\n$1\r\n2\r\n"),
    ("SDIFF a b", "~2\r\n$1\r\n1\r\n$1\r\n2\r\n"),
    ("SDIFF b a", "~0\r\n"),
    ("SSCAN a 0", "*2\r\n$1\r\n0\r\n*2\r\n$1\r\n1\r\n$1\r\n2\r\n"),
    ("SSCAN b 0", "*2\r\n$1\r\n0\r\n*0\r\n"),
    ("SPOP a 5", "~2\r\n$1\r\n1\r\n$1\r\n2\r\n"),
    ("SPOP a", "_\r\n"),
];

const MOVES: &[(&str, &str)] = &[
    ("SADD a 1 2", ":2\r\n"),
    ("SMOVE a b 1", ":1\r\n"),
    ("SMEMBERS a", "*1\r\n$1\r\n2\r\n"),
    ("SMEMBERS b", "*1\r\n$1\r\n1\r\n"),
    ("SMOVE a b 9", ":0\r\n"),
    ("SMOVE x b 1", ":0\r\n"),
    ("SMOVE a a 2", ":1\r\n"),
    ("SMOVE a a 9", ":0\r\n"),
    ("SMOVE a b 2", ":1\r\n"),
    ("EXISTS a", ":0\r\n"),
    ("SMEMBERS b", "*2\r\n$1\r\n1\r\n$1\r\n2\r\n"),
    ("SADD a 1", ":1\r\n"),
    ("SMOVE a b 1", ":1\r\n"),
    ("EXISTS a", ":0\r\n"),
    ("SCARD b", ":2\r\n"),
    ("SMOVE a b", "-ERR wrong number of arguments for 'smove' command\r\n"),
    ("SMOVE a b 1 2", "-ERR wrong number of arguments for 'smove' command\r\n"),
    ("SET s 1", "+OK\r\n"),
    ("SMOVE s b 1", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("SMOVE b s 1", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("SMOVE b s 9", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("SMOVE x s 1", ":0\r\n"),
    ("SMOVE s s 1", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("SMOVE s x 1", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
];

const DRAWS: &[(&str, &str)] = &[
    ("SPOP a", "$-1\r\n"),
    ("SPOP a 1", "*0\r\n"),
    ("SPOP a 0", "*0\r\n"),
    ("SPOP a -1", "-ERR value is out of range, must be positive\r\n"),
    ("SPOP a x", "-ERR value is out of range, must be positive\r\n"),
    ("SPOP a 1 x", "-ERR syntax error\r\n"),
    ("SPOP a x x", "-ERR syntax error\r\n"),
    ("SPOP a 9223372036854775808", "-ERR value is out of range, must be positive\r\n"),
    ("SPOP", "-ERR wrong number of arguments for 'spop' command\r\n"),
    ("SRANDMEMBER a", "$-1\r\n"),
    ("SRANDMEMBER a 1", "*0\r\n"),
    ("SRANDMEMBER a -1", "*0\r\n"),
    ("SRANDMEMBER a x", "-ERR value is not an integer or out of range\r\n"),
    ("SRANDMEMBER a 1 x", "-ERR syntax error\r\n"),
    ("SRANDMEMBER a x x", "-ERR syntax error\r\n"),
    ("SRANDMEMBER", "-ERR wrong number of arguments for 'srandmember' command\r\n"),
    ("SADD a 1", ":1\r\n"),
    ("SRANDMEMBER a", "$1\r\n1\r\n"),
    ("SRANDMEMBER a 0", "*0\r\n"),
    ("SRANDMEMBER a 1", "*1\r\n$1\r\n1\r\n"),
    ("SRANDMEMBER a 5", "*1\r\n$1\r\n1\r\n"),
    ("SRANDMEMBER a -3", "*3\r\n$1\r\n1\r\n$1\r\n1\r\n$1\r\n1\r\n"),
    ("SRANDMEMBER a 9223372036854775807", "*1\r\n$1\r\n1\r\n"),
    ("SRANDMEMBER a 9223372036854775808", "-ERR value is not an integer or out of range\r\n"),
    (
        "SRANDMEMBER a -9223372036854775808",
        "-ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807\r\n",
    ),
    ("SPOP a -1", "-ERR value is out of range, must be positive\r\n"),
    ("SPOP a x", "-ERR value is out of range, must be positive\r\n"),
    ("SPOP a 0", "*0\r\n"),
    ("SPOP a", "$1\r\n1\r\n"),
    ("EXISTS a", ":0\r\n"),
    ("SADD a 1 2 3", ":3\r\n"),
    ("SPOP a 9223372036854775807", "*3\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n"),
    ("EXISTS a", ":0\r\n"),
    ("SADD a 1", ":1\r\n"),
    ("SPOP a 1", "*1\r\n$1\r\n1\r\n"),
    ("TYPE a", "+none\r\n"),
];

const SCANS: &[(&str, &str)] = &[
    ("SSCAN a 0", "*2\r\n$1\r\n0\r\n*0\r\n"),
    ("SSCAN a 0 x", "*2\r\n$1\r\n0\r\n*0\r\n"),
    ("SADD a 1 2 3", ":3\r\n"),
    ("SSCAN a 0", "*2\r\n$1\r\n0\r\n*3\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n"),
    ("SSCAN a 0 COUNT 1", "*2\r\n$1\r\n0\r\n*3\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n"),
    ("SSCAN a 0 match 2", "*2\r\n$1\r\n0\r\n*1\r\n$1\r\n2\r\n"),
    ("SSCAN a 0 MATCH x*", "*2\r\n$1\r\n0\r\n*0\r\n"),
    ("SSCAN a 0 COUNT 0", "-ERR syntax error\r\n"),
    ("SSCAN a 0 COUNT -1", "-ERR syntax error\r\n"),
    ("SSCAN a 0 COUNT x", "-ERR value is not an integer or out of range\r\n"),
    ("SSCAN a 0 COUNT", "-ERR syntax error\r\n"),
    ("SSCAN a 0 x", "-ERR syntax error\r\n"),
    ("SSCAN a 0 TYPE set", "-ERR syntax error\r\n"),
    ("SSCAN a x", "-ERR invalid cursor\r\n"),
    ("SSCAN b x", "-ERR invalid cursor\r\n"),
    ("SSCAN a x COUNT x", "-ERR invalid cursor\r\n"),
    ("SSCAN a 18446744073709551616", "-ERR invalid cursor\r\n"),
    ("SSCAN a", "-ERR wrong number of arguments for 'sscan' command\r\n"),
    ("SSCAN", "-ERR wrong number of arguments for 'sscan' command\r\n"),
];

const COMBINES: &[(&str, &str)] = &[
    ("SINTER a", "*0\r\n"),
    ("SUNION a b", "*0\r\n"),
    ("SDIFF a b", "*0\r\n"),
    ("SINTERCARD 1 a", ":0\r\n"),
    ("SADD a 1 2 3 4", ":4\r\n"),
    ("SADD b 2 3 5", ":3\r\n"),
    ("SADD c 3 6", ":2\r\n"),
    ("SINTER a", "*4\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n$1\r\n4\r\n"),
    ("SINTER a b", "*2\r\n$1\r\n2\r\n$1\r\n3\r\n"),
    ("SINTER a b c", "*1\r\n$1\r\n3\r\n"),
    ("SINTER a a", "*4\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n$1\r\n4\r\n"),
    ("SINTER a x", "*0\r\n"),
    ("SINTER x a", "*0\r\n"),
    ("SUNION a", "*4\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n$1\r\n4\r\n"),
    ("SUNION a b", "*5\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n$1\r\n4\r\n$1\r\n5\r\n"),
    ("SUNION x c x", "*2\r\n$1\r\n3\r\n$1\r\n6\r\n"),
    ("SUNION a a", "*4\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n$1\r\n4\r\n"),
    ("SDIFF a", "*4\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n$1\r\n4\r\n"),
    ("SDIFF a b", "*2\r\n$1\r\n1\r\n$1\r\n4\r\n"),
    ("SDIFF a b c", "*2\r\n$1\r\n1\r\n$1\r\n4\r\n"),
    ("SDIFF a x", "*4\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n$1\r\n4\r\n"),
    ("SDIFF x a", "*0\r\n"),
    ("SDIFF a a", "*0\r\n"),
    ("SINTERCARD 2 a b", ":2\r\n"),
    ("SINTERCARD 2 a b LIMIT 1", ":1\r\n"),
    ("SINTERCARD 2 a b limit 0", ":2\r\n"),
    ("SINTERCARD 2 a b LIMIT 9", ":2\r\n"),
    ("SINTERCARD 2 a b LIMIT 9 LIMIT 1", ":1\r\n"),
    ("SINTERCARD 2 a b LIMIT -1", "-ERR LIMIT can't be negative\r\n"),
    ("SINTERCARD 2 a b LIMIT x", "-ERR LIMIT can't be negative\r\n"),
    ("SINTERCARD 2 a b LIMIT", "-ERR syntax error\r\n"),
    ("SINTERCARD 2 a b x", "-ERR syntax error\r\n"),
    ("SINTERCARD 2 a b x 1", "-ERR syntax error\r\n"),
    ("SINTERCARD 3 a b", "-ERR Number of keys can't be greater than number of args\r\n"),
    ("SINTERCARD 3 a b LIMIT", ":0\r\n"),
    ("SINTERCARD 3 a b LIMIT 1", "-ERR syntax error\r\n"),
    ("SINTERCARD 0 a", "-ERR numkeys should be greater than 0\r\n"),
    ("SINTERCARD -1 a", "-ERR numkeys should be greater than 0\r\n"),
    ("SINTERCARD x a", "-ERR numkeys should be greater than 0\r\n"),
    ("SINTERCARD 9223372036854775807 a", "-ERR Number of keys can't be greater than number of args\r\n"),
    ("SINTERCARD 9223372036854775808 a", "-ERR numkeys should be greater than 0\r\n"),
    ("SINTERCARD 2 a x", ":0\r\n"),
    ("SINTERCARD 1", "-ERR wrong number of arguments for 'sintercard' command\r\n"),
    ("SINTER", "-ERR wrong number of arguments for 'sinter' command\r\n"),
    ("SUNION", "-ERR wrong number of arguments for 'sunion' command\r\n"),
    ("SDIFF", "-ERR wrong number of arguments for 'sdiff' command\r\n"),
    ("SINTERSTORE a", "-ERR wrong number of arguments for 'sinterstore' command\r\n"),
    ("SUNIONSTORE a", "-ERR wrong number of arguments for 'sunionstore' command\r\n"),
    ("SDIFFSTORE a", "-ERR wrong number of arguments for 'sdiffstore' command\r\n"),
];

const STORES: &[(&str, &str)] = &[
    ("SADD a 1 2 3 4", ":4\r\n"),
    ("SADD b 2 3 5", ":3\r\n"),
    ("SINTERSTORE d a b", ":2\r\n"),
    ("SMEMBERS d", "*2\r\n$1\r\n2\r\n$1\r\n3\r\n"),
    ("SUNIONSTORE d a x", ":4\r\n"),
    ("SMEMBERS d", "*4\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n$1\r\n4\r\n"),
    ("SDIFFSTORE d a b", ":2\r\n"),
    ("SMEMBERS d", "*2\r\n$1\r\n1\r\n$1\r\n4\r\n"),
    ("SDIFFSTORE d a a", ":0\r\n"),
    ("EXISTS d", ":0\r\n"),
    ("SDIFFSTORE d a a", ":0\r\n"),
    ("SINTERSTORE d a x", ":0\r\n"),
    ("SUNIONSTORE d x y", ":0\r\n"),
    ("SUNIONSTORE a a b", ":5\r\n"),
    ("SCARD a", ":5\r\n"),
    ("SINTERSTORE a a b", ":3\r\n"),
    ("SMEMBERS a", "*3\r\n$1\r\n2\r\n$1\r\n3\r\n$1\r\n5\r\n"),
    ("SDIFFSTORE b b a", ":0\r\n"),
    ("EXISTS b", ":0\r\n"),
    ("SET s 1", "+OK\r\n"),
    ("SUNIONSTORE s a", ":3\r\n"),
    ("TYPE s", "+set\r\n"),
    ("SET s 1", "+OK\r\n"),
    ("SINTERSTORE s a x", ":0\r\n"),
    ("EXISTS s", ":0\r\n"),
    ("RPUSH l 1", ":1\r\n"),
    ("SUNIONSTORE l a", ":3\r\n"),
    ("TYPE l", "+set\r\n"),
    ("PEXPIREAT a 4102444800000", ":1\r\n"),
    ("SUNIONSTORE d a", ":3\r\n"),
    ("PEXPIRETIME d", ":-1\r\n"),
    ("SUNIONSTORE a a", ":3\r\n"),
    ("PEXPIRETIME a", ":-1\r\n"),
];

const TIMES: &[(&str, &str)] = &[
    ("SADD a 1 2 3", ":3\r\n"),
    ("PEXPIREAT a 4102444800000", ":1\r\n"),
    ("SADD a 4", ":1\r\n"),
    ("SREM a 1", ":1\r\n"),
    ("SMOVE a b 9", ":0\r\n"),
    ("PEXPIRETIME a", ":4102444800000\r\n"),
    ("SPOP a 9223372036854775807 x", "-ERR syntax error\r\n"),
    ("SPOP a 0", "*0\r\n"),
    ("DEL a", ":1\r\n"),
    ("SADD a 1", ":1\r\n"),
    ("PEXPIRETIME a", ":-1\r\n"),
    ("PEXPIREAT a 4102444800000", ":1\r\n"),
    ("SMOVE a b 1", ":1\r\n"),
    ("PEXPIRETIME b", ":-1\r\n"),
    ("SADD a 1", ":1\r\n"),
    ("PEXPIREAT a 4102444800000", ":1\r\n"),
    ("RENAME a c", "+OK\r\n"),
    ("SADD c 2", ":1\r\n"),
    ("SMEMBERS c", "*2\r\n$1\r\n1\r\n$1\r\n2\r\n"),
    ("PEXPIRETIME c", ":4102444800000\r\n"),
    ("COPY c d", ":1\r\n"),
    ("SREM d 1", ":1\r\n"),
    ("SMEMBERS c", "*2\r\n$1\r\n1\r\n$1\r\n2\r\n"),
    ("PEXPIRETIME d", ":4102444800000\r\n"),
    ("PEXPIRE d -1", ":1\r\n"),
    ("SADD d 7", ":1\r\n"),
    ("SMEMBERS d", "*1\r\n$1\r\n7\r\n"),
    ("PEXPIRETIME d", ":-1\r\n"),
];

const WRONG_TYPES: &[(&str, &str)] = &[
    ("SET s 1", "+OK\r\n"),
    ("SADD a 1", ":1\r\n"),
    ("SADD s 1", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("SREM s 1", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("SISMEMBER s 1", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("SMISMEMBER s 1", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("SCARD s", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("SMEMBERS s", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("SPOP s", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("SPOP s 0", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("SPOP s 1", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("SPOP s -1", "-ERR value is out of range, must be positive\r\n"),
    ("SPOP s x", "-ERR value is out of range, must be positive\r\n"),
    ("SPOP s 1 x", "-ERR syntax error\r\n"),
    ("SRANDMEMBER s", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("SRANDMEMBER s 0", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("SRANDMEMBER s 1", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("SRANDMEMBER s x", "-ERR value is not an integer or out of range\r\n"),
    ("SRANDMEMBER s 1 x", "-ERR syntax error\r\n"),
    (
        "SRANDMEMBER s -9223372036854775808",
        "-ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807\r\n",
    ),
    ("SSCAN s 0", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("SSCAN s 0 x", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("SSCAN s x", "-ERR invalid cursor\r\n"),
    ("SINTER s", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("SINTER a s", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("SINTER x s", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("SINTER s x", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("SUNION a s", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("SUNION x s", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("SDIFF a s", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("SDIFF x s", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("SDIFF s a", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("SDIFF a a s", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("SINTERCARD 1 s", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("SINTERCARD 2 x s", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("SINTERCARD 1 s LIMIT x", "-ERR LIMIT can't be negative\r\n"),
    ("SINTERSTORE d a s", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("SINTERSTORE d x s", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("SUNIONSTORE d a s", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("SDIFFSTORE d x s", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("EXISTS d", ":0\r\n"),
    ("GET a", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("INCR a", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("APPEND a x", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("SET a 1 GET", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("MGET a s", "*2\r\n$-1\r\n$1\r\n1\r\n"),
];
