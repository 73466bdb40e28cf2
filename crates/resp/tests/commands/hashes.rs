//! Hashes: requests and the replies of Redis 7.0.15 to them.

use crate::common;

use common::Fixture;
use ecotone_resp::protocol::reply::Version;

#[test]
fn fields_are_set() {
    Fixture::check(SETS);
}

#[test]
fn fields_are_read() {
    Fixture::check(READS);
    let fixture = Fixture::new();
    let mut client = fixture.client();
    client.speak(Version::Resp3);
    for (request, reply) in READS_3 {
        assert_eq!(client.ask(request), *reply, "{request}");
    }
}

#[test]
fn fields_are_deleted_and_the_hash_with_the_last() {
    Fixture::check(DELETES);
}

#[test]
fn numbers_are_added() {
    Fixture::check(NUMBERS);
}

#[test]
fn fields_are_scanned() {
    Fixture::check(SCANS);
}

#[test]
fn fields_are_drawn() {
    Fixture::check(DRAWS);
}

#[test]
fn the_time_of_a_hash_stays_when_it_is_changed() {
    Fixture::check(TIMES);
}

#[test]
fn what_is_no_hash_is_refused() {
    Fixture::check(WRONG_TYPES);
}

const SETS: &[(&str, &str)] = &[
    ("HSET a f 1", ":1\r\n"),
    ("HSET a f 2", ":0\r\n"),
    ("HSET a g 1 h 2 g 3", ":2\r\n"),
    ("HGETALL a", "*6\r\n$1\r\nf\r\n$1\r\n2\r\n$1\r\ng\r\n$1\r\n3\r\n$1\r\nh\r\n$1\r\n2\r\n"),
    ("HSET a  ", ":1\r\n"),
    ("HGET a ", "$0\r\n\r\n"),
    ("HMSET a f 9 i 1", "+OK\r\n"),
    ("HMSET a i 2", "+OK\r\n"),
    ("HSET a f", "-ERR wrong number of arguments for 'hset' command\r\n"),
    ("HSET a f 1 g", "-ERR wrong number of arguments for 'hset' command\r\n"),
    ("HMSET a f", "-ERR wrong number of arguments for 'hmset' command\r\n"),
    ("HMSET a f 1 g", "-ERR wrong number of arguments for 'hmset' command\r\n"),
    ("HSET a", "-ERR wrong number of arguments for 'hset' command\r\n"),
    ("HSET", "-ERR wrong number of arguments for 'hset' command\r\n"),
    ("HMSET", "-ERR wrong number of arguments for 'hmset' command\r\n"),
    ("HSET a f 1 f 2", ":0\r\n"),
    ("HSET new f 1 f 2", ":1\r\n"),
    ("HGETALL new", "*2\r\n$1\r\nf\r\n$1\r\n2\r\n"),
    ("HSETNX a f 1", ":0\r\n"),
    ("HSETNX a new 1", ":1\r\n"),
    ("HSETNX a new 2", ":0\r\n"),
    ("HSETNX b f 1", ":1\r\n"),
    ("HSETNX b f", "-ERR wrong number of arguments for 'hsetnx' command\r\n"),
    ("HSETNX b f 1 2", "-ERR wrong number of arguments for 'hsetnx' command\r\n"),
    ("HMGET a f new i", "*3\r\n$1\r\n2\r\n$1\r\n1\r\n$1\r\n2\r\n"),
    ("hset A f v", ":1\r\n"),
    ("HGET A f", "$1\r\nv\r\n"),
    ("HGET a f", "$1\r\n2\r\n"),
];

const READS: &[(&str, &str)] = &[
    ("HGET a f", "$-1\r\n"),
    ("HMGET a f f", "*2\r\n$-1\r\n$-1\r\n"),
    ("HGETALL a", "*0\r\n"),
    ("HKEYS a", "*0\r\n"),
    ("HVALS a", "*0\r\n"),
    ("HLEN a", ":0\r\n"),
    ("HEXISTS a f", ":0\r\n"),
    ("HSTRLEN a f", ":0\r\n"),
    ("HSET a f one g  h three", ":3\r\n"),
    ("HGET a f", "$3\r\none\r\n"),
    ("HGET a g", "$0\r\n\r\n"),
    ("HGET a x", "$-1\r\n"),
    ("HMGET a h x g f f", "*5\r\n$5\r\nthree\r\n$-1\r\n$0\r\n\r\n$3\r\none\r\n$3\r\none\r\n"),
    ("HGETALL a", "*6\r\n$1\r\nf\r\n$3\r\none\r\n$1\r\ng\r\n$0\r\n\r\n$1\r\nh\r\n$5\r\nthree\r\n"),
    ("HKEYS a", "*3\r\n$1\r\nf\r\n$1\r\ng\r\n$1\r\nh\r\n"),
    ("HVALS a", "*3\r\n$3\r\none\r\n$0\r\n\r\n$5\r\nthree\r\n"),
    ("HLEN a", ":3\r\n"),
    ("HEXISTS a f", ":1\r\n"),
    ("HEXISTS a x", ":0\r\n"),
    ("HSTRLEN a h", ":5\r\n"),
    ("HSTRLEN a g", ":0\r\n"),
    ("HSTRLEN a x", ":0\r\n"),
    ("HSET a g two", ":0\r\n"),
    ("HGETALL a", "*6\r\n$1\r\nf\r\n$3\r\none\r\n$1\r\ng\r\n$3\r\ntwo\r\n$1\r\nh\r\n$5\r\nthree\r\n"),
    ("HGET a", "-ERR wrong number of arguments for 'hget' command\r\n"),
    ("HGET a f g", "-ERR wrong number of arguments for 'hget' command\r\n"),
    ("HMGET a", "-ERR wrong number of arguments for 'hmget' command\r\n"),
    ("HGETALL", "-ERR wrong number of arguments for 'hgetall' command\r\n"),
    ("HGETALL a b", "-ERR wrong number of arguments for 'hgetall' command\r\n"),
    ("HKEYS a b", "-ERR wrong number of arguments for 'hkeys' command\r\n"),
    ("HVALS a b", "-ERR wrong number of arguments for 'hvals' command\r\n"),
    ("HLEN a b", "-ERR wrong number of arguments for 'hlen' command\r\n"),
    ("HEXISTS a", "-ERR wrong number of arguments for 'hexists' command\r\n"),
    ("HSTRLEN a", "-ERR wrong number of arguments for 'hstrlen' command\r\n"),
];

const READS_3: &[(&str, &str)] = &[
    ("HGETALL a", "%0\r\n"),
    ("HSET a f 1 g 2", ":2\r\n"),
    ("HGETALL a", "%2\r\n$1\r\nf\r\n$1\r\n1\r\n$1\r\ng\r\n$1\r\n2\r\n"),
    ("HMGET a f x", "*2\r\n$1\r\n1\r\n_\r\n"),
    ("HGET a x", "_\r\n"),
    ("HKEYS a", "*2\r\n$1\r\nf\r\n$1\r\ng\r\n"),
    ("HVALS b", "*0\r\n"),
    ("HRANDFIELD a 5 WITHVALUES", "*2\r\n*2\r\n$1\r\nf\r\n$1\r\n1\r\n*2\r\n$1\r\ng\r\n$1\r\n2\r\n"),
    ("HRANDFIELD a 5", "*2\r\n$1\r\nf\r\n$1\r\ng\r\n"),
    ("HRANDFIELD b 5 WITHVALUES", "*0\r\n"),
    ("HRANDFIELD b", "_\r\n"),
    ("HINCRBYFLOAT a f 0.5", "$3\r\n1.5\r\n"),
    ("HSCAN a 0", "*2\r\n$1\r\n0\r\n*4\r\n$1\r\nf\r\n$3\r\n1.5\r\n$1\r\ng\r\n$1\r\n2\r\n"),
];

const DELETES: &[(&str, &str)] = &[
    ("HDEL a f", ":0\r\n"),
    ("HSET a f 1 g 2 h 3", ":3\r\n"),
    ("HDEL a x", ":0\r\n"),
    ("HDEL a g g x", ":1\r\n"),
    ("HGETALL a", "*4\r\n$1\r\nf\r\n$1\r\n1\r\n$1\r\nh\r\n$1\r\n3\r\n"),
    ("HDEL a f h i", ":2\r\n"),
    ("EXISTS a", ":0\r\n"),
    ("HLEN a", ":0\r\n"),
    ("HDEL a", "-ERR wrong number of arguments for 'hdel' command\r\n"),
    ("HDEL", "-ERR wrong number of arguments for 'hdel' command\r\n"),
    ("HSET a f 1", ":1\r\n"),
    ("HDEL a f", ":1\r\n"),
    ("TYPE a", "+none\r\n"),
    ("HSET a f 1", ":1\r\n"),
    ("TYPE a", "+hash\r\n"),
];

const NUMBERS: &[(&str, &str)] = &[
    ("HINCRBY a n 5", ":5\r\n"),
    ("HINCRBY a n -7", ":-2\r\n"),
    ("HINCRBY a n 9223372036854775807", ":9223372036854775805\r\n"),
    ("HINCRBY a n 3", "-ERR increment or decrement would overflow\r\n"),
    ("HINCRBY a n 9223372036854775807", "-ERR increment or decrement would overflow\r\n"),
    ("HINCRBY a m -9223372036854775808", ":-9223372036854775808\r\n"),
    ("HINCRBY a m -1", "-ERR increment or decrement would overflow\r\n"),
    ("HINCRBY a n x", "-ERR value is not an integer or out of range\r\n"),
    ("HINCRBY a n ", "-ERR value is not an integer or out of range\r\n"),
    ("HINCRBY a n 9223372036854775808", "-ERR value is not an integer or out of range\r\n"),
    ("HINCRBY a n 01", "-ERR value is not an integer or out of range\r\n"),
    ("HSET a t text e  z 01 f 1.5 i inf", ":5\r\n"),
    ("HINCRBY a t 1", "-ERR hash value is not an integer\r\n"),
    ("HINCRBY a e 1", "-ERR hash value is not an integer\r\n"),
    ("HINCRBY a z 1", "-ERR hash value is not an integer\r\n"),
    ("HINCRBY a f 1", "-ERR hash value is not an integer\r\n"),
    ("HINCRBY a t x", "-ERR value is not an integer or out of range\r\n"),
    ("HINCRBY a n", "-ERR wrong number of arguments for 'hincrby' command\r\n"),
    ("HINCRBY a n 1 2", "-ERR wrong number of arguments for 'hincrby' command\r\n"),
    ("HGET a n", "$19\r\n9223372036854775805\r\n"),
    ("HINCRBYFLOAT a f 0.1", "$3\r\n1.6\r\n"),
    ("HINCRBYFLOAT a f -1.6", "$1\r\n0\r\n"),
    ("HINCRBYFLOAT a q 3.0e3", "$4\r\n3000\r\n"),
    ("HINCRBYFLOAT a q 1e-20", "$4\r\n3000\r\n"),
    ("HINCRBYFLOAT a z 1", "$1\r\n2\r\n"),
    ("HINCRBYFLOAT a f x", "-ERR value is not a valid float\r\n"),
    ("HINCRBYFLOAT a f ", "-ERR value is not a valid float\r\n"),
    ("HINCRBYFLOAT a f nan", "-ERR value is not a valid float\r\n"),
    ("HINCRBYFLOAT a f inf", "-ERR value is NaN or Infinity\r\n"),
    ("HINCRBYFLOAT a t inf", "-ERR value is NaN or Infinity\r\n"),
    ("HINCRBYFLOAT a t x", "-ERR value is not a valid float\r\n"),
    ("HINCRBYFLOAT a t 1", "-ERR hash value is not a float\r\n"),
    ("HINCRBYFLOAT a e 1", "-ERR hash value is not a float\r\n"),
    ("HINCRBYFLOAT a i 1", "-ERR increment would produce NaN or Infinity\r\n"),
    ("HINCRBYFLOAT a f 1e5000", "-ERR value is not a valid float\r\n"),
    ("HINCRBYFLOAT a f", "-ERR wrong number of arguments for 'hincrbyfloat' command\r\n"),
    ("HGET a f", "$1\r\n0\r\n"),
    ("HINCRBY b n x", "-ERR value is not an integer or out of range\r\n"),
    ("HINCRBYFLOAT b n inf", "-ERR value is NaN or Infinity\r\n"),
    ("EXISTS b", ":0\r\n"),
];

const SCANS: &[(&str, &str)] = &[
    ("HSCAN a 0", "*2\r\n$1\r\n0\r\n*0\r\n"),
    ("HSCAN a 0 x", "*2\r\n$1\r\n0\r\n*0\r\n"),
    ("HSCAN a x", "-ERR invalid cursor\r\n"),
    ("HSCAN a 0 COUNT 0", "*2\r\n$1\r\n0\r\n*0\r\n"),
    ("HSET a f 1 g 2 ff 3", ":3\r\n"),
    ("HSCAN a 0", "*2\r\n$1\r\n0\r\n*6\r\n$1\r\nf\r\n$1\r\n1\r\n$1\r\ng\r\n$1\r\n2\r\n$2\r\nff\r\n$1\r\n3\r\n"),
    ("HSCAN a 0 COUNT 1", "*2\r\n$1\r\n0\r\n*6\r\n$1\r\nf\r\n$1\r\n1\r\n$1\r\ng\r\n$1\r\n2\r\n$2\r\nff\r\n$1\r\n3\r\n"),
    (
        "HSCAN a 17 COUNT 1",
        "*2\r\n$1\r\n0\r\n*6\r\n$1\r\nf\r\n$1\r\n1\r\n$1\r\ng\r\n$1\r\n2\r\n$2\r\nff\r\n$1\r\n3\r\n",
    ),
    (
        "HSCAN a 18446744073709551615",
        "*2\r\n$1\r\n0\r\n*6\r\n$1\r\nf\r\n$1\r\n1\r\n$1\r\ng\r\n$1\r\n2\r\n$2\r\nff\r\n$1\r\n3\r\n",
    ),
    ("HSCAN a 0 MATCH f*", "*2\r\n$1\r\n0\r\n*4\r\n$1\r\nf\r\n$1\r\n1\r\n$2\r\nff\r\n$1\r\n3\r\n"),
    ("HSCAN a 0 match x COUNT 100", "*2\r\n$1\r\n0\r\n*0\r\n"),
    ("HSCAN a 0 MATCH 1", "*2\r\n$1\r\n0\r\n*0\r\n"),
    ("HSCAN a 0 COUNT 0", "-ERR syntax error\r\n"),
    ("HSCAN a 0 COUNT x", "-ERR value is not an integer or out of range\r\n"),
    ("HSCAN a 0 COUNT", "-ERR syntax error\r\n"),
    ("HSCAN a 0 TYPE hash", "-ERR syntax error\r\n"),
    ("HSCAN a 0 NOVALUES", "-ERR syntax error\r\n"),
    ("HSCAN a x COUNT x", "-ERR invalid cursor\r\n"),
    ("HSCAN a 18446744073709551616", "-ERR invalid cursor\r\n"),
    ("HSCAN a", "-ERR wrong number of arguments for 'hscan' command\r\n"),
    ("HSCAN", "-ERR wrong number of arguments for 'hscan' command\r\n"),
];

const DRAWS: &[(&str, &str)] = &[
    ("HRANDFIELD a", "$-1\r\n"),
    ("HRANDFIELD a 1", "*0\r\n"),
    ("HRANDFIELD a -1", "*0\r\n"),
    ("HRANDFIELD a 1 WITHVALUES", "*0\r\n"),
    ("HRANDFIELD a x", "-ERR value is not an integer or out of range\r\n"),
    ("HRANDFIELD a 1 x", "-ERR syntax error\r\n"),
    ("HSET a f 1", ":1\r\n"),
    ("HRANDFIELD a", "$1\r\nf\r\n"),
    ("HRANDFIELD a 0", "*0\r\n"),
    ("HRANDFIELD a 1", "*1\r\n$1\r\nf\r\n"),
    ("HRANDFIELD a -3", "*3\r\n$1\r\nf\r\n$1\r\nf\r\n$1\r\nf\r\n"),
    ("HRANDFIELD a -2 withvalues", "*4\r\n$1\r\nf\r\n$1\r\n1\r\n$1\r\nf\r\n$1\r\n1\r\n"),
    ("HRANDFIELD a 0 WITHVALUES", "*0\r\n"),
    ("HRANDFIELD a 9223372036854775807", "*1\r\n$1\r\nf\r\n"),
    ("HRANDFIELD a 4611686018427387903 WITHVALUES", "*2\r\n$1\r\nf\r\n$1\r\n1\r\n"),
    ("HRANDFIELD a 4611686018427387904 WITHVALUES", "-ERR value is out of range\r\n"),
    ("HRANDFIELD a -4611686018427387904 WITHVALUES", "-ERR value is out of range\r\n"),
    (
        "HRANDFIELD a -9223372036854775808",
        "-ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807\r\n",
    ),
    ("HRANDFIELD a 9223372036854775808", "-ERR value is not an integer or out of range\r\n"),
    ("HRANDFIELD a x WITHVALUES", "-ERR value is not an integer or out of range\r\n"),
    ("HRANDFIELD a 1 x", "-ERR syntax error\r\n"),
    ("HRANDFIELD a 1 WITHVALUES x", "-ERR syntax error\r\n"),
    ("HSET a g 2 h 3", ":2\r\n"),
    ("HRANDFIELD a 3", "*3\r\n$1\r\nf\r\n$1\r\ng\r\n$1\r\nh\r\n"),
    ("HRANDFIELD a 3 WITHVALUES", "*6\r\n$1\r\nf\r\n$1\r\n1\r\n$1\r\ng\r\n$1\r\n2\r\n$1\r\nh\r\n$1\r\n3\r\n"),
    ("HRANDFIELD", "-ERR wrong number of arguments for 'hrandfield' command\r\n"),
];

const TIMES: &[(&str, &str)] = &[
    ("HSET a f 1 g 1", ":2\r\n"),
    ("PEXPIREAT a 4102444800000", ":1\r\n"),
    ("HSET a f 2", ":0\r\n"),
    ("HSET a h 1", ":1\r\n"),
    ("HINCRBY a f 1", ":3\r\n"),
    ("HINCRBYFLOAT a f 1", "$1\r\n4\r\n"),
    ("HSETNX a i 1", ":1\r\n"),
    ("HDEL a g", ":1\r\n"),
    ("PEXPIRETIME a", ":4102444800000\r\n"),
    ("HDEL a f h i", ":3\r\n"),
    ("HSET a f 1", ":1\r\n"),
    ("PEXPIRETIME a", ":-1\r\n"),
    ("PEXPIREAT a 4102444800000", ":1\r\n"),
    ("SET a 1", "+OK\r\n"),
    ("TYPE a", "+string\r\n"),
    ("DEL a", ":1\r\n"),
    ("HSET a f 1", ":1\r\n"),
    ("PEXPIREAT a 4102444800000", ":1\r\n"),
    ("RENAME a b", "+OK\r\n"),
    ("HSET b g 2", ":1\r\n"),
    ("HGETALL b", "*4\r\n$1\r\nf\r\n$1\r\n1\r\n$1\r\ng\r\n$1\r\n2\r\n"),
    ("PEXPIRETIME b", ":4102444800000\r\n"),
    ("COPY b c", ":1\r\n"),
    ("HSET c g 3", ":0\r\n"),
    ("HGETALL b", "*4\r\n$1\r\nf\r\n$1\r\n1\r\n$1\r\ng\r\n$1\r\n2\r\n"),
    ("PEXPIRETIME c", ":4102444800000\r\n"),
    ("PEXPIRE c -1", ":1\r\n"),
    ("HSET c f 1", ":1\r\n"),
    ("HGETALL c", "*2\r\n$1\r\nf\r\n$1\r\n1\r\n"),
    ("PEXPIRETIME c", ":-1\r\n"),
];

const WRONG_TYPES: &[(&str, &str)] = &[
    ("SET s 1", "+OK\r\n"),
    ("HSET s f 1", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("HSET s f 1 g", "-ERR wrong number of arguments for 'hset' command\r\n"),
    ("HMSET s f 1", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("HSETNX s f 1", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("HGET s f", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("HMGET s f", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("HGETALL s", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("HDEL s f", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("HEXISTS s f", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("HLEN s", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("HKEYS s", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("HVALS s", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("HSTRLEN s f", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("HINCRBY s f 1", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("HINCRBY s f x", "-ERR value is not an integer or out of range\r\n"),
    ("HINCRBYFLOAT s f 1", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("HINCRBYFLOAT s f inf", "-ERR value is NaN or Infinity\r\n"),
    ("HSCAN s 0", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("HSCAN s 0 x", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("HSCAN s x", "-ERR invalid cursor\r\n"),
    ("HRANDFIELD s", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("HRANDFIELD s 1", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("HRANDFIELD s x", "-ERR value is not an integer or out of range\r\n"),
    ("HRANDFIELD s 1 x", "-ERR syntax error\r\n"),
    ("HSET a f 1", ":1\r\n"),
    ("GET a", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("INCR a", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("APPEND a x", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("SET a 1 GET", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("MGET a s", "*2\r\n$-1\r\n$1\r\n1\r\n"),
];
