//! The thread that owns the node, and the one that owns its log.
//!
//! Events reach the node through one bounded channel; when it is full, messages of other servers
//! are dropped (Raft sends them again) and proposals are answered "busy". The log's thread writes
//! what it is given in order and says how far it has come by a number, so that neither ever waits
//! for the other but where the disk is a thousand writes behind.
//!
//! Failure modes: when a write fails, or raft panics, this server takes no part ([`Known::stopped`]
//! says why), and every [`RESTART_DELAY`] begins anew with what its log holds, as after a start. A
//! log that is damaged, and an entry that this build cannot read, end its part until the next start.

use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ecotone_control::Snapshot;
use ecotone_control::entry::Proposal;
use ecotone_control::ids::MemberId;
use ecotone_control::log::{self, Identity, Log, LogError, Records};
use ecotone_control::node::{Command, Event, Node, NotProposed, TICK_MS};
use ecotone_raftlog::Directory;
use ecotone_transport::security::Security;
use tokio::sync::{oneshot, watch};
use tracing::{error, info, warn};

use crate::error::{Error, Result};
use crate::events::{Answer, Backlog, Events, Input, MAX_WAITING_EVENTS};
use crate::folder::{self, Opened};
use crate::known::{Known, known_of};
use crate::outbox::Outboxes;

/// Steps that wait for the disk. When there are more the node waits, too.
const MAX_UNWRITTEN_STEPS: usize = 1024;
/// The time between two ticks of the node.
const TICK: Duration = Duration::from_millis(TICK_MS);
/// After a failure it is tried so much later to begin anew.
const RESTART_DELAY: Duration = Duration::from_secs(5);
/// Ticks between two looks at what changes without an entry: who is gone.
const LOOK_TICKS: u64 = 20;

/// The node's thread. Ends when this is dropped.
pub(crate) struct Driver {
    events: SyncSender<Input>,
    backlog: Arc<Backlog>,
    known: watch::Receiver<Arc<Known>>,
    /// The number of who speaks of another history of this generation, if somebody does.
    other_history: Arc<AtomicU64>,
    thread: parking_lot::Mutex<Option<JoinHandle<()>>>,
}

impl Driver {
    /// Starts the threads.
    pub(crate) fn start(
        opened: Opened,
        path: PathBuf,
        known: watch::Sender<Arc<Known>>,
        security: Arc<Security>,
        outboxes: impl FnOnce(Events) -> Outboxes,
    ) -> Result<Driver> {
        let (sender, receiver) = sync_channel(MAX_WAITING_EVENTS);
        let events = Events(sender.clone());
        let node = opened.node()?;
        let identity = opened.content.identity;
        let log = LogThread::start(opened.log, events.clone())?;
        let outboxes = outboxes(events.clone());
        let following = known.subscribe();
        let other_history = Arc::new(AtomicU64::new(0));
        let mut worker = Worker {
            node,
            identity,
            path,
            other_history: other_history.clone(),
            log: Some(log),
            events,
            known,
            security,
            outboxes,
            answers: HashMap::new(),
            next_answer: 0,
            written: 0,
            ticks: 0,
        };
        let thread = thread::Builder::new()
            .name("ecotone-control".into())
            .spawn(move || {
                while let Err(ended) = guarded(|| worker.run(&receiver)) {
                    if !worker.rest(&receiver, ended) {
                        break;
                    }
                }
                // The log is closed when this thread has ended, for whoever opens it next.
                worker.close_log();
            })
            .map_err(|source| Error::Thread { what: "the control plane", source })?;
        let backlog = Arc::default();
        Ok(Driver {
            events: sender,
            backlog,
            known: following,
            other_history,
            thread: parking_lot::Mutex::new(Some(thread)),
        })
    }

    /// What is known now, and a way to wait for news.
    pub(crate) fn known(&self) -> watch::Receiver<Arc<Known>> {
        self.known.clone()
    }

    /// Who has spoken of another history of this generation.
    pub(crate) fn other_history(&self) -> Option<MemberId> {
        Some(MemberId(self.other_history.load(Ordering::Relaxed))).filter(|member| member.0 != 0)
    }

    /// Passes a message of another server on, if it has not too many that wait.
    pub(crate) fn receive(&self, from: MemberId, bytes: Vec<u8>) {
        if let Some(place) = self.backlog.admit(from, &bytes) {
            let _ = self.events.try_send(Input::Receive { from, bytes, place });
        }
    }

    /// Asks this server's node for a change.
    pub(crate) async fn propose(&self, proposal: Proposal) -> Answer {
        let (answer, decided) = oneshot::channel();
        match self.events.try_send(Input::Propose { proposal, answer }) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => return Err(NotProposed::Busy),
        }
        // The node answers, or is over: then it may have told others of it.
        decided.await.map_err(|_| NotProposed::Stopped(UNANSWERED.into()))?
    }
}

impl Driver {
    /// Ends the thread, whoever else has this still: when it returns the log is closed.
    pub(crate) fn stop(&self) {
        let Some(thread) = self.thread.lock().take() else { return };
        let _ = self.events.send(Input::Stop);
        if thread.join().is_err() {
            error!("the control plane's thread panicked");
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Why nobody has answered a proposal.
pub(crate) const UNANSWERED: &str = "it ended before this was decided";

/// Why the node does not go on.
#[derive(Debug)]
enum Ended {
    /// It may, a little later.
    ForNow(String),
    /// Not before something is changed.
    ForGood(String),
}

/// What is wrong with a log. Nothing helps where it is damaged.
fn log_ended(error: &LogError) -> Ended {
    match error {
        LogError::Storage(_) => Ended::ForNow(error.to_string()),
        LogError::Damaged { .. } | LogError::Missing { .. } | LogError::Exists(_) => Ended::ForGood(error.to_string()),
    }
}

/// Does this, and takes a panic for an error: raft panics where memory and messages contradict each
/// other, and the thread must not end without a word.
fn guarded(work: impl FnOnce() -> std::result::Result<(), Ended>) -> std::result::Result<(), Ended> {
    let says = |panic: &(dyn Any + Send)| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        Ended::ForNow(format!("it panicked: {}", text.unwrap_or("without a text")))
    };
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(says(panic.as_ref())))
}

/// What has passed, in ticks. The thread sleeps over ticks at which its node does nothing
/// ([`Node::quiet_ticks`]), and ticks as often at once when something else wakes it, or when one is
/// due at which the node acts.
struct Clock {
    /// When the last tick was due.
    ticked: Instant,
}

impl Clock {
    /// How long nothing is to be done; none if a tick is due at which the node acts.
    fn until_tick(&self, quiet: u64, now: Instant) -> Option<Duration> {
        let due = self.ticked + TICK * u32::try_from(quiet).unwrap_or(u32::MAX);
        due.checked_duration_since(now).filter(|wait| !wait.is_zero())
    }

    /// How often to tick now. With a message, never so often that the node acts before it has looked
    /// at the message. After a pause of this process the time that passed counts for as long as the
    /// node was quiet, and it acts a tick later: messages that have waited are taken before.
    fn pass(&mut self, quiet: u64, now: Instant, has_message: bool) -> u64 {
        let passed = u64::try_from(now.saturating_duration_since(self.ticked).as_micros()).unwrap_or(u64::MAX)
            / (TICK_MS * 1_000);
        let most = if has_message || passed > quiet && quiet > 1 { quiet - 1 } else { quiet };
        let ticks = passed.min(most);
        let is_late = passed > quiet || has_message && passed > most;
        let on_time = self.ticked + TICK * u32::try_from(ticks).unwrap_or(u32::MAX);
        self.ticked = if is_late { now } else { on_time };
        ticks
    }
}

struct Worker {
    node: Node,
    identity: Identity,
    /// The folder of the log.
    path: PathBuf,
    other_history: Arc<AtomicU64>,
    log: Option<LogThread>,
    /// For its log's next thread.
    events: Events,
    known: watch::Sender<Arc<Known>>,
    /// Hears whether others refuse this server.
    security: Arc<Security>,
    outboxes: Outboxes,
    answers: HashMap<u64, oneshot::Sender<Answer>>,
    next_answer: u64,
    written: u64,
    ticks: u64,
}

impl Worker {
    fn run(&mut self, receiver: &Receiver<Input>) -> std::result::Result<(), Ended> {
        let mut clock = Clock { ticked: Instant::now() };
        loop {
            let quiet = self.node.quiet_ticks();
            let input = match clock.until_tick(quiet, Instant::now()) {
                Some(wait) => match receiver.recv_timeout(wait) {
                    Ok(input) => Some(input),
                    Err(RecvTimeoutError::Timeout) => continue,
                    Err(RecvTimeoutError::Disconnected) => return Ok(()),
                },
                None => None,
            };
            // The time before a message came first: what it says counts from now on.
            let ticks = clock.pass(quiet, Instant::now(), input.is_some());
            let mut is_news = self.tick(ticks)?;
            is_news |= match input {
                Some(Input::Receive { from, bytes, place }) => {
                    drop(place);
                    self.handle(Event::Receive { from, bytes })?
                }
                Some(Input::Unreachable(member)) => self.handle(Event::Unreachable(member))?,
                Some(Input::Propose { proposal, answer }) => {
                    self.next_answer += 1;
                    // Who has stopped waiting needs no answer.
                    self.answers.retain(|_, waiting| !waiting.is_closed());
                    self.answers.insert(self.next_answer, answer);
                    self.handle(Event::Propose { id: self.next_answer, proposal })?
                }
                Some(Input::Written) => self.look_at_log()?,
                Some(Input::Stop) => return Ok(()),
                None => false,
            };
            if is_news {
                self.publish();
            }
        }
    }

    /// Ticks so often. Whether there is something to publish.
    fn tick(&mut self, ticks: u64) -> std::result::Result<bool, Ended> {
        if ticks == 0 {
            return Ok(false);
        }
        let looks = self.ticks / LOOK_TICKS;
        self.ticks += ticks;
        // It may have found no place in the channel.
        let mut is_news = self.look_at_log()?;
        for _ in 0..ticks {
            is_news |= self.handle(Event::Tick)?;
        }
        Ok(is_news || self.ticks / LOOK_TICKS > looks)
    }

    /// Tells the node how far its log is durable.
    fn look_at_log(&mut self) -> std::result::Result<bool, Ended> {
        let Some(log) = &self.log else { return Ok(false) };
        if let Some(error) = log.failure() {
            return Err(Ended::ForNow(error));
        }
        let written = log.written.load(Ordering::Acquire);
        if written <= self.written {
            return Ok(false);
        }
        self.written = written;
        self.handle(Event::Persisted(written))
    }

    /// Whether there is something to publish.
    fn handle(&mut self, event: Event) -> std::result::Result<bool, Ended> {
        let mut commands = Vec::new();
        self.node.handle(event, &mut commands).map_err(|error| Ended::ForGood(error.to_string()))?;
        let mut is_news = false;
        for command in commands {
            match command {
                Command::Persist { number, records } => self.write(Some(number), records)?,
                Command::Compact(records) => self.write(None, records)?,
                Command::Send { to, bytes } => self.outboxes.send(to, bytes),
                Command::Applied { .. } | Command::MapReplaced => is_news = true,
                Command::Decided { id, index, outcome } => {
                    // Whoever is answered finds what it asked for in the map.
                    self.publish();
                    self.answer(id, Ok((index, outcome)));
                }
                Command::NotProposed { id, why } => self.answer(id, Err(why)),
                Command::Leader { leader, term } => {
                    info!(leader = leader.map(|leader| leader.0), term, "another server leads the federation, or none");
                    is_news = true;
                }
                Command::NewGeneration { identity, snapshot, from, bytes } => {
                    self.begin_generation(identity, *snapshot)?;
                    // The new node answers: its leader waits for that.
                    self.handle(Event::Receive { from, bytes })?;
                    is_news = true;
                }
            }
        }
        Ok(is_news)
    }

    fn answer(&mut self, id: u64, answer: Answer) {
        if let Some(waiting) = self.answers.remove(&id) {
            let _ = waiting.send(answer);
        }
    }

    fn write(&self, number: Option<u64>, records: Records) -> std::result::Result<(), Ended> {
        let Some(log) = &self.log else { return Err(Ended::ForNow("there is no log".into())) };
        log.steps
            .send((number, records))
            .map_err(|_| Ended::ForNow(log.failure().unwrap_or_else(|| "the log's thread is gone".into())))
    }

    /// The federation was begun anew by force, and its leader has sent what it has: what this server
    /// has is kept aside, and it learns.
    fn begin_generation(&mut self, identity: Identity, snapshot: Snapshot) -> std::result::Result<(), Ended> {
        warn!(
            from = self.identity.generation,
            to = identity.generation,
            history = %identity.history,
            "the federation was begun anew by force; this server takes the new history"
        );
        let Some(log) = self.log.take() else { return Err(Ended::ForNow("there is no log".into())) };
        let storage = log.stop().map_err(Ended::ForNow)?.into_storage();
        let (log, content) = log::begin_generation(storage, identity, snapshot).map_err(|error| log_ended(&error))?;
        self.go_on_with(Opened { log, content })
    }

    /// Begins the node anew with the log in the server's folder.
    fn reopen(&mut self) -> std::result::Result<(), Ended> {
        let mut opened = folder::open(&self.path).map_err(|error| match &error {
            Error::Log { source, .. } => log_ended(source),
            other => Ended::ForGood(other.to_string()),
        })?;
        opened.log.write_anew(&opened.content).map_err(|error| log_ended(&error))?;
        self.go_on_with(opened)
    }

    fn go_on_with(&mut self, opened: Opened) -> std::result::Result<(), Ended> {
        self.node = opened.node().map_err(|error| Ended::ForGood(error.to_string()))?;
        self.identity = opened.content.identity;
        self.written = 0;
        self.answers.clear();
        let log = LogThread::start(opened.log, self.events.clone());
        self.log = Some(log.map_err(|error| Ended::ForNow(error.to_string()))?);
        Ok(())
    }

    fn close_log(&mut self) {
        if let Some(Err(error)) = self.log.take().map(LogThread::stop) {
            warn!(%error, "the control plane's log was not closed cleanly");
        }
    }

    /// Takes no part until it can begin anew; `false` when the server stops before.
    fn rest(&mut self, receiver: &Receiver<Input>, ended: Ended) -> bool {
        self.close_log();
        let (mut why, mut is_for_good) = match ended {
            Ended::ForNow(why) => (why, false),
            Ended::ForGood(why) => (why, true),
        };
        error!(%why, is_for_good, "this server takes no part in the control plane; it goes on by the last map that it has");
        self.stop(why.clone());
        let mut next = Instant::now() + RESTART_DELAY;
        loop {
            match receiver.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(Input::Stop) | Err(RecvTimeoutError::Disconnected) => return false,
                Ok(Input::Propose { answer, .. }) => {
                    let _ = answer.send(Err(NotProposed::Stopped(why.clone())));
                }
                Ok(Input::Receive { .. } | Input::Unreachable(_) | Input::Written) => {}
                Err(RecvTimeoutError::Timeout) => {
                    next = Instant::now() + RESTART_DELAY;
                    let mut begun = Ok(());
                    if !is_for_good {
                        begun = guarded(|| self.reopen());
                        if begun.is_ok() {
                            info!("this server takes part in the control plane again");
                            self.publish();
                            return true;
                        }
                        self.close_log();
                    }
                    if let Err(Ended::ForNow(now) | Ended::ForGood(now)) = &begun {
                        is_for_good = matches!(begun, Err(Ended::ForGood(_)));
                        if *now != why {
                            error!(why = %now, is_for_good, "the control plane does not begin anew");
                            why.clone_from(now);
                            self.stop(why.clone());
                        }
                    }
                }
            }
        }
    }

    fn publish(&self) {
        if let Some(other) = self.node.other_history()
            && self.other_history.swap(other.0, Ordering::Relaxed) != other.0
        {
            error!(
                %other,
                generation = self.identity.generation,
                "another server speaks of another history of this generation: the federation was begun anew by force on \
                 two servers; stop one of the two, and let it join anew"
            );
        }
        let (node, known) = (&self.node, &self.known);
        known.send_if_modified(|there| {
            // A node that has just begun applies again what was known from its log.
            let is_known = there.applied >= node.applied() && there.map.generation == node.map().generation;
            let map = if is_known { there.map.clone() } else { Arc::new(node.map().clone()) };
            let mut now = Known { told_removed: self.security.was_refused_as_removed(), ..known_of(node, map) };
            if is_known {
                now.applied = there.applied;
            }
            let is_news = **there != now;
            if is_news {
                *there = Arc::new(now);
            }
            is_news
        });
    }

    fn stop(&mut self, why: String) {
        for (_, waiting) in self.answers.drain() {
            let _ = waiting.send(Err(NotProposed::Stopped(UNANSWERED.into())));
        }
        self.known.send_modify(|known| {
            let stopped = Known { leader: None, stopped: Some(why), ..Known::clone(known) };
            *known = Arc::new(stopped);
        });
    }
}

/// The thread that writes the log.
struct LogThread {
    steps: SyncSender<(Option<u64>, Records)>,
    /// The last step that is durable.
    written: Arc<AtomicU64>,
    failed: Arc<parking_lot::Mutex<Option<String>>>,
    thread: JoinHandle<Log<Directory>>,
}

impl LogThread {
    fn start(mut log: Log<Directory>, events: Events) -> Result<LogThread> {
        let (steps, given) = sync_channel::<(Option<u64>, Records)>(MAX_UNWRITTEN_STEPS);
        let (written, failed) = (Arc::new(AtomicU64::new(0)), Arc::new(parking_lot::Mutex::new(None)));
        let (progress, failure) = (written.clone(), failed.clone());
        let thread = thread::Builder::new().name("ecotone-raftlog".into()).spawn(move || {
            while let Ok((number, records)) = given.recv() {
                if let Err(error) = log.persist(&records) {
                    *failure.lock() = Some(error.to_string());
                    events.offer(Input::Written);
                    break;
                }
                if let Some(number) = number {
                    progress.store(number, Ordering::Release);
                    // If it does not fit the node is awake, and looks soon: at the next tick's latest.
                    events.offer(Input::Written);
                }
            }
            log
        });
        let thread = thread.map_err(|source| Error::Thread { what: "the control plane's log", source })?;
        Ok(LogThread { steps, written, failed, thread })
    }

    fn failure(&self) -> Option<String> {
        self.failed.lock().clone()
    }

    fn stop(self) -> std::result::Result<Log<Directory>, String> {
        drop(self.steps);
        let log = self.thread.join().map_err(|_| "the log's thread panicked".to_owned())?;
        match self.failed.lock().take() {
            Some(failed) => Err(failed),
            None => Ok(log),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock that ticked last at the instant that is returned.
    fn clock() -> (Clock, Instant) {
        let ticked = Instant::now();
        (Clock { ticked }, ticked)
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_clock_sleeps_over_quiet_ticks_and_makes_up_for_them() {
        let (mut clock, began) = clock();
        assert_eq!(clock.until_tick(4, began), Some(ms(100)));
        assert_eq!(clock.until_tick(4, began + ms(99)), Some(ms(1)));
        assert_eq!(clock.until_tick(4, began + ms(100)), None);
        assert_eq!(clock.pass(4, began + ms(103), false), 4);
        assert_eq!(clock.until_tick(4, began + ms(103)), Some(ms(97)), "late wakes do not add up");
    }

    #[test]
    fn a_message_counts_from_when_it_came() {
        let (mut clock, began) = clock();
        assert_eq!(clock.pass(20, began + ms(260), true), 10, "what has passed before it");
        assert_eq!(clock.until_tick(20, began + ms(260)), Some(ms(490)));
        // It came when the node was about to act: the message first.
        assert_eq!(clock.pass(3, began + ms(326), true), 2);
        assert_eq!(clock.until_tick(1, began + ms(326)), Some(ms(25)));
        assert_eq!(clock.pass(1, began + ms(330), true), 0);
        assert_eq!(clock.pass(1, began + ms(351), false), 1, "then it acts, whatever comes");
    }

    #[test]
    fn after_a_pause_messages_come_before_the_node_acts() {
        let (mut clock, began) = clock();
        let woke = began + ms(10_000);
        assert_eq!(clock.until_tick(8, woke), None);
        assert_eq!(clock.pass(8, woke, false), 7, "not what would begin an election");
        assert_eq!(clock.until_tick(1, woke), Some(ms(25)));
        assert_eq!(clock.pass(1, woke + ms(25), false), 1);
        assert_eq!(clock.pass(1, woke + ms(9_000), false), 1, "a pause counts for one tick");
        assert_eq!(clock.until_tick(1, woke + ms(9_000)), Some(ms(25)));
    }

    #[test]
    fn a_flood_of_messages_does_not_stop_time() {
        let (mut clock, began) = clock();
        let (mut acted, mut quiet) = (0, 4);
        for at in (0..1_000).map(|step| began + ms(step)) {
            let ticks = clock.pass(quiet, at, clock.until_tick(quiet, at).is_some());
            acted += u64::from(ticks == quiet);
            quiet = if ticks == quiet { 4 } else { quiet - ticks };
        }
        assert!((9..=10).contains(&acted), "{acted} in a second");
    }

    #[test]
    fn a_panic_is_an_error_that_says_what_it_was() {
        let panics = || guarded(|| panic!("to_commit {} is out of range", 7));
        assert!(matches!(panics(), Err(Ended::ForNow(why)) if why.contains("to_commit 7 is out of range")));
        assert!(matches!(guarded(|| Err(Ended::ForGood("no".into()))), Err(Ended::ForGood(_))));
        assert!(guarded(|| Ok(())).is_ok());
    }
}
