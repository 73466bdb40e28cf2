//! Files of a folder of backups: objects, named by what they hold, and those that have not come
//! whole.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use ring::digest::{Context, SHA256};

use super::manifest::is_object;
use super::{BackupError, MAX_PIECE_BYTES, Result};

/// The objects of one folder.
#[derive(Debug)]
pub(super) struct Objects {
    directory: PathBuf,
}

impl Objects {
    pub(super) fn within(backups: &Path) -> Self {
        Self { directory: backups.join("objects") }
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn path(&self, object: &str) -> PathBuf {
        self.directory.join(object)
    }

    /// Its length; `None`: it is not there.
    pub(super) fn bytes(&self, object: &str) -> Result<Option<u64>> {
        let path = self.path(object);
        match fs::metadata(&path) {
            Ok(metadata) => Ok(Some(metadata.len())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(BackupError::io("inspect", &path, error)),
        }
    }

    /// All there are, with their lengths. Files of other names are nobody's.
    pub(super) fn all(&self) -> Result<Vec<(String, u64)>> {
        let failed = |error| BackupError::io("list", &self.directory, error);
        let mut all = Vec::new();
        for entry in fs::read_dir(&self.directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            if is_object(&name) {
                all.push((name, entry.metadata().map_err(failed)?.len()));
            }
        }
        Ok(all)
    }

    /// By their lengths, for who looks for the same content.
    pub(super) fn by_bytes(&self) -> Result<HashMap<u64, Vec<String>>> {
        let mut by_bytes: HashMap<u64, Vec<String>> = HashMap::new();
        for (object, bytes) in self.all()? {
            by_bytes.entry(bytes).or_default().push(object);
        }
        Ok(by_bytes)
    }

    pub(super) fn remove(&self, object: &str) -> Result<()> {
        let path = self.path(object);
        fs::remove_file(&path).map_err(|error| BackupError::io("remove", &path, error))?;
        self.note_sound(object);
        Ok(())
    }

    /// Notes that an object was found damaged, so that the next backup reads its file again. Where
    /// this cannot be written, that backup finds out when it reads the object itself.
    pub(super) fn note_damaged(&self, object: &str) {
        let path = self.mark(object);
        if let Err(error) = File::create(&path) {
            tracing::debug!(?path, %error, "it could not be noted that an object is damaged");
        }
    }

    /// Whether an object was found damaged.
    pub(super) fn is_noted_damaged(&self, object: &str) -> bool {
        self.mark(object).exists()
    }

    /// Takes that back.
    pub(super) fn note_sound(&self, object: &str) {
        let path = self.mark(object);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                tracing::debug!(?path, %error, "it could not be taken back that an object is damaged");
            }
            _ => {}
        }
    }

    fn mark(&self, object: &str) -> PathBuf {
        self.directory.join(format!("{object}.damaged"))
    }

    /// Reads all of an object and gives it to `take`, piece by piece; what is wrong with it
    /// otherwise, once all was given.
    pub(super) fn read(
        &self,
        object: &str,
        bytes: u64,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<Result<(), String>> {
        read_whole(&self.path(object), object, bytes, take)
    }
}

/// The same of a file that should hold what `object` is named after.
pub(super) fn read_whole(
    path: &Path,
    object: &str,
    bytes: u64,
    take: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<Result<(), String>> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) => return Ok(Err(format!("it cannot be opened: {error}"))),
    };
    let (mut context, mut read, mut piece) = (Context::new(&SHA256), 0, vec![0; MAX_PIECE_BYTES]);
    loop {
        let more = match file.read(&mut piece) {
            Ok(0) => break,
            Ok(more) => more,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Ok(Err(format!("it cannot be read: {error}"))),
        };
        context.update(&piece[..more]);
        read += more as u64;
        take(&piece[..more])?;
    }
    if read != bytes {
        return Ok(Err(format!("it has {read} bytes and not {bytes}")));
    }
    if digits(context) != object {
        return Ok(Err("it holds something else than what was written: its SHA-256 is another".into()));
    }
    Ok(Ok(()))
}

/// A file that has not come whole yet.
pub(super) struct Partial {
    path: PathBuf,
    file: File,
    context: Context,
    bytes: u64,
}

impl Partial {
    /// Goes on with what is there of it, as far as `is_right` says so of one piece of at most
    /// `compared` bytes after the other.
    pub(super) fn resume(
        path: PathBuf,
        max_bytes: u64,
        compared: u64,
        is_right: &mut dyn FnMut(u64, &[u8]) -> Result<bool>,
    ) -> Result<Self> {
        let opened = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = opened.map_err(|error| BackupError::io("open", &path, error))?;
        let there = file.metadata().map_err(|error| BackupError::io("inspect", &path, error))?.len().min(max_bytes);
        let (mut context, mut bytes) = (Context::new(&SHA256), 0);
        while bytes < there {
            let mut piece = vec![0; usize::try_from(compared.min(there - bytes)).unwrap_or(MAX_PIECE_BYTES)];
            file.read_exact(&mut piece).map_err(|error| BackupError::io("read", &path, error))?;
            if !is_right(bytes, &piece)? {
                break;
            }
            context.update(&piece);
            bytes += piece.len() as u64;
        }
        // Appended to from here on: what was found wrong goes.
        let cut = file.set_len(bytes).and_then(|()| std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(bytes)));
        cut.map_err(|error| BackupError::io("cut", &path, error))?;
        Ok(Self { path, file, context, bytes })
    }

    /// How much has come.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn append(&mut self, piece: &[u8]) -> Result<()> {
        self.file.write_all(piece).map_err(|error| BackupError::io("write", &self.path, error))?;
        self.context.update(piece);
        self.bytes += piece.len() as u64;
        Ok(())
    }

    /// It has come whole: makes it durable, and an object. Its name is durable once the folder of
    /// objects is. An object of this name that was there is replaced, which heals one that was
    /// damaged.
    pub(super) fn finish(self, objects: &Objects) -> Result<String> {
        self.file.sync_all().map_err(|error| BackupError::io("sync", &self.path, error))?;
        let object = digits(self.context);
        let path = objects.path(&object);
        fs::rename(&self.path, &path).map_err(|error| BackupError::io("rename to", &path, error))?;
        objects.note_sound(&object);
        Ok(object)
    }
}

fn digits(context: Context) -> String {
    ecotone_resp::backups::hex(context.finish().as_ref())
}

/// Makes the names in `directory` durable.
pub(super) fn sync_directory(directory: &Path) -> Result<()> {
    File::open(directory)
        .and_then(|opened| opened.sync_all())
        .map_err(|error| BackupError::io("sync", directory, error))
}

/// Writes a small file durably, whole or not at all; its name is durable once its folder is.
pub(super) fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let unfinished = path.with_extension("tmp");
    let written = File::create(&unfinished).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    written.map_err(|error| BackupError::io("write", &unfinished, error))?;
    fs::rename(&unfinished, path).map_err(|error| BackupError::io("rename to", path, error))
}
