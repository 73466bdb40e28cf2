//! Lengths in as few bytes as will do: seven bits a byte, the lowest first, the high bit set in all
//! bytes but the last. Each number has one encoding.

/// The longest encoding of a number of 32 bits.
pub(crate) const MAX_VARINT_BYTES: usize = 5;

/// The length of the encoding of `number`.
pub(crate) const fn varint_bytes(number: u32) -> usize {
    match number {
        0..0x80 => 1,
        0x80..0x4000 => 2,
        0x4000..0x20_0000 => 3,
        0x20_0000..0x1000_0000 => 4,
        _ => 5,
    }
}

/// Writes `number` to the begin of `to`, and says how many bytes that took.
pub(crate) fn write(mut number: u32, to: &mut [u8]) -> usize {
    let mut at = 0;
    while number >= 0x80 {
        to[at] = number as u8 | 0x80;
        number >>= 7;
        at += 1;
    }
    to[at] = number as u8;
    at + 1
}

/// What stands at the begin of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Varint {
    /// A number, and the bytes that it takes.
    Number(u32, usize),
    /// The bytes end within it.
    Cut,
    /// No encoding of a number, or not its only one.
    Wrong,
}

/// The number that begins `bytes`.
pub(crate) fn read(bytes: &[u8]) -> Varint {
    let mut number = 0_u64;
    for (at, byte) in bytes.iter().take(MAX_VARINT_BYTES).enumerate() {
        number |= u64::from(byte & 0x7F) << (7 * at);
        if byte & 0x80 == 0 {
            let is_padded = at > 0 && *byte == 0;
            return match u32::try_from(number) {
                Ok(number) if !is_padded => Varint::Number(number, at + 1),
                _ => Varint::Wrong,
            };
        }
    }
    if bytes.len() < MAX_VARINT_BYTES { Varint::Cut } else { Varint::Wrong }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read_and_nothing_else_gives_it(number in any::<u32>().prop_flat_map(|number| {
            (0_u32..32).prop_map(move |shift| number >> shift)
        }), behind: [u8; 3]) {
            let mut bytes = [0; MAX_VARINT_BYTES + 3];
            let length = write(number, &mut bytes);
            prop_assert_eq!(length, varint_bytes(number));
            bytes[length..length + 3].copy_from_slice(&behind);
            prop_assert_eq!(read(&bytes), Varint::Number(number, length));
            for cut in 0..length {
                prop_assert_eq!(read(&bytes[..cut]), Varint::Cut);
            }
        }

        #[test]
        fn any_bytes_are_a_number_in_its_only_encoding_or_none(bytes in prop::collection::vec(any::<u8>(), 0..8)) {
            if let Varint::Number(number, length) = read(&bytes) {
                let mut again = [0; MAX_VARINT_BYTES];
                prop_assert_eq!(write(number, &mut again), length);
                prop_assert_eq!(&again[..length], &bytes[..length]);
            }
        }
    }
}
