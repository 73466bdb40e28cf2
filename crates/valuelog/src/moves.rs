//! Segments of relocated values that somebody else has laid out: a worker that merges tables of
//! this store says which record is to lie where, and this server, which has the records, makes the
//! segments so.
//!
//! A [`MovePlan`] goes to the worker before it begins, and [`Moves`] come back:
//!
//! ```text
//!  plan:   version, first number, numbers, contents (0 of format 1, 1 of format 2), dictionary (8),
//!          head bytes, segment bytes, records, candidates, and of each its number, and 1 where its
//!          values were relocated before, 0 elsewhere; crc32c
//!  moves:  version, segments, and of each its place in the plan, how many records, and of each record
//!          the place of its candidate in the plan, offset, length; crc32c
//! ```
//!
//! All numbers but the dictionary and the checksums are varints.
//!
//! Invariants:
//!
//! - A reserved number is given to nobody else until it is given back
//!   ([`ValueLog::give_back_numbers`]), which only numbers are of which no segment was begun, and
//!   whose job can have no result any more.
//! - A record is copied as it is, once it has been checked, and only where a compaction here would
//!   copy it as it is too: nothing that is to be packed anew stays as it was. So a segment holds what a compaction
//!   here would have copied, and copies of the store are told of which bytes it is made.
//! - A segment that was made is sealed and on the device before [`ValueLog::move_records`] returns
//!   it, and its name once [`ValueLog::sync_names`] has been asked, which is once for a job; before
//!   that no table refers to it. One that could not be made whole is garbage.
//!
//! Bounds: [`MAX_SEGMENTS`] of [`MAX_RECORDS`] records each. Bytes of any origin are decoded to
//! what keeps within them, or refused. Threads: any.

use std::sync::Arc;

use crate::compression::Codec;
use crate::compression::dictionary::{Dictionary, DictionaryId};
use crate::copies::CopyOf;
use crate::pointer::SegmentNumber;
use crate::segment::{Contents, Head, InFlight, Segment};
use crate::segment_header::SegmentFormat;
use crate::varint::{self, MAX_VARINT_BYTES, Varint};
use crate::{Error, Result, ValueLog, packed_record, record};

/// Segments that one job may fill.
pub const MAX_SEGMENTS: u32 = 48;
/// Records of one of them: as many as can be said to copies of the store in one item of its stream.
pub const MAX_RECORDS: u32 = 20_000;
/// Candidates of one job.
pub const MAX_CANDIDATES: usize = 64 * 1024;

const VERSION: u8 = 1;
const CHECKSUM_BYTES: usize = 4;
const DICTIONARY_BYTES: usize = 8;

/// A segment whose values are to be moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Which.
    pub segment: SegmentNumber,
    /// Whether its values were relocated before: they go to other segments than the rest.
    pub again: bool,
}

/// What is to be known where records are given their places. See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MovePlan {
    /// The first number of the new segments, and how many there are.
    pub first: SegmentNumber,
    /// At most [`MAX_SEGMENTS`].
    pub segments: u32,
    /// What the candidates hold, and the new segments are to hold.
    pub format: SegmentFormat,
    /// Where the first record of each begins.
    pub head_bytes: u32,
    /// A segment is not to be longer unless it holds one record only.
    pub segment_bytes: u32,
    /// So many records fit into one at most.
    pub records: u32,
    /// Whose values are to be moved.
    pub candidates: Vec<Candidate>,
}

/// A record that is to be moved: its segment by its place in the plan, where it begins there, and
/// its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// Of [`MovePlan::candidates`].
    pub candidate: u32,
    /// In bytes from the begin of that segment.
    pub offset: u32,
    /// Of the whole record.
    pub bytes: u32,
}

/// The records of a new segment, one behind the other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SegmentMoves {
    /// Its number, less the first one of the plan.
    pub place: u32,
    /// In their order.
    pub records: Vec<Move>,
}

/// A record that lies where it was to go, as a pointer to it must say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved<'r> {
    /// Where it begins.
    pub offset: u32,
    /// Its key.
    pub key: &'r [u8],
    /// The length of its value.
    pub value_bytes: u32,
    /// What is stored of it; `None` for a record of format 1.
    pub stored_bytes: Option<u32>,
}

/// All records that a job has moved. See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Moves(pub Vec<SegmentMoves>);

impl MovePlan {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let (is_packed, dictionary) = match self.format {
            SegmentFormat::Plain => (0, None),
            SegmentFormat::Packed(dictionary) => (1, dictionary),
        };
        let mut to = vec![VERSION];
        [self.first.0, self.segments, is_packed].iter().for_each(|number| put(&mut to, *number));
        to.extend_from_slice(&dictionary.map_or(0, |id| id.get()).to_le_bytes());
        let count = self.candidates.len() as u32;
        [self.head_bytes, self.segment_bytes, self.records, count].iter().for_each(|number| put(&mut to, *number));
        for candidate in &self.candidates {
            put(&mut to, candidate.segment.0);
            to.push(candidate.again.into());
        }
        seal(to)
    }

    /// From bytes of any origin.
    ///
    /// # Errors
    ///
    /// What is wrong with them.
    pub fn decode(bytes: &[u8]) -> std::result::Result<Self, String> {
        let mut from = Reader::open(bytes)?;
        let (first, segments, is_packed) = (from.number()?, from.at_most(MAX_SEGMENTS)?, from.at_most(1)?);
        let dictionary = DictionaryId::decode(u64::from_le_bytes(from.array::<DICTIONARY_BYTES>()?));
        let format = match (is_packed, dictionary) {
            (1, dictionary) => SegmentFormat::Packed(dictionary),
            (_, None) => SegmentFormat::Plain,
            _ => return Err("segments without packed values have no dictionary".into()),
        };
        let (head_bytes, segment_bytes) = (from.number()?, from.number()?);
        let (records, count) = (from.at_most(MAX_RECORDS)?, from.at_most(MAX_CANDIDATES as u32)?);
        let mut candidates = Vec::new();
        for _ in 0..count {
            let segment = SegmentNumber(from.number()?);
            candidates.push(Candidate { segment, again: from.at_most(1)? == 1 });
        }
        from.end()?;
        if first.checked_add(segments).is_none() {
            return Err("its numbers are no numbers".into());
        }
        Ok(Self { first: SegmentNumber(first), segments, format, head_bytes, segment_bytes, records, candidates })
    }
}

impl Moves {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = vec![VERSION];
        put(&mut to, self.0.len() as u32);
        for segment in &self.0 {
            put(&mut to, segment.place);
            put(&mut to, segment.records.len() as u32);
            for Move { candidate, offset, bytes } in &segment.records {
                [candidate, offset, bytes].iter().for_each(|number| put(&mut to, **number));
            }
        }
        seal(to)
    }

    /// From bytes of any origin, which are to keep to `plan`.
    ///
    /// # Errors
    ///
    /// What is wrong with them.
    pub fn decode(bytes: &[u8], plan: &MovePlan) -> std::result::Result<Self, String> {
        let mut from = Reader::open(bytes)?;
        let mut segments = Vec::new();
        let mut taken = vec![false; plan.segments as usize];
        for _ in 0..from.at_most(plan.segments)? {
            let place = from.number()?;
            if taken.get_mut(place as usize).is_none_or(|taken| std::mem::replace(taken, true)) {
                return Err(format!("segment {place} of the job is not to be made, or is made twice"));
            }
            let count = from.at_most(plan.records)?;
            let (mut records, mut end) = (Vec::new(), u64::from(plan.head_bytes));
            for _ in 0..count {
                let (candidate, offset, bytes) = (from.number()?, from.number()?, from.number()?);
                if candidate as usize >= plan.candidates.len() || bytes == 0 {
                    return Err("a record is moved from nowhere".into());
                }
                end += u64::from(bytes);
                records.push(Move { candidate, offset, bytes });
            }
            if end > u64::from(plan.segment_bytes) && count > 1 {
                return Err(format!("segment {place} of the job would have {end} bytes"));
            }
            segments.push(SegmentMoves { place, records });
        }
        from.end()?;
        Ok(Self(segments))
    }

    /// Bytes of all records.
    pub fn bytes(&self) -> u64 {
        self.0.iter().flat_map(|segment| &segment.records).map(|moved| u64::from(moved.bytes)).sum()
    }
}

fn put(to: &mut Vec<u8>, number: u32) {
    let mut bytes = [0; MAX_VARINT_BYTES];
    let length = varint::write(number, &mut bytes);
    to.extend_from_slice(&bytes[..length]);
}

fn seal(mut bytes: Vec<u8>) -> Vec<u8> {
    let checksum = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}

struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    fn open(bytes: &'b [u8]) -> std::result::Result<Self, String> {
        let Some((rest, checksum)) = bytes.split_last_chunk::<CHECKSUM_BYTES>() else {
            return Err("what is to be moved is not said whole".into());
        };
        if crc32c::crc32c(rest) != u32::from_le_bytes(*checksum) {
            return Err("what is to be moved was damaged on the way".into());
        }
        match rest.split_first() {
            Some((&VERSION, rest)) => Ok(Self(rest)),
            _ => Err("what is to be moved is said in another version".into()),
        }
    }

    fn number(&mut self) -> std::result::Result<u32, String> {
        let Varint::Number(number, length) = varint::read(self.0) else {
            return Err("what is to be moved is said in no numbers".into());
        };
        self.0 = &self.0[length..];
        Ok(number)
    }

    fn at_most(&mut self, limit: u32) -> std::result::Result<u32, String> {
        let number = self.number()?;
        if number > limit { Err(format!("{number} is more than {limit}")) } else { Ok(number) }
    }

    fn array<const N: usize>(&mut self) -> std::result::Result<[u8; N], String> {
        let (bytes, rest) = self.0.split_first_chunk::<N>().ok_or("what is to be moved is cut short")?;
        self.0 = rest;
        Ok(*bytes)
    }

    fn end(self) -> std::result::Result<(), String> {
        if self.0.is_empty() { Ok(()) } else { Err("something stands behind what is to be moved".into()) }
    }
}

impl ValueLog {
    /// Reserves numbers for what a job moves out of `candidates`: at most so many bytes, and so
    /// many records, which are to be packed by `codec`; none where segments are of format 1. `None`
    /// where they cannot be copied as they are into segments that begin as the next ones here will,
    /// where [`append_copy`](Self::append_copy) would pack some anew, and where so little is to be
    /// moved that the segments of the job would be candidates again at once.
    ///
    /// # Errors
    ///
    /// [`Error::Background`] where numbers are used up, or a sync has failed.
    pub fn plan_moves(
        &self,
        candidates: Vec<Candidate>,
        bytes: u64,
        records: u64,
        codec: Option<Codec>,
    ) -> Result<Option<MovePlan>> {
        self.failure().check()?;
        let dictionary = self.dictionary();
        let (format, contents) = match codec.is_some() {
            true => (SegmentFormat::Packed(dictionary.as_ref().map(|it| it.id())), packed(dictionary.as_deref())),
            false => (SegmentFormat::Plain, Contents::Plain),
        };
        let fits = |candidate: &Candidate| {
            self.segment(candidate.segment).is_some_and(|segment| {
                segment.format().is_ok_and(|found| found == format)
                    && codec.is_none_or(|codec| self.is_packed_by(&segment, codec))
            })
        };
        if bytes < self.followed_bytes()
            || candidates.is_empty()
            || candidates.len() > MAX_CANDIDATES
            || !candidates.iter().all(fits)
        {
            return Ok(None);
        }
        let head = Head { resting_level: Some(0), contents };
        let (Ok(head_bytes), Ok(segment_bytes)) = (
            u32::try_from(head.encode(SegmentNumber(1)).len()),
            u32::try_from(self.max_segment_bytes().min(u64::from(u32::MAX))),
        ) else {
            return Ok(None);
        };
        // Of two that follow one another more than one is full, or as many records are in one as
        // may be; and two are begun at a time.
        let full = bytes.div_ceil(u64::from(segment_bytes / 2).max(1)) + records / u64::from(MAX_RECORDS);
        let segments = u32::try_from(full + 2).unwrap_or(MAX_SEGMENTS).min(MAX_SEGMENTS);
        let first = self.take_numbers(segments)?;
        Ok(Some(MovePlan { first, segments, format, head_bytes, segment_bytes, records: MAX_RECORDS, candidates }))
    }

    /// Makes a segment of `plan` for the level that its values come to rest in. `read` reads the
    /// bytes of a candidate, `moved` is shown each record that was appended. Keep what is returned
    /// until a table refers to the segment, which none may before
    /// [`sync_names`](Self::sync_names) has made its name durable.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] where a record is not what was said of it, those of
    /// [`append`](Self::append) and [`sync`](Self::sync), and [`Error::NotMoved`] where something
    /// has changed since the plan was made. What was made of the segment by then is garbage.
    pub fn move_records(
        &self,
        plan: &MovePlan,
        moves: &SegmentMoves,
        level: u32,
        mut read: impl FnMut(&Arc<Segment>, u64, &mut [u8]) -> Result<()>,
        mut moved: impl FnMut(Moved<'_>),
    ) -> Result<InFlight> {
        self.failure().check()?;
        let number = SegmentNumber(plan.first.0 + moves.place);
        let given_up = |detail: String| Error::NotMoved { detail };
        let dictionary = self.dictionary();
        let contents = match plan.format {
            SegmentFormat::Plain => Contents::Plain,
            SegmentFormat::Packed(id) if dictionary.as_ref().map(|it| it.id()) == id => packed(dictionary.as_deref()),
            SegmentFormat::Packed(_) => {
                return Err(given_up("values are packed with another dictionary by now".into()));
            }
        };
        if self.has_segment(number) {
            return Err(given_up(format!("segment {number} is there already")));
        }
        self.close_some();
        let limit = u64::from(plan.segment_bytes);
        let segment = self.make_segment(number, Head { resting_level: Some(level), contents }, limit)?;
        let filled = self.fill(&segment, plan, moves, &mut read, &mut moved);
        // Whatever it holds, nothing more comes.
        segment.seal();
        let in_flight = filled?;
        if segment.bytes_in_file() < segment.bytes() {
            return Err(Error::DiskFull { detail: format!("{} could not be written whole", segment.path().display()) });
        }
        let failed =
            |error: Error| self.failure().set("value log sync", format!("the value log could not be synced: {error}"));
        segment.sync().map_err(failed)?;
        Ok(in_flight)
    }

    fn fill(
        &self,
        segment: &Arc<Segment>,
        plan: &MovePlan,
        moves: &SegmentMoves,
        read: &mut impl FnMut(&Arc<Segment>, u64, &mut [u8]) -> Result<()>,
        moved: &mut impl FnMut(Moved<'_>),
    ) -> Result<InFlight> {
        let given_up = |detail: &str| Error::NotMoved { detail: detail.into() };
        let mut in_flight = None;
        let mut bytes = Vec::new();
        let (mut end, is_packed) = (u64::from(plan.head_bytes), plan.format != SegmentFormat::Plain);
        for moving in &moves.records {
            let candidate = plan.candidates.get(moving.candidate as usize);
            let source = candidate.and_then(|candidate| self.segment(candidate.segment));
            let source = source.ok_or_else(|| given_up("a segment that values are moved from is gone"))?;
            let offset = u64::from(moving.offset);
            if offset + u64::from(moving.bytes) > source.bytes() {
                return Err(source.corrupt(offset, "the segment ends before the record does"));
            }
            bytes.resize(moving.bytes as usize, 0);
            read(&source, offset, &mut bytes)?;
            let layout = match is_packed {
                false => record::check(&bytes).map(|layout| (layout.value.end, layout.key, layout.value.len(), None)),
                true => packed_record::check(&bytes)
                    .map(|layout| (layout.stored.end, layout.key, layout.value_bytes, Some(layout.stored.len()))),
            };
            let (length, key, value_bytes, stored_bytes) = layout.map_err(|reason| source.corrupt(offset, reason))?;
            if length != bytes.len() {
                return Err(source.corrupt(offset, "the record has another length than was said of it"));
            }
            let from = CopyOf { segment: source.number(), offset: moving.offset };
            let (begin, appended) = segment.append_from(&[&bytes], Some(from))?;
            if begin != end {
                return Err(given_up("a record would lie elsewhere than was said"));
            }
            // All begin below the length of a segment, and are not longer than its length can say.
            moved(Moved {
                offset: begin as u32,
                key: &bytes[key],
                value_bytes: value_bytes as u32,
                stored_bytes: stored_bytes.map(|stored| stored as u32),
            });
            end += u64::from(moving.bytes);
            in_flight.get_or_insert(appended);
        }
        in_flight.ok_or_else(|| given_up("a segment without records was to be made"))
    }
}

fn packed(dictionary: Option<&Dictionary>) -> Contents<'_> {
    Contents::Packed(dictionary)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::ValueOrigin;
    use crate::mutation::mutated;
    use ecotone_io::tap::Tap;

    fn plan() -> MovePlan {
        MovePlan {
            first: SegmentNumber(900),
            segments: 3,
            format: SegmentFormat::Plain,
            head_bytes: 32,
            segment_bytes: 4096,
            records: 100,
            candidates: vec![
                Candidate { segment: SegmentNumber(7), again: false },
                Candidate { segment: SegmentNumber(300), again: true },
            ],
        }
    }

    fn moves() -> Moves {
        let moved = |candidate, offset| Move { candidate, offset, bytes: 1000 };
        Moves(vec![
            SegmentMoves { place: 0, records: vec![moved(0, 32), moved(0, 70_000)] },
            SegmentMoves { place: 2, records: vec![moved(1, 32)] },
        ])
    }

    #[test]
    fn what_is_encoded_is_decoded_and_whatever_is_damaged_is_refused() {
        assert_eq!(MovePlan::decode(&plan().encode()), Ok(plan()));
        assert_eq!(Moves::decode(&moves().encode(), &plan()), Ok(moves()));
        mutated(&[plan().encode(), moves().encode()], |bytes, _| {
            if let Ok(decoded) = MovePlan::decode(&bytes) {
                assert_eq!(decoded.encode(), bytes);
            }
            if let Ok(decoded) = Moves::decode(&bytes, &plan()) {
                assert_eq!(decoded.encode(), bytes);
            }
        });
    }

    #[test]
    fn what_does_not_keep_to_the_plan_is_refused() {
        let refused = |change: &dyn Fn(&mut Moves)| {
            let mut changed = moves();
            change(&mut changed);
            Moves::decode(&changed.encode(), &plan()).unwrap_err()
        };
        refused(&|moves| moves.0[0].place = 2);
        refused(&|moves| moves.0[0].place = 3);
        refused(&|moves| moves.0[0].records[0].candidate = 2);
        refused(&|moves| moves.0[0].records[0].bytes = 0);
        refused(&|moves| moves.0[0].records[0].bytes = 3065);
        refused(&|moves| moves.0[0].records = vec![Move { candidate: 0, offset: 0, bytes: 1 }; 101]);
    }

    #[test]
    fn numbers_are_enough_for_any_records_and_each_is_given_back_but_where_others_follow() {
        let directory = tempfile::tempdir().unwrap();
        let log = ValueLog::open(directory.path(), 64 * 1024, Tap::SILENT).unwrap();
        let segment = log.append(ValueOrigin::Written, b"a", &[1; 500]).unwrap().0.segment;
        log.seal_active();
        let plan = |bytes, records| {
            log.plan_moves(vec![Candidate { segment, again: false }], bytes, records, None).unwrap().unwrap()
        };
        let long = plan(10 * 64 * 1024, 20);
        assert!((21..=23).contains(&long.segments), "half of each may stay empty: {}", long.segments);
        let many = plan(10_000, u64::from(MAX_RECORDS) * 10);
        assert!((11..=14).contains(&many.segments), "{}", many.segments);
        assert_eq!(plan(u64::MAX / 2, 1).segments, MAX_SEGMENTS);

        let first = plan(10_000, 1);
        log.give_back_numbers(first.first, first.segments);
        let again = plan(10_000, 1);
        assert_eq!(again.first, first.first);
        let behind = plan(10_000, 1);
        log.give_back_numbers(again.first, again.segments);
        assert!(plan(10_000, 1).first > behind.first);
    }

    #[test]
    fn what_would_be_packed_anew_and_what_is_little_is_not_moved() {
        let directory = tempfile::tempdir().unwrap();
        let log = ValueLog::open(directory.path(), 64 * 1024, Tap::SILENT).unwrap().with_packed_values(1 << 20);
        let segment = |codec, shrinks: &[bool]| {
            for (number, shrinks) in (0..).zip(shrinks) {
                let mut random = 88_172_645_463_325_252_u64 + number;
                let mut byte = || {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    random as u8
                };
                let value: Vec<_> = (0..500).map(|_| if *shrinks { 7 } else { byte() }).collect();
                log.append_packed(ValueOrigin::Written, codec, b"key", &value).unwrap();
            }
            let number = log.segments().last().unwrap().number();
            log.seal_active();
            Candidate { segment: number, again: false }
        };
        let zstd = Codec::Zstd(crate::compression::Level::MIN);
        let (plain, lz4) = (segment(Codec::None, &[true]), segment(Codec::Lz4, &[true]));
        let (packed, partly) = (segment(zstd, &[true, true]), segment(zstd, &[false, true]));
        let least = log.followed_bytes();
        let is_planned = |of: &[Candidate], codec, bytes| {
            let plan = log.plan_moves(of.to_vec(), bytes, 10, Some(codec)).unwrap();
            plan.inspect(|plan| log.give_back_numbers(plan.first, plan.segments)).is_some()
        };
        assert!(is_planned(&[plain, lz4, packed, partly], Codec::None, least), "as they are");
        assert!(is_planned(&[packed, partly], zstd, least) && is_planned(&[lz4], Codec::Lz4, least));
        for of in [&[plain][..], &[lz4], &[packed, plain], &[partly, lz4]] {
            assert!(!is_planned(of, zstd, least), "{of:?}");
        }
        assert!(!is_planned(&[packed], zstd, least - 1));
    }

    #[test]
    fn what_has_changed_since_the_plan_ends_the_move() {
        let directory = tempfile::tempdir().unwrap();
        let log = ValueLog::open(directory.path(), 64 * 1024, Tap::SILENT).unwrap();
        let append = || {
            let pointer = log.append(ValueOrigin::Written, b"a", &[1; 500]).unwrap().0;
            log.seal_active();
            pointer
        };
        let (pointer, _) = (append(), append());
        let candidates = vec![Candidate { segment: pointer.segment, again: false }];
        let plan = log.plan_moves(candidates.clone(), 10_000, 1, None).unwrap().unwrap();
        let record = Move { candidate: 0, offset: pointer.offset, bytes: pointer.record_bytes(1) as u32 };
        let moves = SegmentMoves { place: 0, records: vec![record] };
        let read = |segment: &Arc<Segment>, offset, into: &mut [u8]| segment.read(offset, into);
        assert!(log.remove(&log.segment(pointer.segment).unwrap()).unwrap());
        let ended = log.move_records(&plan, &moves, 5, read, |_| ());
        assert!(matches!(ended, Err(Error::NotMoved { .. })), "{ended:?}");
        assert!(log.plan_moves(candidates, 10_000, 1, None).unwrap().is_none());
    }

    #[test]
    fn records_lie_where_was_said_and_numbers_are_given_once() {
        let directory = tempfile::tempdir().unwrap();
        let log = ValueLog::open(directory.path(), 64 * 1024, Tap::SILENT).unwrap();
        let append = |key: &[u8]| log.append(ValueOrigin::Written, key, &[key[0]; 500]).unwrap().0;
        let (first, second) = (append(b"a"), append(b"b"));
        log.seal_active();
        let candidates = vec![Candidate { segment: first.segment, again: false }];
        let plan = log.plan_moves(candidates, 10_000, 4, None).unwrap().unwrap();
        let other = log.plan_moves(plan.candidates.clone(), 10_000, 4, None).unwrap().unwrap();
        assert!(other.first.0 >= plan.first.0 + plan.segments);
        // What is reserved only keeps nothing alive, and lets nothing go.
        assert!(log.stays(&log.segment(first.segment).unwrap()));
        let bytes = first.record_bytes(1) as u32;
        let moved = |offset| Move { candidate: 0, offset, bytes };
        let moves = SegmentMoves { place: 1, records: vec![moved(second.offset), moved(first.offset)] };
        let mut keys = Vec::new();
        let read = |segment: &Arc<Segment>, offset, into: &mut [u8]| segment.read(offset, into);
        let made = log.move_records(&plan, &moves, 5, read, |it| keys.push((it.offset, it.key.to_vec()))).unwrap();
        assert_eq!(made.segment().0, plan.first.0 + 1);
        assert_eq!(keys, [(plan.head_bytes, b"b".to_vec()), (plan.head_bytes + bytes, b"a".to_vec())]);
        let mut into = Vec::new();
        for (begin, key) in &keys {
            let pointer = crate::pointer::Pointer { segment: made.segment(), offset: *begin, value_bytes: 500 };
            let value = log.read(key, pointer, &mut into).unwrap();
            assert_eq!(into[value], [key[0]; 500]);
        }
        assert!(log.move_records(&plan, &moves, 5, read, |_| ()).is_err(), "it is there");
        let wrong = SegmentMoves { place: 0, records: vec![moved(first.offset + 1)] };
        assert!(matches!(log.move_records(&plan, &wrong, 5, read, |_| ()), Err(Error::Corrupt { .. })));
        let beyond = SegmentMoves { place: 2, records: vec![moved(u32::MAX - 5)] };
        assert!(matches!(log.move_records(&plan, &beyond, 5, read, |_| ()), Err(Error::Corrupt { .. })));
        // The next one is behind all that were given.
        assert!(append(b"c").segment.0 >= other.first.0 + other.segments);
    }
}
