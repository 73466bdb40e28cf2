//! Backups that clients take away (`BACKUP`): checkpoints of the store, or of that of one shard, that
//! are held while somebody copies their files.
//!
//! A store is backed up by itself only where it has all slots: of one of several shards it would be
//! a part of what clients see, without a word. Of a shard with copies only the primary is backed
//! up, and only while it has its lease once the checkpoint is made: then nobody else has
//! acknowledged anything before, and all that was is in it.
//!
//! Bounds: [`MAX_HELD`] checkpoints at a time. One of which nothing was asked for [`MAX_IDLE`]
//! ends; so do all while the store refuses writes for want of space, since what they hold cannot be
//! freed. The place of one that was idle for [`YIELDS_AFTER`] goes to who asks for another: a
//! client that died keeps nobody from trying again.
//!
//! Failure: whatever happens to the client, the server or the thread in here, the space of a
//! checkpoint comes back: when it ends, when its time is over, or at the next start.
//!
//! Threads: any. One looks once a second at what is held, while anything is.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ecotone_engine::{Error as StoreError, HeldCheckpoint, Store};
use parking_lot::Mutex;
use ring::digest::{SHA256, digest};

use ecotone_keyspace::gate::{CommitGate, Level, Place, Refused};
use ecotone_keyspace::{GatedStore, Keyspace, ShardId, Slot};

/// Checkpoints that are held at a time, `BGSAVE`'s included.
pub const MAX_HELD: usize = 4;

/// A backup of which nothing is asked for so long is given up.
pub const MAX_IDLE: Duration = Duration::from_secs(120);

/// One of which nothing was asked for so long gives its place to another.
pub const YIELDS_AFTER: Duration = Duration::from_secs(10);

/// Bytes that one request reads: together with its checksum less than any client may be owed.
pub const MAX_READ_BYTES: usize = 512 << 10;

/// Bytes that one request has compared.
pub const MAX_HASHED_BYTES: u64 = 16 << 20;

/// Who reads a part of a backup that was ended does so for less than this.
const LET_GO_WITHIN: Duration = Duration::from_secs(5);

/// Time between two looks at what is held.
const LOOKS_EVERY: Duration = Duration::from_secs(1);

/// The backups of one store.
#[derive(Debug, Default)]
pub struct Backups {
    state: Mutex<State>,
    /// What was done since the start.
    pub counts: BackupCounts,
}

#[derive(Debug, Default)]
struct State {
    held: Vec<Arc<BackupSnapshot>>,
    /// Checkpoints that are being made, and have a place already.
    begun: usize,
    watcher: Option<JoinHandle<()>>,
    has_stopped: bool,
}

/// What was done since the start.
#[derive(Debug, Default)]
pub struct BackupCounts {
    /// Backups of which who made them said that they are complete.
    pub completed: AtomicU64,
    /// Others that have ended.
    pub given_up: AtomicU64,
    /// Bytes of files that were read for backups.
    pub read_bytes: AtomicU64,
    /// When the last one of an only store was completed, in seconds since 1970; 0 before the first.
    /// Whether a federation of which a shard was copied has got its backup is not known here.
    pub last_completed_s: AtomicU64,
}

/// What a backup is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackedUp {
    /// The only store that there is, with all slots.
    OnlyStore,
    /// This shard's, of which the server is the primary.
    Shard(ShardId),
}

/// A backup that is being made: the store as it was when it began.
#[derive(Debug)]
pub struct BackupSnapshot {
    /// What it is asked for by.
    pub id: String,
    /// The moment, in ms since 1970.
    pub time_ms: u64,
    /// The [lineage](ecotone_engine::Store::lineage) of the store.
    pub store: String,
    /// Where the shard has copies: all that was written up to here is in it.
    pub place: Option<Place>,
    /// Its files.
    pub checkpoint: HeldCheckpoint,
    of: BackedUp,
    asked: Mutex<Instant>,
}

/// Why there is no backup.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// [`MAX_HELD`] are being made.
    #[error("{} backups are being made already: try again once one of them has ended", MAX_HELD)]
    TooMany,
    /// The server stops.
    #[error("the server stops: begin the backup again once it is back")]
    Stops,
    /// It has ended, or never was.
    #[error(
        "there is no backup of this id: it ended, nothing was asked of it for {} s, the server was started again, or space ran short \
         (see the server's log); begin another",
        MAX_IDLE.as_secs()
    )]
    Unknown,
    /// A backup is of one store.
    #[error(
        "this is a backup of one store, and this server holds {0} shards, each with one: back the federation up with `ecotone cluster \
         backup`, which takes all shards, or name one (BACKUP BEGIN SHARD)"
    )]
    NotOneStore(usize),
    /// It is one of several.
    #[error(
        "this server holds {0} only, one of several shards of its federation: back all of them up with `ecotone cluster backup`, or name \
         one (BACKUP BEGIN SHARD)"
    )]
    NotAllSlots(ShardId),
    /// Another server has what was acknowledged, or may have.
    #[error("{0} cannot be backed up here: {1}; ask the server that FEDERATION STATUS names as its primary")]
    NotPrimary(ShardId, &'static str),
    /// The store could not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The thread that watches could not be had.
    #[error("no thread could be had to watch over the backup: {0}")]
    NoThread(std::io::Error),
}

impl BackupSnapshot {
    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.checkpoint.files().values().map(|file| file.bytes).sum()
    }

    fn idle(&self) -> Duration {
        self.asked.lock().elapsed()
    }
}

impl Backups {
    /// Begins one: of all that was acknowledged before.
    ///
    /// # Errors
    ///
    /// See [`BackupError`].
    pub fn begin(self: &Arc<Self>, keyspace: &Arc<Keyspace>, of: BackedUp) -> Result<Arc<BackupSnapshot>, BackupError> {
        // Before another one has to give its place.
        let (id, (store, gate)) = found(keyspace, of)?;
        let check = |place: Option<Place>| match (&gate, place) {
            (Some(gate), Some(place)) => {
                still_primary(gate.as_ref(), place).map_err(|why| BackupError::NotPrimary(id, why))
            }
            _ => Ok(()),
        };
        let written = || gate.as_ref().map(|gate| gate.written());
        check(written())?;
        let (begun, yields) = {
            let mut state = self.state.lock();
            if state.has_stopped {
                return Err(BackupError::Stops);
            }
            let yields = match state.held.len() + state.begun < MAX_HELD {
                true => None,
                false => Some(state.max_idle().ok_or(BackupError::TooMany)?),
            };
            state.begun += 1;
            (Begun(self), yields)
        };
        // Outside of the lock, here and below: files are removed with it.
        if let Some(yields) = yields {
            self.give_up(&yields, "another was begun, and there was no other place");
        }
        let time_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        let place = written();
        let checkpoint = store.hold_checkpoint()?;
        check(place)?;
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let held = Arc::new(BackupSnapshot {
            id: format!("{time_ms:x}-{}", NEXT.fetch_add(1, Ordering::Relaxed)),
            time_ms,
            store: store.lineage()?,
            place,
            checkpoint,
            of,
            asked: Mutex::new(Instant::now()),
        });
        let mut state = self.state.lock();
        if state.has_stopped {
            return Err(BackupError::Stops);
        }
        if !keyspace.has_store(&store) {
            return Err(not_here(id));
        }
        state.watch(self, keyspace)?;
        state.held.push(held.clone());
        drop(state);
        drop(begun);
        Ok(held)
    }

    /// One that is being made. That counts as asking of it.
    ///
    /// # Errors
    ///
    /// [`BackupError::Unknown`].
    pub fn find(&self, id: &[u8]) -> Result<Arc<BackupSnapshot>, BackupError> {
        let state = self.state.lock();
        let held = state.held.iter().find(|held| held.id.as_bytes() == id).ok_or(BackupError::Unknown)?;
        *held.asked.lock() = Instant::now();
        Ok(held.clone())
    }

    /// A part of a file, at most [`MAX_READ_BYTES`].
    ///
    /// # Errors
    ///
    /// [`BackupError::Store`].
    pub fn read(&self, held: &BackupSnapshot, file: &str, offset: u64, bytes: usize) -> Result<Vec<u8>, BackupError> {
        let read = held.checkpoint.read(file, offset, bytes.min(MAX_READ_BYTES))?;
        self.counts.read_bytes.fetch_add(read.len() as u64, Ordering::Relaxed);
        *held.asked.lock() = Instant::now();
        Ok(read)
    }

    /// The SHA-256 of a part of a file, at most [`MAX_HASHED_BYTES`], in hexadecimal digits.
    ///
    /// # Errors
    ///
    /// [`BackupError::Store`].
    pub fn hash(&self, held: &BackupSnapshot, file: &str, offset: u64, bytes: u64) -> Result<String, BackupError> {
        let mut context = ring::digest::Context::new(&SHA256);
        let (mut at, end) = (offset, offset.saturating_add(bytes.min(MAX_HASHED_BYTES)));
        while at < end {
            let piece = self.read(held, file, at, usize::try_from(end - at).unwrap_or(MAX_READ_BYTES))?;
            if piece.is_empty() {
                break;
            }
            context.update(&piece);
            at += piece.len() as u64;
        }
        Ok(hex(context.finish().as_ref()))
    }

    /// Ends one, completed or not, and gives back its space.
    ///
    /// # Errors
    ///
    /// [`BackupError::Unknown`].
    pub fn end(&self, id: &[u8], is_completed: bool) -> Result<(), BackupError> {
        let held = self.find(id)?;
        if !is_completed {
            self.give_up(&held, "who made it said so");
            return Ok(());
        }
        if self.forget(&held) {
            self.counts.completed.fetch_add(1, Ordering::Relaxed);
            if held.of == BackedUp::OnlyStore {
                let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
                self.counts.last_completed_s.store(now_s, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Ends those of a store that is about to be closed, and waits for whoever reads a part of one
    /// now.
    pub fn let_go(&self, store: &Store) {
        let of_store: Vec<_> =
            self.state.lock().held.iter().filter(|held| held.checkpoint.is_of(store)).cloned().collect();
        for held in of_store {
            self.give_up(&held, "the shard is served here no more");
            let (last, until) = (Arc::downgrade(&held), Instant::now() + LET_GO_WITHIN);
            drop(held);
            while last.strong_count() > 0 && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// How many are being made.
    pub fn held(&self) -> usize {
        self.state.lock().held.len()
    }

    /// Ends all, and begins no other: before the store is closed.
    pub fn finish(&self) {
        let (held, watcher) = {
            let mut state = self.state.lock();
            state.has_stopped = true;
            (state.held.clone(), state.watcher.take())
        };
        for held in held {
            self.give_up(&held, "the server stops");
        }
        if let Some(watcher) = watcher {
            watcher.thread().unpark();
            // One that panicked has told so.
            let _ = watcher.join();
        }
    }

    fn give_up(&self, held: &Arc<BackupSnapshot>, why: &str) {
        if self.forget(held) {
            self.counts.given_up.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(backup = held.id, why, "a backup was given up");
        }
    }

    /// Whether it was there. Its files go with who has it last.
    fn forget(&self, held: &Arc<BackupSnapshot>) -> bool {
        let mut state = self.state.lock();
        let before = state.held.len();
        state.held.retain(|other| !Arc::ptr_eq(other, held));
        state.held.len() < before
    }

    /// Gives up what has to be. Whether anything is left to watch.
    fn look(&self, keyspace: &Weak<Keyspace>) -> bool {
        let is_full = |store: Arc<Store>| matches!(store.check_free_space(), Err(StoreError::OutOfSpace { .. }));
        let is_short = keyspace.upgrade().is_some_and(|keyspace| keyspace.stores().any(is_full));
        let end = |held: &&Arc<BackupSnapshot>| is_short || held.idle() >= MAX_IDLE;
        // Of the others none is kept from here: whoever ends one takes its files with it.
        let ended: Vec<_> = self.state.lock().held.iter().filter(end).cloned().collect();
        for held in ended {
            self.give_up(
                &held,
                if is_short {
                    "the store is short of the space that it holds"
                } else {
                    "nothing was asked of it for too long"
                },
            );
        }
        let mut state = self.state.lock();
        if state.held.is_empty() && state.begun == 0 {
            // Whoever begins the next one starts another.
            state.watcher = None;
        }
        state.watcher.is_some()
    }
}

/// What is to be backed up: the shard, its store, and what its replies wait for.
fn found(keyspace: &Keyspace, of: BackedUp) -> Result<(ShardId, GatedStore), BackupError> {
    let id = match of {
        BackedUp::Shard(id) => id,
        BackedUp::OnlyStore => {
            let held = keyspace.held_slots();
            let stores = keyspace.stores().count();
            let Some(&(id, ..)) = held.first().filter(|_| stores == 1) else {
                return Err(BackupError::NotOneStore(stores));
            };
            let slots: u32 = held.iter().map(|(_, first, last)| u32::from(last - first) + 1).sum();
            if slots != u32::from(Slot::LAST.number()) + 1 {
                return Err(BackupError::NotAllSlots(id));
            }
            id
        }
    };
    keyspace.store_of(id).map(|store| (id, store)).ok_or_else(|| not_here(id))
}

fn not_here(id: ShardId) -> BackupError {
    BackupError::NotPrimary(id, "this server is not its primary")
}

/// Whether nobody else can have acknowledged anything by now: to be asked once the checkpoint is
/// made, of which `place` was there before.
fn still_primary(gate: &dyn CommitGate, place: Place) -> Result<(), &'static str> {
    // How many copies are in sync says what may be acknowledged, and not what is here.
    match gate.answerable(Level::One) {
        Ok(answerable) if answerable.epoch == place.epoch && place.number != u64::MAX => Ok(()),
        Err(Refused::NoLease) => {
            Err("this server has lost touch with the other copies, and another one may be the primary by now")
        }
        Ok(_) | Err(_) => Err("this server is not its primary any more"),
    }
}

impl State {
    /// The one that gives its place to another.
    fn max_idle(&self) -> Option<Arc<BackupSnapshot>> {
        let most = self.held.iter().max_by_key(|held| held.idle())?;
        (most.idle() >= YIELDS_AFTER).then(|| most.clone())
    }

    fn watch(&mut self, backups: &Arc<Backups>, keyspace: &Arc<Keyspace>) -> Result<(), BackupError> {
        if self.watcher.is_none() {
            let (backups, keyspace) = (Arc::downgrade(backups), Arc::downgrade(keyspace));
            let watch = move || {
                while backups.upgrade().is_some_and(|backups| backups.look(&keyspace)) {
                    std::thread::park_timeout(LOOKS_EVERY);
                }
            };
            let started = std::thread::Builder::new().name("backups".into()).spawn(watch);
            self.watcher = Some(started.map_err(BackupError::NoThread)?);
        }
        Ok(())
    }
}

/// A place that was taken, until what it is for is held or has failed.
struct Begun<'b>(&'b Backups);

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.0.state.lock().begun -= 1;
    }
}

/// The SHA-256 of `bytes`, in hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    hex(digest(&SHA256, bytes).as_ref())
}

/// Two hexadecimal digits for each byte.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing into a text does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test fails where it is surprised

    use std::path::Path;

    use ecotone_engine::{CHECKPOINTS_DIRECTORY, Durability, OpenMode, Store, StoreSettings};
    use ecotone_keyspace::OpenShard;

    use super::*;

    fn keyspace(directory: &Path) -> Arc<Keyspace> {
        let store = Store::open(directory, OpenMode::CreateOrOpen, StoreSettings::default()).unwrap();
        Keyspace::open(Arc::new(store), Durability::EverySecond).unwrap()
    }

    fn checkpoints(directory: &Path) -> usize {
        std::fs::read_dir(directory.join(CHECKPOINTS_DIRECTORY)).map_or(0, Iterator::count)
    }

    /// The thread that watches may have one for a moment longer.
    fn until_held(directory: &Path, number: usize) {
        let began = Instant::now();
        while checkpoints(directory) != number {
            assert!(began.elapsed() < Duration::from_secs(60), "{} checkpoints are held", checkpoints(directory));
            std::thread::yield_now();
        }
    }

    /// As if nothing had been asked of it for so long.
    fn rests(held: &BackupSnapshot, idle: Duration) {
        *held.asked.lock() = Instant::now().checked_sub(idle).unwrap();
    }

    #[test]
    fn only_so_many_are_held_and_one_that_rests_gives_its_place() {
        let directory = tempfile::tempdir().unwrap();
        let (keyspace, backups) = (keyspace(directory.path()), Arc::new(Backups::default()));
        let held: Vec<_> = (0..MAX_HELD).map(|_| backups.begin(&keyspace, BackedUp::OnlyStore).unwrap()).collect();
        assert!(matches!(backups.begin(&keyspace, BackedUp::OnlyStore), Err(BackupError::TooMany)));
        assert_eq!(checkpoints(directory.path()), MAX_HELD);
        let (first, second) = (held[0].id.clone(), held[1].id.clone());
        rests(&held[0], YIELDS_AFTER);
        rests(&held[1], YIELDS_AFTER + LOOKS_EVERY);
        // Who asks for what is not here takes nobody's place.
        let refused = backups.begin(&keyspace, BackedUp::Shard(ShardId(99)));
        assert!(matches!(refused, Err(BackupError::NotPrimary(ShardId(99), _))), "{refused:?}");
        assert_eq!((backups.held(), checkpoints(directory.path())), (MAX_HELD, MAX_HELD));
        // Asking keeps it, and of those that rest the one that did so for longest goes.
        rests(&held[2], 2 * YIELDS_AFTER);
        backups.find(held[2].id.as_bytes()).unwrap();
        drop(held);
        backups.begin(&keyspace, BackedUp::OnlyStore).unwrap();
        assert!(backups.find(first.as_bytes()).is_ok());
        assert!(matches!(backups.find(second.as_bytes()), Err(BackupError::Unknown)));
        assert_eq!(checkpoints(directory.path()), MAX_HELD);
        assert!(matches!(backups.end(second.as_bytes(), true), Err(BackupError::Unknown)));
        backups.end(first.as_bytes(), true).unwrap();
        assert_eq!((backups.held(), checkpoints(directory.path())), (MAX_HELD - 1, MAX_HELD - 1));
        backups.finish();
        assert_eq!((backups.held(), checkpoints(directory.path())), (0, 0));
        assert!(matches!(backups.begin(&keyspace, BackedUp::OnlyStore), Err(BackupError::Stops)));
        let counts = &backups.counts;
        let counts = [&counts.completed, &counts.given_up].map(|count| count.load(Ordering::Relaxed));
        assert_eq!(counts, [1, MAX_HELD as u64]);
    }

    #[test]
    fn what_nobody_asks_for_ends_and_what_is_asked_for_stays() {
        let directory = tempfile::tempdir().unwrap();
        let (keyspace, backups) = (keyspace(directory.path()), Arc::new(Backups::default()));
        keyspace.only_store().unwrap().put(b"k", b"value").unwrap();
        let (one, other) = (
            backups.begin(&keyspace, BackedUp::OnlyStore).unwrap(),
            backups.begin(&keyspace, BackedUp::OnlyStore).unwrap(),
        );
        rests(&one, MAX_IDLE);
        backups.read(&other, "STORE", 0, 10).unwrap();
        assert!(backups.look(&Arc::downgrade(&keyspace)));
        assert!(backups.find(one.id.as_bytes()).is_err() && backups.find(other.id.as_bytes()).is_ok());
        let whole = std::fs::read(directory.path().join("STORE")).unwrap();
        assert_eq!(backups.hash(&other, "STORE", 3, 1 << 40).unwrap(), sha256(&whole[3..]));
        assert_eq!(backups.read(&other, "STORE", 3, 4).unwrap(), whole[3..7]);
        assert!(matches!(backups.read(&other, "../STORE", 0, 1), Err(BackupError::Store(_))));
        drop(one);
        assert_eq!(backups.held(), 1);
        until_held(directory.path(), 1);
        // A keyspace and backups that go without a word leave nothing, either.
        drop((other, backups));
        until_held(directory.path(), 0);
    }

    /// A gate that answers what it is given.
    #[derive(Debug)]
    struct Given(Mutex<(Place, Result<Place, Refused>)>);

    impl CommitGate for Given {
        fn written(&self) -> Place {
            self.0.lock().0
        }

        fn answerable(&self, level: Level) -> Result<Place, Refused> {
            assert_eq!(level, Level::One, "how many copies are in sync does not matter");
            self.0.lock().1
        }

        fn takes_writes(&self) -> bool {
            true
        }

        fn level(&self) -> Level {
            Level::All
        }

        fn copies_with(&self, _: Place, _: bool) -> usize {
            0
        }

        fn clock_limit_ms(&self) -> u64 {
            u64::MAX
        }

        fn wakes(&self, _: &Arc<dyn Fn() + Send + Sync>) {}
    }

    #[test]
    fn a_shard_is_backed_up_by_its_primary_only_and_at_its_position() {
        let directory = tempfile::tempdir().unwrap();
        let store = |name: &str| {
            let path = directory.path().join(name);
            Arc::new(Store::open(&path, OpenMode::CreateOrOpen, StoreSettings::default()).unwrap())
        };
        let place = |epoch, number| Place { epoch, number };
        let gate = Arc::new(Given(Mutex::new((place(3, 7), Ok(place(3, 2))))));
        let shard = |id, slots, name, gate| OpenShard { id: ShardId(id), slots, store: store(name), gate };
        let gated: Option<Arc<dyn CommitGate>> = Some(gate.clone());
        let shards = vec![shard(2, vec![(0, 99)], "2", gated), shard(5, vec![(100, 16_383)], "5", None)];
        let keyspace = Keyspace::open_shards(shards, Durability::EverySecond).unwrap();
        let backups = Arc::new(Backups::default());
        let begin = |shard| backups.begin(&keyspace, BackedUp::Shard(ShardId(shard)));
        // What a minority lacks is here, so the position is that of what was written.
        let held = begin(2).unwrap();
        assert_eq!(held.place, Some(place(3, 7)));
        assert!(held.checkpoint.is_of(&keyspace.store_of(ShardId(2)).unwrap().0));
        // A shard with one copy has none.
        assert_eq!(begin(5).unwrap().place, None);
        assert!(matches!(backups.begin(&keyspace, BackedUp::OnlyStore), Err(BackupError::NotOneStore(2))));
        drop(held);
        // Who has no lease, is in another epoch, or wrote what has no position, may lack what was
        // acknowledged, or be somewhere else: and holds nothing then.
        let held = backups.held();
        for (written, answerable) in [
            (place(3, 7), Err(Refused::NoLease)),
            (place(3, 7), Err(Refused::NotPrimary)),
            (place(3, 7), Ok(place(4, 0))),
            (place(3, u64::MAX), Ok(place(3, 2))),
        ] {
            *gate.0.lock() = (written, answerable);
            let refused = begin(2);
            assert!(matches!(refused, Err(BackupError::NotPrimary(ShardId(2), _))), "{answerable:?}: {refused:?}");
        }
        assert!(matches!(begin(9), Err(BackupError::NotPrimary(ShardId(9), _))));
        assert_eq!(backups.held(), held);
        until_held(&directory.path().join("2"), 1);
        *gate.0.lock() = (place(3, 7), Ok(place(3, 7)));
        // That one is there does not say that the federation has a backup.
        let copied = begin(2).unwrap();
        backups.end(copied.id.as_bytes(), true).unwrap();
        drop(copied);
        let counts = [&backups.counts.completed, &backups.counts.last_completed_s];
        assert_eq!(counts.map(|count| count.load(Ordering::Relaxed)), [1, 0]);
        // A shard that is given up takes its backups along.
        keyspace.give_up_shard(ShardId(2)).unwrap();
        assert!(matches!(begin(2), Err(BackupError::NotPrimary(..))));
        // The other one is the only store now, and not all of the federation.
        let part = backups.begin(&keyspace, BackedUp::OnlyStore);
        assert!(matches!(part, Err(BackupError::NotAllSlots(ShardId(5)))), "{part:?}");
        backups.finish();
    }

    #[test]
    fn an_only_store_with_copies_is_backed_up_by_its_primary_only() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path(), OpenMode::CreateOrOpen, StoreSettings::default()).unwrap();
        let place = Place { epoch: 3, number: 7 };
        let given = Arc::new(Given(Mutex::new((place, Err(Refused::NoLease)))));
        let gate: Option<Arc<dyn CommitGate>> = Some(given.clone());
        let shard = OpenShard { id: ShardId(1), slots: vec![(0, 16_383)], store: Arc::new(store), gate };
        let keyspace = Keyspace::open_shards(vec![shard], Durability::EverySecond).unwrap();
        let backups = Arc::new(Backups::default());
        let refused = backups.begin(&keyspace, BackedUp::OnlyStore);
        assert!(matches!(refused, Err(BackupError::NotPrimary(ShardId(1), _))), "{refused:?}");
        *given.0.lock() = (place, Ok(place));
        let held = backups.begin(&keyspace, BackedUp::OnlyStore).unwrap();
        backups.end(held.id.as_bytes(), true).unwrap();
        assert_ne!(backups.counts.last_completed_s.load(Ordering::Relaxed), 0);
        backups.finish();
    }
}
