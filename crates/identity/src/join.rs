//! The new server's side of joining: a key that outlives a lost answer, and what of the answer is
//! believed.

use std::path::{Path, PathBuf};

use ecotone_types::ServerId;
use rcgen::KeyPair;

use crate::certificates::{self, Issued};
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::files;
use crate::identity::{Identity, KEY_TAG, Verifiers, check_chain};
use crate::names::{Peer, check_name};
use crate::token::{JoinToken, fingerprint};

/// The key while there is no certificate for it.
const KEY_FILE: &str = "joining.pem";

/// A server that is about to join.
pub struct Joining {
    folder: PathBuf,
    key: KeyPair,
    token: JoinToken,
    name: ServerId,
    /// What is sent to the authority.
    pub request: Vec<u8>,
}

impl Joining {
    /// Prepares to join with the identity in `folder`. The key is stored before it is used: with it
    /// a server that did not get the answer can ask again.
    ///
    /// # Errors
    /// [`Error::Usage`] for a name that is too long; those of files.
    pub fn begin(folder: &Path, token: JoinToken, name: ServerId) -> Result<Joining> {
        check_name(&name)?;
        files::make_folder(folder)?;
        let file = folder.join(KEY_FILE);
        let key = match files::read(&file)? {
            Some(text) => {
                let parsed = pem::parse(&text).map_err(|error| Error::damaged(&file, error))?;
                certificates::key_from_der(parsed.contents())?
            }
            None => {
                let key = certificates::new_key()?;
                files::write(&file, pem::encode(&pem::Pem::new(KEY_TAG, key.serialize_der())).as_bytes())?;
                key
            }
        };
        let request = certificates::request(&key)?;
        Ok(Joining { folder: folder.to_owned(), key, token, name, request })
    }

    /// The token.
    pub fn token(&self) -> &JoinToken {
        &self.token
    }

    /// The name that is asked for.
    pub fn name(&self) -> &ServerId {
        &self.name
    }

    /// Takes the answer; from now on the folder has an identity.
    ///
    /// # Errors
    /// [`Error::Certificate`] if it is not a certificate of the token's authority for this key and
    /// name, valid now; those of files.
    pub fn end(self, issued: &Issued, now: Timestamp) -> Result<()> {
        if !fingerprint(&issued.authority)?.is(self.token.authority()) {
            return Err(Error::Certificate("the certificate that was sent is of another authority".into()));
        }
        check_chain(&Verifiers::new(&issued.authority)?, issued, now)?;
        let own = Peer::of(&issued.certificate)?;
        if own.name != self.name {
            return Err(Error::Certificate(format!(
                "the certificate that was sent is of another server: {}",
                own.name
            )));
        }
        Identity::store(&self.folder, &self.key, issued)?;
        files::remove(&self.folder.join(KEY_FILE))
    }
}
