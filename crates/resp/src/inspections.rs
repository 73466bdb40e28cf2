//! Inspections that clients ask for (`INSPECT`): whether all of the store is as it was written, and
//! where its bytes are.
//!
//! Invariants: at most one runs. It belongs to the client that began it, and ends with its
//! connection. What came of it is kept for that client until it asks, or for [`KEPT`]. It works for
//! half of the time at most, on a thread with the least priority.
//!
//! Failure: an inspection that cannot be made says why, and has changed nothing.
//!
//! Threads: any. An inspection has a thread of its own, which ends with it.

use std::ops::ControlFlow;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ecotone_engine::{Error as StoreError, Store};
use ecotone_inspect::{count_duplicates, verify_running};
use parking_lot::{Condvar, Mutex};
use serde_json::{Value, json};

use crate::client::ClientInfo;
use ecotone_keyspace::Keyspace;

/// What came of an inspection is kept so long for a client that does not ask, while another wants
/// to begin one.
const KEPT: Duration = Duration::from_secs(60);

/// The longest rest between two steps: who ends an inspection waits no longer for it to be seen.
const MAX_REST: Duration = Duration::from_millis(200);

/// The least priority that the kernel knows.
const NICE: i32 = 19;

/// What is to be found out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// Whether all bytes are as they were written.
    Verify,
    /// Where the bytes are.
    Space {
        /// What newer versions hide is counted, not estimated.
        exact: bool,
    },
}

impl Question {
    const fn name(self) -> &'static str {
        match self {
            Self::Verify => "verify",
            Self::Space { .. } => "space",
        }
    }
}

/// Why no inspection began.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// Another one runs, or its client has not asked for what came of it.
    #[error(
        "an inspection of client {client} is under way already; try again later, or end it with CLIENT KILL ID {client}"
    )]
    Running {
        /// Whose it is.
        client: u64,
    },
    /// An inspection is of one store.
    #[error(
        "an inspection is of one store, and this server holds {0} shards, each with one: stop the server and inspect each folder by \
         itself (`ecotone verify`, `ecotone space`)"
    )]
    NotOneStore(usize),
    /// The server stops.
    #[error("the server stops")]
    Stops,
    /// No thread could be had.
    #[error("no thread for an inspection: {0}")]
    NoThread(#[from] std::io::Error),
}

/// The inspections of one store.
#[derive(Debug, Default)]
pub struct Inspections {
    state: Mutex<State>,
    /// Told when the one that runs is to end.
    ends: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct State {
    /// The last one, until what came of it was asked for.
    last: Option<Inspection>,
    stops: bool,
}

#[derive(Debug)]
struct Inspection {
    client_id: u64,
    client: Weak<ClientInfo>,
    question: Question,
    began: Instant,
    /// What is being done, as JSON.
    doing: Value,
    wanted: bool,
    /// Whether the store is about to be closed.
    is_let_go: bool,
    store: Weak<Store>,
    /// When it ended, and what came of it.
    ended: Option<(Instant, Result<Value, String>)>,
}

impl Inspection {
    /// Whether its client is there and has not ended it.
    fn is_wanted(&self) -> bool {
        self.wanted
            && !self.is_let_go
            && self.client.upgrade().is_some_and(|client| !client.is_killed.load(std::sync::atomic::Ordering::Acquire))
    }

    /// Whether another may take its place.
    fn is_over(&self) -> bool {
        self.ended.as_ref().is_some_and(|(at, _)| !self.is_wanted() || at.elapsed() > KEPT)
    }
}

impl Inspections {
    /// Begins an inspection for `client` on a thread of its own. One of the same client that has
    /// ended is forgotten.
    ///
    /// # Errors
    ///
    /// See [`InspectError`].
    pub fn begin(
        self: &Arc<Self>,
        keyspace: &Arc<Keyspace>,
        client: &Arc<ClientInfo>,
        question: Question,
    ) -> Result<(), InspectError> {
        let store = keyspace.only_store().ok_or_else(|| InspectError::NotOneStore(keyspace.stores().count()))?;
        {
            let mut state = self.state.lock();
            if state.stops {
                return Err(InspectError::Stops);
            }
            if let Some(last) = &state.last
                && !(last.is_over() || last.ended.is_some() && last.client_id == client.id)
            {
                return Err(InspectError::Running { client: last.client_id });
            }
            state.last = Some(Inspection {
                client_id: client.id,
                client: Arc::downgrade(client),
                question,
                began: Instant::now(),
                doing: Value::Null,
                wanted: true,
                is_let_go: false,
                store: Arc::downgrade(&store),
                ended: None,
            });
        }
        let running = Running { inspections: self.clone(), outcome: None };
        let thread = std::thread::Builder::new().name("inspection".into()).spawn(move || {
            // Whether the kernel grants that or not, it is slower than who serves clients, since it
            // rests.
            let _ = rustix::process::setpriority_process(None, NICE);
            running.run(&store, question);
        });
        let thread = thread.inspect_err(|_| self.state.lock().last = None)?;
        // The one before has ended, or is about to.
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    /// How the last inspection is, as JSON. Its client is told what came of it, once.
    pub fn status(&self, client: &ClientInfo) -> Value {
        let mut state = self.state.lock();
        let Some(last) = &state.last else { return json!({ "state": "none" }) };
        let is_own = last.client_id == client.id;
        match &last.ended {
            None => json!({
                "state": "running",
                "inspects": last.question.name(),
                "client": last.client_id,
                "seconds": last.began.elapsed().as_secs_f64(),
                "doing": last.doing,
            }),
            Some((_, outcome)) if is_own => {
                let told = match outcome {
                    Ok(report) => json!({ "state": "done", "inspects": last.question.name(), "report": report }),
                    Err(why) => json!({ "state": "failed", "inspects": last.question.name(), "error": why }),
                };
                state.last = None;
                told
            }
            Some(_) => json!({ "state": "none" }),
        }
    }

    /// Ends the inspection of `client`, if there is one. Returns whether there was.
    pub fn end(&self, client: &ClientInfo) -> bool {
        let mut state = self.state.lock();
        let own = state.last.as_mut().filter(|last| last.client_id == client.id);
        let was_there = own.map(|last| last.wanted = false).is_some();
        self.ends.notify_all();
        was_there
    }

    /// Ends the one of `store`, which is about to be closed: who has it lets it go soon.
    pub fn let_go(&self, store: &Store) {
        let mut state = self.state.lock();
        if let Some(last) = state.last.as_mut().filter(|last| std::ptr::eq(last.store.as_ptr(), store)) {
            last.is_let_go = true;
        }
        self.ends.notify_all();
    }

    /// Ends whatever runs, and waits for it: before the store is closed.
    pub fn finish(&self) {
        self.state.lock().stops = true;
        self.ends.notify_all();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // One that panicked has told so.
            let _ = thread.join();
        }
    }
}

/// An inspection that runs until this is dropped, also by a panic.
struct Running {
    inspections: Arc<Inspections>,
    outcome: Option<Result<Value, String>>,
}

impl Running {
    fn run(mut self, store: &Store, question: Question) {
        let outcome = match question {
            Question::Verify => self.verify(store),
            Question::Space { exact } => space(store, exact),
        };
        let outcome = outcome.map_err(|error| error.to_string());
        self.outcome = Some(outcome.and_then(|report| report.ok_or_else(|| self.why_ended(store))));
    }

    /// `None`: it was ended.
    fn verify(&self, store: &Store) -> Result<Option<Value>, StoreError> {
        let had_room = has_room(store);
        let mut rested = Instant::now();
        let report = verify_running(store, |checking| {
            let mut state = self.inspections.state.lock();
            if let Some(running) = &mut state.last {
                running.doing = value_of(&checking);
            }
            let is_over = |state: &State| state.stops || state.last.as_ref().is_none_or(|last| !last.is_wanted());
            let until = Instant::now() + rested.elapsed().min(MAX_REST);
            while !is_over(&state) && !self.inspections.ends.wait_until(&mut state, until).timed_out() {}
            rested = Instant::now();
            // What it keeps would be freed otherwise.
            if is_over(&state) || had_room && !has_room(store) {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        Ok(report.as_ref().map(value_of))
    }

    fn why_ended(&self, store: &Store) -> String {
        let (stops, is_let_go) = {
            let state = self.inspections.state.lock();
            (state.stops, state.last.as_ref().is_some_and(|last| last.is_let_go))
        };
        if is_let_go {
            return "the shard is served here no more".into();
        }
        match (stops, has_room(store)) {
            (true, _) => "the server stops".into(),
            (false, true) => "it was ended".into(),
            (false, false) => {
                "it was ended since the store came to be short of space, and it kept files from being removed".into()
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let outcome = self.outcome.take().unwrap_or_else(|| Err("it panicked; see the server's log".into()));
        if let Some(last) = &mut self.inspections.state.lock().last {
            last.ended = Some((Instant::now(), outcome));
        }
    }
}

fn has_room(store: &Store) -> bool {
    store.try_free_space().is_none_or(|room| !room.writes_refused)
}

fn space(store: &Store, exact: bool) -> Result<Option<Value>, StoreError> {
    let mut space = ecotone_inspect::space(store)?;
    if exact {
        space.duplicates = Some(count_duplicates(store)?);
    }
    Ok(Some(value_of(&space)))
}

/// All that is told here has names of fields only, which JSON can have.
fn value_of(told: &impl serde::Serialize) -> Value {
    serde_json::to_value(told).unwrap_or_default()
}
