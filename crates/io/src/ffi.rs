//! The C functions of mapped files. `cpp/io.h` holds the same declarations and says what each
//! means; change both together.

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Part {
    pub data: *const u8,
    pub len: usize,
}

impl Part {
    pub fn borrow(bytes: &[u8]) -> Self {
        Self { data: bytes.as_ptr(), len: bytes.len() }
    }
}

/// Opaque: a file that is appended to through a window in memory.
#[repr(C)]
pub struct MappedFile {
    _private: [u8; 0],
}

/// Opaque: a file that is read through memory.
#[repr(C)]
pub struct MappedReads {
    _private: [u8; 0],
}

unsafe extern "C" {
    pub fn ecotone_mapped_file_new(fd: i32, len: u64, limit: u64, touches_ahead: bool) -> *mut MappedFile;
    pub fn ecotone_mapped_file_append(file: *mut MappedFile, parts: *const Part, count: usize) -> i32;
    pub fn ecotone_mapped_file_take_back(file: *mut MappedFile, len: u64);
    pub fn ecotone_mapped_file_trim(file: *mut MappedFile) -> i32;
    pub fn ecotone_mapped_file_free(file: *mut MappedFile);
    pub fn ecotone_reserves_for_certain(fd: i32) -> bool;
    pub fn ecotone_mapped_reads_new(fd: i32, len: u64) -> *mut MappedReads;
    pub fn ecotone_mapped_reads_copy(reads: *const MappedReads, offset: u64, into: *mut u8, len: usize) -> i32;
    pub fn ecotone_mapped_reads_free(reads: *mut MappedReads);
}
