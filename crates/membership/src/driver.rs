//! The thread that owns the node, and the one that owns its log.
//!
//! Events reach the node through one bounded channel; when it is full, messages of other servers
//! are dropped (Raft sends them again) and proposals are answered "busy". The log's thread writes
//! what it is given in order and says how far it has come by a number, so that neither ever waits
//! for the other but where the disk is a thousand writes behind.
//!
//! Failure modes: a write that fails, or an entry that this build cannot read, ends this server's
//! part ([`Known::stopped`] says why); its log is read anew by the next start.

use std::collections::HashMap;
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
use crate::events::{Answer, Events, Input, MAX_WAITING_EVENTS};
use crate::folder::Opened;
use crate::known::{Known, known_of};
use crate::outbox::Outboxes;

/// Steps that wait for the disk. When there are more the node waits, too.
const MAX_UNWRITTEN_STEPS: usize = 1024;
/// The time between two ticks of the node.
const TICK: Duration = Duration::from_millis(TICK_MS);
/// Ticks between two looks at what changes without an entry: who is gone.
const LOOK_TICKS: u64 = 20;

/// The node's thread. Ends when this is dropped.
pub(crate) struct Driver {
    events: SyncSender<Input>,
    known: watch::Receiver<Arc<Known>>,
    thread: Option<JoinHandle<()>>,
}

impl Driver {
    /// Starts the threads.
    pub(crate) fn start(
        opened: Opened,
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
        let mut worker = Worker {
            node,
            identity,
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
                if let Err(why) = worker.run(&receiver) {
                    error!(%why, "this server takes no further part in the control plane; it goes on by the last map that it has");
                    worker.stop(why);
                }
                // The log is closed when this thread has ended, for whoever opens it next.
                if let Some(Err(error)) = worker.log.take().map(LogThread::stop) {
                    warn!(%error, "the control plane's log was not closed cleanly");
                }
            })
            .map_err(|source| Error::Thread { what: "the control plane", source })?;
        Ok(Driver { events: sender, known: following, thread: Some(thread) })
    }

    /// What is known now, and a way to wait for news.
    pub(crate) fn known(&self) -> watch::Receiver<Arc<Known>> {
        self.known.clone()
    }

    /// Passes a message of another server on.
    pub(crate) fn receive(&self, from: MemberId, bytes: Vec<u8>) {
        let _ = self.events.try_send(Input::Receive { from, bytes });
    }

    /// Asks this server's node for a change.
    pub(crate) async fn propose(&self, proposal: Proposal) -> Answer {
        let (answer, decided) = oneshot::channel();
        match self.events.try_send(Input::Propose { proposal, answer }) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => return Err(NotProposed::Busy),
        }
        // The node answers, or is over.
        decided.await.unwrap_or(Err(NotProposed::Superseded))
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.events.send(Input::Stop);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            error!("the control plane's thread panicked");
        }
    }
}

struct Worker {
    node: Node,
    identity: Identity,
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
    fn run(&mut self, receiver: &Receiver<Input>) -> std::result::Result<(), String> {
        let mut next = Instant::now() + TICK;
        loop {
            let now = Instant::now();
            let is_news = if now >= next {
                // After a pause the time that passed counts as one tick.
                next = now.max(next + TICK);
                self.ticks += 1;
                // It may have found no place in the channel.
                self.look_at_log()?;
                self.handle(Event::Tick)? || self.ticks.is_multiple_of(LOOK_TICKS)
            } else {
                match receiver.recv_timeout(next - now) {
                    Ok(Input::Receive { from, bytes }) => self.handle(Event::Receive { from, bytes })?,
                    Ok(Input::Unreachable(member)) => self.handle(Event::Unreachable(member))?,
                    Ok(Input::Propose { proposal, answer }) => {
                        self.next_answer += 1;
                        // Who has stopped waiting needs no answer.
                        self.answers.retain(|_, waiting| !waiting.is_closed());
                        self.answers.insert(self.next_answer, answer);
                        self.handle(Event::Propose { id: self.next_answer, proposal })?
                    }
                    Ok(Input::Written) => self.look_at_log()?,
                    Ok(Input::Stop) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
                    Err(RecvTimeoutError::Timeout) => false,
                }
            };
            if is_news {
                self.publish();
            }
        }
    }

    /// Tells the node how far its log is durable.
    fn look_at_log(&mut self) -> std::result::Result<bool, String> {
        let Some(log) = &self.log else { return Ok(false) };
        if let Some(error) = log.failure() {
            return Err(error);
        }
        let written = log.written.load(Ordering::Acquire);
        if written <= self.written {
            return Ok(false);
        }
        self.written = written;
        self.handle(Event::Persisted(written))
    }

    /// Whether there is something to publish.
    fn handle(&mut self, event: Event) -> std::result::Result<bool, String> {
        let mut commands = Vec::new();
        self.node.handle(event, &mut commands).map_err(|error| error.to_string())?;
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
                Command::NewGeneration(generation) => {
                    self.begin_generation(generation)?;
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

    fn write(&self, number: Option<u64>, records: Records) -> std::result::Result<(), String> {
        let Some(log) = &self.log else { return Err("there is no log".into()) };
        match log.steps.send((number, records)) {
            Ok(()) => Ok(()),
            Err(_) => Err(log.failure().unwrap_or_else(|| "the log's thread is gone".into())),
        }
    }

    /// The federation was begun anew by force: what this server has is given up, and it learns.
    fn begin_generation(&mut self, generation: u64) -> std::result::Result<(), String> {
        warn!(
            from = self.identity.generation,
            to = generation,
            "the federation was begun anew by force; this server takes the new history"
        );
        let Some(log) = self.log.take() else { return Err("there is no log".into()) };
        let storage = log.stop()?.into_storage();
        let identity = Identity { generation, ..self.identity };
        let failed = |error: LogError| error.to_string();
        let (log, content) = log::begin_generation(storage, identity, Snapshot::default()).map_err(failed)?;
        let opened = Opened { log, content };
        self.node = opened.node().map_err(|error| error.to_string())?;
        self.identity = identity;
        self.written = 0;
        self.answers.clear();
        self.log = Some(LogThread::start(opened.log, self.events.clone()).map_err(|error| error.to_string())?);
        Ok(())
    }

    fn publish(&self) {
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
        self.answers.clear();
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
