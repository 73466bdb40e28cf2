//! Setters of RocksDB's C API that `rust-rocksdb` does not wrap.

use rust_rocksdb::{AsRawPtr, Options, ffi_raw};

/// `use_session_tmp_dir_for_remote_compaction`: outputs of offloaded compactions lie in one folder, which every open
/// empties.
pub(crate) fn use_session_directory(options: &mut Options) {
    // SAFETY: the pointer is that of a live `Options`, borrowed for writing, and is used during the call only.
    unsafe { ffi_raw::rocksdb_options_set_use_session_tmp_dir_for_remote_compaction(options.as_raw_ptr(), 1) }
}
