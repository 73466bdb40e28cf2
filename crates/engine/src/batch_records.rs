//! What stands in a RocksDB write batch that comes from a WAL, read from its bytes.
//!
//! The C API's iteration stops without a word at a range deletion, and what follows would be
//! overlooked. So the format is read here (`db/write_batch.cc`): 8 bytes sequence, 4 bytes count,
//! then records of a tag, a column family where the tag says so, and one or two strings with a
//! varint32 length before each.
//!
//! A tag that is not known is an error, never skipped: its length is not known either.

/// What stands before the first record: the sequence number of the first write, and how many there
/// are.
pub(crate) const BATCH_HEADER_BYTES: usize = 12;

/// One record of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record<'b> {
    /// A value is set.
    Put {
        /// The column family.
        family: u32,
        /// The key.
        key: &'b [u8],
        /// The stored value.
        value: &'b [u8],
    },
    /// A key is removed.
    Delete {
        /// The key.
        key: &'b [u8],
    },
    /// A range is removed.
    DeleteRange {
        /// The first key of it.
        from: &'b [u8],
        /// The key before which it ends.
        to: &'b [u8],
    },
    /// What our stores do not write.
    Other,
}

/// Bytes that are no batch, or a batch with a record that this version does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

/// The sequence number of the batch's first write, and that behind its last one.
///
/// # Errors
///
/// [`Malformed`] where `bytes` have no header, or an impossible number.
pub fn sequences(bytes: &[u8]) -> Result<std::ops::Range<u64>, Malformed> {
    let [sequence @ .., a, b, c, d] = *bytes.first_chunk::<BATCH_HEADER_BYTES>().ok_or(Malformed)?;
    let first = u64::from_le_bytes(sequence);
    let end = first.checked_add(u32::from_le_bytes([a, b, c, d]).into()).ok_or(Malformed)?;
    Ok(first..end)
}

/// The records of the batch that `bytes` are. Ends after the first error.
pub fn records(bytes: &[u8]) -> Records<'_> {
    Records { rest: Some(bytes.get(BATCH_HEADER_BYTES..).ok_or(Malformed)) }
}

/// See [`records`].
pub struct Records<'b> {
    /// `None` after an error.
    rest: Option<Result<&'b [u8], Malformed>>,
}

impl<'b> Iterator for Records<'b> {
    type Item = Result<Record<'b>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut rest = match self.rest.take()? {
            Ok([]) => return None,
            Ok(rest) => rest,
            Err(malformed) => return Some(Err(malformed)),
        };
        let record = parse(&mut rest);
        self.rest = record.is_some().then_some(Ok(rest));
        Some(record.ok_or(Malformed))
    }
}

/// Tags of `db/dbformat.h`.
mod tag {
    pub(super) const DELETION: u8 = 0x0;
    pub(super) const VALUE: u8 = 0x1;
    pub(super) const MERGE: u8 = 0x2;
    pub(super) const LOG_DATA: u8 = 0x3;
    pub(super) const FAMILY_DELETION: u8 = 0x4;
    pub(super) const FAMILY_VALUE: u8 = 0x5;
    pub(super) const FAMILY_MERGE: u8 = 0x6;
    pub(super) const SINGLE_DELETION: u8 = 0x7;
    pub(super) const FAMILY_SINGLE_DELETION: u8 = 0x8;
    pub(super) const NOOP: u8 = 0xD;
    pub(super) const FAMILY_RANGE_DELETION: u8 = 0xE;
    pub(super) const RANGE_DELETION: u8 = 0xF;
}

fn parse<'b>(rest: &mut &'b [u8]) -> Option<Record<'b>> {
    let (&found, after) = rest.split_first()?;
    *rest = after;
    let family = match found {
        tag::FAMILY_DELETION
        | tag::FAMILY_VALUE
        | tag::FAMILY_MERGE
        | tag::FAMILY_SINGLE_DELETION
        | tag::FAMILY_RANGE_DELETION => varint32(rest)?,
        _ => 0,
    };
    Some(match found {
        tag::VALUE | tag::FAMILY_VALUE => Record::Put { family, key: string(rest)?, value: string(rest)? },
        tag::DELETION | tag::FAMILY_DELETION => Record::Delete { key: string(rest)? },
        tag::RANGE_DELETION | tag::FAMILY_RANGE_DELETION => {
            Record::DeleteRange { from: string(rest)?, to: string(rest)? }
        }
        tag::MERGE | tag::FAMILY_MERGE => {
            string(rest)?;
            string(rest)?;
            Record::Other
        }
        tag::SINGLE_DELETION | tag::FAMILY_SINGLE_DELETION | tag::LOG_DATA => {
            string(rest)?;
            Record::Other
        }
        tag::NOOP => Record::Other,
        _ => return None,
    })
}

fn varint32(rest: &mut &[u8]) -> Option<u32> {
    let mut number = 0_u64;
    for shift in [0, 7, 14, 21, 28] {
        let (&byte, after) = rest.split_first()?;
        *rest = after;
        number |= u64::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            return u32::try_from(number).ok();
        }
    }
    None
}

fn string<'b>(rest: &mut &'b [u8]) -> Option<&'b [u8]> {
    let bytes = varint32(rest)? as usize;
    let (string, after) = rest.split_at_checked(bytes)?;
    *rest = after;
    Some(string)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutation::mutated;
    use proptest::prelude::*;
    use rust_rocksdb::WriteBatch;

    #[test]
    fn reads_what_rocksdb_writes() {
        let mut batch = WriteBatch::default();
        assert_eq!(records(batch.data()).count(), 0);
        let long = vec![7; 70_000];
        batch.put(b"a", b"1");
        batch.delete_range(b"b", b"c");
        batch.delete(b"d");
        batch.put_log_data(b"log");
        batch.put(b"e", &long);
        let found: Vec<_> = records(batch.data()).map(Result::unwrap).collect();
        assert_eq!(
            found,
            [
                Record::Put { family: 0, key: b"a", value: b"1" },
                Record::DeleteRange { from: b"b", to: b"c" },
                Record::Delete { key: b"d" },
                Record::Other,
                Record::Put { family: 0, key: b"e", value: &long },
            ]
        );
    }

    #[test]
    fn a_tag_that_is_not_known_ends_it_with_an_error() {
        let mut bytes = vec![0; BATCH_HEADER_BYTES];
        bytes.extend([tag::DELETION, 1, b'k', 0x42, 1, b'k']);
        let found: Vec<_> = records(&bytes).collect();
        assert_eq!(found, [Ok(Record::Delete { key: b"k" }), Err(Malformed)]);
    }

    #[test]
    fn a_mutated_batch_is_read_within_its_bytes_or_refused() {
        let mut batch = WriteBatch::default();
        batch.put(b"a", b"1");
        batch.delete_range(b"b", b"c");
        batch.delete(b"d");
        batch.put_log_data(b"log");
        batch.put(b"e", [7; 300]);
        let original = batch.data().to_vec();
        mutated(std::slice::from_ref(&original), |bytes, _| {
            let (mut found, mut strings) = (Vec::new(), BATCH_HEADER_BYTES);
            for record in records(&bytes) {
                strings += match record {
                    Ok(Record::Put { key, value, .. }) => 3 + key.len() + value.len(),
                    Ok(Record::Delete { key }) => 2 + key.len(),
                    Ok(Record::DeleteRange { from, to }) => 3 + from.len() + to.len(),
                    Ok(Record::Other) => 1,
                    Err(Malformed) => 0,
                };
                found.push(record);
            }
            assert!(strings <= bytes.len() || found.last() == Some(&Err(Malformed)), "{strings} of {}", bytes.len());
            assert!(found.iter().rev().skip(1).all(Result::is_ok), "nothing follows an error");
            assert!(bytes != original || found.len() == 5);
        });
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let found: Vec<_> = records(&bytes).collect();
            prop_assert!(found.iter().rev().skip(1).all(Result::is_ok), "nothing follows an error");
        }

        #[test]
        fn a_cut_batch_is_refused(cut in 1..20_usize) {
            let mut batch = WriteBatch::default();
            batch.put(b"key", b"a value of some length");
            let data = batch.data();
            prop_assert_eq!(records(&data[..data.len() - cut]).next(), Some(Err(Malformed)));
        }
    }
}
