//! Real jobs with their real results: each compaction is run as a worker would, kept, and then done
//! locally.

use std::ffi::CStr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use ecotone_rocks::remote::{RemoteInput, RemoteOutput, RemoteResult};
use ecotone_rocks::verify::ExpectedTable;
use rust_rocksdb::compaction_service::open_and_compact;
use rust_rocksdb::{
    CompactionService, CompactionServiceJobInfo, CompactionServiceJobStatus, CompactionServiceOptionsOverride, DB,
    ScheduleResponse, WriteBatch,
};

use crate::common::{Numbers, key, small_store};

/// A job, its result, and where its outputs are.
pub struct Job {
    pub input_bytes: Vec<u8>,
    pub input: RemoteInput,
    pub result_bytes: Vec<u8>,
    pub result: RemoteResult,
    pub directory: PathBuf,
}

impl Job {
    pub fn path(&self, output: &RemoteOutput) -> PathBuf {
        self.directory.join(&output.file_name)
    }

    pub fn expected(&self, output: &RemoteOutput) -> ExpectedTable {
        ExpectedTable::of_output(output, self.input.begin.as_deref(), self.input.end.as_deref())
    }
}

struct Rehearsal {
    store: PathBuf,
    keep: PathBuf,
    inputs: Mutex<Vec<Vec<u8>>>,
    jobs: Arc<Mutex<Vec<Job>>>,
}

impl CompactionService for Rehearsal {
    fn name(&self) -> &CStr {
        c"rehearsal"
    }

    fn schedule(&self, _info: &CompactionServiceJobInfo<'_>, input: &[u8]) -> ScheduleResponse {
        let mut inputs = self.inputs.lock().expect("not poisoned");
        inputs.push(input.to_vec());
        let job = (inputs.len() - 1).to_string();
        ScheduleResponse::scheduled(&job, CompactionServiceJobStatus::Success).expect("no NUL in it")
    }

    fn wait(&self, job: &CStr, _result: &mut Vec<u8>) -> CompactionServiceJobStatus {
        let number: usize = job.to_string_lossy().parse().expect("a number");
        let input_bytes = self.inputs.lock().expect("not poisoned")[number].clone();
        let mut overriding = CompactionServiceOptionsOverride::from_options(&small_store());
        overriding.set_option("skip_stats_update_on_db_open", "true").expect("an option");
        let name = format!("out-{number}");
        let result_bytes = open_and_compact(&self.store, &name, &input_bytes, &overriding).expect("compacts");
        let directory = self.keep.join(&name);
        crate::common::copy_directory(&self.store.join(&name), &directory);
        let input = RemoteInput::parse(&input_bytes).expect("an input");
        let result = RemoteResult::parse(&result_bytes).expect("a result");
        self.jobs.lock().expect("not poisoned").push(Job { input_bytes, input, result_bytes, result, directory });
        CompactionServiceJobStatus::UseLocal
    }
}

/// What the jobs of [`run`] are made from.
#[derive(Clone, Copy)]
pub struct Shape {
    pub keys: u64,
    pub value_bytes: u64,
    pub subcompactions: u32,
    pub range_deletions: bool,
    pub seed: u64,
}

/// Runs the compactions of a store whose files stay below `root`, and returns each as a job.
pub fn run(root: &std::path::Path, shape: Shape) -> Vec<Job> {
    let jobs = Arc::new(Mutex::new(Vec::new()));
    let (store, keep) = (root.join("store"), root.join("keep"));
    let mut options = small_store();
    options.set_max_subcompactions(shape.subcompactions);
    options.set_compaction_service(Rehearsal {
        store: store.clone(),
        keep,
        inputs: Mutex::new(Vec::new()),
        jobs: jobs.clone(),
    });
    let db = DB::open(&options, &store).expect("opens");
    let mut numbers = Numbers(shape.seed);
    let mut snapshots = Vec::new();
    for round in 0..3 {
        for _ in 0..shape.keys {
            let key = key(numbers.below(shape.keys));
            if numbers.below(8) == 0 {
                db.delete(key).expect("deletes");
            } else {
                let value = numbers.bytes(shape.value_bytes as usize);
                db.put(key, value).expect("writes");
            }
        }
        if shape.range_deletions {
            let from = numbers.below(shape.keys / 2);
            let mut batch = WriteBatch::default();
            batch.delete_range(key(from), key(from + shape.keys / 4));
            db.write(&batch).expect("deletes");
        }
        // With a snapshot per round, deletions and old versions stay.
        snapshots.push(db.snapshot());
        db.flush().expect("flushes");
        if round == 0 {
            db.compact_range(None::<&[u8]>, None::<&[u8]>);
        }
    }
    db.compact_range(None::<&[u8]>, None::<&[u8]>);
    drop(snapshots);
    drop(db);
    std::mem::take(&mut *jobs.lock().expect("not poisoned"))
}
