//! Values made shorter one by one, so that one read of the device is still all that a value costs.
//!
//! - [`Codec`], [`pack`], [`unpack`]: one value.
//! - [`dictionary`]: what values of a store have in common, kept beside them. [`cache`]: those in
//!   use. [`training`]: samples, and dictionaries from them.
//!
//! Invariants:
//!
//! - What is unpacked has exactly the length that is stated, or is an error. Memory is taken for
//!   that length, and for a context whose size no packed value decides.
//! - What does not shrink by an eighth is stored as it is: reading it would cost more than it
//!   saves.
//! - What threads keep for the next value is counted, over all of the process
//!   ([`thread_memory`]), and within a bound: of one thread [`MAX_THREAD_BYTES`], of all together
//!   what [`keep_at_most`] says. A thread that has done its value when that is exceeded keeps nothing.
//!
//! Failure: where a context cannot be had values are stored as they are, and packed ones are errors
//! of their reader. Nothing here locks anything that another value could wait for.
//!
//! Threads: each has contexts and a buffer of its own, which it keeps for values of at most
//! [`MAX_KEPT_CONTEXT_VALUE_BYTES`].

pub mod cache;
pub mod dictionary;
pub mod training;

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

pub use ecotone_io::zstd::Level;
use ecotone_io::{lz4, zstd};

use dictionary::{Dictionary, DictionaryId};

/// For longer values a context is made for each: it takes a few times as much as the value, and
/// would lie about in every thread that once had to do with one.
pub const MAX_KEPT_CONTEXT_VALUE_BYTES: usize = 64 * 1024;

/// What one thread keeps at most: zstd's contexts take 300 KiB (level 1) to 600 (3) and 94 to unpack,
/// LZ4's 16 KiB, and the buffer twice the longest value that it is kept for.
pub const MAX_THREAD_BYTES: u64 = 1024 * 1024;

/// What all threads keep together unless [`keep_at_most`] says otherwise: of two dozen of them that
/// deal with values of a kilobyte everything, at some 200 KiB each.
pub const DEFAULT_KEPT_BYTES: u64 = 8 * 1024 * 1024;

static KEPT_BYTES: AtomicU64 = AtomicU64::new(0);
static MAX_KEPT_BYTES: AtomicU64 = AtomicU64::new(DEFAULT_KEPT_BYTES);

/// Bytes of memory that the threads of this process keep to pack and unpack values.
pub fn thread_memory() -> u64 {
    KEPT_BYTES.load(Ordering::Relaxed)
}

/// So many bytes they keep from now on, and for a moment more: as many as are in use.
pub fn keep_at_most(bytes: u64) {
    MAX_KEPT_BYTES.store(bytes, Ordering::Relaxed);
}

/// Shorter values are stored as they are: what a packed one has in its header more than another is
/// most of what it could save.
pub const MIN_PACKED_VALUE_BYTES: usize = 32;

/// How the error of a value begins that cannot be read for want of its dictionary; behind it stands
/// what is wrong with that one.
pub const WITHOUT_DICTIONARY: &str = "the value needs the dictionary of its segment: ";

/// How a value is to be packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Codec {
    /// Not at all.
    #[default]
    None,
    /// By LZ4.
    Lz4,
    /// By zstd, at a level.
    Zstd(Level),
}

/// By what a value was packed: what its reader must know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Method {
    /// Not at all.
    None,
    /// By LZ4.
    Lz4,
    /// By zstd.
    Zstd,
}

impl Stored {
    /// How a value of that length is stored as it is.
    pub fn as_it_is(value_bytes: usize) -> Self {
        Self { method: Method::None, dictionary: None, value_bytes }
    }
}

/// How a value is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    /// By what it was packed.
    pub method: Method,
    /// With which dictionary, if with any.
    pub dictionary: Option<DictionaryId>,
    /// Its length before.
    pub value_bytes: usize,
}

/// Why a packed value cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnpackError {
    /// The bytes are not what a value of that length was packed to.
    #[error("what was compressed does not give {value_bytes} bytes")]
    NotThatLength {
        /// The length that is stated.
        value_bytes: usize,
    },
    /// It needs a dictionary, and another or none is given.
    #[error("it needs the dictionary {0}")]
    WithoutDictionary(DictionaryId),
    /// The dictionary could not be made ready: one that a value was packed with can be, where there
    /// is memory for it.
    #[error("the dictionary {0} cannot be used now")]
    Dictionary(DictionaryId),
    /// A context could not be made.
    #[error("there is no memory to decompress it")]
    NoMemory,
}

#[derive(Default)]
struct Contexts {
    zstd: Option<zstd::Compressor>,
    lz4: Option<lz4::Compressor>,
    unzstd: Option<zstd::Decompressor>,
}

/// What a thread keeps of one kind, and what is counted of it.
struct Kept<T> {
    it: T,
    bytes: usize,
}

impl<T: Default> Kept<T> {
    /// It takes so many bytes now. It goes where all threads together keep too much.
    fn takes(&mut self, bytes: usize) {
        let before = std::mem::replace(&mut self.bytes, bytes) as u64;
        let others = KEPT_BYTES.fetch_add((bytes as u64).wrapping_sub(before), Ordering::Relaxed).wrapping_sub(before);
        if others.wrapping_add(bytes as u64) > MAX_KEPT_BYTES.load(Ordering::Relaxed) && bytes > 0 {
            self.it = T::default();
            self.takes(0);
        }
    }
}

impl<T> Drop for Kept<T> {
    fn drop(&mut self) {
        KEPT_BYTES.fetch_sub(self.bytes as u64, Ordering::Relaxed);
    }
}

thread_local! {
    static CONTEXTS: RefCell<Kept<Contexts>> = const {
        RefCell::new(Kept { it: Contexts { zstd: None, lz4: None, unzstd: None }, bytes: 0 })
    };
    /// What a value is packed to, or unpacked to.
    static BUFFER: RefCell<Kept<Vec<u8>>> = const { RefCell::new(Kept { it: Vec::new(), bytes: 0 }) };
}

impl Contexts {
    fn bytes(&self) -> usize {
        self.zstd.as_ref().map_or(0, zstd::Compressor::bytes)
            + self.lz4.as_ref().map_or(0, lz4::Compressor::bytes)
            + self.unzstd.as_ref().map_or(0, zstd::Decompressor::bytes)
    }
}

/// Calls `work` with this thread's contexts, or for a long value with new ones.
fn with_contexts<R>(value_bytes: usize, work: impl FnOnce(&mut Contexts) -> R) -> R {
    match value_bytes > MAX_KEPT_CONTEXT_VALUE_BYTES {
        true => work(&mut Contexts::default()),
        false => CONTEXTS.with_borrow_mut(|kept| {
            let done = work(&mut kept.it);
            kept.takes(kept.it.bytes());
            done
        }),
    }
}

/// Calls `work` with an empty buffer: this thread's, unless what is to be put there is long. Another
/// one may be left in its place.
pub(crate) fn with_buffer<R>(bytes: usize, work: impl FnOnce(&mut Vec<u8>) -> R) -> R {
    match bytes > MAX_KEPT_CONTEXT_VALUE_BYTES {
        true => work(&mut Vec::new()),
        false => BUFFER.with_borrow_mut(|kept| {
            kept.it.clear();
            let done = work(&mut kept.it);
            if kept.it.capacity() > 2 * MAX_KEPT_CONTEXT_VALUE_BYTES {
                kept.it = Vec::new();
            }
            kept.takes(kept.it.capacity());
            done
        }),
    }
}

/// The one there is, or a new one; `None` where there is no memory for it.
fn context<T>(kept: &mut Option<T>, new: impl FnOnce() -> Option<T>) -> Option<&mut T> {
    if kept.is_none() {
        *kept = new();
    }
    kept.as_mut()
}

/// The most bytes that a value is worth being packed to: it has to shrink by an eighth.
pub const fn max_packed_bytes(value_bytes: usize) -> usize {
    value_bytes - value_bytes / 8
}

/// Appends `value`, packed, to `to`, where that is worth it, and says how; `None` where it is to be
/// stored as it is: `to` is as it was.
pub fn pack(codec: Codec, dictionary: Option<&Dictionary>, value: &[u8], to: &mut Vec<u8>) -> Option<Stored> {
    if value.len() < MIN_PACKED_VALUE_BYTES || codec == Codec::None {
        return None;
    }
    with_contexts(value.len(), |contexts| packed(contexts, codec, dictionary, value, to))
}

fn packed(
    contexts: &mut Contexts,
    codec: Codec,
    dictionary: Option<&Dictionary>,
    value: &[u8],
    to: &mut Vec<u8>,
) -> Option<Stored> {
    let max = max_packed_bytes(value.len());
    let (method, shrank, with) = match codec {
        Codec::None => return None,
        Codec::Lz4 => {
            let digest = dictionary.and_then(Dictionary::for_lz4);
            let lz4 = context(&mut contexts.lz4, lz4::Compressor::new)?;
            (Method::Lz4, lz4.compress(digest, value, max, to), digest.is_some())
        }
        Codec::Zstd(level) => {
            let digest = dictionary.and_then(|dictionary| dictionary.for_zstd(level));
            let zstd = context(&mut contexts.zstd, zstd::Compressor::new)?;
            (Method::Zstd, zstd.compress(level, digest, value, max, to), digest.is_some())
        }
    };
    let dictionary = dictionary.filter(|_| with).map(Dictionary::id);
    shrank.then_some(Stored { method, dictionary, value_bytes: value.len() })
}

/// Appends the value that is `stored` in `bytes` to `to`.
///
/// # Errors
///
/// It cannot be had: `to` is as it was.
pub fn unpack(
    stored: Stored,
    dictionary: Option<&Dictionary>,
    bytes: &[u8],
    to: &mut Vec<u8>,
) -> Result<(), UnpackError> {
    let length = stored.value_bytes;
    let dictionary = match stored.dictionary {
        None => None,
        Some(id) => match dictionary.filter(|dictionary| dictionary.id() == id) {
            None => return Err(UnpackError::WithoutDictionary(id)),
            found => found,
        },
    };
    let is_whole = match stored.method {
        Method::None => {
            to.extend_from_slice(if bytes.len() == length { bytes } else { &[] });
            bytes.len() == length
        }
        Method::Lz4 => lz4::decompress(dictionary.map_or(&[][..], Dictionary::content), bytes, length, to),
        Method::Zstd => {
            let digest = match dictionary {
                None => None,
                Some(dictionary) => Some(dictionary.for_unzstd().ok_or(UnpackError::Dictionary(dictionary.id()))?),
            };
            with_contexts(length, |contexts| {
                let zstd = context(&mut contexts.unzstd, zstd::Decompressor::new)?;
                Some(zstd.decompress(digest, bytes, length, to))
            })
            .ok_or(UnpackError::NoMemory)?
        }
    };
    is_whole.then_some(()).ok_or(UnpackError::NotThatLength { value_bytes: length })
}

#[cfg(test)]
pub(crate) mod tests;
