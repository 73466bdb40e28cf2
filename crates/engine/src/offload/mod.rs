//! The owner's side of an offloaded compaction: the seam that the federation fills.
//!
//! RocksDB asks once for every subcompaction of every compaction that is more than a move of
//! tables. The question goes to [`CompactionOffload::run`] on the thread of that subcompaction,
//! which is held until the answer:
//!
//! ```text
//! RocksDB's thread                         CompactionOffload                       worker
//! schedule(info, input) -> RemoteJob  -->  run(job)  ..... input, table format ..>  run_remote_compaction
//!                                            fetch outputs into job.output_directory()  <.. result, files
//!                                            verify_outputs(&job, &result)
//! rename, MANIFEST                    <--  Installed { result, on_installed }
//!   or compact here                   <--  Local, or Fallback (waits for a local slot)
//! on_installation                     -->  on_installed(ok)
//! ```
//!
//! # Where outputs must lie
//!
//! In [`RemoteJob::output_directory`], which is `session_tmp/<output name>` in the store's
//! directory: RocksDB renames from there into the store, and removes all of `session_tmp` at the
//! next open. The owner of the job makes the directory and removes it in its
//! [`on_installed`](RemoteOutcome::Installed), or when it gave the job up.
//!
//! # Invariants
//!
//! - RocksDB is never told "failed" or "aborted": both stop the store for good. Whatever goes
//!   wrong, also a panic in `run`, becomes a local compaction.
//! - Success is reported only with a [`VerifiedResult`](verify::VerifiedResult), which only
//!   [`verify_outputs`](crate::verify_outputs) makes: every output is complete, durable and
//!   checked.
//! - The subcompactions of one compaction that ran elsewhere report success only when all
//!   subcompactions together have read what the input tables hold (`subcompactions`).
//! - At most as many fallbacks run here at a time as [`LocalSlots`](crate::LocalSlots) has.
//!
//! # Which callbacks RocksDB makes, on which thread
//!
//! Read in `db/compaction/compaction_job.cc` (`RunSubcompactions`, `ProcessKeyValueCompaction`) of
//! RocksDB 11.12:
//!
//! - `OnCompactionBegin` and `OnCompactionCompleted` come on the thread of RocksDB's pool, once for
//!   a compaction, also when all its subcompactions were remote and when it failed. Subcompaction 0
//!   runs on that same thread; each further subcompaction on a `std::thread` of its own that ends
//!   with the subcompaction.
//! - A subcompaction asks the compaction service first. Only when it is then run locally do
//!   `OnSubcompactionBegin` and `OnSubcompactionCompleted` come, on the subcompaction's thread,
//!   also with a single one. For a subcompaction that ran remotely neither comes.
//! - None of them comes once the store is shutting down: a begin can then lack its end. A manual
//!   compaction that was cancelled before it began has no begin.
//!
//! So a slot is given back at `OnSubcompactionCompleted`, and, for the cases without it, when the
//! same thread next asks for a slot or ends; when the store closes, nobody waits for slots any
//! more.

pub(crate) mod adapter;
pub mod slots;
pub(crate) mod subcompactions;
pub mod verify;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ecotone_rocks::remote::RemoteInput;
use ecotone_types::JobPurpose;
use ecotone_valuelog::moves::MovePlan;
use ecotone_valuelog::pointer::SegmentNumber;

use crate::table_format::TableFormat;
use verify::{ExpectedTables, VerifiedResult};

/// Runs compactions elsewhere.
pub trait CompactionOffload: Send + Sync {
    /// Decides on one subcompaction of a compaction and, when it goes to a worker, sees it through
    /// to verified outputs.
    ///
    /// Called on the subcompaction's thread, several at a time; blocks until the outcome. A panic
    /// counts as [`RemoteOutcome::Fallback`]. Must return soon after
    /// [`cancel_all`](Self::cancel_all), and in any case at a deadline of its own: RocksDB waits
    /// for it without one.
    fn run(&self, job: RemoteJob) -> RemoteOutcome;

    /// Whether a worker may be asked to give values new places ([`RemoteJob::moves`]) in a merge of
    /// so many entries. Asked for each compaction of garbage collection, on its thread; must not
    /// block. Where not, [`stays`](Self::stays) is told.
    fn moves_values(&self, entries: u64) -> bool {
        let _ = entries;
        false
    }

    /// A subcompaction of a compaction begins that nobody else could run, because it copies values:
    /// its purpose is [`JobPurpose::Gc`]. It is told so that the policy knows of it, and is not
    /// asked for. Called on the subcompaction's thread, which waits; neither `run` nor
    /// `local_finished` comes for it.
    fn stays(&self, job: &RemoteJob) {
        let _ = job;
    }

    /// The store is closing: every `run` under way returns soon, with [`RemoteOutcome::Local`].
    /// Later calls of `run` do not come.
    fn cancel_all(&self);

    /// The subcompaction that `run` sent back has ended here, on this thread. Does not come when
    /// the store closes meanwhile.
    fn local_finished(&self, job: u64) {
        let _ = job;
    }
}

/// Hears whether RocksDB has renamed the outputs of a job into the store, or did not take them; the
/// commit to the MANIFEST comes after this. Called once at most, on the subcompaction's thread;
/// dropped uncalled when the store closes meanwhile. Removes [`RemoteJob::output_directory`].
pub type OnInstalled = Box<dyn FnOnce(bool) + Send>;

/// What became of a [`RemoteJob`].
pub enum RemoteOutcome {
    /// It is to run here, as decided: at once.
    Local,
    /// It was to run elsewhere and did not: it runs here as soon as a local slot is free.
    Fallback,
    /// It ran elsewhere, and its outputs lie in [`RemoteJob::output_directory`], verified and
    /// durable.
    Installed {
        /// The proof, from [`verify_outputs`](crate::verify_outputs) for this very job.
        result: VerifiedResult,
        /// What is to be done once RocksDB has taken it, or has not.
        on_installed: OnInstalled,
    },
}

impl fmt::Debug for RemoteOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("Local"),
            Self::Fallback => f.write_str("Fallback"),
            Self::Installed { result, .. } => {
                f.debug_struct("Installed").field("result", result).finish_non_exhaustive()
            }
        }
    }
}

/// One input table of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputTable {
    /// Its name without directory, `000123.sst`.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its level, where it is known.
    pub level: Option<u32>,
}

/// One subcompaction of a compaction that could run elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteJob {
    /// Names the job within this process; never given twice.
    pub id: u64,
    /// RocksDB's number: the compaction's in the high 32 bits, the subcompaction's in the low ones.
    /// Unique since the store was opened.
    pub rocks_job: u64,
    /// What it is for.
    pub purpose: JobPurpose,
    /// How long the space lasts that it is to win, where that runs out; `None`: nothing presses but
    /// writers that may stall.
    pub deadline: Option<Duration>,
    /// This opening of the store. A worker's answer for another one is not for this job.
    pub db_session_id: String,
    /// The store's directory, as RocksDB names it in every path of the job.
    pub store_directory: PathBuf,
    /// What the worker is to do, for [`run_remote_compaction`](crate::run_remote_compaction).
    pub input: Vec<u8>,
    /// The same, read.
    pub request: RemoteInput,
    /// All input tables of the compaction: each of its subcompactions reads its range of them.
    pub input_files: Vec<InputTable>,
    /// Bytes of all input tables.
    pub input_bytes: u64,
    /// The bytes of them that this subcompaction is expected to read: all for a compaction of one
    /// subcompaction, else by the share of the store that lies in the subcompaction's range.
    pub estimated_bytes: u64,
    /// Entries of all input tables without range deletions, where all are known.
    pub input_records: Option<u64>,
    /// The least and the greatest user key of all input tables, where they are known.
    pub key_bounds: Option<(Vec<u8>, Vec<u8>)>,
    /// Tables in level 0 when RocksDB asked; `None` while the store is being opened.
    pub l0_tables: Option<u32>,
    /// The level it begins at.
    pub input_level: i32,
    /// The level it writes to.
    pub output_level: i32,
    /// Asked for by hand.
    pub is_manual: bool,
    /// How the outputs are to be laid out.
    pub table_format: TableFormat,
    /// Where values may be moved, of a job of [`JobPurpose::Gc`] that is to run elsewhere.
    pub moves: Option<MovePlan>,
    /// Segments that the inputs name, in their order; known only where there are
    /// [`moves`](Self::moves).
    pub named_segments: Vec<SegmentNumber>,
}

/// RocksDB's name for the folder that it empties at every open (`kSessionTmpDirName`).
pub(crate) const SESSION_DIRECTORY: &str = "session_tmp";

impl RemoteJob {
    /// Whether this is one of several subcompactions of a compaction.
    pub fn is_subcompaction(&self) -> bool {
        self.request.begin.is_some() || self.request.end.is_some()
    }

    /// What its outputs must be, for [`ReceivedTable::take`](crate::ReceivedTable::take).
    pub fn expected_tables(&self) -> ExpectedTables {
        let moved = self.moves.as_ref().map(|plan| (plan.first.0, plan.first.0 + plan.segments));
        ExpectedTables { format: self.table_format, moved }
    }

    /// The name of the folder for the outputs; also the worker's `output_name`.
    pub fn output_name(&self) -> String {
        format!("job-{}", self.id)
    }

    /// Where the outputs must lie, on the file system of the store, before they are verified.
    pub fn output_directory(&self) -> PathBuf {
        output_directory(&self.store_directory, &self.output_name())
    }
}

pub(crate) fn output_directory(store_directory: &Path, output_name: &str) -> PathBuf {
    store_directory.join(SESSION_DIRECTORY).join(output_name)
}
