//! Segments that users read through memory: a copy out of the kernel's page cache instead of a call
//! for each value.
//!
//! Segments are mapped whole, one in so many that were read by a call: those that are read most are
//! mapped first. Where there is no more room, the one that was mapped first gives way now and then,
//! so that what is read no more does not stay for ever.
//!
//! Invariants: no more bytes are mapped at a time than are allowed, also while readers still copy
//! out of a mapping that has given way. A segment that was removed is not mapped: its space on the
//! device is free as soon as no reader is in it.
//!
//! Failure: a page that the kernel cannot give makes its segment be read by calls from then on,
//! which find out what there is.
//!
//! Threads: any.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::segment::{Mapped, Segment};

/// One call in so many makes its segment be mapped while there is room. Mapping costs as much as
/// some calls.
const CALLS_TO_MAP: u64 = 16;

/// One call in so many makes the segment that was mapped first give way. What is mapped anew costs
/// a page fault for every few pages, which is as much as a call: so replacing must be rare beside
/// what a mapping is read in its time.
const CALLS_TO_REPLACE: u64 = 16 * 1024;

/// Segments that are mapped at a time: a quarter of what can be guarded in a process (see
/// `bus_guard.h`), which garbage collection and other stores share.
const MAX_SEGMENTS: usize = 128;

/// The mappings of one store.
#[derive(Debug)]
pub struct Mappings {
    max_bytes: u64,
    bytes: Arc<AtomicU64>,
    calls: AtomicU64,
    /// Whether there was no room for the last one that was to be mapped.
    is_full: AtomicBool,
    /// In the order in which they were mapped.
    mapped: Mutex<VecDeque<Weak<Segment>>>,
}

impl Mappings {
    /// Mappings of at most so many bytes together; 0 is none.
    pub fn new(max_bytes: u64) -> Self {
        Self {
            max_bytes,
            bytes: Arc::default(),
            calls: AtomicU64::new(0),
            is_full: AtomicBool::new(false),
            mapped: Mutex::default(),
        }
    }

    /// Notes that `segment` was read by a call. One in a while is mapped for it.
    #[inline]
    pub fn was_called(&self, segment: &Arc<Segment>) {
        if self.max_bytes == 0 || !segment.is_sealed() {
            return;
        }
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let replaces = call % CALLS_TO_REPLACE == CALLS_TO_REPLACE - 1;
        if replaces || call.is_multiple_of(CALLS_TO_MAP) && !self.is_full.load(Ordering::Relaxed) {
            self.map(segment, replaces);
        }
    }

    #[cold]
    fn map(&self, segment: &Arc<Segment>, replaces: bool) {
        // Whoever finds another at it has a next time.
        let Some(mut mapped) = self.mapped.try_lock() else { return };
        if segment.bytes() > self.max_bytes || !segment.may_be_mapped() {
            return;
        }
        mapped.retain(|other| other.upgrade().is_some_and(|other| other.in_memory().is_some()));
        let mut found = None;
        loop {
            // Only who holds the lock adds to it.
            let fits = self.bytes.load(Ordering::Relaxed) + segment.bytes() <= self.max_bytes;
            if fits && mapped.len() < MAX_SEGMENTS {
                found = segment.mapped();
            }
            // None where the process has no more guards, or no more memory.
            if found.is_some() || !replaces {
                break;
            }
            let Some(oldest) = mapped.pop_front() else { break };
            if let Some(oldest) = oldest.upgrade() {
                oldest.unmap();
            }
        }
        self.is_full.store(found.is_none(), Ordering::Relaxed);
        if let Some(reads) = found {
            let bytes = segment.bytes();
            segment.keep_mapped(Mapped::new(reads, bytes, &self.bytes));
            mapped.push_back(Arc::downgrade(segment));
        }
    }
}
