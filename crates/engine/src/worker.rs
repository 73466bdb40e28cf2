//! The worker's side of an offloaded compaction: runs one job over files that are elsewhere.
//!
//! The job runs whole on the calling thread. RocksDB opens the owner's store as a secondary, under
//! the owner's paths, and reads OPTIONS, CURRENT, MANIFEST and the input tables through
//! [`RemoteFiles`]; it never reads the owner's WAL. Only the outputs are local: the owner's
//! `session_tmp/<output name>` leads to [`WorkerRequest::output_directory`]. Nothing is written
//! anywhere else, no info log either.
//!
//! Failure: whatever goes wrong is a [`WorkerError`], and the owner runs the job itself. The caller
//! removes the output directory, after the owner has the files or after an error.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ecotone_io::remote_files::{RangedRead, RemoteFiles};
use ecotone_io::tap::WriteTap;
use ecotone_rocks::compaction_filter::set_compaction_filter;
use ecotone_rocks::filesystem::{FileSystemHooks, PathRemap, hooked_env};
use ecotone_rocks::remote::RemoteInput;
use rust_rocksdb::compaction_service::open_and_compact_with_options;
use rust_rocksdb::{
    CompactionServiceOptionsOverride, ErrorKind, InfoLogger, LogLevel, OpenAndCompactCancellationToken,
    OpenAndCompactOptions,
};

use crate::gc::places::{Mover, MoverFactory};
use crate::offload::output_directory as owner_output_directory;
use crate::table_format::TableFormat;
use crate::{DATA_FAMILY, tuning};

/// Tables the worker holds open at a time, beyond which RocksDB closes the least used.
const WORKER_OPEN_FILES: &str = "64";

/// An OPTIONS file has about 16 KiB; a larger one than this is none.
const MAX_OPTIONS_BYTES: u64 = 1024 * 1024;

/// What a worker is to do.
pub struct WorkerRequest<'a> {
    /// The owner's directory, as the owner's RocksDB names it.
    pub store_directory: PathBuf,
    /// Names the job's output folder under the owner's `session_tmp`
    /// ([`RemoteJob::output_name`](crate::RemoteJob::output_name)): one path component.
    pub output_name: String,
    /// Where the outputs are written, on this machine. Must be an empty directory.
    pub output_directory: PathBuf,
    /// The job ([`RemoteJob::input`](crate::RemoteJob::input)).
    pub input: &'a [u8],
    /// The owner's files. Asked for every path but those of the outputs.
    pub files: Arc<dyn RemoteFiles>,
    /// Sees the outputs as they are written, under the owner's paths; `None`: nobody does.
    pub tap: Option<Arc<dyn WriteTap>>,
    /// Gives values new places on the way; `None`: all stay where they are.
    pub mover: Option<Arc<Mover>>,
    /// Stops the job early.
    pub cancel: CancelFlag,
    /// What must equal the owner's and is not in its OPTIONS file.
    pub options: WorkerOptions,
}

/// What must equal the owner's and is not in its OPTIONS file; and what the worker decides for
/// itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerOptions {
    /// The layout of the outputs ([`RemoteJob::table_format`](crate::RemoteJob::table_format)).
    pub table_format: TableFormat,
    /// Bytes read ahead of the compaction in each input table; 0 is RocksDB's default (2 MiB).
    pub readahead_bytes: u64,
}

impl WorkerOptions {
    /// The owner's layout, and the defaults of the worker.
    pub const fn new(table_format: TableFormat) -> Self {
        Self { table_format, readahead_bytes: 0 }
    }
}

/// Stops a job from another thread. Clones share it. One shot: make a new one for each job.
#[derive(Clone, Default)]
pub struct CancelFlag {
    token: Arc<OpenAndCompactCancellationToken>,
    raised: Arc<AtomicBool>,
}

impl CancelFlag {
    /// Not raised.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks the job to stop. It ends at its next key with [`WorkerError::Canceled`]; a read that
    /// hangs in [`RemoteFiles`] is for its implementation to end.
    pub fn cancel(&self) {
        self.raised.store(true, Ordering::Release);
        self.token.cancel();
    }

    /// Whether [`cancel`](Self::cancel) was called.
    pub fn is_canceled(&self) -> bool {
        self.raised.load(Ordering::Acquire)
    }
}

/// Why a worker has no result. Each means to the owner: compact locally.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WorkerError {
    /// The view of the owner's MANIFEST is older than the job. Nothing is wrong here.
    #[error("declined: the owner's files are seen in an older state than the job's: {0}")]
    Declined(String),
    /// [`CancelFlag::cancel`] was called.
    #[error("the job was canceled")]
    Canceled,
    /// The request cannot be run as it is. Sending it again will not help.
    #[error("invalid request: {0}")]
    InvalidRequest(String),
    /// The owner's bytes, or those that arrived, are damaged.
    #[error("corrupt input: {0}")]
    Corrupt(String),
    /// No space is left for the outputs.
    #[error("no space for the outputs: {0}")]
    DiskFull(String),
    /// Anything else: a file that could not be read, a connection that broke.
    #[error("the job failed: {0}")]
    Failed(String),
}

impl WorkerError {
    fn sort(error: &rust_rocksdb::Error, cancel: &CancelFlag) -> Self {
        let detail = error.as_ref().to_owned();
        if cancel.is_canceled() {
            return Self::Canceled;
        }
        if detail.contains("No space left on device") {
            return Self::DiskFull(detail);
        }
        match error.kind() {
            ErrorKind::Incomplete => Self::Declined(detail),
            ErrorKind::Corruption => Self::Corrupt(detail),
            ErrorKind::InvalidArgument | ErrorKind::NotSupported => Self::InvalidRequest(detail),
            _ => Self::Failed(detail),
        }
    }
}

/// Runs one job and returns the serialized result, for [`verify_outputs`](crate::verify_outputs) on
/// the owner's side. The output tables lie in `request.output_directory`, under the names in the
/// result.
///
/// Blocks for the whole job. The calling thread does all of its work.
pub fn run_remote_compaction(request: WorkerRequest<'_>) -> Result<Vec<u8>, WorkerError> {
    request.check()?;
    request.check_input()?;
    let WorkerRequest { store_directory, output_name, output_directory, input, files, tap, mover, cancel, options } =
        request;
    let owner_output = owner_output_directory(&store_directory, &output_name);
    let hooks = FileSystemHooks {
        tap,
        remap: Some(Arc::new(OutputRemap { owner: owner_output.clone(), local: output_directory })),
        remote: Some(Arc::new(AllButOutputs { files, owner_output })),
        maps_wals: false,
    };
    let env = hooked_env(hooks).map_err(|error| WorkerError::Failed(error.to_string()))?;

    let mut own = tuning::worker_options(options.table_format);
    if let Some(mover) = mover {
        set_compaction_filter(&mut own, Arc::new(MoverFactory(mover)));
    }
    let mut overrides = CompactionServiceOptionsOverride::from_options(&own);
    overrides.set_env(&env);
    overrides.set_info_log(InfoLogger::new_callback_logger(LogLevel::Warn, |level, line| {
        tracing::debug!(?level, "{}", line.trim_end());
    }));
    for (name, value) in [
        ("skip_stats_update_on_db_open", "true"),
        ("use_session_tmp_dir_for_remote_compaction", "true"),
        ("max_file_opening_threads", "1"),
        ("max_open_files", WORKER_OPEN_FILES),
        ("stats_dump_period_sec", "0"),
        ("stats_persist_period_sec", "0"),
    ] {
        set(&mut overrides, name, value)?;
    }
    if options.readahead_bytes > 0 {
        set(&mut overrides, "compaction_readahead_size", &options.readahead_bytes.to_string())?;
    }

    let mut run_options = OpenAndCompactOptions::default();
    run_options.set_canceled(cancel.token.clone());
    open_and_compact_with_options(&run_options, &store_directory, &output_name, input, &overrides)
        .map_err(|error| WorkerError::sort(&error, &cancel))
}

fn set(overrides: &mut CompactionServiceOptionsOverride, name: &str, value: &str) -> Result<(), WorkerError> {
    overrides.set_option(name, value).map_err(|error| WorkerError::InvalidRequest(error.to_string()))
}

impl WorkerRequest<'_> {
    fn check(&self) -> Result<(), WorkerError> {
        let invalid = |reason: String| Err(WorkerError::InvalidRequest(reason));
        let mut components = Path::new(&self.output_name).components();
        let one_name =
            matches!(components.next(), Some(std::path::Component::Normal(_))) && components.next().is_none();
        if !one_name || self.output_name.ends_with('/') {
            return invalid(format!("output name {:?} is not one path component", self.output_name));
        }
        if !self.store_directory.is_absolute() {
            return invalid(format!("the owner's directory {:?} is not absolute", self.store_directory));
        }
        match std::fs::read_dir(&self.output_directory).map(|mut entries| entries.next().is_some()) {
            Err(error) => invalid(format!("output directory {:?}: {error}", self.output_directory)),
            // Upstream: leftovers there can make the result wrong.
            Ok(true) => invalid(format!("output directory {:?} is not empty", self.output_directory)),
            Ok(false) => Ok(()),
        }
    }
}

/// Levels of a store: RocksDB's default, which no owner changes.
const LEVELS: i32 = 7;

impl WorkerRequest<'_> {
    /// Refuses what RocksDB would take on trust. Fields that damaged bytes lack, it fills with
    /// defaults; a column family that it then does not find, or a level that is not there, would
    /// end the process.
    fn check_input(&self) -> Result<(), WorkerError> {
        let invalid = |reason: String| Err(WorkerError::InvalidRequest(reason));
        let input = RemoteInput::parse(self.input).map_err(|error| WorkerError::InvalidRequest(error.to_string()))?;
        if input.cf_name != DATA_FAMILY {
            return invalid(format!("the job is for column family {:?}, not {DATA_FAMILY:?}", input.cf_name));
        }
        if !(0..LEVELS).contains(&input.output_level) {
            return invalid(format!("the job is for level {}", input.output_level));
        }
        if input.input_files.is_empty() || input.db_id.is_empty() || input.min_manifest_file_number == 0 {
            return invalid("the job lacks its inputs, its owner or its MANIFEST".into());
        }
        let options = self.store_directory.join(format!("OPTIONS-{:06}", input.options_file_number));
        let text =
            self.read_whole(&options).map_err(|e| WorkerError::Failed(format!("cannot read {options:?}: {e}")))?;
        let section = format!("[CFOptions \"{DATA_FAMILY}\"]");
        if !text.windows(section.len()).any(|found| found == section.as_bytes()) {
            return invalid(format!("{options:?} has no {section}"));
        }
        Ok(())
    }

    fn read_whole(&self, path: &Path) -> io::Result<Vec<u8>> {
        let file = self.files.open(path)?.ok_or(io::ErrorKind::NotFound)?;
        if file.len() > MAX_OPTIONS_BYTES {
            return Err(io::Error::other(format!("{} bytes are too many for options", file.len())));
        }
        let mut bytes = vec![0; file.len() as usize];
        let read = file.read_at(0, &mut bytes)?;
        bytes.truncate(read);
        Ok(bytes)
    }
}

/// Leads the owner's output folder to the local one.
struct OutputRemap {
    owner: PathBuf,
    local: PathBuf,
}

impl PathRemap for OutputRemap {
    fn map(&self, path: &Path) -> Option<PathBuf> {
        let rest = path.strip_prefix(&self.owner).ok()?;
        // `join("")` would add a slash.
        Some(if rest.as_os_str().is_empty() { self.local.clone() } else { self.local.join(rest) })
    }
}

/// Asks `files` for every path but the outputs', which are local.
struct AllButOutputs {
    files: Arc<dyn RemoteFiles>,
    owner_output: PathBuf,
}

impl RemoteFiles for AllButOutputs {
    fn open(&self, path: &Path) -> io::Result<Option<Arc<dyn RangedRead>>> {
        if path.starts_with(&self.owner_output) { Ok(None) } else { self.files.open(path) }
    }

    fn size(&self, path: &Path) -> io::Result<Option<u64>> {
        if path.starts_with(&self.owner_output) { Ok(None) } else { self.files.size(path) }
    }

    fn list(&self, directory: &Path) -> io::Result<Option<Vec<String>>> {
        if directory.starts_with(&self.owner_output) { Ok(None) } else { self.files.list(directory) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_output_folder_is_led_elsewhere() {
        let remap =
            OutputRemap { owner: owner_output_directory(Path::new("/owner/db"), "job-7"), local: "/here/out".into() };
        assert_eq!(remap.map(Path::new("/owner/db/session_tmp/job-7/000009.sst")), Some("/here/out/000009.sst".into()));
        assert_eq!(remap.map(Path::new("/owner/db/session_tmp/job-7")), Some("/here/out".into()));
        for elsewhere in ["/owner/db/session_tmp/job-70/000009.sst", "/owner/db/000009.sst", "/owner/db/session_tmp"] {
            assert_eq!(remap.map(Path::new(elsewhere)), None, "{elsewhere}");
        }
    }
}
