//! Key numbers and their bytes.

use super::random::mix64;

/// How key numbers become bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOrder {
    /// Neighbouring numbers are neighbouring keys (db_bench).
    Number,
    /// Numbers are scattered over the key space by a bijection, so that new keys fall between old
    /// ones (YCSB's `insertorder=hashed`).
    Scattered,
}

/// The shape of all keys of a run: the key number (or its scattered image) in 8 bytes, most
/// significant first, filled up with `0` characters as db_bench does.
#[derive(Clone, Copy, Debug)]
pub struct KeyShape {
    order: KeyOrder,
    key_bytes: usize,
}

impl KeyShape {
    /// The least width of a key in bytes: a key number must fit.
    pub const MIN_BYTES: u32 = 8;

    /// Keys of `key_bytes` bytes; at least [`KeyShape::MIN_BYTES`].
    pub fn new(order: KeyOrder, key_bytes: u32) -> Self {
        Self { order, key_bytes: key_bytes.max(Self::MIN_BYTES) as usize }
    }

    /// A buffer for keys of this shape.
    pub fn buffer(&self) -> Vec<u8> {
        vec![b'0'; self.key_bytes]
    }

    /// Writes the key of `number` into a buffer made by [`KeyShape::buffer`].
    pub fn write(&self, number: u64, buffer: &mut [u8]) {
        let image = match self.order {
            KeyOrder::Number => number,
            KeyOrder::Scattered => mix64(number),
        };
        buffer[..8].copy_from_slice(&image.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn keys_in_number_order_sort_like_their_numbers_and_have_the_asked_width() {
        for key_bytes in [8, 16, 64] {
            let shape = KeyShape::new(KeyOrder::Number, key_bytes);
            let (mut low, mut high) = (shape.buffer(), shape.buffer());
            shape.write(255, &mut low);
            shape.write(256, &mut high);
            assert!(low < high);
            assert_eq!(low.len(), key_bytes as usize);
            assert!(low[8..].iter().all(|&byte| byte == b'0'));
        }
    }

    #[test]
    fn scattered_keys_stay_distinct_and_lose_their_order() {
        let shape = KeyShape::new(KeyOrder::Scattered, 16);
        let keys: Vec<Vec<u8>> = (0..10_000)
            .map(|number| {
                let mut key = shape.buffer();
                shape.write(number, &mut key);
                key
            })
            .collect();
        assert_eq!(keys.iter().collect::<HashSet<_>>().len(), 10_000);
        let ascending = keys.windows(2).filter(|pair| pair[0] < pair[1]).count();
        assert!((4_500..5_500).contains(&ascending), "{ascending}");
    }
}
