//! A store: RocksDB and a value log beside it; its immutable files.
//!
//! This crate opens, writes, reads, flushes, compacts and closes one LSM tree in one directory. It
//! is blocking; a [`Store`] is `Send + Sync` and meant to be shared in an `Arc` by any number of
//! threads. It also holds the two seams of an offloaded compaction: [`CompactionOffload`] on the
//! owner's side, [`run_remote_compaction`] on the worker's side.
//!
//! What must never be in here: the network, a client protocol, the choice of where a compaction
//! runs (that is `policy`), joules and frequencies (that is `energy`), the format of segments (that
//! is `valuelog`), C++ (that is `rocks`), and checks and repairs of whole stores (that is
//! `inspect`, which reads what it needs through [`offline`]).
//!
//! # Layout of a store's directory
//!
//! ```text
//! STORE               identity: what this directory is, and the version of its format
//! CURRENT, MANIFEST-* RocksDB: which tables there are
//! OPTIONS-*           RocksDB: the options of the owner, which a worker reads
//! *.log               RocksDB: the write-ahead log (WAL)
//! DURABLE             up to where WAL and MANIFEST are known to be synced
//! *.sst               RocksDB: tables
//! values/             the value log: segments and its watermark (see [`header`] for what points there)
//! BALLAST             nothing: space that an opening on a full disk begins with
//! checked/            a checkpoint while the store is checked; removed at every open
//! session_tmp/        outputs of offloaded compactions until they are installed; emptied at every open
//! checkpoint_tmp/     checkpoints while they are copied; emptied at every open for writing
//! LOCK, LOG*          RocksDB: the lock of the one process that may write; its own log, bounded in size and number
//! ```
//!
//! All data lives in one column family, [`DATA_FAMILY`]. RocksDB's `default` stays empty and plain,
//! because a worker opens it without the owner's options. Every value begins with a versioned
//! header (see [`header`]).

pub mod header;
pub mod offline;

mod background;
mod batch;
mod batch_records;
mod choices;
mod cleanup;
mod collectors;
mod compaction;
mod dedup;
mod directory_lock;
mod durable_logs;
mod duties;
mod error;
mod events;
mod expired;
#[allow(unsafe_code)] // keeps a raw handle beside the database that owns it
mod family;
mod gc;
mod group_sync;
mod held_checkpoint;
mod identity;
mod idle;
mod layout;
mod listener;
mod live_share;
mod log_check;
mod log_walk;
mod memory;
#[cfg(test)]
mod mutation;
mod non_blocking;
mod offload;
mod options;
mod pieces;
mod profile;
mod properties;
#[allow(unsafe_code)] // setters of the C API that the wrapper lacks
mod raw;
mod read;
mod row_cache;
mod scan;
mod shared_rows;
mod space;
mod stall;
mod store;
mod sync_pace;
mod table_format;
mod tuning;
mod value_store;
mod wal_sync;
mod worker;
mod write;

pub use batch::{Batch, Operation, Operations};
pub use choices::{Compression, Durability, MemtableOrder, OpenMode};
pub use compaction::manual::{CompactionPause, CompactionProgress, CompactionStage};
pub use dedup::{DedupLevel, DedupMode, DedupOptions, DedupProperties, ExtensionThreshold, SEPARATED_THRESHOLD};
pub use directory_lock::holder;
pub use ecotone_io::awaited_reads::AwaitedReads;
pub use ecotone_io::direct_reads::{Arrived, with_arrived};
pub use ecotone_io::missed_reads::{MissedRead, noting_missed};
pub use ecotone_policy::compression::{Codec, CompressionMode};
pub use ecotone_rocks::tables::TableMetadata;
pub use ecotone_types::{Duty, DutyObserver};
pub use ecotone_valuelog::log::MAX_OPEN as MAX_OPEN_SEGMENTS;
pub use ecotone_valuelog::pointer::{RecordPointer, SegmentNumber};
pub use ecotone_valuelog::record::{MAX_KEY_BYTES, MAX_VALUE_BYTES};
pub use error::{Error, LockHolder, Result};
pub use events::{
    BackgroundError, CompactionFinished, FlushFinished, SpaceChanged, StallChanged, StallCondition, StoreEvents,
};
pub use family::DATA_FAMILY;
pub use gc::{Mover, ValueLogProperties};
pub use header::Attributes;
pub use held_checkpoint::{HeldCheckpoint, HeldFile};
pub use identity::{FORMAT_VERSION, IDENTITY_FILE};
pub use layout::CHECKPOINTS_DIRECTORY;
pub use memory::{MIN_LIMIT_BYTES, MemoryLimit};
pub use non_blocking::LOOKED_UP_BYTES;
pub use offload::slots::{LocalPermit, LocalSlots};
pub use offload::verify::{
    ExpectedTables, ReceivedTable, VerifiedResult, VerifyError, verify_outputs, verify_received_outputs,
};
pub use offload::{CompactionOffload, InputTable, OnInstalled, RemoteJob, RemoteOutcome};
pub use options::{
    BYTES_PER_SYNC, DEFAULT_SEPARATION_BYTES, EXPIRED_COMPACTION_SECONDS, MAX_BATCH_BYTES, MIN_OPEN_FILES,
    PENDING_SLOWDOWN_BYTES, PENDING_STOP_BYTES, Separation, StoreSettings, WriteOptions,
};
pub use profile::Profile;
pub use properties::{Counters, LevelProperties, StoreProperties};
pub use read::{Description, Snapshot, Value};
pub use row_cache::RowCounts;
pub use scan::{Direction, Entry, Scan};
pub use shared_rows::SharedRows;
pub use space::SpaceLimits;
pub use space::free_space::FreeSpace;
pub use space::shared::SharedSpace;
pub use store::{Store, StoreBuilder};
pub use sync_pace::{SYNC_INTERVAL, SyncPace};
pub use table_format::{Collects, TableFormat};
pub use value_store::compression::{CompressionCounts, CompressionProperties};
pub use worker::{CancelFlag, WorkerError, WorkerOptions, WorkerRequest, run_remote_compaction};
