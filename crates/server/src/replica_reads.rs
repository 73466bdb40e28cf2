//! The copies here whose primaries are other servers, as clients read them: they are opened when
//! somebody reads there, follow what is applied while somebody does, and are closed when nobody has
//! for [`MAX_IDLE`].
//!
//! What is shown is as old as the last catching up, and as what was applied then was behind the
//! primary: that sum is the staleness of reads. Where it is more than `replication.max_staleness_ms`,
//! or not known, nothing is read here.
//!
//! Invariants: one reader for each copy; a copy that is to become the primary, or gets other files,
//! is not read from then on, and its store is closed before another reader begins.
//!
//! Failure: what cannot be opened, or caught up with, is closed, and tried again
//! [`RETRY_DELAY`] later for who reads then; meanwhile clients are sent to the primary.
//!
//! Threads: `ecotone-follow`, one for each copy that is read, of duty `read`: it opens, catches
//! up and closes. Clients' threads read, of duty `foreground`, and wait for it only where they may.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use ecotone_control::ids::ShardId as MapShardId;
use ecotone_control::map::Shard;
use ecotone_control::settings::Replication;
use ecotone_energy::{DutyScope, ThreadDuties};
use ecotone_engine::{Duty, Store};
use ecotone_keyspace::memory::Memory;
use ecotone_keyspace::{Replica, ShardId, Slot, SlotRanges};
use ecotone_membership::{Known, Membership};
use ecotone_mirror::readers::Reading;
use ecotone_replica::receiver::Staleness;
use ecotone_replication::{Followed, is_replicated, now_us};
use ecotone_resp::host::ReplicaReads;
use parking_lot::{Mutex, RwLock};
use tracing::{debug, info, warn};

use crate::error::{Error, Result};
use crate::host::copies::CopiesHandle;
use crate::stores::Stores;

/// A copy that is read catches up so often.
const CATCH_UP_INTERVAL: Duration = Duration::from_millis(10);
/// One that is open, and that nobody has read for [`MAX_PAUSE`].
const RESTING_INTERVAL: Duration = Duration::from_millis(100);
/// See [`RESTING_INTERVAL`].
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// One that nobody has read for so long is closed.
const MAX_IDLE: Duration = Duration::from_secs(30);
/// It looks at least so often which segments were removed, in microseconds.
const LOOK_FOR_SEGMENTS_US: u64 = 10_000_000;
/// Catching up waits so long for who reads, and keeps others from reading meanwhile.
const MAX_CATCH_UP_WAIT: Duration = Duration::from_millis(20);
/// After a failure nobody tries again for so long.
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// Who closes a copy looks so often whether the last reader has gone.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// What there is to show of the reads at a copy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ReadFacts {
    /// It is open to be read.
    pub(crate) is_open: bool,
    /// How far what it shows is behind the primary; none where it is not open, or nobody knows.
    pub(crate) staleness: Option<Staleness>,
    /// Commands that were answered here.
    pub(crate) reads: u64,
    /// Commands whose clients were sent to the primary instead.
    pub(crate) refused: u64,
}

/// A copy here that may be read.
struct Place {
    id: MapShardId,
    slots: SlotRanges,
    open: RwLock<Option<Arc<Open>>>,
    /// A thread has it.
    is_followed: AtomicBool,
    failed_us: AtomicU64,
    read_us: AtomicU64,
    counts: Arc<Counts>,
    /// It has other slots by now, or is not here any more.
    is_over: AtomicBool,
}

/// A thread follows the copy until this is dropped, also by a panic: nothing is read of it then.
struct Ending(Arc<Place>);

impl Drop for Ending {
    fn drop(&mut self) {
        let left = self.0.open.write().take();
        if let Some(open) = left {
            open.replica.end();
        }
        self.0.failed_us.store(now_us(), Ordering::Relaxed);
        self.0.is_followed.store(false, Ordering::Release);
    }
}

/// Of all readers of a copy.
#[derive(Default)]
struct Counts {
    reads: Arc<AtomicU64>,
    refused: AtomicU64,
    /// The latest time that was shown.
    clock_ms: AtomicU64,
}

/// A copy that is open.
struct Open {
    replica: Arc<Replica>,
    followed: Arc<Followed>,
    /// The primary had no more than what is shown at this time, by [`now_us`].
    fresh_us: AtomicU64,
    /// What was applied when it was caught up with last.
    shown_bytes: AtomicU64,
}

impl Open {
    /// None while nobody knows how far the files are.
    fn staleness(&self) -> Option<Staleness> {
        let applied = self.followed.applied()?;
        let us = now_us().saturating_sub(self.fresh_us.load(Ordering::Acquire));
        let shown = self.shown_bytes.load(Ordering::Acquire);
        Some(Staleness { bytes: applied.staleness.bytes + applied.bytes.saturating_sub(shown), us })
    }
}

/// The copies by the map.
#[derive(Default)]
struct Table {
    /// The map it is of.
    known: Option<Arc<Known>>,
    places: Vec<Arc<Place>>,
    max_staleness_us: Option<u64>,
}

impl Table {
    fn of(&self, slot: Slot) -> Option<&Arc<Place>> {
        let number = slot.number();
        self.places.iter().find(|place| place.slots.iter().any(|(first, last)| (*first..=*last).contains(&number)))
    }
}

/// See the module.
pub(crate) struct Reads {
    stores: Arc<Stores>,
    membership: Arc<Membership>,
    copies: CopiesHandle,
    duties: Arc<ThreadDuties>,
    memory: Arc<Memory>,
    table: RwLock<Table>,
    /// Of each copy that was ever here.
    counts: Mutex<BTreeMap<MapShardId, Arc<Counts>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    stops: AtomicBool,
    /// Itself, for its threads.
    own: OnceLock<std::sync::Weak<Reads>>,
}

impl Reads {
    /// Reads what `copies` drives. What clients take for it is counted in `memory`.
    pub(crate) fn new(
        stores: Arc<Stores>,
        membership: Arc<Membership>,
        copies: CopiesHandle,
        duties: Arc<ThreadDuties>,
        memory: Arc<Memory>,
    ) -> Arc<Reads> {
        let reads = Arc::new(Reads {
            stores,
            membership,
            copies,
            duties,
            memory,
            table: RwLock::default(),
            counts: Mutex::default(),
            threads: Mutex::default(),
            stops: AtomicBool::new(false),
            own: OnceLock::new(),
        });
        let _ = reads.own.set(Arc::downgrade(&reads));
        reads
    }

    /// Of each copy that was ever read, and is a replica here.
    pub(crate) fn facts(&self) -> Vec<(MapShardId, ReadFacts)> {
        let table = self.table.read();
        let facts = |place: &Arc<Place>| {
            let open = place.open.read().clone();
            let (reads, refused) = (&place.counts.reads, &place.counts.refused);
            let facts = ReadFacts {
                is_open: open.is_some(),
                staleness: open.and_then(|open| open.staleness()),
                reads: reads.load(Ordering::Relaxed),
                refused: refused.load(Ordering::Relaxed),
            };
            (place.id, facts)
        };
        table.places.iter().map(facts).collect()
    }

    /// Nothing is read from now on; returns when all is closed.
    pub(crate) fn stop(&self) {
        self.stops.store(true, Ordering::Release);
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            if thread.join().is_err() {
                warn!("a thread that follows a copy has panicked");
            }
        }
    }

    /// The copy of `slot`, by the newest map, and the limit of staleness.
    fn place_of(&self, slot: Slot) -> Option<(Arc<Place>, Option<u64>)> {
        let known = self.membership.known();
        {
            let table = self.table.read();
            if table.known.as_ref().is_some_and(|of| Arc::ptr_eq(of, &known)) {
                return table.of(slot).map(|place| (place.clone(), table.max_staleness_us));
            }
        }
        let mut table = self.table.write();
        let places = places(&known, &table.places, &mut self.counts.lock());
        for place in &table.places {
            if !places.iter().any(|kept| Arc::ptr_eq(kept, place)) {
                place.is_over.store(true, Ordering::Release);
            }
        }
        let max_staleness_us = Replication::of(&known.map).max_staleness_ms.map(|ms| ms.saturating_mul(1_000));
        *table = Table { known: Some(known), places, max_staleness_us };
        table.of(slot).map(|place| (place.clone(), table.max_staleness_us))
    }

    /// Has a thread open the copy, unless one does, or one has failed a moment ago.
    fn open(&self, place: &Arc<Place>) {
        let retried_us = place.failed_us.load(Ordering::Relaxed).saturating_add(RETRY_DELAY.as_micros() as u64);
        if now_us() < retried_us || place.is_followed.swap(true, Ordering::AcqRel) {
            return;
        }
        // Before it is asked whether they stop: who stops them finds this one, or it begins none.
        let mut threads = self.threads.lock();
        if self.stops.load(Ordering::Acquire) {
            return;
        }
        let Some(own) = self.own.get().and_then(std::sync::Weak::upgrade) else { return };
        let (of_thread, failed) = (place.clone(), place.clone());
        let work = move || {
            let _ending = Ending(of_thread.clone());
            own.follow(&of_thread);
        };
        threads.retain(|thread| !thread.is_finished());
        match std::thread::Builder::new().name("ecotone-follow".into()).spawn(work) {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                warn!(%error, "the system gives no thread to follow a copy");
                failed.failed_us.store(now_us(), Ordering::Relaxed);
                failed.is_followed.store(false, Ordering::Release);
            }
        }
    }

    /// Opens a copy, catches up as long as it is read, and closes it.
    fn follow(&self, place: &Place) {
        let Some(followed) = self.copies.get().and_then(|copies| copies.followed(place.id)) else { return };
        let Some(reading) = followed.readers().begin() else { return };
        match self.open_now(place, Arc::new(followed), &reading) {
            Ok(Some((open, store))) => {
                info!(shard = place.id.0, "a copy is read from now on");
                *place.open.write() = Some(open.clone());
                let outcome = self.catch_up(place, &open, &store, &reading);
                // From here on nobody begins to read it.
                *place.open.write() = None;
                open.replica.end();
                while Arc::strong_count(&open) > 1 || Arc::strong_count(&open.replica) > 1 {
                    std::thread::sleep(LOOK_EVERY);
                }
                place.counts.clock_ms.fetch_max(open.replica.keyspace().clock().now_ms(), Ordering::AcqRel);
                drop((open, store));
                match outcome {
                    Ok(()) => info!(shard = place.id.0, "a copy is not read any more"),
                    Err(error) => {
                        warn!(shard = place.id.0, %error, "a copy cannot be caught up with; it is opened anew");
                    }
                }
            }
            // How far behind it is nobody knows yet.
            Ok(None) => {}
            Err(error) => debug!(shard = place.id.0, %error, "a copy cannot be read yet"),
        }
        // Last: files may go that were needed until here.
        drop(reading);
    }

    fn open_now(
        &self,
        place: &Place,
        followed: Arc<Followed>,
        reading: &Reading,
    ) -> Result<Option<(Arc<Open>, Arc<Store>)>> {
        // Before the files are looked at: the store shows at least that.
        let (drained, applied) = (reading.drained(), followed.applied());
        let Some(applied) = applied else { return Ok(None) };
        let _duty = DutyScope::begin(&*self.duties, Duty::Read);
        let id = ShardId(place.id.0);
        let store = Arc::new(self.stores.open_follower(id)?);
        let clock = (place.counts.clock_ms.load(Ordering::Acquire), applied.clock_limit_ms);
        let (slots, reads) = (place.slots.clone(), place.counts.reads.clone());
        // What is read while the files change is answered to nobody, whatever this thread waits for.
        let replica = Replica::open((id, slots), (store.clone(), reading.over()), clock, self.memory.clone(), reads);
        let open = Open {
            replica: Arc::new(replica.map_err(Error::Shard)?),
            followed,
            fresh_us: AtomicU64::new(applied.fresh_us),
            shown_bytes: AtomicU64::new(applied.bytes),
        };
        reading.passed(drained);
        Ok(Some((Arc::new(open), store)))
    }

    fn catch_up(&self, place: &Place, open: &Open, store: &Store, reading: &Reading) -> Result<()> {
        let mut passed = reading.drained();
        let (mut looks_for_segments, mut looked_us) = (true, now_us());
        loop {
            let since_read = Duration::from_micros(now_us().saturating_sub(place.read_us.load(Ordering::Relaxed)));
            let is_over = reading.is_over() || open.followed.is_over() || place.is_over.load(Ordering::Acquire);
            if is_over || self.stops.load(Ordering::Acquire) || since_read > MAX_IDLE {
                return Ok(());
            }
            // Before the files are looked at.
            let (drained, applied) = (reading.drained(), open.followed.applied());
            // What went after the last look stays open, and takes space, also where nothing more is
            // written.
            let is_long_ago = now_us() >= looked_us + LOOK_FOR_SEGMENTS_US;
            looks_for_segments |= drained > passed || is_long_ago;
            let caught_up = open.replica.change(MAX_CATCH_UP_WAIT, || {
                let _duty = DutyScope::begin(&*self.duties, Duty::Read);
                store.catch_up(looks_for_segments)
            });
            match caught_up {
                // Somebody reads something long, and others have their turn.
                None => std::thread::sleep(CATCH_UP_INTERVAL),
                Some(Err(error)) if reading.is_over() => {
                    debug!(shard = place.id.0, %error, "a copy that is closed could not be caught up with");
                    return Ok(());
                }
                Some(Err(error)) => return Err(error.into()),
                Some(Ok(())) => {
                    if looks_for_segments {
                        looked_us = now_us();
                    }
                    (passed, looks_for_segments) = (drained, false);
                    reading.passed(drained);
                    if let Some(applied) = applied {
                        open.replica.limit_clock(applied.clock_limit_ms);
                        open.shown_bytes.fetch_max(applied.bytes, Ordering::AcqRel);
                        open.fresh_us.fetch_max(applied.fresh_us, Ordering::AcqRel);
                    }
                }
            }
            reading.rest(if since_read > MAX_PAUSE { RESTING_INTERVAL } else { CATCH_UP_INTERVAL });
        }
    }
}

impl ReplicaReads for Reads {
    fn find(&self, slot: Slot) -> Option<Arc<Replica>> {
        let (place, max_staleness_us) = self.place_of(slot)?;
        place.read_us.store(now_us(), Ordering::Relaxed);
        let open = place.open.read().clone();
        let replica = match open {
            Some(open) => {
                let stale_us = now_us().saturating_sub(open.fresh_us.load(Ordering::Acquire));
                max_staleness_us.is_none_or(|most| stale_us <= most).then(|| open.replica.clone())
            }
            None => {
                self.open(&place);
                None
            }
        };
        if replica.is_none() {
            place.counts.refused.fetch_add(1, Ordering::Relaxed);
        }
        replica
    }
}

/// The copies that a server may read by this map; those that were there before where nothing has
/// changed of them.
fn places(known: &Known, before: &[Arc<Place>], counts: &mut BTreeMap<MapShardId, Arc<Counts>>) -> Vec<Arc<Place>> {
    let is_replica = |shard: &Shard| {
        shard.copies.contains(&known.member) && shard.primary != Some(known.member) && is_replicated(&known.map, shard)
    };
    let before: BTreeMap<MapShardId, &Arc<Place>> = before.iter().map(|place| (place.id, place)).collect();
    let place = |(id, shard): (&MapShardId, &Shard)| {
        let slots: SlotRanges = shard.slots.iter().map(|range| (range.first, range.last)).collect();
        if let Some(same) = before.get(id).filter(|place| place.slots == slots) {
            return Arc::clone(same);
        }
        Arc::new(Place {
            id: *id,
            slots,
            open: RwLock::default(),
            is_followed: AtomicBool::new(false),
            failed_us: AtomicU64::new(0),
            read_us: AtomicU64::new(0),
            counts: counts.entry(*id).or_default().clone(),
            is_over: AtomicBool::new(false),
        })
    };
    known.map.shards.iter().filter(|(_, shard)| is_replica(shard)).map(place).collect()
}

/// The reads of a server, once there may be some.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReadsHandle(Arc<OnceLock<std::sync::Weak<Reads>>>);

impl ReadsHandle {
    /// These are served from now on.
    pub(crate) fn serves(&self, reads: &Arc<Reads>) {
        let _ = self.0.set(Arc::downgrade(reads));
    }

    /// Of each copy here, what there is to show.
    pub(crate) fn facts(&self) -> Vec<(MapShardId, ReadFacts)> {
        self.0.get().and_then(std::sync::Weak::upgrade).map(|reads| reads.facts()).unwrap_or_default()
    }
}

/// The reads of copies here, for `INFO replication`.
pub(crate) fn info_lines(facts: &[(MapShardId, ReadFacts)]) -> Vec<(String, String)> {
    if facts.is_empty() {
        return Vec::new();
    }
    let stalest = facts.iter().filter_map(|(_, facts)| facts.staleness);
    let (bytes, us) = stalest.fold((0, 0), |(bytes, us), of| (of.bytes.max(bytes), of.us.max(us)));
    let sum = |of: &dyn Fn(&ReadFacts) -> u64| facts.iter().map(|(_, facts)| of(facts)).sum::<u64>().to_string();
    let line = |name: &str, value: String| (format!("replica_reads_{name}"), value);
    vec![
        line("open", sum(&|facts| facts.is_open.into())),
        line("total", sum(&|facts| facts.reads)),
        line("refused_total", sum(&|facts| facts.refused)),
        line("max_staleness_bytes", bytes.to_string()),
        line("max_staleness_ms", Duration::from_micros(us).as_millis().to_string()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_copies_that_are_read_the_stalest_is_shown_and_all_reads() {
        assert!(info_lines(&[]).is_empty());
        let open =
            |bytes, us, reads| ReadFacts { is_open: true, staleness: Some(Staleness { bytes, us }), reads, refused: 1 };
        let closed = ReadFacts { reads: 5, ..ReadFacts::default() };
        let lines = info_lines(&[
            (MapShardId(1), open(7, 2_500, 10)),
            (MapShardId(2), open(3, 9_100, 20)),
            (MapShardId(3), closed),
        ]);
        let all: Vec<String> = lines.into_iter().map(|(name, value)| format!("{name}:{value}")).collect();
        assert_eq!(
            all,
            [
                "replica_reads_open:2",
                "replica_reads_total:35",
                "replica_reads_refused_total:2",
                "replica_reads_max_staleness_bytes:7",
                "replica_reads_max_staleness_ms:9",
            ]
        );
    }
}
