//! What the values of a run consist of.
//!
//! How a store fares depends on how far its values shrink: random bytes hide what compression
//! costs and gains, and data of the field is text. So a run names the kind of its values.
//!
//! Invariants: a value follows from kind, seed, key, version and length only, so that whoever
//! knows these can check what is read; it has exactly the asked length; and nothing is allocated
//! for it but the buffer of its thread, once. A [`ValueSource`] never changes and is shared by all
//! threads, [`Values`] belong to one.

mod log_text;
mod telemetry;

use serde::{Deserialize, Serialize};

use self::log_text::LogText;
use self::telemetry::{Layout, Telemetry};
use super::random::{Random, mix64};
use crate::{Error, Result};

/// The kinds of values. On the command line and in reports: `random`, `half`, `json`, `text` or
/// `zeros:SHARE`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum ValueKind {
    /// Random bytes, which no compressor shortens.
    #[default]
    Random,
    /// db_bench's values with its default `--compression_ratio=0.5`: pieces of 100 bytes, each 50
    /// random bytes of 0 to 126 and the same again.
    Half,
    /// Telemetry of devices: JSON objects with slowly changing fields.
    Json,
    /// Lines of a log: words by a Zipfian.
    Text,
    /// Random bytes, then this share of zeros, 0 to 1.
    Zeros(f64),
}

impl ValueKind {
    /// The kind that comparisons with other stores use unless told otherwise: what db_bench, and so
    /// nearly every published figure of RocksDB, is measured with.
    pub const COMPARED: ValueKind = ValueKind::Half;

    /// Refuses a share that is none.
    pub(super) fn validate(self) -> Result<()> {
        match self {
            Self::Zeros(share) if !(0.0..=1.0).contains(&share) => {
                Err(Error::options(format!("the share of zeros in values is {share}; it must be between 0 and 1")))
            }
            _ => Ok(()),
        }
    }
}

impl std::fmt::Display for ValueKind {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Random => formatter.pad("random"),
            Self::Half => formatter.pad("half"),
            Self::Json => formatter.pad("json"),
            Self::Text => formatter.pad("text"),
            Self::Zeros(share) => formatter.pad(&format!("zeros:{share}")),
        }
    }
}

impl std::str::FromStr for ValueKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let kind = match name {
            "random" => Self::Random,
            "half" => Self::Half,
            "json" => Self::Json,
            "text" => Self::Text,
            _ => match name.strip_prefix("zeros:").and_then(|share| share.parse().ok()) {
                Some(share) => Self::Zeros(share),
                None => {
                    return Err(Error::options(format!(
                        "unknown kind of values {name:?}; choose one of: random, half, json, text, zeros:SHARE (such as zeros:0.5)"
                    )));
                }
            },
        };
        kind.validate()?;
        Ok(kind)
    }
}

impl From<ValueKind> for String {
    fn from(kind: ValueKind) -> Self {
        kind.to_string()
    }
}

impl TryFrom<String> for ValueKind {
    type Error = Error;

    fn try_from(name: String) -> Result<Self> {
        name.parse()
    }
}

/// The length of a pool beyond the longest value, in bytes: far longer than a block or a
/// compressor's view of one, so that its repetition stays unseen. db_bench's is as long, whole
/// pieces.
const POOL_BYTES: usize = (1_usize << 20).next_multiple_of(PIECE_BYTES);

/// The bits of the bytes of `half`, which are below 128.
const HALF_BITS: u8 = 0x7f;

/// db_bench's pieces, and how many bytes of each are random.
const PIECE_BYTES: usize = 100;
const PIECE_RANDOM_BYTES: usize = PIECE_BYTES / 2;

/// The stream of [`Random`] that values are made with; threads have the low numbers.
const STREAM: u64 = u64::MAX;

/// What the values of a run are made of.
#[derive(Debug)]
pub struct ValueSource(Material);

#[derive(Debug)]
enum Material {
    /// Bytes that values are cut from.
    Pool(Pool),
    /// Random bytes for what is not zero.
    Zeros {
        pool: Pool,
        share: f64,
    },
    Json(Telemetry),
    Text(LogText),
}

impl ValueSource {
    /// Makes values of at most `max_value_bytes`.
    pub fn new(kind: ValueKind, seed: u64, max_value_bytes: u32) -> Self {
        let mut random = Random::new(seed, STREAM);
        let pool_bytes = POOL_BYTES + max_value_bytes as usize;
        Self(match kind {
            ValueKind::Random => Material::Pool(Pool::random(&mut random, pool_bytes)),
            ValueKind::Half => Material::Pool(Pool::half(&mut random, pool_bytes)),
            ValueKind::Json => Material::Json(Telemetry::new(random.next_u64())),
            ValueKind::Text => Material::Text(LogText::new(&mut random)),
            ValueKind::Zeros(share) => Material::Zeros { pool: Pool::random(&mut random, pool_bytes), share },
        })
    }

    /// The values of one thread.
    pub fn values(&self) -> Values<'_> {
        Values { material: &self.0, taken: 0, buffer: Vec::new(), prepared_bytes: None, layout: Layout::default() }
    }
}

/// Bytes made in advance. A value is a part of them under a mask, one byte that follows from its
/// version: without it a dictionary trained from values would hold a twentieth of all there are,
/// and random bytes would seem to shrink.
#[derive(Debug)]
struct Pool {
    bytes: Vec<u8>,
    mask_bits: u8,
}

impl Pool {
    fn random(random: &mut Random, bytes: usize) -> Self {
        let words = (0..bytes.div_ceil(8)).flat_map(|_| random.next_u64().to_le_bytes());
        Self { bytes: words.collect(), mask_bits: u8::MAX }
    }

    fn half(random: &mut Random, min_bytes: usize) -> Self {
        let mut bytes = Vec::with_capacity(min_bytes + PIECE_BYTES);
        while bytes.len() < min_bytes {
            let begin = bytes.len();
            // As RocksDB's `RandomBinaryString`: below CHAR_MAX.
            bytes.extend((0..PIECE_RANDOM_BYTES).map(|_| random.below(127) as u8));
            bytes.extend_from_within(begin..begin + PIECE_RANDOM_BYTES);
        }
        Self { bytes, mask_bits: HALF_BITS }
    }

    /// Fills `value` with what lies at `position`, which may be any number, masked by `version`.
    fn fill(&self, position: u64, version: u64, value: &mut [u8]) {
        let mask = mix64(version) as u8 & self.mask_bits;
        let start = (position % POOL_BYTES as u64) as usize;
        for (byte, pooled) in value.iter_mut().zip(&self.bytes[start..]) {
            *byte = pooled ^ mask;
        }
    }
}

/// The values that one thread writes, in a buffer that is used again.
#[derive(Debug)]
pub struct Values<'a> {
    material: &'a Material,
    /// How many were taken by [`Values::next_value`].
    taken: u64,
    buffer: Vec<u8>,
    /// The length that what does not change in the buffer was laid out for.
    prepared_bytes: Option<u32>,
    layout: Layout,
}

impl Values<'_> {
    /// The next value that the thread writes; its version is how many it has written before.
    pub fn next_value(&mut self, key: u64, value_bytes: u32) -> &[u8] {
        self.taken += 1;
        self.value(key, self.taken - 1, value_bytes)
    }

    /// The value of a key in one of its versions, which may be any number. `value_bytes` is at most
    /// what the source was made for. Values with random bytes are the same for all keys, as
    /// db_bench's are.
    pub fn value(&mut self, key: u64, version: u64, value_bytes: u32) -> &[u8] {
        let bytes = value_bytes as usize;
        let position = version.wrapping_mul(value_bytes.into());
        let is_prepared = self.prepared_bytes.replace(value_bytes) == Some(value_bytes);
        let buffer = &mut self.buffer;
        match self.material {
            Material::Pool(pool) => {
                buffer.resize(bytes, 0);
                pool.fill(position, version, buffer);
            }
            Material::Zeros { pool, share } => {
                if !is_prepared {
                    buffer.clear();
                    buffer.resize(bytes, 0);
                }
                let zeros = (bytes as f64 * share).round() as usize;
                pool.fill(position, version, &mut buffer[..bytes - zeros]);
            }
            Material::Json(telemetry) => {
                if !is_prepared {
                    self.layout = telemetry.lay_out(bytes, buffer);
                }
                telemetry.write(key, version, &self.layout, buffer);
            }
            Material::Text(text) => {
                buffer.resize(bytes, b' ');
                text.write(key, version, buffer);
            }
        }
        &buffer[..bytes]
    }
}

#[cfg(test)]
mod tests;
