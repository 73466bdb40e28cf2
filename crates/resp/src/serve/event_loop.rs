//! An event loop: one thread that serves many clients, and commits what they write together.
//!
//! Each time the thread polls its sockets, the requests of every client that sent something are
//! executed into one write group; the group is committed once, and then the replies are sent. So
//! the write-ahead log gets one record for all, and a slow client costs others nothing.
//!
//! The thread never blocks, neither on the device nor on another thread. A request that misses the
//! caches is tried again when the kernel has [read the blocks](super::device); one for which that
//! is not enough is executed by one of a bounded number of blocking threads. The event loop goes
//! on meanwhile; only its own client waits. A commit that RocksDB has no room for at the moment
//! moves to a thread as well: until it is done, further writes are collected and reads are
//! answered. Replies about shards with copies are [held](super::held_replies) until those have what
//! the replies tell of.
//!
//! Threads: everything here belongs to the event loop's thread, but for what it moves to others.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ecotone_engine::{Arrived, Error as StoreError, with_arrived};
use tokio::sync::{Notify, Semaphore};

use super::connection::{Connection, Ended, READ_BYTES};
use super::device::{Device, Reading};
use super::forward::Forwarder;
use super::held_replies::HeldReplies;
use super::outcome::OutcomeFuture;
use super::rebalancing::Balancer;
use crate::service::Service;
use ecotone_keyspace::{Blocking, CommitError, Committed, ShardSet, Unsynced, WriteGroup};

/// A group that has grown to this is committed before it grows further.
const GROUP_BYTES: usize = 1024 * 1024;

/// Shorter rests are put off: the clock of the timer has milliseconds.
const MIN_REST: Duration = Duration::from_millis(2);

/// No client rests for longer at a time.
const MAX_REST: Duration = Duration::from_millis(100);

/// So often a round waits for the kernel to read before a thread is to wait: a lookup misses a
/// block of keys and then the value; rarely, blocks of a filter or an index before.
const MAX_READS: usize = 4;

/// One in so many of the blocking threads is reserved for reads: if all of them waited for one
/// client's latch, neither cold reads nor health checks would be served.
const READING_SHARE: usize = 4;

/// One thread's clients and what they write.
pub(super) struct EventLoop {
    pub(super) service: Arc<Service>,
    group: RefCell<WriteGroup>,
    /// Of what is in `group`.
    commit: RefCell<Rc<CommitFuture>>,
    wants_commit: Notify,
    /// A commit is under way on another thread.
    is_committing: Cell<bool>,
    /// The group could not be committed without waiting: it is to be moved to a blocking thread,
    /// and not tried again.
    is_stalled: Cell<bool>,
    /// Written or read, and to be synced before the replies are sent.
    unsynced: RefCell<Vec<(Rc<CommitFuture>, Option<Unsynced>)>>,
    wants_sync: Notify,
    /// Replies that wait for copies.
    held: Rc<HeldReplies>,
    device: Rc<Device>,
    /// For each of the threads that may wait for a latch: the others are for reads.
    latch_waits: Semaphore,
    /// Other servers that are asked for clients.
    forwarder: Forwarder,
    /// Decides whether a client moves to another event loop.
    pub(super) balancer: Arc<Balancer>,
    /// Clients of this event loop.
    pub(super) clients: Arc<AtomicUsize>,
    /// Where sockets are read into. Empty while sockets are polled.
    pub(super) scratch: RefCell<Box<[u8]>>,
}

/// Stands for a group until it is committed.
type CommitFuture = OutcomeFuture<CommitError>;

/// While it is there, one connection more is counted as waiting.
struct Waits<'a>(&'a AtomicUsize);

impl<'a> Waits<'a> {
    fn of(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl EventLoop {
    pub(super) fn new(
        service: Arc<Service>,
        balancer: Arc<Balancer>,
        clients: Arc<AtomicUsize>,
        uses_io_uring: bool,
        blocking_threads: usize,
    ) -> Rc<Self> {
        Rc::new(Self {
            group: RefCell::new(WriteGroup::new(service.keyspace.clone())),
            service,
            commit: RefCell::default(),
            wants_commit: Notify::new(),
            is_committing: Cell::new(false),
            is_stalled: Cell::new(false),
            unsynced: RefCell::default(),
            wants_sync: Notify::new(),
            held: Rc::default(),
            device: Rc::new(if uses_io_uring { Device::new() } else { Device::default() }),
            latch_waits: Semaphore::new(threads_for_latches(blocking_threads)),
            forwarder: Forwarder::default(),
            balancer,
            clients,
            scratch: RefCell::new(vec![0; READ_BYTES].into_boxed_slice()),
        })
    }

    /// Carries out what has come on `connection` by `began`, which is now, and returns when its
    /// replies may be sent.
    pub(super) async fn round(
        self: &Rc<Self>,
        connection: Box<Connection>,
        began: Instant,
    ) -> (Box<Connection>, Ended) {
        let (mut connection, ended) = self.own_round(connection, began).await;
        // Behind the last commit and the last read, before other servers are asked.
        let conditions = connection.hold(&self.held);
        let (mut connection, ended) = self.forward(connection, ended).await;
        if !conditions.is_empty() {
            let _waits = Waits::of(&self.service.statistics.awaiting_copies);
            let mut outcomes = Vec::with_capacity(conditions.len());
            for condition in conditions {
                let outcome = condition.reached.outcome().await;
                outcomes.push((condition, outcome));
            }
            connection.let_go(&self.service, &outcomes);
        }
        (connection, ended)
    }

    /// Has other servers carry out what comes next, if it is theirs.
    async fn forward(&self, mut connection: Box<Connection>, ended: Ended) -> (Box<Connection>, Ended) {
        if ended != Ended::Elsewhere {
            return (connection, ended);
        }
        let taken = connection.take_forwarded(&self.service);
        let client = connection.client.info.clone();
        let view = connection.client.seen(&self.service.cluster).view().clone();
        let awaited = self.forwarder.send(&self.service, &view, &client, taken).await;
        for reply in awaited {
            let reply = reply.answer().await;
            connection.forwarded(&self.service, reply.as_ref().map(|reply| reply.bytes()).map_err(String::as_str));
        }
        // What comes behind is carried out when these replies are sent.
        (connection, Ended::Full)
    }

    async fn own_round(self: &Rc<Self>, mut connection: Box<Connection>, began: Instant) -> (Box<Connection>, Ended) {
        let (mut has_released, mut reads, mut began) = (false, 0, began);
        let mut arrived = Vec::new();
        loop {
            let may_read = reads < MAX_READS;
            let (ended, reading) = self.carry_out(&mut connection, began, may_read, &mut arrived).await;
            match (ended, reading) {
                (Ended::Empty | Ended::Full | Ended::Elsewhere | Ended::Closes, _) => return (connection, ended),
                (_, Some(reading)) => {
                    // What came before may be asked for once more, beside this.
                    arrived.extend(self.until_read(reading).await);
                    reads += 1;
                }
                (Ended::Latched, _) if !has_released => {
                    // Two event loops may each have what the other needs: what this one has is
                    // given back before the second try.
                    self.release().await;
                    has_released = true;
                }
                (Ended::ReadWouldBlock, _) => {
                    // A thread has no use for it.
                    drop(arrived);
                    // Not behind a commit: that may be held up, and nothing of it is to be read.
                    let (back, ended) = self.round_that_reads(connection).await;
                    if ended != Ended::Latched {
                        return (back, ended);
                    }
                    // It turned out to need a latch, which another client holds.
                    return self.round_that_waits(back).await;
                }
                (Ended::Latched | Ended::WouldBlock, _) => {
                    drop(arrived);
                    return self.round_that_waits(connection).await;
                }
            }
            began = Instant::now();
        }
    }

    async fn until_read(&self, reading: Reading) -> Vec<Arrived> {
        self.service.statistics.reads_awaited.fetch_add(1, Ordering::Relaxed);
        let _waits = self.waits();
        reading.over().await
    }

    /// One try, with what has `arrived` for it, and the commit of what it wrote. What it did not
    /// find in memory is being read then, if it `may_read`.
    async fn carry_out(
        &self,
        connection: &mut Connection,
        began: Instant,
        may_read: bool,
        arrived: &mut Vec<Arrived>,
    ) -> (Ended, Option<Reading>) {
        // Of the group that the requests go into, whoever commits it.
        let commit = self.commit.borrow().clone();
        // A transaction meets what it misses one by one, and all of it anew each time.
        let may_note = may_read && connection.client.transaction.is_none();
        let carry_out = || connection.round(&self.service, &mut self.group.borrow_mut(), Blocking::Never);
        let (ended, missed) = match may_note {
            true => self.device.noting_missed(arrived, carry_out),
            false => (with_arrived(arrived, carry_out), Vec::new()),
        };
        let may_read = may_note && connection.client.transaction.is_none();
        let reading = match ended {
            Ended::ReadWouldBlock | Ended::WouldBlock if may_read => self.device.read(missed),
            _ => {
                // What is waited for below may take long, and these are descriptors.
                drop(missed);
                None
            }
        };
        if connection.depends() {
            if self.group.borrow().bytes() >= GROUP_BYTES {
                self.try_commit();
            }
            self.wants_commit.notify_one();
            let outcome = commit.outcome().await;
            connection.committed(&self.service, &outcome);
            self.rest(connection, began).await;
        } else {
            let holds_any = {
                let mut group = self.group.borrow_mut();
                group.rest();
                group.holds_any()
            };
            if holds_any {
                // Latches of commands that only read, or wrote nothing.
                self.wants_commit.notify_one();
            }
            if connection.may_tell_unsynced(&self.service) {
                let read = if holds_any { commit } else { self.read_unsynced() };
                // Where it fails, writers get the error, and all later writes fail.
                let _ = read.outcome().await;
            }
        }
        (ended, reading)
    }

    /// Represents what was read and is to be synced before the replies are sent.
    fn read_unsynced(&self) -> Rc<CommitFuture> {
        let read = Rc::<CommitFuture>::default();
        self.unsynced.borrow_mut().push((read.clone(), None));
        self.wants_sync.notify_one();
        read
    }

    /// Waits until the latches that this event loop holds now are free. The outcome of the writes
    /// under them goes to their clients.
    async fn release(&self) {
        {
            let group = self.group.borrow();
            if group.is_empty() && !group.holds_any() {
                return;
            }
        }
        let commit = self.commit.borrow().clone();
        self.wants_commit.notify_one();
        let _ = commit.outcome().await;
    }

    /// Throttles a client that has written, where the store requires it, with no latch held and
    /// without delaying others.
    async fn rest(&self, connection: &mut Connection, began: Instant) {
        let written = std::mem::take(&mut connection.written);
        let throttled = self.service.keyspace.throttled(written);
        if let Some(store) = &throttled {
            connection.owed_rest += store.throttle_delay(began.elapsed());
        }
        // Nobody who closes it waits for who rests.
        let throttled = throttled.map(|store| Arc::downgrade(&store));
        if connection.owed_rest >= MIN_REST {
            let rest = Instant::now();
            tokio::time::sleep(connection.owed_rest.min(MAX_REST)).await;
            let rested = rest.elapsed();
            // What is owed from before is told of the store that is throttled now.
            if let Some(store) = throttled.and_then(|store| store.upgrade()) {
                store.was_throttled(rested);
            }
            connection.owed_rest = connection.owed_rest.saturating_sub(rested);
        }
    }

    /// On a thread that may wait, but for no latch.
    async fn round_that_reads(&self, connection: Box<Connection>) -> (Box<Connection>, Ended) {
        let _waits = self.waits();
        self.on_thread(connection, Connection::reading_round).await
    }

    /// On one of the threads that may wait for a latch.
    async fn round_that_waits(&self, connection: Box<Connection>) -> (Box<Connection>, Ended) {
        connection.client.info.is_blocking.store(true, Ordering::Relaxed);
        // The thread that waits may need a latch that this event loop has, also that of the command
        // itself.
        self.release().await;
        let _waits = self.waits();
        // It is never closed.
        let _one_of_them = self.latch_waits.acquire().await;
        let round = |connection: &mut Connection, service: &Service, group: &mut WriteGroup| {
            let mut ended = connection.round(service, group, Blocking::Allowed);
            while ended == Ended::Latched {
                // With no latch held it waits for the one it needs.
                let outcome = group.commit(Blocking::Allowed).map(drop);
                connection.committed(service, &outcome);
                ended = connection.round(service, group, Blocking::Allowed);
            }
            ended
        };
        self.on_thread(connection, round).await
    }

    fn waits(&self) -> Waits<'_> {
        Waits::of(&self.service.statistics.waiting)
    }

    async fn on_thread(
        &self,
        mut connection: Box<Connection>,
        round: impl FnOnce(&mut Connection, &Service, &mut WriteGroup) -> Ended + Send + 'static,
    ) -> (Box<Connection>, Ended) {
        connection.client.info.is_blocking.store(true, Ordering::Relaxed);
        let service = self.service.clone();
        service.statistics.blocking_requests.fetch_add(1, Ordering::Relaxed);
        let done = tokio::task::spawn_blocking(move || {
            let mut group = WriteGroup::new(service.keyspace.clone());
            let ended = round(&mut connection, &service, &mut group);
            let outcome = group.commit(Blocking::Allowed).map(drop);
            connection.committed(&service, &outcome);
            if connection.may_tell_unsynced(&service) {
                // As in an event loop.
                let _ = service.keyspace.sync_unsynced();
            }
            (connection, ended)
        })
        .await;
        match done {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        }
    }

    /// Commits now, before others of this turn had their chance. `false`: it cannot be done without
    /// waiting.
    fn try_commit(&self) -> bool {
        if self.is_committing.get() || self.is_stalled.get() {
            return false;
        }
        let mut group = self.group.borrow_mut();
        // Also where there is nothing to commit: waiting for the commit must not mean waiting for
        // the writes of others.
        match group.commit(Blocking::Never) {
            Err(CommitError { error: StoreError::WouldBlock, .. }) => {
                self.is_stalled.set(true);
                false
            }
            outcome => {
                drop(group);
                let commit = self.commit.take();
                match outcome {
                    // What was written, or only read by commands that could have.
                    Ok(Committed { unsynced }) if unsynced.is_some() || self.service.keyspace.has_unsynced() => {
                        self.unsynced.borrow_mut().push((commit, unsynced));
                        self.wants_sync.notify_one();
                    }
                    outcome => commit.finish(outcome.map(drop)),
                }
                true
            }
        }
    }

    /// Lets go replies as copies have what they wait for, for ever.
    pub(super) fn let_go_replies(&self) -> impl Future<Output = ()> + use<> {
        self.held.clone().let_go()
    }

    /// Begins reads of the device, for ever.
    pub(super) fn begin_reads(&self) -> impl Future<Output = ()> + use<> {
        self.device.clone().begin_reads()
    }

    /// Ends reads of the device as they are over, for ever.
    pub(super) fn end_reads(&self) -> impl Future<Output = ()> + use<> {
        self.device.clone().end_reads()
    }

    /// Commits the groups of this event loop, for ever.
    pub(super) async fn commit_groups(self: Rc<Self>) {
        loop {
            self.wants_commit.notified().await;
            // After all requests of this turn.
            tokio::task::yield_now().await;
            if self.try_commit() {
                continue;
            }
            self.is_committing.set(true);
            self.is_stalled.set(false);
            let next = WriteGroup::new(self.service.keyspace.clone());
            let mut group = self.group.replace(next);
            let commit = self.commit.take();
            let outcome = on_own_thread("ecotone-commit", move || group.commit(Blocking::Allowed).map(drop)).await;
            self.is_committing.set(false);
            commit.finish(outcome);
            // For what was written meanwhile.
            self.wants_commit.notify_one();
        }
    }

    /// Syncs what the groups of this event loop wrote, for ever. Those that come while one sync is
    /// under way share the next.
    pub(super) async fn sync_groups(self: Rc<Self>) {
        loop {
            self.wants_sync.notified().await;
            let commits = self.unsynced.take();
            if commits.is_empty() {
                continue;
            }
            let keyspace = self.service.keyspace.clone();
            let sync = move || keyspace.sync_unsynced().map_err(failed_everywhere);
            let outcome = on_own_thread("ecotone-sync", sync).await;
            for (commit, unsynced) in commits {
                drop(unsynced);
                commit.finish(outcome.clone());
            }
            self.wants_sync.notify_one();
        }
    }
}

/// How many of so many threads may wait for latches.
fn threads_for_latches(blocking_threads: usize) -> usize {
    blocking_threads.saturating_sub((blocking_threads / READING_SHARE).max(1)).max(1)
}

/// Runs work that others wait for on a thread of its own: in the pool of blocking threads it could
/// queue behind those that wait for it. There is one for each event loop and purpose at a time.
async fn on_own_thread(
    name: &str,
    work: impl FnOnce() -> Result<(), CommitError> + Send + 'static,
) -> Result<(), CommitError> {
    let (sender, done) = tokio::sync::oneshot::channel();
    let started = std::thread::Builder::new().name(name.into()).spawn(move || _ = sender.send(work()));
    if let Err(error) = started {
        return Err(failed_everywhere(StoreError::Busy { detail: format!("the system gives no thread: {error}") }));
    }
    let panicked = || StoreError::Background { detail: "a commit panicked; what became of it is not known".into() };
    done.await.unwrap_or_else(|_| Err(failed_everywhere(panicked())))
}

/// Of which store it is is not known, or makes no difference.
fn failed_everywhere(error: StoreError) -> CommitError {
    CommitError { error, failed: ShardSet::ALL }
}
