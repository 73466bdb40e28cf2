//! SIGKILL of owner, worker and coordinator, three processes, at every step of a job under load.
//!
//! The test starts itself again as each of the three. When the process that takes a step reaches
//! it, it stops there and says so; the test kills its victim, which may be that process or another
//! one, and lets the step go on. Afterwards the store holds every acknowledged write, the owner has
//! gone on by itself with every job that was under way, and neither side keeps leftovers.

use crate::common;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use common::watched_offload::OffloadEvent;
use common::{FAST, FixedLoad, Model, PATIENCE, limits, one_silence, small, value_of};
use ecotone_cluster::steps::Step;
use ecotone_cluster::{Federation, JobEnded, JobObserver, Options};
use ecotone_engine::{Direction, Durability, OpenMode, Store, WriteOptions};

const ROLE: &str = "ECOTONE_TEST_ROLE";
const DIRECTORY: &str = "ECOTONE_TEST_DIRECTORY";
const JOIN: &str = "ECOTONE_TEST_JOIN";

/// Keys of one writer, and entries of one of its batches.
const KEYS: u64 = 1_500;
const BATCH: u64 = 10;

/// One writer for each durability, on keys of its own.
const WRITERS: [Durability; 2] = [Durability::Always, Durability::EverySecond];

/// The entries of a writer's batch: keys and what they become, `None` for a deletion.
fn batch(writer: usize, number: u64) -> impl Iterator<Item = (Vec<u8>, Option<Vec<u8>>)> {
    (0..BATCH).map(move |part| {
        let entry = number * BATCH + part;
        let key = format!("w{writer}-{:06}", entry.wrapping_mul(7_919) % KEYS).into_bytes();
        let value = (!entry.is_multiple_of(13)).then(|| value_of(&key, entry, 150));
        (key, value)
    })
}

// The children.

/// Where a child stops on command.
#[derive(Default)]
struct Gate {
    step: Mutex<Option<Step>>,
    opened: Condvar,
    open: AtomicBool,
}

impl Gate {
    /// Called at each step of this process.
    fn pass(&self, step: Step) {
        let mut armed = self.step.lock().unwrap();
        if *armed == Some(step) {
            *armed = None;
            say(&format!("at {}", step.name()));
            while !self.open.load(Ordering::SeqCst) {
                armed = self.opened.wait(armed).unwrap();
            }
        }
    }

    fn obey(&self, order: &str) {
        match order.split_once(' ') {
            Some(("arm", name)) => {
                *self.step.lock().unwrap() = Step::ALL.into_iter().find(|step| step.name() == name);
            }
            _ => {
                let _armed = self.step.lock().unwrap();
                self.open.store(true, Ordering::SeqCst);
                self.opened.notify_all();
            }
        }
    }
}

/// One write to the pipe for a line: lines of several threads do not mix. A parent that is gone
/// ends the child.
fn say(line: &str) {
    if std::io::stdout().lock().write_all(format!("{line}\n").as_bytes()).is_err() {
        std::process::exit(0);
    }
}

struct Telling;

impl JobObserver for Telling {
    fn job_ended(&self, job: &JobEnded) {
        say(&format!("ended {} {}", job.outcome.name(), job.reason));
    }
}

/// Not a test of its own: one of the three processes. Without its variables it has nothing to do.
#[test]
fn child() {
    let (Ok(role), Ok(directory)) = (std::env::var(ROLE), std::env::var(DIRECTORY)) else { return };
    // The test harness has begun a line of its own.
    say("");
    let directory = PathBuf::from(directory);
    let gate = Arc::new(Gate::default());
    let (stop, stopped) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    {
        let (gate, stop) = (gate.clone(), stop.clone());
        std::thread::spawn(move || {
            for line in std::io::stdin().lines().map_while(Result::ok) {
                if line == "stop" {
                    stop.store(true, Ordering::SeqCst);
                }
                gate.obey(&line);
            }
            // The test is gone.
            if !stop.load(Ordering::SeqCst) {
                std::process::exit(0);
            }
        });
    }
    let options = Options {
        join: std::env::var(JOIN).ok(),
        steps: Some({
            let gate = gate.clone();
            Arc::new(move |step| gate.pass(step))
        }),
        limits: ecotone_cluster::Limits { output_kept: Duration::from_secs(1), ..limits() },
        ..common::options(&role, &directory.join("worker"))
    };
    if role == "owner" {
        own(&directory.join("store"), options, &stop);
        say("closed");
    } else {
        let federation = Federation::start(options, common::duties(), Arc::new(Telling)).unwrap();
        if role == "worker" {
            federation.set_load_source(Arc::new(FixedLoad(FAST)));
            federation.load_measured();
        }
        say(&format!("listening {}", federation.address()));
        while !stop.load(Ordering::SeqCst) {
            std::thread::park_timeout(Duration::from_millis(20));
        }
    }
    stopped.store(true, Ordering::SeqCst);
}

/// Writes until the command to stop, and says what was acknowledged.
fn own(path: &Path, options: Options, stop: &AtomicBool) {
    let notify = |event| match event {
        OffloadEvent::Asked { job } => say(&format!("asked {job}")),
        OffloadEvent::GivenBack(job) => say(&format!("here {}", job.since(job.asked).as_micros())),
        OffloadEvent::Over { job } => say(&format!("over {job}")),
    };
    let (store, federation) = common::open(path, options, small(), Arc::new(Telling), notify);
    std::thread::scope(|scope| {
        for (writer, durability) in WRITERS.into_iter().enumerate() {
            let store = &store;
            scope.spawn(move || {
                for number in 0.. {
                    if stop.load(Ordering::SeqCst) {
                        return;
                    }
                    let mut writes = ecotone_engine::Batch::new();
                    for (key, value) in batch(writer, number) {
                        match value {
                            Some(value) => writes.put(&key, &value).unwrap(),
                            None => writes.delete(&key).unwrap(),
                        }
                    }
                    if let Err(error) = store.write(&writes, WriteOptions::durable(durability)) {
                        say(&format!("error {error}"));
                        return;
                    }
                    say(&format!("acknowledged {writer} {number}"));
                }
            });
        }
    });
    Arc::try_unwrap(store).ok().unwrap().close().unwrap();
    drop(federation);
}

// The parent.

struct Process {
    child: Child,
    orders: ChildStdin,
    lines: Receiver<(Instant, String)>,
    /// Batches acknowledged, by writer.
    acknowledged: [Option<u64>; WRITERS.len()],
    errors: Vec<String>,
    /// Jobs that it has asked about and that are not over.
    under_way: BTreeSet<u64>,
    /// Jobs that were given back to run here: when, and how long after they were asked about.
    given_back: Vec<(Instant, Duration)>,
}

impl Process {
    fn start(role: &str, directory: &Path, join: Option<&str>) -> Process {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["kills::child", "--exact", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(DIRECTORY, directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        if let Some(join) = join {
            command.env(JOIN, join);
        }
        let mut child = command.spawn().unwrap();
        let orders = child.stdin.take().unwrap();
        let output = child.stdout.take().unwrap();
        let (sender, lines): (Sender<(Instant, String)>, _) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = sender.send((Instant::now(), line));
            }
        });
        Process {
            child,
            orders,
            lines,
            acknowledged: [None; WRITERS.len()],
            errors: Vec::new(),
            under_way: BTreeSet::new(),
            given_back: Vec::new(),
        }
    }

    fn order(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
    }

    /// The next line that begins with `prefix`: when it came, and the rest. What is acknowledged
    /// meanwhile is kept.
    fn next(&mut self, prefix: &str) -> (Instant, String) {
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok((when, line)) => {
                    self.note(when, &line);
                    if let Some(rest) = line.strip_prefix(prefix) {
                        return (when, rest.trim().to_owned());
                    }
                }
                Err(error) => panic!("no line {prefix:?}: {error}; errors: {:?}", self.errors),
            }
        }
    }

    fn note(&mut self, when: Instant, line: &str) {
        let mut words = line.split(' ');
        let kind = words.next().unwrap_or_default();
        let mut number = || words.next().and_then(|word| word.parse::<u64>().ok());
        match (kind, number()) {
            ("acknowledged", Some(writer)) => {
                if let Some(batch) = number() {
                    self.acknowledged[writer as usize] = Some(batch);
                }
            }
            ("asked", Some(job)) => {
                self.under_way.insert(job);
            }
            ("over", Some(job)) => {
                self.under_way.remove(&job);
            }
            ("here", Some(held_micros)) => self.given_back.push((when, Duration::from_micros(held_micros))),
            ("error", _) => self.errors.push(line.to_owned()),
            _ => {}
        }
    }

    /// Kills it, and hears all it said before it died.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        while let Ok((when, line)) = self.lines.recv() {
            self.note(when, &line);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Owner,
    Worker,
    Coordinator,
}

/// Whose process takes a step.
fn taker(step: Step) -> Role {
    match step {
        Step::Placing | Step::Placed => Role::Coordinator,
        Step::Offered | Step::Admitted | Step::OutputReady | Step::Compacted | Step::ReadingOutput | Step::Released => {
            Role::Worker
        }
        Step::Asked
        | Step::Seeking
        | Step::Offering
        | Step::ReadingInput
        | Step::Fetched
        | Step::Verifying
        | Step::Installing
        | Step::Installed => Role::Owner,
    }
}

fn kill_at_every_step(victim: Role) {
    let mut longest = Duration::ZERO;
    for step in Step::ALL {
        longest = longest.max(kill_at(victim, step));
    }
    println!("{victim:?} killed at {} steps: each job was given back after {longest:?} at most", Step::ALL.len());
}

/// Gives how long a job waited for the dead before it was given back to the owner; nothing when it
/// was the owner who died.
fn kill_at(victim: Role, step: Step) -> Duration {
    let directory = tempfile::tempdir().unwrap();
    let [at_coordinator, at_worker, at_owner] =
        ["coordinator", "worker", "owner"].map(|role| directory.path().join(role));
    let mut coordinator = Process::start("coordinator", &at_coordinator, None);
    let (_, address) = coordinator.next("listening");
    let mut worker = Process::start("worker", &at_worker, Some(&address));
    worker.next("listening");
    let mut owner = Process::start("owner", &at_owner, Some(&address));
    owner.next("ended offloaded");

    let context = format!("{victim:?} killed at {}", step.name());
    let process = match taker(step) {
        Role::Owner => &mut owner,
        Role::Worker => &mut worker,
        Role::Coordinator => &mut coordinator,
    };
    process.order(&format!("arm {}", step.name()));
    process.next("at ");
    let killed = Instant::now();
    match victim {
        Role::Owner => owner.kill(),
        Role::Worker => worker.kill(),
        Role::Coordinator => coordinator.kill(),
    }
    if victim != taker(step) {
        let process = match taker(step) {
            Role::Owner => &mut owner,
            Role::Worker => &mut worker,
            Role::Coordinator => &mut coordinator,
        };
        process.order("go");
    }

    let mut took = Duration::ZERO;
    if victim != Role::Owner {
        // It goes on by itself: what it was sent before the death may still be under way.
        while owner.next("here").0 < killed {}
        while owner.next("ended").1.starts_with("offloaded") {}
        let before = owner.acknowledged;
        while owner.acknowledged.iter().zip(&before).any(|(now, then)| now <= then) {
            owner.next("acknowledged");
        }
        // Closing would end them, however long they had waited for the dead.
        let under_way = owner.under_way.clone();
        while !owner.under_way.is_disjoint(&under_way) {
            owner.next("over");
        }
        owner.order("stop");
        owner.next("closed");
        owner.child.wait().unwrap();
        // Of each job's wait, what came after the death.
        let after = owner.given_back.iter().filter(|(when, _)| *when >= killed);
        took = after.map(|(when, held)| *held.min(&(*when - killed))).max().unwrap();
        assert!(took <= one_silence(), "{context}: {took:?} until a job was given back to run here");
    }
    assert_eq!(owner.errors, Vec::<String>::new(), "{context}: a write failed");
    verify(&at_owner.join("store"), owner.acknowledged, victim == Role::Owner, &context);

    let leftovers = || common::entries(&at_worker.join("worker"));
    if victim == Role::Worker {
        // A new worker in the place of the dead one takes the folder over.
        drop(Federation::start(
            common::options("worker", &at_worker.join("worker")),
            common::duties(),
            Arc::new(Telling),
        ));
        assert_eq!(leftovers(), 0, "{context}: orphans at the worker");
    } else {
        common::wait_until(&format!("{context}: the worker's folder to be empty"), || leftovers() == 0);
    }
    took
}

/// Opens the store, and holds it to what was acknowledged: no less, and of what was not
/// acknowledged only the batch of each writer that was on its way, whole.
fn verify(path: &Path, acknowledged: [Option<u64>; WRITERS.len()], may_hold_more: bool, context: &str) {
    let store = Store::open(path, OpenMode::Open, small()).unwrap();
    assert_eq!(common::entries(&path.join("session_tmp")), 0, "{context}: orphans at the owner");
    for (writer, last) in acknowledged.into_iter().enumerate() {
        let stored: Model = store
            .scan(.., Direction::Forward, None)
            .unwrap()
            .map(Result::unwrap)
            .filter(|(key, _)| key.starts_with(format!("w{writer}-").as_bytes()))
            .collect();
        let mut model = Model::new();
        let apply = |model: &mut Model, number| {
            for (key, value) in batch(writer, number) {
                match value {
                    Some(value) => model.insert(key, value),
                    None => model.remove(&key),
                };
            }
        };
        let next = last.map_or(0, |last| last + 1);
        (0..next).for_each(|number| apply(&mut model, number));
        if stored != model {
            assert!(may_hold_more, "{context}: writer {writer} has not what it was acknowledged");
            apply(&mut model, next);
            assert!(stored == model, "{context}: writer {writer} has not what it was acknowledged");
        }
    }
    // Reads every block of every table.
    store.compact(..).unwrap();
    assert_eq!(store.properties().unwrap().background_errors, 0, "{context}");
    store.close().unwrap();
}

#[test]
fn the_owner_may_die_at_every_step() {
    kill_at_every_step(Role::Owner);
}

#[test]
fn the_worker_may_die_at_every_step() {
    kill_at_every_step(Role::Worker);
}

#[test]
fn the_coordinator_may_die_at_every_step() {
    kill_at_every_step(Role::Coordinator);
}
