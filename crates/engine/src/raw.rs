//! Setters of RocksDB's C API that `rust-rocksdb` does not wrap.

use std::ptr::NonNull;

use rust_rocksdb::{AsRawPtr, Env, Options, ffi_raw};

use crate::{Error, Result};

/// `use_session_tmp_dir_for_remote_compaction`: outputs of offloaded compactions lie in one folder,
/// which every open empties.
pub(crate) fn use_session_directory(options: &mut Options) {
    // SAFETY: the pointer is that of a live `Options`, borrowed for writing, and is used during the
    // call only.
    unsafe { ffi_raw::rocksdb_options_set_use_session_tmp_dir_for_remote_compaction(options.as_raw_ptr(), 1) }
}

/// Leaves what is in WALs there when the database is opened, whatever memory it takes, instead of
/// flushing it.
pub(crate) fn avoid_flush_during_recovery(options: &mut Options) {
    // SAFETY: the pointer is that of a live `Options`, borrowed for writing, and is used during the
    // calls only.
    unsafe {
        ffi_raw::rocksdb_options_set_avoid_flush_during_recovery(options.as_raw_ptr(), 1);
        ffi_raw::rocksdb_options_set_enforce_write_buffer_manager_during_recovery(options.as_raw_ptr(), 0);
    }
}

/// Keeps compactions from filling the disk: RocksDB begins none whose inputs, together with those
/// of all that run, are more than its tables may grow. It counts the tables itself.
///
/// The database has such an `SstFileManager` in any case, which starts its recovery from a full
/// disk, and has files deleted; this one takes its place, so it must have the same environment.
/// `rust_rocksdb::SstFileManager` can have the default one only.
pub(crate) struct TableLimit(NonNull<ffi_raw::rocksdb_sst_file_manager_t>);

// SAFETY: every function of RocksDB's `SstFileManager` takes its mutex.
unsafe impl Send for TableLimit {}
// SAFETY: as above.
unsafe impl Sync for TableLimit {}

/// Added to both sides of RocksDB's comparison for compactions (the limit, and what is to be left
/// beside them), so that its other comparison never holds: a flush that meets the limit itself
/// would stop the store.
const OUT_OF_REACH_BYTES: u64 = 1 << 50;

impl TableLimit {
    /// The limit of the database that is opened with `options`, which have `env`. There is none
    /// before [`allow`](Self::allow).
    pub(crate) fn new(options: &mut Options, env: &Env) -> Result<Self> {
        // SAFETY: the environment lives through the call, and RocksDB keeps its own share of what
        // it takes from it.
        let made = unsafe { ffi_raw::rocksdb_sst_file_manager_create(env.as_raw_ptr()) };
        let limit =
            NonNull::new(made).map(Self).ok_or(Error::Rocks { detail: "no table limit could be made".into() })?;
        // SAFETY: both pointers are live; the options take a share of their own.
        unsafe {
            ffi_raw::rocksdb_options_set_sst_file_manager(options.as_raw_ptr(), limit.0.as_ptr());
            ffi_raw::rocksdb_sst_file_manager_set_compaction_buffer_size(limit.0.as_ptr(), OUT_OF_REACH_BYTES);
        }
        Ok(limit)
    }

    /// Bytes of all tables, as RocksDB counts them.
    pub(crate) fn table_bytes(&self) -> u64 {
        // SAFETY: the pointer is live.
        unsafe { ffi_raw::rocksdb_sst_file_manager_get_total_size(self.0.as_ptr()) }
    }

    /// Lets compactions begin as long as tables and what running compactions may add to them are at
    /// most `bytes`.
    pub(crate) fn allow(&self, bytes: u64) {
        let limit = bytes.saturating_add(OUT_OF_REACH_BYTES);
        // SAFETY: the pointer is live.
        unsafe { ffi_raw::rocksdb_sst_file_manager_set_max_allowed_space_usage(self.0.as_ptr(), limit) }
    }
}

impl Drop for TableLimit {
    fn drop(&mut self) {
        // SAFETY: nobody else frees it; databases and options have shares of their own.
        unsafe { ffi_raw::rocksdb_sst_file_manager_destroy(self.0.as_ptr()) }
    }
}
