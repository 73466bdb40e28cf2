//! What a disk, a network or an adversary makes of well-formed bytes, for the tests of everything
//! that decodes.
//!
//! Each decoder must take any bytes without a panic, and must refuse what its encoder cannot have
//! written. The tests are seeded and short; `make soak` makes each of them go on with further
//! seeds.

#[path = "../tests/common/random.rs"]
pub(crate) mod random;

pub(crate) use random::Random;

/// Mutations that a test looks at, at least.
const MUTATIONS: u64 = 20_000;

/// Numbers at which lengths and offsets go wrong.
const EDGES: [u64; 12] = [
    0,
    1,
    11,
    (64 << 10) + 1,
    512 << 20,
    (512 << 20) + 1,
    i32::MAX as u64,
    u32::MAX as u64 - 11,
    u32::MAX as u64,
    u32::MAX as u64 + 1,
    i64::MAX as u64,
    u64::MAX,
];

/// Calls `test` with mutations of `originals`.
pub(crate) fn mutated(originals: &[Vec<u8>], mut test: impl FnMut(Vec<u8>, &mut Random)) {
    random::with_seeds(MUTATIONS, |seed| {
        let mut random = Random::new(seed);
        let mut bytes = random.of(originals).clone();
        for _ in 0..random.below(4) {
            mutate(&mut bytes, originals, &mut random);
        }
        test(bytes, &mut random);
    });
}

fn mutate(bytes: &mut Vec<u8>, originals: &[Vec<u8>], random: &mut Random) {
    let at = random.below(bytes.len());
    match random.below(8) {
        0 | 1 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
        2 if !bytes.is_empty() => bytes[at] = *random.of(&[0, 1, 0x7F, 0x80, 0xFF]),
        3 | 4 => {
            // Over a number of 4 or 8 bytes, most often where one is.
            let width = *random.of(&[4, 8]);
            let at = if random.once_in(4) { at } else { at / 4 * 4 };
            let number = random.of(&EDGES).wrapping_add(random.below(3) as u64).to_le_bytes();
            let end = bytes.len().min(at + width);
            bytes[at..end].copy_from_slice(&number[..end - at]);
        }
        5 => bytes.truncate(at),
        6 => bytes.extend((0..random.below(20)).map(|_| random.next() as u8)),
        _ => {
            let other = random.of(originals);
            let from = random.below(other.len() + 1);
            bytes.splice(at.., other[from..].iter().copied());
        }
    }
}
