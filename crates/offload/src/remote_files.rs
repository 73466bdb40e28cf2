//! An owner's files as a worker's RocksDB sees them: read by range over the network.
//!
//! # How a table is read
//!
//! RocksDB opens a table by reading its tail (footer, index, properties) and then reads its data blocks from some place
//! onwards, in order. So every file keeps its tail, once read, and beyond it a short window of ranges: the one in use, the one
//! before (reads overlap at block borders) and the next, which is already on its way. Each byte crosses the network once.
//!
//! # Failure
//!
//! A range that does not come in time or not at all is an I/O error of the compaction, which ends the job.
//!
//! # Threads
//!
//! Reads block the compaction's thread, which must not be one of the run time's.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ecotone_rocks_sys::filesystem::{RangedRead, RemoteFiles};
use parking_lot::Mutex;
use prost::bytes::Bytes;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tonic::transport::Channel;

use crate::protocol::MESSAGE_BYTES_MAX;
use crate::protocol::wire::peer_client::PeerClient;
use crate::protocol::wire::{InputFile, ReadRequest};
use crate::traffic::Traffic;

/// Largest tail that is kept. RocksDB's index and filter of a 64 MiB table take well below 2 MiB.
const TAIL_BYTES_MAX: u64 = 4 << 20;
/// Ranges fetched ahead of the one in use.
const CHUNKS_AHEAD: usize = 2;

/// Reads ranges of one job's files from the other side.
pub(crate) struct RangeClient {
    channel: Channel,
    token: Vec<u8>,
    runtime: Handle,
    timeout: Duration,
    traffic: Arc<Traffic>,
    /// Bytes received so far; also read by whoever watches the job.
    bytes_received: Arc<AtomicU64>,
}

impl RangeClient {
    pub(crate) fn new(
        channel: Channel,
        token: Vec<u8>,
        runtime: Handle,
        timeout: Duration,
        traffic: Arc<Traffic>,
        bytes_received: Arc<AtomicU64>,
    ) -> Arc<RangeClient> {
        Arc::new(RangeClient { channel, token, runtime, timeout, traffic, bytes_received })
    }

    /// Bytes received so far.
    pub(crate) fn bytes_received(&self) -> u64 {
        self.bytes_received.load(Ordering::Relaxed)
    }

    /// Asks for a range without waiting for it.
    pub(crate) fn begin(self: &Arc<Self>, file: &str, offset: u64, length: usize) -> JoinHandle<io::Result<Bytes>> {
        let client = self.clone();
        let request = ReadRequest {
            token: self.token.clone(),
            file: file.to_owned(),
            offset,
            length: length.min(u32::MAX as usize) as u32,
        };
        self.runtime.spawn(async move { client.fetch(request).await })
    }

    async fn fetch(&self, request: ReadRequest) -> io::Result<Bytes> {
        let what = format!("{} bytes at {} of {}", request.length, request.offset, request.file);
        let mut client = PeerClient::new(self.channel.clone()).max_decoding_message_size(2 * MESSAGE_BYTES_MAX);
        let call = client.read(request);
        let reply = tokio::time::timeout(self.timeout, call)
            .await
            .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, format!("no answer for {what}")))?
            .map_err(|status| io::Error::other(format!("{what}: {}", status.message())))?;
        let data = reply.into_inner().data;
        self.traffic.add_received(data.len());
        self.bytes_received.fetch_add(data.len() as u64, Ordering::Relaxed);
        Ok(data)
    }

    /// Waits for a range on a thread that may block.
    pub(crate) fn wait(&self, range: JoinHandle<io::Result<Bytes>>) -> io::Result<Bytes> {
        self.runtime.block_on(range).map_err(|error| io::Error::other(format!("the reader stopped: {error}")))?
    }
}

/// A job's input files under the path of its owner's store.
pub(crate) struct OwnerFiles {
    directory: PathBuf,
    client: Arc<RangeClient>,
    chunk_bytes: usize,
    sizes: HashMap<String, u64>,
    open: Mutex<HashMap<String, Arc<RemoteFile>>>,
}

impl OwnerFiles {
    pub(crate) fn new(
        directory: PathBuf,
        files: &[InputFile],
        client: Arc<RangeClient>,
        chunk_bytes: usize,
    ) -> OwnerFiles {
        let sizes = files.iter().map(|file| (file.name.clone(), file.bytes)).collect();
        OwnerFiles { directory, client, chunk_bytes, sizes, open: Mutex::default() }
    }

    /// The file's name if the path lies in the owner's store; an error if the job has no right to it.
    fn name<'a>(&self, path: &'a Path) -> io::Result<Option<&'a str>> {
        if path.parent() != Some(self.directory.as_path()) {
            return Ok(None);
        }
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if self.sizes.contains_key(name) {
            Ok(Some(name))
        } else {
            Err(io::Error::new(io::ErrorKind::NotFound, format!("{name} is no input of this job")))
        }
    }
}

impl RemoteFiles for OwnerFiles {
    fn open(&self, path: &Path) -> io::Result<Option<Arc<dyn RangedRead>>> {
        let Some(name) = self.name(path)? else { return Ok(None) };
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
        Ok(self.name(path)?.map(|name| self.sizes[name]))
    }

    fn list(&self, directory: &Path) -> io::Result<Option<Vec<String>>> {
        Ok((directory == self.directory).then(|| self.sizes.keys().cloned().collect()))
    }
}

/// One range, here or on its way.
struct Chunk {
    offset: u64,
    length: usize,
    data: Option<Bytes>,
    coming: Option<JoinHandle<io::Result<Bytes>>>,
}

impl Chunk {
    fn end(&self) -> u64 {
        self.offset + self.length as u64
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if let Some(coming) = &self.coming {
            coming.abort();
        }
    }
}

#[derive(Default)]
struct ReadState {
    /// Start and bytes of the kept end of the file.
    tail: Option<(u64, Bytes)>,
    /// Ranges in order, the first of them before or at the place last read.
    window: VecDeque<Chunk>,
}

struct RemoteFile {
    name: String,
    bytes: u64,
    chunk_bytes: usize,
    client: Arc<RangeClient>,
    state: Mutex<ReadState>,
}

impl RemoteFile {
    fn fetch_now(&self, offset: u64, end: u64) -> io::Result<Bytes> {
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

    /// A first read that does not begin at the file's start is RocksDB opening the table: it reads the tail.
    fn read_tail(&self, state: &mut ReadState, offset: u64) -> io::Result<()> {
        let near_the_end = offset > 0 && self.bytes - offset <= TAIL_BYTES_MAX;
        match &state.tail {
            None if near_the_end => state.tail = Some((offset, self.fetch_now(offset, self.bytes)?)),
            // Before any data was read, the index may begin before what RocksDB took for the tail.
            Some((start, kept)) if near_the_end && offset < *start && state.window.is_empty() => {
                let before = self.fetch_now(offset, *start)?;
                let mut joined = Vec::with_capacity(before.len() + kept.len());
                joined.extend_from_slice(&before);
                joined.extend_from_slice(kept);
                state.tail = Some((offset, joined.into()));
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
                state.window.clear();
            }
            state.window.push_back(self.begin_chunk(offset, data_end));
        }
        // The chunk in use and the one before it stay; what lies further back will not be read again.
        while state.window.len() > 2 && !covered(&state.window[0]) && !covered(&state.window[1]) {
            state.window.pop_front();
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
