//! What one backup consists of.
//!
//! A file of two lines of JSON: what it is about, and the SHA-256 of the first line.

use std::path::{Component, Path};

use ecotone_resp::backups::sha256;
use serde::{Deserialize, Serialize};

/// The version of everything in a folder of backups.
pub(super) const FORMAT: u32 = 1;

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
    /// What its store has in common with its other backups.
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
}

/// A file of a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestFile {
    /// Where it lies in the store's folder, with `/` between names.
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
        if format != FORMAT {
            return Err(format!("it is of format {format}, and this version reads {FORMAT}: use a newer version"));
        }
        let manifest: Self = serde_json::from_str(line).map_err(wrong)?;
        match manifest.files.iter().find(|file| !is_within(&file.path) || !is_object(&file.object)) {
            Some(file) => Err(format!("it names a file that no store has: {:?}", file.path)),
            None => Ok(manifest),
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
    fn nothing_leads_out_of_the_folder_and_no_later_format_is_read() {
        let mut later = manifest();
        later.format = 2;
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
