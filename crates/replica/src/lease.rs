//! Leases: what lets a primary acknowledge and read (rule 3).
//!
//! Each server promises the primaries of its shards, by one heartbeat for each pair of servers, that
//! it seals nothing for a while. The giver counts from the receipt, whoever holds the promise from
//! the sending of what was answered, and by less, so that it ends first for the holder whatever the
//! network did. A primary holds its lease while a majority of S, itself among them, has promised: then
//! no promotion can have sealed enough members. Alone in S it needs no promise.
//!
//! Invariant: whoever sealed a member did so after each promise of it had ended by the clock of its
//! holder, if clocks differ by less than [`MAX_DRIFT_PER_MILLE`]. A process that starts remembers
//! no promise, so it waits for as long as one may last.

use std::collections::{BTreeMap, BTreeSet};

use ecotone_control::ids::{Epoch, MemberId, ShardId};

use crate::commit::majority;

/// How much faster one clock may run than another, in parts of a thousand.
pub const MAX_DRIFT_PER_MILLE: u64 = 10;
/// The longest promise that may be configured. (It is what the slowest failover waits for.)
pub const MAX_PROMISE_US: u64 = 10_000_000;

/// How long promises last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTimes {
    /// A promise, by the clock of its giver. The same on all servers: who starts waits it out.
    pub promise_us: u64,
    /// How much earlier it ends for its holder, beyond the drift of clocks.
    pub margin_us: u64,
    /// Between two heartbeats.
    pub every_us: u64,
}

impl Default for LeaseTimes {
    fn default() -> Self {
        Self { promise_us: 600_000, margin_us: 20_000, every_us: 100_000 }
    }
}

/// Asks a server to promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// When it was sent, by the clock of the sender.
    pub sent_us: u64,
    /// The shards that the sender is the primary of.
    pub asks: Vec<(ShardId, Epoch)>,
}

/// What a server promises.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promise {
    /// As in the heartbeat.
    pub sent_us: u64,
    /// For which shards, in which epoch. What is missing is refused.
    pub granted: Vec<(ShardId, Epoch)>,
}

/// What others promised to this server.
#[derive(Clone, Debug)]
pub struct Held {
    times: LeaseTimes,
    until_us: BTreeMap<(ShardId, MemberId), (Epoch, u64)>,
}

impl Held {
    /// Nothing yet.
    pub fn new(times: LeaseTimes) -> Self {
        Self { times, until_us: BTreeMap::new() }
    }

    /// `from` has promised.
    pub fn promised(&mut self, from: MemberId, promise: &Promise) {
        let lasts_us = self.times.promise_us * (1_000 - MAX_DRIFT_PER_MILLE) / 1_000;
        let until_us = promise.sent_us + lasts_us.saturating_sub(self.times.margin_us);
        for (shard, epoch) in &promise.granted {
            let held = self.until_us.entry((*shard, from)).or_insert((*epoch, until_us));
            // An answer that was overtaken takes nothing back.
            *held = (*held).max((*epoch, until_us));
        }
    }

    /// Until when `me` may act as the primary of the shard in `epoch`, whichever of `sets` the log
    /// names, if no more promises come. `u64::MAX` where it needs none; none where too few members
    /// ever promised.
    pub fn until_us<'a>(
        &self,
        (shard, epoch): (ShardId, Epoch),
        me: MemberId,
        sets: impl IntoIterator<Item = &'a BTreeSet<MemberId>>,
    ) -> Option<u64> {
        let promised_us = |member: &MemberId| {
            let held = self.until_us.get(&(shard, *member)).filter(|(of, _)| *of == epoch);
            if *member == me { Some(u64::MAX) } else { held.map(|(_, until_us)| *until_us) }
        };
        let in_set_us = |set: &BTreeSet<MemberId>| {
            let mut ends: Vec<u64> = set.iter().filter_map(promised_us).collect();
            ends.sort_unstable_by(|one, other| other.cmp(one));
            ends.get(majority(set.len()) - 1).copied().filter(|_| set.contains(&me))
        };
        // None is less than any time: one set without enough promises is enough for no lease.
        sets.into_iter().map(in_set_us).min().flatten()
    }

    /// Whether `me` may act as the primary at `now_us`.
    pub fn holds<'a>(
        &self,
        of: (ShardId, Epoch),
        me: MemberId,
        sets: impl IntoIterator<Item = &'a BTreeSet<MemberId>>,
        now_us: u64,
    ) -> bool {
        self.until_us(of, me, sets).is_some_and(|until_us| until_us == u64::MAX || now_us < until_us)
    }

    /// The shard is not this server's any more.
    pub fn forget(&mut self, shard: ShardId) {
        self.until_us.retain(|(of, _), _| *of != shard);
    }
}

/// What this server promised to others.
#[derive(Clone, Debug)]
pub struct Given {
    promise_us: u64,
    /// Until when it may have promised anything before it was started.
    started_until_us: u64,
    until_us: BTreeMap<ShardId, u64>,
}

impl Given {
    /// A process that starts at `now_us`, and does not know what it promised before.
    pub fn new(times: LeaseTimes, now_us: u64) -> Self {
        let promise_us = times.promise_us.min(MAX_PROMISE_US);
        Self { promise_us, started_until_us: now_us + promise_us, until_us: BTreeMap::new() }
    }

    /// Answers a heartbeat; `may` says which shards this server has a copy of that may promise.
    pub fn answer(
        &mut self,
        heartbeat: &Heartbeat,
        mut may: impl FnMut(ShardId, Epoch) -> bool,
        now_us: u64,
    ) -> Promise {
        let granted: Vec<(ShardId, Epoch)> =
            heartbeat.asks.iter().copied().filter(|(shard, epoch)| may(*shard, *epoch)).collect();
        for (shard, _) in &granted {
            self.until_us.insert(*shard, now_us + self.promise_us);
        }
        Promise { sent_us: heartbeat.sent_us, granted }
    }

    /// Until when nothing may be sealed, if that is not over.
    pub fn must_wait_until(&self, shard: ShardId, now_us: u64) -> Option<u64> {
        let given_us = self.until_us.get(&shard).copied().unwrap_or_default();
        Some(given_us.max(self.started_until_us)).filter(|until_us| now_us < *until_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARD: ShardId = ShardId(1);
    const ME: MemberId = MemberId(1);

    fn set(members: &[u64]) -> BTreeSet<MemberId> {
        members.iter().map(|member| MemberId(*member)).collect()
    }

    fn ask(sent_us: u64) -> Heartbeat {
        Heartbeat { sent_us, asks: vec![(SHARD, Epoch(1))] }
    }

    #[test]
    fn a_promise_ends_first_for_its_holder() {
        let times = LeaseTimes::default();
        let (mut held, mut given) = (Held::new(times), Given::new(times, 0));
        // Received at once, by a clock that runs as much faster as it may.
        let promise = given.answer(&ask(10_000_000), |_, _| true, 10_100_000);
        held.promised(MemberId(2), &promise);
        let sets = [set(&[1, 2, 3])];
        let end_us = given.must_wait_until(SHARD, 10_100_000).unwrap();
        let real_us = (end_us - 10_100_000) * 1_000 / (1_000 + MAX_DRIFT_PER_MILLE);
        assert!(held.holds((SHARD, Epoch(1)), ME, &sets, 10_500_000));
        assert!(!held.holds((SHARD, Epoch(1)), ME, &sets, 10_000_000 + real_us));
        assert_eq!(given.must_wait_until(SHARD, end_us), None);
    }

    #[test]
    fn each_set_that_the_log_may_name_must_have_promised() {
        let mut held = Held::new(LeaseTimes::default());
        held.promised(MemberId(2), &Promise { sent_us: 0, granted: vec![(SHARD, Epoch(1))] });
        let holds = |sets: &[BTreeSet<MemberId>]| held.holds((SHARD, Epoch(1)), ME, sets, 1_000);
        assert!(holds(&[set(&[1, 2, 3])]));
        assert!(holds(&[set(&[1, 2]), set(&[1])]));
        assert!(!holds(&[set(&[1, 2, 3]), set(&[1, 3])]), "it lacks the promise of 3");
        assert!(!holds(&[set(&[1, 2, 3, 4])]), "two of four are no majority");
        assert!(!holds(&[set(&[2, 3])]), "it is not in the set itself");
        assert!(!holds(&[]));
        assert!(!held.holds((SHARD, Epoch(2)), ME, &[set(&[1, 2])], 1_000), "promised to another epoch");
    }

    #[test]
    fn an_old_answer_takes_nothing_back_and_one_alone_needs_none() {
        let mut held = Held::new(LeaseTimes::default());
        let granted = vec![(SHARD, Epoch(1))];
        held.promised(MemberId(2), &Promise { sent_us: 2_000_000, granted: granted.clone() });
        held.promised(MemberId(2), &Promise { sent_us: 1_000_000, granted });
        assert!(held.holds((SHARD, Epoch(1)), ME, &[set(&[1, 2])], 2_400_000));
        assert!(!held.holds((SHARD, Epoch(1)), ME, &[set(&[1, 2])], 3_400_000));
        assert!(held.holds((SHARD, Epoch(1)), ME, &[set(&[1])], u64::MAX));
    }

    #[test]
    fn a_lease_lasts_as_long_as_the_promise_that_makes_the_majority() {
        let mut held = Held::new(LeaseTimes::default());
        let mut promise = |from, sent_us| {
            held.promised(MemberId(from), &Promise { sent_us, granted: vec![(SHARD, Epoch(1))] });
        };
        [(2, 3_000_000), (3, 1_000_000), (4, 2_000_000)].into_iter().for_each(|(from, sent_us)| promise(from, sent_us));
        let until_us = |sets: &[BTreeSet<MemberId>]| held.until_us((SHARD, Epoch(1)), ME, sets);
        assert_eq!(until_us(&[set(&[1, 2, 3])]), Some(3_574_000), "either of two is enough");
        assert_eq!(until_us(&[set(&[1, 2, 3, 4])]), Some(2_574_000));
        assert_eq!(until_us(&[set(&[1, 2, 3]), set(&[1, 3])]), Some(1_574_000), "in each set");
        assert_eq!(until_us(&[set(&[1, 9])]), None, "9 never promised");
        assert_eq!(until_us(&[set(&[1, 2]), set(&[1, 9])]), None);
        assert_eq!(until_us(&[set(&[1])]), Some(u64::MAX), "alone it needs none");
        assert_eq!(until_us(&[]), None);
        for now_us in [2_573_999, 2_574_000] {
            let holds = held.holds((SHARD, Epoch(1)), ME, &[set(&[1, 2, 3, 4])], now_us);
            assert_eq!(holds, now_us < 2_574_000);
        }
    }

    #[test]
    fn who_starts_waits_for_what_it_may_have_promised() {
        let given = Given::new(LeaseTimes::default(), 5_000_000);
        assert_eq!(given.must_wait_until(SHARD, 5_000_000), Some(5_600_000));
        assert_eq!(given.must_wait_until(SHARD, 5_600_000), None);
    }
}
