//! Replies of the Redis protocol (RESP2), as a client reads them.
//!
//! Invariant: nothing a server sends makes this module allocate more than it has received, or read
//! beyond the bounds.

/// The longest line of a reply, in bytes: an error or a status. Redis' own longest are below 1 KiB.
const MAX_LINE_BYTES: usize = 64 << 10;
/// How deep arrays may lie in one another.
const MAX_DEPTH: usize = 4;

/// The largest reply that is read.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// All of it.
    pub bytes: usize,
    /// Of an array.
    pub elements: usize,
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// `+OK`
    Status(String),
    /// `-ERR ...`
    Error(String),
    /// `:1`
    Integer(i64),
    /// A value; none: there is no such key.
    Bulk(Option<Vec<u8>>),
    /// Several replies; none: the null array.
    Array(Option<Vec<Reply>>),
}

/// How much of a reply has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrived {
    /// All of it: so many bytes.
    Whole(usize),
    /// Not all: the input must grow to at least so many bytes.
    Needs(usize),
}

/// Looks how much of a reply the begin of `input` holds, without decoding it.
///
/// # Errors
///
/// What is wrong with the bytes, for a message.
pub(super) fn arrived(input: &[u8], bounds: Bounds) -> Result<Arrived, String> {
    let mut at = 0;
    match pass(input, &mut at, bounds, 0) {
        Ok(()) if at <= bounds.bytes => Ok(Arrived::Whole(at)),
        Err(Stop::Needs(bytes)) if bytes <= bounds.bytes => Ok(Arrived::Needs(bytes)),
        Err(Stop::Wrong(what)) => Err(what),
        _ => Err(format!("a reply of more than {} bytes", bounds.bytes)),
    }
}

/// Decodes the reply at the begin of `input`; none unless [`arrived`] said that it is whole.
pub(super) fn decode(input: &[u8], bounds: Bounds) -> Option<Reply> {
    read(input, &mut 0, bounds)
}

enum Stop {
    Needs(usize),
    Wrong(String),
}

/// Goes over one reply.
fn pass(input: &[u8], at: &mut usize, bounds: Bounds, depth: usize) -> Result<(), Stop> {
    let begin = *at;
    let (kind, text) = line(input, at)?;
    match kind {
        b'+' | b'-' => Ok(()),
        b':' => match number(text) {
            Some(_) => Ok(()),
            None => Err(wrong("an integer that is none", text)),
        },
        b'$' => {
            let Some(length) = length(text, bounds.bytes)? else { return Ok(()) };
            let end = *at + length;
            match input.get(end..end + 2) {
                None => Err(Stop::Needs(end + 2)),
                Some(b"\r\n") => {
                    *at = end + 2;
                    Ok(())
                }
                Some(other) => Err(wrong("a value that does not end where it says", other)),
            }
        }
        b'*' => {
            let Some(elements) = length(text, bounds.elements)? else { return Ok(()) };
            if depth == MAX_DEPTH {
                return Err(Stop::Wrong(format!("arrays more than {MAX_DEPTH} deep")));
            }
            (0..elements).try_for_each(|_| pass(input, at, bounds, depth + 1))
        }
        _ => Err(wrong("a reply of an unknown kind", input[begin..*at].trim_ascii_end())),
    }
}

fn read(input: &[u8], at: &mut usize, bounds: Bounds) -> Option<Reply> {
    let (kind, text) = line(input, at).ok()?;
    let shown = || String::from_utf8_lossy(text).into_owned();
    Some(match kind {
        b'+' => Reply::Status(shown()),
        b'-' => Reply::Error(shown()),
        b':' => Reply::Integer(number(text)?),
        b'$' => match length(text, bounds.bytes).ok()? {
            None => Reply::Bulk(None),
            Some(length) => {
                let value = input.get(*at..*at + length)?.to_vec();
                *at += length + 2;
                Reply::Bulk(Some(value))
            }
        },
        b'*' => match length(text, bounds.elements).ok()? {
            None => Reply::Array(None),
            // Collected as they come: what the length promises is not allocated.
            Some(elements) => {
                Reply::Array(Some((0..elements).map(|_| read(input, at, bounds)).collect::<Option<_>>()?))
            }
        },
        _ => return None,
    })
}

/// The next line: its first byte, and the rest without its end.
fn line<'a>(input: &'a [u8], at: &mut usize) -> Result<(u8, &'a [u8]), Stop> {
    let rest = &input[*at..];
    let Some(end) = rest.iter().take(MAX_LINE_BYTES).position(|&byte| byte == b'\n') else {
        return Err(match rest.len() {
            longer if longer >= MAX_LINE_BYTES => Stop::Wrong(format!("a line of more than {MAX_LINE_BYTES} bytes")),
            // What is no reply at all is not waited for.
            1.. if !b"+-:$*".contains(&rest[0]) => wrong("a reply of an unknown kind", rest),
            _ => Stop::Needs(input.len() + 1),
        });
    };
    match rest[..end].strip_suffix(b"\r") {
        Some([kind, text @ ..]) => {
            *at += end + 1;
            Ok((*kind, text))
        }
        _ => Err(wrong("a line that does not end in CR LF", &rest[..end])),
    }
}

/// A length; none: null.
fn length(text: &[u8], most: usize) -> Result<Option<usize>, Stop> {
    match number(text) {
        Some(-1) => Ok(None),
        Some(length) if length >= 0 && length as u64 <= most as u64 => Ok(Some(length as usize)),
        _ => Err(wrong(&format!("a length that is not between -1 and {most}"), text)),
    }
}

fn number(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn wrong(what: &str, bytes: &[u8]) -> Stop {
    /// How much of what is wrong is shown.
    const SHOWN_BYTES: usize = 32;
    Stop::Wrong(format!("{what}: \"{}\"", bytes[..bytes.len().min(SHOWN_BYTES)].escape_ascii()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { bytes: 64 << 20, elements: 1 << 20 };

    fn arrived(input: &[u8]) -> Result<Arrived, String> {
        super::arrived(input, BOUNDS)
    }

    fn decode(input: &[u8]) -> Option<Reply> {
        super::decode(input, BOUNDS)
    }

    fn decoded(bytes: &[u8]) -> Reply {
        assert_eq!(arrived(bytes), Ok(Arrived::Whole(bytes.len())), "{}", bytes.escape_ascii());
        decode(bytes).unwrap()
    }

    #[test]
    fn every_kind_of_reply_is_read() {
        let bulk = |bytes: &[u8]| Reply::Bulk(Some(bytes.to_vec()));
        assert_eq!(decoded(b"+OK\r\n"), Reply::Status("OK".into()));
        assert_eq!(decoded(b"-ERR no\r\n"), Reply::Error("ERR no".into()));
        assert_eq!(decoded(b":-7\r\n"), Reply::Integer(-7));
        assert_eq!(decoded(b"$-1\r\n"), Reply::Bulk(None));
        assert_eq!(decoded(b"$0\r\n\r\n"), bulk(b""));
        assert_eq!(decoded(b"$4\r\n\r\n\0a\r\n"), bulk(b"\r\n\0a"));
        assert_eq!(decoded(b"*-1\r\n"), Reply::Array(None));
        let inner = Reply::Array(Some(vec![Reply::Integer(1)]));
        assert_eq!(
            decoded(b"*3\r\n$1\r\na\r\n$-1\r\n*1\r\n:1\r\n"),
            Reply::Array(Some(vec![bulk(b"a"), Reply::Bulk(None), inner]))
        );
    }

    #[test]
    fn a_reply_that_comes_in_parts_is_waited_for() {
        let whole = b"*2\r\n$5\r\nhello\r\n*1\r\n+OK\r\n";
        for cut in 0..whole.len() {
            match arrived(&whole[..cut]) {
                Ok(Arrived::Needs(bytes)) => assert!(bytes > cut && bytes <= whole.len(), "{cut}: {bytes}"),
                other => panic!("{cut}: {other:?}"),
            }
        }
        // What follows belongs to the next reply.
        assert_eq!(arrived(b":1\r\n:2\r\n"), Ok(Arrived::Whole(4)));
    }

    #[test]
    fn what_is_no_reply_is_refused_and_promises_are_not_believed() {
        for (bytes, says) in [
            (&b"HTTP/1.1 400 Bad Request\r\n"[..], "unknown kind: \"HTTP/1.1 400 Bad Request\""),
            (b"\x16\x03\x01", "unknown kind"),
            (b"%1\r\n", "unknown kind"),
            (b"+OK\n", "CR LF"),
            (b"\r\n", "CR LF"),
            (b":x\r\n", "an integer that is none"),
            (b":99999999999999999999\r\n", "an integer that is none"),
            (b"$-2\r\n", "between -1 and"),
            (b"$99999999999\r\n", "between -1 and 67108864"),
            (b"$67108864\r\n", "more than 67108864 bytes"),
            (b"$18446744073709551616\r\n", "between -1 and"),
            (b"*1048577\r\n", "between -1 and 1048576"),
            (b"$3\r\nabcde", "does not end where it says: \"de\""),
            (b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n", "more than 4 deep"),
        ] {
            let refusal = arrived(bytes).expect_err(&bytes.escape_ascii().to_string());
            assert!(refusal.contains(says), "{refusal}");
        }
        assert!(arrived(&[b'+'; MAX_LINE_BYTES]).unwrap_err().contains("a line of more than"));
        // A million elements that never come cost nothing.
        assert_eq!(arrived(b"*1048576\r\n"), Ok(Arrived::Needs(11)));
        assert_eq!(decode(b"*1048576\r\n"), None);
        // Who expects no arrays waits for none.
        let small = Bounds { bytes: 16, elements: 0 };
        assert_eq!(super::arrived(b"$10\r\n", Bounds { bytes: 17, elements: 0 }), Ok(Arrived::Needs(17)));
        for (bytes, says) in
            [(&b"*1\r\n"[..], "between -1 and 0"), (b"$17\r\n", "and 16"), (b"$10\r\n", "than 16 bytes")]
        {
            assert!(super::arrived(bytes, small).unwrap_err().contains(says));
        }
        // Many short ones are no less than a long one.
        let whole = b"*2\r\n+four\r\n+five\r\n";
        for cut in 16..=whole.len() {
            assert!(super::arrived(&whole[..cut], Bounds { bytes: 16, elements: 2 }).is_err(), "{cut}");
        }
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let mut random = crate::workload::Random::new(7, 0);
        let alphabet = b"+-:$*0123456789\r\n\0a";
        for _ in 0..200_000 {
            let length = random.below(24) as usize;
            let bytes: Vec<u8> = (0..length).map(|_| alphabet[random.below(alphabet.len() as u64) as usize]).collect();
            if let Ok(Arrived::Whole(length)) = arrived(&bytes) {
                assert!(length <= bytes.len() && decode(&bytes).is_some(), "{}", bytes.escape_ascii());
            } else {
                let _ = decode(&bytes);
            }
        }
    }
}
