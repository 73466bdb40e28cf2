//! How entries, snapshots, messages and records become bytes, and are read again.
//!
//! Numbers are varints (LEB128, at most ten bytes), texts and bytes have their length before them.
//! What is read comes from a disk or a peer: each length is compared with a named limit before
//! anything is allocated, and bytes that are left over are an error.

/// Bytes that cannot be what they should be. Refuse them: reading them again gives the same.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {problem}")]
pub struct Malformed {
    /// What was being read.
    pub what: &'static str,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What is wrong with bytes that were read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// They end before what they should hold does.
    #[error("the bytes end too early")]
    Ends,
    /// More follows than belongs there.
    #[error("{0} bytes too many")]
    Trailing(usize),
    /// Longer, or more of them, than the limit.
    #[error("{found} is more than the limit of {limit}")]
    TooMany {
        /// What the bytes say.
        found: u64,
        /// What is allowed.
        limit: u64,
    },
    /// Not a value that it may have.
    #[error("{0} is no valid value")]
    Value(u64),
    /// Text that is not UTF-8, or not a name.
    #[error("not a valid text")]
    Text,
    /// Written by a version that this build does not know: update it.
    #[error("version {0} is not known to this build")]
    Version(u64),
    /// The checksum is another.
    #[error("the checksum does not match")]
    Checksum,
    /// The parts do not fit together.
    #[error("{0}")]
    Inconsistent(String),
}

impl Malformed {
    /// What was being read, and what is wrong with it.
    pub fn new(what: &'static str, problem: Problem) -> Self {
        Self { what, problem }
    }
}

/// Collects bytes.
#[derive(Debug, Default)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Nothing yet, with memory for so many bytes.
    pub fn with_capacity(bytes: usize) -> Self {
        Self(Vec::with_capacity(bytes))
    }

    /// What was collected.
    pub fn done(self) -> Vec<u8> {
        self.0
    }

    /// One byte.
    pub fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    /// A number, as short as it can be.
    pub fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    /// How many of something follow.
    pub fn count(&mut self, count: usize) {
        self.number(count as u64);
    }

    /// Yes or no.
    pub fn flag(&mut self, flag: bool) {
        self.byte(u8::from(flag));
    }

    /// Bytes whose length the reader knows.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Bytes behind their length.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.raw(bytes);
    }

    /// Text behind its length.
    pub fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }
}

/// Takes bytes apart.
#[derive(Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Reader<'a> {
    /// Reads `bytes`, which errors call `what`.
    pub fn new(bytes: &'a [u8], what: &'static str) -> Self {
        Self { rest: bytes, what }
    }

    /// An error about what is being read.
    pub fn wrong(&self, problem: Problem) -> Malformed {
        Malformed::new(self.what, problem)
    }

    /// Nothing may be left over.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn end(self) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.wrong(Problem::Trailing(self.rest.len()))) }
    }

    /// Whether all was read.
    pub fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// One byte.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn byte(&mut self) -> Result<u8, Malformed> {
        let (first, rest) = self.rest.split_first().ok_or_else(|| self.wrong(Problem::Ends))?;
        self.rest = rest;
        Ok(*first)
    }

    /// A number. Each has one encoding.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn number(&mut self) -> Result<u64, Malformed> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            // The tenth byte has room for one bit, and a last byte of zero says nothing.
            if shift == 63 && byte > 1 || shift > 0 && byte == 0 {
                return Err(self.wrong(Problem::Value(u64::from(byte))));
            }
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(self.wrong(Problem::Value(number)))
    }

    /// A number of at most `limit`.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn at_most(&mut self, limit: u64) -> Result<u64, Malformed> {
        let found = self.number()?;
        if found > limit { Err(self.wrong(Problem::TooMany { found, limit })) } else { Ok(found) }
    }

    /// A number of 32 bits.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn small(&mut self) -> Result<u32, Malformed> {
        let found = self.at_most(u64::from(u32::MAX))?;
        Ok(found as u32)
    }

    /// How many of something follow: at most `limit`, and no more than the bytes that are there.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn count(&mut self, limit: usize) -> Result<usize, Malformed> {
        let count = self.at_most(limit as u64)? as usize;
        if count > self.rest.len() { Err(self.wrong(Problem::Ends)) } else { Ok(count) }
    }

    /// Yes or no.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn flag(&mut self) -> Result<bool, Malformed> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(self.wrong(Problem::Value(u64::from(other)))),
        }
    }

    /// So many bytes.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn raw(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or_else(|| self.wrong(Problem::Ends))?;
        self.rest = rest;
        Ok(taken)
    }

    /// As many bytes as fit.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let mut array = [0; N];
        array.copy_from_slice(self.raw(N)?);
        Ok(array)
    }

    /// Bytes behind their length, at most `limit`.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn bytes(&mut self, limit: usize) -> Result<Vec<u8>, Malformed> {
        let length = self.count(limit)?;
        Ok(self.raw(length)?.to_vec())
    }

    /// Text behind its length, at most `limit` bytes.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn text(&mut self, limit: usize) -> Result<String, Malformed> {
        let bytes = self.bytes(limit)?;
        String::from_utf8(bytes).map_err(|_| self.wrong(Problem::Text))
    }
}

/// `body` behind a magic number, a version and its checksum.
pub fn seal(magic: &[u8; 4], version: u8, body: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::with_capacity(body.len() + 9);
    sealed.extend_from_slice(magic);
    sealed.push(version);
    sealed.extend_from_slice(&checksum(version, body).to_le_bytes());
    sealed.extend_from_slice(body);
    sealed
}

/// The body of what [`seal`] made.
///
/// # Errors
/// [`Malformed`].
pub fn unseal<'a>(magic: &[u8; 4], version: u8, bytes: &'a [u8], what: &'static str) -> Result<&'a [u8], Malformed> {
    let mut reader = Reader::new(bytes, what);
    let found: [u8; 4] = reader.array()?;
    if found != *magic {
        return Err(reader.wrong(Problem::Checksum));
    }
    let found = reader.byte()?;
    let sum = u32::from_le_bytes(reader.array()?);
    // Checked first: a flipped bit in the version is damage, not another build's file.
    if checksum(found, reader.rest) != sum {
        return Err(reader.wrong(Problem::Checksum));
    }
    if found != version {
        return Err(reader.wrong(Problem::Version(u64::from(found))));
    }
    Ok(reader.rest)
}

fn checksum(version: u8, body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&[version]), body)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_are_read_as_written(number in any::<u64>()) {
            let mut writer = Writer::new();
            writer.number(number);
            let bytes = writer.done();
            let mut reader = Reader::new(&bytes, "a number");
            prop_assert_eq!(reader.number(), Ok(number));
            prop_assert!(reader.end().is_ok());
        }

        #[test]
        fn any_bytes_are_a_number_in_one_way_only(bytes in prop::collection::vec(any::<u8>(), 0..12)) {
            let mut reader = Reader::new(&bytes, "a number");
            if let Ok(number) = reader.number() {
                let mut writer = Writer::new();
                writer.number(number);
                let written = writer.done();
                prop_assert_eq!(&bytes[..written.len()], &written[..]);
            }
        }
    }

    #[test]
    fn a_flipped_bit_breaks_the_seal() {
        let sealed = seal(b"test", 3, b"body");
        assert_eq!(unseal(b"test", 3, &sealed, "it"), Ok(&b"body"[..]));
        for bit in 0..sealed.len() * 8 {
            let mut flipped = sealed.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(
                unseal(b"test", 3, &flipped, "it").map_err(|error| error.problem),
                Err(Problem::Checksum),
                "bit {bit}"
            );
        }
        let newer = seal(b"test", 4, b"body");
        let newer = unseal(b"test", 3, &newer, "it");
        assert_eq!(newer.map_err(|error| error.problem), Err(Problem::Version(4)));
    }
}
