//! Compares the files of all copies of this server with what they should hold: slowly, all the
//! time, and at once where people ask for it. What is done about a file that differs is said in
//! [`crate::comparing`].
//!
//! A round goes through all files of one copy. It is begun [`ROUND`] after the one before, and as
//! fast as all copies need to come through in that time, within [`MIN_SCRUB_BYTES_PER_S`] and
//! [`MAX_SCRUB_BYTES_PER_S`]. How far it is outlives the process.
//!
//! Failure: a copy that is being opened, closed or built is looked at again later. A file that no
//! copy has whole stays, is named in the log once, and counts as damaged until it is sound, gone or
//! the server is started anew.
//!
//! Bounds: one comparison at a time on a server; what people ask for goes first.
//!
//! Threads: `ecotone-scrub`, of duty `scrub` while it reads; any may ask. Locks are held for no IO.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ecotone_control::ids::{MemberId, ShardId};
use ecotone_mirror::comparing::{Held, Progress, mend_path, remove_unused, tables_and_segments};
use ecotone_mirror::directory::{Want, check_fetched};
use ecotone_mirror::error::Error as MirrorError;
use ecotone_mirror::names::FileName;
use ecotone_replica::position::Mark;
use ecotone_replica::stream::ContentId;
use ecotone_types::Duty;
use parking_lot::{Condvar, Mutex};
use tracing::{debug, error, info, warn};

use crate::clock::wall_ms;
use crate::comparing::{End, Finding, Observer, Outcome, Subject, compare};
use crate::duty_scope::Scope;
use crate::error::{Error, Result};
use crate::repairing::{Differing, MAX_NAMED, Phase, Repair, Scrubbed};
use crate::shard::{Around, Shared};
use crate::table::Table;

/// From the beginning of one round of a copy to the next one's.
pub(crate) const ROUND: Duration = Duration::from_secs(7 * 24 * 3_600);
/// All copies of a server together are read at least so fast while a round is under way: so that
/// the greatest segment is through long before a server that is started anew each day stops.
pub(crate) const MIN_SCRUB_BYTES_PER_S: u64 = 1 << 20;
/// And at most.
pub(crate) const MAX_SCRUB_BYTES_PER_S: u64 = 16 << 20;
/// What people ask for is read at most so fast: others read from the device as well.
const MAX_REPAIR_BYTES_PER_S: u64 = 256 << 20;
/// A server that was just started has other things to do.
const START_DELAY: Duration = Duration::from_secs(60);
/// A copy that could not be compared is looked at again so much later.
const RETRY_DELAY: Duration = Duration::from_secs(60);
/// How long what people ask for waits for a copy that is being opened, closed or built.
const MAX_BUSY_TIME: Duration = Duration::from_secs(60);
/// How long a copy may take until it follows another one that was made the primary.
const MAX_FOLLOW_TIME: Duration = Duration::from_secs(60);
/// How often others are asked for a file that some of them do not give.
const FETCH_ATTEMPTS: u32 = 4;
/// Between two times.
const FETCH_RETRY_DELAY: Duration = Duration::from_secs(1);
/// After a round that has left damage the next one begins so much later, and twice as much after
/// each further one, up to [`ROUND`].
const DAMAGED_AGAIN: Duration = Duration::from_secs(3600);
/// Between two looks at whether a round is due.
const IDLE_TICK: Duration = Duration::from_secs(1);
/// The longest sleep within a round.
const TICK: Duration = Duration::from_millis(100);
/// How often it is written down how far a round is.
const SAVE_EVERY: Duration = Duration::from_secs(60);

/// Makes another server the primary.
pub(crate) trait Steering {
    /// Of this shard.
    fn hand_over(&self, shard: ShardId, to: MemberId) -> Result<()>;
}

/// See the module.
pub(crate) struct Scrub {
    table: Arc<Table>,
    around: Arc<Around>,
    asked: Mutex<VecDeque<ShardId>>,
    changed: Condvar,
    repairs: Mutex<BTreeMap<ShardId, Repair>>,
    scrubbed: Mutex<BTreeMap<ShardId, Scrubbed>>,
}

impl Scrub {
    pub(crate) fn new(table: Arc<Table>, around: Arc<Around>) -> Scrub {
        Scrub {
            table,
            around,
            asked: Mutex::default(),
            changed: Condvar::new(),
            repairs: Mutex::default(),
            scrubbed: Mutex::default(),
        }
    }

    /// What has come of it so far.
    pub(crate) fn of(&self, shard: ShardId) -> Scrubbed {
        self.scrubbed.lock().get(&shard).cloned().unwrap_or_default()
    }

    /// Has a copy of this server compared at once, unless that is under way.
    pub(crate) fn begin(&self, shard: ShardId) -> Repair {
        let mut repairs = self.repairs.lock();
        let repair = repairs.entry(shard).or_insert_with(|| Repair { phase: Phase::Failed, ..Repair::default() });
        if repair.is_over() {
            *repair = Repair::default();
            self.asked.lock().push_back(shard);
            self.changed.notify_all();
        }
        repair.clone()
    }

    /// How far what was asked for is.
    pub(crate) fn repair(&self, shard: ShardId) -> Result<Repair> {
        let none = || Error::NotThere(format!("a comparison of {shard}, since this server was started"));
        self.repairs.lock().get(&shard).cloned().ok_or_else(none)
    }

    fn is_asked(&self) -> bool {
        !self.asked.lock().is_empty()
    }

    /// The thread's work.
    pub(crate) fn run(&self, steering: &dyn Steering, is_stopping: &AtomicBool) {
        let began = Instant::now();
        let mut rounds = Rounds::default();
        while !is_stopping.load(Ordering::Acquire) {
            let asked = self.asked.lock().pop_front();
            if let Some(shard) = asked {
                self.repair_now(shard, steering, is_stopping);
                continue;
            }
            self.forget_others();
            if began.elapsed() >= START_DELAY && self.scrub_next(steering, is_stopping, &mut rounds) {
                continue;
            }
            let mut asked = self.asked.lock();
            if asked.is_empty() && !is_stopping.load(Ordering::Acquire) {
                self.changed.wait_for(&mut asked, IDLE_TICK);
            }
        }
    }

    /// Has the thread look whether it is to end.
    pub(crate) fn wake(&self) {
        let _asked = self.asked.lock();
        self.changed.notify_all();
    }

    /// What was known of copies that are not here any more.
    fn forget_others(&self) {
        let here: BTreeSet<ShardId> = self.table.all().into_iter().map(|(shard, _)| shard).collect();
        self.scrubbed.lock().retain(|shard, _| here.contains(shard));
        self.repairs.lock().retain(|shard, repair| here.contains(shard) || !repair.is_over());
    }

    fn repair_now(&self, shard: ShardId, steering: &dyn Steering, is_stopping: &AtomicBool) {
        let ended = match self.table.get(shard) {
            None => Err(Error::NotThere(format!("a copy of {shard}"))),
            Some(shared) => {
                info!(shard = shard.0, "the files of the copy here are compared with what they should hold");
                let _duty = Scope::begin(self.around.host.duties(), Duty::Scrub);
                let copy = Copy::new(self, shared, steering, is_stopping, MAX_REPAIR_BYTES_PER_S, false);
                let until = Instant::now() + MAX_BUSY_TIME;
                loop {
                    self.change_repair(shard, |repair| {
                        // What could not be replaced is found again.
                        let mut named = std::mem::take(&mut repair.named);
                        named.retain(|differing| differing.left.is_none());
                        *repair = Repair {
                            phase: Phase::Comparing,
                            named,
                            differing: repair.replaced,
                            replaced: repair.replaced,
                            handed_over_to: repair.handed_over_to,
                            ..Repair::default()
                        };
                    });
                    let began_s = wall_ms() / 1_000;
                    let mut watch = Watch::new(self, shard, true);
                    let ended = compare(&copy, None, &mut watch);
                    if let Ok(End::Done) = ended {
                        self.save(
                            shard,
                            &copy.directory,
                            Progress { after: None, began_s, ended_s: wall_ms() / 1_000 },
                        );
                    }
                    match ended {
                        Err(error) if is_passing(&error) && Instant::now() < until && copy.pace(0) => {
                            std::thread::sleep(TICK);
                        }
                        ended => break ended,
                    }
                }
            }
        };
        self.change_repair(shard, |repair| match ended {
            Ok(End::Done) => repair.phase = Phase::Done,
            Ok(End::Stopped) => {
                repair.phase = Phase::Failed;
                repair.trouble = Some("the server, or its copy, stops".into());
            }
            Err(error) => {
                warn!(shard = shard.0, %error, "the files of the copy here cannot be compared");
                repair.phase = Phase::Failed;
                repair.trouble = Some(error.to_string());
            }
        });
    }

    /// Goes on with the round of the copy that waits longest. False: none is due.
    fn scrub_next(&self, steering: &dyn Steering, is_stopping: &AtomicBool, rounds: &mut Rounds) -> bool {
        let Rounds { retry_at, damaged } = rounds;
        retry_at.retain(|_, at| Instant::now() < *at);
        let now_s = wall_ms() / 1_000;
        let mut due: Option<(Progress, Arc<Shared>)> = None;
        for (shard, shared) in self.table.all() {
            if retry_at.contains_key(&shard) {
                continue;
            }
            let progress = match Progress::read(&self.around.host.directory(shard)) {
                Ok(progress) => progress,
                Err(error) => {
                    debug!(shard = shard.0, %error, "how far the comparison is cannot be read");
                    retry_at.insert(shard, Instant::now() + RETRY_DELAY);
                    continue;
                }
            };
            self.count(shard, |scrubbed| scrubbed.ended_s = Some(progress.ended_s).filter(|ended_s| *ended_s > 0));
            if !is_due(&progress, now_s, damaged.get(&shard).copied()) {
                // Nothing of it can be due much sooner.
                retry_at.insert(shard, Instant::now() + RETRY_DELAY);
            } else if due.as_ref().is_none_or(|(before, _)| progress.ended_s < before.ended_s) {
                due = Some((progress, shared));
            }
        }
        let Some((progress, shared)) = due else { return false };
        let shard = shared.shard;
        let _duty = Scope::begin(self.around.host.duties(), Duty::Scrub);
        let copy = Copy::new(self, shared, steering, is_stopping, self.bytes_per_s(), true);
        let progress =
            if is_under_way(&progress) { progress } else { Progress { after: None, began_s: now_s, ..progress } };
        let mut watch = Watch::new(self, shard, false);
        watch.saves = Some((copy.directory.clone(), progress, Instant::now()));
        let ended = compare(&copy, progress.after, &mut watch);
        let mut reached = watch.saves.map_or(progress, |(_, progress, _)| progress);
        match ended {
            Ok(End::Done) => {
                (reached.after, reached.ended_s) = (None, wall_ms() / 1_000);
                let is_damaged = self.scrubbed.lock().get(&shard).is_some_and(|left| !left.damaged.is_empty());
                if is_damaged {
                    let again = damaged.entry(shard).and_modify(|again| *again = (2 * *again).min(ROUND));
                    again.or_insert(DAMAGED_AGAIN);
                } else {
                    damaged.remove(&shard);
                }
                debug!(shard = shard.0, "all files of a copy were compared");
            }
            Ok(End::Stopped) => (),
            Err(error) => {
                // A replica that is being made has nothing to compare yet.
                debug!(shard = shard.0, %error, "the files of a copy cannot be compared now");
                retry_at.insert(shard, Instant::now() + RETRY_DELAY);
            }
        }
        if reached != progress || reached.after.is_some() {
            self.save(shard, &copy.directory, reached);
        }
        true
    }

    /// As fast as all copies of this server need to be read in one [`ROUND`].
    fn bytes_per_s(&self) -> u64 {
        let bytes_of = |shard| {
            let files = tables_and_segments(&self.around.host.directory(shard)).unwrap_or_default();
            files.into_iter().map(|(_, bytes)| bytes).sum::<u64>()
        };
        let bytes: u64 = self.table.all().into_iter().map(|(shard, _)| bytes_of(shard)).sum();
        (bytes / ROUND.as_secs()).clamp(MIN_SCRUB_BYTES_PER_S, MAX_SCRUB_BYTES_PER_S)
    }

    fn save(&self, shard: ShardId, directory: &Path, progress: Progress) {
        self.count(shard, |scrubbed| scrubbed.ended_s = Some(progress.ended_s).filter(|ended_s| *ended_s > 0));
        if let Err(error) = progress.write(directory) {
            debug!(shard = shard.0, %error, "how far the comparison is cannot be written down");
        }
    }

    fn count(&self, shard: ShardId, change: impl FnOnce(&mut Scrubbed)) {
        change(self.scrubbed.lock().entry(shard).or_default());
    }

    fn change_repair(&self, shard: ShardId, change: impl FnOnce(&mut Repair)) {
        if let Some(repair) = self.repairs.lock().get_mut(&shard) {
            change(repair);
        }
    }
}

fn is_under_way(progress: &Progress) -> bool {
    progress.began_s > progress.ended_s
}

/// When rounds are due, beside what is written down of them.
#[derive(Default)]
struct Rounds {
    /// Nothing of the copy is looked at before.
    retry_at: BTreeMap<ShardId, Instant>,
    /// Copies whose last round has left damage, and how long after it the next one begins: whoever
    /// has the files whole may have been away.
    damaged: BTreeMap<ShardId, Duration>,
}

/// Whether there is something to compare now; `again` is so long after a round that has left damage.
/// A clock that was set back begins a round.
fn is_due(progress: &Progress, now_s: u64, again: Option<Duration>) -> bool {
    let since_round = now_s.checked_sub(progress.began_s);
    let is_again = again.is_some_and(|again| now_s >= progress.ended_s + again.as_secs());
    is_under_way(progress) || is_again || since_round.is_none_or(|since_s| since_s >= ROUND.as_secs())
}

/// Whether the same may succeed in a moment: the copy changes what it is.
fn is_passing(error: &Error) -> bool {
    matches!(error, Error::Busy(_) | Error::Mirror(MirrorError::Malformed { .. } | MirrorError::Missing { .. }))
}

/// Follows a comparison: counts, logs, and says how far it is.
struct Watch<'a> {
    scrub: &'a Scrub,
    shard: ShardId,
    is_repair: bool,
    /// Where to write down how far it is, that, and when it was written.
    saves: Option<(PathBuf, Progress, Instant)>,
}

impl<'a> Watch<'a> {
    fn new(scrub: &'a Scrub, shard: ShardId, is_repair: bool) -> Self {
        Self { scrub, shard, is_repair, saves: None }
    }

    fn repair(&self, change: impl FnOnce(&mut Repair)) {
        if self.is_repair {
            self.scrub.change_repair(self.shard, change);
        }
    }
}

impl Observer for Watch<'_> {
    fn begins(&mut self, is_primary: bool, files: u64, bytes: u64) {
        self.repair(|repair| (repair.is_primary, repair.of_files, repair.of_bytes) = (is_primary, files, bytes));
    }

    fn compared(&mut self, file: FileName, bytes: u64) {
        self.scrub.count(self.shard, |scrubbed| scrubbed.compared_bytes += bytes);
        self.repair(|repair| {
            repair.files += 1;
            repair.bytes += bytes;
        });
        if let Some((directory, progress, saved)) = &mut self.saves {
            progress.after = Some(file);
            if saved.elapsed() > SAVE_EVERY {
                self.scrub.save(self.shard, directory, *progress);
                *saved = Instant::now();
            }
        }
    }

    fn is_sound(&mut self, file: FileName) {
        self.scrub.count(self.shard, |scrubbed| drop(scrubbed.damaged.remove(&file)));
    }

    fn found(&mut self, finding: Finding) {
        let Finding { file, what, outcome } = finding;
        let (shard, name) = (self.shard.0, file.to_string());
        let mut is_new = true;
        self.scrub.count(self.shard, |scrubbed| {
            scrubbed.differing += 1;
            match &outcome {
                Outcome::Replaced(_) | Outcome::Rebuilt => {
                    scrubbed.replaced += 1;
                    scrubbed.damaged.remove(&file);
                }
                Outcome::Left(why) => {
                    let text = format!("{name} is damaged ({what}) and cannot be replaced: {why}");
                    is_new = scrubbed.damaged.insert(file, text).is_none();
                }
            }
        });
        match &outcome {
            Outcome::Replaced(from) => {
                warn!(
                    shard,
                    file = name,
                    server = from.0,
                    what,
                    "a damaged file of a copy was replaced by another copy's"
                );
            }
            Outcome::Rebuilt => warn!(shard, file = name, what, "a copy with a damaged file was built anew"),
            Outcome::Left(why) if is_new => {
                error!(shard, file = name, what, why, "a damaged file of a copy cannot be replaced");
            }
            Outcome::Left(_) => (),
        }
        self.repair(|repair| {
            repair.differing += 1;
            repair.replaced += u64::from(!matches!(outcome, Outcome::Left(_)));
            if repair.named.len() < MAX_NAMED {
                let (from, left) = match outcome {
                    Outcome::Replaced(from) => (Some(from), None),
                    Outcome::Rebuilt => (None, None),
                    Outcome::Left(why) => (None, Some(why)),
                };
                repair.named.push(Differing { file: name, what, from, left });
            }
        });
    }

    fn handed_over(&mut self, to: MemberId) {
        warn!(shard = self.shard.0, server = to.0, "the shard was handed over so that a damaged file here is replaced");
        self.repair(|repair| repair.handed_over_to = Some(to));
    }
}

/// A copy of this server. While this is held, its files stay.
struct Copy<'a> {
    scrub: &'a Scrub,
    shared: Arc<Shared>,
    directory: PathBuf,
    steering: &'a dyn Steering,
    is_stopping: &'a AtomicBool,
    bytes_per_s: u64,
    /// What people ask for goes first.
    yields: bool,
    /// When what was read so far is paid for.
    paid: Cell<Instant>,
}

impl<'a> Copy<'a> {
    fn new(
        scrub: &'a Scrub,
        shared: Arc<Shared>,
        steering: &'a dyn Steering,
        is_stopping: &'a AtomicBool,
        bytes_per_s: u64,
        yields: bool,
    ) -> Self {
        let directory = scrub.around.host.directory(shared.shard);
        // What another comparison has left is of no use.
        if let Err(error) = remove_unused(&directory) {
            debug!(shard = shared.shard.0, %error, "what was fetched before cannot be removed");
        }
        let paid = Cell::new(Instant::now());
        Self { scrub, shared, directory, steering, is_stopping, bytes_per_s, yields, paid }
    }

    fn stops(&self) -> bool {
        let yields = self.yields && self.scrub.is_asked();
        yields || self.shared.is_over() || self.is_stopping.load(Ordering::Acquire)
    }

    /// False: it stops.
    fn waits_until(&self, at: Instant) -> bool {
        while !self.stops() {
            let left = at.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            std::thread::sleep(left.min(TICK));
        }
        false
    }

    /// Others with a copy, by whom a file should be given: the primary, then those in sync.
    fn others(&self) -> (Option<MemberId>, Vec<MemberId>) {
        let known = self.scrub.table.map.read().clone();
        let me = self.scrub.around.me;
        let Some(state) = known.as_ref().and_then(|known| known.map.shards.get(&self.shared.shard)) else {
            return (None, Vec::new());
        };
        let mut others: Vec<MemberId> = state.copies.iter().copied().filter(|member| *member != me).collect();
        others.sort_by_key(|member| (state.primary != Some(*member), !state.in_sync.contains(member)));
        (state.primary.filter(|primary| *primary != me), others)
    }
}

impl Subject for Copy<'_> {
    fn directory(&self) -> &Path {
        &self.directory
    }

    fn held(&self) -> Result<(Held, bool)> {
        self.shared.held()
    }

    fn at_primary(&self) -> Option<(Mark, BTreeMap<FileName, ContentId>)> {
        let (primary, _) = self.others();
        match self.scrub.around.fetcher.contents(primary?, self.shared.shard) {
            Ok(contents) => Some(contents),
            Err(error) => {
                debug!(shard = self.shared.shard.0, %error, "the primary does not say what files hold");
                None
            }
        }
    }

    fn fetch(&self, want: &Want, is_primary: bool) -> Result<std::result::Result<MemberId, String>> {
        let path = mend_path(&self.directory, want);
        let mut reasons = Vec::new();
        for attempt in 0..FETCH_ATTEMPTS {
            let (_, others) = self.others();
            if others.is_empty() {
                return Ok(Err("there is no other copy of the shard".into()));
            }
            if attempt > 0 && !self.waits_until(Instant::now() + FETCH_RETRY_DELAY) {
                return Err(Error::Stopped);
            }
            reasons.clear();
            // One that is being opened or closed gives nothing for a moment.
            let mut is_final = true;
            for from in others {
                let fetched = self.scrub.around.fetcher.file(from, self.shared.shard, want, &path, &|| self.stops());
                match fetched {
                    Ok(true) => match check_fetched(&path, want) {
                        Ok(()) => return Ok(Ok(from)),
                        Err(MirrorError::Mismatch { .. }) => reasons.push(format!("{from} has other bytes")),
                        Err(error) => return Err(error.into()),
                    },
                    Err(error @ (Error::Io { .. } | Error::Stopped | Error::Mirror(_))) => return Err(error),
                    Ok(false) => {
                        is_final = false;
                        reasons.push(format!("{from} does not have it"));
                    }
                    Err(error) => {
                        is_final = false;
                        reasons.push(error.to_string());
                    }
                }
            }
            if is_final {
                break;
            }
        }
        let which = if is_primary { "of which the primary is here" } else { "of which this is a replica" };
        Ok(Err(format!("no other copy of the shard, {which}, gives it whole: {}", reasons.join("; "))))
    }

    fn replace(&self, want: &Want) -> Result<bool> {
        self.shared.replace(want)
    }

    fn hand_over(&self, to: MemberId) -> Result<()> {
        self.steering.hand_over(self.shared.shard, to)?;
        let until = Instant::now() + MAX_FOLLOW_TIME;
        while Instant::now() < until {
            if self.stops() {
                return Err(Error::Stopped);
            }
            if matches!(self.shared.held(), Ok((_, false))) {
                return Ok(());
            }
            std::thread::sleep(TICK);
        }
        Err(Error::Busy("this copy does not follow the new primary yet".into()))
    }

    fn rebuild(&self) -> Result<()> {
        self.shared.rebuild()
    }

    fn pace(&self, bytes: u64) -> bool {
        let now = Instant::now();
        let paid = self.paid.get().max(now) + Duration::from_secs_f64(bytes as f64 / self.bytes_per_s as f64);
        self.paid.set(paid);
        self.waits_until(paid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_goes_on_where_it_was_and_the_next_one_is_a_week_later() {
        let week = ROUND.as_secs();
        let of = |began_s, ended_s| Progress { after: None, began_s, ended_s };
        // The first one, one that was interrupted, and one that took longer than a week.
        assert!(is_due(&of(0, 0), 5 * week, None));
        assert!(is_due(&of(3 * week, 2 * week), 3 * week + 1, None));
        assert!(is_due(&of(week, 2 * week + 7), 2 * week + 8, None));
        assert!(!is_due(&of(week, week + 7), 2 * week - 1, None));
        assert!(is_due(&of(week, week + 7), 2 * week, None));
        assert!(is_due(&of(week, week + 7), week - 1, None));
    }

    #[test]
    fn damage_that_was_left_is_looked_at_sooner() {
        let done = Progress { after: None, began_s: 1_000, ended_s: 2_000 };
        assert!(!is_due(&done, 2_000 + 3_599, Some(DAMAGED_AGAIN)));
        assert!(is_due(&done, 2_000 + 3_600, Some(DAMAGED_AGAIN)));
        assert!(!is_due(&done, 2_000 + 3_600, None));
    }
}
