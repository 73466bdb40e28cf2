//! The new server's side of joining: what outlives a lost answer, and what of the answer is
//! believed.
//!
//! A server joins once: the federation's log gives its number to a directory, by an id that is drawn
//! here. Each step is durable before the next:
//!
//! 1. `joining.pem`: the key, and the directory's id. With both and the same token it asks as often
//!    as it must, and gets the same number.
//! 2. `joined.json`: what the answer says. It counts for nothing yet.
//! 3. `server.pem`: key and certificate. From now on it has joined.
//! 4. `joining.pem` is removed.
//!
//! Whoever is interrupted before step 3 asks again; after it, all that is needed to go on is there.

use std::path::{Path, PathBuf};

use ecotone_types::ServerId;
use rcgen::KeyPair;
use serde::{Deserialize, Serialize};

use crate::certificates::{self, Issued, KEY_TAG};
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::files;
use crate::identity::{Identity, Verifiers, check_chain};
use crate::names::{FederationId, MemberId, Peer, check_name, from_hex, random, to_hex};
use crate::token::{JoinToken, fingerprint};

/// Bytes of a directory's id.
pub const DIRECTORY_ID_BYTES: usize = 16;
/// The id of a server's directory, drawn at random: another directory is another server.
pub type DirectoryId = [u8; DIRECTORY_ID_BYTES];

/// Key and directory while there is no certificate.
pub(crate) const KEY_FILE: &str = "joining.pem";
/// How PEM calls the directory's id there.
const DIRECTORY_TAG: &str = "ECOTONE DIRECTORY ID";
/// What a server's log begins with.
const JOINED_FILE: &str = "joined.json";

/// As what a server has joined: what its log begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Joined {
    /// The federation.
    pub federation: FederationId,
    /// The server's number in it.
    pub member: MemberId,
    /// The server's directory.
    pub directory: DirectoryId,
    /// Which log of that federation it was that gave the number.
    pub generation: u64,
}

/// [`Joined`] in its file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct JoinedFile {
    federation: String,
    member: u64,
    directory: String,
    generation: u64,
}

impl Joined {
    /// As what the server of this identity has joined; `None` once its log was begun.
    ///
    /// # Errors
    /// [`Error::Damaged`] if it is not of this identity; those of files.
    pub fn read(folder: &Path, identity: &Identity) -> Result<Option<Joined>> {
        let file = folder.join(JOINED_FILE);
        let damaged = |what: &dyn std::fmt::Display| Error::damaged(&file, what);
        let Some(text) = files::read(&file)? else { return Ok(None) };
        let read: JoinedFile = serde_json::from_str(&text).map_err(|error| damaged(&error))?;
        let directory = from_hex(&read.directory).ok_or_else(|| damaged(&"the directory is no id"))?;
        let federation = read.federation.parse().map_err(|error| damaged(&error))?;
        let member = MemberId::from_number(read.member);
        let own = identity.own();
        if (federation, member) != (own.federation, own.member) {
            return Err(damaged(&format!("it is not of the server of {}", Identity::FILE)));
        }
        Ok(Some(Joined { federation, member, directory, generation: read.generation }))
    }

    /// The log is begun, durably: from now on one that is missing is lost, not only not begun yet.
    ///
    /// # Errors
    /// Those of files.
    pub fn end(folder: &Path) -> Result<()> {
        files::remove(&folder.join(JOINED_FILE))
    }

    pub(crate) fn store(&self, folder: &Path) -> Result<()> {
        let file = folder.join(JOINED_FILE);
        let content = JoinedFile {
            federation: self.federation.to_string(),
            member: self.member.number(),
            directory: to_hex(&self.directory),
            generation: self.generation,
        };
        let text = serde_json::to_string(&content).map_err(|error| Error::damaged(&file, error))?;
        files::write(&file, format!("{text}\n").as_bytes())
    }
}

/// A server that is about to join.
pub struct Joining {
    folder: PathBuf,
    key: KeyPair,
    directory: DirectoryId,
    token: JoinToken,
    name: ServerId,
    /// What is sent to the authority.
    pub request: Vec<u8>,
}

impl Joining {
    /// Prepares to join with the identity in `folder`. Key and directory are stored before they are
    /// used: with them a server that did not get the answer can ask again.
    ///
    /// # Errors
    /// [`Error::Usage`] for a name that is too long; [`Error::Damaged`]; those of files.
    pub fn begin(folder: &Path, token: JoinToken, name: ServerId) -> Result<Joining> {
        check_name(&name)?;
        files::make_folder(folder)?;
        let file = folder.join(KEY_FILE);
        let (key, directory) = match files::read(&file)? {
            Some(text) => {
                let parts = pem::parse_many(&text).map_err(|error| Error::damaged(&file, error))?;
                let parts = match &parts[..] {
                    [key, directory] => directory.contents().try_into().ok().map(|directory| (key, directory)),
                    _ => None,
                };
                let (key, directory) = parts.ok_or_else(|| Error::damaged(&file, "it has not a key and an id"))?;
                let key = certificates::key_from_der(key.contents()).map_err(|error| Error::damaged(&file, error))?;
                (key, directory)
            }
            None => {
                let (key, directory) = (certificates::new_key()?, random::<DIRECTORY_ID_BYTES>()?);
                let pem = pem::encode_many(&[
                    pem::Pem::new(KEY_TAG, key.serialize_der()),
                    pem::Pem::new(DIRECTORY_TAG, directory.to_vec()),
                ]);
                files::write(&file, pem.as_bytes())?;
                (key, directory)
            }
        };
        let request = certificates::request(&key)?;
        Ok(Joining { folder: folder.to_owned(), key, directory, token, name, request })
    }

    /// The token.
    pub fn token(&self) -> &JoinToken {
        &self.token
    }

    /// The name that is asked for.
    pub fn name(&self) -> &ServerId {
        &self.name
    }

    /// The directory that is to join.
    pub fn directory(&self) -> &DirectoryId {
        &self.directory
    }

    /// Takes the answer: a certificate, the server's number, and the generation of the log that gave
    /// it. From now on the folder has an identity.
    ///
    /// # Errors
    /// [`Error::Certificate`] if it is not a certificate of the token's authority for this key, name
    /// and number, valid now; those of files.
    pub fn end(self, issued: &Issued, member: MemberId, generation: u64, now: Timestamp) -> Result<Joined> {
        if !fingerprint(&issued.authority)?.is(self.token.authority()) {
            return Err(Error::Certificate("the certificate that was sent is of another authority".into()));
        }
        let verifiers = Verifiers::new(&issued.authority)?;
        check_chain(&verifiers, issued, now)?;
        let own = verifiers.current(&self.key.serialize_der(), issued)?.own;
        if own.name != self.name || own.member != member || member.number() == 0 {
            return Err(Error::Certificate(format!(
                "the certificate that was sent is of another server: {}, {}",
                own.name, own.member
            )));
        }
        let Peer { federation, .. } = own;
        let joined = Joined { federation, member, directory: self.directory, generation };
        joined.store(&self.folder)?;
        Identity::store(&self.folder, &self.key, issued)?;
        files::remove(&self.folder.join(KEY_FILE))?;
        Ok(joined)
    }
}
