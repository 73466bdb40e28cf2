//! A primary's directory, changed by hand as a store changes it, and the items that come of it.

#![allow(clippy::unwrap_used)] // a test

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ecotone_control::ids::Epoch;
use ecotone_io::tap::{CopiedRange, TapEvent, WriteTap};
use ecotone_mirror::catalog::Catalog;
use ecotone_mirror::error::Error;
use ecotone_mirror::names::{FileName, beside};
use ecotone_mirror::recipe::{Recipe, Step, spared_bytes};
use ecotone_mirror::source::{MIN_SYNC_DISTANCE, Sink, Source};
use ecotone_replica::position::{Mark, Position};
use ecotone_replica::stream::{ContentId, FileKind, Item, Kind, MAX_ITEM_BYTES};
use proptest::prelude::*;
use twox_hash::XxHash3_128;

const CLOCK_LIMIT_MS: u64 = 77;

/// The stream of a primary.
struct Stream {
    items: Mutex<Vec<Item>>,
    is_primary: AtomicBool,
}

impl Stream {
    fn begin() -> Mark {
        Mark::default().open(Epoch(3))
    }
}

impl Sink for Stream {
    fn append(&self, kind: Kind, bytes: u64, checksum: u32) -> Option<Position> {
        let items = &mut *self.items.lock().unwrap();
        let item = Item::behind(items.last().map_or(Self::begin(), Item::mark), kind, bytes, checksum);
        self.is_primary.load(Ordering::Relaxed).then(|| {
            items.push(item);
            item.position
        })
    }

    fn mark(&self) -> (Mark, u64) {
        (self.items.lock().unwrap().last().map_or(Self::begin(), Item::mark), CLOCK_LIMIT_MS)
    }
}

/// A store's directory, each change of which the source sees.
struct Primary {
    _above: tempfile::TempDir,
    store: PathBuf,
    stream: Arc<Stream>,
    source: Arc<Source>,
}

impl Primary {
    fn new() -> Self {
        let above = tempfile::tempdir().unwrap();
        let store = above.path().join("store");
        fs::create_dir_all(store.join("values")).unwrap();
        let (stream, source) = Self::open(&store);
        Self { _above: above, store, stream, source }
    }

    fn open(store: &Path) -> (Arc<Stream>, Arc<Source>) {
        let stream = Arc::new(Stream { items: Mutex::default(), is_primary: AtomicBool::new(true) });
        let source = Source::new(store, stream.clone()).unwrap();
        (stream, source)
    }

    /// Opens it again, as a new process would.
    fn reopen(&mut self) {
        (self.stream, self.source) = Self::open(&self.store);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.store.join(name)
    }

    fn tell(&self, event: TapEvent<'_>) {
        self.source.record(event).unwrap();
    }

    fn create(&self, name: &str) {
        let path = self.path(name);
        File::create(&path).unwrap();
        self.tell(TapEvent::Created { path: &path });
    }

    fn write(&self, name: &str, offset: u64, bytes: &[u8]) {
        let path = self.path(name);
        OpenOptions::new().write(true).open(&path).unwrap().write_all_at(bytes, offset).unwrap();
        self.tell(TapEvent::Appended { path: &path, offset, bytes });
    }

    /// Of what is appended next, this is a copy.
    fn copied(&self, name: &str, ranges: &[CopiedRange]) {
        assert!(self.source.follows_copies());
        self.source.copied(&self.path(name), ranges);
    }

    fn append(&self, name: &str, bytes: &[u8]) {
        self.write(name, self.len(name), bytes);
    }

    fn len(&self, name: &str) -> u64 {
        fs::metadata(self.path(name)).unwrap().len()
    }

    fn sync(&self, name: &str) {
        self.sync_to(name, self.len(name));
    }

    fn sync_to(&self, name: &str, len: u64) {
        self.tell(TapEvent::Synced { path: &self.path(name), len });
    }

    fn close(&self, name: &str) {
        self.tell(TapEvent::Closed { path: &self.path(name), len: self.len(name) });
    }

    /// A file that is written, synced and closed.
    fn make(&self, name: &str, bytes: &[u8]) {
        self.create(name);
        self.append(name, bytes);
        self.sync(name);
        self.close(name);
    }

    fn delete(&self, name: &str) {
        let path = self.path(name);
        fs::remove_file(&path).unwrap();
        self.tell(TapEvent::Deleted { path: &path });
    }

    fn cut(&self, name: &str, len: u64) {
        let path = self.path(name);
        OpenOptions::new().write(true).open(&path).unwrap().set_len(len).unwrap();
        self.tell(TapEvent::Truncated { path: &path, len });
    }

    fn rename(&self, from: &str, to: &str) {
        let (from, to) = (self.path(from), self.path(to));
        fs::rename(&from, &to).unwrap();
        self.tell(TapEvent::Renamed { from: &from, to: &to });
    }

    fn set_current(&self, manifest: u64) {
        self.make("000099.dbtmp", format!("MANIFEST-{manifest:06}\n").as_bytes());
        self.rename("000099.dbtmp", "CURRENT");
    }

    /// With a MANIFEST and a `CURRENT`, as an opening leaves it.
    fn opened() -> Self {
        let primary = Self::new();
        primary.create("MANIFEST-000001");
        primary.append("MANIFEST-000001", b"snapshot");
        primary.sync("MANIFEST-000001");
        primary.set_current(1);
        primary
    }

    fn items(&self) -> Vec<Item> {
        self.stream.items.lock().unwrap().clone()
    }

    /// Kinds of all items but `Sync`, of which there are more or fewer by the clock.
    fn kinds(&self) -> Vec<Kind> {
        self.items().iter().map(|item| item.kind).filter(|kind| *kind != Kind::Sync).collect()
    }

    fn trim_all(&self) {
        self.source.trim(self.stream.mark().0.position.number + 1);
    }

    /// Files that are held beside the store, but for offers.
    fn kept(&self) -> usize {
        fs::read_dir(beside(&self.store, "kept")).unwrap().count()
    }

    fn bytes_of(&self, kind: Kind) -> Result<Vec<u8>, Error> {
        let item = self.items().into_iter().find(|item| item.kind == kind).unwrap();
        self.source.read(&item)
    }
}

fn named(kind: FileKind, number: u64) -> FileName {
    FileName { kind, number }
}

fn append(file: FileKind, number: u64, offset: u64) -> Kind {
    Kind::Append { file, number, offset }
}

fn finished(file: FileKind, number: u64, bytes: &[u8]) -> Kind {
    Kind::Finished { file, number, content: content(bytes) }
}

fn delete(file: FileKind, number: u64) -> Kind {
    Kind::Delete { file, number }
}

fn content(bytes: &[u8]) -> ContentId {
    ContentId { len: bytes.len() as u64, hash: XxHash3_128::oneshot(bytes) }
}

/// Bytes of which no two pieces are the same.
fn varied(len: usize) -> Vec<u8> {
    (0..len as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 23) as u8).collect()
}

use FileKind::{Current, Manifest, Segment, Store, Table, Wal};

#[test]
fn bytes_of_logs_are_items_at_once_in_the_order_of_the_appends_and_long_ones_are_several() {
    let primary = Primary::new();
    let long = varied(2 * MAX_ITEM_BYTES + 5);
    primary.create("values/000001.segment");
    primary.create("000004.log");
    primary.append("values/000001.segment", b"value");
    primary.append("000004.log", b"key");
    primary.append("values/000001.segment", &long);
    primary.append("000004.log", b"");
    primary.append("000004.log", b"its key");
    let piece = MAX_ITEM_BYTES as u64;
    let expected = [
        append(Segment, 1, 0),
        append(Wal, 4, 0),
        append(Segment, 1, 5),
        append(Segment, 1, 5 + piece),
        append(Segment, 1, 5 + 2 * piece),
        append(Wal, 4, 3),
    ];
    assert_eq!(primary.kinds(), expected);
    // Reserved space follows what was appended, as where it is mapped.
    for name in ["values/000001.segment", "000004.log"] {
        OpenOptions::new().write(true).open(primary.path(name)).unwrap().set_len(4 << 20).unwrap();
    }
    let bytes: Vec<_> = primary.items().iter().map(|item| primary.source.read(item).unwrap()).collect();
    assert_eq!(bytes[..2], [&b"value"[..], b"key"]);
    assert!(bytes[2..5].concat() == long);
    assert_eq!(bytes[5], b"its key");
}

#[test]
fn a_manifest_is_an_item_up_to_what_is_synced_and_current_comes_behind_it() {
    let primary = Primary::new();
    primary.create("MANIFEST-000005");
    primary.append("MANIFEST-000005", b"snapshot");
    primary.append("MANIFEST-000005", b"edit");
    assert_eq!(primary.kinds(), []);
    primary.sync_to("MANIFEST-000005", 8);
    primary.set_current(5);
    primary.append("MANIFEST-000005", b"another");
    primary.make("000007.sst", b"table");
    primary.sync("MANIFEST-000005");
    primary.sync("MANIFEST-000005");
    let expected = [
        append(Manifest, 5, 0),
        Kind::Put { file: Current, number: 5 },
        finished(Table, 7, b"table"),
        append(Manifest, 5, 8),
    ];
    assert_eq!(primary.kinds(), expected);
    let bytes: Vec<_> = primary.items().iter().map(|item| primary.source.read(item).unwrap()).collect();
    assert_eq!(bytes, [&b"snapshot"[..], b"MANIFEST-000005\n", b"", b"editanother"]);

    let snapshot = varied(MAX_ITEM_BYTES + 1);
    primary.create("MANIFEST-000008");
    primary.append("MANIFEST-000008", &snapshot);
    primary.sync("MANIFEST-000008");
    primary.set_current(8);
    primary.delete("MANIFEST-000005");
    let expected = [
        append(Manifest, 8, 0),
        append(Manifest, 8, MAX_ITEM_BYTES as u64),
        Kind::Put { file: Current, number: 8 },
        delete(Manifest, 5),
    ];
    assert_eq!(primary.kinds()[4..], expected);
    assert_eq!(primary.bytes_of(append(Manifest, 5, 8)).unwrap(), b"editanother");
}

#[test]
fn the_identity_of_a_store_is_put_when_it_is_renamed_into_place() {
    let primary = Primary::new();
    primary.make("STORE.17.tmp", b"format 4");
    assert_eq!(primary.kinds(), []);
    primary.rename("STORE.17.tmp", "STORE");
    let put = Kind::Put { file: Store, number: 0 };
    assert_eq!(primary.kinds(), [put]);
    primary.make("STORE.17.tmp", b"format 5");
    primary.rename("STORE.17.tmp", "STORE");
    assert_eq!(primary.bytes_of(put).unwrap(), b"format 4", "of the item, not what the file has become");
    primary.trim_all();
    assert!(matches!(primary.bytes_of(put), Err(Error::Missing { file }) if file.kind == Store));
}

#[test]
fn what_belongs_to_one_copy_alone_is_no_item() {
    let primary = Primary::new();
    fs::create_dir(primary.path("checkpoint_tmp")).unwrap();
    for name in ["LOG", "OPTIONS-000003", "IDENTITY", "DURABLE", "values/watermark", "checkpoint_tmp/000007.sst"] {
        primary.make(name, b"local");
        primary.delete(name);
    }
    assert_eq!(primary.kinds(), []);
    assert_eq!(primary.kept(), 0);
}

#[test]
fn bytes_of_removed_files_are_kept_until_their_items_are_needed_no_more() {
    let primary = Primary::new();
    for (name, bytes) in [("000004.log", "first"), ("000005.log", "second"), ("values/000001.segment", "value")] {
        primary.create(name);
        primary.append(name, bytes.as_bytes());
    }
    primary.delete("000004.log");
    primary.delete("000005.log");
    primary.delete("values/000001.segment");
    let expected = [(append(Wal, 4, 0), "first"), (append(Wal, 5, 0), "second"), (append(Segment, 1, 0), "value")];
    let check = |kept: usize| {
        assert_eq!(primary.kept(), expected.len() - kept);
        for (number, (kind, bytes)) in expected.iter().enumerate() {
            match primary.bytes_of(*kind) {
                Ok(found) => assert!(number >= kept && found == bytes.as_bytes()),
                Err(error) => assert!(number < kept && matches!(error, Error::Missing { .. }), "{error}"),
            }
        }
    };
    check(0);
    for trimmed in 1..=3 {
        primary.source.trim(trimmed as u64 + 1);
        check(trimmed);
        // What was said later goes not back.
        primary.source.trim(1);
        check(trimmed);
    }
}

#[test]
fn a_file_that_ends_is_held_no_longer_than_its_items() {
    let primary = Primary::new();
    primary.create("000004.log");
    primary.append("000004.log", b"key");
    primary.create("values/000001.segment");
    primary.append("values/000001.segment", b"value");
    primary.sync("values/000001.segment");
    primary.trim_all();
    assert_eq!(primary.kept(), 2, "more may come");
    primary.append("000004.log", b"another");
    primary.close("000004.log");
    assert_eq!(primary.kept(), 2, "an item names it");
    primary.close("values/000001.segment");
    assert_eq!(primary.kept(), 1, "none names it, and none will");
    primary.trim_all();
    assert_eq!(primary.kept(), 0);
    // Opened again for appending, as after a failure: it is held anew.
    primary.append("000004.log", b"late");
    primary.delete("000004.log");
    assert_eq!(primary.bytes_of(append(Wal, 4, 10)).unwrap(), b"late");
}

#[test]
fn finished_files_are_named_by_what_they_hold_however_they_came() {
    let primary = Primary::new();
    fs::create_dir_all(primary.path("session_tmp/job")).unwrap();
    let bytes = varied(300_000);
    primary.create("000010.sst");
    bytes.chunks(70_001).for_each(|piece| primary.append("000010.sst", piece));
    assert_eq!(primary.kinds(), []);
    primary.close("000010.sst");

    primary.make("session_tmp/job/000011.sst", &bytes[..5000]);
    primary.rename("session_tmp/job/000011.sst", "000011.sst");

    primary.make("elsewhere", &bytes[..6000]);
    fs::hard_link(primary.path("elsewhere"), primary.path("000012.sst")).unwrap();
    primary.tell(TapEvent::Linked { from: &primary.path("elsewhere"), to: &primary.path("000012.sst") });

    // The last page is written twice, as direct IO does, and what is behind the end is cut off.
    primary.create("000013.sst");
    primary.append("000013.sst", &[&bytes[..4096], &[0; 4096]].concat());
    primary.write("000013.sst", 4096, &[&bytes[4096..6000], &[0; 2192]].concat());
    primary.cut("000013.sst", 6000);
    primary.close("000013.sst");

    // Never finished: in no copy.
    primary.create("000014.sst");
    primary.append("000014.sst", b"half");
    primary.delete("000014.sst");
    primary.delete("000010.sst");
    let expected = [
        finished(Table, 10, &bytes),
        finished(Table, 11, &bytes[..5000]),
        finished(Table, 12, &bytes[..6000]),
        finished(Table, 13, &bytes[..6000]),
        delete(Table, 10),
    ];
    assert_eq!(primary.kinds(), expected);
    assert_eq!(primary.kept(), 4, "copies take an opening with all tables that it names");
    assert!(primary.source.open_finished(named(Table, 10)).unwrap().is_some(), "also with one that is gone by then");
    let mut found = vec![0; 5000];
    let opened = primary.source.open_finished(named(Table, 11)).unwrap().unwrap();
    opened.read_exact_at(&mut found, 0).unwrap();
    assert!(found == bytes[..5000]);
}

#[test]
fn a_segment_is_finished_with_what_was_appended_and_may_be_fetched_only_then() {
    let primary = Primary::new();
    primary.create("values/000001.segment");
    primary.append("values/000001.segment", b"header");
    primary.append("values/000001.segment", b"value");
    assert!(primary.source.open_finished(named(Segment, 1)).unwrap().is_none());
    primary.close("values/000001.segment");
    primary.delete("values/000001.segment");
    let expected = [append(Segment, 1, 0), finished(Segment, 1, b"headervalue"), delete(Segment, 1)];
    assert_eq!(primary.kinds(), expected);
}

#[test]
fn values_are_one_item_up_to_what_names_them() {
    let primary = Primary::new();
    primary.create("000004.log");
    for number in [1, 2] {
        primary.create(&format!("values/{number:06}.segment"));
    }
    let all = varied(MAX_ITEM_BYTES + 100);
    let (first, second) = all.split_at(MAX_ITEM_BYTES - 50);
    first.chunks(70_000).for_each(|piece| primary.append("values/000001.segment", piece));
    assert_eq!(primary.kinds(), [], "nothing names them");
    primary.append("values/000001.segment", second);
    primary.append("values/000001.segment", b"value");
    primary.append("values/000002.segment", b"other");
    primary.append("000004.log", b"names all");
    primary.append("values/000002.segment", b"later");
    let long = MAX_ITEM_BYTES as u64 - 50;
    let kinds = [append(Segment, 1, 0), append(Segment, 1, long), append(Segment, 2, 0), append(Wal, 4, 0)];
    assert_eq!(primary.kinds(), kinds);
    assert_eq!(primary.bytes_of(kinds[0]).unwrap(), first);
    assert_eq!(primary.bytes_of(kinds[1]).unwrap(), [second, b"value"].concat());
    assert_eq!(primary.bytes_of(kinds[2]).unwrap(), b"other");
}

#[test]
fn of_a_segment_that_is_made_of_others_it_is_said_how_when_it_is_sealed() {
    let primary = Primary::new();
    let values = varied(3000);
    primary.make("values/000001.segment", &values);
    let before = primary.kinds().len();
    let range = |offset, len, from_offset| CopiedRange { offset, len, from: 1, from_offset };
    primary.create("values/000002.segment");
    primary.append("values/000002.segment", b"header");
    primary.copied("values/000002.segment", &[range(6, 1000, 500)]);
    primary.append("values/000002.segment", &values[500..1500]);
    primary.close("values/000002.segment");
    let whole = [b"header", &values[500..1500]].concat();
    let collect = Kind::Collect { number: 2, content: content(&whole) };
    assert_eq!(primary.kinds()[before..], [append(Segment, 2, 0), collect]);
    let item = *primary.items().last().unwrap();
    let recipe = primary.source.read(&item).unwrap();
    let steps = vec![Step::Copy { segment: 1, offset: 500, len: 1000 }];
    assert_eq!(Recipe::decode(&recipe, 1006), Ok(Recipe { base: 6, steps }));
    assert!(primary.source.open_finished(named(Segment, 2)).unwrap().is_some(), "who cannot make it asks for it");
    primary.trim_all();
    assert!(matches!(primary.source.read(&item), Err(Error::Missing { .. })));
}

#[test]
fn what_is_held_back_of_a_segment_is_bytes_before_a_sync_of_it_is_over() {
    let primary = Primary::new();
    let values = varied(3000);
    primary.make("values/000001.segment", &values);
    let before = primary.kinds().len();
    let range = |offset, len, from_offset| CopiedRange { offset, len, from: 1, from_offset };
    primary.create("values/000002.segment");
    primary.copied("values/000002.segment", &[range(0, 1000, 500)]);
    primary.append("values/000002.segment", &values[500..1500]);
    assert!(primary.kinds()[before..].is_empty());
    primary.sync("values/000002.segment");
    assert_eq!(primary.kinds()[before], append(Segment, 2, 0));
    // It goes on behind that.
    primary.copied("values/000002.segment", &[range(1000, 800, 0)]);
    primary.append("values/000002.segment", &values[..800]);
    primary.close("values/000002.segment");
    let whole = [&values[500..1500], &values[..800]].concat();
    let item = *primary.items().last().unwrap();
    assert_eq!(item.kind, Kind::Collect { number: 2, content: content(&whole) });
    let recipe = primary.source.read(&item).unwrap();
    let steps = vec![Step::Copy { segment: 1, offset: 0, len: 800 }];
    assert_eq!(Recipe::decode(&recipe, 1800), Ok(Recipe { base: 1000, steps }));
    // One that is removed before anybody referred to it, of which nothing was sent.
    let before = primary.kinds().len();
    primary.create("values/000003.segment");
    primary.copied("values/000003.segment", &[range(0, 1000, 500)]);
    primary.append("values/000003.segment", &values[500..1500]);
    primary.delete("values/000003.segment");
    assert_eq!(primary.kinds()[before..], []);
}

#[test]
fn what_an_append_that_failed_has_left_is_cut_off_before_a_segment_is_finished() {
    let primary = Primary::new();
    primary.create("values/000001.segment");
    primary.append("values/000001.segment", b"value");
    primary.append("values/000001.segment", b"half");
    // As the value log does it, whose append has failed.
    OpenOptions::new().write(true).open(primary.path("values/000001.segment")).unwrap().set_len(5).unwrap();
    primary.close("values/000001.segment");
    let expected = [Kind::Truncate { file: Segment, number: 1, len: 5 }, finished(Segment, 1, b"value")];
    assert_eq!(primary.kinds()[1..], expected);
}

#[test]
fn what_is_there_begins_the_stream_by_kinds_and_numbers_and_is_read_only_once() {
    let mut primary = Primary::new();
    for number in [12, 3] {
        fs::write(primary.path(&format!("{number:06}.sst")), format!("table {number}")).unwrap();
        fs::write(primary.path(&format!("values/{number:06}.segment")), format!("segment {number}")).unwrap();
    }
    fs::write(primary.path("000007.log"), "old").unwrap();
    fs::write(primary.path("LOG"), "local").unwrap();
    let expected = [
        finished(Segment, 3, b"segment 3"),
        finished(Segment, 12, b"segment 12"),
        finished(Table, 3, b"table 3"),
        finished(Table, 12, b"table 12"),
    ];
    primary.source.take_stock().unwrap();
    assert_eq!(primary.kinds(), expected);

    // Another process knows them without reading. Nobody can see that these bytes have changed.
    let path = primary.path("000003.sst");
    let time = fs::metadata(&path).unwrap().modified().unwrap();
    fs::write(&path, "TABLE 3").unwrap();
    File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
    primary.reopen();
    primary.source.take_stock().unwrap();
    assert_eq!(primary.kinds(), expected);

    // An old WAL is gone on from where it ended, is cut, and goes.
    primary.append("000007.log", b"more");
    primary.cut("000007.log", 5);
    primary.delete("000007.log");
    let expected = [append(Wal, 7, 3), Kind::Truncate { file: Wal, number: 7, len: 5 }, delete(Wal, 7)];
    assert_eq!(primary.kinds()[4..], expected);

    // What was reserved for a segment is cut off before the store is open.
    primary.cut("values/000012.segment", 7);
    primary.cut("values/000012.segment", 7);
    assert_eq!(primary.kinds()[7..], [finished(Segment, 12, b"segment")]);
    primary.delete("values/000012.segment");
    assert_eq!(primary.kinds()[8..], [delete(Segment, 12)]);
}

#[test]
fn what_finished_files_should_hold_is_known_while_this_is_the_primary_whatever_becomes_of_them() {
    let before = Primary::new();
    before.make("000007.sst", b"table");
    assert!(matches!(before.source.contents(), Err(Error::Missing { .. })));
    let primary = Primary::opened();
    primary.make("000007.sst", b"table");
    primary.make("000008.sst", b"gone");
    primary.make("values/000001.segment", b"sealed");
    primary.create("values/000002.segment");
    primary.append("values/000002.segment", b"open");
    primary.delete("000008.sst");
    fs::write(primary.path("000007.sst"), b"damaged").unwrap();
    let all = [(named(Table, 7), content(b"table")), (named(Segment, 1), content(b"sealed"))];
    assert_eq!(primary.source.contents().unwrap(), (primary.stream.mark().0, BTreeMap::from(all)));
    primary.stream.is_primary.store(false, Ordering::Relaxed);
    primary.append("values/000002.segment", b"more");
    assert!(matches!(primary.source.contents(), Err(Error::Missing { .. })));
}

#[test]
fn the_catalog_knows_finished_files_once_they_are_synced() {
    let primary = Primary::new();
    let known = |file| Catalog::open(&primary.store).unwrap().get(file);
    primary.make("000007.sst", b"table");
    assert_eq!(known(named(Table, 7)), Some(content(b"table")));
    primary.delete("000007.sst");
    assert_eq!(known(named(Table, 7)), None);

    primary.create("000008.sst");
    primary.append("000008.sst", b"unsynced");
    primary.close("000008.sst");
    assert_eq!(known(named(Table, 8)), None);

    let name = "values/000001.segment";
    primary.create(name);
    primary.append(name, b"first");
    primary.sync(name);
    primary.append(name, b"second");
    primary.close(name);
    assert_eq!(known(named(Segment, 1)), None);
    primary.sync_to(name, 5);
    assert_eq!(known(named(Segment, 1)), None);
    primary.sync(name);
    assert_eq!(known(named(Segment, 1)), Some(content(b"firstsecond")));
}

#[test]
fn bytes_that_are_written_over_or_did_not_pass_leave_the_copies_what_the_file_holds() {
    let primary = Primary::new();
    primary.create("000004.log");
    primary.append("000004.log", b"0123456789");
    primary.write("000004.log", 4, b"abc");
    OpenOptions::new().write(true).open(primary.path("000004.log")).unwrap().write_all_at(b"unseen", 7).unwrap();
    primary.write("000004.log", 13, b"seen");
    let expected = [
        append(Wal, 4, 0),
        Kind::Truncate { file: Wal, number: 4, len: 4 },
        append(Wal, 4, 4),
        append(Wal, 4, 7),
        append(Wal, 4, 13),
    ];
    assert_eq!(primary.kinds(), expected);
    assert!(matches!(primary.bytes_of(append(Wal, 4, 0)), Err(Error::Mismatch { .. })), "it is not there any more");
    assert_eq!(primary.bytes_of(append(Wal, 4, 7)).unwrap(), b"unseen");
    primary.cut("000004.log", 15);
    assert!(matches!(primary.bytes_of(append(Wal, 4, 13)), Err(Error::Mismatch { .. })));
    // A file of that number begins again.
    primary.create("000004.log");
    primary.append("000004.log", b"new");
    let expected = [
        Kind::Truncate { file: Wal, number: 4, len: 15 },
        Kind::Truncate { file: Wal, number: 4, len: 0 },
        append(Wal, 4, 0),
    ];
    assert_eq!(primary.kinds()[5..], expected);
}

#[test]
fn syncs_are_items_but_not_more_often_than_is_of_use() {
    let primary = Primary::new();
    primary.create("000004.log");
    primary.append("000004.log", b"key");
    primary.make("000007.sst", b"table");
    let syncs = || primary.items().iter().filter(|item| item.kind == Kind::Sync).count() as u32;
    assert_eq!(syncs(), 0, "that of a table says nothing of logs");
    let begun = Instant::now();
    let mut rounds = 0;
    while begun.elapsed() < 5 * MIN_SYNC_DISTANCE {
        primary.sync("000004.log");
        rounds += 1;
    }
    let most = begun.elapsed().div_duration_f64(MIN_SYNC_DISTANCE) as u32 + 1;
    assert!((2..=most).contains(&syncs()), "{} of {rounds}", syncs());
}

#[test]
fn once_there_is_no_stream_nothing_is_kept_and_the_store_goes_on() {
    let primary = Primary::opened();
    primary.create("000004.log");
    primary.append("000004.log", b"key");
    primary.make("values/000001.segment", b"value");
    let items = primary.items();
    primary.stream.is_primary.store(false, Ordering::Relaxed);
    primary.append("000004.log", b"another");
    assert_eq!(primary.kept(), 0);
    // Were it one again, the stream would have a gap.
    primary.stream.is_primary.store(true, Ordering::Relaxed);
    primary.create("000005.log");
    primary.append("000005.log", b"more");
    primary.make("000007.sst", b"table");
    primary.delete("000004.log");
    primary.set_current(1);
    assert_eq!(primary.items(), items);
    assert_eq!(primary.kept(), 0);
    assert!(primary.source.offer().is_err());
}

#[test]
fn what_a_killed_process_kept_is_removed() {
    let mut primary = Primary::opened();
    primary.create("000004.log");
    primary.append("000004.log", b"key");
    let left = beside(&primary.store, "kept").join("77-000003.log");
    fs::write(&left, "left").unwrap();
    fs::create_dir(beside(&primary.store, "kept").join("offer-78")).unwrap();
    primary.reopen();
    assert_eq!(primary.kept(), 0);
    fs::write(&left, "left").unwrap();
    Source::clear(&primary.store).unwrap();
    assert!(!left.exists());
    Source::clear(&primary.store).unwrap();
}

#[test]
fn a_store_on_another_file_system_than_what_lies_beside_it_is_refused() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm"));
    let device = |path: &Path| fs::metadata(path).unwrap().dev();
    let Some(there) = there.ok().filter(|there| device(there.path()) != device(here.path())) else { return };
    let store = here.path().join("store");
    std::os::unix::fs::symlink(there.path(), &store).unwrap();
    fs::write(store.join("STORE"), "identity").unwrap();
    let stream = Arc::new(Stream { items: Mutex::default(), is_primary: AtomicBool::new(true) });
    assert!(matches!(Source::new(&store, stream), Err(Error::Io { action, .. }) if action.contains("hard link")));
}

// ---- offers ----

#[test]
fn before_an_opening_is_done_there_is_nothing_to_offer() {
    let mut primary = Primary::opened();
    primary.reopen();
    primary.source.take_stock().unwrap();
    assert!(matches!(primary.source.offer(), Err(Error::Missing { file }) if file.kind == Current));
    primary.create("MANIFEST-000002");
    primary.append("MANIFEST-000002", b"snapshot");
    primary.sync("MANIFEST-000002");
    assert!(primary.source.offer().is_err());
    primary.set_current(2);
    assert_eq!(primary.source.offer().unwrap().mark, primary.stream.mark().0);
    assert_eq!(primary.kept(), 1, "the new MANIFEST alone, and no offer");
}

#[test]
fn an_offer_is_the_directory_at_one_mark_whatever_comes_after() {
    let primary = Primary::opened();
    primary.make("STORE.1.tmp", b"identity");
    primary.rename("STORE.1.tmp", "STORE");
    primary.make("000007.sst", b"table");
    primary.create("000008.sst");
    primary.append("000008.sst", b"half");
    primary.make("values/000001.segment", b"sealed");
    primary.create("values/000002.segment");
    primary.append("values/000002.segment", b"open");
    primary.create("000004.log");
    primary.append("000004.log", b"key");
    primary.append("MANIFEST-000001", b"unsynced");
    let offer = primary.source.offer().unwrap();
    let mark = primary.stream.mark();
    // All of it goes, and other files come.
    for name in ["000007.sst", "values/000001.segment", "values/000002.segment", "000004.log"] {
        if name != "000007.sst" {
            primary.append(name, b"later");
        }
        primary.delete(name);
    }
    primary.create("MANIFEST-000009");
    primary.append("MANIFEST-000009", b"another snapshot");
    primary.sync("MANIFEST-000009");
    primary.set_current(9);
    primary.trim_all();

    assert_eq!((offer.mark, offer.clock_limit_ms), mark);
    assert!(offer.pending.is_empty());
    let mut found = BTreeMap::new();
    for offered in &offer.files {
        let mut bytes = vec![0; offered.len as usize];
        offer.open(offered.file).unwrap().read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(offered.content, offered.content.map(|_| content(&bytes)));
        found.insert(offered.file, (String::from_utf8(bytes).unwrap(), offered.content.is_some()));
    }
    let expected = [
        (named(Segment, 1), ("sealed", true)),
        (named(Segment, 2), ("open", false)),
        (named(Wal, 4), ("key", false)),
        (named(Manifest, 1), ("snapshot", false)),
        (named(Table, 7), ("table", true)),
        (named(Current, 1), ("MANIFEST-000001\n", false)),
        (named(Store, 0), ("identity", false)),
    ];
    let expected = expected.map(|(file, (bytes, is_finished))| (file, (bytes.to_owned(), is_finished)));
    assert_eq!(found, BTreeMap::from(expected));
    assert!(matches!(offer.open(named(Table, 8)), Err(Error::Missing { .. })));
    drop(offer);
    assert_eq!(primary.kept(), 2, "the MANIFESTs alone, of which none is closed");
}

#[test]
fn offers_are_whole_while_files_come_and_go() {
    let primary = Primary::opened();
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut live = std::collections::VecDeque::new();
            for number in 10.. {
                let (table, segment) = (format!("{number:06}.sst"), format!("values/{number:06}.segment"));
                primary.make(&table, format!("table {number}").as_bytes());
                primary.create(&segment);
                primary.append(&segment, format!("segment {number}").as_bytes());
                if number % 2 == 0 {
                    primary.close(&segment);
                }
                live.extend([table, segment]);
                while live.len() > 6 {
                    primary.delete(&live.pop_front().unwrap());
                }
                if ends.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let begun = Instant::now();
        let mut offers = 0;
        while begun.elapsed() < Duration::from_millis(500) || offers < 10 {
            let offer = primary.source.offer().unwrap();
            offers += 1;
            // What the stream says of the directory at that mark.
            let number = offer.mark.position.number as usize;
            let mut expected = BTreeSet::new();
            for item in &primary.items()[..number] {
                match item.kind {
                    Kind::Append { file, number, .. } | Kind::Finished { file, number, .. } => {
                        expected.insert(named(file, number));
                    }
                    Kind::Put { file, number } => _ = expected.insert(named(file, number)),
                    Kind::Delete { file, number } => _ = expected.remove(&named(file, number)),
                    _ => (),
                }
            }
            assert_eq!(offer.files.iter().map(|offered| offered.file).collect::<BTreeSet<_>>(), expected);
            for offered in &offer.files {
                let mut bytes = vec![0; offered.len as usize];
                offer.open(offered.file).unwrap().read_exact_at(&mut bytes, 0).unwrap();
                let (kind, number) = (offered.file.kind, offered.file.number);
                match kind {
                    Table => assert_eq!(bytes, format!("table {number}").into_bytes()),
                    Segment => assert_eq!(bytes, format!("segment {number}").into_bytes()),
                    _ => (),
                }
                assert_eq!(offered.content.is_some(), offered.content == Some(content(&bytes)));
            }
        }
        ends.store(true, Ordering::Relaxed);
    });
}

// ---- several threads ----

#[test]
fn appenders_at_once_give_one_stream_with_values_before_the_keys_that_name_them() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 300;
    let primary = Primary::new();
    primary.create("000004.log");
    let wal = Mutex::new(());
    std::thread::scope(|scope| {
        for thread in 1..=THREADS {
            let (primary, wal) = (&primary, &wal);
            scope.spawn(move || {
                let segment = format!("values/{thread:06}.segment");
                primary.create(&segment);
                for round in 0..ROUNDS {
                    primary.append(&segment, &[thread as u8; 100]);
                    let key = [thread.to_le_bytes(), round.to_le_bytes()].concat();
                    let _one = wal.lock().unwrap();
                    primary.append("000004.log", &key);
                }
                primary.close(&segment);
            });
        }
    });
    let mut before = Stream::begin();
    let (mut values, mut keys) = (BTreeMap::<u64, u64>::new(), BTreeMap::<u64, u64>::new());
    for item in primary.items() {
        assert!(item.follows(before));
        before = item.mark();
        match item.kind {
            Kind::Append { file: Segment, number, offset } => {
                assert_eq!(values.insert(number, offset + 100).unwrap_or_default(), offset);
            }
            Kind::Append { file: Wal, .. } => {
                let key = primary.source.read(&item).unwrap();
                let thread = u64::from_le_bytes(key[..8].try_into().unwrap());
                let round = u64::from_le_bytes(key[8..].try_into().unwrap());
                assert_eq!(keys.insert(thread, round + 1).unwrap_or_default(), round);
                assert!(values[&thread] >= (round + 1) * 100, "a key before its value");
            }
            Kind::Finished { file: Segment, number, content: found } => {
                assert_eq!(found, content(&vec![number as u8; ROUNDS as usize * 100]));
            }
            kind => panic!("{kind:?}"),
        }
    }
    assert!(keys.len() as u64 == THREADS && keys.values().all(|rounds| *rounds == ROUNDS));
}

#[test]
fn a_copy_that_follows_finds_all_bytes_while_files_are_removed_behind_it() {
    const WALS: u64 = 150;
    let primary = Primary::new();
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1..=WALS {
                let name = named(Wal, number).to_string();
                primary.create(&name);
                (0..10).for_each(|at| primary.append(&name, format!("{number}.{at}").as_bytes()));
                if number % 2 == 0 {
                    primary.close(&name);
                }
                primary.delete(&name);
            }
            ends.store(true, Ordering::Release);
        });
        let (mut next, mut whole) = (0, String::new());
        loop {
            let is_last = ends.load(Ordering::Acquire);
            for item in &primary.items()[next..] {
                whole.push_str(std::str::from_utf8(&primary.source.read(item).unwrap()).unwrap());
                next += 1;
                if next % 7 == 0 {
                    primary.source.trim(item.position.number + 1);
                }
            }
            if is_last {
                break;
            }
        }
        let expected: String = (1..=WALS).flat_map(|number| (0..10).map(move |at| format!("{number}.{at}"))).collect();
        assert!(whole == expected);
    });
    primary.trim_all();
    assert_eq!(primary.kept(), 0);
}

// ---- any changes ----

/// One change of a directory. Numbers choose among the files that are there.
#[derive(Clone, Debug)]
enum Change {
    NewWal,
    ToWal { bytes: usize },
    OverWal { back: u64, bytes: usize },
    CutWal { back: u64 },
    RemoveWal { which: usize },
    NewSegment,
    ToSegment { which: usize, bytes: usize },
    Seal { which: usize },
    RemoveSegment { which: usize },
    Gc { which: usize, record: usize, count: usize, own: usize, syncs: usize },
    NewTable { bytes: usize, piece: usize, is_rewritten: bool },
    FromJob { bytes: usize },
    RemoveTable { which: usize },
    ToManifest { bytes: usize },
    SyncManifest { share: u8 },
    NewManifest { bytes: usize },
    Local,
    Trim,
}

fn change() -> impl Strategy<Value = Change> {
    let bytes = || prop_oneof![8 => 1..2000_usize, 1 => 1..3 * MAX_ITEM_BYTES];
    let which = || 0..100_usize;
    prop_oneof![
        2 => Just(Change::NewWal),
        8 => bytes().prop_map(|bytes| Change::ToWal { bytes }),
        1 => (0..3000_u64, bytes()).prop_map(|(back, bytes)| Change::OverWal { back, bytes }),
        1 => (0..3000_u64).prop_map(|back| Change::CutWal { back }),
        1 => which().prop_map(|which| Change::RemoveWal { which }),
        2 => Just(Change::NewSegment),
        8 => (which(), bytes()).prop_map(|(which, bytes)| Change::ToSegment { which, bytes }),
        2 => which().prop_map(|which| Change::Seal { which }),
        1 => which().prop_map(|which| Change::RemoveSegment { which }),
        3 => (which(), 1..2000_usize, 1..400_usize, 1..9_usize, 1..600_usize)
            .prop_map(|(which, record, count, own, syncs)| Change::Gc { which, record, count, own, syncs }),
        3 => (bytes(), bytes(), any::<bool>())
            .prop_map(|(bytes, piece, is_rewritten)| Change::NewTable { bytes, piece, is_rewritten }),
        1 => bytes().prop_map(|bytes| Change::FromJob { bytes }),
        2 => which().prop_map(|which| Change::RemoveTable { which }),
        4 => bytes().prop_map(|bytes| Change::ToManifest { bytes }),
        4 => any::<u8>().prop_map(|share| Change::SyncManifest { share }),
        1 => bytes().prop_map(|bytes| Change::NewManifest { bytes }),
        1 => Just(Change::Local),
        2 => Just(Change::Trim),
    ]
}

/// A directory that is made of nothing but items, and of the finished files that they name.
struct Replayed {
    files: BTreeMap<FileName, Vec<u8>>,
    /// What is finished and was removed before anybody fetched it.
    unfetched: BTreeSet<FileName>,
    next: usize,
    before: Mark,
}

impl Replayed {
    /// The segment that a recipe makes.
    fn make(&self, number: u64, recipe: &[u8], len: u64) -> Vec<u8> {
        let recipe = Recipe::decode(recipe, len).unwrap();
        let before = self.files.get(&named(Segment, number)).cloned().unwrap_or_default();
        assert_eq!(before.len() as u64, recipe.base, "what travelled as bytes");
        recipe.steps.iter().fold(before, |mut made, step| {
            match step {
                Step::Bytes(bytes) => made.extend_from_slice(bytes),
                Step::Copy { segment, offset, len } => {
                    let from = &self.files[&named(Segment, (*segment).into())];
                    made.extend_from_slice(&from[*offset as usize..(offset + len) as usize]);
                }
            }
            made
        })
    }

    fn new() -> Self {
        Self { files: BTreeMap::new(), unfetched: BTreeSet::new(), next: 0, before: Stream::begin() }
    }

    fn follow(&mut self, primary: &Primary) {
        for item in &primary.items()[self.next..] {
            assert!(item.follows(self.before));
            self.before = item.mark();
            self.next += 1;
            let bytes = primary.source.read(item).unwrap();
            assert!(bytes.len() <= MAX_ITEM_BYTES);
            match item.kind {
                Kind::Append { file, number, offset } => {
                    let file = self.files.entry(named(file, number)).or_default();
                    assert_eq!(file.len() as u64, offset, "{item:?}");
                    file.extend(bytes);
                }
                Kind::Truncate { file, number, len } => {
                    let file = self.files.get_mut(&named(file, number)).unwrap();
                    assert!(file.len() as u64 > len);
                    file.truncate(len as usize);
                }
                Kind::Finished { file, number, content: expected } => {
                    let file = named(file, number);
                    if self.files.get(&file).is_some_and(|bytes| content(bytes) == expected) {
                        continue;
                    }
                    match primary.source.open_finished(file).unwrap() {
                        Some(opened) => {
                            let mut bytes = vec![0; expected.len as usize];
                            opened.read_exact_at(&mut bytes, 0).unwrap();
                            assert_eq!(content(&bytes), expected);
                            self.files.insert(file, bytes);
                        }
                        None => assert!(self.unfetched.insert(file)),
                    }
                }
                Kind::Put { file, .. } => _ = self.files.insert(named(file, 0), bytes),
                Kind::Delete { file, number } => {
                    let file = named(file, number);
                    let was_fetched = self.files.remove(&file).is_some();
                    assert!(was_fetched != self.unfetched.remove(&file), "{item:?}");
                }
                Kind::Collect { number, content: expected } => {
                    let made = self.make(number, &bytes, expected.len);
                    assert_eq!(content(&made), expected);
                    assert!(spared_bytes(&bytes, expected.len) >= 3 * bytes.len() as u64, "it is worth it");
                    self.files.insert(named(Segment, number), made);
                }
                Kind::Sync => (),
                Kind::Clock { .. } => panic!("{item:?}"),
            }
        }
    }
}

/// What a store does, and what its files hold then.
struct Model {
    primary: Primary,
    /// As far as it is in the stream.
    files: BTreeMap<FileName, Vec<u8>>,
    wals: Vec<u64>,
    open_segments: Vec<u64>,
    sealed_segments: Vec<u64>,
    tables: Vec<u64>,
    manifest: u64,
    next_number: u64,
    content: Vec<u8>,
    drawn: usize,
}

impl Model {
    fn new() -> Self {
        let mut model = Self {
            primary: Primary::new(),
            files: BTreeMap::new(),
            wals: Vec::new(),
            open_segments: Vec::new(),
            sealed_segments: Vec::new(),
            tables: Vec::new(),
            manifest: 0,
            next_number: 1,
            content: varied(3 * MAX_ITEM_BYTES + 5000),
            drawn: 0,
        };
        model.apply(&Change::NewManifest { bytes: 100 });
        model
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        self.drawn = (self.drawn + 77) % 5000;
        self.content[self.drawn..self.drawn + len].to_vec()
    }

    fn name(kind: FileKind, number: u64) -> String {
        named(kind, number).to_string()
    }

    /// Appends behind what was appended, where reserved space may be.
    fn append(&mut self, kind: FileKind, number: u64, bytes: usize) {
        let bytes = self.bytes(bytes);
        let file = self.files.entry(named(kind, number)).or_default();
        let offset = file.len() as u64;
        file.extend(&bytes);
        let name = Self::name(kind, number);
        self.primary.write(&name, offset, &bytes);
        let end = self.primary.len(&name);
        if end < offset + 10_000 {
            // Space that is reserved: nobody says so.
            let path = self.primary.path(&name);
            OpenOptions::new().write(true).open(path).unwrap().set_len(end + 10_000).unwrap();
        }
    }

    /// The length that counts is that of what was appended.
    fn end(&self, kind: FileKind, number: u64) -> u64 {
        let len = self.files.get(&named(kind, number)).map_or(0, |bytes| bytes.len() as u64);
        let path = self.primary.path(&Self::name(kind, number));
        OpenOptions::new().write(true).open(&path).unwrap().set_len(len).unwrap();
        self.primary.tell(TapEvent::Closed { path: &path, len });
        len
    }

    /// Records of a segment are copied to another one, but for one in `own`, and it is synced after
    /// every few.
    fn collect(&mut self, from: u64, record: usize, count: usize, own: usize, syncs: usize) {
        let source = self.files[&named(Segment, from)].clone();
        let number = self.number();
        let name = Self::name(Segment, number);
        self.primary.create(&name);
        self.append(Segment, number, 32);
        for at in 0..count {
            let offset = self.files[&named(Segment, number)].len() as u64;
            let begin = (at * 7919 * record) % source.len();
            let bytes = if at % own == own - 1 {
                self.bytes(record)
            } else {
                let bytes = source[begin..source.len().min(begin + record)].to_vec();
                let (len, from_offset) = (bytes.len() as u64, begin as u64);
                self.primary.copied(&name, &[CopiedRange { offset, len, from, from_offset }]);
                bytes
            };
            self.primary.write(&name, offset, &bytes);
            self.files.entry(named(Segment, number)).or_default().extend(bytes);
            if at % syncs == syncs - 1 {
                self.primary.sync(&name);
            }
        }
        self.end(Segment, number);
        self.sealed_segments.push(number);
    }

    fn remove(&mut self, kind: FileKind, number: u64) {
        self.files.remove(&named(kind, number));
        self.primary.delete(&Self::name(kind, number));
    }

    fn apply(&mut self, change: &Change) {
        let pick = |from: &[u64], which: usize| (!from.is_empty()).then(|| which % from.len());
        match *change {
            Change::NewWal => {
                let number = self.number();
                if let Some(last) = self.wals.last() {
                    self.end(Wal, *last);
                }
                self.primary.create(&Self::name(Wal, number));
                self.wals.push(number);
            }
            Change::ToWal { bytes } => {
                if let Some(number) = self.wals.last().copied() {
                    self.append(Wal, number, bytes);
                    self.primary.sync(&Self::name(Wal, number));
                }
            }
            Change::OverWal { back, bytes } => {
                if let Some(number) = self.wals.last().copied()
                    && let Some(file) = self.files.get_mut(&named(Wal, number))
                {
                    file.truncate(file.len().saturating_sub(back as usize));
                    self.append(Wal, number, bytes);
                }
            }
            Change::CutWal { back } => {
                if let Some(number) = self.wals.last().copied()
                    && let Some(file) = self.files.get_mut(&named(Wal, number))
                {
                    file.truncate(file.len().saturating_sub(back as usize));
                    self.primary.cut(&Self::name(Wal, number), file.len() as u64);
                }
            }
            Change::RemoveWal { which } => {
                if self.wals.len() > 1 {
                    let number = self.wals.remove(which % (self.wals.len() - 1));
                    self.remove(Wal, number);
                }
            }
            Change::NewSegment => {
                let number = self.number();
                self.primary.create(&Self::name(Segment, number));
                self.open_segments.push(number);
                self.append(Segment, number, 32);
            }
            Change::ToSegment { which, bytes } => {
                if let Some(at) = pick(&self.open_segments, which) {
                    self.append(Segment, self.open_segments[at], bytes);
                }
            }
            Change::Seal { which } => {
                if let Some(at) = pick(&self.open_segments, which) {
                    let number = self.open_segments.remove(at);
                    self.end(Segment, number);
                    self.sealed_segments.push(number);
                }
            }
            Change::RemoveSegment { which } => {
                if let Some(at) = pick(&self.sealed_segments, which) {
                    let number = self.sealed_segments.remove(at);
                    self.remove(Segment, number);
                }
            }
            Change::Gc { which, record, count, own, syncs } => {
                if let Some(at) = pick(&self.sealed_segments, which) {
                    self.collect(self.sealed_segments[at], record, count, own, syncs);
                }
            }
            Change::NewTable { bytes, piece, is_rewritten } => {
                let (number, bytes) = (self.number(), self.bytes(bytes));
                let name = Self::name(Table, number);
                self.primary.create(&name);
                let mut at = 0;
                for piece in bytes.chunks(piece) {
                    if is_rewritten {
                        self.primary.write(&name, at, &vec![9; piece.len()]);
                    }
                    self.primary.write(&name, at, piece);
                    at += piece.len() as u64;
                }
                self.primary.sync(&name);
                self.primary.close(&name);
                self.files.insert(named(Table, number), bytes);
                self.tables.push(number);
            }
            Change::FromJob { bytes } => {
                let (number, bytes) = (self.number(), self.bytes(bytes));
                fs::create_dir_all(self.primary.path("session_tmp")).unwrap();
                self.primary.make("session_tmp/000001.sst", &bytes);
                self.primary.rename("session_tmp/000001.sst", &Self::name(Table, number));
                self.files.insert(named(Table, number), bytes);
                self.tables.push(number);
            }
            Change::RemoveTable { which } => {
                if let Some(at) = pick(&self.tables, which) {
                    let number = self.tables.remove(at);
                    self.remove(Table, number);
                }
            }
            Change::ToManifest { bytes } => {
                let bytes = self.bytes(bytes);
                self.primary.append(&Self::name(Manifest, self.manifest), &bytes);
            }
            Change::SyncManifest { share } => {
                let name = Self::name(Manifest, self.manifest);
                let file = self.files.get_mut(&named(Manifest, self.manifest)).unwrap();
                let synced = file.len() as u64;
                let to = synced + (self.primary.len(&name) - synced) * u64::from(share) / 255;
                self.primary.sync_to(&name, to);
                *file = fs::read(self.primary.path(&name)).unwrap()[..to as usize].to_vec();
            }
            Change::NewManifest { bytes } => {
                let (number, bytes, before) = (self.number(), self.bytes(bytes), self.manifest);
                let name = Self::name(Manifest, number);
                self.primary.create(&name);
                self.primary.append(&name, &bytes);
                self.primary.sync(&name);
                self.primary.set_current(number);
                self.files.insert(named(Manifest, number), bytes);
                self.files.insert(named(Current, 0), format!("MANIFEST-{number:06}\n").into_bytes());
                self.manifest = number;
                if before != 0 {
                    self.primary.close(&Self::name(Manifest, before));
                    self.remove(Manifest, before);
                }
            }
            Change::Local => {
                self.primary.make("OPTIONS-000007", b"local");
                fs::remove_file(self.primary.path("OPTIONS-000007")).unwrap();
            }
            Change::Trim => self.primary.trim_all(),
        }
    }
}

fn check(changes: &[Change], is_late: bool) {
    let (mut model, mut replayed) = (Model::new(), Replayed::new());
    replayed.follow(&model.primary);
    for change in changes {
        // Who reads late finds no bytes that were written over, or trimmed.
        let is_for_readers_at_once = matches!(change, Change::OverWal { .. } | Change::CutWal { .. } | Change::Trim);
        if is_late && is_for_readers_at_once {
            continue;
        }
        model.apply(change);
        if !is_late {
            replayed.follow(&model.primary);
        }
    }
    // What nothing names yet would come with the next change.
    for number in &model.open_segments {
        model.primary.sync(&Model::name(Segment, *number));
    }
    replayed.follow(&model.primary);
    assert!(replayed.unfetched.is_empty());
    assert_eq!(replayed.files.keys().collect::<Vec<_>>(), model.files.keys().collect::<Vec<_>>());
    for (file, bytes) in &model.files {
        assert!(replayed.files[file] == *bytes, "{file}");
    }
    // An offer says the same.
    let offer = model.primary.source.offer().unwrap();
    for offered in &offer.files {
        let file = if offered.file.kind == Current { named(Current, 0) } else { offered.file };
        let mut bytes = vec![0; offered.len as usize];
        offer.open(offered.file).unwrap().read_exact_at(&mut bytes, 0).unwrap();
        assert!(model.files[&file] == bytes, "{file}");
    }
    assert_eq!(offer.files.len(), model.files.len());
    drop(offer);
    // What may be appended to is held, and nothing else.
    model.primary.trim_all();
    let open = model.open_segments.len() + usize::from(!model.wals.is_empty()) + 1;
    assert_eq!(model.primary.kept(), open);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn items_alone_make_the_same_directory(changes in prop::collection::vec(change(), 1..80), is_late: bool) {
        check(&changes, is_late);
    }
}
