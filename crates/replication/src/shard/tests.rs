//! The thread of a copy on server 2, stepped by hand. No other server is there, so what is fetched
//! fails, and what is said is lost.

use std::path::Path;
use std::sync::OnceLock;

use ecotone_control::entry::Entry;
use ecotone_control::ids::{DirectoryId, FederationId};
use ecotone_control::map::Map;
use ecotone_membership::Known;
use ecotone_mirror::catalog::Hasher;
use ecotone_replica::commit::Levels;
use ecotone_replica::primary::Settings;
use ecotone_replica::sender::Limits;
use ecotone_replica::stream::{Acknowledgement, ContentId, FileKind, Hello, ToCopy, ToPrimary, ToPrimaryBody};
use ecotone_transport::connections::{Connections, Timeouts};
use ecotone_transport::security::Security;
use ecotone_types::ServerId;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::*;
use crate::links::Route;

const SHARD: ShardId = ShardId(1);
const ME: MemberId = MemberId(2);
const OTHER: MemberId = MemberId(1);
/// Nothing takes longer, not even on a busy machine.
const LONGEST: Duration = Duration::from_secs(30);

struct Store(PathBuf, AtomicBool);

impl Host for Store {
    fn directory(&self, _shard: ShardId) -> PathBuf {
        self.0.clone()
    }

    fn reserve(&self, _shard: ShardId) -> bool {
        true
    }

    fn release(&self, _shard: ShardId) -> bool {
        true
    }

    fn open(&self, _opening: Opening) -> Result<(), String> {
        assert!(!self.1.load(Ordering::SeqCst), "as was asked for");
        Ok(())
    }

    fn close(&self, _shard: ShardId) -> Result<(), String> {
        Ok(())
    }

    fn sync(&self, _shard: ShardId) -> Result<(), String> {
        Ok(())
    }
}

/// A thread, and what it needs around it.
struct Stepped {
    thread: Thread,
    /// What was asked for, and until when the lease was published then.
    proposed: Arc<Mutex<Vec<(Entry, u64)>>>,
    store: Arc<Store>,
    waiting: VecDeque<Input>,
    _runtime: Runtime,
    _above: TempDir,
}

fn state(epoch: u64, primary: Option<MemberId>, in_sync: &[MemberId]) -> Shard {
    let copies = [OTHER, ME].into();
    let in_sync = in_sync.iter().copied().collect();
    Shard { slots: Vec::new(), copies, in_sync, primary, epoch: Epoch(epoch), set_version: 1 }
}

impl Stepped {
    /// A copy of a shard that was just dealt.
    fn new() -> Stepped {
        let above = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let second = Duration::from_secs(1);
        let route = || {
            let timeouts = Timeouts { connect: second, read: second, silence: second };
            let connections = Connections::new(ServerId::new("two").unwrap(), timeouts, Security::plain_text());
            Route { runtime: runtime.handle().clone(), connections: Arc::new(connections) }
        };
        let known = Known {
            map: Arc::new(Map::new(FederationId([0; 8]))),
            member: ME,
            leader: None,
            term: 1,
            voters: BTreeSet::new(),
            gone: BTreeSet::new(),
            applied: 1,
            stopped: None,
            told_removed: false,
        };
        let links = Links::new(route(), route(), watch::Sender::new(Arc::new(known)).subscribe());
        let boot = BootId([0; 16]);
        let store = Arc::new(Store(above.path().join("store"), AtomicBool::new(false)));
        let (proposed, shared) = (Arc::<Mutex<Vec<_>>>::default(), Arc::<OnceLock<Arc<Shared>>>::default());
        let around = Around {
            me: ME,
            incarnation: Incarnation { directory: DirectoryId([0; 16]), boot },
            boot,
            host: store.clone(),
            links: links.clone(),
            leases: Arc::new(Leases::new()),
            fetcher: Fetcher::new(links),
            propose: Arc::new({
                let (proposed, shared) = (proposed.clone(), shared.clone());
                move |entry| {
                    let shared: &Arc<Shared> = shared.get().unwrap();
                    let until_us = shared.publisher.state.lock().lease_until_us;
                    proposed.lock().push((entry, until_us));
                }
            }),
            leader: Arc::new(|| None),
            to_own_leader: Arc::new(|_, _| {}),
        };
        let levels = Levels { copies: 2, min_in_sync: 1, durability: Durability::Received };
        let limits = Limits { max_lag_bytes: 1 << 20, max_seed_bytes: 1 << 20 };
        let primary = Settings { levels, limits, leave_after_us: 450_000, every_us: 1 };
        let settings = CopySettings { primary, window_bytes: 1 << 20, silence_us: 300_000, clean_after_us: 2_000_000 };
        let founded = state(1, Some(ME), &[ME]);
        let thread = Thread::new(SHARD, &founded, settings, Level::Quorum, Arc::new(around)).unwrap();
        shared.set(thread.shared.clone()).ok().unwrap();
        Stepped { thread, proposed, store, waiting: VecDeque::new(), _runtime: runtime, _above: above }
    }

    fn map(&mut self, state: Shard) {
        self.thread.take(Input::Map(Box::new(state)));
    }

    fn said(&mut self, epoch: u64, session: u64, body: ToCopyBody, bytes: Vec<Vec<u8>>) {
        let message = Message::ToCopy(SHARD, ToCopy { epoch: Epoch(epoch), session, body });
        self.thread.take(Input::Message(OTHER, message, bytes));
    }

    fn open(&mut self, epoch: u64, session: u64, resume: Resume) {
        let history = self.thread.step(|copy, _| copy.standing().clone()).history.and(Mark::default());
        self.said(epoch, session, ToCopyBody::Open { resume, history, is_distrusted: false }, Vec::new());
    }

    fn seed(&mut self, epoch: u64, session: u64) {
        let message =
            Message::Seed { shard: SHARD, epoch: Epoch(epoch), session, source: OTHER, resume: Resume::Complete };
        self.thread.take(Input::Message(OTHER, message, Vec::new()));
    }

    /// What a helper says when it has ended.
    fn next_input(&mut self) -> Input {
        let until = Instant::now() + LONGEST;
        while self.waiting.is_empty() {
            assert!(Instant::now() < until, "a helper ends");
            self.waiting = self.thread.shared.inbox.take(BUSY_TICK);
        }
        self.waiting.pop_front().unwrap()
    }

    fn awaits(&self) -> Option<SeedId> {
        self.thread.step(|copy, _| copy.awaits_seed())
    }

    fn applied(&self) -> Position {
        self.thread.step(|copy, _| copy.receiver().applied().position)
    }
}

#[test]
fn a_seed_that_fails_late_does_not_keep_a_copy_from_asking_anew() {
    let mut stepped = Stepped::new();
    stepped.map(state(3, Some(OTHER), &[OTHER]));
    stepped.open(3, 1, Resume::Complete);
    stepped.seed(3, 1);
    assert_eq!(stepped.thread.seeding, Some((Epoch(3), 1)));
    // Another primary answers meanwhile; where its files are has not come.
    stepped.map(state(5, Some(OTHER), &[OTHER]));
    stepped.open(5, 2, Resume::Complete);
    assert_eq!(stepped.awaits(), Some((Epoch(5), 2)));
    let failed = stepped.next_input();
    assert!(matches!(failed, Input::Seeded { built: Err(_), .. }));
    stepped.thread.take(failed);
    stepped.thread.tick();
    let (of, since_us) = stepped.thread.awaits_seed.expect("it is given up some time");
    assert_eq!(of, (Epoch(5), 2));
    stepped.thread.awaits_seed = Some((of, since_us.saturating_sub(MAX_SEED_WAIT_US)));
    stepped.thread.tick();
    assert_eq!(stepped.awaits(), None, "it greets anew");
}

#[test]
fn nothing_is_built_that_was_asked_for_before() {
    let mut stepped = Stepped::new();
    stepped.map(state(5, Some(OTHER), &[OTHER]));
    stepped.open(5, 2, Resume::Complete);
    stepped.seed(3, 2);
    stepped.seed(5, 1);
    assert_eq!(stepped.thread.seeding, None);
    stepped.seed(5, 2);
    assert_eq!(stepped.thread.seeding, Some((Epoch(5), 2)));
}

fn content_of(bytes: &[u8]) -> ContentId {
    let mut hasher = Hasher::new();
    hasher.update(bytes);
    hasher.finish()
}

/// The opening of epoch 3 with tables of these numbers and bytes.
fn opening(tables: &[(u64, &[u8])]) -> Vec<(Item, Vec<u8>)> {
    let manifest = Kind::Append { file: FileKind::Manifest, number: 5, offset: 0 };
    // With the CRC-32C of their bytes.
    let table = |(number, bytes): &(u64, &[u8])| {
        let kind = Kind::Finished { file: FileKind::Table, number: *number, content: content_of(bytes) };
        (kind, Vec::new(), 0)
    };
    let rest = [
        (manifest, b"a MANIFEST".to_vec(), 0xff75_2b10),
        (Kind::Put { file: FileKind::Current, number: 5 }, b"MANIFEST-000005\n".to_vec(), 0x9e7f_dadc),
    ];
    let mut items: Vec<(Item, Vec<u8>)> = Vec::new();
    for (kind, bytes, checksum) in tables.iter().map(table).chain(rest) {
        let before = items.last().map_or(Mark::default().open(Epoch(3)), |(item, _)| item.mark());
        items.push((Item::behind(before, kind, bytes.len() as u64, checksum), bytes));
    }
    items
}

/// A replica that holds an opening back up to the position, as it lacks a table.
fn in_an_opening() -> (Stepped, Want, Position) {
    let (stepped, end) = in_an_opening_with(&[(7, b"a table")]);
    (stepped, Want { file: FileName::new(FileKind::Table, 7), content: content_of(b"a table") }, end)
}

fn in_an_opening_with(tables: &[(u64, &[u8])]) -> (Stepped, Position) {
    let mut stepped = Stepped::new();
    stepped.map(state(3, Some(OTHER), &[OTHER, ME]));
    stepped.open(3, 1, Resume::Stream);
    let items = opening(tables);
    let end = items.last().unwrap().0.position;
    let (items, bytes): (Vec<Item>, Vec<Vec<u8>>) = items.into_iter().unzip();
    stepped.said(3, 1, ToCopyBody::Items { items, end_bytes: 26 }, bytes);
    assert_eq!(stepped.applied(), Position::begin(Epoch(3)), "a table lacks");
    (stepped, end)
}

#[test]
fn a_file_that_does_not_come_holds_up_no_other() {
    let (mut stepped, _) = in_an_opening_with(&[(7, b"one"), (8, b"other")]);
    // There is nobody to fetch them from. Each time is the earliest at which anything is asked for.
    for number in [7, 8] {
        stepped.thread.fetch(stepped.thread.fetch_again_us.max(now_us()));
        let Input::Fetched(want, fetched) = stepped.next_input() else { panic!("a file is asked for") };
        assert!(want.file.number == number && fetched.is_err(), "{want:?} {fetched:?}");
        stepped.thread.take(Input::Fetched(want, fetched));
    }
    stepped.thread.fetch(stepped.thread.fetch_again_us);
    assert!(!stepped.thread.is_fetching, "neither is asked for again so soon");
}

#[test]
fn only_a_file_that_an_opening_needs_ends_it() {
    let (mut stepped, want, _) = in_an_opening();
    let rebuilds = |stepped: &Stepped| !matches!(&stepped.thread.files, Files::Replica(held) if held.is_opening());
    // It was fetched for what was pending before the opening came.
    let old = Want { file: FileName::new(FileKind::Table, 3), ..want };
    stepped.thread.take(Input::Fetched(old, Ok(false)));
    assert!(!rebuilds(&stepped));
    stepped.thread.take(Input::Fetched(want, Ok(false)));
    assert!(rebuilds(&stepped));
}

#[test]
fn an_opening_that_is_done_late_is_known_of() {
    let (mut stepped, want, end) = in_an_opening();
    // It comes, and what follows fails once: the directory does it by itself at the next look.
    let Files::Replica(directory) = &mut stepped.thread.files else { panic!("it is a replica") };
    let path = directory.temporary(&want);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, b"a table").unwrap();
    assert_eq!(directory.fetched(&want).unwrap(), end);
    // The primary is dead by then: nothing more comes, and it is to be sealed.
    stepped.map(state(4, None, &[OTHER, ME]));
    stepped.thread.tick();
    assert_eq!(stepped.applied(), end);
    assert!(stepped.thread.step(|copy, _| copy.receiver().is_idle()));
}

#[test]
fn a_shorter_lease_is_published_before_a_larger_set_is_asked_for() {
    let mut stepped = Stepped::new();
    stepped.map(state(3, Some(ME), &[ME]));
    let opened = stepped.next_input();
    stepped.thread.take(opened);
    assert_eq!(stepped.thread.shared.publisher.state.lock().lease_until_us, u64::MAX, "alone it needs no promise");
    // The other copy follows, and may join.
    let hello = Hello {
        incarnation: Incarnation { directory: DirectoryId([1; 16]), boot: BootId([1; 16]) },
        applied: Mark::default(),
        is_exact: true,
        is_whole: true,
        credit: 1 << 20,
    };
    let to_primary = |session, body| {
        let said = ToPrimary { epoch: Epoch(3), session, body };
        Input::Message(OTHER, Message::ToPrimary(SHARD, said), Vec::new())
    };
    stepped.thread.take(to_primary(0, ToPrimaryBody::Hello(hello)));
    for now_us in 1..=3 {
        let last = stepped.thread.step(|copy, _| copy.receiver().applied().position);
        let said = Acknowledgement { received: last, synced: last, credit: 1 << 20, now_us };
        let session = stepped.thread.step(|copy, _| copy.primary().and_then(|primary| primary.sender().session(OTHER)));
        let body = ToPrimaryBody::Acknowledge(said);
        stepped.thread.take(to_primary(session.unwrap(), body));
        std::thread::sleep(Duration::from_millis(1));
    }
    let proposed = stepped.proposed.lock().clone();
    let Some((Entry::SetInSync { in_sync, .. }, until_us)) = proposed.first() else { panic!("{proposed:?}") };
    assert_eq!(*in_sync, [OTHER, ME].into());
    assert_eq!(*until_us, 0, "the other one has promised nothing");
}

#[test]
fn a_thread_that_panics_is_not_waited_for() {
    let mut stepped = Stepped::new();
    stepped.store.1.store(true, Ordering::SeqCst);
    stepped.map(state(3, Some(ME), &[ME]));
    let opened = stepped.next_input();
    assert!(matches!(opened, Input::Opened(Err(_))));
    stepped.thread.take(opened);
    stepped.thread.tick();
    assert!(!stepped.thread.shared.state.lock().serves, "the leader is to name another one");
    // The directory is there again when the store is closed, and may be opened in another epoch.
    stepped.store.1.store(false, Ordering::SeqCst);
    stepped.map(state(4, None, &[ME]));
    // Its syncs end as well.
    while !matches!(stepped.thread.files, Files::Replica(_)) {
        let input = stepped.next_input();
        stepped.thread.take(input);
    }
    stepped.map(state(5, Some(ME), &[ME]));
    while !stepped.thread.is_store_open {
        let input = stepped.next_input();
        stepped.thread.take(input);
    }
}

#[test]
fn nothing_is_kept_of_a_primary_that_was_killed_or_of_a_seed_that_is_of_no_use() {
    let mut stepped = Stepped::new();
    let store = stepped.thread.path.clone();
    let beside = |name: &str| ecotone_mirror::names::copy_directory(&store).join(name);
    let left = |path: &Path| {
        std::fs::create_dir_all(path).unwrap();
        std::fs::write(path.join("some"), b"bytes").unwrap();
    };
    left(&beside("kept"));
    left(&beside("pool"));
    // It starts again, and does not know yet whether it needs what was fetched.
    let Stepped { thread, .. } = &mut stepped;
    let founded = state(1, Some(ME), &[ME]);
    thread.files = Files::Elsewhere;
    let around = thread.around.clone();
    stepped.thread = Thread::new(SHARD, &founded, stepped.thread.settings, Level::Quorum, around).unwrap();
    assert!(!beside("kept").join("some").exists());
    stepped.thread.tick();
    assert!(beside("pool").join("some").exists());
    stepped.map(state(3, Some(OTHER), &[OTHER]));
    stepped.open(3, 1, Resume::Complete);
    stepped.thread.tick();
    assert!(beside("pool").join("some").exists(), "it is about to be used");
    stepped.map(state(5, Some(OTHER), &[OTHER]));
    stepped.open(5, 1, Resume::Stream);
    stepped.thread.tick();
    assert!(!beside("pool").exists());
}

#[test]
fn a_copy_ends_although_nothing_can_be_recorded() {
    let mut stepped = Stepped::new();
    stepped.map(state(3, Some(OTHER), &[OTHER]));
    // Whatever is in the place of the record, it cannot be written.
    let standing = ecotone_mirror::names::copy_directory(&stepped.thread.path).join("standing");
    std::fs::remove_file(&standing).unwrap();
    std::fs::create_dir_all(standing.join("some")).unwrap();
    let Stepped { thread, .. } = stepped;
    let shared = thread.shared.clone();
    // The history of its primary is to be recorded.
    let history = ecotone_replica::position::History::default().and(Mark::default());
    let body = ToCopyBody::Open { resume: Resume::Stream, history, is_distrusted: false };
    let message = Message::ToCopy(SHARD, ToCopy { epoch: Epoch(3), session: 1, body });
    shared.inbox.put(Input::Message(OTHER, message, Vec::new()));
    let running = std::thread::spawn(move || thread.run());
    std::thread::sleep(IDLE_TICK);
    assert!(!running.is_finished(), "it is tried again and again");
    shared.inbox.put(Input::Stop);
    let until = Instant::now() + LONGEST;
    while !running.is_finished() && Instant::now() < until {
        std::thread::sleep(BUSY_TICK);
    }
    assert!(running.is_finished());
}

#[test]
fn who_records_that_it_is_the_primary_is_one_that_serves() {
    let mut stepped = Stepped::new();
    let serving = |stepped: &Stepped| stepped.thread.shared.report(ME).serving;
    stepped.thread.tick();
    // The machine is stepped, and what it wants recorded is not yet.
    let named = state(3, Some(ME), &[ME]);
    stepped.thread.step(|copy, out| copy.map(&named, now_us(), out));
    assert!(matches!(serving(&stepped), Serving::Primary { epoch: Epoch(3), .. }));
    // Nor is one that serves whose store cannot be opened.
    stepped.thread.map = Some(Box::new(named));
    stepped.thread.do_commands();
    stepped.store.1.store(true, Ordering::SeqCst);
    let _ = stepped.next_input();
    stepped.thread.take(Input::Opened(Err(busy())));
    stepped.thread.tick();
    assert_eq!(serving(&stepped), Serving::Replica);
}
