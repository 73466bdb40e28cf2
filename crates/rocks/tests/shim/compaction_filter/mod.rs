//! Filters of compactions, as the garbage collection of values will use them.

mod containment;
mod context;
mod remote;
mod values;

use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

use crate::common::small_store;
use ecotone_rocks::compaction_filter::{
    CompactionFilter, CompactionFilterFactory, FilterContext, Verdict, set_compaction_filter,
};
use rust_rocksdb::{DB, Options};

/// What a test wants to become of an entry.
enum Fate {
    Keep,
    Remove,
    Change(Vec<u8>),
}

type Decide = Box<dyn Fn(u32, &[u8], &[u8]) -> Fate + Send + Sync>;

/// One entry as a filter saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    /// Which filter, counted from 0.
    filter: usize,
    thread: ThreadId,
    level: u32,
    key: Vec<u8>,
    value: Vec<u8>,
}

#[derive(Debug, Default)]
struct Log {
    /// Of each filter made.
    contexts: Vec<FilterContext>,
    seen: Vec<Seen>,
    filters_dropped: usize,
}

impl Log {
    fn entries(&self) -> Vec<(&[u8], &[u8])> {
        self.seen.iter().map(|seen| (seen.key.as_slice(), seen.value.as_slice())).collect()
    }
}

/// Decides by a function and notes what was asked. It is shared by the test, the factory and each
/// filter.
struct Recording {
    decide: Decide,
    log: Mutex<Log>,
}

impl Recording {
    fn new(decide: impl Fn(u32, &[u8], &[u8]) -> Fate + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { decide: Box::new(decide), log: Mutex::default() })
    }

    fn factory(self: &Arc<Self>) -> Arc<dyn CompactionFilterFactory> {
        Arc::new(RecordingFactory(self.clone()))
    }

    /// Options of a small store with a filter that records here.
    fn options(self: &Arc<Self>) -> Options {
        let mut options = small_store();
        set_compaction_filter(&mut options, self.factory());
        options
    }

    /// What happened since the last call.
    fn take(&self) -> Log {
        std::mem::take(&mut *self.log.lock().expect("not poisoned"))
    }
}

struct RecordingFactory(Arc<Recording>);

impl CompactionFilterFactory for RecordingFactory {
    fn filter(&self, context: FilterContext) -> Option<Box<dyn CompactionFilter>> {
        let mut log = self.0.log.lock().expect("not poisoned");
        log.contexts.push(context);
        let number = log.contexts.len() - 1;
        Some(Box::new(RecordingFilter { recording: self.0.clone(), number, changed: Vec::new() }))
    }
}

struct RecordingFilter {
    recording: Arc<Recording>,
    number: usize,
    changed: Vec<u8>,
}

impl CompactionFilter for RecordingFilter {
    fn decide(&mut self, level: u32, key: &[u8], value: &[u8]) -> Verdict<'_> {
        self.recording.log.lock().expect("not poisoned").seen.push(Seen {
            filter: self.number,
            thread: std::thread::current().id(),
            level,
            key: key.to_vec(),
            value: value.to_vec(),
        });
        match (self.recording.decide)(level, key, value) {
            Fate::Keep => Verdict::Keep,
            Fate::Remove => Verdict::Remove,
            Fate::Change(changed) => {
                self.changed = changed;
                Verdict::Change(&self.changed)
            }
        }
    }
}

impl Drop for RecordingFilter {
    fn drop(&mut self) {
        self.recording.log.lock().expect("not poisoned").filters_dropped += 1;
    }
}

fn compact_all(db: &DB) {
    db.compact_range(None::<&[u8]>, None::<&[u8]>);
}
