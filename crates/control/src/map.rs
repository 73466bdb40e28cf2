//! The map of a federation: which servers there are, which shards, and who holds them. All servers
//! have the same one, as far as they have read the log.
//!
//! Invariants, checked by [`Map::check`] (when a snapshot is read, and by tests after each entry):
//! slots are covered exactly once or not at all; a primary is in the in-sync set, which is among the
//! copies, which are on servers that are not removed; names and directories are unique; numbers are
//! below those that are given next. All collections are ordered, so the same entries give the same
//! bytes everywhere.

use std::collections::{BTreeMap, BTreeSet};

use ecotone_types::ServerId;

use crate::codec::{Malformed, Problem, Reader, Writer, seal, unseal};
use crate::ids::{DirectoryId, Epoch, FederationId, HistoryId, KeyHash, MemberId, ShardId, TokenId};

/// The slots that keys fall into, as Redis has them.
pub const SLOTS: u16 = 16_384;
/// Servers that are not removed.
pub const MAX_SERVERS: usize = 1_024;
/// Removed servers that the map remembers, until [`Entry::Prune`](crate::entry::Entry::Prune).
pub const MAX_REMOVED_SERVERS: usize = 4_096;
/// Shards of a federation.
pub const MAX_SHARDS: usize = 4_096;
/// Copies of a shard.
pub const MAX_COPIES: usize = 7;
/// Ranges of slots in a shard.
pub const MAX_RANGES: usize = 1_024;
/// The longest address: a host name of DNS, a colon and a port.
pub const MAX_ADDRESS_BYTES: usize = 261;
/// The longest label of a zone.
pub const MAX_ZONE_BYTES: usize = 64;
/// Settings of the whole federation.
pub const MAX_SETTINGS: usize = 256;
/// The longest name of a setting.
pub const MAX_SETTING_NAME_BYTES: usize = 64;
/// The longest value of a setting.
pub const MAX_SETTING_VALUE_BYTES: usize = 4_096;
/// Spent tokens that have not expired.
pub const MAX_SPENT_TOKENS: usize = 4_096;
/// The sealed key of the certificate authority.
pub const MAX_AUTHORITY_BYTES: usize = 16_384;
/// A map, encoded.
pub const MAX_MAP_BYTES: usize = 16 << 20;

const MAGIC: &[u8; 4] = b"eMAP";
const VERSION: u8 = 1;

/// The map of a federation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    /// Which federation this is.
    pub federation: FederationId,
    /// How often its log was begun anew by force, or from an export. Servers of another generation
    /// do not speak with each other.
    pub generation: u64,
    /// Which history of that generation this is: that of the federation itself until its log is begun
    /// anew.
    pub history: HistoryId,
    /// The index of the last entry that changed something.
    pub version: u64,
    /// What all servers may do: see [`Features`].
    pub feature_level: u32,
    /// The number that the next server gets.
    pub next_member: u64,
    /// The number that the next shard gets.
    pub next_shard: u32,
    /// Servers, removed ones among them.
    pub servers: BTreeMap<MemberId, Server>,
    /// Shards. None before slots are dealt.
    pub shards: BTreeMap<ShardId, Shard>,
    /// Settings of the whole federation.
    pub settings: BTreeMap<String, String>,
    /// Tokens that a server has joined with.
    pub spent_tokens: BTreeMap<TokenId, SpentToken>,
    /// The latest end of a spent token that was forgotten (seconds since 1970): none that ends by
    /// then is taken any more, whatever a clock says.
    pub tokens_pruned_until: u64,
    /// The key of the certificate authority, sealed: nothing here can open it.
    pub authority: Option<Vec<u8>>,
}

/// A server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Its directory. Another directory is another server.
    pub directory: DirectoryId,
    /// What people call it.
    pub name: ServerId,
    /// Where it is reached, as it says itself (NAT, containers).
    pub addresses: Addresses,
    /// What fails together; empty when nobody says.
    pub zone: String,
    /// Whether it holds data.
    pub role: Role,
    /// How far it belongs.
    pub state: ServerState,
    /// What its build can do.
    pub features: Features,
}

/// Where a server is reached, as `host:port`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// By other servers.
    pub peers: String,
    /// By clients; empty for a witness.
    pub clients: String,
}

/// Whether a server holds data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// It holds shards, and may vote.
    Data,
    /// It votes only.
    Witness,
}

/// How far a server belongs to the federation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServerState {
    /// It has a number, and has not said yet that it runs.
    Joining,
    /// It takes part.
    Active,
    /// It is being emptied: it gets nothing more, and does not vote.
    Draining,
    /// It is gone for ever.
    Removed,
}

/// The feature levels that a build can work with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// The lowest.
    pub min: u32,
    /// The highest.
    pub max: u32,
}

impl Features {
    /// Whether a server of this build can work at `level`.
    pub fn support(self, level: u32) -> bool {
        self.min <= level && level <= self.max
    }
}

/// A range of slots, held by one store on each server that has a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Which slots, ascending.
    pub slots: Vec<SlotRange>,
    /// The servers that have a copy.
    pub copies: BTreeSet<MemberId>,
    /// The copies that acknowledgements count.
    pub in_sync: BTreeSet<MemberId>,
    /// The copy that takes writes, if there is one.
    pub primary: Option<MemberId>,
    /// Counts primaries.
    pub epoch: Epoch,
    /// Counts changes of the in-sync set, in all epochs.
    pub set_version: u64,
}

/// Slots from `first` to `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SlotRange {
    /// The first slot.
    pub first: u16,
    /// The last slot.
    pub last: u16,
}

/// Who joined with a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpentToken {
    /// The number that it was given.
    pub member: MemberId,
    /// Its directory: the same server may ask again, when the answer was lost.
    pub directory: DirectoryId,
    /// Its key.
    pub key: KeyHash,
    /// When the token would have expired (seconds since 1970).
    pub expires_s: u64,
}

impl Map {
    /// A federation without servers, before its first entry.
    pub fn new(federation: FederationId) -> Self {
        Self {
            federation,
            generation: 1,
            history: HistoryId(federation.0),
            version: 0,
            feature_level: 1,
            next_member: 1,
            next_shard: 1,
            servers: BTreeMap::new(),
            shards: BTreeMap::new(),
            settings: BTreeMap::new(),
            spent_tokens: BTreeMap::new(),
            tokens_pruned_until: 0,
            authority: None,
        }
    }

    /// The server of this number, unless it is removed.
    pub fn server(&self, member: MemberId) -> Option<&Server> {
        self.servers.get(&member).filter(|server| server.state != ServerState::Removed)
    }

    /// Whether a server of this number was there and is no more. What is remembered of it may be
    /// gone: numbers are never given twice, so this does not depend on it.
    pub fn is_removed(&self, member: MemberId) -> bool {
        member.0 < self.next_member && self.server(member).is_none()
    }

    /// The servers that are not removed.
    pub fn members(&self) -> impl Iterator<Item = (MemberId, &Server)> {
        let present = self.servers.iter().filter(|(_, server)| server.state != ServerState::Removed);
        present.map(|(member, server)| (*member, server))
    }

    /// The shard that holds `slot`, if slots are dealt.
    pub fn shard_of(&self, slot: u16) -> Option<(ShardId, &Shard)> {
        let holds = |shard: &Shard| shard.slots.iter().any(|range| range.first <= slot && slot <= range.last);
        self.shards.iter().find(|(_, shard)| holds(shard)).map(|(id, shard)| (*id, shard))
    }

    /// The map as bytes: version, checksum, content. The same map gives the same bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.raw(&self.federation.0);
        w.number(self.generation);
        w.raw(&self.history.0);
        w.number(self.version);
        w.number(u64::from(self.feature_level));
        w.number(self.next_member);
        w.number(u64::from(self.next_shard));
        w.count(self.servers.len());
        for (member, server) in &self.servers {
            w.number(member.0);
            server.encode(&mut w);
        }
        w.count(self.shards.len());
        for (shard, state) in &self.shards {
            w.number(u64::from(shard.0));
            state.encode(&mut w);
        }
        w.count(self.settings.len());
        for (name, value) in &self.settings {
            w.text(name);
            w.text(value);
        }
        w.count(self.spent_tokens.len());
        for (token, spent) in &self.spent_tokens {
            w.raw(&token.0);
            w.number(spent.member.0);
            w.raw(&spent.directory.0);
            w.raw(&spent.key.0);
            w.number(spent.expires_s);
        }
        w.number(self.tokens_pruned_until);
        w.flag(self.authority.is_some());
        w.bytes(self.authority.as_deref().unwrap_or_default());
        seal(MAGIC, VERSION, &w.done())
    }

    /// Reads a map, and checks all of it.
    ///
    /// # Errors
    /// When it is damaged, of another version, or breaks an invariant.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        const WHAT: &str = "map of the federation";
        if bytes.len() > MAX_MAP_BYTES {
            let problem = Problem::TooMany { found: bytes.len() as u64, limit: MAX_MAP_BYTES as u64 };
            return Err(Malformed::new(WHAT, problem));
        }
        let mut r = Reader::new(unseal(MAGIC, VERSION, bytes, WHAT)?, WHAT);
        let mut map = Self::new(FederationId(r.array()?));
        map.generation = r.number()?;
        map.history = HistoryId(r.array()?);
        map.version = r.number()?;
        map.feature_level = r.small()?;
        map.next_member = r.number()?;
        map.next_shard = r.small()?;
        for _ in 0..r.count(MAX_SERVERS + MAX_REMOVED_SERVERS)? {
            let member = MemberId(r.number()?);
            let server = Server::decode(&mut r)?;
            ascending(&mut map.servers, member, server).ok_or_else(|| r.wrong(Problem::Value(member.0)))?;
        }
        for _ in 0..r.count(MAX_SHARDS)? {
            let shard = ShardId(r.small()?);
            let state = Shard::decode(&mut r)?;
            ascending(&mut map.shards, shard, state).ok_or_else(|| r.wrong(Problem::Value(u64::from(shard.0))))?;
        }
        for _ in 0..r.count(MAX_SETTINGS)? {
            let name = r.text(MAX_SETTING_NAME_BYTES)?;
            let value = r.text(MAX_SETTING_VALUE_BYTES)?;
            ascending(&mut map.settings, name, value).ok_or_else(|| r.wrong(Problem::Text))?;
        }
        for _ in 0..r.count(MAX_SPENT_TOKENS)? {
            let token = TokenId(r.array()?);
            let spent = SpentToken {
                member: MemberId(r.number()?),
                directory: DirectoryId(r.array()?),
                key: KeyHash(r.array()?),
                expires_s: r.number()?,
            };
            ascending(&mut map.spent_tokens, token, spent).ok_or_else(|| r.wrong(Problem::Text))?;
        }
        map.tokens_pruned_until = r.number()?;
        let has_authority = r.flag()?;
        let authority = r.bytes(MAX_AUTHORITY_BYTES)?;
        if !has_authority && !authority.is_empty() {
            return Err(r.wrong(Problem::Trailing(authority.len())));
        }
        map.authority = has_authority.then_some(authority);
        r.end()?;
        map.check().map_err(|broken| Malformed::new(WHAT, Problem::Inconsistent(broken)))?;
        Ok(map)
    }

    /// Says which invariant does not hold, if one does not.
    ///
    /// # Errors
    /// With the invariant that is broken, in words.
    pub fn check(&self) -> Result<(), String> {
        let mut names = BTreeSet::new();
        let mut directories = BTreeSet::new();
        for (member, server) in &self.servers {
            if member.0 == 0 || member.0 >= self.next_member {
                return Err(format!("{member} was never given, the next is {}", self.next_member));
            }
            if server.state == ServerState::Removed {
                continue;
            }
            if !names.insert(&server.name) {
                return Err(format!("two servers are called {}", server.name));
            }
            if !directories.insert(server.directory) {
                return Err(format!("two servers have directory {}", server.directory));
            }
            if !server.features.support(self.feature_level) {
                return Err(format!("{member} cannot work at feature level {}", self.feature_level));
            }
        }
        if names.len() > MAX_SERVERS {
            return Err(format!("{} servers are more than {MAX_SERVERS}", names.len()));
        }
        for (id, shard) in &self.shards {
            if id.0 == 0 || id.0 >= self.next_shard {
                return Err(format!("{id} was never given, the next is {}", self.next_shard));
            }
            self.check_shard(*id, shard)?;
        }
        self.check_slots()
    }

    fn check_shard(&self, id: ShardId, shard: &Shard) -> Result<(), String> {
        if shard.copies.len() > MAX_COPIES {
            return Err(format!("{id} has {} copies", shard.copies.len()));
        }
        for member in &shard.copies {
            match self.server(*member) {
                None => return Err(format!("{id} has a copy on {member}, which is not there")),
                Some(server) if server.role == Role::Witness => {
                    return Err(format!("{id} has a copy on {member}, a witness"));
                }
                Some(_) => {}
            }
        }
        if !shard.in_sync.is_subset(&shard.copies) {
            return Err(format!("the in-sync set of {id} is not among its copies"));
        }
        if shard.primary.is_some_and(|primary| !shard.in_sync.contains(&primary)) {
            return Err(format!("the primary of {id} is not in sync"));
        }
        Ok(())
    }

    fn check_slots(&self) -> Result<(), String> {
        let mut ranges: Vec<(SlotRange, ShardId)> =
            self.shards.iter().flat_map(|(id, shard)| shard.slots.iter().map(|range| (*range, *id))).collect();
        if let Some((id, _)) = self.shards.iter().find(|(_, shard)| !shard.slots.is_sorted()) {
            return Err(format!("the slots of {id} are not ascending"));
        }
        ranges.sort();
        let mut next = 0;
        for (range, id) in &ranges {
            if range.first != next || range.last < range.first || range.last >= SLOTS {
                return Err(format!("slots {} to {} of {id} where {next} should follow", range.first, range.last));
            }
            next = range.last + 1;
        }
        if next != SLOTS && !self.shards.is_empty() { Err(format!("no shard holds slot {next}")) } else { Ok(()) }
    }
}

/// Inserts behind all others; nothing where it would not be the last.
fn ascending<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: V) -> Option<()> {
    if map.last_key_value().is_some_and(|(last, _)| *last >= key) {
        return None;
    }
    map.insert(key, value);
    Some(())
}

/// All slots, dealt to `shards` shards of equal size, to within one slot.
pub fn deal_slots(shards: u16) -> Vec<SlotRange> {
    let begin = |shard: u16| (u32::from(shard) * u32::from(SLOTS) / u32::from(shards.max(1))) as u16;
    (0..shards).map(|shard| SlotRange { first: begin(shard), last: begin(shard + 1) - 1 }).collect()
}

impl Server {
    pub(crate) fn encode(&self, w: &mut Writer) {
        w.raw(&self.directory.0);
        w.text(self.name.as_str());
        self.addresses.encode(w);
        w.text(&self.zone);
        w.byte(match self.role {
            Role::Data => 0,
            Role::Witness => 1,
        });
        w.byte(match self.state {
            ServerState::Joining => 0,
            ServerState::Active => 1,
            ServerState::Draining => 2,
            ServerState::Removed => 3,
        });
        self.features.encode(w);
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let directory = DirectoryId(r.array()?);
        let name = r.text(ServerId::MAX_BYTES)?;
        Ok(Self {
            directory,
            name: ServerId::new(name).map_err(|_| r.wrong(Problem::Text))?,
            addresses: Addresses::decode(r)?,
            zone: r.text(MAX_ZONE_BYTES)?,
            role: match r.byte()? {
                0 => Role::Data,
                1 => Role::Witness,
                other => return Err(r.wrong(Problem::Value(u64::from(other)))),
            },
            state: match r.byte()? {
                0 => ServerState::Joining,
                1 => ServerState::Active,
                2 => ServerState::Draining,
                3 => ServerState::Removed,
                other => return Err(r.wrong(Problem::Value(u64::from(other)))),
            },
            features: Features::decode(r)?,
        })
    }
}

impl Addresses {
    pub(crate) fn encode(&self, w: &mut Writer) {
        w.text(&self.peers);
        w.text(&self.clients);
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { peers: r.text(MAX_ADDRESS_BYTES)?, clients: r.text(MAX_ADDRESS_BYTES)? })
    }
}

impl Features {
    pub(crate) fn encode(self, w: &mut Writer) {
        w.number(u64::from(self.min));
        w.number(u64::from(self.max));
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { min: r.small()?, max: r.small()? })
    }
}

impl Shard {
    fn encode(&self, w: &mut Writer) {
        w.count(self.slots.len());
        for range in &self.slots {
            w.number(u64::from(range.first));
            w.number(u64::from(range.last));
        }
        encode_members(&self.copies, w);
        encode_members(&self.in_sync, w);
        w.number(self.primary.map_or(0, |member| member.0));
        w.number(self.epoch.0);
        w.number(self.set_version);
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut slots = Vec::new();
        for _ in 0..r.count(MAX_RANGES)? {
            let slot = |found: u64| found as u16;
            let last_slot = u64::from(SLOTS - 1);
            slots.push(SlotRange { first: slot(r.at_most(last_slot)?), last: slot(r.at_most(last_slot)?) });
        }
        Ok(Self {
            slots,
            copies: decode_members(r)?,
            in_sync: decode_members(r)?,
            primary: Some(MemberId(r.number()?)).filter(|member| member.0 != 0),
            epoch: Epoch(r.number()?),
            set_version: r.number()?,
        })
    }
}

pub(crate) fn encode_members(members: &BTreeSet<MemberId>, w: &mut Writer) {
    w.count(members.len());
    for member in members {
        w.number(member.0);
    }
}

/// At most [`MAX_COPIES`], ascending.
pub(crate) fn decode_members(r: &mut Reader<'_>) -> Result<BTreeSet<MemberId>, Malformed> {
    let mut members = BTreeSet::new();
    for _ in 0..r.count(MAX_COPIES)? {
        let member = MemberId(r.number()?);
        if member.0 == 0 || members.last().is_some_and(|last| *last >= member) {
            return Err(r.wrong(Problem::Value(member.0)));
        }
        members.insert(member);
    }
    Ok(members)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_dealt_evenly() {
        for shards in [1, 2, 3, 7, 16, 1000, 4096, SLOTS] {
            let ranges = deal_slots(shards);
            let sizes: BTreeSet<u16> = ranges.iter().map(|range| range.last - range.first + 1).collect();
            assert_eq!(ranges.len(), usize::from(shards));
            assert_eq!(ranges[0].first, 0);
            assert_eq!(ranges[ranges.len() - 1].last, SLOTS - 1);
            assert!(ranges.windows(2).all(|pair| pair[0].last + 1 == pair[1].first));
            assert!(sizes.len() <= 2, "{shards} shards have sizes {sizes:?}");
        }
        assert!(deal_slots(0).is_empty());
    }
}
