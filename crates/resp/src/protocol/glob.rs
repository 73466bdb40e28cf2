//! Patterns of `KEYS`, `SCAN`, `CONFIG GET` and their like.
//!
//! Follows `stringmatchlen` of Redis 7.0 (`util.c`), case-sensitive, with its ways at the edges: a set without `]` ends with the pattern,
//! a backslash at the end stands for itself, a range's ends may be in either order and are compared as signed bytes.
//! Different on purpose: `*` alone also matches nothing at all, as `KEYS *` and `SCAN` do in Redis, which do not ask `stringmatchlen`.
//!
//! Time: at most the product of the two lengths, whatever the pattern. Redis' recursion is no faster. Who matches bounds the lengths, or what it matches at a time.

/// Whether `text` as a whole matches `pattern`: `*` any bytes, `?` any one, `[a-z]` one of a set, `[^a-z]` one not of it, `\x` x itself.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    if text.is_empty() {
        return matches!(pattern, b"" | b"*");
    }
    let (mut pattern, mut text) = (pattern, text);
    // Behind the last star, and where the text that it took ends. Earlier stars never need to take more: what stood between matched.
    let mut star: Option<(&[u8], &[u8])> = None;
    loop {
        if let [b'*', rest @ ..] = pattern {
            pattern = rest;
            star = Some((rest, text));
            if rest.is_empty() {
                return true;
            }
            continue;
        }
        let matched = match text {
            [] if pattern.is_empty() => return true,
            // More text would be needed; a longer star only leaves less.
            [] => return false,
            [byte, rest @ ..] => match_one(pattern, *byte).map(|behind| (behind, rest)),
        };
        (pattern, text) = match (matched, star) {
            (Some(next), _) => next,
            (None, Some((behind, [_, taken @ ..]))) => {
                star = Some((behind, taken));
                (behind, taken)
            }
            (None, _) => return false,
        };
    }
}

/// The pattern behind its first element, if that matches `byte`. The element is not a star.
fn match_one(pattern: &[u8], byte: u8) -> Option<&[u8]> {
    let (matched, rest) = match pattern {
        [] => (false, pattern),
        [b'?', rest @ ..] => (true, rest),
        [b'[', b'^', rest @ ..] => {
            let (found, rest) = match_set(rest, byte);
            (!found, rest)
        }
        [b'[', rest @ ..] => match_set(rest, byte),
        [b'\\', literal, rest @ ..] | [literal, rest @ ..] => (*literal == byte, rest),
    };
    matched.then_some(rest)
}

/// Whether `byte` is in the set whose inside begins here, and the pattern behind the set.
fn match_set(mut rest: &[u8], byte: u8) -> (bool, &[u8]) {
    let mut found = false;
    loop {
        (found, rest) = match rest {
            [] => return (found, rest),
            [b'\\', literal, tail @ ..] => (found || *literal == byte, tail),
            [b']', tail @ ..] => return (found, tail),
            [first, b'-', last, tail @ ..] => (found || is_between(byte, *first, *last), tail),
            [literal, tail @ ..] => (found || *literal == byte, tail),
        };
    }
}

fn is_between(byte: u8, first: u8, last: u8) -> bool {
    // C's char is signed on x86.
    let (byte, first, last) = (byte.cast_signed(), first.cast_signed(), last.cast_signed());
    (first.min(last)..=first.max(last)).contains(&byte)
}
