//! One copy of a shard on this server: its machine, its files, and the thread that drives both.
//!
//! Invariants: the machine's lock is never held during IO; commands of the machine are done in
//! their order, a `Persist` durably before what follows it; the copy's files are touched by its
//! thread alone, by the store while it is open, or by one of the helpers below, never by two.
//!
//! Failure: an error of the files ends the session; what was not applied comes again. After a failed
//! sync the copy goes on without it, and says nothing is durable. A store that cannot be opened
//! leaves the shard without a primary until the leader has named another copy.
//!
//! Threads: `ecotone-copy` steps the machine and applies items. Helpers live as long as one piece of
//! work that may take long: opening and closing the store, a sync, a fetch, a seed. Taps of the
//! store and messages of others only lock the machine or the inbox for a moment.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ecotone_control::ids::{Epoch, MemberId, ShardId};
use ecotone_control::map::Shard;
use ecotone_mirror::comparing::Held;
use ecotone_mirror::directory::{Directory, SyncDone, VerifyDone, Want, check_fetched};
use ecotone_mirror::error::Error as MirrorError;
use ecotone_mirror::made::Made;
use ecotone_mirror::names::FileName;
use ecotone_mirror::readers::{MAX_CLOSE_TIME, Readers};
use ecotone_mirror::recipe::spared_bytes;
use ecotone_mirror::record;
use ecotone_mirror::seed::{Building, Built, Listing, Offer};
use ecotone_mirror::source::{Sink, Source};
use ecotone_replica::command::Command;
use ecotone_replica::commit::{Durability, Level};
use ecotone_replica::copy::{CopySettings, Found, ShardCopy};
use ecotone_replica::position::{BootId, Incarnation, Mark, Position};
use ecotone_replica::primary::Primary;
use ecotone_replica::promotion::Serving;
use ecotone_replica::receiver::Sync as SyncStage;
use ecotone_replica::sender::MAX_HOLD_US;
use ecotone_replica::stream::{ContentId, Item, Kind, Resume, ToCopyBody};
use ecotone_replica::wire::{Message, Parcel, ShardReport};
use ecotone_types::Duty;
use parking_lot::{Condvar, Mutex, RwLock};
use tracing::{error, info, warn};

use crate::clock::{now_us, wall_ms};
use crate::error::{Error, Result};
use crate::fetcher::Fetcher;
use crate::gate::{CommitGate, Copied};
use crate::host::{Host, Opening};
use crate::leases::Leases;
use crate::links::Links;
use crate::primary_tables::{self, PrimaryTables};
use crate::published::{Published, Publisher};
use crate::repairing::Scrubbed;
use crate::troubles::{Troubles, Work};

/// Between two looks at a machine to which nothing happens.
const IDLE_TICK: Duration = Duration::from_millis(100);
/// The same while items wait for others.
const MAX_HOLD: Duration = Duration::from_micros(MAX_HOLD_US);
/// The same while something is under way.
const BUSY_TICK: Duration = Duration::from_millis(20);
/// A replica with durability `everysec` syncs so often.
const SYNC_EVERY_US: u64 = 1_000_000;
/// What waits in an inbox; beyond it messages are lost, and come again.
const MAX_INBOX: usize = 4_096;
/// What copies say to a primary that does not know yet that it is one.
const MAX_EARLY: usize = 64;
/// A copy whose files could not be put in place tries again so much later.
const BROKEN_RETRY_US: u64 = 1_000_000;
/// A primary whose thread does nothing for so long serves nobody.
const MAX_SILENT_US: u64 = 3_000_000;
/// How long a question from another thread waits for this one.
const MAX_ANSWER_TIME: Duration = Duration::from_secs(10);
/// How long after a seed that has failed another one is asked for.
const SEED_RETRY_US: u64 = 200_000;
/// A copy that is to get files, and does not learn from whom for so long, asks anew.
const MAX_SEED_WAIT_US: u64 = 3_000_000;
/// How long a copy that ends waits until its store is closed.
const MAX_STOP_TIME: Duration = Duration::from_secs(30);
/// How long after a fetch or a seed has failed it is tried again.
const RETRY_DELAY_US: u64 = 500_000;
/// A file that does not come is asked for twice as much later each time, at most so often: 4 s.
const MAX_RETRY_DOUBLINGS: u32 = 3;

/// For which session of which epoch files are fetched.
type SeedId = (Epoch, u64);

/// Where they are for a repair: sessions count from one.
const REPAIR: SeedId = (Epoch(0), 0);

/// What a shard's thread is asked.
pub(crate) enum Input {
    /// The map has this.
    Map(Box<Shard>),
    /// The federation's settings are these.
    Configure(Box<CopySettings>, Level),
    /// Another server says this.
    Message(MemberId, Message, Vec<Vec<u8>>),
    /// The store is open, or could not be opened.
    Opened(Result<()>),
    /// The store is closed, or could not be.
    Closed(Result<()>),
    SyncEnded(Result<Option<SyncDone>>),
    /// The log was verified, for who asked in this epoch.
    Verified(MemberId, Epoch, Result<VerifyDone>),
    Fetched(Want, Result<bool>),
    /// A segment was made of others.
    Made(Want, Result<()>),
    Seeded {
        of: SeedId,
        built: Result<Box<Built>>,
    },
    /// A question for the files, while this is a replica.
    OfferAsked(mpsc::SyncSender<Result<Offer>>),
    FileAsked(FileName, mpsc::SyncSender<Result<Option<std::fs::File>>>),
    /// By who compares the files.
    HeldAsked(mpsc::SyncSender<Result<Held>>),
    ReplaceAsked(Want, mpsc::SyncSender<Result<bool>>),
    RebuildAsked(mpsc::SyncSender<Result<()>>),
    /// Tables that a job reads, by what they hold, and where each is to be linked.
    LinksAsked(Vec<(ContentId, PathBuf)>, mpsc::SyncSender<Result<Vec<bool>>>),
    /// A job found that the table that should hold this does not.
    Distrust(ContentId),
    /// By people, or for the leader.
    Stop,
}

/// The inbox of a thread.
#[derive(Default)]
pub(crate) struct Inbox {
    inputs: Mutex<VecDeque<Input>>,
    changed: Condvar,
    is_called: AtomicBool,
    is_waiting: AtomicBool,
}

impl Inbox {
    /// Something to do. Messages of others are lost when there is too much already.
    pub(crate) fn put(&self, input: Input) {
        let mut inputs = self.inputs.lock();
        if inputs.len() >= MAX_INBOX && matches!(input, Input::Message(..)) {
            return;
        }
        inputs.push_back(input);
        self.changed.notify_one();
    }

    fn is_stopping(&self) -> bool {
        self.inputs.lock().iter().any(|input| matches!(input, Input::Stop))
    }

    /// The machine has something to say.
    fn call(&self) {
        self.is_called.store(true, Ordering::SeqCst);
        if self.is_waiting.load(Ordering::SeqCst) {
            let _inputs = self.inputs.lock();
            self.changed.notify_one();
        }
    }

    /// What has come, after `longest` at the latest.
    fn take(&self, longest: Duration) -> VecDeque<Input> {
        let until = Instant::now() + longest;
        let mut inputs = self.inputs.lock();
        self.is_waiting.store(true, Ordering::SeqCst);
        while inputs.is_empty() && !self.is_called.load(Ordering::SeqCst) {
            if self.changed.wait_until(&mut inputs, until).timed_out() {
                break;
            }
        }
        self.is_waiting.store(false, Ordering::SeqCst);
        self.is_called.store(false, Ordering::SeqCst);
        std::mem::take(&mut *inputs)
    }
}

struct Machine {
    copy: ShardCopy,
    /// Not done yet.
    commands: Vec<Command>,
}

/// What a shard's thread shares with others.
pub(crate) struct Shared {
    pub(crate) shard: ShardId,
    machine: Mutex<Machine>,
    pub(crate) inbox: Inbox,
    pub(crate) publisher: Publisher,
    source: RwLock<Option<Arc<Source>>>,
    /// Tables that jobs here made for the primary.
    made: Mutex<Made>,
    leases: Arc<Leases>,
    level: Mutex<Level>,
    facts: Mutex<Facts>,
    state: Mutex<State>,
    /// Who has copies, by the map.
    copies: Mutex<BTreeSet<MemberId>>,
    progress: Mutex<Option<(u64, u64)>>,
    is_over: AtomicBool,
    bytes_applied: AtomicU64,
    bytes_sent: AtomicU64,
    bytes_made: AtomicU64,
    bytes_spared: AtomicU64,
    /// Who reads its files, while it is a replica.
    pub(crate) readers: Arc<Readers>,
}

/// How far the files of a replica are, at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Applied {
    /// Bytes of the stream that were applied since the copy is driven.
    pub bytes: u64,
    /// How far that is behind the primary.
    pub staleness: ecotone_replica::receiver::Staleness,
    /// When the primary had no more than this, by the clock of [`now_us`](crate::now_us).
    pub fresh_us: u64,
    /// The time by which keys expire is not beyond this.
    pub clock_limit_ms: u64,
}

/// What a shard's thread says of itself, after each look.
#[derive(Debug, Clone, Default)]
struct State {
    epoch: Epoch,
    /// As primary: its store is open, or is being opened.
    serves: bool,
    /// The last epoch in which it began to open its store as primary.
    opened: Epoch,
    is_store_open: bool,
    /// Its files could not be put in place: it says and promises nothing.
    is_broken: bool,
    ticked_us: u64,
    trouble: Option<String>,
}

/// What people and the leader are shown of a copy.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// The epoch that the map names.
    pub epoch: Epoch,
    /// Whether this copy is the primary, and its store open.
    pub is_serving: bool,
    /// How far it is.
    pub position: Position,
    /// Whether it holds all that it acknowledged.
    pub is_whole: bool,
    /// How far behind its primary a replica is; none until that is known.
    pub staleness: Option<ecotone_replica::receiver::Staleness>,
    /// Of the primary: what each other copy lacks, where that is known.
    pub lag_bytes: BTreeMap<MemberId, Option<u64>>,
    /// How much of a seed is there, of how much.
    pub seeding: Option<(u64, u64)>,
    /// What is wrong, for people.
    pub trouble: Option<String>,
    /// Bytes of the stream that were applied.
    pub bytes_applied: u64,
    /// Bytes of the stream that were sent, to all copies together.
    pub bytes_sent: u64,
    /// Bytes of segments that were not sent, as copies make them of what they have.
    pub bytes_spared: u64,
    /// What comparing its files has come to.
    pub scrubbed: Scrubbed,
    /// Bytes of tables that a job here had made for the primary, and that were not fetched.
    pub bytes_made: u64,
}

impl Sink for Shared {
    fn append(&self, kind: Kind, bytes: u64, checksum: u32) -> Option<Position> {
        let mut machine = self.machine.lock();
        let Machine { copy, commands } = &mut *machine;
        let position = copy.append(kind, bytes, checksum, commands);
        self.publisher.wrote(position);
        let is_due = position.is_none() || copy.primary().is_some_and(Primary::is_due) || !commands.is_empty();
        drop(machine);
        if is_due {
            self.inbox.call();
        }
        position
    }

    fn mark(&self) -> (Mark, u64) {
        let machine = self.machine.lock();
        let receiver = machine.copy.receiver();
        (receiver.applied(), receiver.clock_limit_ms())
    }
}

impl primary_tables::Primary for Shared {
    fn is_primary_in(&self, epoch: Epoch) -> bool {
        let machine = self.machine.lock();
        machine.copy.primary().is_some_and(|primary| primary.epoch() == epoch && !primary.is_closed())
    }

    fn content_of(&self, file: FileName) -> Option<(ContentId, Duration)> {
        self.source.read().as_ref()?.content_of(file)
    }

    /// How far they are is known.
    fn followers(&self) -> Vec<MemberId> {
        let facts = self.facts.lock();
        facts.lag_bytes.iter().filter(|(_, lag)| lag.is_some()).map(|(member, _)| *member).collect()
    }
}

impl Copied for Shared {
    fn shard(&self) -> ShardId {
        self.shard
    }

    fn publisher(&self) -> &Publisher {
        &self.publisher
    }

    fn level(&self) -> Level {
        *self.level.lock()
    }

    fn copies_with(&self, position: Position, durability: Durability) -> usize {
        let machine = self.machine.lock();
        let primary = machine.copy.primary().filter(|primary| primary.epoch() == position.epoch);
        primary.map_or(0, |primary| primary.sender().count(position, durability))
    }
}

impl Shared {
    /// Whether it is not driven any more.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// What it says to the leader. It waits for no disk; but a copy whose thread does nothing for
    /// [`MAX_SILENT_US`] serves nobody.
    pub(crate) fn report(&self, me: MemberId) -> ShardReport {
        let now_us = now_us();
        let state = self.state.lock().clone();
        let machine = self.machine.lock();
        let copy = &machine.copy;
        let serving = match copy.serving(&self.leases.held.lock(), now_us) {
            Serving::Primary { .. } if now_us > state.ticked_us + MAX_SILENT_US => Serving::Replica,
            // One that records that it is the primary, on a slow disk, is about to open its store.
            Serving::Primary { epoch, .. } if !state.serves && state.opened >= epoch => Serving::Replica,
            serving => serving,
        };
        let staleness = if copy.primary().is_none() { copy.staleness(now_us) } else { None };
        let report = ShardReport {
            shard: self.shard,
            epoch: state.epoch,
            serving,
            position: copy.receiver().applied().position,
            is_whole: copy.standing().is_whole && !state.is_broken,
            lag_bytes: staleness.map_or(0, |staleness| staleness.bytes),
            seeding: *self.progress.lock(),
        };
        let others = self.copies.lock().iter().copied().filter(|member| *member != me).collect::<Vec<_>>();
        let lag = |member: MemberId| copy.primary().and_then(|primary| primary.sender().lag_bytes(member));
        *self.facts.lock() = Facts {
            epoch: report.epoch,
            is_serving: matches!(serving, Serving::Primary { .. }) && state.is_store_open,
            position: report.position,
            is_whole: report.is_whole,
            staleness,
            lag_bytes: if copy.primary().is_some() {
                others.into_iter().map(|member| (member, lag(member))).collect()
            } else {
                BTreeMap::new()
            },
            seeding: report.seeding,
            trouble: state.trouble,
            ..Facts::default()
        };
        report
    }

    /// Whether this copy may promise not to be sealed.
    pub(crate) fn may_promise(&self, epoch: Epoch) -> bool {
        !self.state.lock().is_broken && self.machine.lock().copy.may_promise(epoch)
    }

    /// The epoch that the map names, as this copy knows it.
    pub(crate) fn epoch(&self) -> Epoch {
        self.state.lock().epoch
    }

    /// Links the tables of this replica that hold these. Says which it has.
    pub(crate) fn link_tables(&self, tables: Vec<(ContentId, PathBuf)>) -> Result<Vec<bool>> {
        self.ask(|answer| Input::LinksAsked(tables, answer))
    }

    /// Keeps a table that a job made of this shard, until it is wanted here.
    pub(crate) fn keep_made(&self, path: &Path) -> Result<()> {
        Ok(self.made.lock().keep(path, now_us())?)
    }

    /// The epoch that it is the primary of.
    pub(crate) fn primary_epoch(&self) -> Option<Epoch> {
        self.machine.lock().copy.primary().map(|primary| primary.epoch())
    }

    /// Whether this is the primary, and another copy needs no files of it.
    pub(crate) fn is_followed_by(&self, member: MemberId) -> bool {
        self.machine.lock().copy.primary().is_some_and(|primary| primary.sender().is_following(member))
    }

    pub(crate) fn facts(&self) -> Facts {
        let mut facts = self.facts.lock().clone();
        facts.bytes_applied = self.bytes_applied.load(Ordering::Relaxed);
        facts.bytes_sent = self.bytes_sent.load(Ordering::Relaxed);
        facts.bytes_spared = self.bytes_spared.load(Ordering::Relaxed);
        facts.bytes_made = self.bytes_made.load(Ordering::Relaxed);
        facts
    }

    /// How far what is in its files now is behind; none while nobody knows, and of a primary.
    pub(crate) fn applied(&self) -> Option<Applied> {
        let now_us = now_us();
        let machine = self.machine.lock();
        if machine.copy.primary().is_some() {
            return None;
        }
        let staleness = machine.copy.staleness(now_us)?;
        // Counted up before the machine is told: what is shown is never more than there is.
        let bytes = self.bytes_applied.load(Ordering::Relaxed);
        let clock_limit_ms = machine.copy.receiver().clock_limit_ms();
        Some(Applied { bytes, staleness, fresh_us: now_us.saturating_sub(staleness.us), clock_limit_ms })
    }

    /// A finished file of this copy, if it is there.
    pub(crate) fn open_finished(&self, file: FileName) -> Result<Option<std::fs::File>> {
        if let Some(source) = self.source.read().clone() {
            return Ok(source.open_finished(file)?);
        }
        self.ask(|answer| Input::FileAsked(file, answer))
    }

    /// All files of this copy at one mark.
    pub(crate) fn offer(&self) -> Result<Offer> {
        if let Some(source) = self.source.read().clone() {
            return Ok(source.offer()?);
        }
        self.ask(Input::OfferAsked)
    }

    /// What its files should hold, and whether it is the primary.
    pub(crate) fn held(&self) -> Result<(Held, bool)> {
        if self.source.read().is_some() {
            let (mark, finished) = self.contents()?;
            return Ok((Held { mark, finished, ..Held::default() }, true));
        }
        Ok((self.ask(Input::HeldAsked)?, false))
    }

    /// What the finished files hold, if it is the primary.
    pub(crate) fn contents(&self) -> Result<(Mark, BTreeMap<FileName, ContentId>)> {
        let source = self.source.read().clone();
        let source = source.ok_or_else(|| Error::NotThere(format!("the primary of {}", self.shard)))?;
        Ok(source.contents()?)
    }

    /// Puts a file that was fetched and compared in the place of the one that is there.
    pub(crate) fn replace(&self, want: &Want) -> Result<bool> {
        self.ask(|answer| Input::ReplaceAsked(*want, answer))
    }

    /// Has the directory of this replica built anew.
    pub(crate) fn rebuild(&self) -> Result<()> {
        self.ask(Input::RebuildAsked)
    }

    fn ask<T>(&self, input: impl FnOnce(mpsc::SyncSender<Result<T>>) -> Input) -> Result<T> {
        let (answer, answered) = mpsc::sync_channel(1);
        self.inbox.put(input(answer));
        answered.recv_timeout(MAX_ANSWER_TIME).unwrap_or_else(|_| Err(busy()))
    }
}

/// What all copies of a server have.
pub(crate) struct Around {
    pub(crate) me: MemberId,
    pub(crate) incarnation: Incarnation,
    pub(crate) boot: BootId,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) links: Links,
    pub(crate) leases: Arc<Leases>,
    pub(crate) fetcher: Fetcher,
    /// Has an entry decided, some time.
    pub(crate) propose: Arc<dyn Fn(ecotone_control::entry::Entry) + Send + std::marker::Sync>,
    /// The leader of the control plane, if it is known.
    pub(crate) leader: Arc<dyn Fn() -> Option<MemberId> + Send + std::marker::Sync>,
    /// What the leader is to know, where this server is that itself.
    pub(crate) to_own_leader: Arc<dyn Fn(MemberId, Message) + Send + std::marker::Sync>,
}

/// A copy that is driven. Stops when dropped: the store is closed.
pub(crate) struct Driven {
    pub(crate) shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// Whose files the thread may touch.
enum Files {
    /// Its own.
    Replica(Box<Directory>),
    /// The store's, or of a helper that opens or closes it.
    Elsewhere,
}

struct Thread {
    shared: Arc<Shared>,
    around: Arc<Around>,
    settings: CopySettings,
    path: PathBuf,
    files: Files,
    /// Its files could not be put in place; tried again.
    is_broken: bool,
    broken_us: u64,
    is_store_open: bool,
    is_opening: bool,
    is_closing: bool,
    /// The last epoch of which `Opened` was carried out.
    opened: Epoch,
    /// `Opened` came while the store was being closed.
    is_to_open: bool,
    /// `Closed` came while the store was being opened.
    is_to_close: bool,
    /// What the map says.
    map: Option<Box<Shard>>,
    /// Said to the primary of an epoch that the map here does not have yet.
    early: Vec<(MemberId, Message)>,
    /// Bytes of items that the machine has taken, or not yet.
    bytes: BTreeMap<Position, Vec<u8>>,
    synced_us: u64,
    /// A fetch is under way.
    is_fetching: bool,
    fetch_again_us: u64,
    /// What was asked for in vain: how often, and when it is asked for again. Others are, meanwhile.
    not_fetched: BTreeMap<Want, (u32, u64)>,
    /// A segment is being made of others.
    is_making: bool,
    make_again_us: u64,
    /// The session for which nobody has said yet where the files are, and since when.
    awaits_seed: Option<(SeedId, u64)>,
    /// The session whose seed is being fetched, or [`REPAIR`].
    seeding: Option<SeedId>,
    /// While the store is open, or is being opened.
    resting: Arc<Mutex<Option<Box<Directory>>>>,
    /// What was fetched for another directory may be there, and be of use.
    may_hold_seed: bool,
    /// Came while the store was still open.
    seeded: Option<(SeedId, Box<Built>)>,
    /// Who asked for a repair, and its epoch.
    repairing: Option<(MemberId, Epoch)>,
    troubles: Troubles,
    first_kept: u64,
    is_syncing: bool,
    is_verifying: bool,
    next_sync: Option<SyncStage>,
}

impl Driven {
    /// Begins with what lies in the copy's directory. Without a record of it, what is there is whole
    /// only if no other copy was ever counted: the store that was served here until now, or the first of
    /// a shard that was just dealt.
    ///
    /// # Errors
    /// What is wrong with its files; no thread.
    pub(crate) fn start(
        shard: ShardId,
        state: &Shard,
        settings: CopySettings,
        level: Level,
        around: Arc<Around>,
    ) -> Result<Driven> {
        let thread = Thread::new(shard, state, settings, level, around)?;
        let shared = thread.shared.clone();
        let thread = std::thread::Builder::new()
            .name("ecotone-copy".into())
            .spawn(move || thread.run())
            .map_err(|source| Error::Thread { what: "a copy of a shard", source })?;
        Ok(Driven { shared, thread: Some(thread) })
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        self.shared.inbox.put(Input::Stop);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            error!(shard = self.shared.shard.0, "the thread of a copy has panicked");
        }
    }
}

impl Thread {
    fn new(shard: ShardId, state: &Shard, settings: CopySettings, level: Level, around: Arc<Around>) -> Result<Thread> {
        let path = around.host.directory(shard);
        let (mut directory, found) = Directory::open(&path, around.boot)?;
        // Of a primary that was killed here.
        Source::clear(&path)?;
        let mut found = Found { standing: found.standing, at: found.at, clock_limit_ms: found.clock_limit_ms };
        let is_only = state.in_sync.len() == 1 && state.in_sync.contains(&around.me);
        let is_first = state.epoch.0 <= 1 && state.set_version <= 1;
        if found.standing.is_none() && is_only && (is_first || path.join("CURRENT").exists()) {
            let standing = ecotone_replica::standing::Standing::founded();
            directory.persist(&standing)?;
            found.standing = Some(standing);
        }
        let made = Made::begin(&path)?;
        let mut commands = Vec::new();
        let id = (around.me, shard);
        let copy = ShardCopy::start(id, around.incarnation, found, settings, now_us(), None, &mut commands);
        let shared = Arc::new(Shared {
            shard,
            machine: Mutex::new(Machine { copy, commands }),
            inbox: Inbox::default(),
            publisher: Publisher::default(),
            source: RwLock::new(None),
            made: Mutex::new(made),
            leases: around.leases.clone(),
            level: Mutex::new(level),
            facts: Mutex::default(),
            state: Mutex::default(),
            copies: Mutex::default(),
            progress: Mutex::default(),
            is_over: AtomicBool::new(false),
            bytes_applied: AtomicU64::new(0),
            bytes_sent: AtomicU64::new(0),
            bytes_spared: AtomicU64::new(0),
            readers: Arc::default(),
            bytes_made: AtomicU64::new(0),
        });
        let directory = directory.with_readers(shared.readers.clone());
        Ok(Thread {
            shared,
            around,
            settings,
            path,
            files: Files::Replica(Box::new(directory)),
            is_broken: false,
            broken_us: 0,
            is_store_open: false,
            is_opening: false,
            is_closing: false,
            opened: Epoch(0),
            is_to_open: false,
            is_to_close: false,
            map: None,
            early: Vec::new(),
            bytes: BTreeMap::new(),
            synced_us: 0,
            is_fetching: false,
            fetch_again_us: 0,
            not_fetched: BTreeMap::new(),
            is_making: false,
            make_again_us: 0,
            awaits_seed: None,
            seeding: None,
            resting: Arc::default(),
            may_hold_seed: true,
            seeded: None,
            repairing: None,
            troubles: Troubles::default(),
            first_kept: 0,
            is_syncing: false,
            is_verifying: false,
            next_sync: None,
        })
    }

    fn run(mut self) {
        let duties = self.around.host.duties();
        // The stream of a primary is what acknowledgements wait for; nobody waits for a replica that
        // applies it, as long as it keeps up.
        let mut duty: Option<Duty> = None;
        loop {
            let now = if self.shared.primary_epoch().is_some() { Duty::Transport } else { Duty::Replica };
            if let Some(duties) = duties.as_ref().filter(|_| duty != Some(now)) {
                if duty.replace(now).is_some() {
                    duties.end();
                }
                duties.begin(now);
            }
            let longest = match (self.is_holding(), self.is_busy()) {
                (true, _) => MAX_HOLD,
                (_, true) => BUSY_TICK,
                _ => IDLE_TICK,
            };
            let inputs = self.shared.inbox.take(longest);
            let mut stops = false;
            for input in inputs {
                stops |= matches!(input, Input::Stop);
                self.take(input);
            }
            self.tick();
            self.do_commands();
            if stops {
                self.stop();
                if let Some(duties) = &duties {
                    duties.end();
                }
                return;
            }
        }
    }

    fn is_busy(&self) -> bool {
        self.is_fetching || self.is_making || self.seeding.is_some() || self.is_opening || self.is_closing
    }

    /// Items wait for others, not longer than for [`MAX_HOLD`].
    fn is_holding(&self) -> bool {
        self.step(|copy, _| copy.primary().is_some_and(|primary| primary.is_holding()))
    }

    /// Steps the machine, without its lock afterwards.
    fn step<T>(&self, step: impl FnOnce(&mut ShardCopy, &mut Vec<Command>) -> T) -> T {
        let mut machine = self.shared.machine.lock();
        let Machine { copy, commands } = &mut *machine;
        step(copy, commands)
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Map(state) => {
                self.step(|copy, out| copy.map(&state, now_us(), out));
                self.shared.copies.lock().clone_from(&state.copies);
                self.map = Some(state);
                for (from, message) in std::mem::take(&mut self.early) {
                    self.message(from, message, Vec::new());
                }
            }
            Input::Configure(settings, level) => {
                self.settings.primary.levels.copies = settings.primary.levels.copies;
                self.settings.primary.levels.min_in_sync = settings.primary.levels.min_in_sync;
                self.settings.primary.limits = settings.primary.limits;
                *self.shared.level.lock() = level;
                self.step(|copy, _| copy.configure(settings.primary));
            }
            Input::Message(from, message, bytes) => self.message(from, message, bytes),
            Input::Opened(result) => self.opened(result),
            Input::Closed(result) => self.closed(result),
            Input::SyncEnded(result) => self.sync_ended(result),
            Input::Verified(asked_by, epoch, result) => self.verified(asked_by, epoch, result),
            Input::Fetched(want, result) => self.fetched(&want, result),
            Input::Made(want, result) => self.made(&want, result),
            Input::Seeded { of, built } => self.seeded(of, built),
            Input::OfferAsked(answer) => {
                let offer = match &self.files {
                    Files::Replica(directory) if !directory.is_opening() => directory.offer().map_err(Error::from),
                    _ => Err(busy()),
                };
                let _ = answer.send(offer);
            }
            Input::FileAsked(file, answer) => {
                let opened = match &self.files {
                    Files::Replica(directory) => directory.open_finished(file).map_err(Error::from),
                    Files::Elsewhere => Err(busy()),
                };
                let _ = answer.send(opened);
            }
            Input::HeldAsked(answer) => {
                let held = match &self.files {
                    Files::Replica(directory) => directory.held().map_err(Error::from),
                    Files::Elsewhere => Err(busy()),
                };
                let _ = answer.send(held);
            }
            Input::ReplaceAsked(want, answer) => {
                let replaced = match &mut self.files {
                    Files::Replica(directory) => directory.replace(&want).map_err(Error::from),
                    Files::Elsewhere => Err(busy()),
                };
                let _ = answer.send(replaced);
            }
            Input::RebuildAsked(answer) => {
                let begun = match &self.files {
                    Files::Replica(_) => {
                        self.step(|copy, out| copy.must_rebuild(now_us(), out));
                        Ok(())
                    }
                    Files::Elsewhere => Err(busy()),
                };
                let _ = answer.send(begun);
            }
            Input::LinksAsked(tables, answer) => {
                let _ = answer.send(self.link_tables(&tables));
            }
            Input::Distrust(content) => {
                if let Files::Replica(directory) = &self.files {
                    directory.distrust(content);
                }
            }
            Input::Stop => {}
        }
        self.do_commands();
    }

    fn link_tables(&self, tables: &[(ContentId, PathBuf)]) -> Result<Vec<bool>> {
        let Files::Replica(directory) = &self.files else { return Err(busy()) };
        tables.iter().map(|(content, to)| Ok(directory.link_table(*content, to)?)).collect()
    }

    fn message(&mut self, from: MemberId, message: Message, bytes: Vec<Vec<u8>>) {
        if self.is_broken {
            return;
        }
        match message {
            Message::ToCopy(_, said) => {
                if let ToCopyBody::Items { items, .. } = &said.body {
                    if items.len() != bytes.len() {
                        return;
                    }
                    let taken = self.step(|copy, _| copy.receiver().applied().position);
                    for (item, bytes) in items.iter().zip(bytes) {
                        if item.position > taken {
                            self.bytes.insert(item.position, bytes);
                        }
                    }
                }
                self.step(|copy, out| copy.from_primary(from, said, now_us(), out));
            }
            // Its map is ahead of this server's: it is answered once this one knows as much.
            Message::ToPrimary(_, ref said)
                if self.map.as_ref().is_none_or(|map| map.epoch < said.epoch) && self.early.len() < MAX_EARLY =>
            {
                self.early.push((from, message));
            }
            Message::ToPrimary(_, said) => {
                let leases = self.shared.leases.clone();
                self.step(|copy, out| {
                    if let Some(primary) = copy.primary_mut() {
                        primary.said(from, &said, now_us(), out);
                    }
                    copy.tick(now_us(), wall_ms(), &leases.held.lock(), out);
                });
            }
            Message::Seal(_, epoch) => self.seal(epoch),
            Message::Verify(_, epoch) => self.verify(from, epoch),
            Message::Repair { epoch, from: others, .. } => self.repair(from, epoch, others),
            Message::Seed { epoch, session, source, resume, .. } => self.begin_seed((epoch, session), source, resume),
            Message::HandOver { epoch, to, .. } => self.hand_over(epoch, to),
            Message::Excuse { epoch, members, .. } => self.step(|copy, _| {
                if let Some(primary) = copy.primary_mut().filter(|primary| primary.epoch() == epoch) {
                    members.into_iter().for_each(|member| primary.excuse(member));
                }
            }),
            Message::Force { epoch, .. } => {
                let is_now = self.map.as_ref().is_some_and(|map| map.epoch == epoch);
                if is_now {
                    warn!(shard = self.shared.shard.0, "this copy is made the primary by force: what it lacks is lost");
                    self.step(|copy, out| copy.force(now_us(), out));
                }
            }
            // For the leader, and for leases.
            Message::Heartbeat(_)
            | Message::Promise(_)
            | Message::Report(_)
            | Message::Sealed(_)
            | Message::Verified { .. }
            | Message::Repaired { .. } => {}
        }
    }

    fn seal(&mut self, epoch: Epoch) {
        let leases = self.shared.leases.clone();
        {
            // Before the machine: promises are given in that order, too.
            let given = leases.given.lock();
            let wait = given.must_wait_until(self.shared.shard, now_us());
            self.step(|copy, out| copy.seal(epoch, wait, now_us(), out));
        }
        self.abandon_stale();
    }

    /// What an opening holds back was acknowledged to nobody: it is given up once no more of it comes.
    /// What was handed over and is not held back is applied, or never will be.
    fn abandon_stale(&mut self) {
        if matches!(self.files, Files::Replica(_)) && self.step(|copy, _| copy.awaits_directory()) {
            self.abandon();
        }
    }

    fn abandon(&mut self) {
        if let Files::Replica(directory) = &mut self.files {
            let abandoned = directory.abandon();
            self.troubles.end(Work::Abandon);
            // What it had begun to put in place it goes on with.
            let position = directory.applied().position;
            if let Err(error) = abandoned {
                self.trouble(Work::Abandon, format!("what was begun of another epoch cannot be removed: {error}"));
            }
            self.step(|copy, out| {
                copy.applied(position, now_us(), out);
                copy.abandoned(now_us(), out);
            });
        }
    }

    fn hand_over(&mut self, epoch: Epoch, to: Option<MemberId>) {
        if self.shared.primary_epoch() == Some(epoch) {
            self.step(|copy, _| {
                if let Some(primary) = copy.primary_mut() {
                    primary.hand_over(to, now_us());
                }
            });
        }
    }

    fn tick(&mut self) {
        let (now_us, leases) = (now_us(), self.shared.leases.clone());
        if self.is_broken {
            if now_us > self.broken_us + BROKEN_RETRY_US {
                self.begin_anew(false);
            }
            self.shared.machine.lock().commands.clear();
            self.shared.publisher.publish(Published::default());
        }
        if self.is_broken {
            *self.shared.state.lock() =
                State { is_broken: true, ticked_us: now_us, trouble: self.troubles.shown(), ..State::default() };
            return;
        }
        if let Files::Replica(directory) = &mut self.files {
            match directory.advance(now_us) {
                // What failed when it was to be applied may be done now.
                Ok(()) => {
                    let position = directory.applied().position;
                    self.troubles.end(Work::Advance);
                    self.step(|copy, out| {
                        if !copy.receiver().is_idle() && copy.receiver().applied().position < position {
                            copy.applied(position, now_us, out);
                        }
                    });
                }
                Err(error) => _ = self.troubles.add(Work::Advance, error.to_string()),
            }
        }
        self.abandon_stale();
        let is_synced_each = self.settings.primary.levels.durability == Durability::Synced;
        let is_due = is_synced_each || now_us >= self.synced_us + SYNC_EVERY_US;
        let reads_clock = self.shared.publisher.take_clock_read();
        let can_sync = !self.is_syncing;
        self.step(|copy, out| {
            if reads_clock && let Some(primary) = copy.primary_mut() {
                primary.clock_ms(wall_ms());
            }
            copy.tick(now_us, wall_ms(), &leases.held.lock(), out);
            if is_due && can_sync {
                copy.sync(out);
            }
            copy.rest(now_us, out);
        });
        if is_due {
            self.synced_us = now_us;
        }
        self.await_seed(now_us);
        if let Some((of, since_us)) = self.awaits_seed
            && now_us > since_us + MAX_SEED_WAIT_US
        {
            // Nobody has said who has the files: it greets anew.
            self.awaits_seed = None;
            self.step(|copy, out| copy.seeded(of, None, now_us, out));
        }
        self.trim();
        self.make(now_us);
        if let Err(error) = self.shared.made.lock().expire(now_us) {
            tracing::debug!(shard = self.shared.shard.0, %error, "a table that a job made here is not removed");
        }
        self.discard_seed();
        self.fetch(now_us);
        *self.shared.state.lock() = State {
            epoch: self.map.as_ref().map_or(Epoch(0), |map| map.epoch),
            serves: self.is_store_open || self.is_opening,
            opened: self.opened,
            is_store_open: self.is_store_open,
            is_broken: self.is_broken,
            ticked_us: now_us,
            trouble: self.troubles.shown(),
        };
    }

    /// Says what may be answered, unless something has to be recorded before that.
    fn publish(&self) {
        let machine = self.shared.machine.lock();
        if machine.commands.iter().any(|command| matches!(command, Command::Persist(_))) {
            return;
        }
        let held = self.shared.leases.held.lock();
        let is_handing_over = machine.copy.primary().is_some_and(|primary| primary.is_handing_over());
        self.shared.publisher.is_handing_over.store(is_handing_over, Ordering::Release);
        let published = match machine.copy.primary().filter(|primary| !primary.is_closed()) {
            Some(primary) => {
                let levels = [Level::One, Level::Quorum, Level::All];
                Published {
                    epoch: primary.epoch(),
                    lease_until_us: primary.lease_until_us(&held).unwrap_or_default(),
                    committed: levels.map(|level| primary.commit().committed(level, self.around.me)),
                    clock_limit_ms: primary.shown_limit_ms(),
                }
            }
            None => Published::default(),
        };
        drop(held);
        // Under the machine's lock, so that a later state is not overwritten by an earlier one.
        self.shared.publisher.publish(published);
    }

    /// From when on a set is proposed the log may name it, and another primary, while what follows is
    /// carried out: what is published must not outlast the promises of that set.
    fn shorten_lease(&self, machine: &Machine) {
        let held = self.shared.leases.held.lock();
        let until_us = machine.copy.primary().map_or(Some(0), |primary| primary.lease_until_us(&held));
        self.shared.publisher.shorten_lease(until_us.unwrap_or_default());
    }

    fn trim(&mut self) {
        let first = self.step(|copy, _| copy.primary().map(|primary| primary.first_kept()));
        if let Some(first) = first
            && first != self.first_kept
            && let Some(source) = self.shared.source.read().clone()
        {
            self.first_kept = first;
            source.trim(first);
        }
    }

    fn to_leader(&self, message: Message) {
        if let Some(leader) = (self.around.leader)() {
            self.answer(leader, message);
        }
    }

    fn answer(&self, to: MemberId, message: Message) {
        if to == self.around.me {
            (self.around.to_own_leader)(self.around.me, message);
        } else {
            self.around.links.send(to, &message.into());
        }
    }

    fn trouble(&mut self, of: Work, what: String) {
        if self.troubles.add(of, what.clone()) {
            warn!(shard = self.shared.shard.0, "{what}");
        }
    }

    // ---- Commands ----

    fn do_commands(&mut self) {
        loop {
            let commands = {
                let mut machine = self.shared.machine.lock();
                let commands = std::mem::take(&mut machine.commands);
                if commands.iter().any(|command| matches!(command, Command::Propose(_))) {
                    self.shorten_lease(&machine);
                }
                commands
            };
            if commands.is_empty() {
                self.publish();
                return;
            }
            let mut commands: VecDeque<Command> = commands.into();
            while let Some(command) = commands.pop_front() {
                if let Command::Persist(standing) = &command {
                    if !self.persist(standing) {
                        // But for the store, which is to be closed whatever is recorded.
                        commands.retain(|command| *command == Command::Closed);
                    }
                } else if let Command::Apply(first) = command {
                    let mut items = vec![first];
                    while let Some(Command::Apply(next)) = commands.front() {
                        items.push(*next);
                        commands.pop_front();
                    }
                    self.apply(items);
                } else {
                    self.carry_out(command);
                }
            }
        }
    }

    fn carry_out(&mut self, command: Command) {
        match command {
            // Done before others are.
            Command::Persist(_) => {}
            Command::ToPrimary(to, said) => self.answer_stream(to, Message::ToPrimary(self.shared.shard, said)),
            Command::ToCopy(to, said) => {
                let bytes = match &said.body {
                    ToCopyBody::Items { items, .. } => match self.read(items) {
                        Ok(bytes) => {
                            self.troubles.end(Work::Read);
                            bytes
                        }
                        Err((position, error)) => {
                            // The copy finds that items are missing, and greets anew.
                            self.trouble(Work::Read, format!("items of the stream cannot be read again: {error}"));
                            if is_final(&error) {
                                // Then it must not be sent the same again.
                                self.step(|copy, _| {
                                    if let Some(primary) = copy.primary_mut() {
                                        primary.lost(position, now_us());
                                    }
                                });
                            }
                            return;
                        }
                    },
                    _ => Vec::new(),
                };
                let sent: usize = bytes.iter().map(Vec::len).sum();
                self.shared.bytes_sent.fetch_add(sent as u64, Ordering::Relaxed);
                if let ToCopyBody::Items { items, .. } = &said.body {
                    let spared = spared_by(items, &bytes);
                    self.shared.bytes_spared.fetch_add(spared, Ordering::Relaxed);
                }
                self.around.links.send(to, &Parcel { message: Message::ToCopy(self.shared.shard, said), bytes });
            }
            Command::Apply(_) => {}
            Command::Sync(stage) => self.sync(stage),
            Command::AwaitSeed { .. } => self.await_seed(now_us()),
            Command::Seed { copy, source, session, resume } => {
                let epoch = self.map.as_ref().map_or(Epoch(0), |map| map.epoch);
                let message = Message::Seed { shard: self.shared.shard, epoch, session, source, resume };
                self.around.links.send(copy, &message.into());
            }
            Command::Propose(entry) => (self.around.propose)(entry),
            Command::Sealed(report) => self.to_leader(Message::Sealed(report)),
            Command::Opened => self.open(),
            Command::Closed => self.close(),
        }
    }

    fn answer_stream(&self, to: MemberId, message: Message) {
        self.around.links.send(to, &message.into());
    }

    /// What is not recorded must not be said, so this is tried until it is done, or the copy ends: then
    /// it says false, and nothing that follows is done.
    fn persist(&mut self, standing: &ecotone_replica::standing::Standing) -> bool {
        loop {
            let done = match &mut self.files {
                Files::Replica(directory) => directory.persist(standing),
                Files::Elsewhere => record::write_standing(&self.path, standing),
            };
            match done {
                Ok(()) => {
                    self.troubles.end(Work::Persist);
                    return true;
                }
                Err(error) => {
                    self.trouble(Work::Persist, format!("what this copy must remember cannot be recorded: {error}"));
                    if self.shared.is_over() || self.shared.inbox.is_stopping() {
                        return false;
                    }
                    std::thread::sleep(Duration::from_micros(RETRY_DELAY_US));
                }
            }
        }
    }

    /// The bytes of each item; or of which one not.
    fn read(&self, items: &[Item]) -> Result<Vec<Vec<u8>>, (Position, Error)> {
        let source = self.shared.source.read().clone();
        let bytes = |item: &Item| match &source {
            _ if item.bytes == 0 => Ok(Vec::new()),
            Some(source) => source.read(item).map_err(|error| (item.position, error.into())),
            None => Err((item.position, busy())),
        };
        items.iter().map(bytes).collect()
    }

    fn apply(&mut self, items: Vec<Item>) {
        let Files::Replica(directory) = &mut self.files else {
            // The primary's own.
            return;
        };
        let last = items.last().map(|item| item.position);
        let with_bytes: Vec<(Item, Vec<u8>)> = items
            .into_iter()
            .map(|item| {
                let bytes = self.bytes.remove(&item.position).unwrap_or_default();
                (item, bytes)
            })
            .collect();
        let bytes: u64 = with_bytes.iter().map(|(item, _)| item.bytes).sum();
        let of_gc = with_bytes.iter().filter(|(item, _)| matches!(item.kind, Kind::Collect { .. }));
        let instructions: Vec<Position> = of_gc.map(|(item, _)| item.position).collect();
        let result = directory.apply(&with_bytes);
        // What is older is of no use.
        if let Some(last) = last {
            self.bytes.retain(|position, _| *position > last);
        }
        match result {
            Ok(position) => {
                self.troubles.end(Work::Apply);
                self.shared.bytes_applied.fetch_add(bytes, Ordering::Relaxed);
                self.step(|copy, out| {
                    copy.applied(position, now_us(), out);
                    // The directory itself keeps later edits out of force until the segments are there.
                    instructions.into_iter().for_each(|position| copy.collected(position, out));
                });
            }
            Err(error) => {
                use ecotone_mirror::error::Error as Files;
                let is_final =
                    matches!(error, Files::Malformed { .. } | Files::Mismatch { .. } | Files::TooMuch { .. });
                self.trouble(Work::Apply, format!("what the primary sends cannot be applied: {error}"));
                self.step(|copy, out| {
                    copy.abandoned(now_us(), out);
                    if is_final {
                        copy.must_rebuild(now_us(), out);
                    }
                });
                self.bytes.clear();
            }
        }
    }

    // ---- Syncs ----

    fn sync(&mut self, stage: SyncStage) {
        if std::mem::replace(&mut self.is_syncing, true) {
            // Of one that the machine has forgotten. Its end is not this one's.
            self.next_sync = Some(stage);
            return;
        }
        let inbox = self.shared.clone();
        let work: Box<dyn FnOnce() -> Result<Option<SyncDone>> + Send> = match &mut self.files {
            Files::Replica(directory) => {
                let job = directory.begin_sync(stage);
                Box::new(move || Ok(Some(job.run()?)))
            }
            Files::Elsewhere if self.is_store_open => {
                let (host, shard) = (self.around.host.clone(), self.shared.shard);
                let (mark, clock_limit_ms) = self.shared.mark();
                let (path, boot) = (self.path.clone(), self.around.boot);
                Box::new(move || {
                    host.sync(shard).map_err(Error::Host)?;
                    Directory::synced_open(&path, boot, mark, clock_limit_ms)?;
                    Ok(None)
                })
            }
            Files::Elsewhere => {
                let path = self.path.clone();
                Box::new(move || Ok(ecotone_mirror::whole::sync(&path).map(|()| None)?))
            }
        };
        // Without a thread it is done here: what it was to sync nobody else knows.
        let work = Arc::new(Mutex::new(Some(work)));
        let left = work.clone();
        let begin = move || {
            let work = work.lock().take();
            if let Some(work) = work {
                inbox.inbox.put(Input::SyncEnded(work()));
            }
        };
        self.helper("ecotone-copy-sync", Duty::Replica, begin, move |error| {
            let work = left.lock().take();
            Input::SyncEnded(work.map_or(Err(error), |work| work()))
        });
    }

    fn sync_ended(&mut self, result: Result<Option<SyncDone>>) {
        self.is_syncing = false;
        let recorded = result.and_then(|done| match (&mut self.files, done) {
            (Files::Replica(directory), Some(done)) => Ok(directory.synced(done)?),
            _ => Ok(()),
        });
        if let Some(stage) = self.next_sync.take() {
            return self.sync(stage);
        }
        match recorded {
            Ok(()) => {
                self.step(|copy, out| copy.sync_ended(now_us(), out));
                self.troubles.end(Work::Sync);
            }
            Err(error) => {
                self.trouble(Work::Sync, format!("a sync of this copy has failed: {error}"));
                self.step(|copy, _| copy.sync_failed());
                // What the files hold is not known any more.
                if matches!(&self.files, Files::Replica(directory) if directory.has_failed()) {
                    self.begin_anew(false);
                }
            }
        }
    }

    // ---- Verification ----

    /// The stream goes on meanwhile: a switch-over would wait for what has gathered. Who has asked
    /// and is not answered asks again.
    fn verify(&mut self, asked_by: MemberId, epoch: Epoch) {
        let Files::Replica(directory) = &self.files else { return };
        if self.is_verifying {
            return;
        }
        let job = match directory.begin_verify() {
            Ok(job) => job,
            Err(error) => return self.verified(asked_by, epoch, Err(error.into())),
        };
        self.is_verifying = true;
        let inbox = self.shared.clone();
        let work = move || inbox.inbox.put(Input::Verified(asked_by, epoch, job.run().map_err(Error::from)));
        self.helper("ecotone-copy-verify", Duty::Replica, work, move |error| {
            Input::Verified(asked_by, epoch, Err(error))
        });
    }

    fn verified(&mut self, asked_by: MemberId, epoch: Epoch, result: Result<VerifyDone>) {
        self.is_verifying = false;
        let Files::Replica(directory) = &self.files else { return };
        let is_sound = match result {
            Ok(done) => directory.verified(&done),
            Err(error) => {
                warn!(shard = self.shared.shard.0, %error, "the log of this copy cannot be verified");
                Some(false)
            }
        };
        if let Some(is_sound) = is_sound {
            self.answer(asked_by, Message::Verified { shard: self.shared.shard, epoch, is_sound });
        }
    }

    /// Has `work` done on a thread of its own, which puts into the inbox what has become of it. Where
    /// there is no thread, or it panics, that is what `failed` makes of it: else it was waited for, for
    /// ever.
    fn helper(
        &self,
        name: &str,
        duty: Duty,
        work: impl FnOnce() + Send + 'static,
        failed: impl FnOnce(Error) -> Input + Send + 'static,
    ) {
        let failed = Arc::new(Mutex::new(Some(failed)));
        let shared = self.shared.clone();
        let put = {
            let failed = failed.clone();
            move |error: std::io::Error| {
                error!(shard = shared.shard.0, %error, "a thread for a copy ends, or does not begin");
                let failed = failed.lock().take();
                if let Some(failed) = failed {
                    shared.inbox.put(failed(Error::Thread { what: "what a copy waits for", source: error }));
                }
            }
        };
        let put_here = put.clone();
        let duties = self.around.host.duties();
        let spawned = std::thread::Builder::new().name(name.into()).spawn(move || {
            if let Some(duties) = &duties {
                duties.begin(duty);
            }
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err() {
                put(std::io::Error::other("it has panicked"));
            }
            if let Some(duties) = &duties {
                duties.end();
            }
        });
        if let Err(error) = spawned {
            put_here(error);
        }
    }

    // ---- The store ----

    fn open(&mut self) {
        self.opened = self.shared.primary_epoch().unwrap_or_default();
        let Files::Replica(directory) = std::mem::replace(&mut self.files, Files::Elsewhere) else {
            // It is still being closed.
            self.is_to_open = true;
            return;
        };
        self.resting = Arc::new(Mutex::new(Some(directory)));
        let resting = self.resting.clone();
        self.is_opening = true;
        let epoch = self.shared.primary_epoch().unwrap_or_default();
        self.shared.publisher.begin();
        self.first_kept = 0;
        self.troubles.clear();
        let slots = self.map.as_ref().map(|map| map.slots.clone()).unwrap_or_default();
        let (shared, host, path) = (self.shared.clone(), self.around.host.clone(), self.path.clone());
        let links = self.around.links.clone();
        info!(shard = shared.shard.0, epoch = epoch.0, "this server becomes the primary");
        // Somebody waits for a store that is opened or closed.
        self.helper(
            "ecotone-copy-open",
            Duty::Flush,
            move || {
                let opened = resting.lock().as_mut().map_or_else(
                    || Err(busy()),
                    |directory| open(&shared, &*host, (&path, directory), epoch, slots, links),
                );
                shared.inbox.put(Input::Opened(opened));
            },
            |error| Input::Opened(Err(error)),
        );
    }

    fn opened(&mut self, result: Result<()>) {
        self.is_opening = false;
        match result {
            Ok(()) => {
                self.is_store_open = true;
                info!(shard = self.shared.shard.0, "the store is open, and takes writes");
            }
            Err(error) => self.trouble(Work::Store, format!("the store cannot be opened: {error}")),
        }
        if std::mem::take(&mut self.is_to_close) {
            self.begin_close();
        }
    }

    fn close(&mut self) {
        // From now on nothing is answerable.
        self.publish();
        info!(shard = self.shared.shard.0, "this server is the primary no more");
        self.is_to_open = false;
        if self.is_opening {
            self.is_to_close = true;
        } else {
            self.begin_close();
        }
    }

    fn begin_close(&mut self) {
        if std::mem::replace(&mut self.is_closing, true) {
            return;
        }
        let (shared, host) = (self.shared.clone(), self.around.host.clone());
        self.helper(
            "ecotone-copy-close",
            Duty::Flush,
            move || {
                let closed = host.close(shared.shard).map_err(Error::Host);
                shared.inbox.put(Input::Closed(closed));
            },
            |error| Input::Closed(Err(error)),
        );
    }

    fn closed(&mut self, result: Result<()>) {
        self.is_closing = false;
        if let Err(error) = result {
            self.trouble(Work::Store, format!("the store cannot be closed; it is tried again: {error}"));
            std::thread::sleep(Duration::from_micros(RETRY_DELAY_US));
            self.begin_close();
            return;
        }
        self.is_store_open = false;
        *self.shared.source.write() = None;
        let (mark, clock_limit_ms) = self.shared.mark();
        let resting = self.resting.lock().take();
        if let Some(mut directory) = resting {
            if let Err(error) = directory.closed(mark, clock_limit_ms) {
                self.trouble(Work::Store, format!("where this copy was cannot be recorded: {error}"));
            } else {
                self.troubles.clear();
            }
            self.files = Files::Replica(directory);
        }
        if let Some((of, built)) = self.seeded.take() {
            self.seeded(of, Ok(built));
        }
        if std::mem::take(&mut self.is_to_open) {
            self.open();
        }
    }

    // ---- Segments that GC has written ----

    fn make(&mut self, now_us: u64) {
        let Files::Replica(directory) = &self.files else { return };
        if self.is_making || now_us < self.make_again_us {
            return;
        }
        let job = match directory.to_collect() {
            Ok(Some(job)) => job,
            Ok(None) => return self.troubles.end(Work::Make),
            Err(error) => {
                self.make_again_us = now_us + RETRY_DELAY_US;
                return self.trouble(Work::Make, format!("what is pending of this copy cannot be read: {error}"));
            }
        };
        self.is_making = true;
        let (shared, want) = (self.shared.clone(), *job.want());
        self.helper(
            "ecotone-copy-make",
            Duty::Replica,
            move || {
                let made = job.run().map_err(Error::from);
                shared.inbox.put(Input::Made(want, made));
            },
            move |error| Input::Made(want, Err(error)),
        );
    }

    fn made(&mut self, want: &Want, result: Result<()>) {
        self.is_making = false;
        let now_us = now_us();
        match (result, &mut self.files) {
            (Ok(()), Files::Replica(directory)) => match directory.fetched(want) {
                Ok(position) => self.step(|copy, out| copy.applied(position, now_us, out)),
                Err(error) => {
                    self.make_again_us = now_us + RETRY_DELAY_US;
                    self.trouble(Work::Make, format!("a segment that was made of others is not taken: {error}"));
                }
            },
            (Err(Error::Mirror(MirrorError::Io { action, path, source })), _) => {
                self.make_again_us = now_us + RETRY_DELAY_US;
                self.trouble(
                    Work::Make,
                    format!("a segment cannot be made of others: cannot {action} {path:?}: {source}"),
                );
            }
            (Err(error), Files::Replica(directory)) => {
                info!(shard = self.shared.shard.0, %error, "a segment cannot be made of others here, and is fetched");
                directory.not_collected(want);
            }
            _ => {}
        }
        self.make(now_us);
    }

    // ---- Files from others ----

    fn fetch(&mut self, now_us: u64) {
        let Files::Replica(directory) = &self.files else { return };
        let primary = self.map.as_ref().and_then(|map| map.primary).filter(|primary| *primary != self.around.me);
        let Some(primary) = primary else { return };
        if self.is_fetching || now_us < self.fetch_again_us {
            return;
        }
        let wants = directory.wants(now_us);
        if wants.is_empty() {
            self.troubles.end(Work::Fetch);
        }
        self.not_fetched.retain(|want, _| wants.contains(want));
        let may_come = |want: &Want| self.not_fetched.get(want).is_none_or(|(_, again_us)| now_us >= *again_us);
        let Some(want) = wants.into_iter().find(may_come) else { return };
        self.is_fetching = true;
        let path = directory.temporary(&want);
        let (shared, around) = (self.shared.clone(), self.around.clone());
        self.helper(
            "ecotone-copy-fetch",
            Duty::Replica,
            move || {
                let fetched = take_made(&shared, &want, &path).and_then(|is_made| {
                    if is_made {
                        return Ok(true);
                    }
                    let is_there = around.fetcher.file(primary, shared.shard, &want, &path, &|| shared.is_over())?;
                    if is_there {
                        check_fetched(&path, &want)?;
                    }
                    Ok(is_there)
                });
                shared.inbox.put(Input::Fetched(want, fetched));
            },
            move |error| Input::Fetched(want, Err(error)),
        );
    }

    /// `Ok(false)`: it is not there any more; its deletion is on its way.
    fn fetched(&mut self, want: &Want, result: Result<bool>) {
        self.is_fetching = false;
        match (result, &mut self.files) {
            (Ok(true), Files::Replica(directory)) => match directory.fetched(want) {
                Ok(position) => {
                    self.not_fetched.remove(want);
                    self.troubles.end(Work::Fetch);
                    self.step(|copy, out| copy.applied(position, now_us(), out));
                    return;
                }
                Err(error) => self.trouble(Work::Fetch, format!("a file from the primary is not taken: {error}")),
            },
            // An opening cannot go on without it, and its deletion is behind: other files are asked for.
            (Ok(_), Files::Replica(directory))
                if directory.is_opening() && directory.wants(now_us()).contains(want) =>
            {
                self.abandon();
                self.step(|copy, out| copy.must_rebuild(now_us(), out));
                return;
            }
            (Ok(_), _) => {}
            (Err(error), _) => {
                tracing::debug!(shard = self.shared.shard.0, %error, "a file cannot be fetched yet");
            }
        }
        self.fetch_again_us = now_us() + RETRY_DELAY_US;
        let (failures, again_us) = self.not_fetched.entry(*want).or_default();
        *failures = (*failures + 1).min(MAX_RETRY_DOUBLINGS);
        *again_us = now_us() + (RETRY_DELAY_US << *failures);
    }

    /// The machine says and asks nothing while it waits for files: what it waits for is either on its
    /// way, or given up after [`MAX_SEED_WAIT_US`].
    fn await_seed(&mut self, now_us: u64) {
        let awaited = self.step(|copy, _| copy.awaits_seed());
        let waits_for = self.awaits_seed.map(|(of, _)| of);
        let waiting = self.seeded.as_ref().map(|(of, _)| *of);
        if ![self.seeding, waits_for, waiting].contains(&awaited) {
            self.awaits_seed = awaited.map(|of| (of, now_us));
        }
    }

    /// A copy that goes on with what it has needs no other files: what was fetched of them takes space,
    /// and holds files that are deleted.
    fn discard_seed(&mut self) {
        let goes_on = self.step(|copy, _| copy.primary().is_some() || copy.receiver().session().is_some());
        if goes_on {
            self.troubles.end(Work::Seed);
        }
        let is_wanted = self.seeding.is_some() || self.seeded.is_some();
        if self.may_hold_seed && goes_on && !is_wanted {
            self.may_hold_seed = false;
            if let Err(error) = Building::discard(&self.path) {
                warn!(shard = self.shared.shard.0, %error, "what was fetched of another directory cannot be removed");
            }
        }
    }

    fn begin_seed(&mut self, of: SeedId, source: MemberId, resume: Resume) {
        let is_awaited = self.step(|copy, _| copy.awaits_seed()) == Some(of);
        if !is_awaited || self.seeding.is_some() || resume == Resume::Stream {
            return;
        }
        self.awaits_seed = None;
        info!(shard = self.shared.shard.0, from = source.0, "the files of this copy are fetched");
        self.build(of, source);
    }

    fn build(&mut self, of: SeedId, source: MemberId) {
        self.seeding = Some(of);
        self.may_hold_seed = true;
        *self.shared.progress.lock() = Some((0, 0));
        let (shared, around, path) = (self.shared.clone(), self.around.clone(), self.path.clone());
        self.helper(
            "ecotone-copy-seed",
            Duty::Seed,
            move || {
                let built = build(&shared, &around, &path, of.1, source);
                shared.inbox.put(Input::Seeded { of, built: built.map(Box::new) });
            },
            move |error| Input::Seeded { of, built: Err(error) },
        );
    }

    fn seeded(&mut self, of: SeedId, built: Result<Box<Built>>) {
        if self.seeding != Some(of) && self.seeded.is_none() && built.is_err() {
            return;
        }
        self.seeding = None;
        *self.shared.progress.lock() = None;
        if of == REPAIR {
            return self.repaired(built);
        }
        let built = match built {
            Ok(built) => built,
            Err(error) => {
                self.trouble(
                    Work::Seed,
                    format!("the files of this copy cannot be fetched; it is tried again: {error}"),
                );
                // Then it greets anew, and whoever it asked may have them by then.
                if self.step(|copy, _| copy.awaits_seed()) == Some(of) {
                    self.awaits_seed = Some((of, now_us().saturating_sub(MAX_SEED_WAIT_US - SEED_RETRY_US)));
                }
                return;
            }
        };
        if matches!(self.files, Files::Elsewhere) {
            // The store that was open here is still being closed.
            self.seeded = Some((of, built));
            return;
        }
        let at = (built.mark(), built.clock_limit_ms());
        if self.step(|copy, out| copy.seeded(of, Some(at), now_us(), out)) {
            self.switch(*built);
        }
    }

    /// Another directory takes the place of the old one, before any command is done.
    fn switch(&mut self, built: Built) {
        let Files::Replica(directory) = std::mem::replace(&mut self.files, Files::Elsewhere) else { return };
        let standing = self.step(|copy, _| copy.standing().clone());
        match directory.switch(built, &standing) {
            Ok(directory) => {
                self.files = Files::Replica(Box::new(directory));
                self.bytes.clear();
                self.troubles.clear();
                info!(shard = self.shared.shard.0, "the files of this copy are there");
            }
            Err(error) => {
                // What is in memory is not what is on disk any more.
                self.trouble(Work::Files, format!("the files of this copy could not be put in place: {error}"));
                self.begin_anew(false);
            }
        }
    }

    /// As a process that starts: with what the directory holds. It is whole only if that is known.
    fn begin_anew(&mut self, is_whole: bool) {
        self.shared.readers.close(MAX_CLOSE_TIME);
        self.files = Files::Elsewhere;
        self.is_broken = true;
        self.broken_us = now_us();
        self.bytes.clear();
        self.early.clear();
        let opened = Directory::open(&self.path, self.around.boot).and_then(|(mut directory, found)| {
            let mut standing = found.standing.clone().unwrap_or_default();
            standing.is_whole &= is_whole;
            directory.persist(&standing)?;
            Ok((directory, Found { standing: Some(standing), at: found.at, clock_limit_ms: found.clock_limit_ms }))
        });
        match opened {
            Ok((directory, found)) => {
                let directory = directory.with_readers(self.shared.readers.clone());
                let id = (self.around.me, self.shared.shard);
                let mut machine = self.shared.machine.lock();
                let mut commands = Vec::new();
                machine.copy =
                    ShardCopy::start(id, self.around.incarnation, found, self.settings, now_us(), None, &mut commands);
                if let Some(map) = &self.map {
                    machine.copy.map(map, now_us(), &mut commands);
                }
                machine.commands = commands;
                drop(machine);
                self.files = Files::Replica(Box::new(directory));
                (self.is_broken, self.next_sync) = (false, None);
                self.troubles.end(Work::Files);
                *self.shared.progress.lock() = None;
                warn!(shard = self.shared.shard.0, "this copy begins anew with what its files hold");
            }
            Err(error) => {
                self.trouble(Work::Files, format!("the files of this copy cannot be read; it is tried again: {error}"))
            }
        }
    }

    fn repair(&mut self, asked_by: MemberId, epoch: Epoch, others: Vec<MemberId>) {
        if self.seeding.is_some() || self.repairing.is_some() {
            return;
        }
        let Some(source) = others.into_iter().next() else {
            let shard = self.shared.shard;
            return self.answer(asked_by, Message::Repaired { shard, epoch, is_whole: false });
        };
        warn!(
            shard = self.shared.shard.0,
            from = source.0,
            "the log of this copy is damaged, and repaired from another"
        );
        self.repairing = Some((asked_by, epoch));
        self.build(REPAIR, source);
    }

    fn repaired(&mut self, built: Result<Box<Built>>) {
        let Some((asked_by, epoch)) = self.repairing.take() else { return };
        let here = self.step(|copy, _| copy.receiver().applied());
        let is_whole = match built {
            // It holds what this copy holds, so it may take its place.
            Ok(built) if built.mark() == here => {
                self.switch(*built);
                matches!(self.files, Files::Replica(_))
            }
            _ => false,
        };
        self.answer(asked_by, Message::Repaired { shard: self.shared.shard, epoch, is_whole });
    }

    // ---- The end ----

    fn stop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        self.shared.readers.close(MAX_CLOSE_TIME);
        let deadline = Instant::now() + MAX_STOP_TIME;
        self.step(|copy, out| copy.stop(out));
        self.do_commands();
        let is_open = |thread: &Self| thread.is_store_open || thread.is_opening || thread.is_closing;
        while (is_open(self) || self.is_syncing) && Instant::now() < deadline {
            for input in self.shared.inbox.take(BUSY_TICK) {
                if matches!(input, Input::Opened(..) | Input::Closed(_) | Input::SyncEnded(_)) {
                    self.take(input);
                }
            }
        }
        if is_open(self) || self.is_broken || self.is_syncing {
            return;
        }
        // All that is here is durable, so another boot of the machine holds it as well.
        let synced = self.sync_at_end();
        match synced {
            Ok(()) => {
                self.step(|copy, out| copy.stopped_synced(out));
                let standing = self.step(|copy, _| copy.standing().clone());
                self.shared.machine.lock().commands.clear();
                if let Err(error) = record::write_standing(&self.path, &standing) {
                    warn!(shard = self.shared.shard.0, %error, "it cannot be recorded that this copy is synced");
                }
            }
            Err(error) => warn!(shard = self.shared.shard.0, %error, "this copy is not synced at its end"),
        }
    }

    fn sync_at_end(&mut self) -> Result<()> {
        let Files::Replica(directory) = &mut self.files else { return Err(busy()) };
        for stage in [SyncStage::Segments, SyncStage::Wal] {
            let done = directory.begin_sync(stage).run()?;
            directory.synced(done)?;
        }
        Ok(ecotone_mirror::whole::sync(&self.path)?)
    }
}

/// Bytes that were not sent since items say how to make them.
fn spared_by(items: &[Item], bytes: &[Vec<u8>]) -> u64 {
    let spared = |(item, bytes): (&Item, &Vec<u8>)| match item.kind {
        Kind::Collect { content, .. } => spared_bytes(bytes, content.len),
        _ => 0,
    };
    items.iter().zip(bytes).map(spared).sum()
}

/// Takes what is wanted from what jobs here have made: it is compared, as if it had been fetched.
fn take_made(shared: &Shared, want: &Want, to: &Path) -> Result<bool> {
    while shared.made.lock().take(want.content.len, to)? {
        match check_fetched(to, want) {
            Ok(()) => {
                shared.bytes_made.fetch_add(want.content.len, Ordering::Relaxed);
                return Ok(true);
            }
            // Another one that is as long.
            Err(ecotone_mirror::error::Error::Mismatch { .. }) => {}
            Err(error) => {
                // Not to be written over: the job has the same file.
                std::fs::remove_file(to).map_err(|source| Error::io("remove", to, source))?;
                return Err(error.into());
            }
        }
    }
    Ok(false)
}

/// Whether an item that could not be read never can be: it was written over, is gone, or the device
/// does not give it.
fn is_final(error: &Error) -> bool {
    use ecotone_mirror::error::Error as Files;
    match error {
        Error::Mirror(Files::Mismatch { .. } | Files::Missing { .. }) => true,
        Error::Mirror(Files::Io { source, .. }) => source.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()),
        _ => false,
    }
}

fn busy() -> Error {
    Error::Busy("the copy is being opened, closed or built".into())
}

/// Opens the store of a copy that has become the primary.
fn open(
    shared: &Arc<Shared>,
    host: &dyn Host,
    (path, directory): (&Path, &mut Directory),
    epoch: Epoch,
    slots: Vec<ecotone_control::map::SlotRange>,
    links: Links,
) -> Result<()> {
    let (mark, clock_limit_ms) = shared.mark();
    let least_segment = directory.prepare_opening(mark, clock_limit_ms)?;
    let source = Source::new(path, shared.clone())?;
    *shared.source.write() = Some(source.clone());
    source.take_stock()?;
    let gate = CommitGate::new(shared.clone(), epoch);
    let copy: Weak<dyn primary_tables::Primary> = Arc::<Shared>::downgrade(shared);
    let tables = PrimaryTables::new(copy, shared.shard, epoch, links);
    host.open(Opening { shard: shared.shard, slots, tap: source, least_segment, gate, tables }).map_err(Error::Host)
}

/// Builds another directory from the files of `source`.
fn build(shared: &Shared, around: &Around, path: &Path, session: u64, source: MemberId) -> Result<Built> {
    let listing: Listing = around.fetcher.offer(source, shared.shard, session)?;
    let mut building = Building::begin(path, listing)?;
    while let Some((file, offset, len)) = building.next() {
        around.fetcher.range(source, shared.shard, (session, file), (offset, len), &mut |at, bytes| {
            if shared.is_over() {
                return Err(Error::Stopped);
            }
            building.write(file, at, bytes)?;
            *shared.progress.lock() = Some(building.progress());
            Ok(())
        })?;
    }
    Ok(building.finish()?)
}

#[cfg(test)]
mod tests;
