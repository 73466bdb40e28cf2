//! What RocksDB can do and `rust-rocksdb` does not expose: the only crate that speaks with its C++.
//!
//! Each module pairs one idea of the C++ shim in `cpp/` with a safe Rust face:
//!
//! - [`filesystem`]: a file system under RocksDB with three hooks: a write tap, a path remap, and
//!   files that are elsewhere.
//! - [`local_file`]: reads of its local files that do not wait for the device.
//! - [`memtable`]: memtables that are ordered by a tree instead of a skip list.
//! - [`properties`]: collectors that see every entry of a table while it is written and leave
//!   properties in it.
//! - [`compaction_filter`]: filters that keep, remove or change each value that a compaction
//!   rewrites.
//! - [`tables`]: metadata of each live table, reads sampled included.
//! - [`remote`]: the job and the result that a compaction service exchanges, as plain data.
//! - [`salvage`]: what can be read of a table that may be damaged, and what a MANIFEST says.
//! - [`verify`]: a table that came from elsewhere, checked whole before it may enter a store.
//! - [`version`]: the checks that make the above sound, run once when a store is opened.
//!
//! What must never be here: policy, threads of our own, network, knowledge of how values are laid
//! out. What `rust-rocksdb` offers is used from there by the crates above.
//!
//! # Invariants
//!
//! - No panic of a hook reaches C++ and no C++ exception reaches Rust or RocksDB. Both end as an
//!   error of the one operation they happened in, and are counted ([`contained_failures`]).
//! - RocksDB's private structs that the shim mirrors belong to one exact version;
//!   [`version::self_test`] refuses others.
//! - A hook that is absent costs nothing: without a tap, files that are written are RocksDB's own.
//!
//! # Under the sanitizers
//!
//! ```text
//! ECOTONE_SANITIZE=1 cargo test --release -p ecotone-rocks --lib --tests
//! ```
//!
//! compiles the shim (not RocksDB) with AddressSanitizer and UndefinedBehaviorSanitizer and links
//! this package's tests with them. Nothing else is rebuilt. Run it without the variable to return
//! to the plain build.

#[allow(unsafe_code)] // reads memory that the shim allocated
mod buffer;
#[allow(unsafe_code)] // hands replies to C++ through raw pointers
mod callback;
pub mod compaction_filter;
mod error;
#[allow(unsafe_code)] // declares the shim's C functions
mod ffi;
pub mod filesystem;
#[allow(unsafe_code)] // sets variables of the shim's, and is told of descriptors by it
pub mod local_file;
#[allow(unsafe_code)] // hands options to C++
pub mod memtable;
pub mod properties;
pub mod remote;
pub mod salvage;
pub mod tables;
pub mod verify;
pub mod version;

pub use callback::{ContainedFailures, contained_failures};
pub use error::{Error, Result};
