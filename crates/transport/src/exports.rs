//! Files that this server lets one peer read, under a token.
//!
//! # Invariants
//!
//! - A token opens exactly the files it was issued for. They are opened when it is issued and
//!   looked up by their plain names, so that no path from the wire ever reaches the file system.
//! - A withdrawn token opens nothing. Where servers have identities, it opens what it opens to the
//!   one server of its job only.
//!
//! An owner exports a job's inputs to its worker, a worker a job's outputs to their owner.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use ecotone_io::objects::Object;
use ecotone_io::remote_files::RangedRead;
use ecotone_types::ServerId;
use parking_lot::{Mutex, RwLock};

use crate::error::{Error, Result};

/// Bytes of a token: too many to guess.
const TOKEN_BYTES: usize = 32;

/// What a peer must show to read a job's files.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token([u8; TOKEN_BYTES]);

impl std::fmt::Debug for Token {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A token in a log would be a token given away.
        formatter.write_str("Token(..)")
    }
}

impl Token {
    /// A new token from the kernel's random numbers.
    pub fn new() -> Result<Token> {
        use std::io::Read;
        let mut bytes = [0; TOKEN_BYTES];
        File::open("/dev/urandom")
            .and_then(|mut source| source.read_exact(&mut bytes))
            .map_err(|error| Error::io("read random numbers for a token from", Path::new("/dev/urandom"), error))?;
        Ok(Token(bytes))
    }

    /// # Errors
    /// [`Error::Unauthorised`] for anything but a token's length.
    pub fn from_wire(bytes: &[u8]) -> Result<Token> {
        bytes.try_into().map(Token).map_err(|_| Error::Unauthorised("a token of the wrong length".into()))
    }

    /// As it is shown to a peer.
    pub fn to_wire(self) -> Vec<u8> {
        self.0.to_vec()
    }
}

/// What the exported files are to their job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// At the job's owner.
    Inputs,
    /// At the job's worker.
    Outputs,
}

/// The files of one job that a peer may read.
pub struct Export {
    /// What the files are to their job.
    pub role: Role,
    /// The server of the job that may read them.
    peer: ServerId,
    files: RwLock<HashMap<String, Arc<Object>>>,
}

impl Export {
    /// Opens `path` and lets it be read as `name`.
    pub fn add(&self, name: &str, path: &Path) -> Result<u64> {
        let object = Object::open(path).map_err(|error| Error::io("open for a peer", path, error))?;
        let bytes = object.len();
        self.files.write().insert(name.to_owned(), Arc::new(object));
        Ok(bytes)
    }

    /// The file exported as `name`. No more of it is ever sent than it was long when it was added.
    pub fn file(&self, name: &str) -> Result<Arc<Object>> {
        self.files
            .read()
            .get(name)
            .cloned()
            .ok_or_else(|| Error::Unauthorised(format!("the token does not cover a file named {name:?}")))
    }
}

/// All tokens that this server has issued and not withdrawn. Its size is bounded by the number of
/// running jobs.
#[derive(Default)]
pub struct Exports {
    by_token: Mutex<HashMap<Token, Arc<Export>>>,
}

impl Exports {
    /// Begins an export to `peer` under `token`; it ends when the guard is dropped.
    pub fn begin(self: &Arc<Self>, token: Token, role: Role, peer: ServerId) -> ExportGuard {
        let export = Arc::new(Export { role, peer, files: RwLock::default() });
        self.by_token.lock().insert(token, export.clone());
        ExportGuard { exports: self.clone(), token, export }
    }

    /// What `token` opens to `caller`; `None`: to whoever shows it, where nobody says who it is.
    ///
    /// # Errors
    /// [`Error::Unauthorised`] if it was never issued, is withdrawn, or is another server's.
    pub fn find(&self, token: &[u8], caller: Option<&ServerId>) -> Result<Arc<Export>> {
        let token = Token::from_wire(token)?;
        self.by_token
            .lock()
            .get(&token)
            .filter(|export| caller.is_none_or(|caller| *caller == export.peer))
            .cloned()
            .ok_or_else(|| Error::Unauthorised("the token is unknown, was withdrawn, or is another server's".into()))
    }
}

/// Withdraws its token when dropped.
pub struct ExportGuard {
    exports: Arc<Exports>,
    token: Token,
    export: Arc<Export>,
}

impl std::ops::Deref for ExportGuard {
    type Target = Export;

    fn deref(&self) -> &Export {
        &self.export
    }
}

impl Drop for ExportGuard {
    fn drop(&mut self) {
        self.exports.by_token.lock().remove(&self.token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_opens_its_own_files_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("a"), b"alpha").unwrap();
        std::fs::write(directory.path().join("b"), b"beta").unwrap();
        let exports = Arc::new(Exports::default());
        let (first, second) = (Token::new().unwrap(), Token::new().unwrap());
        let [one, two] = ["one", "two"].map(|name| ServerId::new(name).unwrap());
        let guard = exports.begin(first, Role::Inputs, one.clone());
        guard.add("a", &directory.path().join("a")).unwrap();
        let other = exports.begin(second, Role::Outputs, two.clone());
        other.add("b", &directory.path().join("b")).unwrap();

        let export = exports.find(&first.to_wire(), Some(&one)).unwrap();
        assert_eq!(export.file("a").unwrap().len(), 5);
        for name in
            ["b", "../b", "./a", "/etc/passwd", "a/../b", "", "a\0", &directory.path().join("a").to_string_lossy()]
        {
            assert!(matches!(export.file(name), Err(Error::Unauthorised(_))), "{name:?}");
        }
        assert!(exports.find(&first.to_wire(), None).is_ok());
        assert!(matches!(exports.find(&first.to_wire(), Some(&two)), Err(Error::Unauthorised(_))));
        drop(guard);
        assert!(matches!(exports.find(&first.to_wire(), None), Err(Error::Unauthorised(_))));
        assert!(exports.find(&second.to_wire(), Some(&two)).is_ok());
        assert!(matches!(exports.find(b"short", None), Err(Error::Unauthorised(_))));
    }

    #[test]
    fn a_token_never_shows_in_a_log() {
        let token = Token::new().unwrap();
        assert_eq!(format!("{token:?}"), "Token(..)");
    }
}
