//! Files of a folder of backups: objects, named by what they hold, and those that have not come
//! whole.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use ecotone_io::objects::{self, Checksum, Object, ObjectDirectory, Unsealed};
use ecotone_io::tap::{self, Tap};
use ring::digest::{Context, SHA256};

use super::manifest::is_object;
use super::{BackupError, MAX_PIECE_BYTES, Result};

/// The SHA-256 of what an object holds, in hexadecimal digits: its name.
pub(super) struct Sha256(Context);

impl Default for Sha256 {
    fn default() -> Self {
        Self(Context::new(&SHA256))
    }
}

impl Checksum for Sha256 {
    type Value = String;

    fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(self) -> String {
        ecotone_resp::backups::hex(self.0.finish().as_ref())
    }
}

/// Distinguishes errors of a file from those of who looks at its bytes.
enum Interrupted {
    Io(io::Error),
    Taker(BackupError),
}

impl From<io::Error> for Interrupted {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The objects of one folder.
#[derive(Debug)]
pub(super) struct Objects(ObjectDirectory);

impl Objects {
    pub(super) fn within(backups: &Path) -> Self {
        Self(ObjectDirectory::new(backups.join("objects"), Tap::SILENT))
    }

    /// Makes durable which there are.
    pub(super) fn sync(&self) -> Result<()> {
        self.0.sync().map_err(|error| BackupError::io("sync", self.0.path(), error))
    }

    pub(super) fn path(&self, object: &str) -> PathBuf {
        self.0.path().join(object)
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
        let mut all = self.0.list().map_err(|error| BackupError::io("list", self.0.path(), error))?;
        all.retain(|(name, _)| is_object(name));
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
        self.0.remove(object).map_err(|error| BackupError::io("remove", &self.path(object), error))?;
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
        self.path(&format!("{object}.damaged"))
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
    let opened = match Object::open(path) {
        Ok(opened) => opened,
        Err(error) => return Ok(Err(format!("it cannot be opened: {error}"))),
    };
    let read =
        objects::read_whole::<Sha256, _>(&opened, MAX_PIECE_BYTES, |piece| take(piece).map_err(Interrupted::Taker));
    match read {
        Err(Interrupted::Taker(error)) => Err(error),
        Err(Interrupted::Io(error)) => Ok(Err(format!("it cannot be read: {error}"))),
        Ok(read) if read.bytes != bytes => Ok(Err(format!("it has {} bytes and not {bytes}", read.bytes))),
        Ok(read) if read.checksum != object => {
            Ok(Err("it holds something else than what was written: its SHA-256 is another".into()))
        }
        Ok(_) => Ok(Ok(())),
    }
}

/// A file that has not come whole yet.
pub(super) struct Partial(Unsealed<Sha256>);

impl Partial {
    /// Goes on with what is there of it, as far as `is_right` says so of one piece of at most
    /// `compared` bytes after the other.
    pub(super) fn resume(
        directory: &Path,
        name: &str,
        max_bytes: u64,
        compared: u64,
        is_right: &mut dyn FnMut(u64, &[u8]) -> Result<bool>,
    ) -> Result<Self> {
        let piece_bytes = usize::try_from(compared).unwrap_or(MAX_PIECE_BYTES);
        let objects = ObjectDirectory::new(directory, Tap::SILENT);
        let resumed = Unsealed::resume(&objects, name, max_bytes, piece_bytes, |from, piece| {
            is_right(from, piece).map_err(Interrupted::Taker)
        });
        resumed.map(Self).map_err(|error| match error {
            Interrupted::Io(error) => BackupError::io("go on with", &directory.join(name), error),
            Interrupted::Taker(error) => error,
        })
    }

    /// How much has come.
    pub(super) fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    pub(super) fn append(&mut self, piece: &[u8]) -> Result<()> {
        self.0.append(piece).map_err(|error| BackupError::io("write", self.0.path(), error))
    }

    /// It has come whole: makes it durable, and an object. Its name is durable once the objects are
    /// [synced](Objects::sync). An object of this name that was there is replaced, which heals one
    /// that was damaged.
    pub(super) fn finish(self, objects: &Objects) -> Result<String> {
        let path = self.0.path().to_path_buf();
        let sealed = self.0.seal_as(&objects.0, String::clone);
        let object = sealed.map_err(|error| BackupError::io("sync and rename", &path, error))?.checksum;
        objects.note_sound(&object);
        Ok(object)
    }
}

/// Makes the names in `directory` durable.
pub(super) fn sync_directory(directory: &Path) -> Result<()> {
    tap::sync_directory(directory, &Tap::SILENT).map_err(|error| BackupError::io("sync", directory, error))
}

/// Writes a small file durably, whole or not at all; its name is durable once its folder is.
pub(super) fn write_whole(directory: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    ObjectDirectory::new(directory, Tap::SILENT)
        .replace(name, &format!("{name}.tmp"), bytes)
        .map_err(|error| BackupError::io("write", &directory.join(name), error))
}
