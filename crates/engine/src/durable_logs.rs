//! Up to where the logs are durable, kept over restarts: what of a WAL or of the MANIFEST no crash
//! can have taken.
//!
//! ```text
//!  0          8        16       24
//!  +----------+--------+--------+--------+- - -
//!  | MANIFEST | bytes  | WAL    | bytes  | 14 further WALs, in rising order; zeros where there is none
//!  +----------+--------+--------+--------+- - -      u64 each, little-endian: a file's number, and the first bytes of it that are durable
//! ```
//!
//! That is the payload of a [`SlotFile`], which is written right after each sync of a WAL or of the
//! MANIFEST. The file itself is synced with each sync of the MANIFEST, with the first one of each
//! WAL, and when the store is closed: not with each sync of a WAL, which would double what a
//! durable write costs. So after a kill it says all that was synced, and after a loss of power what
//! had been synced when the kernel wrote it back last, within its half minute at most.
//!
//! Invariants: what it says is true, and stays true whatever crash comes. A file is named only once
//! its own name is durable too. Logs are append-only, and no number is given twice; where one is
//! all the same, it is taken out before a byte is written.
//!
//! Threads: those of RocksDB that sync. Failure: no operation fails; what was said before stays
//! true, and damage behind it passes for what a crash leaves.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ecotone_io::tap::Tap;
use ecotone_io::tap::{TapEvent, WriteTap};
use ecotone_valuelog::slots::{self, SlotFile};
use parking_lot::Mutex;

use crate::identity::sync_directory;
use crate::{Error, Result};

/// The file's name, in the store's folder.
pub(crate) const DURABLE_FILE: &str = "DURABLE";

/// WALs that are remembered, the newest. There is one for each memtable that is not flushed yet.
const MAX_WALS: usize = 15;

const END_BYTES: usize = 16;
const PAYLOAD_BYTES: usize = END_BYTES * (1 + MAX_WALS);

/// Of a file so many bytes are durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DurableEnd {
    number: u64,
    bytes: u64,
}

/// Up to where the logs are durable.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DurableLogs {
    manifest: Option<DurableEnd>,
    /// By rising number.
    wals: Vec<DurableEnd>,
}

impl DurableLogs {
    /// What is kept in `directory`; nothing where there is nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] where there is a file that cannot be read.
    pub(crate) fn read(directory: &Path) -> Result<Self> {
        Ok(slots::read(&directory.join(DURABLE_FILE), decode)?.unwrap_or_default())
    }

    /// So many bytes of this log are durable; 0 where nobody knows.
    pub(crate) fn bytes_of(&self, log: LogName) -> u64 {
        let mut ends = match log {
            LogName::Manifest(_) => self.manifest.as_slice().iter(),
            LogName::Wal(_) => self.wals.iter(),
        };
        ends.find(|end| end.number == log.number()).map_or(0, |end| end.bytes)
    }

    /// The newest WAL of which anything is durable.
    pub(crate) fn newest_wal(&self) -> Option<u64> {
        self.wals.last().map(|end| end.number)
    }

    /// So many bytes of `log` are durable from now on, unless more were.
    fn raise(&mut self, log: LogName, bytes: u64) {
        let bytes = bytes.max(self.bytes_of(log));
        match log {
            LogName::Manifest(number) => self.manifest = Some(DurableEnd { number, bytes }),
            LogName::Wal(number) => {
                self.forget(number);
                let at = self.wals.partition_point(|end| end.number < number);
                self.wals.insert(at, DurableEnd { number, bytes });
                let surplus = self.wals.len().saturating_sub(MAX_WALS);
                self.wals.drain(..surplus);
            }
        }
    }

    /// The WAL is gone. Whether it was known.
    fn forget(&mut self, wal: u64) -> bool {
        let before = self.wals.len();
        self.wals.retain(|end| end.number != wal);
        self.wals.len() < before
    }
}

/// The logs of RocksDB, by their numbers, which they share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LogName {
    /// Which tables there are.
    Manifest(u64),
    /// A write-ahead log.
    Wal(u64),
}

impl LogName {
    /// The log that this path names, if it does.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let number = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok());
        match (name.strip_suffix(".log"), name.strip_prefix("MANIFEST-")) {
            (Some(digits), _) => number(digits)?.map(Self::Wal),
            (None, Some(digits)) => number(digits)?.map(Self::Manifest),
            (None, None) => None,
        }
    }

    const fn number(self) -> u64 {
        match self {
            Self::Manifest(number) | Self::Wal(number) => number,
        }
    }
}

fn encode(logs: &DurableLogs) -> [u8; PAYLOAD_BYTES] {
    let mut payload = [0; PAYLOAD_BYTES];
    let (of_manifest, of_wals) = payload.split_at_mut(END_BYTES);
    let of_manifest = std::iter::once(of_manifest).zip(logs.manifest.as_slice());
    for (place, end) in of_manifest.chain(of_wals.chunks_mut(END_BYTES).zip(&logs.wals)) {
        place[..8].copy_from_slice(&end.number.to_le_bytes());
        place[8..].copy_from_slice(&end.bytes.to_le_bytes());
    }
    payload
}

fn decode(payload: &[u8; PAYLOAD_BYTES]) -> Option<DurableLogs> {
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |number: u64, byte| number << 8 | u64::from(*byte));
    let mut ends = payload.chunks(END_BYTES).map(|place| {
        let (number, bytes) = (number(&place[..8]), number(&place[8..]));
        (number != 0 || bytes != 0).then_some(DurableEnd { number, bytes })
    });
    let manifest = ends.next()?;
    let places: Vec<_> = ends.collect();
    let wals: Vec<_> = places.iter().map_while(|end| *end).collect();
    // What this version does not write it does not take on trust.
    let rises = wals.windows(2).all(|pair| pair[0].number < pair[1].number);
    let rest_is_free = places[wals.len()..].iter().all(Option::is_none);
    (rises && rest_is_free).then_some(DurableLogs { manifest, wals })
}

/// Hears of the syncs of RocksDB's files, and keeps up to where they are durable. Sits in the file
/// system under RocksDB, before all other taps.
pub(crate) struct DurableTap {
    directory: PathBuf,
    next: Option<Arc<dyn WriteTap>>,
    /// Of the store: it is told what is written here.
    tap: Tap,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    /// Opened with the first sync: before that another process may have the store.
    file: Option<SlotFile<PAYLOAD_BYTES>>,
    logs: DurableLogs,
    /// WALs up to this number have names that are durable.
    named_to: u64,
    warned: bool,
}

impl DurableTap {
    /// Of the store in `directory`, which is about to be opened for writing. `tap` is the store's
    /// own, `next` what hears of RocksDB's files after this.
    pub(crate) fn new(directory: &Path, tap: Tap, next: Option<Arc<dyn WriteTap>>) -> Arc<Self> {
        Arc::new(Self { directory: directory.to_path_buf(), next, tap, kept: Mutex::default() })
    }

    /// The store is closed: brings what is known to the device.
    pub(crate) fn close(&self) {
        let kept = &mut *self.kept.lock();
        if let Some(file) = &mut kept.file {
            let synced = file.sync();
            kept.warn_once(synced.map_err(Error::from));
        }
    }

    fn synced(&self, log: LogName, len: u64) {
        let kept = &mut *self.kept.lock();
        if let Err(error) = self.keep(kept, log, len) {
            // It is opened again.
            kept.file = None;
            kept.warn_once(Err(error));
        }
    }

    fn keep(&self, kept: &mut Kept, log: LogName, len: u64) -> Result<()> {
        let begins = match log {
            LogName::Manifest(_) => true,
            LogName::Wal(number) => number > kept.named_to,
        };
        if let LogName::Wal(number) = log
            && begins
        {
            sync_directory(&self.directory, &self.tap)?;
            kept.named_to = number;
        }
        let (file, logs) = self.open(kept)?;
        logs.raise(log, len);
        file.write(&encode(logs))?;
        if begins { Ok(file.sync()?) } else { Ok(()) }
    }

    /// The file, and what is known.
    fn open<'k>(&self, kept: &'k mut Kept) -> Result<(&'k mut SlotFile<PAYLOAD_BYTES>, &'k mut DurableLogs)> {
        let file = match kept.file.take() {
            Some(file) => file,
            None => {
                let (file, found) = SlotFile::open(self.directory.join(DURABLE_FILE), &self.tap, decode)?;
                // After a failure more is known than was written.
                if kept.logs == DurableLogs::default() {
                    kept.logs = found.unwrap_or_default();
                }
                file
            }
        };
        Ok((kept.file.insert(file), &mut kept.logs))
    }

    /// That a WAL is gone can be said with the next sync.
    fn deleted(&self, wal: u64) {
        self.kept.lock().logs.forget(wal);
    }

    /// What is said of a WAL that is new would be wrong.
    fn created(&self, wal: u64) {
        let kept = &mut *self.kept.lock();
        let forgotten = self.open(kept).and_then(|(file, logs)| match logs.forget(wal) {
            true => file.write(&encode(logs)).and_then(|()| file.sync()).map_err(Error::from),
            false => Ok(()),
        });
        kept.warn_once(forgotten);
    }
}

impl Kept {
    fn warn_once(&mut self, outcome: Result<(), Error>) {
        if let Err(error) = outcome
            && !std::mem::replace(&mut self.warned, true)
        {
            tracing::warn!(%error, "how much of the logs is durable could not be kept: later damage of them may pass for what a crash leaves");
        }
    }
}

impl WriteTap for DurableTap {
    fn record(&self, event: TapEvent<'_>) -> std::io::Result<()> {
        if let Some(next) = &self.next {
            next.record(event)?;
        }
        let (TapEvent::Synced { path, .. } | TapEvent::Deleted { path } | TapEvent::Created { path }) = event else {
            return Ok(());
        };
        // A checkpoint is made through the same file system.
        let Some(log) = LogName::of(path).filter(|_| path.parent() == Some(self.directory.as_path())) else {
            return Ok(());
        };
        match (event, log) {
            (TapEvent::Synced { len, .. }, log) => self.synced(log, len),
            (TapEvent::Created { .. }, LogName::Wal(number)) => self.created(number),
            (TapEvent::Deleted { .. }, LogName::Wal(number)) => self.deleted(number),
            _ => (),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::mutation::mutated;

    fn logs(manifest: Option<(u64, u64)>, wals: &[(u64, u64)]) -> DurableLogs {
        let end = |(number, bytes)| DurableEnd { number, bytes };
        DurableLogs { manifest: manifest.map(end), wals: wals.iter().copied().map(end).collect() }
    }

    #[test]
    fn names_of_logs_and_of_nothing_else() {
        let named = |name: &str| LogName::of(&Path::new("/d").join(name));
        assert_eq!(named("000012.log"), Some(LogName::Wal(12)));
        assert_eq!(named("MANIFEST-000005"), Some(LogName::Manifest(5)));
        for other in ["LOG", "000012.sst", "MANIFEST", "MANIFEST-x", "x.log", "+1.log", "CURRENT", "MANIFEST-5.dbtmp"] {
            assert_eq!(named(other), None, "{other}");
        }
    }

    #[test]
    fn a_mutated_payload_is_one_or_none() {
        let many: Vec<_> = (1..=MAX_WALS as u64).map(|number| (number, u64::MAX)).collect();
        let originals = [logs(None, &[]), logs(Some((5, 700)), &[(4, 1), (9, 2)]), logs(Some((1, 1)), &many)];
        mutated(&originals.map(|logs| encode(&logs).to_vec()), |bytes, _| {
            let Ok(payload) = <&[u8; PAYLOAD_BYTES]>::try_from(&bytes[..]) else { return };
            if let Some(logs) = decode(payload) {
                assert_eq!(encode(&logs), *payload);
            }
        });
    }

    /// What was told of changes, in words.
    #[derive(Default)]
    struct RecordedTap(Mutex<Vec<String>>);

    impl WriteTap for RecordedTap {
        fn record(&self, event: TapEvent<'_>) -> std::io::Result<()> {
            let what = match event {
                TapEvent::Synced { .. } => "synced",
                TapEvent::DirectorySynced { .. } => "names",
                TapEvent::Appended { .. } => "written",
                _ => return Ok(()),
            };
            let name = event.path().file_name().unwrap_or_default().to_str().unwrap().to_owned();
            self.0.lock().push(format!("{what} {}", if what == "names" { "" } else { &name }).trim_end().into());
            Ok(())
        }
    }

    fn tapped(directory: &Path) -> (Arc<RecordedTap>, Arc<DurableTap>) {
        let told = Arc::<RecordedTap>::default();
        (told.clone(), DurableTap::new(directory, Tap::new(told.clone()), Some(told)))
    }

    fn sync(tap: &DurableTap, path: &Path, len: u64) {
        tap.record(TapEvent::Synced { path, len }).unwrap();
    }

    #[test]
    fn the_bytes_are_those_of_the_documentation() {
        let directory = tempfile::tempdir().unwrap();
        let (_, tap) = tapped(directory.path());
        sync(&tap, &directory.path().join("MANIFEST-000005"), 1093);
        (0..2).for_each(|_| sync(&tap, &directory.path().join("000008.log"), 65_636));
        let numbers = [3, 5, 1093, 8, 65_636].map(u64::to_le_bytes).concat();
        let slot = [&numbers[..], &[0; 224], &[0xC4, 0xBA, 0x56, 0x89]].concat();
        assert_eq!(fs::read(directory.path().join(DURABLE_FILE)).unwrap()[512..], slot);
    }

    #[test]
    fn a_log_is_named_once_its_name_is_durable_and_on_the_device_with_its_first_sync() {
        let directory = tempfile::tempdir().unwrap();
        let (told, tap) = tapped(directory.path());
        let wal = directory.path().join("000004.log");
        let manifest = directory.path().join("MANIFEST-000005");
        sync(&tap, &manifest, 50);
        assert_eq!(*told.0.lock(), ["synced MANIFEST-000005", "written DURABLE", "synced DURABLE", "names"]);
        told.0.lock().clear();
        sync(&tap, &wal, 100);
        assert_eq!(*told.0.lock(), ["synced 000004.log", "names", "written DURABLE", "synced DURABLE"]);
        told.0.lock().clear();
        sync(&tap, &wal, 300);
        // Who synced earlier and comes later does not move it back.
        sync(&tap, &wal, 200);
        let further = ["synced 000004.log", "written DURABLE"];
        assert_eq!(*told.0.lock(), [further, further].concat());
        assert_eq!(DurableLogs::read(directory.path()).unwrap(), logs(Some((5, 50)), &[(4, 300)]));
        // Those of a checkpoint are others, and segments are no logs.
        sync(&tap, &directory.path().join("copy/000004.log"), 900);
        sync(&tap, &directory.path().join("values/000004.segment"), 900);
        assert_eq!(DurableLogs::read(directory.path()).unwrap(), logs(Some((5, 50)), &[(4, 300)]));
        drop(tap);
        let (_, tap) = tapped(directory.path());
        sync(&tap, &directory.path().join("000008.log"), 7);
        let read = DurableLogs::read(directory.path()).unwrap();
        assert_eq!(read, logs(Some((5, 50)), &[(4, 300), (8, 7)]));
        assert_eq!(
            (read.newest_wal(), read.bytes_of(LogName::Wal(4)), read.bytes_of(LogName::Wal(5))),
            (Some(8), 300, 0)
        );
    }

    #[test]
    fn the_newest_wals_are_kept_and_those_that_are_gone_are_not() {
        let directory = tempfile::tempdir().unwrap();
        let (_, tap) = tapped(directory.path());
        let wal = |number: u64| directory.path().join(format!("{number:06}.log"));
        (1..=20).for_each(|number| sync(&tap, &wal(number), number * 10));
        tap.record(TapEvent::Deleted { path: &wal(19) }).unwrap();
        sync(&tap, &wal(20), 999);
        let read = DurableLogs::read(directory.path()).unwrap();
        let kept = |number| read.bytes_of(LogName::Wal(number));
        assert_eq!((kept(5), kept(6), kept(18), kept(19), kept(20)), (0, 60, 180, 0, 999));
    }

    #[test]
    fn of_a_number_that_is_given_again_nothing_is_said_before_its_own_sync() {
        let directory = tempfile::tempdir().unwrap();
        let (_, tap) = tapped(directory.path());
        let wal = directory.path().join("000004.log");
        sync(&tap, &wal, 100);
        drop(tap);
        let (told, tap) = tapped(directory.path());
        tap.record(TapEvent::Created { path: &wal }).unwrap();
        assert_eq!(*told.0.lock(), ["written DURABLE", "synced DURABLE", "names"]);
        assert_eq!(DurableLogs::read(directory.path()).unwrap(), logs(None, &[]));
    }

    #[test]
    fn a_file_that_cannot_be_written_fails_no_sync() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join(DURABLE_FILE)).unwrap();
        let (_, tap) = tapped(directory.path());
        let wal = directory.path().join("000004.log");
        sync(&tap, &wal, 100);
        fs::remove_dir(directory.path().join(DURABLE_FILE)).unwrap();
        sync(&tap, &wal, 200);
        assert_eq!(DurableLogs::read(directory.path()).unwrap(), logs(None, &[(4, 200)]));
    }
}
