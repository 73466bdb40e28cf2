//! What a store that nobody writes to does about its garbage.
//!
//! Garbage that is freed while writers come is freed late forcibly: each copy and each rewritten
//! table frees more then. Once nobody writes there is nothing to wait for. So [`next`] says what to
//! do next, from what the store takes and from what lives in it, until it takes little more than
//! that.
//!
//! **Energy.** Work on an idle device wakes it up, so it has to pay. A store of at most
//! [`Parameters::least`] is left alone, and so is one that takes less than [`Parameters::ratio`]
//! times what lives: what is rewritten then frees at least as much as 0.4 of it. How much lives is
//! found out by reading some keys, which costs little; that is done only where something was
//! written, removed, or may have expired since it was done last ([`Changes::are_worth_checking`]).
//! A store with nothing to gain costs two comparisons every few seconds.
//!
//! **Bounds.** Each step is one flush, one piece of a compaction, or what the value log is asked to
//! relocate; after each it is asked anew whether the store still [rests](Quiet). What was compacted
//! down lies in the last level, so no step of that kind comes twice without writes between them.

use ecotone_types::units::{Bytes, Seconds, Time};

/// The constants of this module.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Parameters {
    /// A store rests once few writes have come for so long.
    pub quiet: Seconds,
    /// Few writes: a note of the time and a device that reports now and then are no reason to let
    /// garbage lie.
    pub quiet_writes_per_s: f64,
    /// A store that takes no more than this is left alone.
    pub least: Bytes,
    /// So many times what lives may be taken. Less than the 1.5 that is promised, as estimates err.
    pub ratio: f64,
    /// What tables shadow is worth a compaction from this share of what the store takes on, and
    /// what no table refers to a garbage collection from that on.
    pub shadowed_share: f64,
    /// See [`shadowed_share`](Self::shadowed_share).
    pub unnamed_share: f64,
    /// How much of what was looked at last must have been written since for another look.
    pub changed_share: f64,
    /// Between two looks for the sake of what expires.
    pub expiry_interval: Seconds,
}

/// What is in force.
pub const PARAMETERS: Parameters = Parameters {
    quiet: Seconds(3.0),
    quiet_writes_per_s: 50.0,
    least: Bytes::from_mib(32),
    ratio: 1.4,
    shadowed_share: 0.05,
    unnamed_share: 0.15,
    changed_share: 0.05,
    expiry_interval: Seconds(20.0),
};

/// Tells from the number of all writes whether a store rests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quiet {
    since: Time,
    writes: u64,
    is: bool,
}

impl Quiet {
    /// From `now` on, when there had been so many writes.
    pub fn begin(now: Time, writes: u64) -> Self {
        Self { since: now, writes, is: false }
    }

    /// At `now` there have been so many. Whether the store rests: fewer than
    /// [`Parameters::quiet_writes_per_s`] came in the last [`Parameters::quiet`], or a little
    /// longer.
    pub fn observe(&mut self, now: Time, writes: u64, parameters: &Parameters) -> bool {
        let passed = now.since(self.since).0;
        let most = parameters.quiet_writes_per_s * parameters.quiet.0;
        let came = writes.saturating_sub(self.writes) as f64;
        if came > most {
            *self = Self::begin(now, writes);
        } else if passed >= parameters.quiet.0 {
            *self = Self { since: now, writes, is: true };
        }
        self.is
    }
}

/// What has happened since somebody looked how much of a store lives.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Changes {
    /// Keys that were written or removed one by one.
    pub writes: u64,
    /// Whether a range of keys was removed.
    pub removed_ranges: bool,
    /// Time that has passed, where values may have expired meanwhile.
    pub expiring: Option<Seconds>,
    /// Entries that there are.
    pub entries: u64,
}

impl Changes {
    /// Whether the verdict may be another one by now.
    pub fn are_worth_checking(&self, parameters: &Parameters) -> bool {
        let many = self.writes as f64 >= (self.entries as f64 * parameters.changed_share).max(1.0);
        self.removed_ranges || many || self.expiring.is_some_and(|passed| passed.0 >= parameters.expiry_interval.0)
    }
}

/// A store at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Found {
    /// Bytes of tables.
    pub tables: Bytes,
    /// Bytes of segments of the value log.
    pub values: Bytes,
    /// Those of them that tables refer to.
    pub named: Bytes,
    /// Bytes of write-ahead logs.
    pub logs: Bytes,
    /// Whether there is anything in memtables.
    pub in_memory: bool,
    /// Entries of tables above the last level, or of level 0 where there is no other.
    pub above: u64,
    /// Whether tables are known in which values have expired.
    pub expired: bool,
    /// Whether a snapshot holds old versions, or something flushes or compacts already.
    pub is_throttled: bool,
}

impl Found {
    /// All that the store takes.
    pub fn taken(&self) -> Bytes {
        [self.tables, self.values, self.logs].iter().fold(Bytes::ZERO, |sum, of| Bytes(sum.0.saturating_add(of.0)))
    }

    /// What no table refers to: garbage, or named by a memtable and its log.
    fn unnamed(&self) -> u64 {
        self.logs.0.saturating_add(self.values.0.saturating_sub(self.named.0))
    }

    /// Whether it is to be found out how much of the tables lives.
    pub fn is_worth_checking(&self, parameters: &Parameters) -> bool {
        self.taken() > parameters.least
    }
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Nothing until something changes.
    Rest,
    /// Nothing now: look again soon.
    Wait,
    /// Write the memtables to tables.
    Flush,
    /// Compact what lies above the last level, a piece of it.
    CompactDown,
    /// Rewrite tables in which values have expired.
    RewriteExpired,
    /// Have the value log relocate what lives, without its patience.
    Relocate,
}

/// What to do next about a store that rests. `live` is the share of the tables' bytes, and so of
/// the values that they name, that a reader still finds.
pub fn next(found: &Found, live: f64, parameters: &Parameters) -> Step {
    let live = live.clamp(0.0, 1.0);
    let taken = found.taken().0 as f64;
    let named = (found.tables.0.saturating_add(found.named.0)) as f64;
    if !found.is_worth_checking(parameters) {
        return Step::Rest;
    }
    // What memtables name counts as garbage until they are flushed, and that costs little: they are
    // bounded.
    let (shadowed, unnamed) = (named * (1.0 - live), found.unnamed() as f64);
    if taken < named * live * parameters.ratio {
        return Step::Rest;
    }
    if found.is_throttled {
        return Step::Wait;
    }
    if found.in_memory {
        return Step::Flush;
    }
    if shadowed >= taken * parameters.shadowed_share {
        if found.above > 0 {
            return Step::CompactDown;
        }
        if found.expired {
            return Step::RewriteExpired;
        }
    }
    if unnamed >= taken * parameters.unnamed_share && found.values.0 > 0 { Step::Relocate } else { Step::Rest }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn mib(mib: u64) -> Bytes {
        Bytes(mib * MIB)
    }

    fn step(found: Found, live: f64) -> Step {
        next(&found, live, &PARAMETERS)
    }

    #[test]
    fn a_store_rests_once_few_writes_have_come_for_a_while() {
        let at = Time::from_seconds;
        let mut quiet = Quiet::begin(at(0.0), 1000);
        assert!(!quiet.observe(at(1.0), 1000, &PARAMETERS) && !quiet.observe(at(2.9), 1001, &PARAMETERS));
        assert!(quiet.observe(at(3.0), 1001, &PARAMETERS), "a note of the time is no work");
        // 40 a second for ever, and then 60.
        assert!((4..20).all(|second| quiet.observe(
            at(f64::from(second)),
            1001 + (second as u64 - 3) * 40,
            &PARAMETERS
        )));
        let busy = |second: u64| 2000 + (second - 19) * 60;
        assert!((20..40).map(|second| quiet.observe(at(second as f64), busy(second), &PARAMETERS)).any(|is| !is));
        assert!(
            !quiet.observe(at(40.0), busy(40) + 500, &PARAMETERS)
                && !quiet.observe(at(42.0), busy(40) + 500, &PARAMETERS)
        );
        assert!(quiet.observe(at(43.1), busy(40) + 500, &PARAMETERS));
    }

    #[test]
    fn values_separated_are_flushed_then_compacted_then_relocated() {
        // 126 MiB of values of which a tenth lives, all of it in memory but the segments.
        let written = Found { values: mib(126), logs: mib(10), in_memory: true, ..Found::default() };
        assert_eq!(step(written, 1.0), Step::Flush);
        assert_eq!(step(Found { is_throttled: true, ..written }, 1.0), Step::Wait);
        // Keys in tables, and deletions above them that no compaction has met.
        let shadowed = Found { values: mib(126), tables: mib(8), named: mib(126), above: 108_000, ..Found::default() };
        assert_eq!(step(shadowed, 0.1), Step::CompactDown);
        let met = Found { values: mib(126), tables: mib(1), named: mib(12), ..Found::default() };
        assert_eq!(step(met, 1.0), Step::Relocate);
        assert_eq!(step(Found { values: mib(14), ..met }, 1.0), Step::Rest);
    }

    #[test]
    fn what_would_free_little_is_left_alone() {
        assert_eq!(step(Found { tables: mib(32), above: 1, in_memory: true, ..Found::default() }, 0.0), Step::Rest);
        // Inserted only: above the last level, and all of it lives.
        let inserted =
            Found { tables: mib(1000), above: 5_000_000, logs: mib(40), in_memory: true, ..Found::default() };
        assert_eq!(step(inserted, 1.0), Step::Rest);
        assert_eq!(step(Found { in_memory: false, ..inserted }, 0.75), Step::Rest);
        assert_eq!(step(Found { in_memory: false, ..inserted }, 0.6), Step::CompactDown);
        // Nothing that a compaction would meet: an error of the estimate, or what a snapshot held
        // that is gone.
        assert_eq!(step(Found { tables: mib(1000), ..Found::default() }, 0.5), Step::Rest);
        assert_eq!(step(Found { tables: mib(1000), expired: true, ..Found::default() }, 0.5), Step::RewriteExpired);
    }

    #[test]
    fn nobody_looks_again_where_little_has_changed() {
        let changes = Changes { entries: 100_000, ..Changes::default() };
        assert!(!changes.are_worth_checking(&PARAMETERS));
        assert!(!Changes { writes: 4_999, ..changes }.are_worth_checking(&PARAMETERS));
        assert!(Changes { writes: 5_000, ..changes }.are_worth_checking(&PARAMETERS));
        assert!(Changes { removed_ranges: true, ..changes }.are_worth_checking(&PARAMETERS));
        assert!(!Changes { expiring: Some(Seconds(19.0)), ..changes }.are_worth_checking(&PARAMETERS));
        assert!(Changes { expiring: Some(Seconds(20.0)), ..changes }.are_worth_checking(&PARAMETERS));
        assert!(!Changes::default().are_worth_checking(&PARAMETERS), "an empty store");
    }

    proptest! {
        /// Plays the steps on a store that does what each says: it always comes to rest, soon, and
        /// then takes what is promised.
        #[test]
        fn every_store_comes_to_rest_within_the_ratio(
            tables in 0..4_000_u64, values in 0..4_000_u64, named in 0.0..1.0_f64, live in 0.0..1.0_f64, logs in 0..64_u64,
            in_memory: bool, above in 1..1_000_u64,
        ) {
            let mut live = live;
            // Without anything in memory there is no log to speak of.
            let logs = if in_memory { logs } else { 0 };
            let mut found = Found {
                tables: mib(tables), values: mib(values), named: Bytes((mib(values).0 as f64 * named) as u64), logs: mib(logs), in_memory, above,
                ..Found::default()
            };
            let lives = (found.tables.0 + found.named.0) as f64 * live;
            let mut steps = 0;
            loop {
                match step(found, live) {
                    Step::Rest => break,
                    Step::Flush => found = Found { in_memory: false, logs: Bytes::ZERO, ..found },
                    Step::CompactDown => {
                        let scaled = |bytes: Bytes| Bytes((bytes.0 as f64 * live) as u64);
                        found = Found { tables: scaled(found.tables), named: scaled(found.named), above: 0, ..found };
                        live = 1.0;
                    }
                    // As far as garbage collection goes by itself.
                    Step::Relocate => found.values = Bytes(found.named.0 + found.named.0 / 4),
                    other => prop_assert!(false, "{:?}", other),
                }
                steps += 1;
                prop_assert!(steps <= 4, "{:?} {}", found, live);
            }
            let log_bytes = if found.in_memory { found.logs.0 } else { 0 };
            prop_assert!((found.taken().0 - log_bytes) as f64 <= (lives * 1.5).max(mib(32).0 as f64) + log_bytes as f64, "{:?}", found);
        }
    }
}
