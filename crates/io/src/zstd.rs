//! zstd, one block of bytes at a time, with dictionaries.
//!
//! Frames are as small as zstd makes them: without magic number, length, checksum and number of the
//! dictionary, all of which who keeps them knows better. That also keeps the decoders of former
//! formats, and skippable frames, out of reach of what is read from a file.
//!
//! Invariants:
//!
//! - Nothing is written beyond the capacity that the caller states, and nothing is read beyond the
//!   input: both are arguments of every call of the library. What a frame says of itself decides
//!   neither: memory is the caller's, and a context's, whose size does not depend on a frame.
//! - A context refers to no dictionary between two calls.
//!
//! Threads: a context belongs to one at a time; a dictionary is shared by any number.

use std::ffi::c_void;
use std::ptr::{NonNull, null};
use std::sync::Arc;

use zstd_sys as sys;

/// A level: the higher, the smaller and the slower.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Level(u8);

impl Level {
    /// The highest level that is offered: those above cost more than a value log gains by them.
    pub const MAX: Self = Self(3);
    /// The lowest.
    pub const MIN: Self = Self(1);

    /// The level of that number, or the nearest there is.
    pub fn nearest(level: u8) -> Self {
        Self(level).clamp(Self::MIN, Self::MAX)
    }

    /// Its number.
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// Compresses.
#[derive(Debug)]
pub struct Compressor(NonNull<sys::ZSTD_CCtx>);

// SAFETY: a context has no ties to the thread that made it.
unsafe impl Send for Compressor {}

impl Compressor {
    /// `None` where there is no memory for it.
    pub fn new() -> Option<Self> {
        // SAFETY: no arguments.
        let compressor = Self(NonNull::new(unsafe { sys::ZSTD_createCCtx() })?);
        let parameters = [
            // The format: no magic number.
            (sys::ZSTD_cParameter::ZSTD_c_experimentalParam2, sys::ZSTD_format_e::ZSTD_f_zstd1_magicless as i32),
            (sys::ZSTD_cParameter::ZSTD_c_contentSizeFlag, 0),
            (sys::ZSTD_cParameter::ZSTD_c_checksumFlag, 0),
            (sys::ZSTD_cParameter::ZSTD_c_dictIDFlag, 0),
        ];
        // SAFETY: the context is alive.
        let set = |(parameter, value)| unsafe { sys::ZSTD_CCtx_setParameter(compressor.0.as_ptr(), parameter, value) };
        parameters.into_iter().map(set).all(is_ok).then_some(compressor)
    }

    /// Bytes of memory that it takes by now.
    pub fn bytes(&self) -> usize {
        // SAFETY: it is alive.
        unsafe { sys::ZSTD_sizeof_CCtx(self.0.as_ptr()) }
    }

    /// Appends `bytes`, compressed, to `to`, where they take at most `max_bytes` so; false where
    /// they do not, or there is no memory: `to` is as it was. With a dictionary the level is the
    /// dictionary's.
    pub fn compress(
        &mut self,
        level: Level,
        dictionary: Option<&CompressDictionary>,
        bytes: &[u8],
        max_bytes: usize,
        to: &mut Vec<u8>,
    ) -> bool {
        let context = self.0.as_ptr();
        let dictionary = dictionary.map_or(null(), |dictionary| dictionary.digest.as_ptr().cast_const());
        to.reserve(max_bytes);
        let free = to.spare_capacity_mut();
        let capacity = max_bytes.min(free.len());
        // SAFETY: the context is alive, and so is the dictionary until the end of this function,
        // before which the context forgets it: it is reset, without which it could not after an
        // error. The first `capacity` bytes of `free` may be written, and `bytes` read.
        let written = unsafe {
            sys::ZSTD_CCtx_setParameter(context, sys::ZSTD_cParameter::ZSTD_c_compressionLevel, i32::from(level.0));
            sys::ZSTD_CCtx_refCDict(context, dictionary);
            let source = bytes.as_ptr().cast();
            let written = sys::ZSTD_compress2(context, free.as_mut_ptr().cast(), capacity, source, bytes.len());
            sys::ZSTD_CCtx_reset(context, sys::ZSTD_ResetDirective::ZSTD_reset_session_only);
            sys::ZSTD_CCtx_refCDict(context, null());
            written
        };
        if !is_ok(written) || written > capacity {
            return false;
        }
        // SAFETY: the library has written so many, which is no more than there is space for.
        unsafe { to.set_len(to.len() + written) };
        true
    }
}

impl Drop for Compressor {
    fn drop(&mut self) {
        // SAFETY: it is alive, and nobody else has it.
        unsafe { sys::ZSTD_freeCCtx(self.0.as_ptr()) };
    }
}

/// Decompresses.
#[derive(Debug)]
pub struct Decompressor(NonNull<sys::ZSTD_DCtx>);

// SAFETY: a context has no ties to the thread that made it.
unsafe impl Send for Decompressor {}

impl Decompressor {
    /// `None` where there is no memory for it.
    pub fn new() -> Option<Self> {
        // SAFETY: no arguments.
        let decompressor = Self(NonNull::new(unsafe { sys::ZSTD_createDCtx() })?);
        let format = sys::ZSTD_format_e::ZSTD_f_zstd1_magicless as i32;
        let parameter = sys::ZSTD_dParameter::ZSTD_d_experimentalParam1;
        // SAFETY: the context is alive.
        let set = unsafe { sys::ZSTD_DCtx_setParameter(decompressor.0.as_ptr(), parameter, format) };
        is_ok(set).then_some(decompressor)
    }

    /// Bytes of memory that it takes.
    pub fn bytes(&self) -> usize {
        // SAFETY: it is alive.
        unsafe { sys::ZSTD_sizeof_DCtx(self.0.as_ptr()) }
    }

    /// Appends to `to` what `bytes` were before, if that is exactly `length` long. False where it
    /// is not, or they are no frame, or one of another dictionary that tells itself apart: `to` is
    /// as it was. Memory for `length` bytes is taken in any case.
    pub fn decompress(
        &mut self,
        dictionary: Option<&DecompressDictionary>,
        bytes: &[u8],
        length: usize,
        to: &mut Vec<u8>,
    ) -> bool {
        let dictionary = dictionary.map_or(null(), |dictionary| dictionary.digest.as_ptr().cast_const());
        to.reserve(length);
        let free = to.spare_capacity_mut();
        let capacity = length.min(free.len());
        // SAFETY: the context and the dictionary are alive; each call begins without what the one
        // before referred to. The first `capacity` bytes of `free` may be written, `bytes` read.
        let written = unsafe {
            let (into, source) = (free.as_mut_ptr().cast(), bytes.as_ptr().cast());
            sys::ZSTD_decompress_usingDDict(self.0.as_ptr(), into, capacity, source, bytes.len(), dictionary)
        };
        if !is_ok(written) || written != length {
            return false;
        }
        // SAFETY: the library has written so many.
        unsafe { to.set_len(to.len() + length) };
        true
    }
}

impl Drop for Decompressor {
    fn drop(&mut self) {
        // SAFETY: it is alive, and nobody else has it.
        unsafe { sys::ZSTD_freeDCtx(self.0.as_ptr()) };
    }
}

/// A dictionary, digested for compression at one level.
#[derive(Debug)]
pub struct CompressDictionary {
    digest: NonNull<sys::ZSTD_CDict>,
    // The digest refers to it.
    _content: Arc<[u8]>,
}

// SAFETY: it is not changed once it is made, and the library offers it for use by several threads.
unsafe impl Send for CompressDictionary {}
// SAFETY: as above.
unsafe impl Sync for CompressDictionary {}

impl CompressDictionary {
    /// `None` where there is no memory for it, or `content` only looks like a trained dictionary.
    pub fn new(content: Arc<[u8]>, level: Level) -> Option<Self> {
        // SAFETY: the content lives, at its place, as long as the digest does: see the fields.
        let digest =
            unsafe { sys::ZSTD_createCDict_byReference(content.as_ptr().cast(), content.len(), i32::from(level.0)) };
        NonNull::new(digest).map(|digest| Self { digest, _content: content })
    }

    /// Bytes of memory, without the content.
    pub fn bytes(&self) -> usize {
        // SAFETY: it is alive.
        unsafe { sys::ZSTD_sizeof_CDict(self.digest.as_ptr()) }
    }
}

impl Drop for CompressDictionary {
    fn drop(&mut self) {
        // SAFETY: it is alive, and nobody else has it.
        unsafe { sys::ZSTD_freeCDict(self.digest.as_ptr()) };
    }
}

/// A dictionary, digested for decompression.
#[derive(Debug)]
pub struct DecompressDictionary {
    digest: NonNull<sys::ZSTD_DDict>,
    // The digest refers to it.
    _content: Arc<[u8]>,
}

// SAFETY: it is not changed once it is made, and the library offers it for use by several threads.
unsafe impl Send for DecompressDictionary {}
// SAFETY: as above.
unsafe impl Sync for DecompressDictionary {}

impl DecompressDictionary {
    /// `None` where there is no memory for it, or `content` only looks like a trained dictionary.
    pub fn new(content: Arc<[u8]>) -> Option<Self> {
        // SAFETY: the content lives, at its place, as long as the digest does: see the fields.
        let digest = unsafe { sys::ZSTD_createDDict_byReference(content.as_ptr().cast(), content.len()) };
        NonNull::new(digest).map(|digest| Self { digest, _content: content })
    }

    /// Bytes of memory, without the content.
    pub fn bytes(&self) -> usize {
        // SAFETY: it is alive.
        unsafe { sys::ZSTD_sizeof_DDict(self.digest.as_ptr()) }
    }
}

impl Drop for DecompressDictionary {
    fn drop(&mut self) {
        // SAFETY: it is alive, and nobody else has it.
        unsafe { sys::ZSTD_freeDDict(self.digest.as_ptr()) };
    }
}

/// How a dictionary is trained (`ZDICT_fastCover_params_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Training {
    /// The length of the pieces that it is put together from.
    pub segment_bytes: u32,
    /// The logarithm of the number of counters: 4 bytes each.
    pub counters_log: u32,
    /// From 1, which looks at all positions, to 10.
    pub acceleration: u32,
}

/// A dictionary of at most `max_bytes` from samples that stand one behind the other, of the given
/// `lengths`. The same samples make the same dictionary. `None` where they are too few or too much
/// alike, or there is no memory.
pub fn train(samples: &[u8], lengths: &[usize], max_bytes: usize, training: Training) -> Option<Vec<u8>> {
    let sum = lengths.iter().try_fold(0_usize, |sum, length| sum.checked_add(*length));
    if sum != Some(samples.len()) {
        return None;
    }
    let parameters = sys::ZDICT_fastCover_params_t {
        k: training.segment_bytes,
        d: 8,
        f: training.counters_log,
        steps: 0,
        nbThreads: 1,
        splitPoint: 1.0,
        accel: training.acceleration,
        shrinkDict: 0,
        shrinkDictMaxRegression: 0,
        zParams: sys::ZDICT_params_t {
            compressionLevel: i32::from(Level::MAX.0),
            notificationLevel: 0,
            // Chosen by the content.
            dictID: 0,
        },
    };
    let mut dictionary: Vec<u8> = Vec::with_capacity(max_bytes);
    // SAFETY: the lengths add up to what there is of samples, and the dictionary has the capacity
    // that is stated.
    let written = unsafe {
        sys::ZDICT_trainFromBuffer_fastCover(
            dictionary.as_mut_ptr().cast::<c_void>(),
            max_bytes,
            samples.as_ptr().cast(),
            lengths.as_ptr(),
            u32::try_from(lengths.len()).ok()?,
            parameters,
        )
    };
    if !is_ok(written) || written > max_bytes {
        return None;
    }
    // SAFETY: the library has written so many.
    unsafe { dictionary.set_len(written) };
    Some(dictionary)
}

fn is_ok(result: usize) -> bool {
    // SAFETY: it looks at the number alone. ZDICT's errors are the same.
    unsafe { sys::ZSTD_isError(result) == 0 }
}
