//! Another text in the place of a file, as safely as the file allows.
//!
//! A copy with the new text is written and synced beside the file and put in its place by one
//! renaming: owner, mode and extended attributes are the file's, links to it stay links. Some files
//! cannot be replaced so: one that is a mount point of its own, as in containers, one in a folder
//! that nobody may write to, one with several names, or one whose owner cannot be given to another
//! file. Those are written in place, once the whole new text is synced in a copy.
//!
//! Failure: what fails leaves the file as it was. A crash amid writing in place may leave it half
//! written; the copy is whole then and stays where it is (a line of the log said where before the
//! first byte was written).
//!
//! Threads: the caller sees to it that one at a time writes a file.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::{XattrFlags, fgetxattr, flistxattr, fsetxattr};
use rustix::io::Errno;

/// What stands before and behind the file's name in that of the copy: what is found under such a
/// name is nobody's draft.
const COPY_PREFIX: &str = ".";
const COPY_SUFFIX: &str = ".rewrite";

/// Linux allows no longer list of extended attributes, and no longer value of one.
const MAX_XATTR_BYTES: usize = 64 << 10;

/// How a file has got its new text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Replaced {
    /// Another file was put in its place, at once.
    Whole,
    /// It was written in place.
    InPlace {
        /// Why it could not be replaced.
        why: String,
    },
}

/// The copy beside `file` that a rewriting makes first.
pub(super) fn copy_beside(file: &Path) -> PathBuf {
    let mut name = OsString::from(COPY_PREFIX);
    name.push(file.file_name().unwrap_or_default());
    name.push(COPY_SUFFIX);
    file.with_file_name(name)
}

/// Gives `file`, which is there, another text. `elsewhere` is a folder for the copy where its own
/// takes none.
pub(super) fn replace(file: &Path, text: &str, elsewhere: &Path) -> io::Result<Replaced> {
    // Through links, so that they stay.
    let file = &std::fs::canonicalize(file)?;
    let beside = copy_beside(file);
    let why = match put_in_its_place(&beside, file, text) {
        Ok(()) => return Ok(Replaced::Whole),
        // There is no space for a second one: no time to overwrite the first.
        Err(error) if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => {
            let _ = std::fs::remove_file(&beside);
            return Err(error);
        }
        Err(error) => error.to_string(),
    };
    let _ = std::fs::remove_file(&beside);
    // Before a copy is made that would be of no use.
    let open = OpenOptions::new().read(true).write(true).open(file);
    let open = open
        .map_err(|error| io::Error::other(format!("it cannot be replaced ({why}), nor written in place ({error})")))?;
    let copy = write_copy(&beside, text).or_else(|_| {
        let name = beside.file_name().unwrap_or_default();
        write_copy(&elsewhere.join(name), text)
    });
    let copy = copy.map_err(|error| {
        let folder = elsewhere.display();
        io::Error::other(format!(
            "it cannot be replaced ({why}), and no copy can be made beside it or in {folder} ({error})"
        ))
    })?;
    tracing::info!(
        file = %file.display(), copy = %copy.display(), why,
        "the configuration cannot be replaced as a whole and is written in place; should that be cut short, the copy has all of it"
    );
    overwrite(&open, text.as_bytes())?;
    let _ = std::fs::remove_file(copy);
    Ok(Replaced::InPlace { why })
}

fn put_in_its_place(beside: &Path, file: &Path, text: &str) -> io::Result<()> {
    let old = File::open(file)?;
    if old.metadata()?.nlink() > 1 {
        return Err(io::Error::other("it has several names"));
    }
    let copy = write_copy(beside, text)?;
    let new = OpenOptions::new().write(true).open(&copy)?;
    make_alike(&old, &new)?;
    new.sync_all()?;
    std::fs::rename(copy, file)?;
    match file.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

/// A new file at `path` with `text`, synced, for nobody else to read: there may be a password in
/// it.
fn write_copy(path: &Path, text: &str) -> io::Result<PathBuf> {
    // One that was left behind by a crash has been of use for whoever needed it.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut copy = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let written = copy.write_all(text.as_bytes()).and_then(|()| copy.sync_all());
    if let Err(error) = written {
        let _ = std::fs::remove_file(path);
        return Err(error);
    }
    Ok(path.to_path_buf())
}

/// Gives `new` the owner, the mode and the extended attributes (access control lists are some of
/// them) of `old`.
fn make_alike(old: &File, new: &File) -> io::Result<()> {
    let (like, is) = (old.metadata()?, new.metadata()?);
    if (like.uid(), like.gid()) != (is.uid(), is.gid()) {
        fchown(new, Some(like.uid()), Some(like.gid()))
            .map_err(|error| io::Error::new(error.kind(), format!("another file cannot have its owner: {error}")))?;
    }
    new.set_permissions(Permissions::from_mode(like.mode() & 0o7777))?;
    let mut names = vec![0; MAX_XATTR_BYTES];
    let listed = match flistxattr(old, &mut names[..]) {
        Err(Errno::NOTSUP) => 0,
        listed => listed?,
    };
    let mut value = vec![0; MAX_XATTR_BYTES];
    for name in names[..listed].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let bytes = fgetxattr(old, name, &mut value[..])?;
        let has_it = || {
            let mut own = vec![0; bytes + 1];
            fgetxattr(new, name, &mut own[..]).is_ok_and(|length| own[..length] == value[..bytes])
        };
        // Some, as labels of SELinux, a new file has of its folder, and only some may set them.
        if !has_it() {
            fsetxattr(new, name, &value[..bytes], XattrFlags::empty())?;
        }
    }
    Ok(())
}

/// Writes `text` over what `file` has, which comes back where that fails.
fn overwrite(file: &File, text: &[u8]) -> io::Result<()> {
    let mut old = vec![0; usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX)];
    file.read_exact_at(&mut old, 0)?;
    // It is cut behind, not before: where there is no space for more, what it had still has its
    // own.
    let write = |text: &[u8]| {
        file.write_all_at(text, 0)?;
        file.set_len(text.len() as u64)?;
        file.sync_all()
    };
    write(text).inspect_err(|_| drop(write(&old)))
}
