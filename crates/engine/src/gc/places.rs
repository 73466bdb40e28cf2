//! The places that a worker gives to values in garbage collection: chosen in its compaction, and
//! found again in the tables that it has written. What becomes of them: [`super::moving`].
//!
//! Bounds: those of the plan ([`ecotone_valuelog::moves`]). Threads: a [`Mover`] belongs to one
//! job, a collector to one table.

use std::ops::Range;
use std::sync::Arc;

use ecotone_rocks::compaction_filter::{CompactionFilter, CompactionFilterFactory, FilterContext, Verdict};
use ecotone_rocks::properties::{EntryKind, TableCollector};
use ecotone_valuelog::moves::{Move, MovePlan, Moves, SegmentMoves};
use ecotone_valuelog::pointer::{RecordPointer, SegmentMap, SegmentNumber, SegmentSet};
use parking_lot::Mutex;

use crate::header::{Header, Kind, encode_separated};

/// Gives records their places while a worker compacts: for
/// [`WorkerRequest::mover`](crate::WorkerRequest). It is for one job.
#[derive(Debug)]
pub struct Mover {
    plan: MovePlan,
    places: SegmentMap<u32>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    segments: Vec<SegmentMoves>,
    /// Of values that a user wrote, and of those that were relocated before: the segment that is
    /// filled, as an index of the above, and its length.
    open: [Option<(usize, u64)>; 2],
}

impl Mover {
    /// As `plan` ([`RemoteJob::moves`](crate::RemoteJob::moves)) says, which came as bytes.
    ///
    /// # Errors
    ///
    /// What is wrong with them.
    pub fn new(plan: &[u8]) -> Result<Arc<Self>, String> {
        let plan = MovePlan::decode(plan)?;
        let places = plan.candidates.iter().enumerate().map(|(place, it)| (it.segment, place as u32)).collect();
        Ok(Arc::new(Self { plan, places, state: Mutex::default() }))
    }

    /// Forgets what was moved: the job begins anew.
    pub fn reset(&self) {
        *self.state.lock() = State::default();
    }

    /// What was moved, for [`VerifiedResult::with_moves`](crate::VerifiedResult::with_moves).
    pub fn moved(&self) -> Vec<u8> {
        Moves(self.state.lock().segments.clone()).encode()
    }

    /// The place of a record that is to be moved; `None` where it stays.
    fn place(&self, key_bytes: usize, pointer: RecordPointer) -> Option<RecordPointer> {
        let candidate = *self.places.get(&pointer.segment)?;
        let again = self.plan.candidates[candidate as usize].again;
        let bytes = u32::try_from(pointer.record_bytes(key_bytes)).ok()?;
        let mut state = self.state.lock();
        let state = &mut *state;
        let has_space = |(at, end): &(usize, u64)| {
            end + u64::from(bytes) <= u64::from(self.plan.segment_bytes)
                && (state.segments[*at].records.len() as u32) < self.plan.records
        };
        let (at, end) = match state.open[usize::from(again)].filter(has_space) {
            Some(open) => open,
            None if state.segments.len() < self.plan.segments as usize => {
                let place = state.segments.len() as u32;
                state.segments.push(SegmentMoves { place, records: Vec::new() });
                (state.segments.len() - 1, u64::from(self.plan.head_bytes))
            }
            // What is left is for the next one.
            None => return None,
        };
        let offset = u32::try_from(end).ok()?;
        state.segments[at].records.push(Move { candidate, offset: pointer.offset, bytes });
        state.open[usize::from(again)] = Some((at, end + u64::from(bytes)));
        Some(RecordPointer { segment: SegmentNumber(self.plan.first.0 + at as u32), offset, ..pointer })
    }
}

/// Gives each compaction of a worker the filter of its only job.
pub(crate) struct MoverFactory(pub(crate) Arc<Mover>);

impl CompactionFilterFactory for MoverFactory {
    fn filter(&self, _context: FilterContext) -> Option<Box<dyn CompactionFilter>> {
        Some(Box::new(MoverFilter { mover: self.0.clone(), stored: Vec::new() }))
    }
}

struct MoverFilter {
    mover: Arc<Mover>,
    stored: Vec<u8>,
}

impl CompactionFilter for MoverFilter {
    fn decide(&mut self, _level: u32, key: &[u8], value: &[u8]) -> Verdict<'_> {
        let Ok(Header { kind: Kind::Separated(pointer), bytes, .. }) = Header::decode(value) else {
            return Verdict::Keep;
        };
        let Some(moved) = self.mover.place(key.len(), pointer) else { return Verdict::Keep };
        self.stored.clear();
        encode_separated(&value[..bytes], moved, &mut self.stored);
        Verdict::Change(&self.stored)
    }
}

/// A record that a table of a worker names in a new segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NamedPlace {
    pub(crate) segment: u32,
    pub(crate) offset: u32,
    pub(crate) value_bytes: u32,
    /// As in a [`RecordPointer`].
    pub(crate) stored_bytes: Option<u32>,
    /// crc32c of its key.
    pub(crate) key: u32,
}

/// What the tables of a worker name.
#[derive(Debug, Default)]
pub(crate) struct Named {
    /// In segments that it has laid out.
    pub(crate) places: Vec<NamedPlace>,
    /// Other segments.
    pub(crate) others: SegmentSet,
}

/// Collects what a table names, by whether it is in segments of these numbers, before another
/// collector sees the entries.
pub(crate) struct PlaceCollector {
    pub(crate) next: Box<dyn TableCollector>,
    pub(crate) numbers: Range<u32>,
    pub(crate) named: Arc<Mutex<Named>>,
}

impl TableCollector for PlaceCollector {
    fn add(&mut self, key: &[u8], value: &[u8], kind: EntryKind, sequence: u64, file_bytes: u64) {
        if kind == EntryKind::Put
            && let Ok(Header { kind: Kind::Separated(pointer), .. }) = Header::decode(value)
        {
            let RecordPointer { segment, offset, value_bytes, stored_bytes } = pointer;
            let mut named = self.named.lock();
            if self.numbers.contains(&segment.0) {
                let key = crc32c::crc32c(key);
                named.places.push(NamedPlace { segment: segment.0, offset, value_bytes, stored_bytes, key });
            } else {
                named.others.insert(segment);
            }
        }
        self.next.add(key, value, kind, sequence, file_bytes);
    }

    fn finish(&mut self) -> Vec<(String, Vec<u8>)> {
        self.next.finish()
    }
}

/// What a worker has moved, and where its tables say that it is.
#[derive(Debug)]
pub(crate) struct MovedValues {
    pub(crate) moves: Moves,
    /// In their order.
    pub(crate) places: Vec<NamedPlace>,
}

impl MovedValues {
    /// From what a worker says, which keeps to `plan`.
    pub(crate) fn decode(bytes: &[u8], plan: &MovePlan, mut places: Vec<NamedPlace>) -> Result<Self, String> {
        let mut moves = Moves::decode(bytes, plan)?;
        moves.0.sort_unstable_by_key(|segment| segment.place);
        places.sort_unstable();
        Ok(Self { moves, places })
    }
}
