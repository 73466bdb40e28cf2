//! A disk without a free byte: a store on it is opened all the same, again and again, and read
//! whole; writes are refused, and taken again by the same store once there is room.

use crate::common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::tmpfs::{Tmpfs, free_bytes};
use common::value_of;
use ecotone_engine::{Compression, Durability, Error, OpenMode, Separation, Store, StoreSettings};
use ecotone_inspect::{verify, verify_running};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Longer than anything that is waited for here may take.
const LONG: Duration = Duration::from_secs(60);

/// What the store keeps for an opening.
const BALLAST: &str = "BALLAST";

/// Where the child makes its store, and of which layout.
const DIRECTORY: &str = "ECOTONE_TEST_FULL_DISK";
const SEPARATED: &str = "ECOTONE_TEST_FULL_DISK_SEPARATED";

/// Keys that the child writes: those behind the first half lie in the WAL only, which is longer
/// than a memtable of who opens the store next.
const KEYS: u64 = 4_000;

fn options(separated: bool) -> StoreSettings {
    StoreSettings {
        memtable_bytes: 256 * KIB,
        level_base_bytes: MIB,
        target_file_bytes: 256 * KIB,
        compression: Compression::None,
        separation: separated.then_some(Separation { min_bytes: 100, segment_bytes: MIB }),
        durability: Durability::None,
        ..StoreSettings::default()
    }
}

fn key(number: u64) -> Vec<u8> {
    format!("key{number:08}").into_bytes()
}

fn value(number: u64) -> Vec<u8> {
    value_of(&key(number), 0, if number.is_multiple_of(3) { 60 } else { 2_000 })
}

fn assert_holds(store: &Store, numbers: std::ops::Range<u64>) {
    for number in numbers {
        assert_eq!(store.get(&key(number)).unwrap().as_deref(), Some(&value(number)[..]), "{number}");
    }
}

fn write(store: &Store, numbers: std::ops::Range<u64>) {
    numbers.for_each(|number| store.put(&key(number), &value(number)).unwrap());
}

/// Writes what is refused again until it is taken.
fn write_when_taken(store: &Store, number: u64) {
    let began = Instant::now();
    while let Err(error) = store.put(&key(number), &value(number)) {
        assert!(matches!(error, Error::OutOfSpace { .. }), "{error}");
        assert!(began.elapsed() < LONG, "no more space came: {error}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn wait_for(path: &Path) {
    let began = Instant::now();
    while !path.exists() {
        assert!(began.elapsed() < LONG, "{path:?} does not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Not a test of its own: the child that the tests below start. Without its variables it has
/// nothing to do.
#[test]
fn child() {
    let Ok(directory) = std::env::var(DIRECTORY) else { return };
    let directory = Path::new(&directory);
    let separated = std::env::var(SEPARATED).is_ok();
    // Memtables of this one hold more than those of who comes after.
    let options = StoreSettings { memtable_bytes: 16 * MIB, ..options(separated) };
    let store = Store::open(directory, OpenMode::Create, options).unwrap();
    write(&store, 0..KEYS / 2);
    store.flush(true).unwrap();
    write(&store, KEYS / 2..KEYS);
    wait_for(&directory.join(BALLAST));
    println!("written");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    store.close().unwrap();
}

fn child_writes(directory: &Path, separated: bool) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    if separated {
        command.env(SEPARATED, "yes");
    }
    let mut child = command
        .args(["full_disk::child", "--exact", "--nocapture", "--test-threads=1"])
        .env(DIRECTORY, directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("written")), "the child ended");
    // Who reads no more must not end the child by that.
    std::thread::spawn(move || lines.for_each(drop));
    child
}

/// Takes all that is free, also what was freed in the meantime.
fn fill(disk: &Tmpfs) {
    let began = Instant::now();
    disk.fill();
    // A store that is open may free something behind that.
    while free_bytes(disk.path()) > 0 {
        assert!(began.elapsed() < LONG, "{} bytes are free", free_bytes(disk.path()));
        disk.fill();
    }
}

fn opens_on_a_full_disk(separated: bool, is_killed: bool, has_ballast: bool) {
    let Some(disk) = Tmpfs::mount(64 * MIB) else { return };
    let mut child = child_writes(&disk.store(), separated);
    if is_killed {
        child.kill().unwrap();
        child.wait().unwrap();
    } else {
        // Its input ends.
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }
    if !has_ballast {
        fs::remove_file(disk.store().join(BALLAST)).unwrap();
    }
    fill(&disk);
    for round in 0..if has_ballast { 6 } else { 1 } {
        let store = Store::open(&disk.store(), OpenMode::CreateOrOpen, options(separated))
            .unwrap_or_else(|error| panic!("round {round}: {error}"));
        assert_holds(&store, 0..KEYS);
        if has_ballast {
            wait_for(&disk.store().join(BALLAST));
        }
        // Whoever fills the disk takes what the opening has freed, too.
        fill(&disk);
        let began = Instant::now();
        while !store.free_space().unwrap().writes_refused {
            assert!(began.elapsed() < LONG, "{:?}", store.free_space());
        }
        let refused = store.put(b"another", b"value").unwrap_err();
        assert!(matches!(refused, Error::OutOfSpace { .. }), "{refused}");
        // Below the lowest layer of the reserve.
        assert!(matches!(store.delete(&key(0)), Err(Error::OutOfSpace { .. })));
        // Nor is there room for what a check begins with, which would stop the store.
        let checked = verify_running(&store, |_| ControlFlow::Continue(()));
        assert!(matches!(checked, Err(Error::DiskFull { .. })), "{checked:?}");
        // A compaction that ran while somebody else took the last bytes has met the end of the
        // disk: no reason not to close.
        let failure = store.write_failure();
        assert!(failure.as_ref().is_none_or(|failure| failure.contains("No space left")), "{failure:?}");
        store.close().unwrap();
        fill(&disk);
    }
    if !has_ballast {
        // One that was killed in the midst of that would have to be as lucky again.
        fs::remove_file(disk.path().join("filler")).unwrap();
        disk.fill_but(256 * KIB);
    }
    let store = Store::open(&disk.store(), OpenMode::Open, options(separated)).unwrap();
    assert_holds(&store, 0..KEYS);
    disk.empty();
    write_when_taken(&store, KEYS);
    write(&store, KEYS + 1..KEYS + 1_000);
    store.delete(&key(0)).unwrap();
    store.flush(true).unwrap();
    assert_holds(&store, 1..KEYS + 1_000);
    assert_eq!(store.write_failure(), None);
    // Memtables are as they should be again: what was written since is flushed by itself.
    let flushes = store.counters().flushes;
    write(&store, 0..KEYS);
    let began = Instant::now();
    while store.counters().flushes == flushes {
        assert!(began.elapsed() < LONG, "memtables are larger than they should be");
        std::thread::sleep(Duration::from_millis(1));
    }
    store.close().unwrap();
    let found = verify(&disk.store(), |_| ()).unwrap();
    assert!(found.is_sound() && found.torn_ends.is_empty(), "{found:?}");
    let store = Store::open(&disk.store(), OpenMode::Open, options(separated)).unwrap();
    assert_holds(&store, 0..KEYS + 1_000);
}

#[test]
fn a_plain_store_that_was_killed_opens_on_a_full_disk() {
    opens_on_a_full_disk(false, true, true);
}

#[test]
fn a_store_with_a_value_log_that_was_killed_opens_on_a_full_disk() {
    opens_on_a_full_disk(true, true, true);
}

#[test]
fn a_store_that_was_closed_opens_on_a_full_disk() {
    opens_on_a_full_disk(false, false, true);
    opens_on_a_full_disk(true, false, true);
}

#[test]
fn where_no_space_was_kept_logs_for_people_are_given_up() {
    for separated in [false, true] {
        for is_killed in [false, true] {
            opens_on_a_full_disk(separated, is_killed, false);
        }
    }
}

#[test]
fn what_a_compaction_left_behind_is_freed_first() {
    let Some(disk) = Tmpfs::mount(64 * MIB) else { return };
    let store = Store::open(&disk.store(), OpenMode::Create, options(false)).unwrap();
    write(&store, 0..KEYS);
    store.flush(true).unwrap();
    wait_for(&disk.store().join(BALLAST));
    store.close().unwrap();
    fs::remove_file(disk.store().join(BALLAST)).unwrap();
    for entry in fs::read_dir(disk.store()).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.file_name().unwrap().to_str().unwrap().starts_with("LOG") {
            fs::remove_file(entry).unwrap();
        }
    }
    // Nothing else could be freed.
    let unfinished = disk.store().join("900000.sst");
    let _ = fs::write(&unfinished, vec![7; 128 << 20]);
    assert_eq!(free_bytes(disk.path()), 0);
    let store = Store::open(&disk.store(), OpenMode::Open, options(false)).unwrap();
    assert!(!unfinished.exists());
    assert_holds(&store, 0..KEYS);
    write_when_taken(&store, KEYS);
    store.close().unwrap();
}

/// What somebody does to a MANIFEST, which was so long when half of the store was written.
type Damage = fn(manifest: &Path, half_bytes: u64);

#[test]
fn a_table_that_nothing_else_replaces_is_not_given_up_for_room() {
    let flipped: Damage = |manifest, _| {
        let mut bytes = fs::read(manifest).unwrap();
        bytes[20] ^= 0xff;
        fs::write(manifest, bytes).unwrap();
    };
    // All records that are left are whole.
    let cut: Damage = |manifest, half_bytes| {
        fs::File::options().write(true).open(manifest).unwrap().set_len(half_bytes).unwrap();
    };
    for damage in [flipped, cut] {
        let Some(disk) = Tmpfs::mount(64 * MIB) else { return };
        let manifest = |disk: &Tmpfs| {
            let current = fs::read_to_string(disk.store().join("CURRENT")).unwrap();
            disk.store().join(current.trim_end())
        };
        let store = Store::open(&disk.store(), OpenMode::Create, options(false)).unwrap();
        write(&store, 0..KEYS / 2);
        store.compact(..).unwrap();
        let half_bytes = fs::metadata(manifest(&disk)).unwrap().len();
        write(&store, KEYS / 2..KEYS);
        store.flush(true).unwrap();
        wait_for(&disk.store().join(BALLAST));
        store.close().unwrap();
        fs::remove_file(disk.store().join(BALLAST)).unwrap();
        damage(&manifest(&disk), half_bytes);
        let tables = |disk: &Tmpfs| {
            let names =
                fs::read_dir(disk.store()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let mut tables: Vec<_> = names.filter(|name| name.ends_with(".sst")).collect();
            tables.sort();
            tables
        };
        let before = tables(&disk);
        assert!(before.len() > 1, "{before:?}");
        fill(&disk);
        assert!(Store::open(&disk.store(), OpenMode::Open, options(false)).is_err());
        assert_eq!(tables(&disk), before);
    }
}

#[test]
fn checkpoints_that_a_killed_process_left_are_freed_first() {
    let Some(disk) = Tmpfs::mount(64 * MIB) else { return };
    let store = Store::open(&disk.store(), OpenMode::Create, options(false)).unwrap();
    write(&store, 0..KEYS);
    store.flush(true).unwrap();
    wait_for(&disk.store().join(BALLAST));
    store.close().unwrap();
    fs::remove_file(disk.store().join(BALLAST)).unwrap();
    let left = disk.store().join("checkpoint_tmp/1");
    fs::create_dir_all(&left).unwrap();
    let _ = fs::write(left.join("000001.sst"), vec![7; 128 << 20]);
    assert_eq!(free_bytes(disk.path()), 0);
    let store = Store::open(&disk.store(), OpenMode::Open, options(false)).unwrap();
    assert!(!left.exists());
    // There is room: it is a store as any.
    write(&store, KEYS..KEYS + 10);
    assert_holds(&store, 0..KEYS + 10);
    store.close().unwrap();
}
