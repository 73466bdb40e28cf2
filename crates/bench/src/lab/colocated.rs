//! The co-located load: another application's busy threads on one server, more and more of them.

/// The server that gets the co-located threads: the first of tier `high`, as the papers load their largest one.
pub(super) fn colocated_server<'a>(mut tiers: impl Iterator<Item = &'a str>) -> Option<usize> {
    tiers.position(|tier| tier == "high")
}

/// From 0 to `threads` in equal steps, each level for an equal time.
pub(super) fn colocated_steps(seconds: u64, threads: u32) -> Vec<(f64, u32)> {
    (0..=threads).map(|level| (seconds as f64 * f64::from(level) / f64::from(threads + 1), level)).collect()
}
