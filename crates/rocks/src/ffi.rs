//! The shim's C functions. `cpp/shim.h` holds the same declarations and says what each means;
//! change both together.

use std::ffi::c_void;

pub type Code = i32;
pub const OK: Code = 0;
pub const NOT_MINE: Code = 1;
pub const NOT_FOUND: Code = 2;
pub const IO_ERROR: Code = 3;
pub const NO_SPACE: Code = 4;
pub const NOT_SUPPORTED: Code = 5;
pub const CORRUPTION: Code = 6;
pub const INVALID_ARGUMENT: Code = 7;
pub const TIMED_OUT: Code = 8;
pub const NOT_A_TABLE: Code = 20;
pub const OUT_OF_RANGE: Code = 21;
pub const MISORDERED: Code = 22;
pub const COUNT_MISMATCH: Code = 23;
pub const FOREIGN: Code = 24;
pub const STOPPED: Code = 25;

#[repr(C)]
pub struct Buffer {
    pub data: *mut u8,
    pub len: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Bytes {
    pub data: *const u8,
    pub len: usize,
}

impl Bytes {
    pub fn borrow(bytes: &[u8]) -> Self {
        Self { data: bytes.as_ptr(), len: bytes.len() }
    }

    /// # Safety
    ///
    /// The bytes must stay where they are for `'a`.
    pub unsafe fn as_slice<'a>(self) -> &'a [u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: the caller vouches for the bytes; not null, since there are some.
        unsafe { std::slice::from_raw_parts(self.data, self.len) }
    }
}

/// Opaque: where a callback puts what it gives back.
#[repr(C)]
pub struct Reply {
    _private: [u8; 0],
}

pub const TAP_CREATED: i32 = 0;
pub const TAP_APPENDED: i32 = 1;
pub const TAP_TRUNCATED: i32 = 2;
pub const TAP_SYNCED: i32 = 3;
pub const TAP_CLOSED: i32 = 4;
pub const TAP_RENAMED: i32 = 5;
pub const TAP_LINKED: i32 = 6;
pub const TAP_DELETED: i32 = 7;
pub const TAP_DIRECTORY_CREATED: i32 = 8;
pub const TAP_DIRECTORY_DELETED: i32 = 9;
pub const TAP_DIRECTORY_SYNCED: i32 = 10;

#[repr(C)]
pub struct TapEvent {
    pub kind: i32,
    pub path: Bytes,
    pub to: Bytes,
    pub offset: u64,
    pub data: Bytes,
}

#[repr(C)]
pub struct FileHooks {
    pub state: *mut c_void,
    pub drop: unsafe extern "C" fn(*mut c_void),
    pub has_tap: bool,
    pub has_remap: bool,
    pub has_remote: bool,
    pub maps_wals: bool,
    pub tap: unsafe extern "C" fn(*mut c_void, *const TapEvent, *mut Reply) -> Code,
    pub remap: unsafe extern "C" fn(*mut c_void, Bytes, *mut Reply) -> Code,
    pub remote_open: unsafe extern "C" fn(*mut c_void, Bytes, *mut *mut c_void, *mut u64, *mut Reply) -> Code,
    pub remote_size: unsafe extern "C" fn(*mut c_void, Bytes, *mut u64, *mut Reply) -> Code,
    pub remote_list: unsafe extern "C" fn(*mut c_void, Bytes, *mut Reply) -> Code,
    pub file_read: unsafe extern "C" fn(*mut c_void, u64, *mut u8, usize, *mut usize, *mut Reply) -> Code,
    pub file_will_need: unsafe extern "C" fn(*mut c_void, u64, u64) -> bool,
    pub file_drop: unsafe extern "C" fn(*mut c_void),
}

#[repr(C)]
pub struct CollectorFactory {
    pub state: *mut c_void,
    pub entries_at_a_time: u32,
    pub drop: unsafe extern "C" fn(*mut c_void),
    pub collector: unsafe extern "C" fn(*mut c_void, u32, i32) -> *mut c_void,
    pub begin: unsafe extern "C" fn(*mut c_void, *mut u64) -> bool,
    pub add: unsafe extern "C" fn(*mut c_void, Bytes, Bytes, i32, u64, u64) -> bool,
    pub finish: unsafe extern "C" fn(*mut c_void, *mut Reply) -> bool,
    pub collector_drop: unsafe extern "C" fn(*mut c_void),
}

#[repr(C)]
pub struct Recount {
    pub collector: *mut c_void,
    pub add: unsafe extern "C" fn(*mut c_void, Bytes, Bytes, i32, u64, u64) -> bool,
}

pub const FILTER_KEEP: i32 = 0;
pub const FILTER_REMOVE: i32 = 1;
pub const FILTER_CHANGE: i32 = 2;
pub const FILTER_FAILED: i32 = 3;

#[repr(C)]
pub struct FilterFactory {
    pub state: *mut c_void,
    pub drop: unsafe extern "C" fn(*mut c_void),
    pub filter: unsafe extern "C" fn(*mut c_void, u32, i32, bool, bool) -> *mut c_void,
    pub decide: unsafe extern "C" fn(*mut c_void, u32, Bytes, Bytes, *mut Reply) -> i32,
    pub filter_drop: unsafe extern "C" fn(*mut c_void),
}

unsafe extern "C" {
    pub fn ecotone_buffer_free(buffer: Buffer);
    pub fn ecotone_reply_append(reply: *mut Reply, data: *const u8, len: usize) -> bool;
    pub fn ecotone_env_new(hooks: *const FileHooks, env: *mut *mut c_void, out: *mut Buffer) -> Code;
    pub fn ecotone_waits_never(waits_never: bool) -> bool;
    pub fn ecotone_add_table_collector(
        options: *mut c_void,
        factory: *const CollectorFactory,
        out: *mut Buffer,
    ) -> Code;
    pub fn ecotone_use_memtable_tree(options: *mut c_void, out: *mut Buffer) -> Code;
    pub fn ecotone_set_compaction_filter(options: *mut c_void, factory: *const FilterFactory, out: *mut Buffer)
    -> Code;
    pub fn ecotone_live_tables(db: *mut c_void, out: *mut Buffer) -> Code;
    pub fn ecotone_family_tables(db: *mut c_void, family: *mut c_void, out: *mut Buffer) -> Code;
    pub fn ecotone_memtable_entries(
        db: *mut c_void,
        family: *mut c_void,
        first: Bytes,
        last: Bytes,
        out: *mut Buffer,
    ) -> Code;
    pub fn ecotone_collected_properties(
        db: *mut c_void,
        family: *mut c_void,
        prefix: Bytes,
        known: *const u64,
        known_count: usize,
        out: *mut Buffer,
    ) -> Code;
    pub fn ecotone_parse_remote_input(input: Bytes, out: *mut Buffer) -> Code;
    pub fn ecotone_parse_remote_result(result: Bytes, out: *mut Buffer) -> Code;
    pub fn ecotone_remote_result_with_output_path(result: Bytes, path: Bytes, out: *mut Buffer) -> Code;
    pub fn ecotone_read_table(path: Bytes, stop: *const bool, recount: *const Recount, out: *mut Buffer) -> Code;
    pub fn ecotone_salvage_open(path: Bytes, table: *mut *mut c_void, out: *mut Buffer) -> Code;
    pub fn ecotone_salvage_next(table: *mut c_void, max_bytes: u64, out: *mut Buffer) -> Code;
    pub fn ecotone_salvage_close(table: *mut c_void);
    pub fn ecotone_manifest_edit(record: Bytes, out: *mut Buffer) -> Code;
    pub fn ecotone_header_version(major: *mut u32, minor: *mut u32, patch: *mut u32);
    pub fn ecotone_library_version(major: *mut u32, minor: *mut u32, patch: *mut u32);
    pub fn ecotone_check_mirrors(out: *mut Buffer) -> Code;
}
