//! What is wrong with a copy, for people: of each kind of work the last trouble, until that work is
//! done again.

use std::collections::BTreeMap;

/// What a copy does that may fail, and is tried again. The first of what fails is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Work {
    /// Its directory is put in place, or read.
    Files,
    /// The store is opened and closed.
    Store,
    Sync,
    Persist,
    /// Items are applied.
    Apply,
    /// What is pending is done.
    Advance,
    /// An opening that is held back is thrown away.
    Abandon,
    /// Items are read again to be sent.
    Read,
    /// Segments are made of others.
    Make,
    /// Finished files are fetched.
    Fetch,
    /// All files are fetched.
    Seed,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Troubles(BTreeMap<Work, String>);

impl Troubles {
    /// This is wrong now. Whether that is news.
    pub(crate) fn add(&mut self, of: Work, what: String) -> bool {
        self.0.insert(of, what.clone()) != Some(what)
    }

    /// The work was done, or is there no more.
    pub(crate) fn end(&mut self, of: Work) {
        self.0.remove(&of);
    }

    /// All is begun anew.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// What people are shown.
    pub(crate) fn shown(&self) -> Option<String> {
        self.0.values().next().cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trouble_is_shown_until_its_own_work_is_done_again() {
        let mut troubles = Troubles::default();
        assert!(troubles.add(Work::Fetch, "no file".into()));
        assert!(troubles.add(Work::Apply, "no space".into()));
        assert!(!troubles.add(Work::Apply, "no space".into()), "nothing new");
        troubles.end(Work::Sync);
        assert_eq!(troubles.shown().as_deref(), Some("no space"));
        troubles.end(Work::Apply);
        assert_eq!(troubles.shown().as_deref(), Some("no file"));
        assert!(troubles.add(Work::Apply, "no space".into()), "it is back");
        troubles.clear();
        assert_eq!(troubles.shown(), None);
    }
}
