//! Applies entries to the map: the same entries give the same map on every server.
//!
//! Invariants: [`Map::check`] holds after every entry; numbers of servers and shards are never given
//! twice; a removed server never returns and nothing comes of what it asks; the epoch of a shard
//! never falls, and rises with each change of its primary. An entry applied twice in a row changes
//! nothing the second time. Nothing fails: what cannot be done has an outcome that says why. A rule
//! that an older build does not have is in force from a feature level on ([`RULES_OF_COPIES`]): an
//! entry has the same outcome on all servers.

use std::collections::BTreeSet;

use crate::entry::{Entry, NewServer, Proposal};
use crate::ids::{DirectoryId, Epoch, KeyHash, MemberId, ShardId, TokenId};
use crate::map::{
    MAX_COPIES, MAX_REMOVED_SERVERS, MAX_SERVERS, MAX_SETTINGS, MAX_SHARDS, MAX_SPENT_TOKENS, Map, Role, Server,
    ServerState, Shard, SlotRange, SpentToken, deal_slots,
};
use crate::settings;

/// The feature level from which on settings of replication are checked, a server that is in sync with
/// others is not removed without force, and a copy that goes outdates changes of the set which may
/// name it.
pub const RULES_OF_COPIES: u32 = 2;

/// What became of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The map has changed.
    Changed,
    /// It was so already.
    Unchanged,
    /// A server has joined, now or before with the same token, under this number.
    Joined(MemberId),
    /// The epoch or the set that it assumed has passed.
    Outdated {
        /// The epoch of the shard now.
        epoch: Epoch,
    },
    /// It cannot be.
    Refused(Refusal),
}

/// Why an entry was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is a federation already.
    #[error("this federation is founded already")]
    Founded,
    /// There is none yet.
    #[error("this federation is not founded yet")]
    NotFounded,
    /// Whoever asks is removed.
    #[error("{0} is removed from the federation")]
    Removed(MemberId),
    /// No server has this number.
    #[error("there is no {0}")]
    NoServer(MemberId),
    /// No shard has this number.
    #[error("there is no {0}")]
    NoShard(ShardId),
    /// Ask for another token.
    #[error("this token is spent: ask for another one (`ecotone cluster token`)")]
    TokenSpent,
    /// One that ends no later may have been spent, and was forgotten.
    #[error("this token is too old: ask for another one (`ecotone cluster token`)")]
    TokenExpired,
    /// Choose another name.
    #[error("another server has this name: choose another one")]
    NameTaken,
    /// A directory was copied.
    #[error("another server runs in this directory, or in a copy of it: begin with an empty directory and a new token")]
    DirectoryTaken,
    /// Update this build.
    #[error("the federation works at feature level {level}, this build at {min} to {max}: start another build")]
    FeatureLevel {
        /// The level of the federation, or the one asked for.
        level: u32,
        /// The lowest that the server supports.
        min: u32,
        /// The highest.
        max: u32,
    },
    /// Something has a limit.
    #[error("there are {limit} {what} already, and may be no more")]
    Full {
        /// Of what there is too much.
        what: &'static str,
        /// How much there may be.
        limit: usize,
    },
    /// Move its shards first.
    #[error("{0} is the last in-sync copy of {1}: move it first, or use force and lose it")]
    LastCopy(MemberId, ShardId),
    /// It counts for what is acknowledged.
    #[error("{0} is in sync for {1}: drain it first, or use force")]
    InSync(MemberId, ShardId),
    /// A setting is not known, or cannot have this value.
    #[error("{name} should be {should}")]
    Setting {
        /// Its name.
        name: String,
        /// What is allowed.
        should: &'static str,
    },
    /// Somebody must stay.
    #[error("{0} is the last server")]
    LastServer(MemberId),
    /// A witness holds no data, a joining or draining server gets none.
    #[error("{0} cannot hold a copy: it is a witness, has not started yet, or is being drained")]
    CannotHold(MemberId),
    /// Slots are dealt once.
    #[error("slots are dealt already")]
    Dealt,
    /// The parts of the entry do not fit the shard.
    #[error("{0}")]
    Unfit(&'static str),
}

/// The map, and how far the log is applied to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    map: Map,
    applied: u64,
    rules: Rules,
}

/// Rules that keep the machine right. Tests that look for what happens without one leave it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rules {
    pub compare_epochs: bool,
    pub refuse_removed: bool,
    pub spend_tokens: bool,
    pub remember_numbers: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self { compare_epochs: true, refuse_removed: true, spend_tokens: true, remember_numbers: true }
    }
}

impl Machine {
    /// `map` as it is after the entry at `applied`.
    pub fn new(map: Map, applied: u64) -> Self {
        Self { map, applied, rules: Rules::default() }
    }

    pub(crate) fn set_rules(&mut self, rules: Rules) {
        self.rules = rules;
    }

    pub(crate) fn rules(&self) -> Rules {
        self.rules
    }

    /// The map.
    pub fn map(&self) -> &Map {
        &self.map
    }

    /// The index of the last entry that was applied.
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// Passes over an entry of Raft's own.
    pub fn skip(&mut self, index: u64) {
        debug_assert!(index > self.applied, "entry {index} after {}", self.applied);
        self.applied = index;
    }

    /// Applies the entry at `index`.
    pub fn apply(&mut self, index: u64, proposal: &Proposal) -> Outcome {
        self.skip(index);
        let next_member = self.map.next_member;
        let can_begin = matches!(proposal.entry, Entry::Found { .. }) || next_member > 1;
        let outcome = if !can_begin {
            Err(Refusal::NotFounded)
        } else if self.is_refused(proposal.by) {
            Err(Refusal::Removed(proposal.by))
        } else {
            self.change(&proposal.entry)
        };
        let outcome = outcome.unwrap_or_else(Outcome::Refused);
        if outcome == Outcome::Changed || self.map.next_member != next_member {
            self.map.version = index;
        }
        outcome
    }

    fn is_refused(&self, by: MemberId) -> bool {
        let is_remembered = self.map.servers.contains_key(&by) || self.rules.remember_numbers;
        self.rules.refuse_removed && is_remembered && self.map.is_removed(by)
    }

    fn change(&mut self, entry: &Entry) -> Result<Outcome, Refusal> {
        match entry {
            Entry::Found { server, authority, with_shard } => self.found(server, authority.as_ref(), *with_shard),
            Entry::Join { token, token_expires_s, key, server } => self.join(*token, *token_expires_s, *key, server),
            Entry::Announce { member, directory, addresses, zone, features } => {
                let level = self.map.feature_level;
                let server = self.server_mut(*member)?;
                if server.directory != *directory {
                    return Err(Refusal::DirectoryTaken);
                }
                if !features.support(level) {
                    return Err(Refusal::FeatureLevel { level, min: features.min, max: features.max });
                }
                let mut now = server.clone();
                now.addresses.peers.clone_from(&addresses.peers);
                // Who begins does not know yet where it serves clients. What it knew before may
                // be in an entry that it has not read again.
                if !addresses.clients.is_empty() {
                    now.addresses.clients.clone_from(&addresses.clients);
                }
                now.zone.clone_from(zone);
                now.features = *features;
                if now.state == ServerState::Joining {
                    now.state = ServerState::Active;
                }
                Ok(assign(server, now))
            }
            Entry::Drain { member, drain } => {
                let server = self.server_mut(*member)?;
                let state = match (server.state, drain) {
                    (ServerState::Draining, false) => ServerState::Active,
                    (_, true) => ServerState::Draining,
                    (state, false) => state,
                };
                Ok(assign(&mut server.state, state))
            }
            Entry::Remove { member, force } => self.remove(*member, *force),
            Entry::Deal { primaries } => self.deal(primaries),
            Entry::AddCopy { shard, epoch, member } => {
                self.can_hold(*member)?;
                let Some(shard) = self.shard_at(*shard, *epoch)? else { return self.outdated(*shard) };
                if shard.copies.contains(member) {
                    return Ok(Outcome::Unchanged);
                }
                if shard.copies.len() == MAX_COPIES {
                    return Err(Refusal::Full { what: "copies of this shard", limit: MAX_COPIES });
                }
                shard.copies.insert(*member);
                Ok(Outcome::Changed)
            }
            Entry::RemoveCopy { shard, epoch, member } => {
                let has_rules = self.map.feature_level >= RULES_OF_COPIES;
                let Some(shard) = self.shard_at(*shard, *epoch)? else { return self.outdated(*shard) };
                if shard.in_sync.contains(member) {
                    return Err(Refusal::Unfit("this copy is in sync: take it out of the set first"));
                }
                if !shard.copies.remove(member) {
                    return Ok(Outcome::Unchanged);
                }
                // A set with it that was proposed would be refused for ever, and counted by the primary
                // until it sees another version.
                shard.set_version += u64::from(has_rules);
                Ok(Outcome::Changed)
            }
            Entry::SetInSync { shard, epoch, set_version, in_sync } => {
                self.set_in_sync(*shard, *epoch, *set_version, in_sync)
            }
            Entry::SetPrimary { shard, epoch, primary } => {
                let Some(shard) = self.shard_at(*shard, *epoch)? else { return self.outdated(*shard) };
                if primary.is_some_and(|primary| !shard.in_sync.contains(&primary)) {
                    return Err(Refusal::Unfit("only a copy in sync can become the primary"));
                }
                shard.primary = *primary;
                shard.epoch.0 += 1;
                Ok(Outcome::Changed)
            }
            Entry::Move { shard, epoch, to } => {
                let is_next = |now: Epoch| epoch.0.checked_add(1) == Some(now.0);
                if let Some(there) = self.map.shards.get(shard)
                    && is_next(there.epoch)
                    && there.primary == Some(*to)
                    && there.copies == BTreeSet::from([*to])
                {
                    // It was moved, and the answer was lost.
                    return Ok(Outcome::Unchanged);
                }
                self.can_hold(*to)?;
                let Some(shard) = self.shard_at(*shard, *epoch)? else { return self.outdated(*shard) };
                if shard.copies.len() > 1 {
                    return Err(Refusal::Unfit("only a shard with one copy is moved by hand"));
                }
                shard.copies = BTreeSet::from([*to]);
                shard.in_sync.clone_from(&shard.copies);
                shard.primary = Some(*to);
                shard.epoch.0 += 1;
                shard.set_version += 1;
                Ok(Outcome::Changed)
            }
            Entry::Set { name, value } => self.set(name, value.as_ref()),
            Entry::RaiseFeatureLevel { level } => self.raise_feature_level(*level),
            Entry::SetAuthority { authority } => Ok(assign(&mut self.map.authority, Some(authority.clone()))),
            Entry::Prune { now_s } => {
                let map = &mut self.map;
                let before = (map.servers.len(), map.spent_tokens.len());
                // Not until `now_s`: a clock that is far ahead must not end tokens that are made later.
                let over = map.spent_tokens.values().map(|spent| spent.expires_s).filter(|ends| *ends <= *now_s);
                map.tokens_pruned_until = over.fold(map.tokens_pruned_until, u64::max);
                map.spent_tokens.retain(|_, spent| spent.expires_s > *now_s);
                map.servers.retain(|_, server| server.state != ServerState::Removed);
                let after = (map.servers.len(), map.spent_tokens.len());
                Ok(if before == after { Outcome::Unchanged } else { Outcome::Changed })
            }
            Entry::Barrier => Ok(Outcome::Unchanged),
        }
    }

    fn found(&mut self, server: &NewServer, authority: Option<&Vec<u8>>, with_shard: bool) -> Result<Outcome, Refusal> {
        let map = &mut self.map;
        if let Some((member, there)) = map.servers.first_key_value() {
            return if there.directory == server.directory && member.0 == 1 {
                Ok(Outcome::Unchanged)
            } else {
                Err(Refusal::Founded)
            };
        }
        if map.next_member != 1 {
            return Err(Refusal::Founded);
        }
        if with_shard && server.role == Role::Witness {
            return Err(Refusal::CannotHold(MemberId(1)));
        }
        // The highest level that the only server knows: nobody is here who could not follow.
        supports(server, server.features.max)?;
        map.feature_level = server.features.max;
        map.next_member = 2;
        map.servers.insert(MemberId(1), server.in_state(ServerState::Active));
        map.authority = authority.cloned();
        if with_shard {
            map.add_shards(&[MemberId(1)]);
        }
        Ok(Outcome::Joined(MemberId(1)))
    }

    fn join(&mut self, token: TokenId, expires_s: u64, key: KeyHash, server: &NewServer) -> Result<Outcome, Refusal> {
        if let Some(spent) = self.map.spent_tokens.get(&token).filter(|_| self.rules.spend_tokens) {
            // Only who was let in, and has not begun yet: whoever runs has a certificate.
            let again = self.map.server(spent.member).is_some_and(|there| {
                there.state == ServerState::Joining
                    && there.name == server.name
                    && there.directory == server.directory
                    && spent.directory == server.directory
                    && spent.key == key
            });
            return if again { Ok(Outcome::Joined(spent.member)) } else { Err(Refusal::TokenSpent) };
        }
        let map = &mut self.map;
        if expires_s <= map.tokens_pruned_until && self.rules.spend_tokens {
            return Err(Refusal::TokenExpired);
        }
        if map.members().any(|(_, there)| there.name == server.name) {
            return Err(Refusal::NameTaken);
        }
        // A removed server's directory is refused as well: it begins anew in an empty one.
        if map.servers.values().any(|there| there.directory == server.directory) {
            return Err(Refusal::DirectoryTaken);
        }
        supports(server, map.feature_level)?;
        full(map.members().count(), MAX_SERVERS, "servers")?;
        full(map.spent_tokens.len(), MAX_SPENT_TOKENS, "spent tokens that have not expired")?;
        let member = MemberId(map.next_member);
        map.next_member += 1;
        map.spent_tokens.insert(token, SpentToken { member, directory: server.directory, key, expires_s });
        map.servers.insert(member, server.in_state(ServerState::Joining));
        Ok(Outcome::Joined(member))
    }

    fn remove(&mut self, member: MemberId, force: bool) -> Result<Outcome, Refusal> {
        if self.map.is_removed(member) {
            return Ok(Outcome::Unchanged);
        }
        self.server_mut(member)?;
        let map = &mut self.map;
        if map.members().count() == 1 {
            return Err(Refusal::LastServer(member));
        }
        let has_rules = map.feature_level >= RULES_OF_COPIES;
        let counts = |shard: &Shard| shard.in_sync.contains(&member) && shard.in_sync.len() > 1;
        if let Some((id, _)) = map.shards.iter().find(|(_, shard)| counts(shard)).filter(|_| has_rules && !force) {
            return Err(Refusal::InSync(member, *id));
        }
        let is_last = |shard: &Shard| shard.in_sync.contains(&member) && shard.in_sync.len() == 1;
        let needs = |shard: &Shard| is_last(shard) || shard.primary == Some(member);
        if let Some((id, _)) = map.shards.iter().find(|(_, shard)| needs(shard)).filter(|_| !force) {
            return Err(Refusal::LastCopy(member, *id));
        }
        let removed = map.servers.len() - map.members().count();
        full(removed, MAX_REMOVED_SERVERS, "removed servers that are remembered")?;

        for shard in map.shards.values_mut() {
            let was_copy = shard.copies.remove(&member) && has_rules;
            if shard.in_sync.remove(&member) || was_copy {
                shard.set_version += 1;
            }
            if shard.primary == Some(member) {
                shard.primary = None;
                shard.epoch.0 += 1;
            }
        }
        if let Some(server) = map.servers.get_mut(&member) {
            server.state = ServerState::Removed;
        }
        Ok(Outcome::Changed)
    }

    fn deal(&mut self, primaries: &[MemberId]) -> Result<Outcome, Refusal> {
        if !self.map.shards.is_empty() {
            let same = self.map.shards.values().map(|shard| shard.primary).eq(primaries.iter().copied().map(Some));
            return if same { Ok(Outcome::Unchanged) } else { Err(Refusal::Dealt) };
        }
        if primaries.is_empty() || primaries.len() > MAX_SHARDS {
            return Err(Refusal::Unfit("slots are dealt to at least one shard, and at most 4096"));
        }
        primaries.iter().try_for_each(|primary| self.can_hold(*primary))?;
        self.map.add_shards(primaries);
        Ok(Outcome::Changed)
    }

    fn set_in_sync(
        &mut self,
        id: ShardId,
        epoch: Epoch,
        set_version: u64,
        in_sync: &BTreeSet<MemberId>,
    ) -> Result<Outcome, Refusal> {
        let compare = self.rules.compare_epochs;
        let Some(shard) = self.shard_at(id, epoch)? else { return self.outdated(id) };
        if compare && shard.set_version != set_version {
            return Ok(Outcome::Outdated { epoch: shard.epoch });
        }
        if !in_sync.is_subset(&shard.copies) {
            return Err(Refusal::Unfit("only copies can be in sync"));
        }
        if in_sync.is_empty() || shard.primary.is_some_and(|primary| !in_sync.contains(&primary)) {
            return Err(Refusal::Unfit("the primary, or at least one copy, stays in sync"));
        }
        let outcome = assign(&mut shard.in_sync, in_sync.clone());
        if outcome == Outcome::Changed {
            shard.set_version += 1;
        }
        Ok(outcome)
    }

    fn set(&mut self, name: &str, value: Option<&String>) -> Result<Outcome, Refusal> {
        let (there, level) = (&mut self.map.settings, self.map.feature_level);
        if there.get(name) == value {
            return Ok(Outcome::Unchanged);
        }
        match value {
            Some(value) => {
                if level >= RULES_OF_COPIES {
                    let setting = |should| Refusal::Setting { name: name.to_owned(), should };
                    settings::check(name, value).map_err(setting)?;
                }
                if !there.contains_key(name) {
                    full(there.len(), MAX_SETTINGS, "settings of the federation")?;
                }
                there.insert(name.to_owned(), value.clone());
            }
            None => {
                there.remove(name);
            }
        }
        Ok(Outcome::Changed)
    }

    fn raise_feature_level(&mut self, level: u32) -> Result<Outcome, Refusal> {
        if level <= self.map.feature_level {
            return Ok(Outcome::Unchanged);
        }
        let unable = self.map.members().map(|(_, server)| server.features).find(|features| !features.support(level));
        if let Some(features) = unable {
            return Err(Refusal::FeatureLevel { level, min: features.min, max: features.max });
        }
        self.map.feature_level = level;
        Ok(Outcome::Changed)
    }

    fn server_mut(&mut self, member: MemberId) -> Result<&mut Server, Refusal> {
        if self.map.is_removed(member) {
            return Err(Refusal::Removed(member));
        }
        self.map.servers.get_mut(&member).ok_or(Refusal::NoServer(member))
    }

    fn can_hold(&self, member: MemberId) -> Result<(), Refusal> {
        if self.map.is_removed(member) {
            return Err(Refusal::Removed(member));
        }
        let server = self.map.servers.get(&member).ok_or(Refusal::NoServer(member))?;
        let can = server.role == Role::Data && server.state == ServerState::Active;
        if can { Ok(()) } else { Err(Refusal::CannotHold(member)) }
    }

    /// The shard, if it is in `epoch`.
    fn shard_at(&mut self, id: ShardId, epoch: Epoch) -> Result<Option<&mut Shard>, Refusal> {
        let compare = self.rules.compare_epochs;
        let shard = self.map.shards.get_mut(&id).ok_or(Refusal::NoShard(id))?;
        Ok((!compare || shard.epoch == epoch).then_some(shard))
    }

    fn outdated(&self, id: ShardId) -> Result<Outcome, Refusal> {
        let shard = self.map.shards.get(&id).ok_or(Refusal::NoShard(id))?;
        Ok(Outcome::Outdated { epoch: shard.epoch })
    }

    /// The directory of a server that is not removed.
    pub fn directory(&self, member: MemberId) -> Option<DirectoryId> {
        self.map.server(member).map(|server| server.directory)
    }
}

impl Map {
    fn add_shards(&mut self, primaries: &[MemberId]) {
        let ranges: Vec<SlotRange> = deal_slots(primaries.len() as u16);
        for (range, primary) in ranges.into_iter().zip(primaries) {
            let copies = BTreeSet::from([*primary]);
            let shard = Shard {
                slots: vec![range],
                in_sync: copies.clone(),
                copies,
                primary: Some(*primary),
                epoch: Epoch(1),
                set_version: 1,
            };
            self.shards.insert(ShardId(self.next_shard), shard);
            self.next_shard += 1;
        }
    }
}

fn assign<T: PartialEq>(place: &mut T, value: T) -> Outcome {
    if *place == value {
        return Outcome::Unchanged;
    }
    *place = value;
    Outcome::Changed
}

fn supports(server: &NewServer, level: u32) -> Result<(), Refusal> {
    let features = server.features;
    if features.support(level) {
        return Ok(());
    }
    Err(Refusal::FeatureLevel { level, min: features.min, max: features.max })
}

fn full(count: usize, limit: usize, what: &'static str) -> Result<(), Refusal> {
    if count >= limit { Err(Refusal::Full { what, limit }) } else { Ok(()) }
}
