//! How the authority's key is kept where all servers can read it: sealed by a key that only the
//! servers that vote have.
//!
//! ```text
//! sealed: version:u8  nonce:12  AES-256-GCM of the PEM of key and certificate, and its tag:16
//! authenticated with it: "ecotone authority", the version, the federation's id
//! ```

use std::fmt;
use std::path::Path;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

use crate::error::{Error, Result};
use crate::files;
use crate::names::{FederationId, from_hex, random, to_hex};

/// The longest sealed authority: as much as the map of the federation holds.
pub const MAX_SEALED_BYTES: usize = 16 << 10;
/// Bytes of a seal key.
const KEY_BYTES: usize = 32;
const VERSION: u8 = 1;
const WHAT: &[u8] = b"ecotone authority";

/// The key that opens the sealed authority. In the folders of servers that vote, and nowhere else.
#[derive(Clone, PartialEq, Eq)]
pub struct SealKey([u8; KEY_BYTES]);

impl fmt::Debug for SealKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealKey(..)")
    }
}

impl SealKey {
    /// Its file in a server's folder of identities: 64 hexadecimal digits.
    pub const FILE: &str = "seal.key";

    /// A new one.
    ///
    /// # Errors
    /// The kernel gives no random numbers.
    pub fn draw() -> Result<SealKey> {
        random().map(SealKey)
    }

    /// One that another server sent.
    ///
    /// # Errors
    /// [`Error::Sealed`] if it has not the length of one.
    pub fn from_bytes(bytes: &[u8]) -> Result<SealKey> {
        bytes.try_into().map(SealKey).map_err(|_| Error::Sealed("the key that was sent has not the length of one"))
    }

    /// For another server that votes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The key in `folder`; `None` if there is none.
    ///
    /// # Errors
    /// [`Error::Damaged`]; those of files.
    pub fn load(folder: &Path) -> Result<Option<SealKey>> {
        let file = folder.join(SealKey::FILE);
        let Some(text) = files::read(&file)? else { return Ok(None) };
        let key = from_hex(text.trim_end()).map(SealKey);
        key.map(Some).ok_or_else(|| Error::damaged(&file, "it has not 64 hexadecimal digits"))
    }

    /// Keeps it in `folder`: durable when this returns.
    ///
    /// # Errors
    /// Those of files.
    pub fn store(&self, folder: &Path) -> Result<()> {
        files::write(&folder.join(SealKey::FILE), format!("{}\n", to_hex(&self.0)).as_bytes())
    }

    fn cipher(&self) -> Result<LessSafeKey> {
        let key = UnboundKey::new(&AES_256_GCM, &self.0).map_err(|_| Error::crypto("use the seal key", "refused"))?;
        Ok(LessSafeKey::new(key))
    }

    pub(crate) fn seal(&self, federation: FederationId, secret: &[u8]) -> Result<Vec<u8>> {
        let nonce: [u8; NONCE_LEN] = random()?;
        let mut text = secret.to_vec();
        let refused = |_| Error::crypto("seal the authority", "the library refuses");
        let with = authenticated(federation);
        self.cipher()?
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(&with), &mut text)
            .map_err(refused)?;
        let sealed = [&[VERSION], &nonce[..], &text].concat();
        if sealed.len() > MAX_SEALED_BYTES {
            return Err(Error::crypto("seal the authority", format!("it has {} bytes", sealed.len())));
        }
        Ok(sealed)
    }

    pub(crate) fn open(&self, federation: FederationId, sealed: &[u8]) -> Result<Vec<u8>> {
        if sealed.len() > MAX_SEALED_BYTES {
            return Err(Error::Sealed("it is too long"));
        }
        let Some((&VERSION, rest)) = sealed.split_first() else {
            return Err(Error::Sealed("it is of another version, or empty; run the release that has made it"));
        };
        let (nonce, text) = rest
            .split_at_checked(NONCE_LEN)
            .ok_or(Error::Sealed("it is not whole; another server may have it whole"))?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| Error::Sealed("it is not whole"))?;
        let mut text = text.to_vec();
        let with = authenticated(federation);
        let opened = self.cipher()?.open_in_place(nonce, Aad::from(&with), &mut text);
        let opened = opened.map_err(|_| {
            Error::Sealed("this server's seal key is another one, or it is of another federation, or damaged")
        })?;
        Ok(opened.to_vec())
    }
}

fn authenticated(federation: FederationId) -> Vec<u8> {
    [WHAT, &[VERSION], &federation.bytes()].concat()
}
