//! Which hash slot a key is in, and where it stands within it.

/// The number of hash slots, as in a Redis cluster.
pub const SLOTS: u16 = 16384;

/// One of the 16384 hash slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u16);

impl Slot {
    /// The first one.
    pub const FIRST: Self = Self(0);

    /// The last one.
    pub const LAST: Self = Self(SLOTS - 1);

    /// The slot of `key`: CRC16 of what stands between its first `{` and the next `}`, or of all of
    /// it where that is empty or missing (Redis cluster specification, "Hash tags").
    pub fn of(key: &[u8]) -> Self {
        Self(crc16(tag(key)) % SLOTS)
    }

    /// 0 to 16383.
    pub const fn number(self) -> u16 {
        self.0
    }

    /// The slot of this number; `None` from 16384 on.
    pub const fn new(number: u16) -> Option<Self> {
        if number < SLOTS { Some(Self(number)) } else { None }
    }

    /// All of them, from 0 on.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..SLOTS).map(Self)
    }
}

/// Some of the slots.
#[derive(Debug)]
pub(crate) struct SlotSet(Box<[u64]>);

impl Default for SlotSet {
    fn default() -> Self {
        Self(vec![0; usize::from(SLOTS).div_ceil(64)].into_boxed_slice())
    }
}

impl SlotSet {
    #[inline]
    pub(crate) fn has(&self, slot: Slot) -> bool {
        let (word, bit) = Self::place(slot);
        self.0[word] & bit != 0
    }

    pub(crate) fn insert(&mut self, slot: Slot) {
        let (word, bit) = Self::place(slot);
        self.0[word] |= bit;
    }

    pub(crate) fn remove(&mut self, slot: Slot) {
        let (word, bit) = Self::place(slot);
        self.0[word] &= !bit;
    }

    fn place(slot: Slot) -> (usize, u64) {
        let number = usize::from(slot.number());
        (number / 64, 1 << (number % 64))
    }
}

/// Where `key` stands among the keys of its slot: any two keys of one slot are in the order of this
/// number. Scans rest between two numbers, so it is part of what is on disk.
pub fn position_in_slot(key: &[u8]) -> u16 {
    (twox_hash::XxHash3_64::oneshot(key) >> 48) as u16
}

fn tag(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|byte| *byte == b'{') else { return key };
    let rest = &key[open + 1..];
    match rest.iter().position(|byte| *byte == b'}') {
        Some(length) if length > 0 => &rest[..length],
        _ => key,
    }
}

/// CRC16-XMODEM: polynomial 0x1021, start 0, nothing reflected.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| crc << 8 ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)])
}

const TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut crc = (index as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 != 0 { crc << 1 ^ 0x1021 } else { crc << 1 };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_a_redis_cluster() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        // What `CLUSTER KEYSLOT` of Redis 7.0 says.
        for (key, slot) in [("", 0), ("foo", 12182), ("bar", 5061), ("hello", 866), ("somekey", 11058), ("a", 15495)] {
            assert_eq!(Slot::of(key.as_bytes()).number(), slot, "{key}");
        }
        for (key, same) in
            [("{user1000}.following", "user1000"), ("foo{{bar}}zap", "{bar"), ("foo{bar}{zap}", "bar"), ("x{y}", "y")]
        {
            assert_eq!(Slot::of(key.as_bytes()), Slot::of(same.as_bytes()), "{key}");
        }
        // No tag: nothing between the braces, or no end.
        for key in ["foo{}{bar}", "foo{bar", "}{"] {
            assert_eq!(Slot::of(key.as_bytes()).number(), crc16(key.as_bytes()) % SLOTS, "{key}");
        }
    }
}
