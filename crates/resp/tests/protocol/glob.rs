//! Patterns against the words of Redis' own matcher.

use ecotone_resp::protocol::glob::{Pattern, matches};
use proptest::prelude::*;

/// Redis 7.0's `stringmatchlen`, step for step, without what bounds its time.
fn redis_matches(mut pattern: &[u8], mut text: &[u8]) -> bool {
    let at = |pattern: &[u8], index: usize| pattern.get(index).copied().unwrap_or(0);
    while !pattern.is_empty() && !text.is_empty() {
        match pattern[0] {
            b'*' => {
                while at(pattern, 1) == b'*' {
                    pattern = &pattern[1..];
                }
                return pattern.len() == 1
                    || (0..text.len()).any(|skipped| redis_matches(&pattern[1..], &text[skipped..]));
            }
            b'?' => pattern = &pattern[1..],
            b'[' => {
                pattern = &pattern[1..];
                let not = at(pattern, 0) == b'^';
                if not {
                    pattern = &pattern[1..];
                }
                let mut found = false;
                loop {
                    if pattern.len() >= 2 && pattern[0] == b'\\' {
                        found |= pattern[1] == text[0];
                        pattern = &pattern[2..];
                    } else if at(pattern, 0) == b']' {
                        pattern = &pattern[1..];
                        break;
                    } else if pattern.is_empty() {
                        break;
                    } else if pattern.len() >= 3 && pattern[1] == b'-' {
                        let (start, end, byte) = (pattern[0] as i8, pattern[2] as i8, text[0] as i8);
                        found |= byte >= start.min(end) && byte <= start.max(end);
                        pattern = &pattern[3..];
                    } else {
                        found |= pattern[0] == text[0];
                        pattern = &pattern[1..];
                    }
                }
                if found == not {
                    return false;
                }
            }
            _ => {
                if pattern[0] == b'\\' && pattern.len() >= 2 {
                    pattern = &pattern[1..];
                }
                if pattern[0] != text[0] {
                    return false;
                }
                pattern = &pattern[1..];
            }
        }
        text = &text[1..];
        if text.is_empty() {
            while at(pattern, 0) == b'*' {
                pattern = &pattern[1..];
            }
        }
    }
    pattern.is_empty() && text.is_empty()
}

#[test]
fn patterns_do_what_the_manual_says() {
    for (pattern, text, expected) in [
        ("h?llo", "hello", true),
        ("h?llo", "hllo", false),
        ("h*llo", "heeeello", true),
        ("h*llo", "hllo", true),
        ("h[ae]llo", "hallo", true),
        ("h[ae]llo", "hillo", false),
        ("h[^e]llo", "hallo", true),
        ("h[^e]llo", "hello", false),
        ("h[a-b]llo", "hbllo", true),
        ("h[b-a]llo", "hallo", true),
        ("h[a-b]llo", "hcllo", false),
        ("h\\*llo", "h*llo", true),
        ("h\\*llo", "hello", false),
        ("[\\]]", "]", true),
        ("[\\^a]", "^", true),
        ("a*b*c", "aXbXbXc", true),
        ("a*b*c", "aXbXbX", false),
        ("H", "h", false),
        ("*", "", true),
        ("**", "", false),
        ("", "", true),
        ("", "a", false),
        ("a", "", false),
        ("a**", "a", true),
        ("[abc", "b", true),
        ("[^", "x", true),
        ("[]", "x", false),
        ("a\\", "a\\", true),
        ("user:*:name", "user:17:name", true),
    ] {
        assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern:?} on {text:?}");
    }
    assert!(matches(b"[\x80-a]", b"\xff"), "bytes of a range are signed");
    assert!(!matches(b"[a-\xff]", b"z"));
}

#[test]
fn hostile_patterns_end() {
    let text = vec![b'a'; 20_000];
    let pattern = [b"a*".repeat(200), b"b".to_vec()].concat();
    assert!(!matches(&pattern, &text));
    assert!(!matches(&[b"*a".repeat(200), b"b".to_vec()].concat(), &text));
    assert!(matches(&b"*".repeat(100_000), &text));
    assert!(!matches(&[b"*[^b]?".repeat(100), b"b*".to_vec()].concat(), &text));
    assert!(matches(&b"[".repeat(100_000), b"["));
}

#[test]
fn a_pattern_that_no_text_is_long_enough_for_keeps_nothing_and_matches_nothing() {
    let longest = 100;
    for part in ["x", "?", "[a-z]", "[^b]", "\\x", "x*", "*?"] {
        let read = |times: usize| Pattern::new(part.repeat(times).as_bytes(), longest);
        let (fits, vain) = (read(longest), read(longest + 1));
        assert!(fits.matches(&[b'x'; 100]), "{part}");
        assert!(!vain.matches(&[b'x'; 100]) && vain.steps() == 0, "{part}");
        assert_eq!(read(100_000), vain, "{part}");
    }
    // What is long and matches what is short takes no more to match.
    for (long, short) in [("*".repeat(100_000), "*"), (format!("[{}]*", "x".repeat(100_000)), "x*")] {
        let pattern = Pattern::new(long.as_bytes(), longest);
        assert_eq!(pattern.steps(), short.len());
        assert!(pattern.matches(b"xyz") && pattern.memory_bytes() < 1000);
    }
    let lower = Pattern::lower(b"MAX[A-C]*\\X", longest);
    assert!(lower.matches(b"maxb__x") && !lower.matches(b"MAXB__X"));
}

fn telling_bytes(most: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop::sample::select(b"abc-^]**[[\\?\0\x80\xff".to_vec()), 0..most)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn matches_what_redis_matches(pattern in telling_bytes(10), text in telling_bytes(8)) {
        prop_assume!(pattern != b"*" || !text.is_empty());
        prop_assert_eq!(matches(&pattern, &text), redis_matches(&pattern, &text));
        prop_assert_eq!(Pattern::new(&pattern, 1000).matches(&text), redis_matches(&pattern, &text));
    }
}
