//! What a store tells while it works: duties in pairs on every thread, events, counters,
//! properties, memory.

use crate::common;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use common::offloads::{AdmissionControl, InProcess};
use common::{Model, assert_equals, fill};
use ecotone_engine::{
    CompactionFinished, CompactionOffload, Duty, DutyObserver, FlushFinished, MemoryLimit, RemoteJob, RemoteOutcome,
    StallChanged, StallCondition, StoreBuilder, StoreEvents, StoreSettings, WriteOptions,
};

/// Keeps for each thread the duties that it has begun and not ended, and refuses an end without its
/// begin.
#[derive(Default)]
struct Duties {
    open: Mutex<HashMap<ThreadId, Vec<Duty>>>,
    begun: Mutex<HashMap<Duty, u64>>,
    unbalanced: AtomicU64,
}

impl DutyObserver for Duties {
    fn begin(&self, duty: Duty) {
        *self.begun.lock().unwrap().entry(duty).or_default() += 1;
        self.open.lock().unwrap().entry(std::thread::current().id()).or_default().push(duty);
    }

    fn end(&self) {
        let mut open = self.open.lock().unwrap();
        if open.get_mut(&std::thread::current().id()).and_then(Vec::pop).is_none() {
            self.unbalanced.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Duties {
    fn begun(&self, duty: Duty) -> u64 {
        self.begun.lock().unwrap().get(&duty).copied().unwrap_or(0)
    }

    fn assert_all_ended(&self) {
        let open: Vec<_> = self.open.lock().unwrap().values().flatten().copied().collect();
        assert!(open.is_empty(), "{open:?} have no end");
        assert_eq!(self.unbalanced.load(Ordering::Relaxed), 0, "ends without a begin");
    }
}

#[derive(Default)]
struct Events {
    flushes: Mutex<Vec<FlushFinished>>,
    compactions: Mutex<Vec<CompactionFinished>>,
    stalls: Mutex<Vec<StallChanged>>,
}

impl StoreEvents for Events {
    fn flush_finished(&self, event: &FlushFinished) {
        self.flushes.lock().unwrap().push(event.clone());
    }
    fn compaction_finished(&self, event: &CompactionFinished) {
        self.compactions.lock().unwrap().push(event.clone());
    }
    fn stall_changed(&self, event: &StallChanged) {
        self.stalls.lock().unwrap().push(*event);
    }
}

/// Works a store hard, waits until it is idle, and returns what was observed.
fn observe(offload: Option<Arc<dyn CompactionOffload>>, subcompactions: u32) -> (Arc<Duties>, Arc<Events>) {
    let duties = Arc::<Duties>::default();
    let events = Arc::<Events>::default();
    let settings = StoreSettings {
        max_subcompactions: subcompactions,
        l0_compaction_trigger: 2,
        background_flushes: 2,
        background_compactions: 3,
        memtable_count: 4,
        ..common::small()
    };
    let (_directory, store) = common::store_with(settings, |builder| {
        let builder = builder.duties(duties.clone()).events(events.clone());
        offload.into_iter().fold(builder, StoreBuilder::offload)
    });
    let mut model = Model::new();
    for round in 0..3 {
        fill(&store, &mut model, round, 6_000, 2_000);
        store.flush(true).unwrap();
        store.compact(..).unwrap();
    }
    assert_equals(&store, &model);
    loop {
        let now = store.properties().unwrap();
        if now.running_compactions == 0 && now.running_flushes == 0 && !now.compaction_pending {
            break;
        }
        std::thread::yield_now();
    }
    let counters = store.counters();
    store.close().unwrap();
    assert_eq!(counters.compactions, events.compactions.lock().unwrap().len() as u64);
    assert_eq!(counters.flushes, events.flushes.lock().unwrap().len() as u64);
    (duties, events)
}

#[test]
fn memtables_are_flushed_full_where_their_values_are_few_bytes() {
    let events = Arc::<Events>::default();
    // One holds a thousand keys: their values of 4 KiB are far fewer bytes than are flushed for
    // alone.
    let settings = StoreSettings { memtable_bytes: 64 << 10, ..common::small() }.with_separation(128);
    let (_directory, store) = common::store_with(settings, |builder| builder.events(events.clone()));
    // They are overwritten again and again, for which memtables may be flushed early.
    for key in (0..2_000u32).cycle().take(30_000) {
        store.put(format!("key{key:013}").as_bytes(), &[7; 4096]).unwrap();
    }
    store.close().unwrap();
    let flushes = events.flushes.lock().unwrap();
    let entries: Vec<u64> = flushes.iter().map(|flush| flush.entries).collect();
    // The last was closed for. Those that waited together became one table: there may be more in it
    // than one memtable holds, which is 1067.
    let least = entries[..entries.len() - 1].iter().min().unwrap();
    assert!(entries.len() > 8 && *least > 800, "{entries:?}");
}

/// A flush whose table another thread's flush committed has its end when its thread next begins a
/// job; so one may be open on an idle thread of the pool. Everything else has ended.
fn assert_balanced(duties: &Duties) {
    let mut open = duties.open.lock().unwrap();
    for duties in open.values_mut() {
        assert!(duties.len() <= 1 && duties.iter().all(|duty| *duty == Duty::Flush), "{duties:?} have no end");
        duties.clear();
    }
    drop(open);
    duties.assert_all_ended();
}

#[test]
fn duties_balance_when_compactions_are_local() {
    for subcompactions in [1, 4] {
        let (duties, events) = observe(None, subcompactions);
        assert!(duties.begun(Duty::Flush) > 0 && duties.begun(Duty::Compaction) > 0);
        assert_balanced(&duties);
        let compactions = events.compactions.lock().unwrap();
        assert!(compactions.iter().all(|event| !event.remote && event.error.is_none()), "{compactions:?}");
        if subcompactions > 1 {
            assert!(compactions.iter().any(|event| event.subcompactions > 1), "no compaction was split");
        }
    }
}

#[test]
fn duties_balance_when_compactions_are_remote() {
    for subcompactions in [1, 4] {
        let worker = tempfile::tempdir().unwrap();
        let (duties, events) = observe(Some(Arc::new(InProcess::new(worker.path()))), subcompactions);
        assert!(duties.begun(Duty::Compaction) > 0);
        assert_balanced(&duties);
        let compactions = events.compactions.lock().unwrap();
        let moved = |event: &&CompactionFinished| event.subcompactions == 0;
        assert!(compactions.iter().all(|event| event.remote || moved(&event)), "{compactions:?}");
        let remote: Vec<_> = compactions.iter().filter(|event| event.remote).collect();
        assert!(!remote.is_empty());
        for event in remote {
            assert!(
                event.input_bytes > 0 && event.output_bytes > 0 && event.input_records >= event.output_records,
                "{event:?}"
            );
            assert!(event.seconds > 0.0 && event.cpu_seconds > 0.0, "{event:?}");
        }
    }
}

#[test]
fn duties_balance_when_offloads_fail() {
    common::hide_panics("an offload that panics");
    struct Failing(AtomicU64);
    impl CompactionOffload for Failing {
        fn run(&self, _job: RemoteJob) -> RemoteOutcome {
            match self.0.fetch_add(1, Ordering::Relaxed) % 3 {
                0 => RemoteOutcome::Local,
                1 => RemoteOutcome::Fallback,
                _ => panic!("an offload that panics"),
            }
        }
        fn cancel_all(&self) {}
    }
    let (duties, _events) = observe(Some(Arc::new(Failing(AtomicU64::new(0)))), 3);
    assert_balanced(&duties);
}

#[test]
fn flushes_tell_what_they_wrote() {
    let (_duties, events) = observe(None, 1);
    let flushes = events.flushes.lock().unwrap();
    assert!(flushes.len() > 10);
    for event in flushes.iter() {
        assert!(event.bytes > 0 && event.entries > 0 && event.seconds > 0.0, "{event:?}");
    }
}

#[test]
fn an_observer_that_panics_harms_nothing() {
    common::hide_panics("an observer that panics");
    struct Panicking;
    impl StoreEvents for Panicking {
        fn flush_finished(&self, _event: &FlushFinished) {
            panic!("an observer that panics");
        }
        fn compaction_finished(&self, _event: &CompactionFinished) {
            panic!("an observer that panics");
        }
    }
    let (_directory, store) = common::store_with(common::small(), |builder| builder.events(Arc::new(Panicking)));
    let mut model = Model::new();
    fill(&store, &mut model, 3, 6_000, 2_000);
    store.flush(true).unwrap();
    store.compact(..).unwrap();
    assert_equals(&store, &model);
    store.close().unwrap();
}

#[test]
fn a_stall_is_told_timed_and_ended() {
    let (events, admission) = (Arc::new(Events::default()), Arc::new(AdmissionControl::default()));
    admission.close();
    // Every compaction waits at admission control, so L0 grows to the slowdown.
    let options = StoreSettings {
        l0_compaction_trigger: 2,
        l0_slowdown_trigger: 4,
        l0_stop_trigger: 40,
        background_compactions: 1,
        ..common::small()
    };
    let (_directory, store) =
        common::store_with(options, |builder| builder.offload(admission.clone()).events(events.clone()));
    let (mut model, mut seed) = (Model::new(), 0);
    while store.counters().delayed_us == 0 {
        seed += 1;
        fill(&store, &mut model, seed, 200, 2_000);
        store.flush(true).unwrap();
        assert!(seed < 30, "no stall came: {:?}", store.properties());
    }
    assert!(store.properties().unwrap().delayed_write_rate_bytes_per_s > 0);
    let begin = (store.counters().stall_us(), std::time::Instant::now());
    while store.counters().stall_us() == begin.0 {
        assert!(begin.1.elapsed().as_secs() < 10, "the clock stands while writers are slowed");
    }
    admission.open();
    store.compact(..).unwrap();
    let ended = store.counters();
    assert_eq!(store.counters().stall_us(), ended.stall_us(), "the clock stands when they are not");
    let stalls = events.stalls.lock().unwrap();
    assert!(stalls.iter().any(|stall| stall.to == StallCondition::Delayed), "{stalls:?}");
    assert_eq!(stalls.last().map(|stall| stall.to), Some(StallCondition::Normal));
    drop(stalls);
    assert_equals(&store, &model);
}

#[test]
fn counters_count_what_was_done() {
    let (_directory, store) = common::store(common::small());
    let before = store.counters();
    for number in 0..100_u32 {
        store.put(&number.to_be_bytes(), &[7; 50]).unwrap();
    }
    store.get(&1_u32.to_be_bytes()).unwrap().unwrap();
    let after = store.counters();
    assert_eq!(after.keys_written - before.keys_written, 100);
    assert!(after.bytes_written - before.bytes_written >= 100 * 54);
    assert!(after.wal_bytes - before.wal_bytes >= 100 * 54);
    assert_eq!(after.keys_read - before.keys_read, 1);
    assert!(after.bytes_read - before.bytes_read >= 50);
    assert_eq!(after.batches_written - before.batches_written, 100);
    assert_eq!(after.multi_gets, before.multi_gets);
    // Many keys at once are one write, one lookup.
    let mut batch = ecotone_engine::Batch::new();
    let keys: Vec<[u8; 4]> = (0..20_u32).map(u32::to_be_bytes).collect();
    keys.iter().for_each(|key| batch.put(key, &[7; 50]).unwrap());
    store.write(&batch, WriteOptions::default()).unwrap();
    assert!(store.multi_get(&keys).iter().all(|value| value.as_ref().unwrap().is_some()));
    let non_blocking = store.counters();
    assert_eq!(non_blocking.batches_written - after.batches_written, 1);
    assert_eq!(non_blocking.keys_written - after.keys_written, 20);
    assert_eq!(non_blocking.multi_gets - after.multi_gets, 1);
    assert_eq!(non_blocking.keys_read - after.keys_read, 20);
    assert!(non_blocking.bytes_read - after.bytes_read >= 20 * 50);
    store.flush(true).unwrap();
    let flushed = store.counters();
    assert_eq!(flushed.flushes - after.flushes, 1);
    let tables = store.live_tables().unwrap();
    let properties = store.properties().unwrap();
    assert_eq!((tables.len(), tables[0].entries), (1, 100));
    assert_eq!(
        (properties.l0_tables, properties.table_bytes, properties.memtable_bytes > 0),
        (1, tables[0].bytes, true)
    );
    assert_eq!(properties.levels[0].bytes, tables[0].bytes);
}

#[test]
fn one_limit_holds_for_all_stores_that_share_it() {
    let limit = MemoryLimit::new(8 * 1024 * 1024);
    let settings = StoreSettings { memtable_bytes: 64 * 1024 * 1024, ..common::small() };
    let (_one, first) = common::store_with(settings.clone(), |builder| builder.memory(limit.clone()));
    let (_other, second) = common::store_with(settings, |builder| builder.memory(limit.clone()));
    // Five times the limit; without it, all of that would stay in memtables.
    for number in 0..40_000_u32 {
        let store = if number.is_multiple_of(2) { &first } else { &second };
        store.put(&number.to_be_bytes(), &common::value_of(b"", number.into(), 1_000)).unwrap();
        if number.is_multiple_of(1_000) {
            // The limit is soft: a memtable counts until its flush has ended, and writers do not
            // wait for that. So give the flushes time.
            let begun = Instant::now();
            while limit.memtable_bytes() > limit.limit_bytes() {
                assert!(begun.elapsed() < Duration::from_secs(60), "nobody flushes: {limit:?}");
                std::thread::yield_now();
            }
        }
    }
    for number in 0..40_000_u32 {
        let store = if number.is_multiple_of(2) { &first } else { &second };
        assert!(store.get(&number.to_be_bytes()).unwrap().is_some());
    }
    // What is pinned, or being flushed, may exceed the limit for a moment; what is only kept may not.
    let begun = Instant::now();
    while limit.used_bytes() > limit.limit_bytes() + limit.limit_bytes() / 4 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{limit:?}");
        std::thread::yield_now();
    }
    assert!(limit.used_bytes() > 0);
}
