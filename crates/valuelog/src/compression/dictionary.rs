//! What the values of a store have in common, which they are packed with.
//!
//! A dictionary is named by its content, so that two copies of one are the same and a wrong one is
//! noticed. It lies in the head of each segment that needs it (see [`crate::packed_record`]): what
//! moves, copies, checks or loses a segment has its dictionary with it, and there is nothing whose
//! life has to be followed.
//!
//! Both codecs use the same content: zstd all of it, LZ4 its end.
//!
//! Bounds: [`MAX_DICTIONARY_BYTES`]. Digests are made when they are first needed; what they take is
//! counted ([`Dictionary::bytes`]).

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use ecotone_io::{lz4, zstd};
use twox_hash::XxHash3_64;

use super::{Codec, Level, Method, Stored, UnpackError};

/// The longest dictionary that a segment may have: a bound of the format, for whoever reads one.
pub const MAX_DICTIONARY_BYTES: usize = 128 * 1024;

/// A shorter one is none: zstd takes no less.
pub const MIN_DICTIONARY_BYTES: usize = 256;

/// Levels that a digest is kept for.
const LEVELS: usize = Level::MAX.get() as usize;

/// The name of a dictionary: XXH3 of its content; not 0, which says that there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DictionaryId(u64);

impl DictionaryId {
    /// The name of that content.
    pub fn of(content: &[u8]) -> Self {
        Self(XxHash3_64::oneshot(content).max(1))
    }

    /// The name in a header; `None` where there is none.
    pub fn decode(stored: u64) -> Option<Self> {
        (stored != 0).then_some(Self(stored))
    }

    /// As it is stored.
    pub fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for DictionaryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Why bytes are no dictionary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DictionaryError {
    /// Its length.
    #[error("a dictionary of {0} bytes is none")]
    Length(usize),
    /// There is no memory to decompress it.
    #[error("there is no memory to decompress it")]
    NoMemory,
    /// It does not give its length.
    #[error("it does not decompress")]
    Packed,
    /// Its content has another name.
    #[error("its content is that of {found}")]
    Another {
        /// What it is.
        found: DictionaryId,
    },
}

/// A dictionary, digested as far as it was needed.
#[derive(Debug)]
pub struct Dictionary {
    id: DictionaryId,
    content: Arc<[u8]>,
    for_lz4: OnceLock<lz4::CompressDictionary>,
    for_zstd: [OnceLock<zstd::CompressDictionary>; LEVELS],
    for_unzstd: OnceLock<zstd::DecompressDictionary>,
    /// As a segment keeps it.
    packed: OnceLock<Packed>,
    counted: Counted,
}

/// A dictionary as a segment keeps it.
#[derive(Debug)]
pub struct Packed {
    /// By zstd, without a dictionary, or as it is.
    pub stored: Stored,
    /// What is stored.
    pub bytes: Vec<u8>,
}

/// The memory of a dictionary, among that of all of a cache.
#[derive(Debug)]
struct Counted {
    bytes: AtomicU64,
    all: Arc<AtomicU64>,
}

impl Counted {
    fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.all.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.all.fetch_sub(*self.bytes.get_mut(), Ordering::Relaxed);
    }
}

impl Dictionary {
    /// The dictionary of that content.
    ///
    /// # Errors
    ///
    /// [`DictionaryError::Length`].
    pub fn new(content: Vec<u8>) -> Result<Self, DictionaryError> {
        Self::counted_in(content, &Arc::default())
    }

    /// The same, whose memory counts among `all` until it is dropped.
    pub(super) fn counted_in(content: Vec<u8>, all: &Arc<AtomicU64>) -> Result<Self, DictionaryError> {
        if !(MIN_DICTIONARY_BYTES..=MAX_DICTIONARY_BYTES).contains(&content.len()) {
            return Err(DictionaryError::Length(content.len()));
        }
        let counted = Counted { bytes: AtomicU64::new(0), all: all.clone() };
        counted.add(content.len());
        Ok(Self {
            id: DictionaryId::of(&content),
            content: content.into(),
            for_lz4: OnceLock::new(),
            for_zstd: Default::default(),
            for_unzstd: OnceLock::new(),
            packed: OnceLock::new(),
            counted,
        })
    }

    /// Its name.
    pub fn id(&self) -> DictionaryId {
        self.id
    }

    /// Its content.
    pub fn content(&self) -> &[u8] {
        &self.content
    }

    /// Bytes of memory that it takes by now.
    pub fn bytes(&self) -> u64 {
        self.counted.bytes.load(Ordering::Relaxed)
    }

    /// It as a segment keeps it. That is made once: not while somebody waits for a segment.
    pub fn packed(&self) -> &Packed {
        self.packed.get_or_init(|| {
            let mut bytes = Vec::new();
            let stored = super::pack(Codec::Zstd(Level::MAX), None, &self.content, &mut bytes).unwrap_or_else(|| {
                bytes.extend_from_slice(&self.content);
                Stored::as_it_is(self.content.len())
            });
            bytes.shrink_to_fit();
            self.counted.add(bytes.len());
            Packed { stored, bytes }
        })
    }

    pub(super) fn for_lz4(&self) -> Option<&lz4::CompressDictionary> {
        let make = || lz4::CompressDictionary::new(self.content.clone());
        self.digest(&self.for_lz4, make, lz4::CompressDictionary::bytes)
    }

    /// Where it can be had for reading as well: the library reads a dictionary for either by itself.
    pub(super) fn for_zstd(&self, level: Level) -> Option<&zstd::CompressDictionary> {
        self.for_unzstd()?;
        let make = || zstd::CompressDictionary::new(self.content.clone(), level);
        let kept = self.for_zstd.get(usize::from(level.get()) - 1)?;
        self.digest(kept, make, zstd::CompressDictionary::bytes)
    }

    pub(super) fn for_unzstd(&self) -> Option<&zstd::DecompressDictionary> {
        let make = || zstd::DecompressDictionary::new(self.content.clone());
        self.digest(&self.for_unzstd, make, zstd::DecompressDictionary::bytes)
    }

    /// The digest that is kept, or a new one. That there was no memory for one is not kept: there may
    /// be for the next value.
    fn digest<'a, T>(
        &self,
        kept: &'a OnceLock<T>,
        make: impl FnOnce() -> Option<T>,
        bytes: impl FnOnce(&T) -> usize,
    ) -> Option<&'a T> {
        if let Some(kept) = kept.get() {
            return Some(kept);
        }
        let made = make()?;
        // Where another thread was faster, this one's is of no use.
        Some(kept.get_or_init(|| {
            self.counted.add(bytes(&made));
            made
        }))
    }
}

/// The content of the dictionary `id` that is `stored` in `bytes`.
///
/// # Errors
///
/// It is not that one, or none.
pub fn unpack(id: DictionaryId, stored: Stored, bytes: &[u8]) -> Result<Vec<u8>, DictionaryError> {
    // Before memory is taken for it.
    if stored.value_bytes > MAX_DICTIONARY_BYTES {
        return Err(DictionaryError::Length(stored.value_bytes));
    }
    debug_assert!(stored.method != Method::Lz4, "no record says so of a dictionary");
    let mut content = Vec::new();
    super::unpack(stored, None, bytes, &mut content).map_err(|reason| match reason {
        UnpackError::NoMemory => DictionaryError::NoMemory,
        _ => DictionaryError::Packed,
    })?;
    match DictionaryId::of(&content) {
        found if found == id => Ok(content),
        found => Err(DictionaryError::Another { found }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_that_there_was_no_memory_for_is_asked_for_again() {
        let dictionary = Dictionary::new((0..=255).cycle().take(1024).collect()).unwrap();
        let (kept, before) = (OnceLock::new(), dictionary.bytes());
        assert_eq!(dictionary.digest(&kept, || None::<u8>, |_| 9), None);
        assert_eq!(dictionary.bytes(), before);
        assert_eq!(dictionary.digest(&kept, || Some(7), |_| 9), Some(&7));
        assert_eq!(dictionary.digest(&kept, || panic!("it is there"), |_| 9), Some(&7));
        assert_eq!(dictionary.bytes(), before + 9);
    }
}
