//! What one flipped bit does to a CRC-32C.
//!
//! What a loss of power leaves differs from what was written by sectors, and damage of a medium or of memory by single bits: where a checksum does not
//! match, that tells one from the other.

/// Whether one flipped bit in so many bytes makes this difference of their checksums: a checksum is linear, so the difference
/// depends on the bit alone, and each further bit behind it takes it one step of the shift register on.
pub(crate) fn is_one_bit(difference: u32, bytes: usize) -> bool {
    // CRC-32C, reflected.
    const POLYNOMIAL: u32 = 0x82F6_3B78;
    let mut of_last = POLYNOMIAL;
    (0..bytes * 8).any(|_| {
        let found = of_last == difference;
        of_last = of_last >> 1 ^ if of_last & 1 == 1 { POLYNOMIAL } else { 0 };
        found
    })
}
