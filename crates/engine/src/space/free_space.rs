//! How much space a store was found to have.

/// How much room a store has, as of the last probe. All in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FreeSpace {
    /// Free on the file system, for this process.
    pub free_bytes: u64,
    /// Those, and what is taken of the file system; not what it keeps back for its administrator.
    pub disk_bytes: u64,
    /// What the store's directory takes, with those of others that share its space, what is allocated ahead of a file's end included; `None`
    /// without `max_bytes`: nobody counts it then.
    pub used_bytes: Option<u64>,
    /// The limit of `used_bytes`.
    pub max_bytes: Option<u64>,
    /// What memtables, the next WAL, compactions and large writes under way will still take; with
    /// those of other stores that share the space, but for their large writes.
    pub reserved_bytes: u64,
    /// What is to stay free beside that.
    pub reserve_bytes: u64,
    /// Whether writes are refused.
    pub writes_refused: bool,
}

impl FreeSpace {
    /// What may be written at all: the lesser of the two limits.
    pub fn available_bytes(&self) -> u64 {
        self.free_bytes.min(self.left_to_max().unwrap_or(u64::MAX))
    }

    /// What is left of it when all is written that is reserved; negative where it does not fit.
    pub fn spare_bytes(&self) -> i64 {
        signed(self.available_bytes()).saturating_sub(signed(self.reserved_bytes))
    }

    /// The share of the space that is free above the reserve, 0 to 1: of the file system or of
    /// `max_bytes`, whichever is less.
    pub fn free_share(&self) -> f64 {
        let above = |free_space: u64, of: u64| {
            let taken = self.reserved_bytes.saturating_add(self.reserve_bytes);
            free_space.saturating_sub(taken) as f64 / of.max(1) as f64
        };
        let of_max = self.left_to_max().zip(self.max_bytes).map_or(1.0, |(left, max)| above(left, max));
        above(self.free_bytes, self.disk_bytes).min(of_max).clamp(0.0, 1.0)
    }

    /// Whether `max_bytes` leaves less room than the file system.
    pub(crate) fn max_is_nearer(&self) -> bool {
        self.left_to_max().is_some_and(|left| left < self.free_bytes)
    }

    fn left_to_max(&self) -> Option<u64> {
        self.max_bytes.map(|max| max.saturating_sub(self.used_bytes.unwrap_or(0)))
    }
}

/// Bytes as a number that may fall below zero.
pub(crate) fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_what_the_nearer_limit_leaves() {
        let disk =
            FreeSpace { free_bytes: 50, disk_bytes: 100, reserved_bytes: 5, reserve_bytes: 15, ..FreeSpace::default() };
        assert_eq!((disk.available_bytes(), disk.spare_bytes()), (50, 45));
        assert!((disk.free_share() - 0.3).abs() < 1e-9);
        let limited = FreeSpace { used_bytes: Some(70), max_bytes: Some(80), ..disk };
        assert!(limited.max_is_nearer());
        assert_eq!((limited.available_bytes(), limited.spare_bytes(), limited.free_share()), (10, 5, 0.0));
        let beyond = FreeSpace { used_bytes: Some(90), ..limited };
        assert_eq!((beyond.available_bytes(), beyond.spare_bytes()), (0, -5));
    }
}
