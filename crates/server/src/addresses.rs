//! Where a server that runs can be asked: a small file in its folder, for commands that are given
//! the folder.
//!
//! ```text
//! serving.json   {"pid":4711,"clients":["127.0.0.1:6379"],"tls":[],"socket":null,"http":["127.0.0.1:7480"]}
//! ```
//!
//! It is replaced whole when the server has begun to listen, and removed when it stops. A server
//! that was killed leaves it behind, so nobody believes it who has not found, by the lock of the
//! store, that the process which wrote it has the store open ([`of`]).
//!
//! Failure: a server whose file cannot be written, as on a full disk, runs without it and [tries
//! again](Announced::try_again).

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use ecotone_resp::serve::Listening;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// Its name, in the folder of the server.
pub const ADDRESSES_FILE: &str = "serving.json";

/// Longer files are not ours.
const MAX_BYTES: u64 = 64 * 1024;

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Addresses {
    /// Its process.
    pub pid: i32,
    /// Where clients are served without TLS.
    pub clients: Vec<SocketAddr>,
    /// Where they are served by TLS.
    pub tls: Vec<SocketAddr>,
    /// The Unix socket where they are served.
    pub socket: Option<PathBuf>,
    /// Where metrics and health checks are answered.
    pub http: Vec<SocketAddr>,
}

impl Addresses {
    /// Those of this process.
    pub(crate) fn of_this_process(clients: Option<&Listening>, http: &[SocketAddr]) -> Self {
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        Self {
            pid: rustix::process::getpid().as_raw_nonzero().get(),
            clients: clients.map(|listening| listening.addresses.clone()).unwrap_or_default(),
            tls: clients.map(|listening| listening.tls_addresses.clone()).unwrap_or_default(),
            socket: clients.and_then(|listening| listening.socket.as_ref()).map(absolute),
            http: http.to_vec(),
        }
    }

    fn write(&self, folder: &Path) -> io::Result<()> {
        let (path, new) = (folder.join(ADDRESSES_FILE), folder.join(format!("{ADDRESSES_FILE}.new")));
        let written = serde_json::to_vec(self).map_err(io::Error::other).and_then(|text| {
            fs::write(&new, text)?;
            fs::rename(&new, &path)
        });
        written.inspect_err(|_| drop(fs::remove_file(&new)))
    }
}

/// Where the server in `folder` listens whose process is `pid`; `None` where the folder does not
/// say, or another process has said it.
pub fn of(folder: &Path, pid: i32) -> Option<Addresses> {
    let path = folder.join(ADDRESSES_FILE);
    let text = fs::metadata(&path).ok().filter(|found| found.len() <= MAX_BYTES).and_then(|_| fs::read(&path).ok())?;
    serde_json::from_slice(&text).ok().filter(|addresses: &Addresses| addresses.pid == pid)
}

/// The file while its server runs; removed with this.
#[derive(Debug)]
pub(crate) struct Announced {
    folder: PathBuf,
    addresses: Addresses,
    /// Why it is not there.
    failure: Mutex<Option<io::Error>>,
}

impl Announced {
    /// Says in `folder` where this process listens.
    pub(crate) fn new(folder: &Path, addresses: Addresses) -> Self {
        let failure = addresses.write(folder).err();
        if let Some(error) = &failure {
            tracing::warn!(
                file = %folder.join(ADDRESSES_FILE).display(), %error,
                "commands that are given the folder of this server cannot find out where it listens; this is tried again"
            );
        }
        Self { folder: folder.to_path_buf(), addresses, failure: Mutex::new(failure) }
    }

    /// Writes the file where it could not be written before.
    pub(crate) fn try_again(&self) {
        let mut failure = self.failure.lock();
        if failure.is_some() {
            *failure = self.addresses.write(&self.folder).err();
        }
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        // That of another server is not this one's: the store was opened by it since.
        if of(&self.folder, self.addresses.pid).is_some() {
            // What is left behind nobody believes.
            let _ = fs::remove_file(self.folder.join(ADDRESSES_FILE));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_has_said_is_believed_of_that_process_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(ADDRESSES_FILE);
        assert_eq!(of(folder.path(), 7), None);
        let http = "127.0.0.1:7480".parse().unwrap();
        let own = Addresses::of_this_process(None, &[http]);
        let announced = Announced::new(folder.path(), own.clone());
        assert_eq!(of(folder.path(), own.pid), Some(own.clone()));
        assert_eq!(of(folder.path(), own.pid + 1), None);
        // Another server has the folder now.
        let other = Addresses { pid: own.pid + 1, ..own };
        other.write(folder.path()).unwrap();
        drop(announced);
        assert_eq!(of(folder.path(), other.pid), Some(other.clone()));
        for damaged in ["", "{", "{\"pid\":7}", &" ".repeat(MAX_BYTES as usize + 1)] {
            fs::write(&path, damaged).unwrap();
            assert_eq!(of(folder.path(), other.pid), None, "{}", &damaged[..damaged.len().min(9)]);
        }
    }

    #[test]
    fn a_file_that_cannot_be_written_is_written_later_and_removed_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("not there yet");
        let announced = Announced::new(&missing, Addresses::of_this_process(None, &[]));
        announced.try_again();
        assert_eq!(of(&missing, announced.addresses.pid), None);
        fs::create_dir(&missing).unwrap();
        announced.try_again();
        assert_eq!(of(&missing, announced.addresses.pid).as_ref(), Some(&announced.addresses));
        drop(announced);
        assert_eq!(fs::read_dir(&missing).unwrap().count(), 0);
    }
}
