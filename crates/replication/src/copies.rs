//! All copies of a server: which there are, by the map, and who is asked what.
//!
//! Failure: a copy whose files cannot be opened is tried again each second, and says why.
//!
//! Threads: `ecotone-copies` follows the map; see [`crate::shard`], [`crate::leases`] and
//! [`crate::leader`] for the others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ecotone_control::entry::Entry;
use ecotone_control::ids::{DirectoryId, Epoch, MemberId, ShardId};
use ecotone_control::machine::RULES_OF_COPIES;
use ecotone_control::map::{Map, Shard};
use ecotone_control::settings::{self, Replication};
use ecotone_membership::{Known, Membership};
use ecotone_mirror::names::FileName;
use ecotone_mirror::seed::Offer;
use ecotone_replica::commit::{Durability, Level, Levels};
use ecotone_replica::copy::CopySettings;
use ecotone_replica::lease::Heartbeat;
use ecotone_replica::position::{Incarnation, Mark};
use ecotone_replica::primary::Settings;
use ecotone_replica::sender::Limits;
use ecotone_replica::stream::ContentId;
use ecotone_replica::wire::{Message, Parcel, ShardReport};
use ecotone_types::DutyObserver;
use parking_lot::{Condvar, Mutex};
use tracing::{info, warn};

use crate::clock::{boot, now_us};
use crate::error::{Error, Result};
use crate::fetcher::Fetcher;
use crate::followed::Followed;
use crate::host::Host;
use crate::leader::{LEADING_TICK, Leader, Order};
use crate::leases::{Beating, Leases};
use crate::leftovers::{Leftovers, is_elsewhere, remove};
use crate::links::Links;
use crate::repairing::Repair;
use crate::scrub::{Scrub, Steering};
use crate::service::{Fetched, Incoming};
use crate::shard::{Around, Driven, Facts, Input};
use crate::table::Table;

/// How long a server that ends waits until others have its shards.
pub const MAX_LEAVE_TIME: Duration = Duration::from_secs(2);
/// After a failure it is tried again so much later.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Between two looks where nothing happens.
const IDLE_TICK: Duration = Duration::from_millis(500);
/// A member of a set that says nothing for so long leaves it.
const LEAVE_AFTER_US: u64 = 450_000;
/// Between two looks of a primary: beats, proposals.
const EVERY_US: u64 = 100_000;
/// A primary that says nothing for so long is greeted anew.
const SILENCE_US: u64 = 300_000;
/// A copy at rest for so long records that it is whole whatever happens.
const CLEAN_AFTER_US: u64 = 2_000_000;
/// What a copy takes before it has applied it.
const WINDOW_BYTES: u64 = 8 << 20;
/// How much more than for a copy that follows is kept for one that is being seeded.
const SEED_FACTOR: u64 = 16;
/// An offer that nobody has asked for a file of is dropped after this.
const MAX_OFFER_IDLE: Duration = Duration::from_secs(900);
/// Offers of a server at a time.
const MAX_OFFERS: usize = 16;
/// Where there are so many, one of which nobody has asked for a file for so long makes room. A range
/// of a file takes less over a thin link.
const MIN_IDLE_BEFORE_EVICTION: Duration = Duration::from_secs(60);
/// Entries that were asked for and are not decided.
const MAX_PROPOSALS: usize = 256;
/// What is said to the leader here, and not looked at yet.
const MAX_TO_LEADER: usize = 4_096;
/// How often the leader is asked to have a shard handed over: a message may be lost.
const MAX_HAND_OVER_QUESTIONS: u32 = 5;
/// Between two of these.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(2);
/// How long what people force may take to be decided.
const MAX_DECISION_TIME: Duration = Duration::from_secs(10);

/// Whether a shard's copies are driven, rather than its store opened by whoever has the only one:
/// where people have said how many there should be, also if that is one. Not before all servers know
/// what copies are.
pub fn is_replicated(map: &Map, shard: &Shard) -> bool {
    map.feature_level >= RULES_OF_COPIES && (shard.copies.len() > 1 || map.settings.contains_key(settings::COPIES))
}

/// What replication needs of a server.
pub struct Parts {
    /// The server's part in the federation.
    pub membership: Arc<Membership>,
    /// The server's directory, as the map knows it.
    pub directory: DirectoryId,
    /// The server around.
    pub host: Arc<dyn Host>,
    /// What a server has before it says so: as its own clients are answered.
    pub durability: Durability,
    /// To others.
    pub links: Links,
}

/// Of which shard, to whom, in which session.
type OfferKey = (ShardId, MemberId, u64);

/// Which offers make room for one of a shard to a server: none of both stay. None if all are in use.
fn make_room(idle: &BTreeMap<OfferKey, Duration>, of: (ShardId, MemberId)) -> Option<Vec<OfferKey>> {
    let is_replaced = |key: &OfferKey| (key.0, key.1) == of;
    let mut going: Vec<OfferKey> = idle.keys().filter(|key| is_replaced(key)).copied().collect();
    if idle.len() - going.len() >= MAX_OFFERS {
        let others = idle.iter().filter(|(key, _)| !is_replaced(key));
        let (key, _) = others.max_by_key(|(_, idle)| **idle).filter(|(_, idle)| **idle >= MIN_IDLE_BEFORE_EVICTION)?;
        going.push(*key);
    }
    Some(going)
}

struct Offered {
    offer: Arc<Offer>,
    asked: Instant,
}

struct Core {
    me: MemberId,
    membership: Arc<Membership>,
    durability: Durability,
    table: Arc<Table>,
    leases: Arc<Leases>,
    links: Links,
    around: Arc<Around>,
    offers: Mutex<BTreeMap<OfferKey, Offered>>,
    /// Copies that are elsewhere now, and whose files are still touched or being removed.
    ending: Arc<Mutex<BTreeSet<ShardId>>>,
    scrub: Scrub,
    to_leader: Arc<ToLeader>,
}

/// What a server has said of a copy, as the leader knows it.
#[derive(Debug, Clone, Copy)]
pub struct Reported {
    /// The server.
    pub member: MemberId,
    /// What it said last.
    pub report: ShardReport,
    /// When that came.
    pub at: Instant,
    /// While it is being seeded: when that was first said, and how many bytes were there then.
    pub seeding_since: Option<(Instant, u64)>,
}

impl Reported {
    /// What follows `before`, of the same copy.
    fn next(member: MemberId, report: ShardReport, before: Option<&Reported>, at: Instant) -> Reported {
        let since = before.and_then(|before| before.seeding_since);
        let seeding_since = report.seeding.map(|(done, _)| match since {
            // Fewer bytes: it was begun anew.
            Some((since, first)) if first <= done => (since, first),
            _ => (at, done),
        });
        Reported { member, report, at, seeding_since }
    }

    /// How long seeding goes on if it goes on as it did; none where nothing is seeded, or nothing
    /// has come yet.
    pub fn seeding_left(&self) -> Option<Duration> {
        let ((done, all), (since, first)) = (self.report.seeding?, self.seeding_since?);
        let (came, left) = (done.saturating_sub(first), all.saturating_sub(done));
        let seconds = self.at.saturating_duration_since(since).as_secs_f64();
        Duration::try_from_secs_f64(seconds * left as f64 / came as f64).ok().filter(|_| came > 0 && seconds > 0.0)
    }
}

/// What the leader here is to look at.
#[derive(Default)]
struct ToLeader {
    waiting: Mutex<Vec<(MemberId, Message)>>,
    /// What was said last of each copy. Empty while another server leads.
    reports: Mutex<BTreeMap<(ShardId, MemberId), Reported>>,
    hand_overs: Mutex<Vec<(ShardId, MemberId)>>,
    changed: Condvar,
    is_stopping: AtomicBool,
}

impl ToLeader {
    fn put(&self, from: MemberId, message: Message) {
        if let Message::Report(reports) = &message {
            let (mut known, at) = (self.reports.lock(), Instant::now());
            for report in reports {
                let key = (report.shard, from);
                let next = Reported::next(from, *report, known.get(&key), at);
                known.insert(key, next);
            }
        }
        let mut waiting = self.waiting.lock();
        if waiting.len() < MAX_TO_LEADER {
            waiting.push((from, message));
            self.changed.notify_one();
        }
    }
}

/// See the module. Ends when dropped: stores are closed.
pub struct Copies {
    core: Arc<Core>,
    is_stopping: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    beating: Option<Beating>,
}

impl Copies {
    /// Drives the copies that the map gives to this server, from now on.
    ///
    /// # Errors
    /// No thread.
    pub fn start(parts: Parts) -> Result<Copies> {
        let Parts { membership, directory, host, durability, links } = parts;
        let me = membership.known().member;
        let (table, leases) = (Arc::new(Table::default()), Arc::new(Leases::new()));
        let to_leader = Arc::<ToLeader>::default();
        let boot = boot();
        let around = Arc::new(Around {
            me,
            incarnation: Incarnation { directory, boot },
            boot,
            host,
            links: links.clone(),
            leases: leases.clone(),
            fetcher: Fetcher::new(links.clone()),
            propose: proposer(membership.clone()),
            leader: Arc::new({
                let membership = membership.clone();
                move || membership.known().leader
            }),
            to_own_leader: Arc::new({
                let to_leader = to_leader.clone();
                move |from, message| to_leader.put(from, message)
            }),
        });
        let core = Arc::new(Core {
            me,
            membership,
            durability,
            table: table.clone(),
            leases,
            links: links.clone(),
            around: around.clone(),
            offers: Mutex::default(),
            scrub: Scrub::new(table, around),
            ending: Arc::default(),
            to_leader,
        });
        let is_stopping = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new()
                .name(name.into())
                .spawn(work)
                .map_err(|source| Error::Thread { what: "replication", source })
        };
        let (following, stopping) = (core.clone(), is_stopping.clone());
        threads.push(spawn("ecotone-copies", Box::new(move || following.follow(&stopping)))?);
        let (leading, stopping) = (core.clone(), is_stopping.clone());
        threads.push(spawn("ecotone-promotions", Box::new(move || leading.lead(&stopping)))?);
        let (scrubbing, stopping) = (core.clone(), is_stopping.clone());
        threads.push(spawn("ecotone-scrub", Box::new(move || scrubbing.scrub.run(&*scrubbing, &stopping)))?);
        let beaten = Arc::downgrade(&core);
        let beating = Beating::start(move || beaten.upgrade().map(|core| core.beat()).is_some())?;
        Ok(Copies { core, is_stopping, threads, beating: Some(beating) })
    }

    /// What other servers' messages and questions go to.
    pub fn incoming(&self) -> Arc<dyn Incoming> {
        self.core.clone()
    }

    /// What there is to show of each copy here.
    pub fn facts(&self) -> Vec<(ShardId, Facts)> {
        let facts = |(shard, copy): (ShardId, Arc<crate::shard::Shared>)| {
            let (mut facts, scrubbed) = (copy.facts(), self.core.scrub.of(shard));
            facts.trouble = facts.trouble.or_else(|| scrubbed.damaged.values().next().cloned());
            (shard, Facts { scrubbed, ..facts })
        };
        self.core.table.all().into_iter().map(facts).collect()
    }

    /// A copy here, to be read while it is a replica.
    pub fn followed(&self, shard: ShardId) -> Option<Followed> {
        let shared = self.core.table.get(shard)?;
        Some(Followed::new(shared, self.core.around.host.directory(shard)))
    }

    /// What servers have said of their copies, where this one leads; else nothing.
    pub fn reports(&self) -> Vec<Reported> {
        self.core.to_leader.reports.lock().values().copied().collect()
    }

    /// The epoch of a shard that has a copy here, as that knows it.
    pub fn epoch_of(&self, shard: ShardId) -> Option<Epoch> {
        self.core.table.get(shard).map(|copy| copy.epoch())
    }

    /// Links those of these tables that the copy of the shard here holds, each to its path. Says which
    /// it does. Their contents were compared when they came, and they were not written to since.
    ///
    /// # Errors
    /// There is no such copy, or its files are being changed.
    pub fn link_tables(&self, shard: ShardId, tables: Vec<(ContentId, PathBuf)>) -> Result<Vec<bool>> {
        self.core.table.get(shard).ok_or_else(|| no_copy(shard))?.link_tables(tables)
    }

    /// Who read the table that should hold this found that it does not: the copy is compared at once.
    pub fn distrust(&self, shard: ShardId, content: ContentId) {
        if let Some(copy) = self.core.table.get(shard) {
            copy.inbox.put(Input::Distrust(content));
            self.core.scrub.begin(shard);
        }
    }

    /// A job here has made this table of the shard, for its primary: the copy here takes it when the
    /// stream names it, if it holds what that says.
    ///
    /// # Errors
    /// There is no such copy; the file cannot be linked. It is fetched then.
    pub fn keep_made(&self, shard: ShardId, path: &Path) -> Result<()> {
        self.core.table.get(shard).ok_or_else(|| no_copy(shard))?.keep_made(path)
    }

    /// Has a shard handed over to another copy that is in sync, without losing anything. Answers once
    /// that is decided, or after a while.
    ///
    /// # Errors
    /// Why not, for people.
    pub fn hand_over(&self, shard: ShardId, to: MemberId) -> Result<()> {
        self.core.hand_over(shard, to)
    }

    /// Has the files of `member`'s copy of a shard compared with what they should hold, and those that
    /// differ replaced by another copy's; or, without `begin`, says how far that is.
    ///
    /// # Errors
    /// Why not, for people.
    pub fn repair(&self, shard: ShardId, member: MemberId, begin: bool) -> Result<Repair> {
        if member == self.core.me {
            return Incoming::repair(&*self.core, shard, begin);
        }
        self.core.around.fetcher.repair(member, shard, begin)
    }

    /// Hands over all shards whose primaries are here, as far as others can take them within
    /// [`MAX_LEAVE_TIME`]: before a server ends, so that nobody has to notice that it is gone.
    pub fn leave(&self) {
        let core = &self.core;
        std::thread::scope(|scope| {
            for (shard, facts) in self.facts().into_iter().filter(|(_, facts)| facts.is_serving) {
                let known = core.membership.known();
                let Some(state) = known.map.shards.get(&shard) else { continue };
                let lag = |member: &MemberId| facts.lag_bytes.get(member).copied().flatten();
                let others = state.in_sync.iter().filter(|member| **member != core.me && lag(member).is_some());
                if let Some(to) = others.min_by_key(|member| lag(member)).copied() {
                    scope.spawn(move || core.leave(shard, to));
                }
            }
        });
    }

    /// Makes a copy the primary that may lack what was acknowledged. Whoever asks knows that the old
    /// primary is stopped.
    ///
    /// # Errors
    /// Why not, for people.
    pub fn force(&self, shard: ShardId, to: MemberId) -> Result<()> {
        self.core.force(shard, to)
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        self.is_stopping.store(true, Ordering::Release);
        self.core.to_leader.is_stopping.store(true, Ordering::Release);
        self.core.to_leader.changed.notify_all();
        self.core.scrub.wake();
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            if thread.join().is_err() {
                warn!("a thread of replication has panicked");
            }
        }
        let copies = std::mem::take(&mut *self.core.table.copies.write());
        // Side by side: each waits until its store is closed.
        std::thread::scope(|scope| {
            for copy in copies.into_values() {
                scope.spawn(move || drop(copy));
            }
        });
        self.beating.take();
    }
}

fn no_copy(shard: ShardId) -> Error {
    Error::NotThere(format!("a copy of {shard}"))
}

/// Has entries decided, each once at a time: who wants one asks for it again.
fn proposer(membership: Arc<Membership>) -> Arc<dyn Fn(Entry) + Send + Sync> {
    let open: Arc<Mutex<Vec<Entry>>> = Arc::default();
    Arc::new(move |entry| {
        {
            let mut waiting = open.lock();
            if waiting.len() >= MAX_PROPOSALS || waiting.contains(&entry) {
                return;
            }
            waiting.push(entry.clone());
        }
        let open = open.clone();
        membership.propose_later(entry.clone(), move |decided| {
            open.lock().retain(|waiting| *waiting != entry);
            if let Err(error) = decided {
                tracing::debug!(%error, ?entry, "what replication asks for is not decided");
            }
        });
    })
}

impl Core {
    fn settings(&self, map: &Map) -> (CopySettings, Level) {
        let replication = Replication::of(map);
        let levels =
            Levels { copies: replication.copies, min_in_sync: replication.min_in_sync, durability: self.durability };
        let max_lag_bytes = replication.max_lag_bytes;
        let limits = Limits { max_lag_bytes, max_seed_bytes: max_lag_bytes.saturating_mul(SEED_FACTOR) };
        let primary = Settings { levels, limits, leave_after_us: LEAVE_AFTER_US, every_us: EVERY_US };
        let level = match replication.level {
            settings::Level::One => Level::One,
            settings::Level::Quorum => Level::Quorum,
            settings::Level::All => Level::All,
        };
        let copy = CopySettings {
            primary,
            window_bytes: WINDOW_BYTES,
            silence_us: SILENCE_US,
            clean_after_us: CLEAN_AFTER_US,
        };
        (copy, level)
    }

    // ---- The map ----

    fn follow(&self, is_stopping: &AtomicBool) {
        let mut following = self.membership.following();
        let mut seen: Option<Arc<Known>> = None;
        let mut trouble: BTreeMap<ShardId, String> = BTreeMap::new();
        let mut retry_at: Option<Instant> = None;
        let mut leftovers = Leftovers::default();
        while !is_stopping.load(Ordering::Acquire) {
            let known = following.borrow_and_update().clone();
            leftovers.look(&known, &self.table, &self.around, &self.ending, is_replicated);
            let is_new = seen.as_ref().is_none_or(|seen| !Arc::ptr_eq(seen, &known));
            let is_due = retry_at.is_some_and(|at| Instant::now() >= at);
            if is_new || is_due {
                *self.table.map.write() = Some(known.clone());
                let is_done = self.apply(&known, &mut trouble);
                retry_at = (!is_done).then(|| Instant::now() + RETRY_DELAY);
                seen = Some(known);
            }
            self.drop_idle_offers();
            self.membership.wait_for_change(&mut following, if retry_at.is_some() { RETRY_DELAY } else { IDLE_TICK });
        }
    }

    /// Begins copies that have come, ends those that have gone, and tells all what the map says.
    fn apply(&self, known: &Arc<Known>, trouble: &mut BTreeMap<ShardId, String>) -> bool {
        let (map, mut is_done) = (&known.map, true);
        if known.is_removed() {
            return true;
        }
        let (settings, level) = self.settings(map);
        self.around.fetcher.limit(Replication::of(map).seed_bytes_per_s);
        let own = |shard: &Shard| shard.copies.contains(&self.me) && is_replicated(map, shard);
        // Those that are there first: none of them waits for another one's disk.
        for (id, copy) in self.table.all() {
            if let Some(shard) = map.shards.get(&id).filter(|shard| own(shard)) {
                copy.inbox.put(Input::Configure(Box::new(settings), level));
                copy.inbox.put(Input::Map(Box::new(shard.clone())));
            } else if let Some(driven) = self.table.copies.write().remove(&id) {
                self.end(id, driven);
            }
        }
        for (id, shard) in map.shards.iter().filter(|(_, shard)| own(shard)) {
            if self.table.get(*id).is_some() {
                continue;
            }
            // Until now it was served without copies, or it was here before and is still being closed. To
            // the host both are replication's.
            if self.ending.lock().contains(id) || !self.around.host.reserve(*id) {
                is_done = false;
                continue;
            }
            match Driven::start(*id, shard, settings, level, self.around.clone()) {
                Ok(driven) => {
                    trouble.remove(id);
                    driven.shared.inbox.put(Input::Map(Box::new(shard.clone())));
                    self.table.copies.write().insert(*id, driven);
                }
                Err(error) => {
                    self.around.host.release(*id);
                    let text = error.to_string();
                    if trouble.get(id) != Some(&text) {
                        warn!(shard = id.0, %error, "a copy cannot be begun here; it is tried again");
                    }
                    trouble.insert(*id, text);
                    is_done = false;
                }
            }
        }
        is_done
    }

    /// Ends a copy that the map gives to this server no more, on a thread of its own. Its files are
    /// removed once nothing touches them, if others have the shard.
    fn end(&self, id: ShardId, driven: Driven) {
        let (membership, around, me) = (self.membership.clone(), self.around.clone(), self.me);
        self.ending.lock().insert(id);
        let ending = self.ending.clone();
        let work = move || {
            let shared = driven.shared.clone();
            drop(driven);
            // Helpers of it have a share as long as they touch its files.
            while Arc::strong_count(&shared) > 1 || !around.host.release(id) {
                std::thread::sleep(RETRY_DELAY);
            }
            if is_elsewhere(&membership.known().map, id, me) && around.host.reserve(id) {
                remove(&around, id);
            }
            ending.lock().remove(&id);
        };
        if let Err(error) = std::thread::Builder::new().name("ecotone-copy-end".into()).spawn(work) {
            self.ending.lock().remove(&id);
            warn!(shard = id.0, %error, "a copy that is elsewhere now is ended when this server ends");
        }
    }

    /// Asks each server that has a copy of a shard whose primary is here to promise, and says what the
    /// copies here are.
    fn beat(&self) {
        let mut asks: BTreeMap<MemberId, Vec<(ShardId, Epoch)>> = BTreeMap::new();
        let mut reports = Vec::new();
        for (shard, copy) in self.table.all() {
            reports.push(copy.report(self.me));
            let Some(epoch) = copy.primary_epoch() else { continue };
            for member in self.table.copies_of(shard).into_iter().filter(|member| *member != self.me) {
                asks.entry(member).or_default().push((shard, epoch));
            }
        }
        let sent_us = now_us();
        for (to, asks) in asks {
            self.links.send(to, &Message::Heartbeat(Heartbeat { sent_us, asks }).into());
        }
        if reports.is_empty() {
            return;
        }
        match self.membership.known().leader {
            Some(leader) if leader == self.me => self.to_leader.put(self.me, Message::Report(reports)),
            Some(leader) => self.links.send(leader, &Message::Report(reports).into()),
            None => {}
        }
    }

    // ---- The leader ----

    fn lead(&self, is_stopping: &AtomicBool) {
        let mut leader: Option<(u64, Leader)> = None;
        while !is_stopping.load(Ordering::Acquire) {
            let known = self.membership.known();
            if !known.leads() {
                leader = None;
                let mut waiting = self.to_leader.waiting.lock();
                waiting.clear();
                self.to_leader.reports.lock().clear();
                self.to_leader.hand_overs.lock().clear();
                // Who has no copies says that it is there, to be given some.
                let leader =
                    known.leader.filter(|_| known.map.shards.values().any(|state| is_replicated(&known.map, state)));
                if let Some(leader) = leader.filter(|leader| *leader != self.me && !known.is_removed()) {
                    self.links.send(leader, &Message::Report(Vec::new()).into());
                }
                if !self.to_leader.is_stopping.load(Ordering::Acquire) {
                    self.to_leader.changed.wait_for(&mut waiting, IDLE_TICK);
                }
                continue;
            }
            if leader.as_ref().is_none_or(|(term, _)| *term != known.term) {
                leader = Some((known.term, Leader::new(now_us())));
            }
            let Some((_, leading)) = &mut leader else { continue };
            for (from, message) in std::mem::take(&mut *self.to_leader.waiting.lock()) {
                leading.said(from, message, now_us());
            }
            for (shard, to) in std::mem::take(&mut *self.to_leader.hand_overs.lock()) {
                leading.begin_hand_over(&known.map, shard, to, now_us());
            }
            self.to_leader.reports.lock().retain(|(shard, member), _| {
                known.map.shards.get(shard).is_some_and(|state| state.copies.contains(member))
            });
            // This server answers itself.
            leading.is_here(self.me, now_us());
            let watches =
                |map: &Map, shard: ShardId| map.shards.get(&shard).is_some_and(|state| is_replicated(map, state));
            for order in leading.tick(&known, watches, now_us()) {
                match order {
                    Order::Propose(entry) => (self.around.propose)(entry),
                    Order::Send(to, message) if to == self.me => self.message(self.me, message.into()),
                    Order::Send(to, message) => self.links.send(to, &message.into()),
                }
            }
            let any = known.map.shards.values().any(|state| is_replicated(&known.map, state));
            let mut waiting = self.to_leader.waiting.lock();
            if waiting.is_empty() && !self.to_leader.is_stopping.load(Ordering::Acquire) {
                self.to_leader.changed.wait_for(&mut waiting, if any { LEADING_TICK } else { IDLE_TICK });
            }
        }
    }

    fn hand_over(&self, shard: ShardId, to: MemberId) -> Result<()> {
        let known = self.membership.known();
        let state = known.map.shards.get(&shard).ok_or_else(|| no_copy(shard))?;
        if state.primary == Some(to) {
            return Ok(());
        }
        if !state.in_sync.contains(&to) {
            return Err(Error::Refused(format!("server {} has no copy of shard {} that is in sync", to.0, shard.0)));
        }
        if state.primary.is_none() {
            return Err(Error::Refused(format!("shard {} has no primary that could hand it over", shard.0)));
        }
        let message = Message::HandOver { shard, epoch: state.epoch, to: Some(to) };
        for question in 1..=MAX_HAND_OVER_QUESTIONS {
            match self.membership.known().leader {
                Some(leader) if leader == self.me => self.ask_leader_here(shard, to),
                Some(leader) => self.links.send(leader, &message.clone().into()),
                None => {}
            }
            match self.wait_until(shard, ASK_AGAIN_AFTER, |state| state.primary == Some(to)) {
                Err(error) if question == MAX_HAND_OVER_QUESTIONS => return Err(error),
                Err(_) => {}
                Ok(()) => return Ok(()),
            }
        }
        Ok(())
    }

    fn leave(&self, shard: ShardId, to: MemberId) {
        let known = self.membership.known();
        let Some(epoch) = known.map.shards.get(&shard).map(|state| state.epoch) else { return };
        match known.leader {
            Some(leader) if leader == self.me => self.ask_leader_here(shard, to),
            Some(leader) => self.links.send(leader, &Message::HandOver { shard, epoch, to: Some(to) }.into()),
            None => return,
        }
        match self.wait_until(shard, MAX_LEAVE_TIME, |state| state.primary == Some(to)) {
            Ok(()) => info!(shard = shard.0, server = to.0, "a shard was handed over, as this server ends"),
            Err(_) => info!(
                shard = shard.0,
                "a shard is not handed over in time: another copy takes it when this server is gone"
            ),
        }
    }

    fn ask_leader_here(&self, shard: ShardId, to: MemberId) {
        let mut hand_overs = self.to_leader.hand_overs.lock();
        if !hand_overs.contains(&(shard, to)) && hand_overs.len() < MAX_TO_LEADER {
            hand_overs.push((shard, to));
        }
        drop(hand_overs);
        self.to_leader.changed.notify_one();
    }

    fn force(&self, shard: ShardId, to: MemberId) -> Result<()> {
        loop {
            let known = self.membership.known();
            let state = known.map.shards.get(&shard).ok_or_else(|| no_copy(shard))?;
            if !state.copies.contains(&to) {
                return Err(Error::Refused(format!("server {} has no copy of shard {}", to.0, shard.0)));
            }
            let Some(entry) = ecotone_replica::promotion::forced(shard, state, to) else { break };
            let epoch = state.epoch;
            let set_version = state.set_version;
            self.membership.propose(entry)?;
            self.wait_until(shard, MAX_DECISION_TIME, |state| {
                (state.epoch, state.set_version) != (epoch, set_version)
            })?;
        }
        let known = self.membership.known();
        let epoch = known.map.shards.get(&shard).ok_or_else(|| no_copy(shard))?.epoch;
        let message = Message::Force { shard, epoch };
        if to == self.me {
            self.message(self.me, message.into());
        } else {
            self.links.send(to, &message.into());
        }
        Ok(())
    }

    fn wait_until(&self, shard: ShardId, longest: Duration, is_done: impl Fn(&Shard) -> bool) -> Result<()> {
        let until = Instant::now() + longest;
        let mut following = self.membership.following();
        while Instant::now() < until {
            if following.borrow_and_update().map.shards.get(&shard).is_some_and(&is_done) {
                return Ok(());
            }
            self.membership.wait_for_change(&mut following, Duration::from_millis(50));
        }
        Err(Error::Refused(format!(
            "nothing has become of it within ten seconds: shard {} is as it was, see `ecotone cluster status`",
            shard.0
        )))
    }

    fn drop_idle_offers(&self) {
        let idle: Vec<Offered> = {
            // Who follows has all that it was offered.
            let follows = |shard, member| self.table.get(shard).is_some_and(|copy| copy.is_followed_by(member));
            let keys: Vec<OfferKey> = self.offers.lock().keys().copied().collect();
            let done: BTreeSet<OfferKey> =
                keys.into_iter().filter(|(shard, member, _)| follows(*shard, *member)).collect();
            let mut offers = self.offers.lock();
            let is_over = |key: &OfferKey, asked: Instant| done.contains(key) || asked.elapsed() > MAX_OFFER_IDLE;
            let old: Vec<_> =
                offers.iter().filter(|(key, offered)| is_over(key, offered.asked)).map(|(key, _)| *key).collect();
            old.iter().filter_map(|key| offers.remove(key)).collect()
        };
        drop(idle);
    }
}

impl Steering for Core {
    fn hand_over(&self, shard: ShardId, to: MemberId) -> Result<()> {
        Core::hand_over(self, shard, to)
    }
}

impl Incoming for Core {
    fn duties(&self) -> Option<Arc<dyn DutyObserver>> {
        self.around.host.duties()
    }

    fn message(&self, from: MemberId, parcel: Parcel) {
        let Parcel { message, bytes } = parcel;
        match message {
            Message::Heartbeat(heartbeat) => {
                let may = |shard, epoch| self.table.get(shard).is_some_and(|copy| copy.may_promise(epoch));
                let promise = self.leases.answer(&heartbeat, may);
                self.links.send(from, &Message::Promise(promise).into());
            }
            Message::Promise(promise) => self.leases.promised(from, &promise),
            Message::Report(_) | Message::Sealed(_) | Message::Verified { .. } | Message::Repaired { .. } => {
                self.to_leader.put(from, message);
            }
            // People have asked another server, which asks the leader; a leader asks the primary.
            Message::HandOver { shard, to: Some(to), .. } if from != self.me && self.membership.known().leads() => {
                self.ask_leader_here(shard, to);
            }
            Message::ToCopy(shard, _)
            | Message::ToPrimary(shard, _)
            | Message::Seal(shard, _)
            | Message::Verify(shard, _)
            | Message::Repair { shard, .. }
            | Message::Seed { shard, .. }
            | Message::HandOver { shard, .. }
            | Message::Excuse { shard, .. }
            | Message::Force { shard, .. } => {
                if let Some(copy) = self.table.get(shard) {
                    copy.inbox.put(Input::Message(from, message, bytes));
                }
            }
        }
    }

    fn unreachable(&self, to: MemberId) {
        tracing::debug!(server = to.0, "messages of copies are interrupted");
    }

    fn offer(&self, from: MemberId, shard: ShardId, session: u64) -> Result<Arc<Offer>> {
        let key = (shard, from, session);
        let copy = self.table.get(shard).ok_or_else(|| no_copy(shard))?;
        let going = |offers: &BTreeMap<OfferKey, Offered>| {
            let idle = offers.iter().map(|(key, offered)| (*key, offered.asked.elapsed())).collect();
            make_room(&idle, (shard, from))
                .ok_or_else(|| Error::Busy("as many offers as a server makes at a time".into()))
        };
        going(&self.offers.lock())?;
        // Anew each time: what it is to be completed with is behind the last mark.
        let offer = Arc::new(copy.offer()?);
        let before = {
            let mut offers = self.offers.lock();
            let going = going(&offers)?;
            let before: Vec<_> = going.iter().filter_map(|key| offers.remove(key)).collect();
            offers.insert(key, Offered { offer: offer.clone(), asked: Instant::now() });
            before
        };
        drop(before);
        Ok(offer)
    }

    fn open(&self, from: MemberId, shard: ShardId, what: Fetched) -> Result<File> {
        match what {
            Fetched::OfOffer { session, file } => {
                let offer = {
                    let mut offers = self.offers.lock();
                    let offered = offers
                        .get_mut(&(shard, from, session))
                        .ok_or_else(|| Error::NotThere(format!("no offer of {shard} for this session")))?;
                    offered.asked = Instant::now();
                    offered.offer.clone()
                };
                Ok(offer.open(file)?)
            }
            Fetched::Finished { file, .. } => {
                let copy = self.table.get(shard).ok_or_else(|| no_copy(shard))?;
                copy.open_finished(file)?.ok_or_else(|| Error::NotThere(format!("{file:?} of {shard}")))
            }
        }
    }

    fn contents(&self, shard: ShardId) -> Result<(Mark, BTreeMap<FileName, ContentId>)> {
        self.table.get(shard).ok_or_else(|| no_copy(shard))?.contents()
    }

    fn repair(&self, shard: ShardId, begin: bool) -> Result<Repair> {
        self.table.get(shard).ok_or_else(|| no_copy(shard))?;
        if begin { Ok(self.scrub.begin(shard)) } else { self.scrub.repair(shard) }
    }
}

#[cfg(test)]
mod tests {
    use ecotone_control::ids::Epoch;
    use ecotone_replica::position::Position;
    use ecotone_replica::promotion::Serving;

    use super::*;

    #[test]
    fn an_offer_that_nobody_uses_makes_room_and_the_one_before_counts_for_nothing() {
        let key = |shard: u32, session| (ShardId(shard), MemberId(2), session);
        let second = Duration::from_secs(1);
        let mut idle: BTreeMap<OfferKey, Duration> =
            (1..=MAX_OFFERS as u32).map(|shard| (key(shard, 1), second * shard)).collect();
        assert_eq!(make_room(&idle, (ShardId(3), MemberId(2))), Some(vec![key(3, 1)]), "it is replaced");
        assert_eq!(make_room(&idle, (ShardId(3), MemberId(4))), None, "all are in use");
        idle.insert(key(5, 1), MIN_IDLE_BEFORE_EVICTION * 2);
        idle.insert(key(6, 1), MIN_IDLE_BEFORE_EVICTION);
        assert_eq!(make_room(&idle, (ShardId(3), MemberId(4))), Some(vec![key(5, 1)]), "idle for longest");
        idle.remove(&key(9, 1));
        assert_eq!(make_room(&idle, (ShardId(3), MemberId(4))), Some(vec![]));
    }

    #[test]
    fn an_estimate_follows_from_what_has_come_since_seeding_began() {
        let began = Instant::now();
        let after = |seconds: u64, seeding: Option<(u64, u64)>, before: Option<&Reported>| {
            let report = ShardReport {
                shard: ShardId(1),
                epoch: Epoch(1),
                serving: Serving::Replica,
                position: Position::default(),
                is_whole: false,
                lag_bytes: 0,
                seeding,
            };
            Reported::next(MemberId(2), report, before, began + Duration::from_secs(seconds))
        };
        let first = after(0, Some((1_000, 9_000)), None);
        assert_eq!(first.seeding_left(), None);
        let second = after(2, Some((3_000, 9_000)), Some(&first));
        assert_eq!(second.seeding_left(), Some(Duration::from_secs(6)));
        // Nothing of what was there before counts for how fast it comes.
        let third = after(4, Some((5_000, 9_000)), Some(&second));
        assert_eq!(third.seeding_left(), Some(Duration::from_secs(4)));
        let anew = after(5, Some((500, 9_000)), Some(&third));
        assert_eq!(anew.seeding_left(), None);
        assert_eq!(after(6, None, Some(&anew)).seeding_since, None);
    }
}
