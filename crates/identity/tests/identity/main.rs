//! Who a server is: tokens, the authority and its seal, certificates, renewals, and handshakes in
//! memory.

#![allow(clippy::unwrap_used)] // a test may panic

#[path = "../common/careless.rs"]
mod careless;
mod folders;
mod handshakes;
mod renewals;
mod seals;
mod tokens;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ecotone_identity::join::Joining;
use ecotone_identity::{Authority, Clock, Identity, Joined, MemberId, Result, Timestamp};
use ecotone_types::ServerId;

/// Some day in 2033.
const NOW: Timestamp = Timestamp(2_000_000_000);
const HOUR: u64 = 3600;

/// A clock that a test sets.
#[derive(Debug)]
struct Set(AtomicU64);

impl Set {
    fn at(now: Timestamp) -> Arc<Set> {
        Arc::new(Set(AtomicU64::new(now.0)))
    }

    fn set(&self, now: Timestamp) {
        self.0.store(now.0, Ordering::SeqCst);
    }
}

impl Clock for Set {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }
}

fn name(name: &str) -> ServerId {
    ServerId::new(name).unwrap()
}

fn identity(folder: &Path, clock: &Arc<Set>) -> Arc<Identity> {
    Arc::new(Identity::open(folder, clock.clone()).unwrap().unwrap())
}

/// What a server does that joins and is given this number, without a network.
fn join(authority: &Authority, number: u64, folder: &Path, called: &str, now: Timestamp) -> Result<Joined> {
    let joining = Joining::begin(folder, authority.issue_token(now)?, name(called))?;
    let member = MemberId::from_number(number);
    let issued = authority.issue(member, joining.name(), &joining.request, now)?;
    joining.end(&issued, member, 1, now)
}
