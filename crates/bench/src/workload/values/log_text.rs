//! Lines of a log.
//!
//! A line has a time, a level, a component, an id and a message: words of a vocabulary by a
//! Zipfian, of which popular ones are short, as in any language. Messages are composed in advance;
//! a value is as many lines, each with a message of its own, as it has bytes for, and breaks off
//! within the last.

use super::super::distribution::Zipfian;
use super::super::random::{Random, mix64};
use super::telemetry::PAIRS;

/// How many words there are.
const WORDS: u64 = 8192;

/// How many messages are composed, of how many words each.
const MESSAGES: usize = 16_384;
const MIN_MESSAGE_WORDS: u64 = 4;
const MAX_MESSAGE_WORDS: u64 = 12;

/// The most popular words; the others are composed of syllables.
const POPULAR: [&str; 32] = [
    "the",
    "to",
    "of",
    "in",
    "for",
    "is",
    "and",
    "on",
    "with",
    "from",
    "at",
    "by",
    "not",
    "was",
    "after",
    "device",
    "sensor",
    "request",
    "value",
    "reading",
    "connection",
    "timeout",
    "retry",
    "queue",
    "update",
    "received",
    "failed",
    "started",
    "link",
    "state",
    "bytes",
    "error",
];

const ONSETS: [&str; 16] = ["b", "c", "d", "f", "g", "l", "m", "n", "p", "r", "s", "t", "v", "st", "tr", "ch"];
const VOWELS: [&str; 8] = ["a", "e", "i", "o", "u", "ea", "ou", "io"];
const CODAS: [&str; 8] = ["", "", "n", "r", "s", "t", "l", "nd"];

const DAY_MS: u64 = 86_400_000;

/// Between two versions, and between two lines of a value, in milliseconds.
const STEP_MS: u64 = 20;
const LINE_MS: u64 = 3;

const LEVELS: [&[u8; 5]; 8] = [b"INFO ", b"INFO ", b"INFO ", b"INFO ", b"INFO ", b"DEBUG", b"WARN ", b"ERROR"];
const COMPONENTS: [&[u8; 7]; 8] =
    [b"gateway", b"storage", b"network", b"sampler", b"session", b"command", b"monitor", b"updater"];

/// What a line begins with; digits, level, component and id are written into it.
const PREFIX: &[u8; 52] = b"2026-03-01T00:00:00.000Z INFO  gateway-0 id=000000: ";
const LEVEL: usize = 25;
const COMPONENT: usize = 31;
const WORKER: usize = 39;
const ID: usize = 44;

/// Makes the lines of one run.
#[derive(Debug)]
pub(super) struct LogText {
    salt: u64,
    /// All messages one after the other, each with its newline.
    text: Vec<u8>,
    /// Where each begins, and where the last ends.
    begins: Vec<u32>,
}

impl LogText {
    pub(super) fn new(random: &mut Random) -> Self {
        let salt = random.next_u64();
        let words: Vec<String> = (0..WORDS)
            .map(|rank| match POPULAR.get(rank as usize) {
                Some(word) => (*word).to_owned(),
                None => word(rank, random),
            })
            .collect();
        let popularity = Zipfian::new(WORDS);
        let mut text = Vec::with_capacity(MESSAGES * 56);
        let mut begins = vec![0];
        for _ in 0..MESSAGES {
            let count = MIN_MESSAGE_WORDS + random.below(MAX_MESSAGE_WORDS - MIN_MESSAGE_WORDS + 1);
            for index in 0..count {
                if index > 0 {
                    text.push(b' ');
                }
                text.extend_from_slice(words[popularity.draw(random) as usize].as_bytes());
            }
            text.push(b'\n');
            begins.push(text.len() as u32);
        }
        Self { salt, text, begins }
    }

    /// Fills `buffer` with lines.
    pub(super) fn write(&self, key: u64, version: u64, buffer: &mut [u8]) {
        let mut random = mix64(key ^ self.salt) ^ version;
        let mut ms = version.wrapping_mul(STEP_MS);
        let mut rest = buffer;
        while !rest.is_empty() {
            random = mix64(random.wrapping_add(0x9e37_79b9_7f4a_7c15));
            ms = ms.wrapping_add(LINE_MS);
            rest = push(&prefix(ms % DAY_MS, random), rest);
            let message = (random >> 40) as usize % MESSAGES;
            let (begin, end) = (self.begins[message] as usize, self.begins[message + 1] as usize);
            rest = push(&self.text[begin..end], rest);
        }
    }
}

/// Copies what fits, and returns what is left of the buffer.
fn push<'a>(bytes: &[u8], buffer: &'a mut [u8]) -> &'a mut [u8] {
    let count = bytes.len().min(buffer.len());
    let (filled, rest) = buffer.split_at_mut(count);
    filled.copy_from_slice(&bytes[..count]);
    rest
}

fn prefix(ms: u64, random: u64) -> [u8; PREFIX.len()] {
    let mut prefix = *PREFIX;
    let (ms, seconds) = ((ms % 1000) as usize, (ms / 1000) as usize);
    for (place, number) in [(11, seconds / 3600), (14, seconds / 60 % 60), (17, seconds % 60), (21, ms % 100)] {
        prefix[place..place + 2].copy_from_slice(&PAIRS[number]);
    }
    prefix[20] = b'0' + (ms / 100) as u8;
    prefix[LEVEL..LEVEL + 5].copy_from_slice(LEVELS[(random & 7) as usize]);
    prefix[COMPONENT..COMPONENT + 7].copy_from_slice(COMPONENTS[(random >> 3 & 7) as usize]);
    prefix[WORKER] = b'0' + (random >> 6 & 7) as u8;
    for (index, digit) in prefix[ID..ID + 6].iter_mut().enumerate() {
        *digit = b"0123456789abcdef"[(random >> (9 + 4 * index) & 15) as usize];
    }
    prefix
}

/// A word of a rank: the less popular, the longer.
fn word(rank: u64, random: &mut Random) -> String {
    let syllables = 1 + u64::from(rank > 128) + u64::from(rank > 1024) + random.below(2);
    let mut pick = |parts: &[&'static str]| parts[random.below(parts.len() as u64) as usize];
    let mut word = String::new();
    for _ in 0..syllables {
        word.push_str(pick(&ONSETS));
        word.push_str(pick(&VOWELS));
    }
    word + pick(&CODAS)
}
