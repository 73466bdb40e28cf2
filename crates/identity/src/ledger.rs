//! What a federation records of tokens and servers.
//!
//! [`LedgerState`] is a state machine: entries are applied in order, each with the time at which it
//! was proposed, and the same entries give the same state everywhere. Where the entries are kept is
//! the business of a [`Ledger`]; [`FileLedger`] keeps the state in a file of the authority's folder.
//!
//! # Invariants
//!
//! - A token is spent by the first key that it is shown with, and by no other.
//! - No two servers that were not removed have one name. A member id is never used again.
//! - A removed server is listed until the last of its certificates has ended.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ecotone_types::ServerId;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::files;
use crate::names::MemberId;
use crate::refusal::Refusal;
use crate::token::{Hash, TOKEN_LIFETIME_S};

/// The file of a [`FileLedger`].
pub(crate) const LEDGER_FILE: &str = "ledger.json";
/// Tokens that are kept: those that may be spent, and for as long again those that no longer may,
/// so that a refusal can say why.
pub const MAX_TOKENS: usize = 1024;
/// Servers of a federation that were not removed.
pub const MAX_SERVERS: usize = 1024;
/// Removed servers of which a certificate may still be valid.
pub const MAX_REMOVED: usize = 4096;

/// One entry. It says all that applying it needs, the time included.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "entry")]
pub enum Entry {
    /// The first server of the federation, which needs no token.
    Founded {
        /// The server.
        member: MemberId,
        /// Its name.
        name: ServerId,
        /// When its certificate ends.
        ends: Timestamp,
        /// When it was proposed.
        now: Timestamp,
    },
    /// A token may be spent from now on.
    TokenIssued {
        /// Hash of its secret.
        token: Hash,
        /// Until when, exclusive.
        ends: Timestamp,
        /// When it was proposed.
        now: Timestamp,
    },
    /// A server spends a token.
    Joined {
        /// Hash of the token's secret.
        token: Hash,
        /// Hash of the server's public key.
        key: Hash,
        /// Its id, if the token was not spent before.
        member: MemberId,
        /// Its name.
        name: ServerId,
        /// When its certificate ends.
        ends: Timestamp,
        /// When it was proposed.
        now: Timestamp,
    },
    /// A server gets its next certificate.
    Renewed {
        /// The server.
        member: MemberId,
        /// When the certificate ends.
        ends: Timestamp,
        /// When it was proposed.
        now: Timestamp,
    },
    /// A server is no longer one of the federation.
    Removed {
        /// The server.
        member: MemberId,
        /// When it was proposed.
        now: Timestamp,
    },
}

impl Entry {
    fn now(&self) -> Timestamp {
        match self {
            Entry::Founded { now, .. }
            | Entry::TokenIssued { now, .. }
            | Entry::Joined { now, .. }
            | Entry::Renewed { now, .. }
            | Entry::Removed { now, .. } => *now,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct TokenRecord {
    token: Hash,
    ends: Timestamp,
    /// The key that has spent it, and the server that it made.
    spent: Option<(Hash, MemberId)>,
}

/// A server of the federation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerRecord {
    /// Its name.
    pub name: ServerId,
    /// When the last of its certificates ends.
    pub ends: Timestamp,
}

/// Tokens and servers of a federation. Bounded by [`MAX_TOKENS`], [`MAX_SERVERS`] and
/// [`MAX_REMOVED`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerState {
    tokens: Vec<TokenRecord>,
    servers: BTreeMap<MemberId, ServerRecord>,
    /// By server, when the last of its certificates ends.
    removed: BTreeMap<MemberId, Timestamp>,
}

impl LedgerState {
    /// Applies an entry. Returns the server that it concerns, if it concerns one.
    ///
    /// # Errors
    /// [`Refusal`]; the state is as it was, but for what is over by the entry's time.
    pub fn apply(&mut self, entry: &Entry) -> std::result::Result<Option<MemberId>, Refusal> {
        self.forget_what_is_over(entry.now());
        match entry {
            Entry::Founded { member, name, ends, .. } => {
                if !self.servers.is_empty() || !self.removed.is_empty() {
                    return Err(Refusal::AlreadyFounded);
                }
                self.servers.insert(*member, ServerRecord { name: name.clone(), ends: *ends });
                Ok(Some(*member))
            }
            Entry::TokenIssued { token, ends, .. } => {
                if self.tokens.len() >= MAX_TOKENS {
                    return Err(Refusal::Full("1024 tokens"));
                }
                self.tokens.push(TokenRecord { token: *token, ends: *ends, spent: None });
                Ok(None)
            }
            Entry::Joined { token, key, member, name, ends, now } => {
                self.join(token, *key, *member, name, (*ends, *now)).map(Some)
            }
            Entry::Renewed { member, ends, .. } => {
                let server = self.servers.get_mut(member).ok_or(Refusal::UnknownServer(member.to_string()))?;
                server.ends = server.ends.max(*ends);
                Ok(Some(*member))
            }
            Entry::Removed { member, .. } => {
                if self.removed.len() >= MAX_REMOVED {
                    return Err(Refusal::Full("4096 removed servers with certificates that have not ended"));
                }
                let server = self.servers.remove(member).ok_or(Refusal::UnknownServer(member.to_string()))?;
                self.removed.insert(*member, server.ends);
                Ok(Some(*member))
            }
        }
    }

    fn join(
        &mut self,
        token: &Hash,
        key: Hash,
        member: MemberId,
        name: &ServerId,
        (ends, now): (Timestamp, Timestamp),
    ) -> std::result::Result<MemberId, Refusal> {
        // All are compared, each in constant time.
        let found = self.tokens.iter().enumerate().filter(|(_, record)| record.token.is(token));
        let found = found.fold(None, |_, found| Some(found));
        let Some((at, record)) = found else { return Err(Refusal::UnknownToken) };
        if let Some((spender, spent_by)) = record.spent {
            // The answer was lost, and it asks again.
            let Some(server) = self.servers.get_mut(&spent_by).filter(|_| spender.is(&key)) else {
                return Err(Refusal::SpentToken);
            };
            if server.name != *name {
                return Err(Refusal::SpentToken);
            }
            server.ends = server.ends.max(ends);
            return Ok(spent_by);
        }
        if now >= record.ends {
            return Err(Refusal::ExpiredToken);
        }
        if let Some((member, _)) = self.servers.iter().find(|(_, server)| server.name == *name) {
            return Err(Refusal::NameTaken { name: name.clone(), member: member.to_string() });
        }
        if self.servers.len() >= MAX_SERVERS {
            return Err(Refusal::Full("1024 servers"));
        }
        self.tokens[at].spent = Some((key, member));
        self.servers.insert(member, ServerRecord { name: name.clone(), ends });
        Ok(member)
    }

    fn forget_what_is_over(&mut self, now: Timestamp) {
        self.tokens.retain(|record| now < record.ends.plus(TOKEN_LIFETIME_S));
        self.removed.retain(|_, ends| now <= *ends);
    }

    /// The servers of the federation.
    pub fn servers(&self) -> &BTreeMap<MemberId, ServerRecord> {
        &self.servers
    }

    /// Removed servers of which a certificate may still be valid.
    pub fn removed(&self) -> impl Iterator<Item = MemberId> {
        self.removed.keys().copied()
    }

    /// The server of this name or id.
    ///
    /// # Errors
    /// [`Refusal::UnknownServer`].
    pub fn find(&self, name_or_id: &str) -> std::result::Result<MemberId, Refusal> {
        let by_name = self.servers.iter().find(|(_, server)| server.name.as_str() == name_or_id);
        let by_id = || self.servers.iter().find(|(member, _)| member.to_string() == name_or_id);
        by_name
            .or_else(by_id)
            .map(|(member, _)| *member)
            .ok_or_else(|| Refusal::UnknownServer(name_or_id.chars().take(64).collect()))
    }
}

/// Where entries are kept.
pub trait Ledger: Send + Sync {
    /// Applies an entry; it is durable when this returns. Returns the server that it concerns.
    ///
    /// # Errors
    /// [`Error::Refused`]; the errors of where it is kept, after which it may or may not be there.
    fn apply(&self, entry: Entry) -> Result<Option<MemberId>>;

    /// The state after the last entry.
    ///
    /// # Errors
    /// Those of where it is kept.
    fn state(&self) -> Result<Arc<LedgerState>>;
}

/// A ledger in a file, which several processes may use at a time: each entry is applied to the
/// file's content under a lock.
pub struct FileLedger {
    file: PathBuf,
    lock: PathBuf,
    /// What was last read or written, and of which version of the file.
    cached: Mutex<Option<(FileVersion, Arc<LedgerState>)>>,
}

/// See [`files::version`].
type FileVersion = (u64, i64, i64);

impl FileLedger {
    /// The ledger in `folder`. Nothing is read yet.
    pub fn new(folder: &Path) -> FileLedger {
        FileLedger { file: folder.join(LEDGER_FILE), lock: folder.join("lock"), cached: Mutex::new(None) }
    }

    fn read(&self) -> Result<LedgerState> {
        let Some(text) = files::read(&self.file)? else { return Ok(LedgerState::default()) };
        serde_json::from_str(&text).map_err(|error| Error::damaged(&self.file, error))
    }
}

impl Ledger for FileLedger {
    fn apply(&self, entry: Entry) -> Result<Option<MemberId>> {
        let mut cached = self.cached.lock();
        let _lock = files::lock(&self.lock)?;
        let mut state = self.read()?;
        let outcome = state.apply(&entry)?;
        let text = serde_json::to_string(&state).map_err(|error| Error::damaged(&self.file, error))?;
        // Until it is known to be written it is read anew.
        *cached = None;
        files::write(&self.file, text.as_bytes())?;
        Ok(outcome)
    }

    fn state(&self) -> Result<Arc<LedgerState>> {
        let mut cached = self.cached.lock();
        let version = files::version(&self.file);
        if let (Some((known, state)), Some(version)) = (&*cached, version)
            && *known == version
        {
            return Ok(state.clone());
        }
        // The version is of before the reading: a write in between is noticed the next time.
        let state = Arc::new(self.read()?);
        *cached = version.map(|version| (version, state.clone()));
        Ok(state)
    }
}
