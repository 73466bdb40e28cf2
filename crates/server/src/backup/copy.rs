//! Makes a backup: reads of a store what is not there yet, and writes down what it consists of.
//!
//! What is there already is found in three ways, the cheapest first. A file with the path, length
//! and stamp of one in an earlier backup of the store is the same file. One that was copied for a
//! backup which was cut short is in a journal. And of a long file, objects of its length are
//! compared with it, by checksums that the server computes: so a store that was restored, or moved
//! to another machine, is not read over the network again.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ecotone_resp::backups::sha256;
use serde::Serialize;

use super::manifest::{FORMAT, Manifest, ManifestFile, is_object, is_within, next_id};
use super::objects::Partial;
use super::repository::{Pruned, Repository};
use super::{BackupError, Begun, Limiter, MAX_COMPARED_BYTES, MAX_PIECE_BYTES, Result, Source, SourceFile};

/// A shorter file is read rather than compared.
const MIN_COMPARED_BYTES: u64 = 64 << 10;

/// Objects that a file is compared with.
const MAX_CANDIDATES: usize = 4;

/// Pieces whose checksums are compared at a time: so that a server is asked before it gives up,
/// however slowly it may be read.
const PIECES_COMPARED: u64 = 32;

/// Time in which a source is asked for something, whatever else there is to do: less than after
/// what a server gives a backup up.
const ASKS_EVERY: Duration = Duration::from_secs(20);

/// Digits of the name under which a file comes.
const PARTIAL_DIGITS: usize = 32;

/// What was copied for a backup that is not complete.
const JOURNAL: &str = "KNOWN";

/// What is asked of a backup.
#[derive(Debug, Clone, Copy)]
pub struct BackupOptions {
    /// The most bytes a second that are read of the store; `None`: as fast as it goes.
    pub limit_bytes_per_s: Option<u64>,
    /// How many backups of the store stay, this one included; `None`: all.
    pub keep: Option<u64>,
}

/// How far it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CopyProgress {
    /// Files that are there.
    pub done_files: u64,
    /// All files.
    pub files: u64,
    /// Bytes that are there.
    pub done_bytes: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Bytes that were read for it.
    pub new_bytes: u64,
}

/// What a backup came to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BackupReport {
    /// Its name.
    pub id: String,
    /// The moment that it shows, in ms since 1970.
    pub time_ms: u64,
    /// Its files.
    pub files: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Files that had to be read, whole or in part.
    pub new_files: u64,
    /// Bytes that were read.
    pub new_bytes: u64,
    /// Bytes that the server only computed checksums of, since they might be there already, and of
    /// which most were.
    pub compared_bytes: u64,
    /// Bytes of those files that an earlier try had read.
    pub resumed_bytes: u64,
    /// How long it took.
    pub took_ms: u64,
    /// Older backups that were removed.
    pub removed_backups: u64,
    /// Objects that no backup needed any more.
    pub removed_objects: u64,
    /// Their bytes.
    pub removed_bytes: u64,
    /// Why nothing was removed, where it should have been.
    pub not_removed: Option<String>,
}

/// Makes a backup of `source` in `directory`, which becomes a folder of backups if there is
/// nothing. It is complete, and durable, when this returns.
///
/// # Errors
///
/// What went wrong, and what to do. What has come is kept for the next try.
pub fn back_up(
    directory: &std::path::Path,
    source: &mut dyn Source,
    options: BackupOptions,
    goes_on: &dyn Fn() -> bool,
    progress: &mut dyn FnMut(CopyProgress),
) -> Result<BackupReport> {
    let began = Instant::now();
    let repository = Repository::create_or_open(directory)?;
    let begun = source.begin()?;
    let mut limiter = Limiter::new(options.limit_bytes_per_s, goes_on);
    let copied = Known::read(&repository, &begun.store).and_then(|mut known| {
        let mut copying = Copying::new(&repository, source, &mut limiter, &mut known, "", &begun, progress);
        let files = copying.all(&begun.files)?;
        Ok((files, copying.at, copying.counts))
    });
    let manifest = copied.and_then(|(files, at, counts)| {
        let manifest = Manifest {
            format: FORMAT,
            id: next_id(repository.last_number()?, begun.time_ms),
            program: env!("CARGO_PKG_VERSION").into(),
            store: begun.store.clone(),
            time_ms: begun.time_ms,
            took_ms: began.elapsed().as_millis() as u64,
            bytes: at.bytes,
            new_bytes: at.new_bytes,
            files,
            federation: None,
        };
        repository.commit(&manifest).map(|()| (manifest, at, counts))
    });
    // Where the server can no longer be reached it gives the backup up by itself.
    if let Err(error) = source.end(manifest.is_ok()) {
        tracing::warn!(%error, "the server was not notified that the backup has ended");
    }
    let (manifest, at, Counts { new_files, compared_bytes, resumed_bytes }) = manifest?;
    repository.forget_partial()?;
    Ok(report(&repository, &manifest, at, &Counts { new_files, compared_bytes, resumed_bytes }, options, began))
}

/// What a backup that is there came to, once old ones are removed.
pub(super) fn report(
    repository: &Repository,
    manifest: &Manifest,
    at: CopyProgress,
    counts: &Counts,
    options: BackupOptions,
    began: Instant,
) -> BackupReport {
    // The backup is there, whatever becomes of old ones.
    let (pruned, not_removed) = match repository.prune(&manifest.store, options.keep) {
        Ok(pruned) => (pruned, None),
        Err(error) => (Pruned::default(), Some(error.to_string())),
    };
    BackupReport {
        id: manifest.id.clone(),
        time_ms: manifest.time_ms,
        files: at.files,
        bytes: at.bytes,
        new_files: counts.new_files,
        new_bytes: at.new_bytes,
        compared_bytes: counts.compared_bytes,
        resumed_bytes: counts.resumed_bytes,
        took_ms: began.elapsed().as_millis() as u64,
        removed_backups: pruned.backups,
        removed_objects: pruned.objects,
        removed_bytes: pruned.bytes,
        not_removed,
    }
}

/// What is taken over from earlier backups is read again in one of so many, so that damage does not
/// stay.
pub(super) const ROUNDS: u64 = 8;

/// What distinguishes a file of one store from its others.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Identity {
    path: String,
    bytes: u64,
    stamp: String,
}

/// What is in the folder already.
pub(super) struct Known {
    /// Objects of files that were copied before.
    journalled: HashMap<Identity, String>,
    /// Counts the backups in this folder.
    number: u64,
    journal: Option<File>,
    journal_path: PathBuf,
    /// Objects by their lengths, once somebody asked for one.
    by_bytes: Option<HashMap<u64, Vec<String>>>,
}

impl Known {
    /// Of the last backup of `store`, and of one that was cut short.
    pub(super) fn read(repository: &Repository, store: &str) -> Result<Self> {
        let mut journalled = HashMap::new();
        let mut note = |file: ManifestFile| {
            let ManifestFile { path, bytes, object, stamp } = file;
            journalled.insert(Identity { path, bytes, stamp }, object);
        };
        // Of several the last one has what is likely to be there still.
        let mut complete = repository.entries()?.into_iter().filter_map(|entry| entry.manifest.ok());
        if let Some(last) = complete.rfind(|manifest| manifest.store == store) {
            last.files.into_iter().for_each(&mut note);
        }
        let journal_path = repository.partial().join(JOURNAL);
        let journal = match fs::read_to_string(&journal_path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            Err(error) => return Err(BackupError::io("read", &journal_path, error)),
        };
        // A line that was cut off says nothing.
        let lines = journal.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
        lines.filter_map(|line| serde_json::from_str::<ManifestFile>(line).ok()).for_each(&mut note);
        let number = repository.last_number()?.unwrap_or(0);
        Ok(Self { journalled, number, journal: None, journal_path, by_bytes: None })
    }

    /// Objects that have come since may hold what another server has.
    pub(super) fn look_again(&mut self) {
        self.by_bytes = None;
    }

    /// A file has come: the next try finds it, if this one is cut short.
    fn note(&mut self, path: String, file: &SourceFile, object: &str) -> Result<()> {
        let SourceFile { bytes, stamp, .. } = file.clone();
        let line = ManifestFile { path, bytes, object: object.into(), stamp };
        let failed = |error| BackupError::io("write", &self.journal_path, error);
        let mut text = serde_json::to_vec(&line).map_err(|error| failed(error.into()))?;
        text.push(b'\n');
        let journal = match &mut self.journal {
            Some(journal) => journal,
            none => {
                let opened = File::options().append(true).create(true).open(&self.journal_path).map_err(failed)?;
                none.insert(opened)
            }
        };
        // Not made durable: what it references is checked, and has the length that it says, or does
        // not count.
        journal.write_all(&text).map_err(failed)?;
        let ManifestFile { path, bytes, object, stamp } = line;
        self.journalled.insert(Identity { path, bytes, stamp }, object);
        Ok(())
    }
}

/// A copy that is under way.
pub(super) struct Copying<'c, 'g> {
    repository: &'c Repository,
    source: &'c mut dyn Source,
    limiter: &'c mut Limiter<'g>,
    progress: &'c mut dyn FnMut(CopyProgress),
    known: &'c mut Known,
    /// Comes before the paths of its files in the manifest.
    prefix: &'c str,
    /// When the source was asked to keep what it holds, or was about to be asked for a file.
    asked: Instant,
    /// How often it is, at least.
    pub(super) asks_every: Duration,
    pub(super) at: CopyProgress,
    pub(super) counts: Counts,
}

/// How files came, for the report.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) new_files: u64,
    pub(super) compared_bytes: u64,
    pub(super) resumed_bytes: u64,
}

impl<'c, 'g> Copying<'c, 'g> {
    pub(super) fn new(
        repository: &'c Repository,
        source: &'c mut dyn Source,
        limiter: &'c mut Limiter<'g>,
        known: &'c mut Known,
        prefix: &'c str,
        begun: &Begun,
        progress: &'c mut dyn FnMut(CopyProgress),
    ) -> Self {
        let at = CopyProgress {
            files: begun.files.len() as u64,
            bytes: begun.files.iter().map(|file| file.bytes).sum(),
            ..CopyProgress::default()
        };
        let (asked, asks_every, counts) = (Instant::now(), ASKS_EVERY, Counts::default());
        Self { repository, source, limiter, progress, known, prefix, asked, asks_every, at, counts }
    }

    /// The path of a file in the manifest.
    fn named(&self, file: &SourceFile) -> String {
        format!("{}{}", self.prefix, file.path)
    }

    pub(super) fn all(&mut self, files: &[SourceFile]) -> Result<Vec<ManifestFile>> {
        let mut copied = Vec::with_capacity(files.len());
        for file in files {
            if !is_within(&file.path) {
                return Err(BackupError::Source(format!("the server names a file that no store has: {:?}", file.path)));
            }
            let before = self.at.done_bytes;
            let object = match self.found(file)? {
                Some(object) => object,
                None => self.fetched(file)?,
            };
            self.at.done_files += 1;
            self.at.done_bytes = before + file.bytes;
            (self.progress)(self.at);
            let SourceFile { bytes, stamp, .. } = file.clone();
            copied.push(ManifestFile { path: self.named(file), bytes, object, stamp });
        }
        Ok(copied)
    }

    /// What is read here takes long, and the source hears nothing meanwhile: it is told that
    /// somebody still wants what it holds.
    fn keep(&mut self) -> Result<()> {
        if self.asked.elapsed() >= self.asks_every {
            self.source.keep()?;
            self.asked = Instant::now();
        }
        Ok(())
    }

    /// The object that holds what `file` does, if there is one.
    fn found(&mut self, file: &SourceFile) -> Result<Option<String>> {
        let SourceFile { bytes, stamp, .. } = file.clone();
        let repository = self.repository;
        let objects = &repository.objects;
        if let Some(object) = self.known.journalled.get(&Identity { path: self.named(file), bytes, stamp })
            && is_object(object)
            && objects.bytes(object)? == Some(bytes)
        {
            let object = object.clone();
            let is_due = object.bytes().map(u64::from).sum::<u64>().wrapping_add(self.known.number) % ROUNDS == 0;
            if !is_due && !objects.is_noted_damaged(&object) || self.is_sound(&object, bytes)? {
                return Ok(Some(object));
            }
        }
        if bytes < MIN_COMPARED_BYTES {
            return Ok(None);
        }
        if self.known.by_bytes.is_none() {
            self.known.by_bytes = Some(objects.by_bytes()?);
        }
        let candidates = self.known.by_bytes.as_ref().and_then(|by_bytes| by_bytes.get(&bytes)).cloned();
        for object in candidates.into_iter().flatten().take(MAX_CANDIDATES) {
            if self.is_same(file, &object)? {
                self.known.note(self.named(file), file, &object)?;
                return Ok(Some(object));
            }
        }
        Ok(None)
    }

    /// Whether an object holds what it is named after: all of it is read.
    fn is_sound(&mut self, object: &str, bytes: u64) -> Result<bool> {
        let objects = &self.repository.objects;
        let read = objects.read(object, bytes, &mut |piece| {
            // In parts, since a whole one may have to wait for longer than the source does.
            for part in piece.chunks(self.limiter.piece_bytes()) {
                self.limiter.wait_for(part.len() as u64)?;
                self.keep()?;
            }
            Ok(())
        })?;
        match read {
            Ok(()) => {
                objects.note_sound(object);
                Ok(true)
            }
            Err(reason) => {
                let path = objects.path(object);
                tracing::warn!(
                    ?path,
                    reason,
                    "an object of earlier backups is damaged; its file is read again, which mends them all"
                );
                Ok(false)
            }
        }
    }

    /// Whether an object of the same length holds the same: all of it is compared.
    fn is_same(&mut self, file: &SourceFile, object: &str) -> Result<bool> {
        let (objects, compared) = (&self.repository.objects, self.compared_at_once());
        let mut piece = Vec::new();
        let (mut at, mut is_same) = (0, true);
        let read = objects.read(object, file.bytes, &mut |more| {
            if !is_same {
                return self.keep();
            }
            piece.extend_from_slice(more);
            while piece.len() as u64 >= compared || (at + piece.len() as u64 == file.bytes && !piece.is_empty()) {
                let rest = piece.split_off(piece.len().min(compared as usize));
                let bytes = piece.len() as u64;
                self.limiter.wait_for(bytes)?;
                self.counts.compared_bytes += bytes;
                is_same = self.source.hash(file, at, bytes)? == sha256(&piece);
                at += bytes;
                piece = rest;
                if !is_same {
                    break;
                }
            }
            Ok(())
        })?;
        // One that is damaged is replaced where its content comes once more.
        Ok(is_same && read.is_ok())
    }

    fn compared_at_once(&self) -> u64 {
        (self.limiter.piece_bytes() as u64 * PIECES_COMPARED).clamp(MAX_PIECE_BYTES as u64 / 128, MAX_COMPARED_BYTES)
    }

    /// Reads `file`, from where an earlier try has ended.
    fn fetched(&mut self, file: &SourceFile) -> Result<String> {
        let compared = self.compared_at_once();
        let name = sha256(format!("{}\n{}\n{}", self.named(file), file.bytes, file.stamp).as_bytes());
        let (directory, name) = (self.repository.partial(), &name[..PARTIAL_DIGITS]);
        let mut partial = Partial::resume(&directory, name, file.bytes, compared, &mut |from, piece| {
            let bytes = piece.len() as u64;
            self.limiter.wait_for(bytes)?;
            self.counts.compared_bytes += bytes;
            Ok(self.source.hash(file, from, bytes)? == sha256(piece))
        })?;
        self.counts.new_files += 1;
        self.counts.resumed_bytes += partial.bytes();
        self.at.done_bytes += partial.bytes();
        let Self { source, limiter, progress, at, .. } = self;
        source.read(file, partial.bytes(), limiter, &mut |piece| {
            partial.append(piece)?;
            at.done_bytes += piece.len() as u64;
            at.new_bytes += piece.len() as u64;
            (*progress)(*at);
            Ok(())
        })?;
        if partial.bytes() != file.bytes {
            let (has, path) = (partial.bytes(), &file.path);
            return Err(BackupError::Source(format!("{path} came with {has} bytes and not {}", file.bytes)));
        }
        let object = partial.finish(&self.repository.objects)?;
        self.known.note(self.named(file), file, &object)?;
        Ok(object)
    }
}
