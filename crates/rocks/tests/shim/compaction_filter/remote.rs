//! A compaction service, and whose filter is asked.

use std::ffi::CStr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use super::{Fate, Recording};
use crate::common::{content, key, small_store};
use ecotone_rocks::compaction_filter::FilterContext;
use ecotone_rocks::tables::live_tables;
use rust_rocksdb::compaction_service::open_and_compact;
use rust_rocksdb::{
    CompactionService, CompactionServiceJobInfo, CompactionServiceJobStatus, CompactionServiceOptionsOverride, DB,
    Options, ScheduleResponse, WaitForCompactOptions,
};

/// Runs each job as a worker would, with options of its own.
struct Worker {
    store: PathBuf,
    options: Options,
    inputs: Mutex<Vec<Vec<u8>>>,
}

impl CompactionService for Worker {
    fn name(&self) -> &CStr {
        c"worker"
    }

    fn schedule(&self, _info: &CompactionServiceJobInfo<'_>, input: &[u8]) -> ScheduleResponse {
        let mut inputs = self.inputs.lock().expect("not poisoned");
        inputs.push(input.to_vec());
        let job = (inputs.len() - 1).to_string();
        ScheduleResponse::scheduled(&job, CompactionServiceJobStatus::Success).expect("no NUL in it")
    }

    fn wait(&self, job: &CStr, result: &mut Vec<u8>) -> CompactionServiceJobStatus {
        let number: usize = job.to_string_lossy().parse().expect("a number");
        let input = self.inputs.lock().expect("not poisoned")[number].clone();
        let mut overriding = CompactionServiceOptionsOverride::from_options(&self.options);
        overriding.set_option("skip_stats_update_on_db_open", "true").expect("an option");
        *result = open_and_compact(&self.store, format!("out-{number}"), &input, &overriding).expect("compacts");
        CompactionServiceJobStatus::Success
    }
}

/// Lets a store compact itself, whose owner filters by `owner`, on a worker with `options`; the one
/// value that all keys then have.
fn compact_elsewhere(owner: &Arc<Recording>, options: Options) -> Vec<u8> {
    let directory = tempfile::tempdir().expect("a directory");
    let mut owners = owner.options();
    owners.set_disable_auto_compactions(false);
    owners.set_level_zero_file_num_compaction_trigger(2);
    let inputs = Mutex::default();
    owners.set_compaction_service(Worker { store: directory.path().to_owned(), options, inputs });
    let db = DB::open(&owners, directory.path()).expect("opens");
    for _ in 0..2 {
        for number in 0..100 {
            db.put(key(number), b"value").expect("writes");
        }
        db.flush().expect("flushes");
    }
    db.wait_for_compact(&WaitForCompactOptions::default()).expect("waits");
    assert!(live_tables(&db).expect("lists").iter().all(|table| table.level > 0));
    let content = content(&db);
    assert_eq!(content.len(), 100);
    let value = content[&key(0)].clone();
    assert!(content.values().all(|other| *other == value));
    value
}

#[test]
fn a_remote_compaction_asks_the_workers_filter_and_not_the_owners() {
    let owner = Recording::new(|_, _, _| Fate::Change(b"changed by the owner".to_vec()));
    assert_eq!(compact_elsewhere(&owner, small_store()), b"value", "a worker without a filter filters nothing");
    assert!(owner.take().contexts.is_empty());

    let worker = Recording::new(|_, _, _| Fate::Change(b"changed by the worker".to_vec()));
    assert_eq!(compact_elsewhere(&owner, worker.options()), b"changed by the worker");
    assert!(owner.take().contexts.is_empty());
    let log = worker.take();
    assert_eq!(log.seen.len(), 100);
    let context = FilterContext { column_family_id: 0, is_full: true, is_manual: true, input_level: Some(0) };
    assert_eq!(log.contexts, [context], "to a worker all is manual");
}
