//! What is to be stored with a key.

use std::ops::Deref;
use std::sync::Arc;

/// Longer ones have memory of their own.
const SHORT_BYTES: usize = 22;

/// Bytes that are short more often than not: numbers, scores, nothing at all. Short ones take no memory of their own; long ones are shared by all
/// clones.
#[derive(Debug, Clone)]
pub(super) enum Payload {
    Short { length: u8, bytes: [u8; SHORT_BYTES] },
    Long(Arc<[u8]>),
}

impl From<&[u8]> for Payload {
    #[inline]
    fn from(payload: &[u8]) -> Self {
        let mut bytes = [0; SHORT_BYTES];
        match bytes.get_mut(..payload.len()) {
            Some(begin) => {
                begin.copy_from_slice(payload);
                Self::Short { length: payload.len() as u8, bytes }
            }
            None => Self::Long(payload.into()),
        }
    }
}

impl Deref for Payload {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::Short { length, bytes } => &bytes[..usize::from(*length)],
            Self::Long(payload) => payload,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_what_it_was_made_of_whatever_its_length() {
        assert_eq!(size_of::<Payload>(), 24);
        for length in [0, 1, SHORT_BYTES - 1, SHORT_BYTES, SHORT_BYTES + 1, 70_000] {
            let bytes: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let payload = Payload::from(&bytes[..]);
            assert_eq!((&payload[..], &payload.clone()[..]), (&bytes[..], &bytes[..]));
            assert_eq!(matches!(payload, Payload::Long(_)), length > SHORT_BYTES);
        }
    }
}
