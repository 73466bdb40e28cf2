//! What several stores of a process take and reserve of one space, so that each counts what the
//! others will still write, and `max_bytes` is a limit of all of them together.
//!
//! Invariants: what a store told at its last probe counts for the others until the next. Between
//! probes the stores together let no more through than one store alone would: each has its part of
//! the budget.
//!
//! Bounds: a few bytes for each store, until it is dropped. Threads: any.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::RwLock;

/// A space that several stores share. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct SharedSpace(Arc<RwLock<Vec<Weak<Taken>>>>);

/// What one store takes of it.
#[derive(Debug, Default)]
struct Taken {
    used_bytes: AtomicU64,
    reserved_bytes: AtomicU64,
}

/// A store's part in a space, until it is dropped.
#[derive(Debug)]
pub(crate) struct SpaceMember {
    shared: SharedSpace,
    own: Arc<Taken>,
}

/// What all other stores take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct TakenByOthers {
    /// Bytes of their directories, where they count them.
    pub(crate) used_bytes: u64,
    /// Bytes that they will still write.
    pub(crate) reserved_bytes: u64,
}

impl SharedSpace {
    pub(crate) fn join(&self) -> SpaceMember {
        let own = Arc::new(Taken::default());
        let mut members = self.0.write();
        members.retain(|member| member.strong_count() > 0);
        members.push(Arc::downgrade(&own));
        SpaceMember { shared: self.clone(), own }
    }
}

impl SpaceMember {
    /// This store takes so much.
    pub(crate) fn tell(&self, used_bytes: u64, reserved_bytes: u64) {
        self.own.used_bytes.store(used_bytes, Ordering::Relaxed);
        self.own.reserved_bytes.store(reserved_bytes, Ordering::Relaxed);
    }

    /// What the others have told.
    pub(crate) fn others(&self) -> TakenByOthers {
        let members = self.shared.0.read();
        let others = members.iter().filter_map(Weak::upgrade).filter(|member| !Arc::ptr_eq(member, &self.own));
        others.fold(TakenByOthers::default(), |sum, member| TakenByOthers {
            used_bytes: sum.used_bytes.saturating_add(member.used_bytes.load(Ordering::Relaxed)),
            reserved_bytes: sum.reserved_bytes.saturating_add(member.reserved_bytes.load(Ordering::Relaxed)),
        })
    }

    /// How many stores share the space; at least 1.
    pub(crate) fn members(&self) -> i64 {
        self.shared.0.read().iter().filter(|member| member.strong_count() > 0).count().max(1) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counts_what_the_others_take_while_they_are_there() {
        let space = SharedSpace::default();
        let [one, two, three] = [space.join(), space.join(), space.join()];
        one.tell(10, 1);
        two.tell(20, 2);
        three.tell(30, 3);
        two.tell(25, 2);
        assert_eq!(one.others(), TakenByOthers { used_bytes: 55, reserved_bytes: 5 });
        assert_eq!((two.others().used_bytes, two.members()), (40, 3));
        drop(three);
        assert_eq!(one.others(), TakenByOthers { used_bytes: 25, reserved_bytes: 2 });
        assert_eq!((one.members(), SharedSpace::default().join().members()), (2, 1));
    }
}
