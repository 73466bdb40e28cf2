//! An owner's files as a worker's RocksDB sees them: read by range over the network.
//!
//! # How a table is read
//!
//! RocksDB opens a table by reading its tail (footer, index, properties) and then reads its data
//! blocks from some place onwards, in order. So every file keeps its tail, once read, and beyond it
//! a short window of ranges: the one in use, the one before (reads overlap at block borders) and
//! the next, which is already on its way. Each byte crosses the network once.
//!
//! # Files that are here as well
//!
//! What the worker's copy of the shard holds is read from this server's disk. One that cannot be
//! opened there is fetched.
//!
//! # Failure
//!
//! A range that does not come in time or not at all is an I/O error of the compaction, which ends
//! the job.
//!
//! # Threads
//!
//! Reads block the compaction's thread, which must not be one of the run time's.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ecotone_io::objects::Object;
use ecotone_io::remote_files::{RangedRead, RemoteFiles};
use parking_lot::Mutex;
use tracing::warn;

use crate::file_client::{FileClient, Pending};
use crate::protocol::wire::InputFile;

/// Largest tail that is kept. RocksDB's index and filter of a 64 MiB table take well below 2 MiB.
const MAX_TAIL_BYTES: u64 = 4 << 20;
/// Ranges fetched ahead of the one in use.
const CHUNKS_AHEAD: usize = 2;

/// A job's input files under the path of its owner's store.
pub struct OwnerFiles {
    directory: PathBuf,
    client: Arc<FileClient>,
    chunk_bytes: usize,
    sizes: HashMap<String, u64>,
    /// Those that are on this server as well: by name, where.
    here: HashMap<String, PathBuf>,
    open: Mutex<HashMap<String, Arc<RemoteFile>>>,
}

impl OwnerFiles {
    /// The `files` of a store at `directory`, read through `client` in ranges of `chunk_bytes`.
    pub fn new(directory: PathBuf, files: &[InputFile], client: Arc<FileClient>, chunk_bytes: usize) -> OwnerFiles {
        let sizes = files.iter().map(|file| (file.name.clone(), file.bytes)).collect();
        OwnerFiles { directory, client, chunk_bytes, sizes, here: HashMap::new(), open: Mutex::default() }
    }

    /// The same, and these of the files are read from this server's disk: by name, where each is. They
    /// hold what the owner's do.
    #[must_use]
    pub fn with_files_here(self, here: HashMap<String, PathBuf>) -> OwnerFiles {
        OwnerFiles { here, ..self }
    }

    /// The file's name; an error if the job has no right to it. Nothing but the owner's files
    /// exists for a job: paths that its options name must not lead to files of this server.
    fn name<'a>(&self, path: &'a Path) -> io::Result<&'a str> {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.parent() == Some(self.directory.as_path()) && self.sizes.contains_key(name) {
            Ok(name)
        } else {
            Err(io::Error::new(io::ErrorKind::NotFound, format!("{} is no input of this job", path.display())))
        }
    }
}

impl RemoteFiles for OwnerFiles {
    fn open(&self, path: &Path) -> io::Result<Option<Arc<dyn RangedRead>>> {
        let name = self.name(path)?;
        if let Some(here) = self.here.get(name) {
            match Object::open(here) {
                Ok(object) if object.len() == self.sizes[name] => return Ok(Some(Arc::new(object))),
                Ok(object) => {
                    warn!(path = %here.display(), bytes = object.len(), "a file of another length is fetched")
                }
                Err(error) => warn!(path = %here.display(), %error, "a file that cannot be opened is fetched"),
            }
        }
        let file = self
            .open
            .lock()
            .entry(name.to_owned())
            .or_insert_with(|| {
                Arc::new(RemoteFile {
                    name: name.to_owned(),
                    bytes: self.sizes[name],
                    chunk_bytes: self.chunk_bytes,
                    client: self.client.clone(),
                    state: Mutex::default(),
                })
            })
            .clone();
        Ok(Some(file))
    }

    fn size(&self, path: &Path) -> io::Result<Option<u64>> {
        Ok(Some(self.sizes[self.name(path)?]))
    }

    fn list(&self, directory: &Path) -> io::Result<Option<Vec<String>>> {
        Ok((directory == self.directory).then(|| self.sizes.keys().cloned().collect()))
    }
}

/// One range, here or on its way.
struct Chunk {
    offset: u64,
    length: usize,
    data: Option<Vec<u8>>,
    coming: Option<Pending>,
}

impl Chunk {
    fn end(&self) -> u64 {
        self.offset + self.length as u64
    }
}

#[derive(Default)]
struct ReadState {
    /// Start and bytes of the kept end of the file.
    tail: Option<(u64, Vec<u8>)>,
    /// Ranges in order, the first of them before or at the place last read.
    window: VecDeque<Chunk>,
}

struct RemoteFile {
    name: String,
    bytes: u64,
    chunk_bytes: usize,
    client: Arc<FileClient>,
    state: Mutex<ReadState>,
}

impl RemoteFile {
    fn fetch_now(&self, offset: u64, end: u64) -> io::Result<Vec<u8>> {
        let length = (end - offset) as usize;
        let data = self.client.wait(self.client.begin(&self.name, offset, length))?;
        if data.len() != length {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("{}: {} bytes at {offset} instead of {length}", self.name, data.len()),
            ));
        }
        Ok(data)
    }

    /// A first read that does not begin at the file's start is RocksDB opening the table: it reads
    /// the tail.
    fn read_tail(&self, state: &mut ReadState, offset: u64) -> io::Result<()> {
        let near_the_end = offset > 0 && self.bytes - offset <= MAX_TAIL_BYTES;
        match &state.tail {
            None if near_the_end && state.window.is_empty() => {
                state.tail = Some((offset, self.fetch_now(offset, self.bytes)?))
            }
            // Before any data was read, the index may begin before what RocksDB took for the tail.
            Some((start, kept)) if near_the_end && offset < *start && state.window.is_empty() => {
                let before = self.fetch_now(offset, *start)?;
                let mut joined = Vec::with_capacity(before.len() + kept.len());
                joined.extend_from_slice(&before);
                joined.extend_from_slice(kept);
                state.tail = Some((offset, joined));
            }
            _ => {}
        }
        Ok(())
    }

    /// Where data ends and the kept tail begins.
    fn data_end(&self, state: &ReadState) -> u64 {
        state.tail.as_ref().map_or(self.bytes, |(start, _)| *start)
    }

    /// Makes the window cover `offset` and begins to fetch what follows.
    fn cover(&self, state: &mut ReadState, offset: u64) -> io::Result<()> {
        let data_end = self.data_end(state);
        let covered = |chunk: &Chunk| chunk.offset <= offset && offset < chunk.end();
        if !state.window.iter().any(covered) {
            let continues = state.window.back().is_some_and(|last| last.end() == offset);
            if !continues {
                for chunk in state.window.drain(..) {
                    self.forget(Some(chunk));
                }
            }
            state.window.push_back(self.begin_chunk(offset, data_end));
        }
        // The chunk in use and the one before it stay; what lies further back will not be read
        // again.
        while state.window.len() > 2 && !covered(&state.window[0]) && !covered(&state.window[1]) {
            self.forget(state.window.pop_front());
        }
        let in_use = state.window.iter().position(covered).unwrap_or(0);
        while state.window.len() <= in_use + CHUNKS_AHEAD {
            let next = state.window.back().map_or(offset, Chunk::end);
            if next >= data_end {
                break;
            }
            state.window.push_back(self.begin_chunk(next, data_end));
        }
        let chunk = &mut state.window[in_use];
        if let Some(coming) = chunk.coming.take() {
            let data = self.client.wait(coming)?;
            if data.len() != chunk.length {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    format!("{}: {} bytes at {} instead of {}", self.name, data.len(), chunk.offset, chunk.length),
                ));
            }
            chunk.data = Some(data);
        }
        Ok(())
    }

    fn forget(&self, chunk: Option<Chunk>) {
        if let Some(data) = chunk.and_then(|chunk| chunk.data) {
            self.client.recycle(data);
        }
    }

    fn begin_chunk(&self, offset: u64, data_end: u64) -> Chunk {
        let length = (data_end - offset).min(self.chunk_bytes as u64) as usize;
        Chunk { offset, length, data: None, coming: Some(self.client.begin(&self.name, offset, length)) }
    }
}

impl RangedRead for RemoteFile {
    fn len(&self) -> u64 {
        self.bytes
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut state = self.state.lock();
        let end = offset.saturating_add(buffer.len() as u64).min(self.bytes);
        let mut place = offset;
        if place < end {
            self.read_tail(&mut state, place)?;
        }
        while place < end {
            let into = (place - offset) as usize;
            let copied = match &state.tail {
                Some((start, kept)) if place >= *start => copy(kept, place - *start, &mut buffer[into..]),
                _ => {
                    self.cover(&mut state, place)?;
                    let chunk = state.window.iter().find(|chunk| chunk.offset <= place && place < chunk.end());
                    let data = chunk.and_then(|chunk| chunk.data.as_ref().map(|data| (data, place - chunk.offset)));
                    data.map_or(0, |(data, from)| copy(data, from, &mut buffer[into..]))
                }
            };
            if copied == 0 {
                return Err(io::Error::other(format!("{}: nothing to read at {place}", self.name)));
            }
            place += copied as u64;
        }
        Ok((end.max(offset) - offset) as usize)
    }
}

fn copy(from: &[u8], start: u64, into: &mut [u8]) -> usize {
    let from = &from[start as usize..];
    let length = from.len().min(into.len());
    into[..length].copy_from_slice(&from[..length]);
    length
}

#[cfg(test)]
mod tests;
