//! Files: what the layers above share of reading, writing and following them, and of packing what
//! they hold. Nothing in here knows what the bytes mean, or of RocksDB.
//!
//! - [`tap`]: who follows every change of a file, and is told of it.
//! - [`remote_files`]: files that are elsewhere, read by ranges.
//! - [`missed_reads`]: what a thread that does not wait did not find in memory. [`awaited_reads`]:
//!   that, brought there without a thread that waits (io_uring). [`direct_reads`]: reads past the
//!   kernel's cache.
//! - [`mapped_file`]: a file that is appended to through a window of it in memory. [`mapped_reads`]:
//!   one that is read so. Both are C++ in `cpp/`.
//! - [`objects`]: files that do not change once they are written: made, sealed, opened, checked,
//!   linked and removed.
//! - [`page_cache`]: what of a file is not on the device yet.
//! - [`send_queue`]: what of a connection's bytes is not on its way yet.
//! - [`zstd`], [`lz4`]: bytes made shorter, and as they were again.
//!
//! What must never be here: RocksDB, formats, policy, threads of our own, network.
//!
//! # Under the sanitizers
//!
//! As `ecotone-rocks` says, with `-p ecotone-io`.

#[allow(unsafe_code)] // hands memory to the kernel
pub mod awaited_reads;
pub mod direct_reads;
#[allow(unsafe_code)] // declares the C functions
mod ffi;
#[allow(unsafe_code)] // hands borrowed bytes to C
pub mod lz4;
#[allow(unsafe_code)] // hands a file and borrowed bytes to C++
pub mod mapped_file;
#[allow(unsafe_code)] // hands a descriptor and memory to C++
pub mod mapped_reads;
pub mod missed_reads;
pub mod objects;
#[allow(unsafe_code)] // asks the kernel by a call that no library has
pub mod page_cache;
pub mod remote_files;
#[allow(unsafe_code)] // asks the kernel by calls that no library has
pub mod send_queue;
pub mod tap;
#[allow(unsafe_code)] // hands borrowed bytes to C
pub mod zstd;
