//! The worker: a process that knows the store only by its name and by what the owner serves over a
//! socket.

use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use ecotone_io::remote_files::{RangedRead, RemoteFiles};
use ecotone_rocks::filesystem::{FileSystemHooks, PathRemap, hooked_env};
use ecotone_rocks::remote::RemoteResult;
use rust_rocksdb::CompactionServiceOptionsOverride;
use rust_rocksdb::compaction_service::open_and_compact;

use super::wire::{Operation, join, receive_answer, send_request, split};

/// The connection to the owner, shared by all files of a job.
struct Owner {
    stream: Mutex<UnixStream>,
    /// The store's directory, as the owner calls it.
    store: PathBuf,
    /// Where RocksDB believes the outputs are: inside the owner's directory.
    outputs: PathBuf,
}

impl Owner {
    fn ask(&self, operation: Operation, body: &[u8]) -> io::Result<Vec<u8>> {
        let mut stream = self.stream.lock().map_err(|_| io::Error::other("a request was interrupted"))?;
        send_request(&mut stream, operation, body)?;
        receive_answer(&mut stream)
    }

    fn owns(&self, path: &Path) -> bool {
        path.starts_with(&self.store) && !path.starts_with(&self.outputs)
    }

    fn number(&self, operation: Operation, path: &Path) -> io::Result<u64> {
        let answer = self.ask(operation, path.as_os_str().as_bytes())?;
        Ok(u64::from_le_bytes(answer.try_into().expect("eight bytes")))
    }
}

struct OwnersFiles(Arc<Owner>);

struct OwnersFile {
    owner: Arc<Owner>,
    path: PathBuf,
    len: u64,
}

impl RemoteFiles for OwnersFiles {
    fn open(&self, path: &Path) -> io::Result<Option<Arc<dyn RangedRead>>> {
        if !self.0.owns(path) {
            return Ok(None);
        }
        let len = self.0.number(Operation::Open, path)?;
        Ok(Some(Arc::new(OwnersFile { owner: self.0.clone(), path: path.to_owned(), len })))
    }

    fn size(&self, path: &Path) -> io::Result<Option<u64>> {
        if self.0.owns(path) { self.0.number(Operation::Size, path).map(Some) } else { Ok(None) }
    }

    fn list(&self, directory: &Path) -> io::Result<Option<Vec<String>>> {
        if directory != self.0.store {
            return Ok(None);
        }
        let names = self.0.ask(Operation::List, &[])?;
        Ok(Some(String::from_utf8_lossy(&names).split('\n').map(str::to_owned).collect()))
    }
}

impl RangedRead for OwnersFile {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut body = offset.to_le_bytes().to_vec();
        body.extend_from_slice(&(buffer.len() as u64).to_le_bytes());
        body.extend_from_slice(self.path.as_os_str().as_bytes());
        let bytes = self.owner.ask(Operation::Read, &body)?;
        buffer[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }
}

/// Leads the outputs to a directory of the worker's own. Nothing else of the owner's directory may
/// be looked for here.
struct OutputsHere {
    owner: Arc<Owner>,
    directory: PathBuf,
}

impl PathRemap for OutputsHere {
    fn map(&self, path: &Path) -> Option<PathBuf> {
        if let Ok(below) = path.strip_prefix(&self.owner.outputs) {
            return Some(self.directory.join(below));
        }
        assert!(!path.starts_with(&self.owner.store), "{} would be looked for locally", path.display());
        None
    }
}

/// Runs the one job that the owner at `socket` has.
pub fn run(socket: &Path, job: &str) {
    let mut stream = UnixStream::connect(socket).expect("reaches the owner");
    send_request(&mut stream, Operation::Job, &[]).expect("asks");
    let body = receive_answer(&mut stream).expect("a job");
    let (store, input) = split(&body);
    let store = PathBuf::from(std::ffi::OsString::from_vec(store.to_vec()));
    assert_eq!(std::fs::read_dir(&store).map_or(0, Iterator::count), 0, "the worker finds nothing under that name");

    let here = tempfile::tempdir().expect("a directory");
    let owner = Arc::new(Owner { stream: Mutex::new(stream), outputs: store.join("session_tmp"), store });
    let hooks = FileSystemHooks {
        tap: None,
        remap: Some(Arc::new(OutputsHere { owner: owner.clone(), directory: here.path().to_owned() })),
        remote: Some(Arc::new(OwnersFiles(owner.clone()))),
        ..FileSystemHooks::default()
    };
    let mut options = super::data_options();
    options.set_env(&hooked_env(hooks).expect("an environment"));
    let mut overriding = CompactionServiceOptionsOverride::from_options(&options);
    overriding.set_option("skip_stats_update_on_db_open", "true").expect("an option");

    let result = open_and_compact(&owner.store, job, input, &overriding).expect("compacts");
    let parsed = RemoteResult::parse(&result).expect("a result");
    assert_eq!(parsed.output_path, owner.outputs.join(job), "outputs are named as the owner would name them");
    for output in &parsed.output_files {
        let bytes = std::fs::read(here.path().join(job).join(&output.file_name)).expect("an output");
        owner.ask(Operation::Output, &join(output.file_name.as_bytes(), &bytes)).expect("sends");
    }
    owner.ask(Operation::Done, &result).expect("sends");
}
