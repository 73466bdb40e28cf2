//! What is read of a table that is damaged: never anything else than what was in it, and of what is
//! not read where it was.

use std::path::{Path, PathBuf};

use crate::common::{Numbers, key, small_store};
use ecotone_rocks::salvage::{EntryKind, Item, SalvagedTable, TableEntry, manifest_edit};
use ecotone_rocks::tables::live_tables;
use rust_rocksdb::{DB, WriteBatch};

/// Versions, deletions and deletions of ranges in one table, whose path is returned.
fn table(directory: &Path) -> PathBuf {
    let db = DB::open(&small_store(), directory).expect("opens");
    for number in 0..400 {
        db.put(key(number), [number as u8; 100]).expect("writes");
    }
    let snapshot = db.snapshot();
    for number in (0..400).step_by(7) {
        db.put(key(number), [7; 20]).expect("writes");
        db.delete(key(number + 1)).expect("deletes");
    }
    let mut batch = WriteBatch::default();
    batch.delete_range(key(100), key(120));
    batch.delete_range(key(110), key(130));
    db.write(&batch).expect("deletes");
    db.flush().expect("flushes");
    drop(snapshot);
    let tables = live_tables(&db).expect("lists");
    tables[0].directory.join(&tables[0].name)
}

fn items(table: &mut SalvagedTable) -> Vec<Item> {
    let mut all = Vec::new();
    loop {
        let next = table.next_items(3000).expect("goes on");
        if next.is_empty() {
            return all;
        }
        all.extend(next);
    }
}

fn entries<'i>(items: &'i [Item]) -> Vec<&'i TableEntry> {
    let entry = |item: &'i Item| match item {
        Item::Entry(entry) => Some(entry),
        Item::Gap(_) => None,
    };
    items.iter().filter_map(entry).collect()
}

#[test]
fn a_sound_table_is_read_whole() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut opened = SalvagedTable::open(&table(directory.path())).expect("opens");
    let items = items(&mut opened);
    let (entries, description) = (entries(&items), opened.description());
    assert_eq!(entries.len(), items.len(), "no gaps");
    assert_eq!(entries.len() as u64, description.entries - description.range_deletions);
    // Where the two overlap they were cut in pieces.
    assert!(description.range_deletions >= 2);
    assert_eq!(description.range_deletions, description.range_deletions_read);
    let covered = description.deleted_ranges.iter().filter(|range| range.from <= key(115) && range.to > key(115));
    assert!(covered.count() > 0);
    let last = description.deleted_ranges.iter().find(|range| range.from <= key(129) && range.to > key(129));
    assert_eq!(last.map(|range| range.sequence), Some(400 + 2 * 58 + 2), "the second one, newer than all else");
    assert_eq!(description.first_key.as_deref(), Some(&key(0)[..]));
    assert!(description.last_key.as_deref() >= Some(&key(400)[..]));
    assert_eq!(description.column_family, "default");
    let ordered = |one: &&TableEntry, other: &&TableEntry| {
        one.key < other.key || one.key == other.key && one.sequence > other.sequence
    };
    assert!(entries.is_sorted_by(ordered));
    let of_seven: Vec<_> = entries.iter().filter(|entry| entry.key == key(7)).collect();
    assert_eq!(of_seven.len(), 2, "each version");
    assert_eq!((of_seven[0].kind, &of_seven[0].value[..]), (EntryKind::Put, &[7; 20][..]));
    assert_eq!(of_seven[1].value, [7; 100]);
    let deletions = entries.iter().filter(|entry| entry.kind == EntryKind::Delete).count();
    assert_eq!(deletions, 54, "58, but for those that a deletion of a range has shadowed since");
}

#[test]
fn what_is_read_of_a_damaged_table_was_in_it_and_the_rest_lies_in_the_gaps() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = table(directory.path());
    let sound = std::fs::read(&path).expect("reads");
    let all = items(&mut SalvagedTable::open(&path).expect("opens"));
    let (mut numbers, mut partial, mut refused) = (Numbers(5), 0, 0);
    for round in 0..1500 {
        let mut bytes = sound.clone();
        for _ in 0..1 + round % 3 {
            let at = numbers.below(sound.len() as u64) as usize;
            bytes[at] ^= 1 << numbers.below(8);
        }
        if round % 10 == 0 {
            bytes.truncate(numbers.below(sound.len() as u64) as usize);
        }
        std::fs::write(&path, &bytes).expect("writes");
        let Ok(mut opened) = SalvagedTable::open(&path) else {
            refused += 1;
            continue;
        };
        let found = items(&mut opened);
        let read = entries(&found);
        partial += u64::from(found.len() > read.len());
        let mut rest = read.iter();
        let mut next = rest.next();
        for entry in entries(&all) {
            if next == Some(&entry) {
                next = rest.next();
                continue;
            }
            let told = found.iter().any(|item| match item {
                Item::Entry(_) => false,
                Item::Gap(gap) => gap.after <= entry.key && gap.to.as_ref().is_none_or(|to| *to >= entry.key),
            });
            assert!(told, "round {round}: {entry:?}");
        }
        assert_eq!(next, None, "round {round}: an entry that was not there");
    }
    assert!(partial > 500 && refused > 100, "{partial} {refused}");
}

#[test]
fn what_is_no_table_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("000001.sst");
    SalvagedTable::open(&path).expect_err("missing");
    SalvagedTable::open(directory.path()).expect_err("a directory");
    for bytes in [0, 1, 53, 5000] {
        std::fs::write(&path, Numbers(1).bytes(bytes)).expect("writes");
        SalvagedTable::open(&path).expect_err("noise");
    }
}

#[test]
fn a_manifest_tells_which_tables_there_are_and_noise_tells_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    drop(table(directory.path()));
    let db = DB::open(&small_store(), directory.path()).expect("opens");
    db.compact_range(None::<&[u8]>, None::<&[u8]>);
    let live = live_tables(&db).expect("lists");
    let manifest = std::fs::read_dir(directory.path()).expect("lists").map(|entry| entry.expect("lists").path());
    let manifest = manifest.filter(|path| path.to_string_lossy().contains("MANIFEST-")).max().expect("there is one");
    let bytes = std::fs::read(manifest).expect("reads");
    let mut named = std::collections::BTreeMap::new();
    let mut at = 0;
    let mut numbers = Numbers(2);
    while at + 7 <= bytes.len() {
        // Each record is one fragment: the file is short.
        let length = usize::from(u16::from_le_bytes([bytes[at + 4], bytes[at + 5]]));
        let record = &bytes[at + 7..at + 7 + length];
        at += 7 + length;
        let edit = manifest_edit(record).expect("is one");
        edit.removed.iter().for_each(|number| drop(named.remove(number)));
        named.extend(edit.added.into_iter().map(|table| (table.number, table)));
        for _ in 0..2000 {
            let mut noise = record.to_vec();
            if let Some(byte) = noise.get_mut(numbers.below(length.max(1) as u64) as usize) {
                *byte ^= 1 + numbers.below(255) as u8;
            }
            noise.truncate(numbers.below(2 * length as u64 + 1) as usize);
            // Anything but a crash: its checksum is not its own concern.
            drop(manifest_edit(&noise));
        }
    }
    assert_eq!(named.len(), live.len());
    for table in live {
        let found = &named[&table.file_number];
        assert_eq!((found.level, found.bytes), (table.level, table.bytes));
        assert_eq!((&found.smallest, &found.largest), (&table.smallest_user_key, &table.largest_user_key));
        assert_eq!(found.largest_sequence, table.largest_seqno);
    }
}
