//! Every answer, byte for byte.

use ecotone_resp::protocol::reply::{Reply, Version};
use proptest::prelude::*;

#[track_caller]
fn is(write: impl Fn(&mut Reply), resp2: &str, resp3: &str) {
    for (version, expected) in [(Version::Resp2, resp2), (Version::Resp3, resp3)] {
        let mut reply = Reply::new(version);
        write(&mut reply);
        assert_eq!(reply.bytes().escape_ascii().to_string(), expected.as_bytes().escape_ascii().to_string());
        assert_eq!(reply.len(), expected.len());
    }
}

#[track_caller]
fn is_in_both(write: impl Fn(&mut Reply), expected: &str) {
    is(write, expected, expected);
}

#[test]
fn lines() {
    is_in_both(|reply| reply.simple("OK"), "+OK\r\n");
    is_in_both(|reply| reply.simple(""), "+\r\n");
    is_in_both(|reply| reply.simple("a\r\n-b\n"), "+a  -b \r\n");
    is_in_both(|reply| reply.error("ERR no such key"), "-ERR no such key\r\n");
    is_in_both(|reply| reply.error("ERR a\r\n:1\r\nb\r\n"), "-ERR a  :1  b\r\n");
}

#[test]
fn integers() {
    is_in_both(|reply| reply.integer(0), ":0\r\n");
    is_in_both(|reply| reply.integer(-1), ":-1\r\n");
    is_in_both(|reply| reply.integer(12345), ":12345\r\n");
    is_in_both(|reply| reply.integer(i64::MAX), ":9223372036854775807\r\n");
    is_in_both(|reply| reply.integer(i64::MIN), ":-9223372036854775808\r\n");
}

#[test]
fn strings() {
    is_in_both(|reply| reply.bulk(b""), "$0\r\n\r\n");
    is_in_both(|reply| reply.bulk(b"a\r\n\0b"), "$5\r\na\r\n\0b\r\n");
    is_in_both(|reply| reply.bulk_text("Hello World"), "$11\r\nHello World\r\n");
    is_in_both(|reply| reply.bulk_text("é"), "$2\r\né\r\n");
    let text = "This is a verbatim\nstring";
    is(
        |reply| reply.verbatim(*b"txt", text),
        "$25\r\nThis is a verbatim\nstring\r\n",
        "=29\r\ntxt:This is a verbatim\nstring\r\n",
    );
}

#[test]
fn nothing() {
    is(Reply::null, "$-1\r\n", "_\r\n");
    is(Reply::null_array, "*-1\r\n", "_\r\n");
}

#[test]
fn headers() {
    is_in_both(|reply| reply.array(3), "*3\r\n");
    is(|reply| reply.map(3), "*6\r\n", "%3\r\n");
    is(|reply| reply.set(0), "*0\r\n", "~0\r\n");
    is(|reply| reply.push(2), "*2\r\n", ">2\r\n");
}

#[test]
fn numbers_and_truth() {
    is(|reply| reply.double(-2.75), "$5\r\n-2.75\r\n", ",-2.75\r\n");
    is(|reply| reply.double(0.1), "$19\r\n0.10000000000000001\r\n", ",0.10000000000000001\r\n");
    is(|reply| reply.double(-3.0), "$2\r\n-3\r\n", ",-3\r\n");
    is(|reply| reply.double(f64::INFINITY), "$3\r\ninf\r\n", ",inf\r\n");
    is(|reply| reply.double(f64::NEG_INFINITY), "$4\r\n-inf\r\n", ",-inf\r\n");
    is(|reply| reply.double(f64::NAN), "$3\r\nnan\r\n", ",nan\r\n");
}

#[test]
fn headers_with_a_count_that_is_known_later() {
    is(
        |reply| {
            reply.simple("before");
            let outer = reply.begin();
            reply.integer(1);
            let map = reply.begin();
            reply.bulk(b"k");
            reply.null();
            reply.end_map(map, 1);
            let empty = reply.begin();
            reply.end_set(empty, 0);
            reply.end_array(outer, 3);
            reply.integer(2);
        },
        "+before\r\n*3\r\n:1\r\n*2\r\n$1\r\nk\r\n$-1\r\n*0\r\n:2\r\n",
        "+before\r\n*3\r\n:1\r\n%1\r\n$1\r\nk\r\n_\r\n~0\r\n:2\r\n",
    );
}

#[test]
fn answers_can_be_taken_back() {
    let mut reply = Reply::new(Version::Resp2);
    reply.integer(1);
    let len = reply.len();
    reply.bulk(b"half");
    reply.truncate(len);
    reply.set_version(Version::Resp3);
    assert_eq!(reply.version(), Version::Resp3);
    reply.null();
    assert_eq!(reply.take(), b":1\r\n_\r\n");
    assert!(reply.is_empty());
    reply.integer(2);
    reply.clear();
    assert_eq!((reply.bytes(), reply.version()), (&b""[..], Version::Resp3));
}

/// What a client understands.
#[derive(Clone, Debug, PartialEq)]
enum Value {
    Simple(String),
    Error(String),
    Integer(i64),
    Bulk(Vec<u8>),
    Verbatim(String),
    Null,
    Double(f64),
    Array(Vec<Value>),
    Set(Vec<Value>),
    Push(Vec<Value>),
    Map(Vec<(Value, Value)>),
}

/// Writes `value`; with `later`, the counts are known only behind the elements.
fn write(value: &Value, reply: &mut Reply, later: bool) {
    let write_all = |values: &[Value], reply: &mut Reply| values.iter().for_each(|value| write(value, reply, later));
    match value {
        Value::Simple(text) => reply.simple(text),
        Value::Error(text) => reply.error(text),
        Value::Integer(value) => reply.integer(*value),
        Value::Bulk(bytes) => reply.bulk(bytes),
        Value::Verbatim(text) => reply.verbatim(*b"txt", text),
        Value::Null => reply.null(),
        Value::Double(value) => reply.double(*value),
        Value::Push(values) => {
            reply.push(values.len());
            write_all(values, reply);
        }
        Value::Array(values) if later => {
            let mark = reply.begin();
            write_all(values, reply);
            reply.end_array(mark, values.len());
        }
        Value::Array(values) => {
            reply.array(values.len());
            write_all(values, reply);
        }
        Value::Set(values) if later => {
            let mark = reply.begin();
            write_all(values, reply);
            reply.end_set(mark, values.len());
        }
        Value::Set(values) => {
            reply.set(values.len());
            write_all(values, reply);
        }
        Value::Map(pairs) => {
            let mark = reply.begin();
            if !later {
                reply.map(pairs.len());
            }
            for (key, value) in pairs {
                write(key, reply, later);
                write(value, reply, later);
            }
            if later {
                reply.end_map(mark, pairs.len());
            }
        }
    }
}

/// Reads one answer of RESP3.
fn read(bytes: &mut &[u8]) -> Value {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n").unwrap();
    let (kind, line) = (bytes[0], std::str::from_utf8(&bytes[1..end]).unwrap());
    *bytes = &bytes[end + 2..];
    match kind {
        b'+' => Value::Simple(line.to_owned()),
        b'-' => Value::Error(line.to_owned()),
        b':' => Value::Integer(line.parse().unwrap()),
        b',' => Value::Double(line.parse().unwrap()),
        b'_' => Value::Null,
        b'$' | b'=' => {
            let (string, rest) = bytes.split_at(line.parse().unwrap());
            *bytes = rest.strip_prefix(b"\r\n").unwrap();
            match kind {
                b'$' => Value::Bulk(string.to_vec()),
                _ => Value::Verbatim(String::from_utf8(string.strip_prefix(b"txt:").unwrap().to_vec()).unwrap()),
            }
        }
        _ => {
            let mut values = |count: usize| (0..count).map(|_| read(bytes)).collect::<Vec<_>>();
            let count = line.parse().unwrap();
            match kind {
                b'*' => Value::Array(values(count)),
                b'~' => Value::Set(values(count)),
                b'>' => Value::Push(values(count)),
                b'%' => {
                    Value::Map(values(2 * count).chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect())
                }
                other => panic!("unknown kind {other}"),
            }
        }
    }
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        "[ -~]{0,10}".prop_map(Value::Simple),
        "[A-Z]{1,5} [ -~]{0,10}".prop_map(Value::Error),
        any::<i64>().prop_map(Value::Integer),
        prop::collection::vec(any::<u8>(), 0..200).prop_map(Value::Bulk),
        "[ -~\r\n]{0,10}".prop_map(Value::Verbatim),
        Just(Value::Null),
        any::<f64>().prop_filter("NaN is not itself", |value| !value.is_nan()).prop_map(Value::Double),
    ];
    leaf.prop_recursive(4, 64, 6, |inner| {
        let many = || prop::collection::vec(inner.clone(), 0..6);
        prop_oneof![
            many().prop_map(Value::Array),
            many().prop_map(Value::Set),
            many().prop_map(Value::Push),
            prop::collection::vec((inner.clone(), inner.clone()), 0..6).prop_map(Value::Map),
        ]
    })
}

proptest! {
    #[test]
    fn a_client_reads_what_was_written(values in prop::collection::vec(value(), 1..4), later in any::<bool>()) {
        let mut reply = Reply::new(Version::Resp3);
        values.iter().for_each(|value| write(value, &mut reply, later));
        let mut bytes = reply.bytes();
        for value in &values {
            prop_assert_eq!(&read(&mut bytes), value);
        }
        prop_assert!(bytes.is_empty());
    }
}
