//! LZ4, one block of bytes at a time, with dictionaries.
//!
//! Invariant: nothing is written beyond the capacity that the caller states, and nothing is read
//! beyond the input: both are arguments of every call of the library.
//!
//! Threads: a context belongs to one at a time; a dictionary is shared by any number.

use std::ffi::{c_char, c_int};
use std::ptr::{NonNull, null};
use std::sync::Arc;

use lz4_sys::LZ4StreamEncode;

/// What an offset reaches: of a longer dictionary the end alone is of use.
pub const MAX_DICTIONARY_BYTES: usize = 64 * 1024;

/// Longer input is not taken (`LZ4_MAX_INPUT_SIZE`).
const MAX_INPUT_BYTES: usize = 0x7E00_0000;

/// What the library needs for a context or a dictionary (`LZ4_STREAM_MINSIZE`).
const STREAM_BYTES: usize = (1 << 14) + 32;

// `lz4-sys` declares none of these, and links them: they are stable since LZ4 1.9 and 1.10.
unsafe extern "C" {
    fn LZ4_resetStream_fast(stream: *mut LZ4StreamEncode);
    fn LZ4_loadDictSlow(stream: *mut LZ4StreamEncode, dictionary: *const c_char, bytes: c_int) -> c_int;
    fn LZ4_attach_dictionary(working: *mut LZ4StreamEncode, dictionary: *const LZ4StreamEncode);
    fn LZ4_compress_fast_continue(
        stream: *mut LZ4StreamEncode,
        source: *const c_char,
        into: *mut c_char,
        bytes: c_int,
        capacity: c_int,
        acceleration: c_int,
    ) -> c_int;
    fn LZ4_decompress_safe_usingDict(
        source: *const c_char,
        into: *mut c_char,
        bytes: c_int,
        capacity: c_int,
        dictionary: *const c_char,
        dictionary_bytes: c_int,
    ) -> c_int;
}

/// Compresses.
#[derive(Debug)]
pub struct Compressor(NonNull<LZ4StreamEncode>);

// SAFETY: a context has no ties to the thread that made it.
unsafe impl Send for Compressor {}

impl Compressor {
    /// `None` where there is no memory for it.
    pub fn new() -> Option<Self> {
        // SAFETY: no arguments.
        NonNull::new(unsafe { lz4_sys::LZ4_createStream() }).map(Self)
    }

    /// Bytes of memory that it takes.
    pub fn bytes(&self) -> usize {
        STREAM_BYTES
    }

    /// Appends `bytes`, compressed, to `to`, where they take at most `max_bytes` so; false where
    /// they do not: `to` is as it was.
    pub fn compress(
        &mut self,
        dictionary: Option<&CompressDictionary>,
        bytes: &[u8],
        max_bytes: usize,
        to: &mut Vec<u8>,
    ) -> bool {
        if bytes.len() > MAX_INPUT_BYTES {
            return false;
        }
        let stream = self.0.as_ptr();
        let dictionary = dictionary.map_or(null(), |dictionary| dictionary.stream.as_ptr().cast_const());
        to.reserve(max_bytes);
        let free = to.spare_capacity_mut();
        let capacity = max_bytes.min(free.len()).min(MAX_INPUT_BYTES) as c_int;
        // SAFETY: the context is alive, and was initialised when it was made. What it refers to of
        // the call before it forgets by the reset, also after an error, and the dictionary by the
        // end of the call. `capacity` bytes of `free` may be written, and `bytes` read.
        let written = unsafe {
            LZ4_resetStream_fast(stream);
            LZ4_attach_dictionary(stream, dictionary);
            let (source, into) = (bytes.as_ptr().cast(), free.as_mut_ptr().cast());
            LZ4_compress_fast_continue(stream, source, into, bytes.len() as c_int, capacity, 1)
        };
        // Nothing is the only failure: no block is empty.
        if written <= 0 || written > capacity {
            return false;
        }
        // SAFETY: the library has written so many.
        unsafe { to.set_len(to.len() + written as usize) };
        true
    }
}

impl Drop for Compressor {
    fn drop(&mut self) {
        // SAFETY: it is alive, and nobody else has it.
        unsafe { lz4_sys::LZ4_freeStream(self.0.as_ptr()) };
    }
}

/// A dictionary, digested for compression.
#[derive(Debug)]
pub struct CompressDictionary {
    stream: NonNull<LZ4StreamEncode>,
    // The digest refers to it.
    _content: Arc<[u8]>,
}

// SAFETY: it is not changed once it is made; contexts that it is attached to only read it.
unsafe impl Send for CompressDictionary {}
// SAFETY: as above.
unsafe impl Sync for CompressDictionary {}

impl CompressDictionary {
    /// `None` where there is no memory for it.
    pub fn new(content: Arc<[u8]>) -> Option<Self> {
        // SAFETY: no arguments.
        let stream = NonNull::new(unsafe { lz4_sys::LZ4_createStream() })?;
        let of_use = in_reach(&content);
        // SAFETY: the content lives, at its place, as long as the digest does: see the fields.
        unsafe { LZ4_loadDictSlow(stream.as_ptr(), of_use.as_ptr().cast(), of_use.len() as c_int) };
        Some(Self { stream, _content: content })
    }

    /// Bytes of memory, without the content.
    pub fn bytes(&self) -> usize {
        STREAM_BYTES
    }
}

impl Drop for CompressDictionary {
    fn drop(&mut self) {
        // SAFETY: it is alive, and nobody else has it.
        unsafe { lz4_sys::LZ4_freeStream(self.stream.as_ptr()) };
    }
}

/// Appends to `to` what `bytes` were before, with the dictionary that they were compressed with, if
/// that is exactly `length` long. False where it is not, or they are no block: `to` is as it was.
/// Memory for `length` bytes is taken in any case.
pub fn decompress(dictionary: &[u8], bytes: &[u8], length: usize, to: &mut Vec<u8>) -> bool {
    if bytes.len() > MAX_INPUT_BYTES || length > MAX_INPUT_BYTES {
        return false;
    }
    let dictionary = in_reach(dictionary);
    to.reserve(length);
    let free = to.spare_capacity_mut();
    let capacity = length.min(free.len());
    // SAFETY: `capacity` bytes of `free` may be written; `bytes` and the dictionary may be read.
    let written = unsafe {
        LZ4_decompress_safe_usingDict(
            bytes.as_ptr().cast(),
            free.as_mut_ptr().cast(),
            bytes.len() as c_int,
            capacity as c_int,
            dictionary.as_ptr().cast(),
            dictionary.len() as c_int,
        )
    };
    if usize::try_from(written) != Ok(length) {
        return false;
    }
    // SAFETY: the library has written so many.
    unsafe { to.set_len(to.len() + length) };
    true
}

/// The end of a dictionary, as far as an offset reaches.
fn in_reach(dictionary: &[u8]) -> &[u8] {
    &dictionary[dictionary.len().saturating_sub(MAX_DICTIONARY_BYTES)..]
}
