//! What one backup consists of: of a store, or of all shards of a federation.
//!
//! A file of two lines of JSON: what it is about, and the SHA-256 of the first line.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};

use ecotone_engine::IDENTITY_FILE;
use ecotone_keyspace::ShardId;
use ecotone_resp::backups::sha256;
use serde::{Deserialize, Serialize};

use crate::stores::ShardOptions;

/// The version of a backup of one store.
pub(super) const FORMAT: u32 = 1;

/// The version of a backup of a federation, and of a folder that may hold some.
pub(super) const FEDERATION_FORMAT: u32 = 2;

/// The slots that the shards of a federation have together.
const SLOTS: u32 = 16_384;

/// With this file a folder is not a place for a new store.
pub(super) const CURRENT: &str = "CURRENT";

/// Digits of an object's name.
const DIGEST_DIGITS: usize = 64;

/// A backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The version of what follows.
    pub format: u32,
    /// Its name: in the order of their names backups were made.
    pub id: String,
    /// The version of the program that made it.
    pub program: String,
    /// What its store, or federation, has in common with its other backups.
    pub store: String,
    /// The moment that it shows, in ms since 1970.
    pub time_ms: u64,
    /// How long the copying took.
    pub took_ms: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Bytes that had to be read for it: the others were there.
    pub new_bytes: u64,
    /// Its files.
    pub files: Vec<ManifestFile>,
    /// The federation, where it is of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub federation: Option<SavedFederation>,
}

/// A federation as it was when its backup began, without its servers: another one is made of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedFederation {
    /// Its id, in hexadecimal digits.
    pub id: String,
    /// Its generation.
    pub generation: u64,
    /// The version of the map that was read.
    pub map_version: u64,
    /// Its feature level.
    pub feature_level: u32,
    /// Its settings.
    pub settings: BTreeMap<String, String>,
    /// Its shards, by number.
    pub shards: Vec<SavedShard>,
}

/// One shard of it, as its primary had it at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedShard {
    /// Its number.
    pub shard: u32,
    /// The first and the last slot of each of its ranges.
    pub slots: Vec<(u16, u16)>,
    /// The server that it was read of.
    pub server: String,
    /// What its store has in common with its other backups.
    pub store: String,
    /// The epoch of its primary.
    pub epoch: u64,
    /// All that was written in this epoch up to here is in it, and all of earlier ones; none where the
    /// shard has one copy that nobody follows.
    pub number: Option<u64>,
    /// The moment that it shows, in ms since 1970.
    pub time_ms: u64,
    /// How many files it has.
    pub files: u64,
    /// Bytes of these.
    pub bytes: u64,
}

impl SavedShard {
    /// Where its store lies in a server's folder, with `/` between names.
    pub fn folder(&self) -> String {
        folder_of(self.shard)
    }
}

/// Where the store of a shard lies in a server's folder, with `/` between names.
pub(super) fn folder_of(shard: u32) -> String {
    let folder = ShardOptions { id: ShardId(shard), slots: Vec::new() }.directory(Path::new(""));
    folder.to_string_lossy().into_owned()
}

/// A file of a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestFile {
    /// Where it lies in the store's folder, or for a federation in the server's; with `/` between
    /// names.
    pub path: String,
    /// Its length.
    pub bytes: u64,
    /// The SHA-256 of what it holds, in hexadecimal digits: the name of the object.
    pub object: String,
    /// By which the store's server distinguished it from other files.
    pub stamp: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Checksum {
    sha256: String,
}

impl Manifest {
    /// The contents of the file.
    ///
    /// # Errors
    ///
    /// No known reason: it has nothing that JSON has not.
    pub(super) fn encode(&self) -> Result<Vec<u8>, String> {
        let line = serde_json::to_string(self).map_err(|error| error.to_string())?;
        let checksum = Checksum { sha256: sha256(line.as_bytes()) };
        let checksum = serde_json::to_string(&checksum).map_err(|error| error.to_string())?;
        Ok(format!("{line}\n{checksum}\n").into_bytes())
    }

    /// What `bytes` say.
    ///
    /// # Errors
    ///
    /// What is wrong with them.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "it is no text".to_owned())?;
        let (line, rest) = text.split_once('\n').ok_or("it ends early")?;
        let checksum: Checksum = serde_json::from_str(rest).map_err(|error| format!("its checksum: {error}"))?;
        if checksum.sha256 != sha256(line.as_bytes()) {
            return Err("its checksum is another".into());
        }
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        let wrong = |error: serde_json::Error| error.to_string();
        let Version { format } = serde_json::from_str(line).map_err(wrong)?;
        if ![FORMAT, FEDERATION_FORMAT].contains(&format) {
            return Err(format!(
                "it is of format {format}, and this version reads up to {FEDERATION_FORMAT}: use a newer version"
            ));
        }
        let manifest: Self = serde_json::from_str(line).map_err(wrong)?;
        if let Some(file) = manifest.files.iter().find(|file| !is_within(&file.path) || !is_object(&file.object)) {
            return Err(format!("it names a file that no store has: {:?}", file.path));
        }
        match &manifest.federation {
            Some(federation) => federation.check(&manifest.files)?,
            None if format == FEDERATION_FORMAT => return Err("it is of no federation".into()),
            None => {}
        }
        Ok(manifest)
    }
}

impl SavedFederation {
    /// Whether it has each slot once, and all that a store needs of each shard.
    pub(super) fn check(&self, files: &[ManifestFile]) -> Result<(), String> {
        let paths: BTreeSet<&str> = files.iter().map(|file| file.path.as_str()).collect();
        if paths.len() != files.len() {
            return Err("it names a file twice".into());
        }
        let numbers: BTreeSet<u32> = self.shards.iter().map(|shard| shard.shard).collect();
        if numbers.len() != self.shards.len() || numbers.contains(&0) {
            return Err("it names a shard twice, or one that there is not".into());
        }
        let mut ranges: Vec<(u16, u16)> = self.shards.iter().flat_map(|shard| shard.slots.iter().copied()).collect();
        ranges.sort_unstable();
        let mut next = 0;
        for (first, last) in ranges {
            if u32::from(first) != next || last < first {
                return Err(format!("slots {first} to {last} come where {next} should"));
            }
            next = u32::from(last) + 1;
        }
        if next != SLOTS {
            return Err(format!("no shard has slot {next}"));
        }
        let folders: Vec<String> = self.shards.iter().map(|shard| shard.folder() + "/").collect();
        for folder in &folders {
            let lacks =
                [CURRENT, IDENTITY_FILE].into_iter().find(|name| !paths.contains(format!("{folder}{name}").as_str()));
            if let Some(name) = lacks {
                return Err(format!("{folder}{name} is missing, so it is of no store"));
            }
        }
        let is_of_shard = |path: &str| folders.iter().any(|folder| path.starts_with(folder.as_str()));
        match paths.into_iter().find(|path| !is_of_shard(path)) {
            Some(path) => Err(format!("it names a file of no shard: {path:?}")),
            None => Ok(()),
        }
    }
}

/// Whether a path leads to a file below where it is joined to.
pub(super) fn is_within(path: &str) -> bool {
    !path.is_empty()
        && !path.contains('\0')
        && Path::new(path).components().all(|part| matches!(part, Component::Normal(_)))
}

/// Whether it is an object's name.
pub(super) fn is_object(name: &str) -> bool {
    name.len() == DIGEST_DIGITS && name.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

/// The name of the backup after those up to `last`, of a moment: by number, and by time for people.
pub(super) fn next_id(last: Option<u64>, time_ms: u64) -> String {
    format!("{:06}-{}", last.map_or(1, |last| last + 1), utc(time_ms / 1000))
}

/// The number in a name.
pub(super) fn number_of(id: &str) -> Option<u64> {
    id.split_once('-').and_then(|(number, _)| number.parse().ok())
}

/// `20261128T021650Z`.
fn utc(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years from March on, in cycles of 400 (Howard Hinnant's `civil_from_days`).
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}{month:02}{day:02}T{:02}{:02}{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        let file = |path: &str| ManifestFile {
            path: path.into(),
            bytes: 7,
            object: sha256(path.as_bytes()),
            stamp: "1-2.3".into(),
        };
        Manifest {
            format: FORMAT,
            id: "000001-20261128T021650Z".into(),
            program: "0.1.0".into(),
            store: "a".into(),
            time_ms: 1,
            took_ms: 2,
            bytes: 14,
            new_bytes: 7,
            files: vec![file("CURRENT"), file("values/000001.segment")],
            federation: None,
        }
    }

    /// Two shards, of which the second has two ranges.
    fn of_federation() -> Manifest {
        let shard = |shard, slots: &[(u16, u16)]| SavedShard {
            shard,
            slots: slots.to_vec(),
            server: "a".into(),
            store: format!("lineage {shard}"),
            epoch: 3,
            number: Some(9),
            time_ms: 1,
            files: 2,
            bytes: 14,
        };
        let file = |path: &str| ManifestFile { path: path.into(), object: sha256(b""), ..manifest().files[0].clone() };
        let files = ["store/CURRENT", "store/STORE", "shards/7/CURRENT", "shards/7/STORE"].map(file).to_vec();
        let federation = SavedFederation {
            id: "00000000000000aa".into(),
            generation: 1,
            map_version: 20,
            feature_level: 2,
            settings: BTreeMap::from([("replication.copies".into(), "3".into())]),
            shards: vec![shard(1, &[(100, 8000)]), shard(7, &[(0, 99), (8001, 16_383)])],
        };
        Manifest { format: FEDERATION_FORMAT, files, federation: Some(federation), ..manifest() }
    }

    #[test]
    fn a_federation_is_read_only_with_all_slots_and_whole_stores() {
        let whole = of_federation();
        assert_eq!(Manifest::decode(&whole.encode().unwrap()).unwrap(), whole);
        let refused = |change: &dyn Fn(&mut Manifest)| {
            let mut other = of_federation();
            change(&mut other);
            Manifest::decode(&other.encode().unwrap()).unwrap_err()
        };
        let shards = |manifest: &mut Manifest| manifest.federation.take().unwrap();
        for (said, change) in [
            ("no federation", &(|manifest: &mut Manifest| drop(shards(manifest))) as &dyn Fn(&mut Manifest)),
            ("no shard has slot 8001", &|manifest| {
                let mut federation = shards(manifest);
                federation.shards[1].slots.pop();
                manifest.federation = Some(federation);
            }),
            ("slots 100 to 8000 come where 101 should", &|manifest| {
                let mut federation = shards(manifest);
                federation.shards[1].slots[0].1 = 100;
                manifest.federation = Some(federation);
            }),
            ("a shard twice", &|manifest| {
                let mut federation = shards(manifest);
                federation.shards[1].shard = 1;
                manifest.federation = Some(federation);
            }),
            ("shards/7/STORE is missing", &|manifest| drop(manifest.files.pop())),
            ("of no shard: \"shards/8/x\"", &|manifest| {
                let file = manifest.files[0].clone();
                manifest.files.push(ManifestFile { path: "shards/8/x".into(), ..file });
            }),
            ("a file twice", &|manifest| manifest.files.push(manifest.files[0].clone())),
        ] {
            let why = refused(change);
            assert!(why.contains(said), "{said}: {why}");
        }
    }

    #[test]
    fn what_is_written_is_read_and_any_other_byte_is_refused() {
        let bytes = manifest().encode().unwrap();
        assert_eq!(Manifest::decode(&bytes).unwrap(), manifest());
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1;
            if let Ok(read) = Manifest::decode(&other) {
                // White space around the checksum is nobody's.
                assert_eq!(read, manifest(), "byte {at}");
            }
            assert!(Manifest::decode(&bytes[..at]).is_err() || at == bytes.len() - 1, "cut at {at}");
        }
    }

    #[test]
    fn a_backup_of_a_store_is_as_older_versions_write_and_read_it() {
        let file = |path: &str| {
            format!(
                "{{\"path\":\"{path}\",\"bytes\":7,\"object\":\"{}\",\"stamp\":\"1-2.3\"}}",
                sha256(path.as_bytes())
            )
        };
        let line = format!(
            "{{\"format\":1,\"id\":\"000001-20261128T021650Z\",\"program\":\"0.1.0\",\"store\":\"a\",\"time_ms\":1,\"took_ms\":2,\
             \"bytes\":14,\"new_bytes\":7,\"files\":[{},{}]}}",
            file("CURRENT"),
            file("values/000001.segment")
        );
        let text = format!("{line}\n{{\"sha256\":\"{}\"}}\n", sha256(line.as_bytes()));
        assert_eq!(String::from_utf8(manifest().encode().unwrap()).unwrap(), text);
        assert_eq!(Manifest::decode(text.as_bytes()).unwrap(), manifest());
    }

    #[test]
    fn nothing_leads_out_of_the_folder_and_no_later_format_is_read() {
        let mut later = manifest();
        later.format = 3;
        assert!(Manifest::decode(&later.encode().unwrap()).unwrap_err().contains("use a newer version"));
        for path in ["", "/etc/passwd", "../STORE", "values/../../x", "a\0b", "./x"] {
            let mut wrong = manifest();
            wrong.files[1].path = path.into();
            assert!(Manifest::decode(&wrong.encode().unwrap()).is_err(), "{path:?}");
        }
        let mut wrong = manifest();
        wrong.files[0].object = "../../x".into();
        assert!(Manifest::decode(&wrong.encode().unwrap()).is_err());
    }

    #[test]
    fn names_are_in_the_order_of_time() {
        for (seconds, text) in [
            (0, "19700101T000000Z"),
            (951_782_400, "20000229T000000Z"),
            (951_868_799, "20000229T235959Z"),
            (1_709_164_800, "20240229T000000Z"),
            (1_795_832_210, "20261128T021650Z"),
            (4_107_542_400, "21000301T000000Z"),
        ] {
            assert_eq!(utc(seconds), text);
        }
        assert_eq!(next_id(None, 0), "000001-19700101T000000Z");
        assert_eq!(number_of(&next_id(Some(41), 0)), Some(42));
    }
}
