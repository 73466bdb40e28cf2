//! What the log holds: small, typed entries, each proposed by a server.
//!
//! An entry about a shard names the epoch that it assumes; applied in another one it becomes
//! nothing. Every entry may be applied twice: a proposal whose answer was lost is sent again.
//!
//! The first byte is the version of all that follows, the second the kind. A kind that this build
//! does not know stops it ([`crate::Error::Entry`]): to skip it would be to have another map than
//! the others. New kinds are proposed only at a feature level that all servers have reached.

use std::collections::BTreeSet;

use ecotone_types::ServerId;

use crate::codec::{Malformed, Problem, Reader, Writer};
use crate::ids::{DirectoryId, Epoch, KeyHash, MemberId, ShardId, TokenId};
use crate::map::{
    Addresses, Features, MAX_AUTHORITY_BYTES, MAX_SETTING_NAME_BYTES, MAX_SETTING_VALUE_BYTES, MAX_SHARDS,
    MAX_ZONE_BYTES, Role, Server, ServerState, decode_members, encode_members,
};

/// The longest entry, encoded.
pub const MAX_ENTRY_BYTES: usize = 64 << 10;

const VERSION: u8 = 1;

/// An entry, and who asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// The server that asks, as its certificate says; the leader itself for what people ask it.
    /// Nothing comes of what a removed server asks, however late it arrives.
    pub by: MemberId,
    /// What is asked.
    pub entry: Entry,
}

/// A change of the map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The first entry: a federation of one. All slots are its only shard's, unless it begins
    /// without shards, to have them dealt later.
    Found {
        /// The server that founds it. It is active at once.
        server: NewServer,
        /// The sealed key of the certificate authority, if there is one.
        authority: Option<Vec<u8>>,
        /// Whether all slots become its shard 1.
        with_shard: bool,
    },
    /// A server joins with a token, which is spent by this.
    Join {
        /// The token.
        token: TokenId,
        /// When it expires (seconds since 1970). Whoever proposes has compared it with a clock.
        token_expires_s: u64,
        /// The key that it has shown to have. Who asks again with this token has the same one.
        key: KeyHash,
        /// The server.
        server: NewServer,
    },
    /// A server says that it runs, where, and what its build can do.
    Announce {
        /// The server.
        member: MemberId,
        /// The directory it runs in.
        directory: DirectoryId,
        /// Where it is reached.
        addresses: Addresses,
        /// Its zone.
        zone: String,
        /// What its build can do.
        features: Features,
    },
    /// A server is to be emptied, or no longer is.
    Drain {
        /// The server.
        member: MemberId,
        /// Whether it is.
        drain: bool,
    },
    /// A server is gone for ever.
    Remove {
        /// The server.
        member: MemberId,
        /// Also when it holds the last copy in sync of a shard. That shard has no primary then.
        force: bool,
    },
    /// All slots are dealt, once, to as many shards as there are primaries here.
    Deal {
        /// The primary of each shard, in the order of slots.
        primaries: Vec<MemberId>,
    },
    /// A server gets a copy, not in sync yet.
    AddCopy {
        /// The shard.
        shard: ShardId,
        /// The epoch that this assumes.
        epoch: Epoch,
        /// The server.
        member: MemberId,
    },
    /// A copy that is not in sync is given up.
    RemoveCopy {
        /// The shard.
        shard: ShardId,
        /// The epoch that this assumes.
        epoch: Epoch,
        /// The server.
        member: MemberId,
    },
    /// The copies that acknowledgements count.
    SetInSync {
        /// The shard.
        shard: ShardId,
        /// The epoch that this assumes.
        epoch: Epoch,
        /// The version of the set that this assumes.
        set_version: u64,
        /// The new set. The primary is in it.
        in_sync: BTreeSet<MemberId>,
    },
    /// Another copy in sync becomes the primary, in the next epoch.
    SetPrimary {
        /// The shard.
        shard: ShardId,
        /// The epoch that this assumes.
        epoch: Epoch,
        /// The server; none for a shard that nobody may write.
        primary: Option<MemberId>,
    },
    /// A shard with one copy was moved by hand, while its server was stopped.
    Move {
        /// The shard.
        shard: ShardId,
        /// The epoch that this assumes.
        epoch: Epoch,
        /// The server that has it now.
        to: MemberId,
    },
    /// A setting of the whole federation, or its end.
    Set {
        /// Its name.
        name: String,
        /// Its value; none to have the default again.
        value: Option<String>,
    },
    /// All servers work at this feature level from now on.
    RaiseFeatureLevel {
        /// The level.
        level: u32,
    },
    /// Another sealed key of the certificate authority.
    SetAuthority {
        /// The sealed key.
        authority: Vec<u8>,
    },
    /// Forgets spent tokens that have expired, and servers that were removed before. That these are
    /// removed stays known by their numbers, and no token is taken any more that ends by the time that
    /// a forgotten one did.
    Prune {
        /// The leader's clock, less its doubt about it (seconds since 1970).
        now_s: u64,
    },
    /// Nothing. Who asked for it and has applied it has applied all that was decided before.
    Barrier,
}

/// A server that has no number yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewServer {
    /// Its directory.
    pub directory: DirectoryId,
    /// What people call it.
    pub name: ServerId,
    /// Where it is reached.
    pub addresses: Addresses,
    /// Its zone.
    pub zone: String,
    /// Whether it holds data.
    pub role: Role,
    /// What its build can do.
    pub features: Features,
}

impl NewServer {
    /// The server as it is in the map.
    pub fn in_state(&self, state: ServerState) -> Server {
        Server {
            directory: self.directory,
            name: self.name.clone(),
            addresses: self.addresses.clone(),
            zone: self.zone.clone(),
            role: self.role,
            state,
            features: self.features,
        }
    }

    fn encode(&self, w: &mut Writer) {
        self.in_state(ServerState::Joining).encode(w);
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let Server { directory, name, addresses, zone, role, state, features } = Server::decode(r)?;
        if state != ServerState::Joining {
            return Err(r.wrong(Problem::Inconsistent("a new server that does not join".into())));
        }
        Ok(Self { directory, name, addresses, zone, role, features })
    }
}

impl Proposal {
    /// The proposal as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.byte(VERSION);
        w.byte(self.entry.kind());
        w.number(self.by.0);
        self.entry.encode(&mut w);
        w.done()
    }

    /// Reads a proposal.
    ///
    /// # Errors
    /// When it is too long, malformed, or of a version or kind that this build does not know.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut r = Reader::new(bytes, "entry of the log");
        if bytes.len() > MAX_ENTRY_BYTES {
            return Err(r.wrong(Problem::TooMany { found: bytes.len() as u64, limit: MAX_ENTRY_BYTES as u64 }));
        }
        let version = r.byte()?;
        if version != VERSION {
            return Err(r.wrong(Problem::Version(u64::from(version))));
        }
        let kind = r.byte()?;
        let by = MemberId(r.number()?);
        let entry = Entry::decode(kind, &mut r)?;
        r.end()?;
        Ok(Self { by, entry })
    }
}

impl Entry {
    fn kind(&self) -> u8 {
        match self {
            Entry::Found { .. } => 1,
            Entry::Join { .. } => 2,
            Entry::Announce { .. } => 3,
            Entry::Drain { .. } => 4,
            Entry::Remove { .. } => 5,
            Entry::Deal { .. } => 6,
            Entry::AddCopy { .. } => 7,
            Entry::RemoveCopy { .. } => 8,
            Entry::SetInSync { .. } => 9,
            Entry::SetPrimary { .. } => 10,
            Entry::Move { .. } => 11,
            Entry::Set { .. } => 12,
            Entry::RaiseFeatureLevel { .. } => 13,
            Entry::SetAuthority { .. } => 14,
            Entry::Prune { .. } => 15,
            Entry::Barrier => 16,
        }
    }

    fn encode(&self, w: &mut Writer) {
        match self {
            Entry::Found { server, authority, with_shard } => {
                server.encode(w);
                w.flag(authority.is_some());
                w.bytes(authority.as_deref().unwrap_or_default());
                w.flag(*with_shard);
            }
            Entry::Join { token, token_expires_s, key, server } => {
                w.raw(&token.0);
                w.number(*token_expires_s);
                w.raw(&key.0);
                server.encode(w);
            }
            Entry::Announce { member, directory, addresses, zone, features } => {
                w.number(member.0);
                w.raw(&directory.0);
                addresses.encode(w);
                w.text(zone);
                features.encode(w);
            }
            Entry::Drain { member, drain } => {
                w.number(member.0);
                w.flag(*drain);
            }
            Entry::Remove { member, force } => {
                w.number(member.0);
                w.flag(*force);
            }
            Entry::Deal { primaries } => {
                w.count(primaries.len());
                for primary in primaries {
                    w.number(primary.0);
                }
            }
            Entry::AddCopy { shard, epoch, member }
            | Entry::RemoveCopy { shard, epoch, member }
            | Entry::Move { shard, epoch, to: member } => {
                w.number(u64::from(shard.0));
                w.number(epoch.0);
                w.number(member.0);
            }
            Entry::SetInSync { shard, epoch, set_version, in_sync } => {
                w.number(u64::from(shard.0));
                w.number(epoch.0);
                w.number(*set_version);
                encode_members(in_sync, w);
            }
            Entry::SetPrimary { shard, epoch, primary } => {
                w.number(u64::from(shard.0));
                w.number(epoch.0);
                w.number(primary.map_or(0, |member| member.0));
            }
            Entry::Set { name, value } => {
                w.text(name);
                w.flag(value.is_some());
                w.text(value.as_deref().unwrap_or_default());
            }
            Entry::RaiseFeatureLevel { level } => w.number(u64::from(*level)),
            Entry::SetAuthority { authority } => w.bytes(authority),
            Entry::Prune { now_s } => w.number(*now_s),
            Entry::Barrier => {}
        }
    }

    fn decode(kind: u8, r: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match kind {
            1 => Entry::Found {
                server: NewServer::decode(r)?,
                authority: optional(r, |r| r.bytes(MAX_AUTHORITY_BYTES))?,
                with_shard: r.flag()?,
            },
            2 => Entry::Join {
                token: TokenId(r.array()?),
                token_expires_s: r.number()?,
                key: KeyHash(r.array()?),
                server: NewServer::decode(r)?,
            },
            3 => Entry::Announce {
                member: MemberId(r.number()?),
                directory: DirectoryId(r.array()?),
                addresses: Addresses::decode(r)?,
                zone: r.text(MAX_ZONE_BYTES)?,
                features: Features::decode(r)?,
            },
            4 => Entry::Drain { member: MemberId(r.number()?), drain: r.flag()? },
            5 => Entry::Remove { member: MemberId(r.number()?), force: r.flag()? },
            6 => {
                let mut primaries = Vec::new();
                for _ in 0..r.count(MAX_SHARDS)? {
                    primaries.push(MemberId(r.number()?));
                }
                Entry::Deal { primaries }
            }
            7 => {
                let (shard, epoch, member) = shard_and_member(r)?;
                Entry::AddCopy { shard, epoch, member }
            }
            8 => {
                let (shard, epoch, member) = shard_and_member(r)?;
                Entry::RemoveCopy { shard, epoch, member }
            }
            9 => Entry::SetInSync {
                shard: ShardId(r.small()?),
                epoch: Epoch(r.number()?),
                set_version: r.number()?,
                in_sync: decode_members(r)?,
            },
            10 => {
                let (shard, epoch, primary) = shard_and_member(r)?;
                Entry::SetPrimary { shard, epoch, primary: Some(primary).filter(|member| member.0 != 0) }
            }
            11 => {
                let (shard, epoch, to) = shard_and_member(r)?;
                Entry::Move { shard, epoch, to }
            }
            12 => Entry::Set {
                name: r.text(MAX_SETTING_NAME_BYTES)?,
                value: optional(r, |r| r.text(MAX_SETTING_VALUE_BYTES))?,
            },
            13 => Entry::RaiseFeatureLevel { level: r.small()? },
            14 => Entry::SetAuthority { authority: r.bytes(MAX_AUTHORITY_BYTES)? },
            15 => Entry::Prune { now_s: r.number()? },
            16 => Entry::Barrier,
            other => return Err(r.wrong(Problem::Value(u64::from(other)))),
        })
    }
}

fn shard_and_member(r: &mut Reader<'_>) -> Result<(ShardId, Epoch, MemberId), Malformed> {
    Ok((ShardId(r.small()?), Epoch(r.number()?), MemberId(r.number()?)))
}

/// What [`Entry::encode`] writes of something that may be missing: a flag, and an empty value then.
fn optional<T: Default + PartialEq>(
    r: &mut Reader<'_>,
    read: impl Fn(&mut Reader<'_>) -> Result<T, Malformed>,
) -> Result<Option<T>, Malformed> {
    let is_there = r.flag()?;
    let value = read(r)?;
    if !is_there && value != T::default() {
        return Err(r.wrong(Problem::Inconsistent("a value that is said to be missing".into())));
    }
    Ok(is_there.then_some(value))
}
