//! One copy's files are compared with what they should hold, and those that differ are replaced by
//! another copy's.
//!
//! What a file should hold is what the primary says of it, where it answers; else what the copy
//! itself remembers. Whatever differs is asked for and compared once more before it is called
//! damaged: files are finished, fetched and deleted meanwhile.
//!
//! | what differs | what is done |
//! |---|---|
//! | a table or a sealed segment of a replica | fetched by content, put in its place by a rename |
//! | the same of a primary | another copy has it whole: it becomes the primary first, then as above |
//! | a WAL, a MANIFEST or a growing segment of a replica | the directory is built anew |
//! | what no other copy has whole | it stays, and is named |
//! | a replica's file is as it was, and another copy's as well; the primary has another | as above |
//!
//! A primary's own WAL and MANIFEST are compared by nobody here: the stream that its replicas have
//! checked was made of them.
//!
//! Invariant: nothing is put in a file's place that does not have its content id.
//!
//! Threads: that of who calls, for as long as all files take.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use ecotone_control::ids::MemberId;
use ecotone_mirror::comparing::{Compared, Held, compare_finished, compare_part, tables_and_segments};
use ecotone_mirror::directory::Want;
use ecotone_mirror::names::FileName;
use ecotone_replica::position::Mark;
use ecotone_replica::stream::ContentId;

use crate::error::{Error, Result};

/// What files should hold is asked for anew after so long.
const MAX_VIEW_AGE: Duration = Duration::from_secs(600);
/// How long it may take until a directory that is built anew is in its place.
const MAX_REBUILD_TIME: Duration = Duration::from_secs(3_600);
/// Between two looks at it.
const REBUILD_LOOK: Duration = Duration::from_millis(200);

/// What a copy of a shard is asked by who compares its files.
pub(crate) trait Subject {
    /// Where they are.
    fn directory(&self) -> &Path;
    /// What they should hold, by the copy itself, and whether it is the primary.
    fn held(&self) -> Result<(Held, bool)>;
    /// What finished files should hold by the primary, at a mark. None: it does not answer.
    fn at_primary(&self) -> Option<(Mark, BTreeMap<FileName, ContentId>)>;
    /// Fetches a file by content from another copy, and compares it. Says whose it is, or for people
    /// why there is none. `is_primary`: who has it should be able to become the primary.
    fn fetch(&self, want: &Want, is_primary: bool) -> Result<std::result::Result<MemberId, String>>;
    /// Puts it in its place. False: it belongs there no more.
    fn replace(&self, want: &Want) -> Result<bool>;
    /// Makes another server the primary. Returns when this one follows it.
    fn hand_over(&self, to: MemberId) -> Result<()>;
    /// Has the directory built anew.
    fn rebuild(&self) -> Result<()>;
    /// Waits as reading so many bytes should take. False: stop.
    fn pace(&self, bytes: u64) -> bool;
}

/// What has become of a file that differed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Another server's took its place.
    Replaced(MemberId),
    /// The directory was built anew.
    Rebuilt,
    /// It is as it was: why, for people.
    Left(String),
}

/// A file that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) file: FileName,
    /// How that is seen.
    pub(crate) what: String,
    pub(crate) outcome: Outcome,
}

/// Who follows a comparison.
pub(crate) trait Observer {
    /// So many files with so many bytes are to be compared.
    fn begins(&mut self, is_primary: bool, files: u64, bytes: u64);
    /// A file of so many bytes was compared, or there is nothing to compare it with.
    fn compared(&mut self, file: FileName, bytes: u64);
    /// A file holds what it should, or is not there any more.
    fn is_sound(&mut self, file: FileName);
    /// One differs.
    fn found(&mut self, finding: Finding);
    /// Another server is the primary now.
    fn handed_over(&mut self, to: MemberId);
}

/// How a comparison has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// All files were compared.
    Done,
    /// The pace has said so.
    Stopped,
}

/// What files should hold.
struct View {
    held: Held,
    is_primary: bool,
    at_primary: Option<(Mark, BTreeMap<FileName, ContentId>)>,
    /// Files that may grow.
    growing: BTreeSet<FileName>,
    at: Instant,
}

impl View {
    fn of(subject: &dyn Subject) -> Result<View> {
        // First: what is deleted there meanwhile is not called missing here, as it is asked again.
        let at_primary = subject.at_primary();
        let (held, is_primary) = subject.held()?;
        let growing = held.growing.iter().map(|part| part.file).collect();
        let at_primary = at_primary.filter(|_| !is_primary);
        Ok(View { held, is_primary, at_primary, growing, at: Instant::now() })
    }

    /// What the file should hold, if it should be here.
    fn expected(&self, file: FileName) -> Option<ContentId> {
        if self.growing.contains(&file) || self.held.absent.contains(&file) {
            return None;
        }
        match &self.at_primary {
            // What is not there is deleted, or finished behind this mark.
            Some((_, contents)) => contents.get(&file).copied(),
            None => self.held.finished.get(&file).copied(),
        }
    }

    /// Whether it is damage that such a file is missing.
    fn is_due(&self, file: FileName) -> bool {
        match &self.at_primary {
            // It had it, or has come past where it got it.
            Some((mark, _)) => {
                let (here, there) = (self.held.mark.position, mark.position);
                self.held.finished.contains_key(&file) || here.epoch == there.epoch && here.number >= there.number
            }
            // The catalog of a replica may name what it has deleted.
            None => self.is_primary,
        }
    }

    /// All files that should be here or are, with their lengths.
    fn files(&self, directory: &Path) -> Result<BTreeMap<FileName, u64>> {
        let mut files: BTreeMap<FileName, u64> = tables_and_segments(directory)?.into_iter().collect();
        let known = self.at_primary.as_ref().map_or(&self.held.finished, |(_, contents)| contents);
        for (file, content) in known {
            files.entry(*file).or_insert(content.len);
        }
        files.retain(|file, _| self.expected(*file).is_some());
        Ok(files)
    }
}

/// Compares the files behind `after`, in their order, and then those that grow.
///
/// # Errors
/// What keeps this from going on: of the files, or that the copy is being opened or closed.
pub(crate) fn compare(subject: &dyn Subject, after: Option<FileName>, observer: &mut dyn Observer) -> Result<End> {
    let mut view = View::of(subject)?;
    let mut files = view.files(subject.directory())?;
    files.retain(|file, _| after.is_none_or(|after| *file > after));
    observer.begins(view.is_primary, files.len() as u64, files.values().sum());
    for (file, bytes) in files {
        if view.at.elapsed() > MAX_VIEW_AGE {
            view = View::of(subject)?;
        }
        if compare_one(subject, &mut view, file, observer)? == End::Stopped {
            return Ok(End::Stopped);
        }
        observer.compared(file, bytes);
    }
    compare_growing(subject, observer)
}

fn compare_one(subject: &dyn Subject, view: &mut View, file: FileName, observer: &mut dyn Observer) -> Result<End> {
    let mut differs = None;
    // Twice: what it should hold may have changed since it was asked for.
    for is_again in [false, true] {
        if is_again {
            *view = View::of(subject)?;
        }
        let Some(content) = view.expected(file) else { break };
        let compared = compare_finished(subject.directory(), file, content, &mut |bytes| subject.pace(bytes))?;
        differs = match compared {
            Compared::Stopped => return Ok(End::Stopped),
            Compared::Differs(what) => Some((content, what)),
            Compared::Missing if view.is_due(file) => Some((content, "it is missing".to_owned())),
            Compared::Same | Compared::Missing => None,
        };
        if differs.is_none() {
            break;
        }
    }
    let Some((content, what)) = differs.filter(|_| view.expected(file).is_some()) else {
        observer.is_sound(file);
        return Ok(End::Done);
    };
    if is_primarys_fault(subject, view, Want { file, content })? {
        let outcome = Outcome::Left("another copy has it as it is here, and the primary does not".to_owned());
        observer.found(Finding { file, what, outcome });
        return Ok(End::Done);
    }
    let outcome = mend(subject, view, Want { file, content }, observer)?;
    match outcome {
        Some(outcome) => observer.found(Finding { file, what, outcome }),
        None => observer.is_sound(file),
    }
    Ok(End::Done)
}

/// A primary may have read damage and taken it for what its file should hold. Where a replica's file
/// is what it was when it was compared first, and another copy has the same, it is not replaced.
fn is_primarys_fault(subject: &dyn Subject, view: &View, want: Want) -> Result<bool> {
    let remembered = view.held.finished.get(&want.file).copied();
    let Some(content) = remembered.filter(|content| !view.is_primary && *content != want.content) else {
        return Ok(false);
    };
    let compared = compare_finished(subject.directory(), want.file, content, &mut |bytes| subject.pace(bytes))?;
    match compared {
        Compared::Same => Ok(subject.fetch(&Want { content, ..want }, false)?.is_ok()),
        Compared::Differs(_) | Compared::Missing => Ok(false),
        Compared::Stopped => Err(Error::Stopped),
    }
}

/// None: it is not needed any more.
fn mend(subject: &dyn Subject, view: &mut View, want: Want, observer: &mut dyn Observer) -> Result<Option<Outcome>> {
    let from = match subject.fetch(&want, view.is_primary)? {
        Ok(from) => from,
        Err(why) => return Ok(Some(Outcome::Left(why))),
    };
    if view.is_primary {
        // The store has the damaged file open: it is mended where it is closed.
        match subject.hand_over(from) {
            Ok(()) => observer.handed_over(from),
            Err(Error::Stopped) => return Err(Error::Stopped),
            Err(error) => {
                return Ok(Some(Outcome::Left(format!(
                    "{from} has it whole, but the shard cannot be handed over to it so that this copy is mended: {error}"
                ))));
            }
        }
    }
    *view = View::of(subject)?;
    if view.expected(want.file) != Some(want.content) {
        return Ok(None);
    }
    Ok(subject.replace(&want)?.then_some(Outcome::Replaced(from)))
}

/// Compares what grows. Where that differs the whole directory is built anew, and compared again.
fn compare_growing(subject: &dyn Subject, observer: &mut dyn Observer) -> Result<End> {
    let Some(mut differing) = differing_parts(subject)? else { return Ok(End::Stopped) };
    if !differing.is_empty() {
        // What was read may have been cut, and written again.
        let Some(again) = differing_parts(subject)? else { return Ok(End::Stopped) };
        differing.retain(|file, _| again.contains_key(file));
    }
    if differing.is_empty() {
        return Ok(End::Done);
    }
    subject.rebuild()?;
    let until = Instant::now() + MAX_REBUILD_TIME;
    let mut outcome = Outcome::Left("it was not built anew within an hour, which goes on".to_owned());
    while Instant::now() < until {
        std::thread::sleep(REBUILD_LOOK);
        if !subject.pace(0) {
            return Ok(End::Stopped);
        }
        match differing_parts(subject) {
            Ok(None) => return Ok(End::Stopped),
            Ok(Some(left)) if left.is_empty() => {
                outcome = Outcome::Rebuilt;
                break;
            }
            Err(Error::Stopped) => return Err(Error::Stopped),
            // It is being put in place.
            Ok(Some(_)) | Err(_) => (),
        }
    }
    for (file, what) in differing {
        observer.found(Finding { file, what, outcome: outcome.clone() });
    }
    Ok(End::Done)
}

/// Of what grows, what differs. None: it was stopped.
fn differing_parts(subject: &dyn Subject) -> Result<Option<BTreeMap<FileName, String>>> {
    let (held, _) = subject.held()?;
    let mut differing = BTreeMap::new();
    for part in held.growing {
        match compare_part(subject.directory(), part, &mut |bytes| subject.pace(bytes))? {
            Compared::Stopped => return Ok(None),
            Compared::Same => (),
            Compared::Differs(what) => drop(differing.insert(part.file, what)),
            Compared::Missing => drop(differing.insert(part.file, "it is missing".to_owned())),
        }
    }
    Ok(Some(differing))
}

#[cfg(test)]
mod tests;
