//! How a federation begins: its authority, and the identity of its first server.
//!
//! [`found`] writes, each durable before the next: the seal key, the sealed authority, what the
//! first server's log begins with, and its key and certificate. With the last one the federation is
//! there; what was interrupted before is begun anew, with another id. The sealed authority stays in
//! the folder until the federation's log has it ([`Founded::end`]).

use std::path::Path;

use ecotone_types::ServerId;

use crate::authority::Authority;
use crate::certificates;
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::files;
use crate::identity::Identity;
use crate::join::{DirectoryId, Joined, KEY_FILE};
use crate::names::{FederationId, MemberId, check_name, from_hex, random, to_hex};
use crate::seal::SealKey;

/// The sealed authority, in hexadecimal digits, while the federation's log does not have it.
const FILE: &str = "authority.sealed";
/// Held while a federation is made: two commands may try at once.
const LOCK_FILE: &str = "creation-lock";

/// A federation that is made, and of whose authority the log may not know.
#[derive(Debug)]
pub struct Founded {
    /// What the first server's log begins with.
    pub joined: Joined,
    /// Its name.
    pub name: ServerId,
    /// The authority.
    pub authority: Authority,
    /// What opens it.
    pub seal: SealKey,
    /// The sealed authority, for the log's first entry.
    pub sealed: Vec<u8>,
}

impl Founded {
    /// The federation.
    pub fn federation(&self) -> FederationId {
        self.joined.federation
    }

    /// What was made in the folder of `identity` and is not known to have reached the log; `None`
    /// everywhere else.
    ///
    /// # Errors
    /// [`Error::Damaged`], [`Error::Sealed`]; those of files.
    pub fn read(folder: &Path, identity: &Identity) -> Result<Option<Founded>> {
        let file = folder.join(FILE);
        let Some(text) = files::read(&file)? else { return Ok(None) };
        let sealed = from_hex_of_any_length(text.trim_end())
            .ok_or_else(|| Error::damaged(&file, "it has not only hexadecimal digits"))?;
        let seal = SealKey::load(folder)?.ok_or(Error::Sealed("the seal key is not there"))?;
        let joined = Joined::read(folder, identity)?;
        let joined = joined.ok_or_else(|| Error::damaged(&file, "what the log begins with is not beside it"))?;
        let authority = Authority::open(&sealed, &seal, joined.federation)?;
        Ok(Some(Founded { joined, name: identity.own().name, authority, seal, sealed }))
    }

    /// The log has the authority, durably: the file is removed.
    ///
    /// # Errors
    /// Those of files.
    pub fn end(folder: &Path) -> Result<()> {
        files::remove(&folder.join(FILE))
    }
}

/// Makes a federation, of which the server of this folder is the first one, number
/// [`MemberId::FIRST`].
///
/// # Errors
/// [`Error::Usage`] if an identity is there already, or the name is too long; those of files.
pub fn found(folder: &Path, name: &ServerId, now: Timestamp) -> Result<Founded> {
    check_name(name)?;
    files::make_folder(folder)?;
    let _lock = files::lock(&folder.join(LOCK_FILE))?;
    let there = folder.join(Identity::FILE);
    if there.exists() {
        return Err(Error::Usage(format!(
            "{} is there: this folder belongs to a federation already; to make another one choose another --dir, or remove the \
             folder of the old identity",
            there.display()
        )));
    }
    let authority = Authority::create(FederationId::draw()?, now)?;
    let seal = SealKey::draw()?;
    let sealed = authority.seal(&seal)?;
    let directory: DirectoryId = random()?;
    let joined = Joined { federation: authority.federation(), member: MemberId::FIRST, directory, generation: 1 };
    let key = certificates::new_key()?;
    let issued = authority.issue(joined.member, name, &certificates::request(&key)?, now)?;
    seal.store(folder)?;
    files::write(&folder.join(FILE), format!("{}\n", to_hex(&sealed)).as_bytes())?;
    joined.store(folder)?;
    Identity::store(folder, &key, &issued)?;
    // It was to join another one, and did not.
    files::remove(&folder.join(KEY_FILE))?;
    Ok(Founded { joined, name: name.clone(), authority, seal, sealed })
}

fn from_hex_of_any_length(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    let byte = |pair| std::str::from_utf8(pair).ok().and_then(from_hex::<1>).map(|[byte]| byte);
    pairs.map(byte).collect()
}
