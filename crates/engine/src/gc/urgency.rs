//! Who waits for garbage collection, and what it tells them.
//!
//! Threads: any may ask; the thread of [`super::worker`] answers.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use ecotone_policy::gc::Hurry;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Urgency {
    /// Nobody writes: see [`Hurry::Idle`].
    is_idle: AtomicBool,
    /// How many users wait for a compaction of everything: see [`Hurry::Thorough`].
    thorough: AtomicU32,
    /// How often somebody has asked whether there is more to relocate, and how many of them are
    /// answered.
    asked: AtomicU64,
    answered: AtomicU64,
}

impl Urgency {
    /// How patient garbage collection is to be.
    pub(crate) fn hurry(&self) -> Hurry {
        match (self.thorough.load(Ordering::Acquire), self.is_idle.load(Ordering::Acquire)) {
            (1.., _) => Hurry::Thorough,
            (0, true) => Hurry::Idle,
            (0, false) => Hurry::None,
        }
    }

    /// Says whether nobody writes, and there is garbage to be freed meanwhile.
    pub(crate) fn set_idle(&self, is_idle: bool) {
        self.is_idle.store(is_idle, Ordering::Release);
    }

    /// Somebody waits for all garbage to be freed, or no longer.
    pub(crate) fn set_thorough(&self, waits: bool) {
        match waits {
            true => self.thorough.fetch_add(1, Ordering::AcqRel),
            false => self.thorough.fetch_sub(1, Ordering::AcqRel),
        };
    }

    /// Asks whether there is more to relocate: a ticket for [`has_answered`](Self::has_answered).
    /// Whoever asks wakes the thread.
    pub(crate) fn ask(&self) -> u64 {
        self.asked.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// The questions so far.
    pub(crate) fn asked(&self) -> u64 {
        self.asked.load(Ordering::Acquire)
    }

    /// A round that began after so many questions has found nothing more to do.
    pub(crate) fn answer(&self, asked: u64) {
        self.answered.fetch_max(asked, Ordering::AcqRel);
    }

    /// Whether a round since the question has found nothing more to do.
    pub(crate) fn has_answered(&self, ticket: u64) -> bool {
        self.answered.load(Ordering::Acquire) >= ticket
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_all_of_it_comes_first_and_is_answered_by_a_round_that_began_later() {
        let urgency = Urgency::default();
        assert_eq!(urgency.hurry(), Hurry::None);
        urgency.set_idle(true);
        urgency.set_thorough(true);
        urgency.set_thorough(true);
        assert_eq!(urgency.hurry(), Hurry::Thorough);
        urgency.set_thorough(false);
        assert_eq!(urgency.hurry(), Hurry::Thorough);
        urgency.set_thorough(false);
        assert_eq!(urgency.hurry(), Hurry::Idle);
        let before = urgency.asked();
        let ticket = urgency.ask();
        urgency.answer(before);
        assert!(!urgency.has_answered(ticket));
        urgency.answer(urgency.asked());
        assert!(urgency.has_answered(ticket));
    }
}
