//! Replies: answers into the bytes that a client receives, in RESP2 or RESP3.
//!
//! Follows the `addReply` family of Redis 7.0 (`networking.c`) byte for byte, RESP2 standing in for
//! what only RESP3 has: a map becomes an array of keys and values, a set or a push an array, a
//! double or verbatim string a bulk string.
//!
//! Invariants: bytes are only appended, except by [`Reply::truncate`] and by the `end` methods,
//! which put a header in front of what was written since [`Reply::begin`]. The elements that a
//! header announces are written by the caller.
//!
//! Bounds: with [`Reply::bound_to`] bytes beyond a bound are not kept. What is there then is no
//! answer; who reads [`Reply::is_over`] takes it back and says so. So it is with bytes for which
//! there is no [`Memory`], where replies take from one.

use std::sync::Arc;

use super::number::format_double;
use super::text::Text;
use ecotone_keyspace::memory::{Memory, SMALL_BYTES};

/// What stands around a bulk string: its header and its end.
const AROUND_BYTES: usize = 32;

/// The version of the protocol that a connection speaks: RESP2 until `HELLO 3`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Version {
    /// Redis' protocol up to 5.0.
    Resp2,
    /// The protocol with maps, sets, doubles, booleans and pushes.
    Resp3,
}

/// A place where a header will stand whose count is not known yet. Given by [`Reply::begin`], used
/// up by an `end` method.
#[derive(Debug)]
#[must_use = "without an end method, what follows has no header"]
pub struct Mark(usize);

/// The bytes of one or more answers, in order.
#[derive(Debug)]
pub struct Reply {
    out: Vec<u8>,
    version: Version,
    max_bytes: usize,
    is_over: bool,
    grant: Option<Grant>,
}

/// Memory that the bytes of replies take beyond [`SMALL_BYTES`].
#[derive(Debug)]
struct Grant {
    memory: Arc<Memory>,
    bytes: usize,
}

impl Grant {
    /// Whether `capacity` bytes may be kept.
    fn covers(&mut self, capacity: usize) -> bool {
        let more = capacity.saturating_sub(SMALL_BYTES).saturating_sub(self.bytes);
        let is_covered = more == 0 || self.memory.take(more);
        if is_covered {
            self.bytes += more;
        }
        is_covered
    }

    fn give_back(&mut self) {
        self.memory.give_back(std::mem::take(&mut self.bytes));
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl Reply {
    /// No answers yet.
    pub fn new(version: Version) -> Self {
        Self { out: Vec::new(), version, max_bytes: usize::MAX, is_over: false, grant: None }
    }

    /// Changes the version of the answers that follow.
    pub fn set_version(&mut self, version: Version) {
        self.version = version;
    }

    /// The version of the answers that follow.
    pub fn version(&self) -> Version {
        self.version
    }

    /// From now on no more than `max_bytes` are kept in all, but for short answers and headers:
    /// what does not fit is dropped.
    pub fn bound_to(&mut self, max_bytes: usize) {
        self.max_bytes = max_bytes;
    }

    /// From now on what is kept takes from `memory`, until [`is_counted`](Self::is_counted).
    pub fn take_from(&mut self, memory: &Arc<Memory>) {
        if self.grant.is_none() {
            self.grant = Some(Grant { memory: memory.clone(), bytes: 0 });
        }
    }

    /// What is kept is counted by whoever has this: it was given back what was taken for it.
    pub fn is_counted(&mut self) {
        if let Some(grant) = &mut self.grant
            && grant.bytes > 0
        {
            grant.give_back();
        }
    }

    /// Bytes that may still be kept.
    pub fn bytes_left(&self) -> usize {
        self.max_bytes.saturating_sub(self.out.len())
    }

    /// Whether half of what may be kept is.
    pub fn is_half_full(&self) -> bool {
        self.out.len() >= self.max_bytes / 2
    }

    /// Whether something was dropped. Long work that only makes the reply longer may end here.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Bytes for which memory is taken.
    pub fn capacity(&self) -> usize {
        self.out.capacity()
    }

    /// All bytes so far.
    pub fn bytes(&self) -> &[u8] {
        &self.out
    }

    /// How many bytes there are so far.
    pub fn len(&self) -> usize {
        self.out.len()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    /// Takes back everything after the first `len` bytes. Marks set after them must not be ended.
    pub fn truncate(&mut self, len: usize) {
        self.out.truncate(len);
        self.is_over = false;
    }

    /// Takes back everything, and keeps the memory.
    pub fn clear(&mut self) {
        self.truncate(0);
    }

    /// Answers that are whole already, of this version.
    pub fn raw(&mut self, answers: &[u8]) {
        self.out.extend_from_slice(answers);
    }

    /// All bytes so far; none remain.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    /// Takes over memory that was [taken](Self::take), without what it holds, where there is none.
    pub fn reuse(&mut self, mut memory: Vec<u8>) {
        if self.out.capacity() == 0 {
            memory.clear();
            self.out = memory;
        }
    }

    /// A status such as `OK`. CR and LF in `text` become spaces.
    pub fn simple(&mut self, text: &str) {
        self.out.push(b'+');
        self.one_line(text.as_bytes());
    }

    /// An error. `text` begins with its code word, as in `ERR syntax error`. CR and LF at its ends
    /// are dropped, others become spaces.
    pub fn error(&mut self, text: impl AsRef<[u8]>) {
        let (mut text, is_end) = (text.as_ref(), |byte: &u8| matches!(byte, b'\r' | b'\n'));
        while text.first().is_some_and(is_end) {
            text = &text[1..];
        }
        while text.last().is_some_and(is_end) {
            text = &text[..text.len() - 1];
        }
        self.out.push(b'-');
        self.one_line(text);
    }

    /// An integer.
    pub fn integer(&mut self, value: i64) {
        self.line(b':', Text::integer(value).as_bytes());
    }

    /// A bulk string of any bytes.
    pub fn bulk(&mut self, bytes: &[u8]) {
        if self.fits(bytes.len()) {
            self.header(b'$', bytes.len());
            self.out.extend_from_slice(bytes);
            self.end_line();
        }
    }

    /// A bulk string of text.
    pub fn bulk_text(&mut self, text: &str) {
        self.bulk(text.as_bytes());
    }

    /// No value, where a bulk string could stand.
    pub fn null(&mut self) {
        self.out.extend_from_slice(self.choose(&b"$-1\r\n"[..], b"_\r\n"));
    }

    /// No value, where an array could stand.
    pub fn null_array(&mut self) {
        self.out.extend_from_slice(self.choose(&b"*-1\r\n"[..], b"_\r\n"));
    }

    /// The header of an array; `elements` answers must follow.
    pub fn array(&mut self, elements: usize) {
        self.header(b'*', elements);
    }

    /// The header of a map; `pairs` keys must follow, each with its value behind it.
    pub fn map(&mut self, pairs: usize) {
        let (kind, count) = self.map_header(pairs);
        self.header(kind, count);
    }

    /// The header of a set; `elements` answers must follow.
    pub fn set(&mut self, elements: usize) {
        self.header(self.choose(b'*', b'~'), elements);
    }

    /// The header of a message that was not asked for; `elements` answers must follow.
    pub fn push(&mut self, elements: usize) {
        self.header(self.choose(b'*', b'>'), elements);
    }

    /// A floating-point number with 17 significant digits; see [`format_double`].
    pub fn double(&mut self, value: f64) {
        let text = format_double(value);
        match self.version {
            Version::Resp2 => self.bulk(text.as_bytes()),
            Version::Resp3 => self.line(b',', text.as_bytes()),
        }
    }

    /// Text of a format with a name of three letters: `txt` or `mkd`.
    pub fn verbatim(&mut self, format: [u8; 3], text: &str) {
        match self.version {
            Version::Resp2 => self.bulk_text(text),
            Version::Resp3 => {
                if self.fits(text.len()) {
                    self.header(b'=', text.len() + 4);
                    self.out.extend_from_slice(&format);
                    self.out.push(b':');
                    self.out.extend_from_slice(text.as_bytes());
                    self.end_line();
                }
            }
        }
    }

    /// Remembers where a header has to stand whose count is known later. Marks are ended in the
    /// reverse order of their beginnings.
    pub fn begin(&self) -> Mark {
        Mark(self.out.len())
    }

    /// Makes the `elements` answers since `mark` an array. Moves them, so its time grows with their
    /// bytes.
    pub fn end_array(&mut self, mark: Mark, elements: usize) {
        self.insert_header(mark, b'*', elements);
    }

    /// Makes the `pairs` keys and values since `mark` a map.
    pub fn end_map(&mut self, mark: Mark, pairs: usize) {
        let (kind, count) = self.map_header(pairs);
        self.insert_header(mark, kind, count);
    }

    /// Makes the `elements` answers since `mark` a set.
    pub fn end_set(&mut self, mark: Mark, elements: usize) {
        self.insert_header(mark, self.choose(b'*', b'~'), elements);
    }

    fn choose<T>(&self, resp2: T, resp3: T) -> T {
        match self.version {
            Version::Resp2 => resp2,
            Version::Resp3 => resp3,
        }
    }

    fn map_header(&self, pairs: usize) -> (u8, usize) {
        match self.version {
            Version::Resp2 => (b'*', 2 * pairs),
            Version::Resp3 => (b'%', pairs),
        }
    }

    fn header(&mut self, kind: u8, count: usize) {
        // A count of things in memory is far below i64::MAX. It is kept whatever the bound: what
        // follows would be taken for something else.
        self.out.push(kind);
        self.out.extend_from_slice(Text::integer(count as i64).as_bytes());
        self.end_line();
    }

    fn insert_header(&mut self, Mark(start): Mark, kind: u8, count: usize) {
        let before = self.out.len();
        self.header(kind, count);
        let header_bytes = self.out.len() - before;
        if let Some(behind) = self.out.get_mut(start..) {
            behind.rotate_right(header_bytes);
        }
    }

    /// Whether `bytes` more may be kept.
    #[inline]
    fn fits(&mut self, bytes: usize) -> bool {
        let length = self.out.len().saturating_add(bytes);
        self.is_over |= length > self.max_bytes;
        if length.saturating_add(AROUND_BYTES) > self.out.capacity() && !self.is_over {
            self.is_over = !self.grow_to(length + AROUND_BYTES);
        }
        !self.is_over
    }

    /// Whether there is memory for `length` bytes; if so, takes it, and more where it is there: to
    /// grow often is slow.
    #[cold]
    fn grow_to(&mut self, length: usize) -> bool {
        let Some(grant) = &mut self.grant else { return true };
        let capacity =
            [length.max(2 * self.out.capacity()), length].into_iter().find(|capacity| grant.covers(*capacity));
        if let Some(capacity) = capacity {
            self.out.reserve_exact(capacity - self.out.len());
        }
        capacity.is_some()
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        if self.fits(text.len()) {
            self.out.push(kind);
            self.out.extend_from_slice(text);
            self.end_line();
        }
    }

    fn one_line(&mut self, text: &[u8]) {
        self.out.extend(text.iter().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte }));
        self.end_line();
    }

    fn end_line(&mut self) {
        self.out.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn replies_that_are_made_at_the_same_time_share_what_there_is() {
        let memory = Arc::new(Memory::default());
        memory.limit_to(1 << 20);
        let new = || {
            let mut reply = Reply::new(Version::Resp2);
            reply.take_from(&memory);
            reply
        };
        let (mut one, mut other) = (new(), new());
        for _ in 0..7 {
            one.bulk(&[b'x'; 100_000]);
        }
        assert!(!one.is_over());
        // The usual kind always fits, and no more.
        other.bulk(&[b'y'; 100_000]);
        assert!(!other.is_over());
        for _ in 0..5 {
            other.bulk(&[b'y'; 100_000]);
        }
        assert!(other.is_over() && other.len() < 600_000);
        other.truncate(0);
        drop(one);
        for _ in 0..7 {
            other.bulk(&[b'y'; 100_000]);
        }
        assert!(!other.is_over() && memory.taken_bytes().load(Ordering::Relaxed) >= 700_000 - SMALL_BYTES);
        // Whoever has it counts it from here on.
        other.is_counted();
        assert_eq!(memory.taken_bytes().load(Ordering::Relaxed), 0);
    }
}
