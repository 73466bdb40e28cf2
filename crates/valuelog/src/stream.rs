//! One sequence of segments that is appended to.
//!
//! Users' writes have one, and values that were relocated have two for each level that they came to
//! rest in: one for those that a user wrote lately, and one for those that had been relocated
//! before and have lived longer. So what is cold lies together. Each is appended to, sealed and
//! synced by itself.
//!
//! Invariant: what is said to be synced is on the device, names included.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::Result;
use crate::copies::CopyOf;
use crate::pointer::SegmentNumber;
use crate::segment::{InFlight, Segment};
use crate::sync_failure::SyncFailure;
use crate::watermark::Watermark;

/// Who is not to wait waits so long: appends of most records take a thousandth of it.
const MAX_APPEND_WAIT: Duration = Duration::from_millis(1);

/// See the module.
#[derive(Debug, Default)]
pub struct Stream {
    active: Mutex<Option<Arc<Segment>>>,
    /// Segments that are not known to be durable whole, in the order of their numbers.
    unsynced: Mutex<Vec<Arc<Segment>>>,
    syncing: Mutex<()>,
    /// Whether a record needed a dictionary that was appended since a segment was begun.
    needs_dictionary: AtomicBool,
    /// Records appended, and those of them that are durable.
    appended: AtomicU64,
    synced: AtomicU64,
}

impl Stream {
    /// One that begins with segments of another process, which it may have left unsynced.
    pub fn after(unsynced: Vec<Arc<Segment>>) -> Self {
        let appended = AtomicU64::new(unsynced.len() as u64);
        Self { unsynced: Mutex::new(unsynced), appended, ..Self::default() }
    }

    /// Appends one record of `parts`, to a segment of at most `segment_bytes` unless the record
    /// alone is longer, that `takes` it. `create` makes a further segment, which has to. Returns
    /// where the record begins. It is a copy of what lies `from` there, if of anything.
    ///
    /// # Errors
    ///
    /// Nothing was appended.
    pub(crate) fn append(
        &self,
        parts: &[&[u8]],
        from: Option<CopyOf>,
        segment_bytes: u64,
        takes: impl Fn(&Segment) -> bool,
        create: impl FnOnce() -> Result<Arc<Segment>>,
    ) -> Result<(u64, InFlight)> {
        let bytes: u64 = parts.iter().map(|part| part.len() as u64).sum();
        let mut active = self.active.lock();
        let has_space = |segment: &Segment| {
            segment.is_empty() || (segment.bytes() + bytes <= segment_bytes && !segment.is_full_of_copies())
        };
        let segment = match active.as_ref().filter(|segment| has_space(segment) && takes(segment)) {
            Some(segment) => segment.clone(),
            None => {
                if let Some(full) = active.take() {
                    full.seal();
                }
                self.begin_at(&mut active, create)?
            }
        };
        let appended = segment.append_from(parts, from)?;
        self.appended.fetch_add(1, Ordering::Release);
        // Not by the next append, which may be long in coming: a long value must be able to go
        // without one.
        if segment.bytes() >= segment_bytes {
            segment.seal();
            *active = None;
        }
        Ok(appended)
    }

    /// Makes the segment that the next record goes to, unless the one that is appended to has a
    /// greater number than `behind`.
    ///
    /// # Errors
    ///
    /// Those of `create`.
    pub fn begin_behind(&self, behind: SegmentNumber, create: impl FnOnce() -> Result<Arc<Segment>>) -> Result<()> {
        let mut active = self.active.lock();
        if active.as_ref().is_none_or(|active| active.number() <= behind) {
            let before = active.take();
            self.begin_at(&mut active, create).inspect_err(|_| active.clone_from(&before))?;
            if let Some(before) = before {
                before.seal();
            }
        }
        Ok(())
    }

    fn begin_at(
        &self,
        active: &mut Option<Arc<Segment>>,
        create: impl FnOnce() -> Result<Arc<Segment>>,
    ) -> Result<Arc<Segment>> {
        let segment = create()?;
        self.unsynced.lock().push(segment.clone());
        Ok(active.insert(segment).clone())
    }

    /// A record was appended that needs a dictionary.
    pub fn needs_dictionary(&self) {
        if !self.needs_dictionary.load(Ordering::Relaxed) {
            self.needs_dictionary.store(true, Ordering::Relaxed);
        }
    }

    /// A segment is begun: whether its first record, or one since the last was begun, needs a dictionary.
    pub fn begins_with_needed_dictionary(&self, first_needs_it: bool) -> bool {
        self.needs_dictionary.swap(false, Ordering::Relaxed) || first_needs_it
    }

    /// Whether an append would not have to wait for that of a long record, or for a segment that is
    /// being made: who finds it so may still meet one that has begun since.
    pub fn is_unblocked(&self) -> bool {
        self.active.try_lock_for(MAX_APPEND_WAIT).is_some()
    }

    /// Ends the segment that is appended to; the next append begins another.
    pub fn seal(&self) {
        if let Some(segment) = self.active.lock().take() {
            segment.seal();
        }
    }

    /// The same if it has so many bytes.
    pub fn seal_from(&self, bytes: u64) {
        if let Some(segment) = self.active.lock().take_if(|it| it.bytes() >= bytes) {
            segment.seal();
        }
    }

    /// The same if that is `segment`, and nothing was appended to it behind `bytes`. False where it
    /// is not so.
    pub fn seal_at(&self, segment: &Segment, bytes: u64) -> bool {
        let mut active = self.active.lock();
        let is_it = |it: &Arc<Segment>| it.number() == segment.number() && it.bytes() == bytes;
        active.take_if(|it| is_it(it)).inspect(|it| it.seal()).is_some()
    }

    /// Whether a record was appended that may not be durable.
    pub fn is_dirty(&self) -> bool {
        self.synced.load(Ordering::Acquire) < self.appended.load(Ordering::Acquire)
    }

    /// Makes every record durable that was appended before the call. `sync_names` is called where
    /// segments are new. Returns up to where the stream is durable now; `None` where it was
    /// already.
    ///
    /// # Errors
    ///
    /// Nobody knows what is durable then: that is left in `failure`, and nothing is synced any
    /// more.
    pub fn sync(&self, failure: &SyncFailure, sync_names: impl FnOnce() -> Result<()>) -> Result<Option<Watermark>> {
        let _one_at_a_time = self.syncing.lock();
        failure.check()?;
        // While it is locked: who waits for it would sync again, and the kernel has told of the
        // failure already.
        self.sync_now(sync_names)
            .map_err(|error| failure.set("value log sync", format!("the value log could not be synced: {error}")))
    }

    fn sync_now(&self, sync_names: impl FnOnce() -> Result<()>) -> Result<Option<Watermark>> {
        let appended = self.appended.load(Ordering::Acquire);
        if self.synced.load(Ordering::Acquire) >= appended {
            return Ok(None);
        }
        let unsynced = self.unsynced.lock().clone();
        let mut watermark = None;
        let mut whole = Vec::new();
        for segment in &unsynced {
            // Before the sync: what is sealed then has all its bytes.
            let sealed = segment.is_sealed();
            let offset = segment.sync()?;
            watermark = Some(Watermark { segment: segment.number(), offset });
            if sealed {
                whole.push(segment.number());
            }
        }
        sync_names()?;
        self.unsynced.lock().retain(|segment| !whole.contains(&segment.number()));
        self.synced.store(appended, Ordering::Release);
        Ok(watermark)
    }

    /// Forgets a segment that is being removed.
    pub fn forget(&self, segment: &Segment) {
        self.unsynced.lock().retain(|other| other.number() != segment.number());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::descriptors::Descriptors;
    use crate::segment::{Contents, Head};
    use ecotone_io::tap::Tap;

    #[test]
    fn nothing_is_taken_immediately_while_another_append_takes_its_time() {
        let (directory, stream) = (tempfile::tempdir().unwrap(), Stream::default());
        let ((begun, has_begun), (end, may_end)) = (channel(), channel());
        let path = directory.path();
        let head = Head { resting_level: None, contents: Contents::Plain };
        let create = move || {
            begun.send(()).unwrap();
            may_end.recv().unwrap();
            Segment::create(path, SegmentNumber(1), head, 1 << 20, false, &Descriptors::default(), &Tap::SILENT)
        };
        assert!(stream.is_unblocked());
        std::thread::scope(|scope| {
            let appending = scope.spawn(|| stream.append(&[b"record"], None, 1 << 20, |_| true, create).unwrap());
            has_begun.recv().unwrap();
            assert!(!stream.is_unblocked());
            end.send(()).unwrap();
            appending.join().unwrap();
        });
        assert!(stream.is_unblocked());
    }
}
