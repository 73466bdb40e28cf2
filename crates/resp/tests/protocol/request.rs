//! Single requests and every way in which bytes are none.

use ecotone_resp::protocol::request::{Limits, Parser, ProtocolError, RESERVE_AHEAD_BYTES};

/// The arguments of the requests in `bytes`, and the error that ended them.
fn requests(bytes: &[u8], limits: &Limits) -> (Vec<Vec<Vec<u8>>>, Option<String>) {
    let (mut parser, mut arguments, mut found, mut at) = (Parser::new(), Vec::new(), Vec::new(), 0);
    loop {
        let rest = &bytes[at..];
        match parser.parse(rest, limits, &mut arguments) {
            Ok(Some(consumed)) => {
                let source = parser.source(rest);
                found.push(arguments.iter().map(|range| source[range.clone()].to_vec()).collect());
                at += consumed;
            }
            Ok(None) => return (found, None),
            Err(error) => return (found, Some(error.to_string())),
        }
    }
}

#[track_caller]
fn is_requests(bytes: &[u8], expected: &[&[&[u8]]]) {
    let (found, error) = requests(bytes, &Limits::default());
    assert_eq!(error, None);
    assert_eq!(
        found,
        expected.iter().map(|request| request.iter().map(|part| part.to_vec()).collect()).collect::<Vec<Vec<_>>>()
    );
}

#[track_caller]
fn is_error(bytes: &[u8], limits: &Limits, expected: &str) {
    assert_eq!(
        requests(bytes, limits),
        (Vec::new(), Some(format!("Protocol error: {expected}"))),
        "{:?}",
        bytes.get(..40)
    );
}

#[track_caller]
fn is_incomplete(bytes: &[u8], limits: &Limits) {
    assert_eq!(requests(bytes, limits), (Vec::new(), None));
}

#[test]
fn arrays_of_bulk_strings_are_requests() {
    is_requests(b"*1\r\n$4\r\nPING\r\n", &[&[b"PING"]]);
    is_requests(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\na\r\nb\0\r\n", &[&[b"SET", b"k", b"a\r\nb\0"]]);
    is_requests(b"*2\r\n$0\r\n\r\n$0\r\n\r\n", &[&[b"", b""]]);
    is_requests(b"*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nQUIT\r\n", &[&[b"PING"], &[b"QUIT"]]);
    is_requests(b"*1\r\n$4\r\nPING\r\nECHO a\r\n*1\r\n$1", &[&[b"PING"], &[b"ECHO", b"a"]]);
}

#[test]
fn empty_requests_have_no_arguments() {
    is_requests(
        b"*0\r\n*-1\r\n\r\n\n \t \r\n*-9223372036854775808\r\nPING\r\n",
        &[&[], &[], &[], &[], &[], &[], &[b"PING"]],
    );
}

#[test]
fn bytes_that_redis_does_not_look_at_are_not_looked_at_here() {
    is_requests(b"*1\r\n$4\r\nPINGxx*1\rx$4\rxPING\r\n", &[&[b"PING"], &[b"PING"]]);
}

#[test]
fn lines_are_requests() {
    is_requests(b"PING\r\nPING\nset  a\tb \r\n", &[&[b"PING"], &[b"PING"], &[b"set", b"a", b"b"]]);
    // Any white space goes before an argument, but only some ends one.
    is_requests(b"\x0b\x0ca\x0bb c\rd\r\r\n", &[&[b"a\x0bb", b"c", b"d"]]);
    is_requests(b"a\\n \xff$*\r\n", &[&[b"a\\n", b"\xff$*"]]);
}

#[test]
fn quotes_in_lines_are_undone() {
    is_requests(b"set \"a b\" 'c d'\r\n", &[&[b"set", b"a b", b"c d"]]);
    is_requests(b"\"\\x41\\xfF\\n\\r\\t\\b\\a\\\"\\\\\\q\"\r\n", &[&[b"A\xff\n\r\t\x08\x07\"\\q"]]);
    is_requests(b"\"\\x4\\xg1\"\r\n", &[&[b"x4xg1"]]);
    is_requests(b"'a\\'b\\n\"' \"'\"\r\n", &[&[b"a'b\\n\"", b"'"]]);
    is_requests(b"\"\" '' a\"b c\"\r\n", &[&[b"", b"", b"ab c"]]);
    is_requests(b"\"a\"\x0b'b'\tc\r\nPING\r\n", &[&[b"a", b"b", b"c"], &[b"PING"]]);
}

#[test]
fn unbalanced_quotes_are_refused() {
    for line in [
        "\"a\r\n",
        "'a\r\n",
        "\"a\"b\r\n",
        "'a'b\r\n",
        "\"a\"\"b\"\r\n",
        "'\r\n",
        "\"\\\r\n",
        "a \"\\\"\r\n",
        "'a\\'\r\n",
    ] {
        is_error(line.as_bytes(), &Limits::default(), "unbalanced quotes in request");
    }
}

#[test]
fn counts_of_arguments_are_integers_within_the_limit() {
    for count in
        ["+1", "01", " 1", "1 ", "", "1x", "-0", "-", "2147483648", "-9223372036854775809", "99999999999999999999"]
    {
        is_error(format!("*{count}\r\n").as_bytes(), &Limits::default(), "invalid multibulk length");
    }
    is_incomplete(b"*1048576\r\n", &Limits::default());
    is_incomplete(b"*1048577\r", &Limits::default());
    // What Redis would take is refused with the limit.
    for count in ["1048577", "2147483647"] {
        let refusal = format!("the request has {count} arguments, the most is 1048576, which no setting changes");
        is_error(format!("*{count}\r\n").as_bytes(), &Limits::default(), &refusal);
    }
}

#[test]
fn lengths_of_arguments_are_integers_within_the_limit() {
    for length in ["+1", "01", "", "-1", "x", "536870913", "9223372036854775807", "9223372036854775808"] {
        is_error(format!("*1\r\n${length}\r\n").as_bytes(), &Limits::default(), "invalid bulk length");
    }
    is_incomplete(b"*1\r\n$536870912\r\n", &Limits::default());
    is_incomplete(b"*1\r\n$536870913\r", &Limits::default());
    let small = Limits { bulk_bytes: 3, ..Limits::default() };
    is_error(b"*1\r\n$4\r\n", &small, "invalid bulk length");
    is_incomplete(b"*1\r\n$3\r\nabc\r", &small);
}

#[test]
fn arguments_are_bulk_strings() {
    is_error(b"*1\r\n:1\r\n", &Limits::default(), "expected '$', got ':'");
    is_error(b"*2\r\n$1\r\na\r\n*1\r\n", &Limits::default(), "expected '$', got '*'");
    is_error(b"*1\r\n\r\n", &Limits::default(), "expected '$', got '\r'");
    assert_eq!(
        Parser::new().parse(b"*1\r\n\xff\r\n", &Limits::default(), &mut Vec::new()),
        Err(ProtocolError::ExpectedBulk(0xff))
    );
    assert_eq!(ProtocolError::ExpectedBulk(0xff).reply(), b"ERR Protocol error: expected '$', got '\xff'");
    assert_eq!(ProtocolError::InvalidBulk.reply(), b"ERR Protocol error: invalid bulk length");
}

#[test]
fn lines_without_an_end_are_refused_at_the_limit() {
    let longest = Limits::default().inline_bytes;
    for (before, error) in
        [("", "too big inline request"), ("*", "too big mbulk count string"), ("*1\r\n$", "too big bulk count string")]
    {
        let line_bytes = before.len() - before.trim_end_matches(['*', '$']).len();
        let mut bytes = before.as_bytes().to_vec();
        bytes.resize(before.len() + longest - line_bytes, b'1');
        is_incomplete(&bytes, &Limits::default());
        bytes.push(b'1');
        is_error(&bytes, &Limits::default(), error);
        bytes.extend_from_slice(b"\r\n");
        is_error(&bytes, &Limits::default(), error);
        // A NUL hides the end of the line.
        let mut hidden = before.as_bytes().to_vec();
        hidden.extend_from_slice(b"\0\r\n");
        is_incomplete(&hidden, &Limits::default());
        hidden.resize(before.len() + longest + 1, b'\n');
        is_error(&hidden, &Limits::default(), error);
    }
    let mut line = vec![b'a'; longest];
    line.push(b'\n');
    let (found, error) = requests(&line, &Limits::default());
    assert_eq!((found[0][0].len(), error), (longest, None));
}

#[test]
fn little_is_taken_before_the_password() {
    let limits = Limits::UNAUTHENTICATED;
    is_error(b"*11\r\n", &limits, "unauthenticated multibulk length");
    is_error(b"*2147483647\r\n", &limits, "unauthenticated multibulk length");
    is_error(b"*10\r\n$16385\r\n", &limits, "unauthenticated bulk length");
    is_incomplete(b"*10\r\n$16384\r\n", &limits);
    is_error(b"*2147483648\r\n", &limits, "invalid multibulk length");
    is_error(b"*1\r\n$536870913\r\n", &limits, "invalid bulk length");
}

#[test]
fn a_parser_starts_anew_behind_an_error() {
    let (mut parser, mut arguments) = (Parser::new(), Vec::new());
    let limits = Limits::default();
    assert_eq!(
        parser.parse(b"*2\r\n$1\r\na\r\n!\r\n", &limits, &mut arguments),
        Err(ProtocolError::ExpectedBulk(b'!'))
    );
    assert!(arguments.is_empty());
    assert_eq!(parser.parse(b"PING\r\n", &limits, &mut arguments), Ok(Some(6)));
    assert_eq!((arguments.len(), arguments[0].clone()), (1, 0..4));
}

#[test]
fn claims_take_no_memory() {
    let (mut parser, mut arguments) = (Parser::new(), Vec::new());
    let limits = Limits::default();
    assert_eq!(parser.parse(b"*1048576\r\n", &limits, &mut arguments), Ok(None));
    assert!(arguments.capacity() < 1000);
    assert_eq!(parser.needs(), None);
    let bytes = b"*1048576\r\n$536870912\r\nabc";
    assert_eq!(parser.parse(bytes, &limits, &mut arguments), Ok(None));
    assert_eq!(parser.needs(), Some(bytes.len() + RESERVE_AHEAD_BYTES));
}

#[test]
fn needs_tells_the_end_of_a_bulk_string() {
    let (mut parser, mut arguments) = (Parser::new(), Vec::new());
    let limits = Limits::default();
    let whole = b"*2\r\n$3\r\nGET\r\n$100\r\n";
    assert_eq!(parser.parse(&whole[..10], &limits, &mut arguments), Ok(None));
    assert_eq!(parser.needs(), Some(13));
    assert_eq!(parser.parse(&whole[..], &limits, &mut arguments), Ok(None));
    assert_eq!(parser.needs(), Some(whole.len() + 102));
    let mut grown = whole.to_vec();
    grown.resize(whole.len() + 102, b'x');
    assert_eq!(parser.parse(&grown, &limits, &mut arguments), Ok(Some(grown.len())));
    assert_eq!(parser.needs(), None);
}

#[test]
fn a_vector_with_room_is_used_again() {
    let (mut parser, mut arguments) = (Parser::new(), Vec::with_capacity(64));
    let place = arguments.as_ptr();
    for _ in 0..10 {
        parser
            .parse(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n", &Limits::default(), &mut arguments)
            .unwrap()
            .unwrap();
        assert_eq!((arguments.len(), arguments.as_ptr()), (3, place));
    }
}
