//! What clients are told of the copies that a shard has on other servers: levels by their words,
//! why a reply is an error instead, and what `WAIT` and `WAITAOF` count.
//!
//! Failure: a gate that has gone, or is in another epoch than a write, has no copies of it: what
//! became of that write is not known here.
//!
//! Threads: any; nothing here waits but [`CopiesAwaited::over`], which holds no thread.

use std::sync::{Arc, Weak};
use std::time::Duration;

use ecotone_keyspace::error::Failure;
use ecotone_keyspace::gate::{CommitGate, Level, Place, Refused};
use ecotone_keyspace::{Keyspace, MAX_LOCAL_SHARDS};
use tokio::time::{Instant, sleep};

use crate::answer::Answer;

/// A reply that copies have not let go after this is an error: its outcome is not known.
pub const MAX_WAIT_FOR_COPIES: Duration = Duration::from_secs(5);

/// `WAIT` asks for the first time after this, and then after twice the time before.
const MIN_ASK_AGAIN: Duration = Duration::from_millis(1);

/// But at least so often.
const MAX_ASK_AGAIN: Duration = Duration::from_millis(50);

/// The word for no level of a client's own.
pub(crate) const DEFAULT_LEVEL: &str = "default";

/// The level that a word means; `Some(None)` is that of the shard.
pub(crate) fn level_of(word: &[u8]) -> Option<Option<Level>> {
    let levels = [None, Some(Level::One), Some(Level::Quorum), Some(Level::All)];
    levels.into_iter().find(|level| word.eq_ignore_ascii_case(level.map_or(DEFAULT_LEVEL, level_name).as_bytes()))
}

/// The word for a level.
pub(crate) fn level_name(level: Level) -> &'static str {
    match level {
        Level::One => "one",
        Level::Quorum => "quorum",
        Level::All => "all",
    }
}

/// What a reply tells of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Did {
    /// Nothing was done: a write was refused before.
    Nothing,
    /// It has read.
    Read,
    /// It has written, and that is committed here.
    Write,
}

/// Why a reply may not be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// The gate refuses.
    Refused(Refused),
    /// [`MAX_WAIT_FOR_COPIES`] is over.
    TimedOut,
}

/// The error instead of a reply.
pub(crate) fn failure(why: Unanswered, did: Did) -> Failure {
    let outcome = if did == Did::Write { "; the outcome of the write is unknown" } else { "" };
    match why {
        Unanswered::Refused(refused @ (Refused::NoLease | Refused::NotPrimary)) => {
            Failure::with(format!("CLUSTERDOWN {refused}{outcome}"))
        }
        Unanswered::Refused(Refused::HandingOver) => {
            Failure::with(format!("TRYAGAIN {}{outcome}", Refused::HandingOver))
        }
        Unanswered::Refused(refused @ Refused::TooFewInSync { .. }) => {
            let what = if did == Did::Read { "read" } else { "write" };
            Failure::with(format!("NOREPLICAS Not enough good replicas to {what}. {refused}{outcome}"))
        }
        Unanswered::TimedOut => {
            let what = if did == Did::Read { "read" } else { "written" };
            let waited_s = MAX_WAIT_FOR_COPIES.as_secs();
            Failure::with(format!(
                "TIMEOUT the outcome is unknown: for {waited_s} s too few copies of the shard have had what was {what}"
            ))
        }
    }
}

/// What a client has written last to each shard with copies.
#[derive(Debug, Clone, Default)]
pub struct LastWrites {
    places: Vec<(Weak<dyn CommitGate>, Place)>,
    /// Whether anything is not counted by `places`: it was written to a shard without copies.
    has_others: bool,
}

impl LastWrites {
    /// It has written to a shard, up to `place` at most.
    pub(crate) fn note(&mut self, gate: &Arc<dyn CommitGate>, place: Place) {
        let gate = Arc::downgrade(gate);
        match self.places.iter_mut().find(|(known, _)| known.ptr_eq(&gate)) {
            Some((_, known)) => *known = place,
            None => {
                if self.places.len() >= MAX_LOCAL_SHARDS {
                    self.places.remove(0);
                    self.has_others = true;
                }
                self.places.push((gate, place));
            }
        }
    }

    /// It has written to a shard without copies.
    pub(crate) fn note_uncopied(&mut self) {
        self.has_others = true;
    }

    /// Takes them to be told of: what no copy can have any more is not told again.
    pub(crate) fn take_told(&mut self) -> Self {
        let told = self.clone();
        self.has_others = false;
        self.places.retain(|(gate, place)| is_in_epoch(gate, *place).is_some());
        told
    }

    /// How many copies have all of it; of a client that has written nothing, how many copies there
    /// are of each of the shards of `keyspace`.
    pub(crate) fn copies(&self, keyspace: &Keyspace, synced: bool) -> usize {
        if self.has_others {
            return 0;
        }
        if self.places.is_empty() {
            let gates = keyspace.gates();
            let connected = gates.iter().map(|gate| gate.copies_with(Place { number: 0, ..gate.written() }, synced));
            return connected.min().unwrap_or(0);
        }
        let having = |(gate, place): &(Weak<dyn CommitGate>, Place)| {
            is_in_epoch(gate, *place).map_or(0, |gate| gate.copies_with(*place, synced))
        };
        self.places.iter().map(having).min().unwrap_or(0)
    }
}

/// The gate, as long as it is in the epoch of `place`.
fn is_in_epoch(gate: &Weak<dyn CommitGate>, place: Place) -> Option<Arc<dyn CommitGate>> {
    gate.upgrade().filter(|gate| gate.written().epoch == place.epoch)
}

/// What `WAIT` or `WAITAOF` waits for.
#[derive(Debug)]
pub struct CopiesAwaited {
    keyspace: Arc<Keyspace>,
    writes: LastWrites,
    copies: usize,
    /// Of `WAITAOF`: whether this server's log is synced.
    local: Option<bool>,
    until: Option<Instant>,
}

impl CopiesAwaited {
    /// So many copies of what its client has [written](Self::of) last, synced ones and whether the
    /// `local` one is where that is asked for. Without `timeout` it waits for ever.
    pub(crate) fn new(keyspace: Arc<Keyspace>, copies: usize, local: Option<bool>, timeout: Option<Duration>) -> Self {
        // What is beyond any clock is for ever.
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        Self { keyspace, writes: LastWrites::default(), copies, local, until }
    }

    /// These are the writes: all that were committed before it waits.
    pub(crate) fn of(&mut self, writes: LastWrites) {
        self.writes = writes;
    }

    /// What is told now, and whether it is enough.
    pub(crate) fn reached(&self) -> (Answer, bool) {
        let copies = self.writes.copies(&self.keyspace, self.local.is_some());
        let told = i64::try_from(copies).unwrap_or(i64::MAX);
        let answer = self.local.map_or(Answer::Integer(told), |is_local| Answer::Integers([i64::from(is_local), told]));
        (answer, copies >= self.copies)
    }

    /// Waits until there are enough, or the time is over.
    pub async fn over(&mut self) -> Answer {
        let mut ask_again = MIN_ASK_AGAIN;
        loop {
            let (answer, is_enough) = self.reached();
            let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
            if is_enough || left.is_some_and(|left| left.is_zero()) {
                return answer;
            }
            sleep(left.map_or(ask_again, |left| left.min(ask_again))).await;
            ask_again = (ask_again * 2).min(MAX_ASK_AGAIN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_found_by_their_words_in_any_case() {
        for (word, level) in [
            ("ONE", Some(Some(Level::One))),
            ("quorum", Some(Some(Level::Quorum))),
            ("All", Some(Some(Level::All))),
            ("default", Some(None)),
            ("two", None),
            ("", None),
        ] {
            assert_eq!(level_of(word.as_bytes()), level, "{word}");
        }
    }

    #[test]
    fn no_error_after_a_write_says_that_it_was_not_done() {
        let refusals = [Refused::NoLease, Refused::NotPrimary, Refused::TooFewInSync { in_sync: 1, needed: 2 }];
        for why in refusals.map(Unanswered::Refused).into_iter().chain([Unanswered::TimedOut]) {
            let told = |did| String::from_utf8(failure(why, did).reply().into_owned()).unwrap();
            assert!(told(Did::Write).contains("unknown"), "{}", told(Did::Write));
            if why != Unanswered::TimedOut {
                assert!(!told(Did::Nothing).contains("unknown"), "{}", told(Did::Nothing));
            }
        }
        let few = Unanswered::Refused(Refused::TooFewInSync { in_sync: 1, needed: 2 });
        assert!(failure(few, Did::Nothing).reply().starts_with(b"NOREPLICAS Not enough good replicas to write. 1 "));
    }
}
