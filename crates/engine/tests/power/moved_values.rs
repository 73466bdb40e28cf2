//! Power is lost while this store moves values as a worker says. What was durable before is there
//! at every moment: no table names a value that is not.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ecotone_engine::{OpenMode, Separation, Store, StoreSettings};
use ecotone_io::tap::{TapEvent, WriteTap};
use ecotone_policy::gc::GcParameters;
use ecotone_rocks::filesystem::FileSystemHooks;
use ecotone_types::JobPurpose;
use ecotone_types::units::Bytes;

use crate::common;
use common::disk::{Image, Recorder, moments};
use common::offloads::{InProcess, Only};
use common::random::Random;
use common::writes::recount_tables;
use common::{assert_equals, directory_in_memory, halve, numbered, until};

/// Tables of a worker come whole and durable from a folder that is none of the store's.
struct WithTables(Arc<Recorder>);

impl WriteTap for WithTables {
    fn record(&self, event: TapEvent<'_>) -> io::Result<()> {
        let is_apart = |path: &std::path::Path| path.components().any(|part| part.as_os_str() == "session_tmp");
        match event {
            TapEvent::Renamed { from, to } if is_apart(from) => {
                let bytes = std::fs::read(to).or_else(|_| std::fs::read(from))?;
                self.0.record(TapEvent::Created { path: to })?;
                self.0.record(TapEvent::Appended { path: to, offset: 0, bytes: &bytes })?;
                self.0.record(TapEvent::Synced { path: to, len: bytes.len() as u64 })
            }
            event if is_apart(event.path()) => Ok(()),
            event => self.0.record(event),
        }
    }
}

#[test]
fn power_is_lost_while_values_are_moved_as_a_worker_says() {
    let settings = StoreSettings {
        separation: Some(Separation { min_bytes: 50, segment_bytes: 32 * 1024 }),
        gc: GcParameters {
            begin_ratio: 1.2,
            end_ratio: 1.1,
            forced_ratio: 1.25,
            urgent_ratio: 100.0,
            throttle_ratio: 100.0,
            max_throttle_ratio: 101.0,
            ample_free_share: 1e-6,
            min_garbage_bytes: Bytes(32 * 1024),
            ..GcParameters::default()
        },
        ..common::small()
    };
    let (root, worker) = (directory_in_memory(), directory_in_memory());
    let recorder = Recorder::below(root.path());
    let mut offload = InProcess::new(worker.path());
    offload.moves_values = true;
    let offload = Only::of(Arc::new(offload), |purpose| purpose == JobPurpose::Gc);
    let path = root.path().canonicalize().unwrap().join("store");
    let hooks = FileSystemHooks { tap: Some(Arc::new(WithTables(recorder.clone()))), ..FileSystemHooks::default() };
    let builder = Store::builder(&path).mode(OpenMode::Create).settings(settings.clone());
    let store = builder.hooks(hooks).offload(offload.clone()).open().unwrap();
    let mut model = numbered(&store, 3_000);
    store.compact(..).unwrap();
    halve(&store, &mut model);
    let mut image = Image::default();
    recorder.take().iter().for_each(|recorded| image.apply(&recorded.change));
    store.compact(..).unwrap();
    let installed = &offload.worker.installed;
    until(&store, |log| installed.load(Ordering::Relaxed) >= 2 && log.removed_segments > 0);
    store.close().unwrap();

    let (changes, mut random) = (recorder.take(), Random::new(1));
    let mut done = 0;
    for moment in moments(&changes, 20, &mut random) {
        changes[done..moment].iter().for_each(|recorded| image.apply(&recorded.change));
        done = moment;
        let lost = directory_in_memory();
        image.after_power_loss(lost.path(), &mut random);
        let path = lost.path().join("store");
        recount_tables(&path, &format!("after {moment} of {} changes", changes.len()));
        let store = Store::open(&path, OpenMode::Open, settings.clone()).unwrap();
        assert_equals(&store, &model);
        store.close().unwrap();
    }
}
