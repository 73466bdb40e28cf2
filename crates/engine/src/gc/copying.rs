//! Garbage collection: live values of garbage-rich segments are copied while their tables are
//! compacted anyway.
//!
//! A candidate set of segments is chosen (see `ecotone_policy::gc`). Every local compaction that
//! meets a pointer into it, but for those that merge duplicates
//! ([`CompactionPurpose::copies_values`]), appends the value to a stream of the level that its
//! tables go to, in the order of the keys, and changes the pointer. The change becomes real with
//! the compaction or not at all. When the last table that named a segment of the candidate set is
//! gone, the segment goes too (see [`super::removal`]).
//!
//! Invariants:
//!
//! - What a compaction has relocated is synced before its table is said to be: see
//!   [`crate::value_store::barrier`].
//! - A segment is kept while a compaction runs that has appended to it, because no table refers to
//!   it yet (see [`super::removal`]).
//! - A value that cannot be read stays where it is. A filter must not fail; the reader of the value
//!   will.
//!
//! Where there is no room for a copy the value stays where it is, as well: garbage collection must
//! free space, not fill the disk.
//!
//! A value whose time is over is removed instead (see [`crate::expired`]).
//!
//! A copy is [`Duty::Gc`], also where it is made by a compaction that runs for another reason. To
//! say so costs two readings of the thread's clock, so a few entries that are kept between two
//! copies count as well.
//!
//! Threads: a compaction, or a subcompaction of one, runs on one thread. RocksDB makes its filter
//! before it tells the listener that the subcompaction begins, and asks it after that, so the level
//! is looked up when the first value is copied. A subcompaction that is given up before it begins
//! is not told of; nothing but the choice of a stream rests on what the listener has said.

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ecotone_io::mapped_reads::MappedReads;
use ecotone_rocks::compaction_filter::{CompactionFilter, CompactionFilterFactory, FilterContext, Verdict};
use ecotone_types::Duty;
use ecotone_valuelog::log::ValueLog;
use ecotone_valuelog::log::ValueOrigin;
use ecotone_valuelog::pointer::{Pointer, RecordPointer, SegmentMap, SegmentNumber, SegmentSet};
use ecotone_valuelog::segment::{InFlight, Segment};
use parking_lot::{Mutex, RwLock};

use super::throttle::WriteThrottle;
use super::urgency::Urgency;
use crate::compaction::internal::InternalCompactions;
use crate::compaction::jobs::CompactionPurpose;
use crate::duties::ThreadDuties;
use crate::expired::{ExpiredAtBegin, ExpiredValues};
use crate::header::{Header, Kind, encode_separated};
use crate::space::admission::AdmissionControl;
use crate::value_store::compression::ValueCompression;

thread_local! {
    /// The level that the tables of the compaction on this thread go to, or of the subcompaction of
    /// one.
    static OUTPUT_LEVEL: Cell<Option<u32>> = const { Cell::new(None) };
    /// Whether the compaction on this thread has relocated something that is not synced.
    static UNSYNCED: Cell<bool> = const { Cell::new(false) };
}

/// Says to which level the subcompaction of a compaction writes that begins on this thread; `None`
/// when it ends.
pub(crate) fn mark_subcompaction(output_level: Option<i32>) {
    OUTPUT_LEVEL.set(output_level.and_then(|level| u32::try_from(level).ok()));
}

/// Says whether this thread has relocated something since it was last asked.
pub(crate) fn take_unsynced() -> bool {
    UNSYNCED.replace(false)
}

/// Says that what this thread has relocated could not be synced.
pub(crate) fn mark_unsynced() {
    UNSYNCED.set(true);
}

/// What garbage collection is to do, and what it has done. Shared by the filters of all
/// compactions.
pub(crate) struct Gc {
    log: Arc<ValueLog>,
    /// `None` where every segment is of format 1.
    compression: Option<Arc<ValueCompression>>,
    duties: ThreadDuties,
    /// Asked before each copy; `None` where nothing is written.
    pub(crate) admission: Option<Arc<AdmissionControl>>,
    candidates: RwLock<Arc<SegmentSet>>,
    /// How slow users' writes are to be.
    pub(crate) throttle: WriteThrottle,
    is_pursued: AtomicBool,
    /// Whether the compaction of the policy's that runs may go to another server.
    may_go: AtomicBool,
    /// Segments with a record that could not be read when values were to be moved.
    unreadable: Mutex<SegmentSet>,
    /// The ratio from which on tables are compacted forcibly.
    ratio_per_mille: AtomicU64,
    /// Among them those that are made for garbage collection alone.
    pub(crate) internal: Arc<InternalCompactions>,
    expired: Option<ExpiredValues>,
    pub(crate) urgency: Urgency,
    /// The store closes: what runs should end soon.
    stopping: AtomicBool,
    relocated_bytes: AtomicU64,
    /// Bytes of segments that may be mapped into memory at a time, and that are.
    max_mapped_bytes: u64,
    mapped_bytes: AtomicU64,
}

impl Gc {
    /// With `expired`, compactions remove values whose time is over.
    pub(crate) fn new(
        log: Arc<ValueLog>,
        admission: Option<Arc<AdmissionControl>>,
        internal: Arc<InternalCompactions>,
        expired: Option<ExpiredValues>,
        max_mapped_bytes: u64,
        duties: ThreadDuties,
    ) -> Self {
        Self {
            log,
            compression: None,
            duties,
            admission,
            candidates: RwLock::default(),
            throttle: WriteThrottle::default(),
            is_pursued: AtomicBool::new(false),
            may_go: AtomicBool::new(false),
            unreadable: Mutex::default(),
            ratio_per_mille: AtomicU64::new(0),
            internal,
            expired,
            urgency: Urgency::default(),
            stopping: AtomicBool::new(false),
            relocated_bytes: AtomicU64::new(0),
            max_mapped_bytes,
            mapped_bytes: AtomicU64::new(0),
        }
    }

    /// The same, that copies values as they are to be compressed.
    pub(crate) fn with_compression(self, compression: Option<Arc<ValueCompression>>) -> Self {
        Self { compression, ..self }
    }

    /// Where the segments are.
    pub(crate) fn directory(&self) -> &Path {
        self.log.directory()
    }

    /// The segments whose values are relocated by compactions that begin now.
    pub(crate) fn candidates(&self) -> Arc<SegmentSet> {
        self.candidates.read().clone()
    }

    /// Sets the segments whose values are relocated by compactions that begin from now on.
    pub(crate) fn set_candidates(&self, candidates: SegmentSet) {
        *self.candidates.write() = Arc::new(candidates);
    }

    /// Sets whether the candidate set is relocated by forced compactions, and not only
    /// opportunistically.
    pub(crate) fn set_pursued(&self, pursued: bool) {
        self.is_pursued.store(pursued, Ordering::Relaxed);
    }

    /// Sets whether the compaction that begins next for garbage collection alone may go to another
    /// server.
    pub(crate) fn set_may_go(&self, may_go: bool) {
        self.may_go.store(may_go, Ordering::Relaxed);
    }

    /// Whether it may.
    pub(crate) fn may_go(&self) -> bool {
        self.may_go.load(Ordering::Relaxed)
    }

    /// Segments with a record that cannot be read are left to compactions here: see
    /// [`super::moving`].
    pub(super) fn unreadable(&self) -> &Mutex<SegmentSet> {
        &self.unreadable
    }

    /// From now on compactions leave every value where it is.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// Segments whose values are being relocated forcibly.
    pub(crate) fn candidate_segments(&self) -> u64 {
        if self.is_pursued.load(Ordering::Relaxed) { self.candidates.read().len() as u64 } else { 0 }
    }

    /// Says from which ratio on tables are compacted forcibly now.
    pub(crate) fn set_ratio(&self, forced_ratio: f64) {
        self.ratio_per_mille.store((forced_ratio * 1000.0).round() as u64, Ordering::Relaxed);
    }

    /// That ratio, in thousandths; 0 before the first round.
    pub(crate) fn ratio_per_mille(&self) -> u64 {
        self.ratio_per_mille.load(Ordering::Relaxed)
    }

    pub(super) fn log(&self) -> &Arc<ValueLog> {
        &self.log
    }

    pub(super) fn stopping(&self) -> &AtomicBool {
        &self.stopping
    }

    /// Where new segments are of format 2.
    pub(super) fn compression(&self) -> Option<&Arc<ValueCompression>> {
        self.compression.as_ref()
    }

    pub(super) fn count_relocated(&self, bytes: u64) {
        self.relocated_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes of records relocated since the store was opened.
    pub(crate) fn relocated_bytes(&self) -> u64 {
        self.relocated_bytes.load(Ordering::Relaxed)
    }
}

/// Makes a filter for each compaction.
pub(crate) struct GcFilterFactory(pub(crate) Arc<Gc>);

impl CompactionFilterFactory for GcFilterFactory {
    fn filter(&self, context: FilterContext) -> Option<Box<dyn CompactionFilter>> {
        // A compaction that a user asked for is manual, too: one that begins beside a merge copies
        // nothing either, and garbage collection makes up for it.
        let internal = if context.is_manual { self.0.internal.current() } else { None };
        let copies = internal.is_none_or(CompactionPurpose::copies_values);
        let candidates = if copies { self.0.candidates() } else { Arc::default() };
        if candidates.is_empty() && self.0.expired.is_none() {
            // Nothing to do: the compaction is not slowed by a call for each entry.
            return None;
        }
        let sources = Sources::new(&self.0, candidates.iter().copied());
        Some(Box::new(GcFilter {
            gc: self.0.clone(),
            candidates,
            input_level: context.input_level,
            output_level: None,
            // All that such a compaction does is garbage collection already.
            tells_duty: internal != Some(CompactionPurpose::Gc),
            expired: self.0.expired.map(ExpiredValues::at_begin),
            in_flight: Vec::new(),
            last_segments: [None; 2],
            sources,
            record: Vec::new(),
            stored: Vec::new(),
            told: false,
            in_duty: false,
            kept_since: 0,
            has_space: true,
        }))
    }
}

/// The filter of one compaction, or of a subcompaction of one.
struct GcFilter {
    gc: Arc<Gc>,
    candidates: Arc<SegmentSet>,
    input_level: Option<u32>,
    /// Known from the first copy on.
    output_level: Option<u32>,
    /// Whether a copy is another duty than the compaction it is made in.
    tells_duty: bool,
    expired: Option<ExpiredAtBegin>,
    /// The segments that values went to, each once, in flight until this filter is dropped. The
    /// compaction's inputs are marked as being compacted for longer than that.
    in_flight: Vec<InFlight>,
    /// The last of them of either stream.
    last_segments: [Option<SegmentNumber>; 2],
    sources: Sources,
    record: Vec<u8>,
    stored: Vec<u8>,
    told: bool,
    /// Whether this thread is said to relocate, and how many entries were kept since its last copy.
    in_duty: bool,
    kept_since: u32,
    /// Once there was no room for a copy, all that follows stays where it is: a compaction must not
    /// ask for each value.
    has_space: bool,
}

/// The segments that a compaction copies from. They are mapped into memory while there is room: a
/// call for each value costs as much as all else about a copy.
///
/// The kernel is asked to bring what lies around the second value that is read in a piece of
/// [`AHEAD_BYTES`]: values of neighbouring keys lie anywhere in a segment, and a device reads the
/// whole piece in the time of a few of them. Not where the segments are so many that pieces may be
/// gone from the kernel's cache before the turn of their values: there each is read by itself and
/// past that cache.
pub(super) struct Sources {
    gc: Arc<Gc>,
    /// Whether the segments of the candidate set do.
    fits_in_cache: bool,
    of: SegmentMap<Source>,
}

struct Source {
    /// `None` for one that is read by calls.
    mapped: Option<(MappedReads, u64)>,
    /// The values that were read in each piece; counted up to [`READS_BEFORE_AHEAD`].
    reads: Vec<u8>,
}

/// What is asked for at a time: as much as the kernel reads ahead of a file by itself, since it
/// cuts off what is asked for beyond that.
const AHEAD_BYTES: u64 = 128 * 1024;

/// A compaction of a few keys may read one value in a piece, and none after it.
const READS_BEFORE_AHEAD: u8 = 2;

impl Sources {
    /// Those are `numbers`.
    pub(super) fn new(gc: &Arc<Gc>, numbers: impl Iterator<Item = SegmentNumber>) -> Self {
        let bytes = numbers.filter_map(|number| gc.log.segment(number)).map(|segment| segment.bytes()).sum();
        Self { gc: gc.clone(), fits_in_cache: gc.log.fits_in_cache(bytes), of: SegmentMap::default() }
    }

    pub(super) fn read(&mut self, segment: &Segment, offset: u64, into: &mut [u8]) -> ecotone_valuelog::Result<()> {
        let gc = &self.gc;
        if !self.fits_in_cache && gc.log.read_past_cache(segment, offset, into)? {
            return Ok(());
        }
        gc.log.will_open(segment, false);
        let source = self.of.entry(segment.number()).or_insert_with(|| Source {
            mapped: gc.map(segment),
            reads: vec![0; segment.bytes().div_ceil(AHEAD_BYTES) as usize],
        });
        source.look_ahead(segment, offset);
        if let Some((mapped, bytes)) = &source.mapped {
            if segment.read_mapped(mapped, offset, into).is_ok() {
                return Ok(());
            }
            // A page of it cannot be had. Calls find out which values are in the others.
            gc.mapped_bytes.fetch_sub(*bytes, Ordering::Relaxed);
            source.mapped = None;
        }
        segment.read(offset, into)
    }
}

impl Source {
    #[inline]
    fn look_ahead(&mut self, segment: &Segment, offset: u64) {
        let piece = offset / AHEAD_BYTES;
        // None for a segment that has grown since: only sealed ones are relocated.
        let Some(reads) = self.reads.get_mut(piece as usize).filter(|reads| **reads < READS_BEFORE_AHEAD) else {
            return;
        };
        *reads += 1;
        if *reads == READS_BEFORE_AHEAD {
            segment.will_need(piece * AHEAD_BYTES, AHEAD_BYTES);
        }
    }
}

impl Drop for Sources {
    fn drop(&mut self) {
        let bytes: u64 = self.of.values().filter_map(|source| source.mapped.as_ref()).map(|(_, bytes)| bytes).sum();
        self.gc.mapped_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Gc {
    fn map(&self, segment: &Segment) -> Option<(MappedReads, u64)> {
        let bytes = segment.bytes();
        let taken = self.mapped_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let mapped = if taken <= self.max_mapped_bytes { segment.mapped() } else { None };
        if mapped.is_none() {
            self.mapped_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        mapped.map(|mapped| (mapped, bytes))
    }
}

/// So many entries without a copy end the duty. One costs a tenth of a copy.
const KEPT_IN_DUTY: u32 = 16;

impl Drop for GcFilter {
    fn drop(&mut self) {
        self.end_duty();
    }
}

impl GcFilter {
    fn begin_duty(&mut self) {
        self.kept_since = 0;
        if self.tells_duty && !std::mem::replace(&mut self.in_duty, true) {
            self.gc.duties.begin(Duty::Gc);
        }
    }

    fn end_duty(&mut self) {
        if std::mem::replace(&mut self.in_duty, false) {
            self.gc.duties.end();
        }
    }

    #[inline]
    fn kept(&mut self) {
        if self.in_duty {
            self.kept_since += 1;
            if self.kept_since >= KEPT_IN_DUTY {
                self.end_duty();
            }
        }
    }

    fn has_space_for(&mut self, record_bytes: usize) -> bool {
        let admission = self.gc.admission.as_ref();
        self.has_space = self.has_space && admission.is_none_or(|admission| admission.admit_gc(record_bytes));
        self.has_space
    }

    /// Copies the value; `None` where that cannot be done.
    fn relocate(&mut self, key: &[u8], header: &[u8], pointer: RecordPointer) -> Option<()> {
        self.begin_duty();
        let level = *self.output_level.get_or_insert_with(|| OUTPUT_LEVEL.get().or(self.input_level).unwrap_or(0));
        let mut again = false;
        let copied = self
            .gc
            .log
            .read_record_by(key, pointer, &mut self.record, |segment, offset, into| {
                self.sources.read(segment, offset, into)?;
                // By now its header has been read.
                again = segment.is_relocated();
                Ok(())
            })
            .and_then(|()| {
                let place = ValueOrigin::Relocated { level, again };
                if let Some(compression) = &self.gc.compression {
                    return compression.append_copy(place, key, pointer, &self.record);
                }
                if pointer.stored_bytes.is_some() {
                    // Only where the store's identity was put back from before it had such values.
                    return Err(ecotone_valuelog::Error::Corrupt {
                        location: Some(self.gc.log.place(pointer)),
                        detail: "the store says that it has no compressed values, and this is one".into(),
                    });
                }
                let from =
                    Pointer { segment: pointer.segment, offset: pointer.offset, value_bytes: pointer.value_bytes };
                let (copy, in_flight) = self.gc.log.append_record(place, from, &self.record)?;
                Ok((copy.into(), in_flight))
            });
        let (copy, in_flight) = match copied {
            Ok(copied) => copied,
            Err(error) => {
                if !std::mem::replace(&mut self.told, true) {
                    tracing::warn!(%error, "values could not be relocated; they stay where they are");
                }
                return None;
            }
        };
        UNSYNCED.set(true);
        if self.last_segments[usize::from(again)].replace(copy.segment) != Some(copy.segment) {
            self.in_flight.push(in_flight);
        }
        let (before, after) = (pointer.record_bytes(key.len()), copy.record_bytes(key.len()));
        self.gc.relocated_bytes.fetch_add(after as u64, Ordering::Relaxed);
        if after > before {
            // With another dictionary it does not shrink as much. What follows may find no room.
            self.has_space_for(after - before);
        }
        self.stored.clear();
        encode_separated(header, copy, &mut self.stored);
        Some(())
    }
}

impl CompactionFilter for GcFilter {
    fn decide(&mut self, _level: u32, key: &[u8], value: &[u8]) -> Verdict<'_> {
        let Ok(header) = Header::decode(value) else { return Verdict::Keep };
        if self.expired.as_ref().is_some_and(|expired| expired.takes(&header.attributes)) {
            return Verdict::Remove;
        }
        match header.kind {
            Kind::Separated(pointer)
                if self.candidates.contains(&pointer.segment)
                    && !self.gc.stopping.load(Ordering::Relaxed)
                    && self.has_space_for(pointer.record_bytes(key.len())) =>
            {
                match self.relocate(key, &value[..header.bytes], pointer) {
                    Some(()) => Verdict::Change(&self.stored),
                    None => Verdict::Keep,
                }
            }
            _ => {
                self.kept();
                Verdict::Keep
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::time::Duration;

    use ecotone_io::tap::Tap;
    use ecotone_policy::dedup::plan::Merge;
    use ecotone_policy::gc::GcParameters;
    use ecotone_rocks::tables::live_tables;
    use ecotone_types::units::Bytes;
    use parking_lot::Mutex;

    use super::*;
    use crate::compaction::by_names;
    use crate::header::{Attributes, encode_inline};
    use crate::{CompactionFinished, OpenMode, Separation, Store, StoreEvents, StoreSettings};

    /// How many parts each compaction had.
    #[derive(Default)]
    struct SubcompactionEvents(Mutex<Vec<u32>>);

    impl StoreEvents for SubcompactionEvents {
        fn compaction_finished(&self, event: &CompactionFinished) {
            self.0.lock().push(event.subcompactions);
        }
    }

    /// By whichever thread, and whatever that one has done before.
    #[test]
    fn what_is_relocated_goes_to_segments_of_the_level_that_its_tables_go_to() {
        let directory = tempfile::tempdir().unwrap();
        let subcompactions = Arc::new(SubcompactionEvents::default());
        let options = StoreSettings {
            separation: Some(Separation { min_bytes: 50, segment_bytes: 256 * 1024 }),
            dynamic_levels: false,
            target_file_bytes: 64 * 1024,
            max_subcompactions: 4,
            // The candidate set is set here and by nobody else.
            gc: GcParameters {
                min_garbage_bytes: Bytes(u64::MAX),
                forced_ratio: 1e6,
                urgent_ratio: 2e6,
                ..GcParameters::default()
            },
            ..StoreSettings::default()
        };
        let builder = Store::builder(&directory.path().join("store")).mode(OpenMode::Create).settings(options);
        let store = builder.events(subcompactions.clone()).open().unwrap();
        for number in 0..20_000_u32 {
            store.put(&number.to_be_bytes(), &[7; 100]).unwrap();
        }
        store.flush(true).unwrap();
        let values = store.values.as_ref().unwrap();
        for level in [2, 4] {
            values.log.seal_active();
            let before: Vec<_> = values.log.segments().iter().map(|segment| segment.number()).collect();
            let last = *before.last().unwrap();
            values.gc.set_candidates(before.into_iter().collect());
            let numbers: Vec<_> = live_tables(&store.db).unwrap().iter().map(|table| table.file_number).collect();
            let (bytes, entries) = (Bytes::from_mib(1), 20_000);
            let all = Merge { seeds: numbers.clone(), inputs: numbers, output_level: level, bytes, entries };
            let permit = values.gc.internal.permit(Duration::from_secs(60)).unwrap();
            by_names::run(&store.db, store.family, &permit, CompactionPurpose::Gc, &all, 64 * 1024).unwrap();
            let copies = values.log.segments().into_iter().filter(|segment| segment.number() > last);
            let levels: Vec<_> = copies.map(|segment| std::fs::read(segment.path()).unwrap()[16]).collect();
            assert!(levels.len() > 1 && levels.iter().all(|found| u32::from(*found) == level + 1), "{levels:?}");
        }
        let subcompactions = subcompactions.0.lock();
        assert!(
            subcompactions.len() == 2 && subcompactions.iter().all(|subcompactions| *subcompactions > 1),
            "{subcompactions:?}"
        );
    }

    const SEGMENT_BYTES: u64 = 64 * 1024;

    fn is_separated(is_reopened: bool) {
        let directory = tempfile::tempdir().unwrap();
        let open = || Arc::new(ValueLog::open(directory.path(), SEGMENT_BYTES, Tap::SILENT).unwrap());
        let append = |log: &ValueLog, number: u32| {
            (number, log.append(ValueOrigin::Written, &number.to_be_bytes(), &[number as u8; 1000]).unwrap().0.into())
        };
        // One compaction that relocates all values that there are, in the order of keys. Where they
        // were is dropped.
        let relocate = |log: &Arc<ValueLog>, pointers: &mut [(u32, RecordPointer)]| {
            log.seal_active();
            let internal = InternalCompactions::idle();
            let gc = Gc::new(log.clone(), None, internal, None, u64::MAX, ThreadDuties::new(None));
            let gc = Arc::new(gc);
            gc.set_candidates(pointers.iter().map(|(_, pointer)| pointer.segment).collect());
            let context = FilterContext { column_family_id: 0, is_full: true, is_manual: false, input_level: Some(1) };
            let mut filter = GcFilterFactory(gc.clone()).filter(context).unwrap();
            pointers.sort_unstable_by_key(|(number, _)| *number);
            for (number, pointer) in pointers {
                let (mut inline, mut stored) = (Vec::new(), Vec::new());
                encode_inline(&Attributes::default(), &mut inline).unwrap();
                encode_separated(&inline, *pointer, &mut stored);
                let Verdict::Change(changed) = filter.decide(1, &number.to_be_bytes(), &stored) else {
                    panic!("value {number} stays where it is")
                };
                let Kind::Separated(copy) = Header::decode(changed).unwrap().kind else { panic!("it is inline") };
                assert_ne!(copy.segment, pointer.segment);
                *pointer = copy;
            }
            log.sync_relocated().unwrap();
        };
        // Every third value is old, and has neighbours that were written lately.
        let mut log = open();
        let mut pointers: Vec<_> = (0..900).step_by(3).map(|number| append(&log, number)).collect();
        relocate(&log, &mut pointers);
        if is_reopened {
            drop(log);
            log = open();
        }
        pointers.extend((0..900).filter(|number| number % 3 != 0).map(|number| append(&log, number)));
        relocate(&log, &mut pointers);
        let segments_of = |old: bool| {
            let of = pointers.iter().filter(|(number, _)| (number % 3 == 0) == old);
            of.map(|(_, pointer)| pointer.segment).collect::<SegmentSet>()
        };
        assert!(segments_of(true).len() >= 4 && segments_of(true).is_disjoint(&segments_of(false)));
        for (number, pointer) in &pointers {
            let mut record = Vec::new();
            let found = log.read(&number.to_be_bytes(), *pointer, &mut record).unwrap();
            assert_eq!(record[found], [*number as u8; 1000]);
        }
    }

    #[test]
    fn what_was_relocated_before_lies_separated_from_what_a_user_wrote_lately() {
        is_separated(false);
    }

    #[test]
    fn what_was_relocated_before_lies_separated_also_when_another_process_did_it() {
        is_separated(true);
    }

    /// Bytes of the files in `directory` that this process has mapped for reading, as the kernel
    /// counts them.
    fn mapped_below(directory: &Path) -> u64 {
        let directory = directory.to_str().unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let bytes = |line: &str| {
            let (from, to) = line.split(' ').next()?.split_once('-')?;
            Some(u64::from_str_radix(to, 16).ok()? - u64::from_str_radix(from, 16).ok()?)
        };
        maps.lines().filter(|line| line.contains(" r--s ") && line.contains(directory)).filter_map(bytes).sum()
    }

    #[test]
    fn no_more_is_mapped_than_allowed_and_the_rest_is_read_by_calls() {
        let directory = tempfile::tempdir().unwrap();
        let log = Arc::new(ValueLog::open(directory.path(), SEGMENT_BYTES, Tap::SILENT).unwrap());
        let value = |number: u32| vec![number as u8; 1000];
        let append = |number: u32| log.append(ValueOrigin::Written, &number.to_le_bytes(), &value(number)).unwrap().0;
        let pointers: Vec<_> = (0..600).map(append).collect();
        log.seal_active();
        assert!(log.segments().len() >= 9);

        let most = SEGMENT_BYTES * 5 / 2;
        let gc = Gc::new(log.clone(), None, InternalCompactions::idle(), None, most, ThreadDuties::new(None));
        let gc = Arc::new(gc);
        let threads = 3;
        // All that they have mapped is there at once, in the second turn as in the first.
        let all_have_read = Barrier::new(threads);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    for _ in 0..2 {
                        let mut sources = Sources { gc: gc.clone(), fits_in_cache: true, of: SegmentMap::default() };
                        let mut record = Vec::new();
                        for (number, pointer) in (0..).zip(&pointers) {
                            let key = u32::to_le_bytes(number);
                            let read =
                                |segment: &Arc<Segment>, offset, into: &mut [u8]| sources.read(segment, offset, into);
                            log.read_record_by(&key, *pointer, &mut record, read).unwrap();
                            assert!(record.ends_with(&value(number)));
                        }
                        all_have_read.wait();
                        let mapped = mapped_below(directory.path());
                        assert!(mapped > SEGMENT_BYTES && mapped <= most, "{mapped} bytes are mapped");
                        all_have_read.wait();
                        drop(sources);
                        all_have_read.wait();
                        assert_eq!(mapped_below(directory.path()), 0);
                        assert_eq!(gc.mapped_bytes.load(Ordering::Relaxed), 0);
                        all_have_read.wait();
                    }
                });
            }
        });
    }

    /// Bytes that this thread had a device read, as the kernel counts them; 0 where it does not.
    fn read_by_device() -> u64 {
        let counts = std::fs::read_to_string("/proc/thread-self/io").unwrap_or_default();
        counts.lines().find_map(|line| line.strip_prefix("read_bytes: ")?.parse().ok()).unwrap_or(0)
    }

    #[test]
    fn where_the_kernel_can_keep_little_each_value_is_read_by_itself_and_leaves_no_page() {
        let program = std::env::current_exe().unwrap();
        let directory = tempfile::tempdir_in(program.parent().unwrap()).unwrap();
        let log = ValueLog::open(directory.path(), 1 << 20, Tap::SILENT).unwrap().with_page_cache(Some(2 << 20));
        let log = Arc::new(log);
        // The last two are too long for that.
        let value = |number: u64| vec![number as u8; if number < 2000 { 1000 } else { 5000 }];
        let append = |number: u64| log.append(ValueOrigin::Written, &number.to_le_bytes(), &value(number)).unwrap().0;
        let pointers: Vec<_> = (0..2002).map(append).collect();
        log.seal_active();
        let segments = log.segments();
        assert!(segments.len() >= 2);
        assert!(log.fits_in_cache(1 << 20) && !log.fits_in_cache(segments.iter().map(|segment| segment.bytes()).sum()));
        segments.iter().for_each(|segment| _ = segment.sync().unwrap());
        let gc = Gc::new(log.clone(), None, InternalCompactions::idle(), None, u64::MAX, ThreadDuties::new(None));
        let mut sources = Sources { gc: Arc::new(gc), fits_in_cache: false, of: SegmentMap::default() };
        let is_offered = is_read_past_cache(segments[0].path());
        for segment in &segments {
            let file = std::fs::File::open(segment.path()).unwrap();
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        }
        for read_again in [false, true] {
            for number in (0..2002_u64).rev().step_by(7) {
                let before = read_by_device();
                let mut record = Vec::new();
                let read = |segment: &Arc<Segment>, offset, into: &mut [u8]| sources.read(segment, offset, into);
                let key = number.to_le_bytes();
                log.read_record_by(&key, pointers[number as usize], &mut record, read).unwrap();
                assert!(record.ends_with(&value(number)));
                let bytes = read_by_device() - before;
                // In blocks of 512 bytes, or of what the device wants; the second time as well.
                assert!(
                    !is_offered || number >= 2000 || (512..=8192).contains(&bytes),
                    "{bytes} for {number}, {read_again}"
                );
            }
        }
        assert!(!is_offered || sources.of.len() == 1, "for those that are too long");
    }

    /// Whether the file system reads so, and this thread is told what it had a device read: said
    /// aloud where not.
    fn is_read_past_cache(path: &std::path::Path) -> bool {
        use std::os::unix::fs::OpenOptionsExt;
        let mut options = std::fs::OpenOptions::new();
        let file = options.read(true).custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32).open(path);
        let before = read_by_device();
        // Memory that begins where any device wants it to.
        let mut memory = vec![0; 2 * 4096];
        let skip = memory.as_ptr().addr().wrapping_neg() % 4096;
        let read = file.and_then(|file| Ok(rustix::io::pread(&file, &mut memory[skip..skip + 4096], 0)?));
        let number = ecotone_io::direct_reads::FileNumber::next();
        let is_told_how = ecotone_io::direct_reads::DirectFile::open(path, number).unwrap().is_some();
        let is_read = read.is_ok() && read_by_device() > before && is_told_how;
        if !is_read {
            eprintln!("not tested: {read:?}");
        }
        is_read
    }

    #[test]
    fn the_piece_around_the_second_value_is_brought_into_memory_immediately() {
        // Not below /tmp, which may be in memory.
        let program = std::env::current_exe().unwrap();
        let directory = tempfile::tempdir_in(program.parent().unwrap()).unwrap();
        let log = Arc::new(ValueLog::open(directory.path(), 64 << 20, Tap::SILENT).unwrap());
        let append =
            |number: u64| log.append(ValueOrigin::Written, &number.to_le_bytes(), &[number as u8; 4000]).unwrap().0;
        let pointers: Vec<_> = (0..5 * AHEAD_BYTES / 4096).map(append).collect();
        log.seal_active();
        let segment = &log.segments()[0];
        segment.sync().unwrap();
        let file = std::fs::File::open(segment.path()).unwrap();
        // Records that lie in one piece, without those at its ends.
        let in_piece = |piece: u64| {
            let piece_of = |number: u64| u64::from(pointers[number as usize].offset) / AHEAD_BYTES;
            let inside = (0..pointers.len() as u64).filter(|number| piece_of(*number) == piece).collect::<Vec<_>>();
            inside[1..inside.len() - 1].to_vec()
        };
        for max_mapped_bytes in [u64::MAX, 0] {
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            let internal = InternalCompactions::idle();
            let gc = Gc::new(log.clone(), None, internal, None, max_mapped_bytes, ThreadDuties::new(None));
            let mut sources = Sources { gc: Arc::new(gc), fits_in_cache: true, of: SegmentMap::default() };
            // What the device reads for these values.
            let mut read = |numbers: &[u64]| {
                let before = read_by_device();
                for number in numbers {
                    let mut record = Vec::new();
                    let read = |segment: &Arc<Segment>, offset, into: &mut [u8]| sources.read(segment, offset, into);
                    let key = number.to_le_bytes();
                    log.read_record_by(&key, pointers[*number as usize], &mut record, read).unwrap();
                    assert!(record.ends_with(&[*number as u8; 4000]));
                }
                read_by_device() - before
            };
            let (first, third) = (in_piece(1), in_piece(3));
            match read(&first[..1]) {
                0 => {
                    return eprintln!(
                        "nothing is tested: all of it stays in memory here, or the kernel does not count"
                    );
                }
                bytes => assert!(bytes <= AHEAD_BYTES / 2, "{bytes} bytes for the only value of a piece"),
            }
            let bytes = read(&third[..2]);
            assert!((AHEAD_BYTES * 3 / 4..=AHEAD_BYTES * 3 / 2).contains(&bytes), "{bytes} bytes for two values");
            let bytes = read(&third[2..]);
            assert!(bytes <= AHEAD_BYTES / 4, "{bytes} bytes for the others");
        }
    }
}
