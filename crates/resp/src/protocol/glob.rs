//! Patterns of `KEYS`, `SCAN`, `CONFIG GET` and their like.
//!
//! Follows `stringmatchlen` of Redis 7.0 (`util.c`), case-sensitive, with its ways at the edges: a
//! set without `]` ends with the pattern, a backslash at the end stands for itself, a range's ends
//! may be in either order and are compared as signed bytes. Different on purpose: `*` alone also
//! matches nothing at all, as `KEYS *` and `SCAN` do in Redis, which do not ask `stringmatchlen`.
//!
//! A pattern is read once, into elements that each match one byte, and stars. One with more
//! elements than the longest text has bytes matches nothing, however long it is, and no more of it
//! is kept.
//!
//! Time: to read it, its length; to match, at most the product of its elements and the text's
//! bytes. Redis' recursion is no faster. Who matches bounds the length of texts, or what it matches
//! at a time.

/// What matches one byte, or a star.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Element {
    /// Any bytes, also none.
    Star,
    /// Any byte.
    Any,
    /// This one.
    Byte(u8),
    /// One of the set with this number.
    OneOf(u32),
}

/// A bit for each byte.
type Set = [u64; 4];

/// A pattern: `*` any bytes, `?` any one, `[a-z]` one of a set, `[^a-z]` one not of it, `\\x` x
/// itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    elements: Vec<Element>,
    sets: Vec<Set>,
    /// Bytes of the shortest text that it matches, which has one for each element.
    min_bytes: usize,
    matches_nothing_at_all: bool,
    is_vain: bool,
}

impl Pattern {
    /// For texts of at most `longest` bytes.
    pub fn new(pattern: &[u8], longest: usize) -> Self {
        Self::read(pattern, longest, |byte| byte)
    }

    /// The same, with its letters in lower case.
    pub fn lower(pattern: &[u8], longest: usize) -> Self {
        Self::read(pattern, longest, |byte| byte.to_ascii_lowercase())
    }

    fn read(pattern: &[u8], longest: usize, case: impl Fn(u8) -> u8) -> Self {
        let matches_nothing_at_all = matches!(pattern, b"" | b"*");
        let mut read =
            Self { elements: Vec::new(), sets: Vec::new(), min_bytes: 0, matches_nothing_at_all, is_vain: false };
        let mut rest = pattern;
        while !rest.is_empty() {
            let element;
            (element, rest) = match rest {
                [b'*', tail @ ..] => (Element::Star, tail),
                [b'?', tail @ ..] => (Element::Any, tail),
                [b'[', b'^', tail @ ..] => read.set(tail, true, &case),
                [b'[', tail @ ..] => read.set(tail, false, &case),
                [b'\\', literal, tail @ ..] | [literal, tail @ ..] => (Element::Byte(case(*literal)), tail),
                [] => break,
            };
            match element {
                Element::Star if read.elements.last() == Some(&Element::Star) => continue,
                Element::Star => {}
                _ if read.min_bytes == longest => {
                    // What was kept is of no use.
                    return Self { elements: Vec::new(), sets: Vec::new(), is_vain: true, ..read };
                }
                _ => read.min_bytes += 1,
            }
            read.elements.push(element);
        }
        read
    }

    /// The set whose inside begins here, and the pattern behind it.
    fn set<'p>(&mut self, mut rest: &'p [u8], is_other: bool, case: &impl Fn(u8) -> u8) -> (Element, &'p [u8]) {
        let mut set: Set = [0; 4];
        let mut add = |byte: u8| set[usize::from(byte >> 6)] |= 1 << (byte & 63);
        loop {
            rest = match rest {
                [] => break,
                [b'\\', literal, tail @ ..] => {
                    add(case(*literal));
                    tail
                }
                [b']', tail @ ..] => {
                    rest = tail;
                    break;
                }
                [first, b'-', last, tail @ ..] => {
                    // C's char is signed on x86.
                    let (first, last) = (case(*first).cast_signed(), case(*last).cast_signed());
                    (first.min(last)..=first.max(last)).for_each(|byte| add(byte.cast_unsigned()));
                    tail
                }
                [literal, tail @ ..] => {
                    add(case(*literal));
                    tail
                }
            };
        }
        if is_other {
            set = set.map(|bits| !bits);
        }
        // There are no more sets than elements, which are no more than the longest text has bytes.
        let number = self.sets.len() as u32;
        self.sets.push(set);
        (Element::OneOf(number), rest)
    }

    /// Steps that it takes at most to match a byte.
    pub fn steps(&self) -> usize {
        self.elements.len()
    }

    /// What it has in memory.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&self.elements[..]) + size_of_val(&self.sets[..])
    }

    /// Whether it matches `text` as a whole.
    pub fn matches(&self, text: &[u8]) -> bool {
        if text.is_empty() {
            return self.matches_nothing_at_all;
        }
        if self.is_vain || text.len() < self.min_bytes {
            return false;
        }
        let (mut elements, mut text) = (&self.elements[..], text);
        // Behind the last star, and where the text that it took ends. Earlier stars never need to
        // take more: what stood between matched.
        let mut star: Option<(&[Element], &[u8])> = None;
        loop {
            let matched = match (elements, text) {
                ([Element::Star], _) | ([], []) => return true,
                ([Element::Star, rest @ ..], _) => {
                    elements = rest;
                    star = Some((rest, text));
                    continue;
                }
                // More text would be needed; a longer star only leaves less.
                (_, []) => return false,
                ([], _) => None,
                ([element, behind @ ..], [byte, rest @ ..]) => self.has(*element, *byte).then_some((behind, rest)),
            };
            (elements, text) = match (matched, star) {
                (Some(next), _) => next,
                (None, Some((behind, [_, taken @ ..]))) => {
                    star = Some((behind, taken));
                    (behind, taken)
                }
                (None, _) => return false,
            };
        }
    }

    fn has(&self, element: Element, byte: u8) -> bool {
        match element {
            Element::Star | Element::Any => true,
            Element::Byte(literal) => literal == byte,
            Element::OneOf(number) => {
                let set = self.sets.get(number as usize).copied().unwrap_or_default();
                set[usize::from(byte >> 6)] >> (byte & 63) & 1 == 1
            }
        }
    }
}

/// Whether `text` as a whole matches `pattern`.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    Pattern::new(pattern, text.len()).matches(text)
}
