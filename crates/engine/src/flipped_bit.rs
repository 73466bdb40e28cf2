//! What one flipped bit does to a CRC-32C.
//!
//! What a loss of power leaves differs from what was written by sectors, and damage of a medium or of memory by single bits: where a checksum does not
//! match, that tells one from the other.

/// Which bit of so many bytes, flipped, makes this difference of their checksums; bits are counted from the least of the first byte on. A checksum is linear, so
/// the difference depends on the bit alone, and each further bit behind it takes it one step of the shift register on.
pub(crate) fn flipped_bit(difference: u32, bytes: usize) -> Option<usize> {
    // CRC-32C, reflected.
    const POLYNOMIAL: u32 = 0x82F6_3B78;
    let mut of_last = POLYNOMIAL;
    (0..bytes * 8).rev().find(|_| {
        let found = of_last == difference;
        of_last = of_last >> 1 ^ if of_last & 1 == 1 { POLYNOMIAL } else { 0 };
        found
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bit_is_found_by_what_it_does_to_the_checksum() {
        let bytes: Vec<u8> = (0..200).map(|byte| byte * 7).collect();
        let sound = crc32c::crc32c(&bytes);
        assert_eq!(flipped_bit(0, bytes.len()), None);
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(flipped_bit(sound ^ crc32c::crc32c(&bad), bytes.len()), Some(bit));
        }
    }
}
