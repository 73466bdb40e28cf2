//! A federation that is made up: backed up while its primaries come and go, and restored.

#![allow(clippy::unwrap_used)] // a test that cannot go on should say where

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use ecotone_membership::folder;
use ecotone_types::ServerId;

use super::federation::MAX_SHARD_TRIES;
use super::tests::{ALL, Made, make, objects};
use super::*;
use crate::founding::RestoredServer;

/// Two shards, each at a server of its own, as files in memory.
struct Given {
    id: String,
    feature_level: u32,
    shards: BTreeMap<u32, Made>,
    /// Tries of a shard that are in vain.
    in_vain: BTreeMap<u32, u32>,
    /// What was tried: the shard, and how often before.
    tried: Vec<(u32, u32)>,
}

impl Given {
    fn new() -> Given {
        let made = |number: u64| {
            let mut made = Made::new();
            made.lineage = format!("lineage {number}");
            made.write("values/000001.segment", number, 300_000);
            // Both have it: there is one object.
            made.write("OPTIONS", 9, 70_000);
            made
        };
        Given {
            id: "00000000000000aa".into(),
            feature_level: 2,
            shards: BTreeMap::from([(1, made(101)), (7, made(107))]),
            in_vain: BTreeMap::new(),
            tried: Vec::new(),
        }
    }

    fn read_bytes(&self) -> u64 {
        self.shards.values().map(|made| made.read_bytes).sum()
    }
}

/// A source that is lent, at a position.
struct Lent<'m>(&'m mut Made, u64);

impl Source for Lent<'_> {
    fn begin(&mut self) -> Result<Begun> {
        Ok(Begun { position: Some((5, self.1)), ..self.0.begin()? })
    }

    fn read(
        &mut self,
        file: &SourceFile,
        from: u64,
        limiter: &mut Limiter<'_>,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let read = self.0.read(file, from, limiter, take);
        // The next one lasts.
        if read.is_err() {
            self.0.left = None;
        }
        read
    }

    fn hash(&mut self, file: &SourceFile, from: u64, bytes: u64) -> Result<String> {
        self.0.hash(file, from, bytes)
    }

    fn keep(&mut self) -> Result<()> {
        self.0.keep()
    }

    fn end(&mut self, is_completed: bool) -> Result<()> {
        self.0.end(is_completed)
    }
}

impl FederationSource for Given {
    fn describe(&mut self) -> Result<SavedFederation> {
        let shard = |number: u32, slots: &[(u16, u16)]| SavedShard {
            shard: number,
            slots: slots.to_vec(),
            server: String::new(),
            store: String::new(),
            epoch: 0,
            number: None,
            time_ms: 0,
            files: 0,
            bytes: 0,
        };
        Ok(SavedFederation {
            id: self.id.clone(),
            generation: 2,
            map_version: 40,
            feature_level: self.feature_level,
            settings: BTreeMap::from([("replication.copies".into(), "3".into())]),
            shards: vec![shard(1, &[(0, 8191)]), shard(7, &[(8192, 16_383)])],
        })
    }

    fn shard(&mut self, shard: u32, tries: u32) -> Result<ShardSource<'_>> {
        self.tried.push((shard, tries));
        if self.in_vain.get(&shard).is_some_and(|in_vain| tries < *in_vain) {
            return Err(BackupError::Gone("no server is its primary now".into()));
        }
        let made = self.shards.get_mut(&shard).unwrap();
        Ok(ShardSource {
            server: format!("server-{shard}"),
            epoch: 4,
            source: Box::new(Lent(made, u64::from(shard) * 10)),
        })
    }
}

fn back_up_all(directory: &Path, given: &mut Given, keep: Option<u64>) -> Result<FederationBackupReport> {
    given.shards.values_mut().for_each(|made| made.read_bytes = 0);
    given.tried.clear();
    back_up_federation(directory, given, BackupOptions { keep, ..ALL }, &|| true, &mut |_| {})
}

fn first_server(saved: &SavedFederation) -> RestoredServer {
    RestoredServer { name: ServerId::new("first").unwrap(), zone: "north".into(), settings: saved.settings.clone() }
}

fn restore_all(backups: &Path, backup: Option<&str>, to: &Path) -> Result<FederationRestoreReport> {
    restore_federation(backups, backup, to, &first_server, &mut |_| {})
}

/// All files of the stores in a server's folder.
fn stores(server: &Path) -> BTreeMap<String, Vec<u8>> {
    let (mut found, mut folders) = (BTreeMap::new(), vec![server.join("store"), server.join("shards")]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.insert(path.strip_prefix(server).unwrap().display().to_string(), fs::read(path).unwrap());
            }
        }
    }
    found
}

fn contents(given: &Given) -> BTreeMap<String, Vec<u8>> {
    let of = |shard: &u32| if *shard == 1 { "store".to_owned() } else { format!("shards/{shard}") };
    let files = |(shard, made): (&u32, &Made)| {
        let folder = of(shard);
        made.files.iter().map(|(path, (content, _))| (format!("{folder}/{path}"), content.clone())).collect::<Vec<_>>()
    };
    given.shards.iter().flat_map(files).collect()
}

#[test]
fn all_shards_come_at_their_positions_and_another_federation_begins_with_them() {
    let directory = tempfile::tempdir().unwrap();
    let (backups, mut given) = (directory.path().join("backups"), Given::new());
    let report = back_up_all(&backups, &mut given, None).unwrap();
    let positions: Vec<_> =
        report.shards.iter().map(|shard| (shard.shard, shard.server.as_str(), shard.epoch, shard.number)).collect();
    assert_eq!(positions, [(1, "server-1", 5, Some(10)), (7, "server-7", 5, Some(70))]);
    assert!(given.shards.values().all(|made| made.ended == [true]));
    // What both have is there once: STORE, CURRENT and OPTIONS are the same in both.
    assert_eq!((report.backup.files, objects(&backups).len(), report.retries), (8, 5, 0));
    // The same again reads nothing.
    let again = back_up_all(&backups, &mut given, None).unwrap();
    assert_eq!((given.read_bytes(), again.backup.new_bytes), (0, 0));
    assert!(verify(&backups, None, &mut |_| {}).unwrap().is_sound());

    let restored: Vec<FederationRestoreReport> = ["one", "other"]
        .map(|name| {
            let to = directory.path().join(name);
            let report = restore_all(&backups, None, &to).unwrap();
            assert_eq!(stores(&to), contents(&given));
            assert!(!to.join("RESTORING").exists() && refuse_unfinished(&to).is_ok());
            let known = folder::read(&to.join(folder::CONTROL_FOLDER)).unwrap();
            let map = known.map;
            assert_eq!((map.federation.to_string(), map.generation), (report.federation.clone(), 1));
            assert_eq!(map.settings["replication.copies"], "3");
            let shards: Vec<_> = map
                .shards
                .iter()
                .map(|(id, shard)| (id.0, shard.slots[0].first, shard.primary, shard.epoch.0))
                .collect();
            assert_eq!(shards, [(1, 0, Some(known.member), 2), (7, 8192, Some(known.member), 2)]);
            assert_eq!(map.next_shard, 8, "a number of a shard is given twice");
            assert_eq!(map.server(known.member).unwrap().name.as_str(), "first");
            report
        })
        .into();
    // Each is another one.
    let ids: BTreeSet<&str> = restored.iter().map(|report| report.federation.as_str()).collect();
    assert!(ids.len() == 2 && !ids.contains(given.id.as_str()), "{ids:?}");
    assert!(restored.iter().all(|report| report.old_federation == given.id && report.restored.id == again.backup.id));
}

#[test]
fn a_primary_that_goes_is_looked_for_again_but_not_for_ever() {
    let directory = tempfile::tempdir().unwrap();
    let (backups, mut given) = (directory.path().join("backups"), Given::new());
    // It goes in the middle of a file, and whoever has the shard next has other stamps.
    given.shards.get_mut(&7).unwrap().left = Some(200_000);
    given.in_vain.insert(1, 2);
    let report = back_up_all(&backups, &mut given, None).unwrap();
    assert_eq!(given.tried, [(1, 0), (1, 1), (1, 2), (7, 0), (7, 1)]);
    assert_eq!((report.retries, &given.shards[&7].ended[..]), (3, &[false, true][..]));
    let resumed = report.backup.resumed_bytes;
    assert!((100_000..=200_000).contains(&resumed), "{resumed} bytes are gone on with");
    let to = directory.path().join("to");
    restore_all(&backups, None, &to).unwrap();
    assert_eq!(stores(&to), contents(&given));

    // One that has none for long ends it, with a name, and nothing has changed.
    given.in_vain.insert(7, u32::MAX);
    let error = back_up_all(&backups, &mut given, Some(1)).unwrap_err().to_string();
    assert!(error.contains("shard 7") && error.contains("cluster status"), "{error}");
    assert_eq!(given.tried.len() as u32, 1 + 2 + MAX_SHARD_TRIES);
    let entries = list(&backups).unwrap();
    assert_eq!(entries.iter().map(|entry| &entry.id).collect::<Vec<_>>(), [&report.backup.id]);
    assert!(verify(&backups, None, &mut |_| {}).unwrap().is_sound());
    // What does not pass is not tried again.
    given.in_vain.clear();
    given.shards.get_mut(&1).unwrap().write("../../evil", 1, 10);
    back_up_all(&backups, &mut given, None).unwrap_err();
    assert_eq!(given.tried, [(1, 0)]);
}

#[test]
fn what_this_version_cannot_restore_is_said_when_it_is_backed_up() {
    let directory = tempfile::tempdir().unwrap();
    let (backups, to) = (directory.path().join("backups"), directory.path().join("to"));
    let mut given = Given { feature_level: ecotone_membership::FEATURES.max + 1, ..Given::new() };
    let why = back_up_all(&backups, &mut given, None).unwrap().not_restorable.unwrap();
    let refused = restore_all(&backups, None, &to).unwrap_err().to_string();
    assert!(why == refused && refused.contains("newer version"), "{why} {refused}");
    assert!(!to.exists());
    given.feature_level -= 1;
    // Neither is anything written for who can be no server of it.
    let zone = |saved: &SavedFederation| RestoredServer { zone: "z".repeat(65), ..first_server(saved) };
    let name = |saved: &SavedFederation| RestoredServer {
        name: ServerId::new("n".repeat(65)).unwrap(),
        ..first_server(saved)
    };
    back_up_all(&backups, &mut given, None).unwrap();
    for server in [&zone as &dyn Fn(&SavedFederation) -> RestoredServer, &name] {
        restore_federation(&backups, None, &to, server, &mut |_| {}).unwrap_err();
        assert!(!to.exists());
    }
    assert_eq!(back_up_all(&backups, &mut given, None).unwrap().not_restorable, None);
}

#[test]
fn one_restores_at_a_time_and_only_into_the_folder_that_it_began_with() {
    let directory = tempfile::tempdir().unwrap();
    let (backups, mut given) = (directory.path().join("backups"), Given::new());
    back_up_all(&backups, &mut given, None).unwrap();
    let (to, aside) = (directory.path().join("to"), directory.path().join("aside"));
    let mut looks = 0;
    restore_federation(&backups, None, &to, &first_server, &mut |_| {
        looks += 1;
        let error = restore_all(&backups, None, &to).unwrap_err().to_string();
        assert!(error.contains("another restore"), "{error}");
        let refused = refuse_unfinished(&to).unwrap_err();
        assert!(refused.contains("under way"), "{refused}");
    })
    .unwrap();
    assert_eq!((looks, stores(&to)), (8, contents(&given)));
    refuse_unfinished(&to).unwrap();
    // One that was forgotten finds another folder in the place of its own, with what another
    // restore has made; or its own, which is a server by now.
    let lone = directory.path().join("lone");
    let store = make(&lone, &mut Made::new(), ALL).unwrap().id;
    for (name, is_replaced) in [("replaced", true), ("ended", false)] {
        let to = directory.path().join(name);
        let mut left = None;
        let error = restore(&lone, Some(&store), &to, &mut |at| {
            if at.done_files == 1 {
                if is_replaced {
                    fs::rename(&to, &aside).unwrap();
                    restore_all(&backups, None, &to).unwrap();
                } else {
                    fs::remove_file(to.join("RESTORING")).unwrap();
                }
                left = Some(stores(&to));
            }
        })
        .unwrap_err()
        .to_string();
        assert!(error.contains("nothing more is written"), "{error}");
        assert_eq!(Some(stores(&to)), left);
    }
}

#[test]
fn backups_of_federations_and_of_stores_are_kept_each_by_itself() {
    let directory = tempfile::tempdir().unwrap();
    let (backups, mut given, mut made) = (directory.path().join("backups"), Given::new(), Made::new());
    // Of a folder as older versions know it.
    let store = make(&backups, &mut made, ALL).unwrap().id;
    let marker = || fs::read_to_string(backups.join("ECOTONE-BACKUPS")).unwrap();
    assert_eq!(marker(), "ecotone backups\nformat 1\n");
    // Nothing came of this one.
    let mut in_vain = Given { in_vain: BTreeMap::from([(7, u32::MAX)]), ..Given::new() };
    back_up_all(&backups, &mut in_vain, None).unwrap_err();
    assert_eq!(marker(), "ecotone backups\nformat 1\n");
    let error = restore_all(&backups, None, &directory.path().join("x")).unwrap_err().to_string();
    assert!(error.contains("of one store") && error.contains("ecotone restore"), "{error}");
    for _ in 0..3 {
        back_up_all(&backups, &mut given, Some(2)).unwrap();
    }
    assert_eq!(marker(), "ecotone backups\nformat 2\n");
    let mut another = Given { id: "00000000000000bb".into(), ..Given::new() };
    let other = back_up_all(&backups, &mut another, Some(1)).unwrap().backup.id;
    let kept =
        |of: &str| list(&backups).unwrap().iter().filter(|entry| entry.manifest.as_ref().unwrap().store == of).count();
    assert_eq!(
        [kept("one"), kept("federation 00000000000000aa"), kept("federation 00000000000000bb")],
        [1, 2, 1],
        "each counts its own"
    );
    // Each is restored by its own command, and the newest is that of the kind.
    let to = |name: &str| directory.path().join(name);
    assert_eq!(restore(&backups, None, &to("store"), &mut |_| {}).unwrap().id, store);
    assert_eq!(restore_all(&backups, None, &to("federation")).unwrap().restored.id, other);
    let error = restore(&backups, Some(&other), &to("y"), &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("of a federation") && error.contains("ecotone cluster restore"), "{error}");
    make(&backups, &mut made, BackupOptions { keep: Some(1), ..ALL }).unwrap();
    assert_eq!([kept("one"), kept("federation 00000000000000aa")], [1, 2]);
    assert!(verify(&backups, None, &mut |_| {}).unwrap().is_sound());
}

#[test]
fn a_restore_that_is_cut_short_is_no_server_and_is_gone_on_with() {
    let directory = tempfile::tempdir().unwrap();
    let (backups, mut given) = (directory.path().join("backups"), Given::new());
    let id = back_up_all(&backups, &mut given, None).unwrap().backup.id;
    let entry = list(&backups).unwrap().remove(0);
    let files = entry.manifest.unwrap().files;
    // Each object in turn is damaged: by then some of the shards may be whole.
    for (number, file) in files.iter().enumerate() {
        let object = backups.join("objects").join(&file.object);
        let whole = fs::read(&object).unwrap();
        let mut damaged = whole.clone();
        damaged[whole.len() / 2] ^= 4;
        fs::write(&object, &damaged).unwrap();
        let to = directory.path().join(format!("to-{number}"));
        let error = restore_all(&backups, None, &to).unwrap_err().to_string();
        assert!(error.contains(&object.display().to_string()), "{error}");
        let refused = refuse_unfinished(&to).unwrap_err();
        assert!(refused.contains("ecotone cluster restore") && refused.contains(&id), "{refused}");
        assert!(!to.join("control").exists() && !to.join("identity").exists(), "it is a server: {}", file.path);
        let report = verify(&backups, None, &mut |_| {}).unwrap();
        assert!(report.damaged_objects[0].needed_by.contains(&format!("{id}: {}", file.path)), "{report:?}");
        fs::write(&object, &whole).unwrap();
        let report = restore_all(&backups, Some(&id), &to).unwrap();
        assert!(report.restored.resumed_bytes < report.restored.bytes);
        assert_eq!(stores(&to), contents(&given));
        refuse_unfinished(&to).unwrap();
    }
    // It was killed after its identity was made, or after the log: that one goes on.
    let to = directory.path().join("to-0");
    let made = folder::read(&to.join(folder::CONTROL_FOLDER)).unwrap().map.federation.to_string();
    fs::write(to.join("RESTORING"), format!("federation {id}")).unwrap();
    let other_name =
        |saved: &SavedFederation| RestoredServer { name: ServerId::new("other").unwrap(), ..first_server(saved) };
    let again = restore_federation(&backups, None, &to, &other_name, &mut |_| {}).unwrap();
    assert_eq!((again.federation, again.restored.resumed_bytes), (made, again.restored.bytes));
    assert_eq!(again.server, "first", "it is called what its identity says");
    // One that has ended is not overwritten, and neither is one of another kind gone on with.
    let error = restore_all(&backups, None, &to).unwrap_err().to_string();
    assert!(error.contains("nothing is overwritten"), "{error}");
    let other: PathBuf = directory.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("RESTORING"), "000009-x").unwrap();
    let error = restore_all(&backups, None, &other).unwrap_err().to_string();
    assert!(error.contains("`ecotone restore` and --backup 000009-x"), "{error}");
    refuse_unfinished(&other).unwrap();
}
