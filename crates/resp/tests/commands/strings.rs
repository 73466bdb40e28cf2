//! Strings: requests and the replies of Redis 7.0.15 to them.

use crate::common;

use common::Fixture;
use ecotone_engine::MAX_VALUE_BYTES;
use ecotone_keyspace::{Type, WriteGroup};

#[test]
fn a_string_is_set_as_the_options_say() {
    Fixture::check(SET_AND_GET);
}

#[test]
fn many_strings_are_set_and_read_at_once() {
    Fixture::check(MANY);
}

#[test]
fn a_string_is_set_or_read_with_a_time() {
    Fixture::check(EXPIRING);
}

#[test]
fn an_old_value_is_returned_when_it_goes() {
    Fixture::check(OLD_VALUES);
}

#[test]
fn parts_of_strings_are_read_and_written() {
    Fixture::check(PARTS);
}

#[test]
fn whole_numbers_are_added() {
    Fixture::check(NUMBERS);
}

#[test]
fn decimal_numbers_are_added() {
    Fixture::check(DECIMALS);
}

#[test]
fn what_is_no_string_is_refused() {
    Fixture::check(WRONG_TYPES);
}

#[test]
fn no_string_is_longer_than_512_mib() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    // Never committed: the store need not take it.
    let mut group = WriteGroup::new(fixture.service.keyspace.clone());
    let mut ask = |request: &str| client.ask_in(&mut group, request);
    let last = MAX_VALUE_BYTES - 1;
    assert_eq!(ask(&format!("SETRANGE a {last} x")), format!(":{MAX_VALUE_BYTES}\r\n"));
    assert_eq!(ask("APPEND a x"), "-ERR string exceeds maximum allowed size (proto-max-bulk-len)\r\n");
    assert_eq!(ask("GETRANGE a -2 -1"), "$2\r\n\0x\r\n");
    assert_eq!(ask("STRLEN a"), format!(":{MAX_VALUE_BYTES}\r\n"));
}

#[test]
fn a_large_collection_that_is_overwritten_is_given_up() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    for request in ["SET a 1 XX", "SET a 1 KEEPTTL"] {
        fixture.plant_large("a", Type::Set, 3);
        assert_eq!(client.ask("TYPE a"), "+set\r\n");
        assert_eq!(client.ask(request), "+OK\r\n");
        assert_eq!(fixture.service.keyspace.reclaim_collections(9, || true).unwrap().collections, 1, "{request}");
    }
    // Without an option nobody looks, so it is found later.
    for request in ["SET a 1", "MSET a 1"] {
        fixture.plant_large("a", Type::Set, 3);
        assert_eq!(client.ask(request), "+OK\r\n");
        assert_eq!(fixture.service.keyspace.reclaim_collections(9, || true).unwrap().collections, 0, "{request}");
        assert_eq!(fixture.found_and_reclaimed(), 1, "{request}");
    }
}

const SET_AND_GET: &[(&str, &str)] = &[
    ("GET a", "$-1\r\n"),
    ("SET a 1", "+OK\r\n"),
    ("GET a", "$1\r\n1\r\n"),
    ("get a", "$1\r\n1\r\n"),
    ("SET a ", "+OK\r\n"),
    ("GET a", "$0\r\n\r\n"),
    ("GET", "-ERR wrong number of arguments for 'get' command\r\n"),
    ("GET a b", "-ERR wrong number of arguments for 'get' command\r\n"),
    ("SET a", "-ERR wrong number of arguments for 'set' command\r\n"),
    ("SET a 1 x", "-ERR syntax error\r\n"),
    ("SET a 1 EX", "-ERR syntax error\r\n"),
    ("SET a 1 EX x", "-ERR value is not an integer or out of range\r\n"),
    ("SET a 1 EX x NX XX", "-ERR syntax error\r\n"),
    ("SET a 1 EX 0", "-ERR invalid expire time in 'set' command\r\n"),
    ("SET a 1 PX -1", "-ERR invalid expire time in 'set' command\r\n"),
    ("SET a 1 EXAT 0", "-ERR invalid expire time in 'set' command\r\n"),
    ("SET a 1 PXAT -1", "-ERR invalid expire time in 'set' command\r\n"),
    ("SET a 1 EX 9223372036854775807", "-ERR invalid expire time in 'set' command\r\n"),
    ("SET a 1 PX 9223372036854775807", "-ERR invalid expire time in 'set' command\r\n"),
    ("SET a 1 EX 9223372036854775808", "-ERR value is not an integer or out of range\r\n"),
    ("SET a 1 EX 9223372036854776", "-ERR invalid expire time in 'set' command\r\n"),
    ("SET a 1 EXAT 9223372036854776", "-ERR invalid expire time in 'set' command\r\n"),
    ("SET a 1 EX 1 PX 1", "-ERR syntax error\r\n"),
    ("SET a 1 EX 1 KEEPTTL", "-ERR syntax error\r\n"),
    ("SET a 1 KEEPTTL EX 1", "-ERR syntax error\r\n"),
    ("SET a 1 PERSIST", "-ERR syntax error\r\n"),
    ("SET a 1 NX XX", "-ERR syntax error\r\n"),
    ("SET a 1 XX NX", "-ERR syntax error\r\n"),
    ("SET a 1 nx NX", "$-1\r\n"),
    ("SET b 1 Nx GET", "$-1\r\n"),
    ("SET b 2 NX GET", "$1\r\n1\r\n"),
    ("GET b", "$1\r\n1\r\n"),
    ("SET b 3 XX GET", "$1\r\n1\r\n"),
    ("SET c 1 XX", "$-1\r\n"),
    ("SET c 1 XX GET", "$-1\r\n"),
    ("GET c", "$-1\r\n"),
    ("SET b 4 PXAT 4102444800000", "+OK\r\n"),
    ("PEXPIRETIME b", ":4102444800000\r\n"),
    ("SET b 5 KEEPTTL", "+OK\r\n"),
    ("PEXPIRETIME b", ":4102444800000\r\n"),
    ("SET b 6 KEEPTTL KEEPTTL GET", "$1\r\n5\r\n"),
    ("PEXPIRETIME b", ":4102444800000\r\n"),
    ("SET b 7", "+OK\r\n"),
    ("PEXPIRETIME b", ":-1\r\n"),
    ("SET b 8 EXAT 4102444800 EXAT 4102444801", "+OK\r\n"),
    ("PEXPIRETIME b", ":4102444801000\r\n"),
    ("SET b 9 PXAT 1", "+OK\r\n"),
    ("GET b", "$-1\r\n"),
    ("SET b 1 PXAT 9223372036854775807", "+OK\r\n"),
    ("PEXPIRETIME b", ":9223372036854775807\r\n"),
    ("EXPIRETIME b", ":9223372036854776\r\n"),
];

const MANY: &[(&str, &str)] = &[
    ("MGET a b", "*2\r\n$-1\r\n$-1\r\n"),
    ("MSET a 1 b 2", "+OK\r\n"),
    ("MGET a missing b a", "*4\r\n$1\r\n1\r\n$-1\r\n$1\r\n2\r\n$1\r\n1\r\n"),
    ("MSET a 3 a 4", "+OK\r\n"),
    ("GET a", "$1\r\n4\r\n"),
    ("MSET a", "-ERR wrong number of arguments for 'mset' command\r\n"),
    ("MSET a 1 b", "-ERR wrong number of arguments for 'mset' command\r\n"),
    ("MSETNX c 1 a 1", ":0\r\n"),
    ("EXISTS c", ":0\r\n"),
    ("MSETNX c 1 d 2", ":1\r\n"),
    ("MGET c d", "*2\r\n$1\r\n1\r\n$1\r\n2\r\n"),
    ("MSETNX e 1 e 2", ":1\r\n"),
    ("GET e", "$1\r\n2\r\n"),
    ("MSETNX a", "-ERR wrong number of arguments for 'msetnx' command\r\n"),
    ("MSETNX a 1 b", "-ERR wrong number of arguments for 'msetnx' command\r\n"),
    ("MGET", "-ERR wrong number of arguments for 'mget' command\r\n"),
    ("SETNX a 1", ":0\r\n"),
    ("SETNX f 1", ":1\r\n"),
    ("SETNX f 2", ":0\r\n"),
    ("GET f", "$1\r\n1\r\n"),
    ("SETNX f", "-ERR wrong number of arguments for 'setnx' command\r\n"),
];

const EXPIRING: &[(&str, &str)] = &[
    ("SETEX a 0 v", "-ERR invalid expire time in 'setex' command\r\n"),
    ("SETEX a -1 v", "-ERR invalid expire time in 'setex' command\r\n"),
    ("SETEX a x v", "-ERR value is not an integer or out of range\r\n"),
    ("SETEX a 9223372036854775807 v", "-ERR invalid expire time in 'setex' command\r\n"),
    ("SETEX a 1000 ", "+OK\r\n"),
    ("GET a", "$0\r\n\r\n"),
    ("SETEX a 10", "-ERR wrong number of arguments for 'setex' command\r\n"),
    ("PSETEX a 0 v", "-ERR invalid expire time in 'psetex' command\r\n"),
    ("PSETEX a x v", "-ERR value is not an integer or out of range\r\n"),
    ("PSETEX a 9223372036854775807 v", "-ERR invalid expire time in 'psetex' command\r\n"),
    ("PSETEX a 100000 v", "+OK\r\n"),
    ("GET a", "$1\r\nv\r\n"),
    ("GETEX", "-ERR wrong number of arguments for 'getex' command\r\n"),
    ("GETEX missing", "$-1\r\n"),
    ("GETEX missing EX x", "$-1\r\n"),
    ("GETEX missing EX 0", "$-1\r\n"),
    ("GETEX missing EX", "-ERR syntax error\r\n"),
    ("GETEX a EX x", "-ERR value is not an integer or out of range\r\n"),
    ("GETEX a EX 0", "-ERR invalid expire time in 'getex' command\r\n"),
    ("GETEX a PX 9223372036854775807", "-ERR invalid expire time in 'getex' command\r\n"),
    ("GETEX a NX", "-ERR syntax error\r\n"),
    ("GETEX a KEEPTTL", "-ERR syntax error\r\n"),
    ("GETEX a GET", "-ERR syntax error\r\n"),
    ("GETEX a PERSIST EX 1", "-ERR syntax error\r\n"),
    ("GETEX a EX 1 PERSIST", "-ERR syntax error\r\n"),
    ("GETEX a EX 1 PX 1", "-ERR syntax error\r\n"),
    ("GETEX a PXAT 4102444800000", "$1\r\nv\r\n"),
    ("PEXPIRETIME a", ":4102444800000\r\n"),
    ("GETEX a", "$1\r\nv\r\n"),
    ("PEXPIRETIME a", ":4102444800000\r\n"),
    ("GETEX a PERSIST persist", "$1\r\nv\r\n"),
    ("PEXPIRETIME a", ":-1\r\n"),
    ("GETEX a PERSIST", "$1\r\nv\r\n"),
    ("GETEX a EXAT 4102444800", "$1\r\nv\r\n"),
    ("PEXPIRETIME a", ":4102444800000\r\n"),
    ("GETEX a PXAT 1", "$1\r\nv\r\n"),
    ("GET a", "$-1\r\n"),
];

const OLD_VALUES: &[(&str, &str)] = &[
    ("GETSET a 1", "$-1\r\n"),
    ("GETSET a 2", "$1\r\n1\r\n"),
    ("GET a", "$1\r\n2\r\n"),
    ("PEXPIREAT a 4102444800000", ":1\r\n"),
    ("GETSET a 3", "$1\r\n2\r\n"),
    ("PEXPIRETIME a", ":-1\r\n"),
    ("GETSET a", "-ERR wrong number of arguments for 'getset' command\r\n"),
    ("GETDEL a", "$1\r\n3\r\n"),
    ("GETDEL a", "$-1\r\n"),
    ("GETDEL", "-ERR wrong number of arguments for 'getdel' command\r\n"),
    ("GETDEL a b", "-ERR wrong number of arguments for 'getdel' command\r\n"),
];

const PARTS: &[(&str, &str)] = &[
    ("STRLEN a", ":0\r\n"),
    ("APPEND a Hello", ":5\r\n"),
    ("APPEND a  World", "-ERR wrong number of arguments for 'append' command\r\n"),
    ("APPEND a ", ":5\r\n"),
    ("APPEND e ", ":0\r\n"),
    ("EXISTS e", ":1\r\n"),
    ("STRLEN a", ":5\r\n"),
    ("PEXPIREAT a 4102444800000", ":1\r\n"),
    ("APPEND a !", ":6\r\n"),
    ("PEXPIRETIME a", ":4102444800000\r\n"),
    ("APPEND a", "-ERR wrong number of arguments for 'append' command\r\n"),
    ("GETRANGE a 0 4", "$5\r\nHello\r\n"),
    ("GETRANGE a 0 -1", "$6\r\nHello!\r\n"),
    ("GETRANGE a -3 -1", "$3\r\nlo!\r\n"),
    ("GETRANGE a -1 -3", "$0\r\n\r\n"),
    ("GETRANGE a -100 -200", "$0\r\n\r\n"),
    ("GETRANGE a -100 -12", "$1\r\nH\r\n"),
    ("GETRANGE a -100 100", "$6\r\nHello!\r\n"),
    ("GETRANGE a 5 4", "$0\r\n\r\n"),
    ("GETRANGE a 10 10", "$0\r\n\r\n"),
    ("GETRANGE a 11 11", "$0\r\n\r\n"),
    ("GETRANGE a 9223372036854775807 9223372036854775807", "$0\r\n\r\n"),
    ("GETRANGE a -9223372036854775808 9223372036854775807", "$6\r\nHello!\r\n"),
    ("GETRANGE a 0 -9223372036854775808", "$1\r\nH\r\n"),
    ("GETRANGE a x 0", "-ERR value is not an integer or out of range\r\n"),
    ("GETRANGE a 0 1.0", "-ERR value is not an integer or out of range\r\n"),
    ("GETRANGE missing 0 -1", "$0\r\n\r\n"),
    ("GETRANGE missing x y", "-ERR value is not an integer or out of range\r\n"),
    ("GETRANGE e 0 0", "$0\r\n\r\n"),
    ("SUBSTR a 1 2", "$2\r\nel\r\n"),
    ("SUBSTR a 1", "-ERR wrong number of arguments for 'substr' command\r\n"),
    ("SETRANGE a 1 a", ":6\r\n"),
    ("GET a", "$6\r\nHallo!\r\n"),
    ("PEXPIRETIME a", ":4102444800000\r\n"),
    ("SETRANGE a 13 xy", ":15\r\n"),
    ("GET a", "$15\r\nHallo!\0\0\0\0\0\0\0xy\r\n"),
    ("SETRANGE n 2 x", ":3\r\n"),
    ("GET n", "$3\r\n\0\0x\r\n"),
    ("SETRANGE m 2 ", ":0\r\n"),
    ("EXISTS m", ":0\r\n"),
    ("SETRANGE a 999999999999 ", ":15\r\n"),
    ("SETRANGE a -1 x", "-ERR offset is out of range\r\n"),
    ("SETRANGE a x x", "-ERR value is not an integer or out of range\r\n"),
    ("SETRANGE a 536870912 x", "-ERR string exceeds maximum allowed size (proto-max-bulk-len)\r\n"),
    ("SETRANGE a 536870911 xy", "-ERR string exceeds maximum allowed size (proto-max-bulk-len)\r\n"),
    ("SETRANGE m 536870912 x", "-ERR string exceeds maximum allowed size (proto-max-bulk-len)\r\n"),
    ("SETRANGE a 9223372036854775807 x", "-ERR string exceeds maximum allowed size (proto-max-bulk-len)\r\n"),
    ("SETRANGE a 1", "-ERR wrong number of arguments for 'setrange' command\r\n"),
];

const NUMBERS: &[(&str, &str)] = &[
    ("INCR a", ":1\r\n"),
    ("INCR a", ":2\r\n"),
    ("DECR a", ":1\r\n"),
    ("DECR b", ":-1\r\n"),
    ("INCRBY a 40", ":41\r\n"),
    ("DECRBY a 10", ":31\r\n"),
    ("INCRBY a -1", ":30\r\n"),
    ("GET a", "$2\r\n30\r\n"),
    ("INCRBY a x", "-ERR value is not an integer or out of range\r\n"),
    ("INCRBY a 1.0", "-ERR value is not an integer or out of range\r\n"),
    ("INCRBY a 9223372036854775808", "-ERR value is not an integer or out of range\r\n"),
    ("INCRBY a ", "-ERR value is not an integer or out of range\r\n"),
    ("DECRBY a -9223372036854775808", "-ERR decrement would overflow\r\n"),
    ("DECRBY missing x", "-ERR value is not an integer or out of range\r\n"),
    ("EXISTS missing", ":0\r\n"),
    ("PEXPIREAT a 4102444800000", ":1\r\n"),
    ("INCR a", ":31\r\n"),
    ("INCRBYFLOAT a 0.5", "$4\r\n31.5\r\n"),
    ("PEXPIRETIME a", ":4102444800000\r\n"),
    ("SET a 9223372036854775807", "+OK\r\n"),
    ("INCR a", "-ERR increment or decrement would overflow\r\n"),
    ("INCRBY a 1", "-ERR increment or decrement would overflow\r\n"),
    ("DECRBY a -1", "-ERR increment or decrement would overflow\r\n"),
    ("INCRBY a -9223372036854775808", ":-1\r\n"),
    ("SET a -9223372036854775808", "+OK\r\n"),
    ("DECR a", "-ERR increment or decrement would overflow\r\n"),
    ("INCRBY a -1", "-ERR increment or decrement would overflow\r\n"),
    ("DECRBY a 9223372036854775807", "-ERR increment or decrement would overflow\r\n"),
    ("SET a ", "+OK\r\n"),
    ("INCR a", "-ERR value is not an integer or out of range\r\n"),
    ("SET a 1.5", "+OK\r\n"),
    ("INCR a", "-ERR value is not an integer or out of range\r\n"),
    ("SET a 01", "+OK\r\n"),
    ("INCR a", "-ERR value is not an integer or out of range\r\n"),
    ("SET a -0", "+OK\r\n"),
    ("INCR a", "-ERR value is not an integer or out of range\r\n"),
    ("SET a 9223372036854775808", "+OK\r\n"),
    ("INCR a", "-ERR value is not an integer or out of range\r\n"),
    ("INCR", "-ERR wrong number of arguments for 'incr' command\r\n"),
    ("INCRBY a", "-ERR wrong number of arguments for 'incrby' command\r\n"),
];

const DECIMALS: &[(&str, &str)] = &[
    ("INCRBYFLOAT a 0.1", "$3\r\n0.1\r\n"),
    ("INCRBYFLOAT a 0.2", "$3\r\n0.3\r\n"),
    ("INCRBYFLOAT a -0.3", "$1\r\n0\r\n"),
    ("INCRBYFLOAT a 5.0e3", "$4\r\n5000\r\n"),
    ("INCRBYFLOAT a 1e-20", "$4\r\n5000\r\n"),
    ("SET a 3.0e3", "+OK\r\n"),
    ("INCRBYFLOAT a 200", "$4\r\n3200\r\n"),
    ("INCRBYFLOAT a x", "-ERR value is not a valid float\r\n"),
    ("INCRBYFLOAT a ", "-ERR value is not a valid float\r\n"),
    ("INCRBYFLOAT a nan", "-ERR value is not a valid float\r\n"),
    ("INCRBYFLOAT a inf", "-ERR increment would produce NaN or Infinity\r\n"),
    ("INCRBYFLOAT a -inf", "-ERR increment would produce NaN or Infinity\r\n"),
    ("INCRBYFLOAT a 1e5000", "-ERR value is not a valid float\r\n"),
    ("SET a x", "+OK\r\n"),
    ("INCRBYFLOAT a 1", "-ERR value is not a valid float\r\n"),
    ("INCRBYFLOAT a y", "-ERR value is not a valid float\r\n"),
    ("SET a ", "+OK\r\n"),
    ("INCRBYFLOAT a 1", "-ERR value is not a valid float\r\n"),
    ("SET a inf", "+OK\r\n"),
    ("INCRBYFLOAT a 1", "-ERR increment would produce NaN or Infinity\r\n"),
    ("INCRBYFLOAT a", "-ERR wrong number of arguments for 'incrbyfloat' command\r\n"),
];

const WRONG_TYPES: &[(&str, &str)] = &[
    ("RPUSH l x", ":1\r\n"),
    ("GET l", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("SET l 1 GET", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("SET l 1 GET XX", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("SET l 1 NX", "$-1\r\n"),
    ("SET l 1 EX 0 GET", "-ERR invalid expire time in 'set' command\r\n"),
    ("MGET l l", "*2\r\n$-1\r\n$-1\r\n"),
    ("MSETNX l 1", ":0\r\n"),
    ("SETNX l 1", ":0\r\n"),
    ("GETSET l 1", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("GETDEL l", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("GETEX l", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("GETEX l EX 0", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("GETEX l NX", "-ERR syntax error\r\n"),
    ("APPEND l x", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("STRLEN l", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("GETRANGE l 0 0", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("GETRANGE l x 0", "-ERR value is not an integer or out of range\r\n"),
    ("SETRANGE l 0 x", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("SETRANGE l 0 ", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("SETRANGE l -1 x", "-ERR offset is out of range\r\n"),
    ("SETRANGE l 536870912 x", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("INCR l", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("DECR l", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("INCRBY l 1", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("INCRBY l x", "-ERR value is not an integer or out of range\r\n"),
    ("DECRBY l 1", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("INCRBYFLOAT l 1", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("INCRBYFLOAT l x", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("TYPE l", "+list\r\n"),
    ("SET l 1 XX", "+OK\r\n"),
    ("TYPE l", "+string\r\n"),
];
