//! A process that has as many files open as it may: what needs no descriptor goes on.
//!
//! The limit is that of the whole process, so the test starts itself again as one.

use crate::common;

use std::fs;
use std::process::Command;

use common::disk::{contents_below, write_contents};
use common::{Model, assert_equals, value_of};
use ecotone_engine::{Durability, OpenMode, Separation, Store, StoreSettings};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Makes a process do what [`child`] does.
const CHILD: &str = "ECOTONE_TEST_DESCRIPTORS";

#[test]
fn what_was_found_is_synced_when_a_store_is_opened_so_that_no_later_sync_needs_a_descriptor() {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["descriptors::child", "--exact", "--nocapture", "--test-threads=1"]);
    let ended = child.env(CHILD, "yes").output().unwrap();
    let said = [ended.stdout, ended.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
    assert!(ended.status.success() && said.contains("synced without a descriptor"), "{said}");
}

/// Not a test of its own: the process that the test above starts. Without its variable it has
/// nothing to do.
#[test]
fn child() {
    if std::env::var(CHILD).is_err() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let options = StoreSettings {
        durability: Durability::None,
        separation: Some(Separation { min_bytes: 50, segment_bytes: 4096 }),
        l0_compaction_trigger: 20,
        ..common::small()
    };
    let (living, killed) = (directory.path().join("living"), directory.path().join("killed"));
    let store = Store::open(&living, OpenMode::Create, options.clone()).unwrap();
    let mut model = Model::new();
    let mut put = |store: &Store, number: u64| {
        let key = format!("key{number}").into_bytes();
        let value = value_of(&key, number, 1000);
        store.put(&key, &value).unwrap();
        model.insert(key, value);
    };
    (0..20).for_each(|number| put(&store, number));
    // So that opening has nothing to bring into tables, before which it syncs segments.
    store.flush(true).unwrap();
    write_contents(&killed, &contents_below(&living));
    store.close().unwrap();
    // Nobody knows of the segments whether they were synced.
    fs::remove_file(killed.join("values/WATERMARK")).unwrap();

    let store = Store::open(&killed, OpenMode::Open, options).unwrap();
    put(&store, 20);
    let limit = getrlimit(Resource::Nofile);
    // So many that none is left: the number of a descriptor must be less.
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limit }).unwrap();
    let synced = store.sync();
    setrlimit(Resource::Nofile, limit).unwrap();
    synced.unwrap();
    put(&store, 21);
    assert_equals(&store, &model);
    store.close().unwrap();
    println!("synced without a descriptor");
}
