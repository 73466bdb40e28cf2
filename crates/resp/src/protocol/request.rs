//! Requests: the bytes that a client sends, into arguments.
//!
//! Follows `processInlineBuffer` and `processMultibulkBuffer` of Redis 7.0 (`networking.c`) with
//! the same words for every error, and with these differences:
//! - The count of arguments is bounded by [`Limits::arguments`], where Redis takes any count up to
//!   2³¹ − 1. The refusal says so.
//! - A line over [`Limits::inline_bytes`] is always refused. Redis takes it when its end happens to
//!   come in the same read.
//!
//! As in Redis, a NUL byte in a line hides the end of that line, and the two bytes after a bulk
//! string's bytes are not looked at.
//!
//! Invariants: the result does not depend on how the bytes were cut into reads. Memory grows with
//! the bytes that came, never with the lengths that a client only claims. The caller bounds the
//! sum: it stops to read when its buffer is as large as it allows.
//!
//! Failure modes: after an error the bytes that follow have no meaning, so the connection must be
//! told and closed.

use std::fmt;
use std::ops::Range;

use super::number::parse_integer;

/// How many bytes beyond those that came [`Parser::needs`] asks for at most, in bytes: enough that
/// a large value is read in few steps, small enough that clients which claim large values and send
/// nothing cost little.
pub const RESERVE_AHEAD_BYTES: usize = 1 << 20;

/// For how many arguments space is made when their count is known, before they came.
const ARGUMENTS_AHEAD: usize = 64;

/// Arguments for which space is kept between two requests.
const KEPT_ARGUMENTS: usize = ARGUMENTS_AHEAD;

/// What Redis takes no count of arguments above for a number.
const MAX_COUNT: usize = i32::MAX as usize;

/// How much a client may send in one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// The most arguments of a request, the command's name included.
    pub arguments: usize,
    /// The most bytes of one argument (`proto-max-bulk-len` in Redis).
    pub bulk_bytes: usize,
    /// The most bytes of one line: an inline request, or the count or length before arguments
    /// (`PROTO_INLINE_MAX_SIZE` in Redis).
    pub inline_bytes: usize,
}

impl Limits {
    /// 1 048 576 arguments, which no setting changes, of up to 512 MiB, lines of up to 64 KiB.
    pub const DEFAULT: Self = Self { arguments: 1_048_576, bulk_bytes: 512 << 20, inline_bytes: 64 << 10 };

    /// For clients that still have to give a password: 10 arguments of up to 16 384 bytes, as in
    /// Redis. Requests over these limits are refused as unauthenticated.
    pub const UNAUTHENTICATED: Self = Self { arguments: 10, bulk_bytes: 16_384, inline_bytes: 64 << 10 };

    fn check_arguments(&self, count: usize) -> Result<(), ProtocolError> {
        if count <= self.arguments {
            Ok(())
        } else if count > MAX_COUNT {
            Err(ProtocolError::InvalidArguments)
        } else if *self == Self::UNAUTHENTICATED {
            Err(ProtocolError::UnauthenticatedArguments)
        } else {
            Err(ProtocolError::TooManyArguments { count, most: self.arguments })
        }
    }

    fn check_bulk(&self, bytes: usize) -> Result<(), ProtocolError> {
        if bytes <= self.bulk_bytes {
            Ok(())
        } else if *self == Self::UNAUTHENTICATED && bytes <= Self::DEFAULT.bulk_bytes {
            Err(ProtocolError::UnauthenticatedBulk)
        } else {
            Err(ProtocolError::ExcessiveBulk)
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Why bytes are no request. [`reply`](Self::reply) gives Redis' text where Redis refuses them as
/// well. Tell the client, then close the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProtocolError {
    /// The count of arguments is no integer, or more than Redis takes.
    InvalidArguments,
    /// More arguments than the limit, and no more than Redis takes.
    TooManyArguments {
        /// So many were announced.
        count: usize,
        /// The limit.
        most: usize,
    },
    /// The length of an argument is no integer, or negative.
    InvalidBulk,
    /// An argument is longer than the limit. Redis tells it as the one before.
    ExcessiveBulk,
    /// An argument begins with this byte and not with `$`.
    ExpectedBulk(u8),
    /// The line with the count of arguments does not end.
    LongArguments,
    /// The line with the length of an argument does not end.
    LongBulk,
    /// An inline request does not end.
    LongInline,
    /// A quote in an inline request is not closed, or something follows the closing one.
    UnbalancedQuotes,
    /// More arguments than a client may send before it gave a password.
    UnauthenticatedArguments,
    /// A longer argument than a client may send before it gave a password.
    UnauthenticatedBulk,
}

impl ProtocolError {
    /// What the client is told, with the code word `ERR`: with the byte that it sent as it is.
    pub fn reply(&self) -> Vec<u8> {
        match self {
            Self::ExpectedBulk(got) => [&b"ERR Protocol error: expected '$', got '"[..], &[*got], b"'"].concat(),
            error => format!("ERR {error}").into_bytes(),
        }
    }
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Protocol error: ")?;
        f.write_str(match self {
            Self::ExpectedBulk(got) => return write!(f, "expected '$', got '{}'", char::from(*got)),
            Self::TooManyArguments { count, most } => {
                return write!(f, "the request has {count} arguments, the most is {most}, which no setting changes");
            }
            Self::InvalidArguments => "invalid multibulk length",
            Self::InvalidBulk | Self::ExcessiveBulk => "invalid bulk length",
            Self::LongArguments => "too big mbulk count string",
            Self::LongBulk => "too big bulk count string",
            Self::LongInline => "too big inline request",
            Self::UnbalancedQuotes => "unbalanced quotes in request",
            Self::UnauthenticatedArguments => "unauthenticated multibulk length",
            Self::UnauthenticatedBulk => "unauthenticated bulk length",
        })
    }
}

impl std::error::Error for ProtocolError {}

/// What comes next in a request.
#[derive(Clone, Copy, Default, Debug)]
enum Step {
    /// The first line.
    #[default]
    Begin,
    /// The length of the next of `remaining` arguments.
    Length { remaining: usize },
    /// The bytes of the next of `remaining` arguments.
    Bytes { remaining: usize, length: usize },
}

/// Parses the requests of one connection, one after the other. It keeps where it stopped in an
/// incomplete one.
///
/// ```
/// use ecotone_resp::protocol::request::{Limits, Parser};
///
/// let buffer = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\nPING\r\n";
/// let (mut parser, mut arguments) = (Parser::new(), Vec::new());
/// let consumed = parser.parse(buffer, &Limits::default(), &mut arguments).unwrap().unwrap();
/// let source = parser.source(buffer);
/// assert_eq!(&source[arguments[0].clone()], b"GET");
/// assert_eq!(&buffer[consumed..], b"PING\r\n");
/// ```
#[derive(Default, Debug)]
pub struct Parser {
    step: Step,
    /// Where the step begins in the buffer.
    position: usize,
    /// Up to where the line at `position` was searched for its end.
    searched: usize,
    /// The arguments of an incomplete request.
    found: Vec<Range<usize>>,
    /// The arguments of the last inline request with quotes, one after the other.
    unescaped: Vec<u8>,
    /// Whether the ranges of the last request lie in `unescaped`.
    is_unescaped: bool,
    needs: Option<usize>,
    /// Of the arguments that were found since a request began.
    argument_bytes: usize,
}

impl Parser {
    /// A parser at the beginning of a connection.
    pub fn new() -> Self {
        Self::default()
    }

    /// Parses the request at the beginning of `buffer`.
    ///
    /// - `Some(consumed)`: a whole request. `arguments` are ranges within [`source`](Self::source),
    ///   and the next request begins at `buffer[consumed..]`. An empty request (an empty line,
    ///   `*0`, `*-1`) has no arguments; skip it without a reply.
    /// - `None`: more bytes are needed; `arguments` is empty. Call again with the same bytes and
    ///   more behind them.
    ///
    /// Arrays of bulk strings allocate nothing when `arguments` has capacity.
    pub fn parse(
        &mut self,
        buffer: &[u8],
        limits: &Limits,
        arguments: &mut Vec<Range<usize>>,
    ) -> Result<Option<usize>, ProtocolError> {
        arguments.clear();
        if !self.found.is_empty() {
            std::mem::swap(&mut self.found, arguments);
        }
        self.is_unescaped = false;
        self.needs = None;
        let outcome = self.advance(buffer, limits, arguments);
        match outcome {
            Ok(Some(_)) => self.restart(),
            Ok(None) => {
                if !arguments.is_empty() {
                    std::mem::swap(&mut self.found, arguments);
                }
            }
            Err(_) => {
                arguments.clear();
                self.restart();
            }
        }
        outcome
    }

    /// The bytes that the ranges of the last request point into: the `buffer` that was parsed, or
    /// the parser's own bytes if the request was an inline one with quotes. Valid until the next
    /// call of [`parse`](Self::parse).
    pub fn source<'a>(&'a self, buffer: &'a [u8]) -> &'a [u8] {
        if self.is_unescaped { &self.unescaped } else { buffer }
    }

    /// How many bytes the buffer will at least hold in all before the incomplete request is whole,
    /// if known: at most [`RESERVE_AHEAD_BYTES`] more than were there at the last call.
    pub fn needs(&self) -> Option<usize> {
        self.needs
    }

    /// Bytes of the arguments of the last request, or of the incomplete one as far as they came.
    pub fn argument_bytes(&self) -> usize {
        self.argument_bytes
    }

    /// Bytes that it keeps of a request that has not come whole: where its arguments are, which are
    /// as much again once it is carried out.
    pub fn memory_bytes(&self) -> usize {
        2 * range_bytes(&self.found) + self.unescaped.capacity()
    }

    /// The requests that have come are carried out: gives back the memory of those with many
    /// arguments, also that of `arguments`.
    pub fn forget(&mut self, arguments: &mut Vec<Range<usize>>) {
        for ranges in [&mut self.found, arguments] {
            if ranges.capacity() > KEPT_ARGUMENTS {
                *ranges = Vec::new();
            }
        }
    }

    fn restart(&mut self) {
        self.go(Step::Begin, 0);
    }

    fn go(&mut self, step: Step, position: usize) {
        self.step = step;
        self.position = position;
        self.searched = position;
    }

    fn advance(
        &mut self,
        buffer: &[u8],
        limits: &Limits,
        arguments: &mut Vec<Range<usize>>,
    ) -> Result<Option<usize>, ProtocolError> {
        loop {
            match self.step {
                Step::Begin => {
                    self.argument_bytes = 0;
                    match buffer.first() {
                        None => return Ok(None),
                        Some(b'*') => {}
                        Some(_) => return self.inline(buffer, limits, arguments),
                    }
                    let Some(end) = self.length_end(buffer, limits, ProtocolError::LongArguments)? else {
                        return Ok(None);
                    };
                    let count = parse_integer(&buffer[1..end]).ok_or(ProtocolError::InvalidArguments)?;
                    let Ok(remaining @ 1..) = usize::try_from(count) else {
                        return Ok(Some(end + 2));
                    };
                    limits.check_arguments(remaining)?;
                    arguments.reserve(remaining.min(ARGUMENTS_AHEAD));
                    self.go(Step::Length { remaining }, end + 2);
                }
                Step::Length { remaining } => {
                    let Some(end) = self.length_end(buffer, limits, ProtocolError::LongBulk)? else {
                        return Ok(None);
                    };
                    let first = buffer[self.position];
                    if first != b'$' {
                        return Err(ProtocolError::ExpectedBulk(first));
                    }
                    let length = parse_integer(&buffer[self.position + 1..end]).ok_or(ProtocolError::InvalidBulk)?;
                    let length = usize::try_from(length).map_err(|_| ProtocolError::InvalidBulk)?;
                    limits.check_bulk(length)?;
                    self.go(Step::Bytes { remaining, length }, end + 2);
                }
                Step::Bytes { remaining, length } => {
                    let end = self.position + length;
                    if buffer.len() < end + 2 {
                        self.needs = Some((end + 2).min(buffer.len() + RESERVE_AHEAD_BYTES));
                        return Ok(None);
                    }
                    arguments.push(self.position..end);
                    self.argument_bytes += length;
                    if remaining == 1 {
                        return Ok(Some(end + 2));
                    }
                    self.go(Step::Length { remaining: remaining - 1 }, end + 2);
                }
            }
        }
    }

    /// Where the line at the position ends, in front of its CR LF, if both came.
    fn length_end(
        &mut self,
        buffer: &[u8],
        limits: &Limits,
        long: ProtocolError,
    ) -> Result<Option<usize>, ProtocolError> {
        let end = self.line_end(buffer, b'\r', limits, long)?;
        Ok(end.filter(|end| end + 2 <= buffer.len()))
    }

    /// Where `last` first stands in the line at the position, if it came. As Redis searches with
    /// `strchr`, a NUL stops the search for good.
    fn line_end(
        &mut self,
        buffer: &[u8],
        last: u8,
        limits: &Limits,
        long: ProtocolError,
    ) -> Result<Option<usize>, ProtocolError> {
        let longest = self.position.saturating_add(limits.inline_bytes);
        let searched = buffer.len().min(longest.saturating_add(1));
        let rest = buffer.get(self.searched..searched).unwrap_or_default();
        match rest.iter().position(|&byte| byte == last || byte == 0) {
            Some(offset) => self.searched += offset,
            None => self.searched += rest.len(),
        }
        if buffer.get(self.searched) == Some(&last) && self.searched <= longest {
            Ok(Some(self.searched))
        } else if buffer.len() > longest {
            Err(long)
        } else {
            Ok(None)
        }
    }

    fn inline(
        &mut self,
        buffer: &[u8],
        limits: &Limits,
        arguments: &mut Vec<Range<usize>>,
    ) -> Result<Option<usize>, ProtocolError> {
        let Some(end) = self.line_end(buffer, b'\n', limits, ProtocolError::LongInline)? else {
            return Ok(None);
        };
        let line = &buffer[..end];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.iter().any(|byte| matches!(byte, b'"' | b'\'')) {
            self.is_unescaped = true;
            self.unescaped.clear();
            split_quoted(line, &mut self.unescaped, arguments).ok_or(ProtocolError::UnbalancedQuotes)?;
        } else {
            split_plain(line, arguments);
        }
        self.argument_bytes = arguments.iter().map(ExactSizeIterator::len).sum();
        Ok(Some(end + 1))
    }
}

/// What `ranges` takes beyond what may be kept.
pub fn range_bytes(ranges: &Vec<Range<usize>>) -> usize {
    ranges.capacity().saturating_sub(KEPT_ARGUMENTS) * size_of::<Range<usize>>()
}

/// What separates arguments (`isspace` in the C locale).
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

/// What ends an argument outside of quotes: not all of [`is_space`], as in Redis.
fn ends_argument(byte: u8) -> bool {
    matches!(byte, b' ' | b'\n' | b'\r' | b'\t')
}

fn split_plain(line: &[u8], arguments: &mut Vec<Range<usize>>) {
    let mut at = 0;
    while let Some(skipped) = line[at..].iter().position(|&byte| !is_space(byte)) {
        let start = at + skipped;
        at = line[start..].iter().position(|&byte| ends_argument(byte)).map_or(line.len(), |length| start + length);
        arguments.push(start..at);
    }
}

/// `sdssplitargs` of Redis. None: quotes are unbalanced.
fn split_quoted(line: &[u8], unescaped: &mut Vec<u8>, arguments: &mut Vec<Range<usize>>) -> Option<()> {
    let mut rest = line;
    loop {
        while let [first, tail @ ..] = rest
            && is_space(*first)
        {
            rest = tail;
        }
        if rest.is_empty() {
            return Some(());
        }
        let start = unescaped.len();
        loop {
            rest = match rest {
                [] => break,
                [b'"', tail @ ..] => {
                    rest = double_quoted(tail, unescaped)?;
                    break;
                }
                [b'\'', tail @ ..] => {
                    rest = single_quoted(tail, unescaped)?;
                    break;
                }
                [byte, tail @ ..] if ends_argument(*byte) => {
                    rest = tail;
                    break;
                }
                [byte, tail @ ..] => {
                    unescaped.push(*byte);
                    tail
                }
            };
        }
        arguments.push(start..unescaped.len());
    }
}

/// Takes the bytes behind an opening double quote up to the closing one, and gives what follows
/// that.
fn double_quoted<'a>(mut rest: &'a [u8], unescaped: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        rest = match rest {
            [] => return None,
            [b'\\', b'x', high, low, tail @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                unescaped.push(hexadecimal(*high) << 4 | hexadecimal(*low));
                tail
            }
            [b'\\', escaped, tail @ ..] => {
                unescaped.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => *other,
                });
                tail
            }
            [b'"', tail @ ..] => return after_quote(tail),
            [byte, tail @ ..] => {
                unescaped.push(*byte);
                tail
            }
        };
    }
}

/// As [`double_quoted`]; only the quote itself can be escaped.
fn single_quoted<'a>(mut rest: &'a [u8], unescaped: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        rest = match rest {
            [] => return None,
            [b'\\', b'\'', tail @ ..] => {
                unescaped.push(b'\'');
                tail
            }
            [b'\'', tail @ ..] => return after_quote(tail),
            [byte, tail @ ..] => {
                unescaped.push(*byte);
                tail
            }
        };
    }
}

fn after_quote(rest: &[u8]) -> Option<&[u8]> {
    rest.first().is_none_or(|&byte| is_space(byte)).then_some(rest)
}

fn hexadecimal(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}
