//! Copies that are directories, one of which is compared.

use std::cell::{Cell, RefCell};
use std::fs;
use std::path::PathBuf;

use ecotone_control::ids::Epoch;
use ecotone_mirror::catalog::{Hasher, hash_file};
use ecotone_mirror::comparing::Part;
use ecotone_mirror::names::path_of;
use ecotone_replica::position::Position;
use ecotone_replica::stream::FileKind;
use tempfile::TempDir;

use super::*;

const fn table(number: u64) -> FileName {
    FileName::new(FileKind::Table, number)
}

const SEGMENT: FileName = FileName::new(FileKind::Segment, 1);
const WAL: FileName = FileName::new(FileKind::Wal, 9);

fn mark(number: u64) -> Mark {
    Mark { position: Position { epoch: Epoch(1), number }, chain: 0 }
}

fn bytes_of(file: FileName) -> Vec<u8> {
    format!("{file} ").repeat(50).into_bytes()
}

fn content_of(bytes: &[u8]) -> ContentId {
    let mut hasher = Hasher::new();
    hasher.update(bytes);
    hasher.finish()
}

/// What a primary says that its files hold, and where.
type Said = (Mark, BTreeMap<FileName, ContentId>);

/// The copy of server 1, and those of servers 2 and 3.
struct Copies {
    _above: TempDir,
    paths: [PathBuf; 3],
    held: RefCell<Held>,
    is_primary: Cell<bool>,
    /// What the primary answers: the last one again and again.
    answers: RefCell<Vec<Option<Said>>>,
    may_hand_over: bool,
    left_until_stop: Cell<u64>,
    rebuilds: Cell<usize>,
}

impl Copies {
    /// All have two tables and a segment, and a WAL; server 2 is the primary.
    fn new() -> Copies {
        let above = tempfile::tempdir().unwrap();
        let paths = ["a", "b", "c"].map(|name| above.path().join(name).join("store"));
        let files = [table(12), table(20), SEGMENT];
        for path in &paths {
            fs::create_dir_all(path.join("values")).unwrap();
            files.iter().chain([&WAL]).for_each(|file| fs::write(path_of(path, *file), bytes_of(*file)).unwrap());
        }
        let finished: BTreeMap<_, _> = files.into_iter().map(|file| (file, content_of(&bytes_of(file)))).collect();
        let wal = bytes_of(WAL);
        let held = Held {
            mark: mark(100),
            finished: finished.clone(),
            growing: vec![Part { file: WAL, len: wal.len() as u64, crc: crc32c_of(&wal) }],
            absent: BTreeSet::new(),
        };
        Copies {
            _above: above,
            paths,
            held: RefCell::new(held),
            is_primary: Cell::new(false),
            answers: RefCell::new(vec![Some((mark(100), finished))]),
            may_hand_over: true,
            left_until_stop: Cell::new(u64::MAX),
            rebuilds: Cell::new(0),
        }
    }

    fn path(&self, server: usize, file: FileName) -> PathBuf {
        path_of(&self.paths[server - 1], file)
    }

    /// A bit of it is another one, on this server.
    fn flip(&self, server: usize, file: FileName) {
        let mut bytes = bytes_of(file);
        bytes[77] ^= 2;
        fs::write(self.path(server, file), bytes).unwrap();
    }

    fn run(&self) -> Seen {
        self.run_behind(None)
    }

    fn run_behind(&self, after: Option<FileName>) -> Seen {
        let mut seen = Seen::default();
        seen.end = Some(compare(self, after, &mut seen).unwrap());
        seen
    }

    fn is_whole(&self) -> bool {
        [table(12), table(20), SEGMENT, WAL]
            .into_iter()
            .all(|file| fs::read(self.path(1, file)).unwrap() == bytes_of(file))
    }
}

fn crc32c_of(bytes: &[u8]) -> u32 {
    bytes.iter().fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 })
    }) ^ !0
}

impl Subject for Copies {
    fn directory(&self) -> &Path {
        &self.paths[0]
    }

    fn held(&self) -> Result<(Held, bool)> {
        Ok((self.held.borrow().clone(), self.is_primary.get()))
    }

    fn at_primary(&self) -> Option<(Mark, BTreeMap<FileName, ContentId>)> {
        let mut answers = self.answers.borrow_mut();
        if answers.len() > 1 { answers.remove(0) } else { answers[0].clone() }
    }

    fn fetch(&self, want: &Want, _is_primary: bool) -> Result<std::result::Result<MemberId, String>> {
        let has = |server: &u64| hash_file(&self.path(*server as usize, want.file)).ok() == Some(want.content);
        Ok([2, 3].into_iter().find(has).map(MemberId).ok_or_else(|| "nobody has it".into()))
    }

    fn replace(&self, want: &Want) -> Result<bool> {
        assert!(!self.is_primary.get(), "a store that is open is not touched");
        let from = [2, 3].map(|server| self.path(server, want.file));
        let from = from.iter().find(|path| hash_file(path).ok() == Some(want.content)).unwrap();
        fs::copy(from, self.path(1, want.file)).unwrap();
        Ok(true)
    }

    fn hand_over(&self, to: MemberId) -> Result<()> {
        if !self.may_hand_over {
            return Err(Error::Refused(format!("{to} is not in sync")));
        }
        self.is_primary.set(false);
        Ok(())
    }

    fn rebuild(&self) -> Result<()> {
        self.rebuilds.set(self.rebuilds.get() + 1);
        fs::copy(self.path(2, WAL), self.path(1, WAL)).unwrap();
        Ok(())
    }

    fn pace(&self, bytes: u64) -> bool {
        let left = self.left_until_stop.get().saturating_sub(bytes);
        self.left_until_stop.set(left);
        left > 0
    }
}

#[derive(Default)]
struct Seen {
    end: Option<End>,
    begun: Option<(bool, u64, u64)>,
    compared: Vec<FileName>,
    sound: Vec<FileName>,
    found: Vec<(FileName, Outcome)>,
    handed_over: Option<MemberId>,
}

impl Observer for Seen {
    fn begins(&mut self, is_primary: bool, files: u64, bytes: u64) {
        self.begun = Some((is_primary, files, bytes));
    }

    fn compared(&mut self, file: FileName, _bytes: u64) {
        self.compared.push(file);
    }

    fn is_sound(&mut self, file: FileName) {
        self.sound.push(file);
    }

    fn found(&mut self, finding: Finding) {
        self.found.push((finding.file, finding.outcome));
    }

    fn handed_over(&mut self, to: MemberId) {
        self.handed_over = Some(to);
    }
}

#[test]
fn what_holds_what_it_should_is_left_alone() {
    let copies = Copies::new();
    let seen = copies.run();
    assert_eq!((seen.end, seen.found.len()), (Some(End::Done), 0));
    assert_eq!(seen.compared, [SEGMENT, table(12), table(20)]);
    assert_eq!(seen.sound, seen.compared);
    let bytes = [table(12), table(20), SEGMENT].map(|file| bytes_of(file).len() as u64).iter().sum();
    assert_eq!(seen.begun, Some((false, 3, bytes)));
}

#[test]
fn a_replica_gets_what_is_flipped_cut_or_missing_from_whoever_has_it_whole() {
    for damage in 0..3 {
        for file in [table(12), SEGMENT] {
            let copies = Copies::new();
            // The primary's is damaged as well, and it may be silent.
            copies.flip(2, file);
            match damage {
                0 => copies.flip(1, file),
                1 => fs::write(copies.path(1, file), &bytes_of(file)[1..]).unwrap(),
                _ => fs::remove_file(copies.path(1, file)).unwrap(),
            }
            let seen = copies.run();
            assert_eq!(seen.found, [(file, Outcome::Replaced(MemberId(3)))]);
            assert!(copies.is_whole() && seen.end == Some(End::Done) && seen.compared.len() == 3);
        }
    }
}

#[test]
fn a_replica_compares_with_what_it_remembers_while_its_primary_is_silent() {
    let copies = Copies::new();
    copies.answers.replace(vec![None]);
    copies.flip(1, table(20));
    // Whether it was deleted, only the primary knows.
    fs::remove_file(copies.path(1, table(12))).unwrap();
    let seen = copies.run();
    assert_eq!(seen.found, [(table(20), Outcome::Replaced(MemberId(2)))]);
    assert!(!copies.path(1, table(12)).exists());
}

#[test]
fn a_file_that_the_primary_has_otherwise_is_the_primarys() {
    let copies = Copies::new();
    // The copy remembers what it has, and is wrong in that.
    copies.flip(1, table(12));
    let wrong = hash_file(&copies.path(1, table(12))).unwrap();
    copies.held.borrow_mut().finished.insert(table(12), wrong);
    assert_eq!(copies.run().found, [(table(12), Outcome::Replaced(MemberId(2)))]);
    assert!(copies.is_whole());
}

#[test]
fn a_primary_that_takes_damage_for_the_truth_does_not_spread_it() {
    let copies = Copies::new();
    copies.flip(2, table(12));
    let wrong = hash_file(&copies.path(2, table(12))).unwrap();
    let mut said = copies.answers.borrow()[0].clone().unwrap();
    said.1.insert(table(12), wrong);
    copies.answers.replace(vec![Some(said)]);
    let seen = copies.run();
    assert!(matches!(&seen.found[..], [(file, Outcome::Left(_))] if *file == table(12)), "{:?}", seen.found);
    assert!(copies.is_whole());
}

#[test]
fn what_nobody_has_whole_stays_and_is_named() {
    let copies = Copies::new();
    (1..=3).for_each(|server| copies.flip(server, table(12)));
    copies.flip(1, table(20));
    let seen = copies.run();
    // It goes on with the others.
    let found = [(table(12), Outcome::Left("nobody has it".into())), (table(20), Outcome::Replaced(MemberId(2)))];
    assert_eq!(seen.found, found);
    assert_ne!(fs::read(copies.path(1, table(12))).unwrap(), bytes_of(table(12)));
    assert_eq!(seen.sound, [SEGMENT]);
}

#[test]
fn a_primary_is_mended_once_another_copy_that_has_it_whole_has_taken_over() {
    let mut copies = Copies::new();
    copies.is_primary.set(true);
    copies.flip(1, table(12));
    copies.flip(1, SEGMENT);
    copies.flip(2, SEGMENT);
    let seen = copies.run();
    let found = [(SEGMENT, Outcome::Replaced(MemberId(3))), (table(12), Outcome::Replaced(MemberId(2)))];
    assert_eq!((&seen.found[..], seen.handed_over), (&found[..], Some(MemberId(3))));
    assert!(copies.is_whole() && seen.begun.unwrap().0);
    // Where nobody can take over, nothing is touched.
    copies.is_primary.set(true);
    copies.may_hand_over = false;
    copies.flip(1, table(12));
    let seen = copies.run();
    let [(file, Outcome::Left(why))] = &seen.found[..] else { panic!("{:?}", seen.found) };
    assert!(*file == table(12) && why.contains("server 2 has it whole, but the shard cannot be handed over"), "{why}");
    // What nobody has whole is no reason to hand over.
    copies.may_hand_over = true;
    [2, 3].into_iter().for_each(|server| copies.flip(server, table(12)));
    let seen = copies.run();
    assert_eq!((seen.found.len(), seen.handed_over, copies.is_primary.get()), (1, None, true));
}

#[test]
fn what_is_deleted_finished_or_fetched_meanwhile_is_no_damage() {
    let copies = Copies::new();
    let Some((_, all)) = copies.answers.borrow()[0].clone() else { panic!() };
    // Deleted at the primary between the two questions, and here.
    fs::remove_file(copies.path(1, table(12))).unwrap();
    let without: BTreeMap<_, _> = all.clone().into_iter().filter(|(file, _)| *file != table(12)).collect();
    copies.answers.replace(vec![Some((mark(100), all.clone())), Some((mark(101), without.clone()))]);
    let seen = copies.run();
    assert_eq!((seen.found.len(), seen.end), (0, Some(End::Done)));
    // Finished there, behind what this copy has applied.
    let (mut more, mut held) = (without, copies.held.borrow().clone());
    more.insert(table(30), content_of(b"new"));
    held.finished.remove(&table(12));
    copies.held.replace(held);
    copies.answers.replace(vec![Some((mark(102), more))]);
    assert_eq!(copies.run().found, []);
    // Once it has come past that, and does not await it, it is missing.
    copies.held.borrow_mut().mark = mark(102);
    assert_eq!(copies.run().found, [(table(30), Outcome::Left("nobody has it".into()))]);
    copies.held.borrow_mut().absent.insert(table(30));
    assert_eq!(copies.run().found, []);
}

#[test]
fn a_replica_whose_log_is_damaged_is_built_anew() {
    let copies = Copies::new();
    copies.flip(1, WAL);
    let seen = copies.run();
    assert_eq!((seen.found, copies.rebuilds.get()), (vec![(WAL, Outcome::Rebuilt)], 1));
    assert!(copies.is_whole());
    assert_eq!((copies.run().found.len(), copies.rebuilds.get()), (0, 1));
    // What comes behind what was recorded is nobody's yet.
    fs::write(copies.path(1, WAL), [&bytes_of(WAL)[..], b"more"].concat()).unwrap();
    assert_eq!((copies.run().found.len(), copies.rebuilds.get()), (0, 1));
}

#[test]
fn a_stop_is_no_finding_and_a_round_goes_on_where_it_was() {
    let copies = Copies::new();
    copies.flip(1, table(12));
    copies.left_until_stop.set(bytes_of(SEGMENT).len() as u64 + 1);
    let seen = copies.run();
    assert_eq!((seen.end, &seen.compared[..], seen.found.len()), (Some(End::Stopped), &[SEGMENT][..], 0));
    copies.left_until_stop.set(u64::MAX);
    let seen = copies.run_behind(Some(SEGMENT));
    assert_eq!(seen.compared, [table(12), table(20)]);
    assert_eq!(seen.found, [(table(12), Outcome::Replaced(MemberId(2)))]);
}
