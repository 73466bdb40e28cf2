//! Garbage collection by a worker, which has no values: it merges the tables and gives each record
//! a place in a new segment; this server, which has the records, copies them there.
//!
//! ```text
//!  owner: plan (numbers are reserved)  -->  worker: a Mover, a filter of its compaction
//!  owner: make_moved, checks, syncs    <--  tables, and which record goes where (Moves)
//!  RocksDB takes the tables
//! ```
//!
//! No value travels, nor is one read twice: a copy of a record is the record. Where that does not
//! hold (another format, dictionary or codec is in force, or samples for a dictionary are being
//! collected) there is no plan, and the compaction stays here. So it does where the policy has it
//! stay, for which waiting is worse than merging here; where little is moved, since each job has
//! segments of its own; and where there is no room for what is.
//!
//! Invariants:
//!
//! - No table that names a new segment is given to RocksDB before that is made, durable, and holds
//!   at each place that the tables name a record of that key, and of those lengths. Other segments
//!   they name only if the inputs do.
//! - The candidates stay until then: the tables that the job reads name them, and are live.
//! - What a job that failed has left is a segment that nothing names, and goes like any other.
//!
//! Failure: a record that cannot be read, a full device, a plan that has aged or a store that
//! closes fail the job; the compaction then runs here, where such a value stays where it is. A
//! segment with a record that cannot be read is in no plan any more, so that what was made for a
//! job in vain is not made again: [`MAX_UNREADABLE`] of them are known, until the store closes.
//!
//! Threads: that of the compaction. The worker's side, and what tables say: [`super::places`].

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ecotone_valuelog::Error;
use ecotone_valuelog::moves::{Candidate, MovePlan, Moved};
use ecotone_valuelog::pointer::{SegmentMap, SegmentNumber};
use ecotone_valuelog::segment::InFlight;

use super::copying::{Gc, Sources};
use super::places::{MovedValues, NamedPlace};

/// Of so many segments it is known that a record of theirs cannot be read.
const MAX_UNREADABLE: usize = 1024;

impl Gc {
    /// What a worker is to know that moves the candidates' values out of tables which name so many
    /// bytes of each segment, and have so many entries. `None` where it could not, or has none to
    /// move.
    pub(crate) fn plan_moves(&self, named: &SegmentMap<u64>, entries: u64) -> Option<MovePlan> {
        if self.is_stopping() {
            return None;
        }
        // Values that are to be packed, or looked at, are so on the way.
        let codec = self.compression().map(|compression| compression.relocating_by());
        if codec == Some(None) {
            return None;
        }
        let set = self.candidates();
        let (mut candidates, mut bytes) = (Vec::new(), 0);
        for (number, named_bytes) in named.iter().filter(|(number, _)| set.contains(number)) {
            let segment = self.log().segment(*number)?;
            bytes += named_bytes;
            if self.unreadable().lock().contains(number) {
                return None;
            }
            candidates.push(Candidate { segment: *number, again: segment.is_relocated() });
        }
        candidates.sort_unstable_by_key(|candidate| candidate.segment);
        if self.admission.as_ref().is_some_and(|admission| bytes > admission.for_gc()) {
            return None;
        }
        let planned = self.log().plan_moves(candidates, bytes, entries, codec.flatten());
        planned.inspect_err(|error| tracing::debug!(%error, "a garbage collection stays here")).ok().flatten()
    }

    /// A plan of which nothing was made, and nothing will be.
    pub(crate) fn forget_plan(&self, plan: &MovePlan) {
        self.log().give_back_numbers(plan.first, plan.segments);
    }

    /// Makes the segments that a worker has laid out, and checks that what its tables name is
    /// there. Keep what is returned until RocksDB has the tables.
    pub(crate) fn make_moved(
        self: &Arc<Self>,
        plan: &MovePlan,
        moved: &MovedValues,
        level: u32,
    ) -> Result<Vec<InFlight>, String> {
        let bytes = moved.moves.bytes();
        if self.admission.as_ref().is_some_and(|admission| !admission.admit_gc(bytes as usize)) {
            return Err(format!("there is no room for {bytes} bytes of values"));
        }
        let mut sources = Sources::new(self, plan.candidates.iter().map(|candidate| candidate.segment));
        let mut made = Vec::new();
        let (mut raw_bytes, mut stored_bytes) = (0, 0);
        let mut places = moved.places.iter().peekable();
        for moves in &moved.moves.0 {
            let number = plan.first.0 + moves.place;
            let mut wrong = None;
            let mut last_read = None;
            let in_flight = self.log().move_records(
                plan,
                moves,
                level,
                |segment, offset, into| {
                    if self.is_stopping() {
                        return Err(Error::NotMoved { detail: "the store closes".into() });
                    }
                    last_read = Some(segment.number());
                    sources.read(segment, offset, into).inspect_err(|error| {
                        if matches!(error, Error::Io { .. }) {
                            self.is_unreadable(segment.number());
                        }
                    })
                },
                |Moved { offset, key, value_bytes, stored_bytes: stored }| {
                    raw_bytes += u64::from(value_bytes);
                    stored_bytes += u64::from(stored.unwrap_or(value_bytes));
                    let key = crc32c::crc32c(key);
                    let is = NamedPlace { segment: number, offset, value_bytes, stored_bytes: stored, key };
                    // In their order. Versions that a snapshot keeps are not moved: each place is
                    // named once.
                    while let Some(named) =
                        places.peek().filter(|named| (named.segment, named.offset) <= (number, offset))
                    {
                        if **named != is {
                            wrong.get_or_insert(**named);
                        }
                        places.next();
                    }
                },
            );
            made.push(in_flight.map_err(|error| {
                if let (Error::Corrupt { .. }, Some(read)) = (&error, last_read) {
                    self.is_unreadable(read);
                }
                error.to_string()
            })?);
            if let Some(NamedPlace { segment, offset, .. }) = wrong {
                return Err(format!("a table names offset {offset} of segment {segment}, where no such record is"));
            }
        }
        if let Some(NamedPlace { segment, offset, .. }) = places.next() {
            return Err(format!("a table names offset {offset} of segment {segment}, where nothing is"));
        }
        self.log().sync_names().map_err(|error| error.to_string())?;
        self.count_relocated(bytes);
        if let Some(compression) = self.compression() {
            compression.moved(raw_bytes, stored_bytes);
        }
        Ok(made)
    }

    fn is_unreadable(&self, segment: SegmentNumber) {
        let mut unreadable = self.unreadable().lock();
        if unreadable.len() >= MAX_UNREADABLE {
            // Numbers are not given twice: those of segments that are gone come first.
            unreadable.retain(|number| self.log().has_segment(*number));
        }
        if unreadable.len() >= MAX_UNREADABLE {
            unreadable.clear();
        }
        unreadable.insert(segment);
    }

    fn is_stopping(&self) -> bool {
        self.stopping().load(Ordering::Relaxed)
    }
}
