//! How much of what tables hold a reader still finds, from a few thousand keys.
//!
//! What is overwritten, deleted one by one or as a range, or expired takes its place in tables
//! until a compaction has met it, and nothing in a table says so. So some stretches of keys are
//! read as a reader would, without values, and it is asked how many bytes of tables lie there: as
//! many as so many keys take, or many more.
//!
//! Error: RocksDB tells bytes in whole blocks at both ends of a stretch, a tenth of the usual
//! stretch, and stretches are drawn over the bytes of the tables: a share of a half is off by a
//! tenth or so. Where garbage lies in a few places of a large store only, stretches may miss it:
//! then it is found as it grows, or by RocksDB.
//!
//! Bounds: [`MAX_STRETCHES`] of [`STRETCH_KEYS`] keys; [`MAX_SKIPPED`] entries that are gone are
//! stepped over for each. What is read stays out of the block cache.

use ecotone_rocks::tables::FamilyTable;
use rust_rocksdb::{DB, ErrorKind, Range, ReadOptions};

use crate::expired::ExpiredAtBegin;
use crate::family::DataFamily;
use crate::header::Header;
use crate::{Error, Result};

/// Places that are looked at.
const MAX_STRETCHES: u64 = 16;

/// Keys that are read at each.
const STRETCH_KEYS: u64 = 1000;

/// Entries that are gone in a row: more are not stepped over.
const MAX_SKIPPED: u64 = 100_000;

/// The share, 0 to 1, of the bytes of `tables` that a reader finds; 1 where there is nothing. What
/// `expired` takes is not found.
pub(crate) fn live_share(
    db: &DB,
    family: DataFamily,
    tables: &[FamilyTable],
    expired: Option<&ExpiredAtBegin>,
) -> Result<f64> {
    let bytes: u64 = tables.iter().map(|table| table.bytes).sum();
    // Deletions take next to nothing: what is found is compared with what was put.
    let puts: u64 = tables.iter().map(|table| table.entries.saturating_sub(table.deletions)).sum();
    if bytes == 0 {
        return Ok(1.0);
    }
    if puts == 0 {
        // Deletions only, or nobody knows.
        return Ok(if tables.iter().any(|table| table.entries > 0) { 0.0 } else { 1.0 });
    }
    let put_bytes = bytes as f64 / puts as f64;
    let (mut sum, mut places) = (0.0, 0_u32);
    for (table, from) in places_in(tables, bytes) {
        let Some(share) = of_stretch(db, family, (&from, &table.largest_user_key), put_bytes, expired)? else {
            continue;
        };
        sum += share;
        places += 1;
    }
    Ok(if places > 0 { sum / f64::from(places) } else { 1.0 })
}

/// Where to begin, each with the table that the place was drawn in: evenly over the bytes of all
/// tables.
fn places_in(tables: &[FamilyTable], bytes: u64) -> Vec<(&FamilyTable, Vec<u8>)> {
    let mut places = Vec::new();
    let mut behind = 0;
    for table in tables {
        let place = |number: u64| (2 * number + 1) * bytes / (2 * MAX_STRETCHES);
        let inside = (0..MAX_STRETCHES).map(place).filter(|at| (behind..behind + table.bytes).contains(at));
        places.extend(inside.map(|at| {
            let share = (at - behind) as f64 / table.bytes.max(1) as f64;
            (table, key_between(&table.smallest_user_key, &table.largest_user_key, share))
        }));
        behind += table.bytes;
    }
    places
}

/// A key that lies this share, 0 to 1, of the way from one to the other, in the order of their
/// bytes.
fn key_between(from: &[u8], to: &[u8], share: f64) -> Vec<u8> {
    let common = from.iter().zip(to).take_while(|(one, other)| one == other).count();
    let number = |key: &[u8]| {
        let mut bytes = [0; 8];
        let rest = &key[common..];
        let taken = rest.len().min(8);
        bytes[..taken].copy_from_slice(&rest[..taken]);
        u64::from_be_bytes(bytes)
    };
    let (first, last) = (number(from), number(to));
    let between = first.saturating_add((last.saturating_sub(first) as f64 * share.clamp(0.0, 1.0)) as u64);
    let key = [&from[..common], &between.to_be_bytes()].concat();
    // It lost what stood behind those eight bytes.
    key.max(from.to_vec())
}

/// The share that is found of what lies from one key on, at most up to the other; `None` where
/// nothing does.
fn of_stretch(
    db: &DB,
    family: DataFamily,
    (from, last): (&[u8], &[u8]),
    put_bytes: f64,
    expired: Option<&ExpiredAtBegin>,
) -> Result<Option<f64>> {
    let mut end = [last, &[0]].concat();
    if *from >= *end {
        return Ok(None);
    }
    let mut options = ReadOptions::default();
    options.fill_cache(false);
    options.set_iterate_lower_bound(from);
    options.set_iterate_upper_bound(end.clone());
    options.set_max_skippable_internal_keys(MAX_SKIPPED);
    let mut rows = db.raw_iterator_cf_opt(&family, options);
    rows.seek_to_first();
    let (mut found, mut seen) = (0_u64, 0_u64);
    while let Some((key, stored)) = rows.item() {
        let is_over = match (expired, Header::decode(stored)) {
            (Some(expired), Ok(header)) => expired.is_over(&header.attributes),
            _ => false,
        };
        found += u64::from(!is_over);
        seen += 1;
        if seen == STRETCH_KEYS {
            end = key.to_vec();
            break;
        }
        rows.next();
    }
    let entries = match rows.status() {
        Err(error) if error.kind() == ErrorKind::Incomplete => (seen + MAX_SKIPPED) as f64,
        Err(error) => return Err(Error::from_rocks(&error)),
        Ok(()) => {
            let bytes = db.get_approximate_sizes_cf(&family, &[Range::new(from, &end)]);
            let bytes: u64 = bytes.map_err(|error| Error::from_rocks(&error))?.iter().sum();
            bytes as f64 / put_bytes
        }
    };
    if entries <= 0.0 && found == 0 {
        return Ok(None);
    }
    Ok(Some((found as f64 / entries.max(1.0)).min(1.0)))
}

#[cfg(test)]
mod tests {
    use ecotone_rocks::tables::family_tables;

    use super::*;
    use crate::expired::ExpiredValues;
    use crate::{Attributes, OpenMode, Store, StoreSettings, WriteOptions};

    /// Spread as a keyspace's keys are.
    fn key(number: u32) -> [u8; 8] {
        (u64::from(number).wrapping_mul(0x9E37_79B9_7F4A_7C15)).to_be_bytes()
    }

    fn share(store: &Store) -> f64 {
        store.flush(true).unwrap();
        let tables = family_tables(&store.db, &store.family).unwrap();
        live_share(&store.db, store.family, &tables, Some(&ExpiredValues.at_begin())).unwrap()
    }

    #[test]
    fn what_is_overwritten_deleted_or_expired_is_not_found() {
        let directory = tempfile::tempdir().unwrap();
        let options = StoreSettings {
            l0_compaction_trigger: 100,
            l0_slowdown_trigger: 200,
            l0_stop_trigger: 300,
            ..StoreSettings::default()
        };
        let store = Store::open(&directory.path().join("store"), OpenMode::Create, options).unwrap();
        let about = |wanted: f64, what: &str| {
            let found = share(&store);
            // Few keys are left at times, and one place in 16 may lie at the edge of what is gone.
            assert!((found - wanted).abs() < 0.2, "{what}: {found} instead of {wanted}");
        };
        assert_eq!(share(&store), 1.0);
        let value = |number: u32| [key(number); 12].concat();
        let put =
            |numbers: std::ops::Range<u32>| numbers.for_each(|number| store.put(&key(number), &value(number)).unwrap());
        put(0..100_000);
        about(1.0, "all is there");
        store.compact(..).unwrap();
        about(1.0, "and in the last level");
        put(0..100_000);
        about(0.5, "all is overwritten");
        (0..75_000).for_each(|number| store.delete(&key(number)).unwrap());
        about(0.125, "three quarters are deleted");
        store.compact(..).unwrap();
        about(1.0, "a compaction has met that");
        store.delete_range(&[0x80][..]..).unwrap();
        about(0.5, "half of the order was removed");
        store.delete_range(..).unwrap();
        about(0.0, "all was");
        store.compact(..).unwrap();
        let mut batch = crate::Batch::new();
        for number in 0..100_000 {
            let expires_at_ms = (number % 4 > 0).then_some(1);
            batch.put_with(&key(number), &value(number), &Attributes { expires_at_ms, ..Attributes::NONE }).unwrap();
        }
        store.write(&batch, WriteOptions::default()).unwrap();
        about(0.25, "three quarters have expired");
    }

    #[test]
    fn keys_lie_between_those_that_they_are_drawn_from() {
        for (from, to) in [
            (&b"a"[..], &b"b"[..]),
            (b"", b"\xff"),
            (b"abc", b"abc"),
            (b"k\x00\x01zzzzzzzzzzz", b"k\x00\x01zzzzzzzzzzzzz"),
        ] {
            let keys: Vec<_> = (0..=4).map(|quarter| key_between(from, to, f64::from(quarter) / 4.0)).collect();
            assert!(keys.is_sorted() && keys.iter().all(|key| **key >= *from), "{keys:?}");
            assert!(from == to || keys[..4].iter().all(|key| **key < *to), "{keys:?}");
        }
    }
}
