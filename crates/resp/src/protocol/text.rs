//! Short texts without a place on the heap.

use std::fmt;

/// The longest text: `-1.2345678901234567e-308` has 24 bytes.
const CAPACITY: usize = 32;

/// The text of one number.
#[derive(Clone, Copy, Default)]
pub struct Text {
    bytes: [u8; CAPACITY],
    length: usize,
}

impl Text {
    /// The decimal digits of `value`.
    pub(super) fn integer(value: i64) -> Self {
        let mut digits = [0; CAPACITY];
        let mut start = CAPACITY;
        let mut rest = value.unsigned_abs();
        loop {
            start -= 1;
            digits[start] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        if value < 0 {
            start -= 1;
            digits[start] = b'-';
        }
        let mut text = Self::default();
        text.append(&digits[start..]);
        text
    }

    /// The text as bytes, all ASCII.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Appends what fits. No number is longer than the capacity.
    pub(super) fn append(&mut self, bytes: &[u8]) {
        debug_assert!(self.length + bytes.len() <= CAPACITY);
        let fits = bytes.len().min(CAPACITY - self.length);
        self.bytes[self.length..self.length + fits].copy_from_slice(&bytes[..fits]);
        self.length += fits;
    }
}

impl fmt::Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.append(text.as_bytes());
        Ok(())
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().iter().try_for_each(|&byte| fmt::Write::write_char(f, char::from(byte)))
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}
