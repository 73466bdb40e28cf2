//! Federations whose servers show who they are, by a clock that the tests set.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ecotone_cluster::{Federation, Introduction, Options, join_federation};
use ecotone_control::entry::{Entry, NewServer};
use ecotone_control::ids::{DirectoryId, FederationId, MemberId};
use ecotone_control::map::{Addresses, Role};
use ecotone_identity::{Authority, Clock, Founded, Identity, JoinToken, Joined, Timestamp, found};
use ecotone_membership::folder::{self as logs, CONTROL_FOLDER};
use ecotone_membership::{Decision, FEATURES, Known, Options as MembershipOptions};
use ecotone_types::ServerId;
use tempfile::TempDir;

use crate::common::{Storeless, wait_until};

/// Some day in 2033.
pub const NOW: Timestamp = Timestamp(2_000_000_000);
pub const HOUR: u64 = 3600;
/// The folder of a server's identity, in its own.
pub const IDENTITY: &str = "identity";

#[derive(Debug)]
pub struct SetClock(AtomicU64);

impl SetClock {
    pub fn set(&self, now: Timestamp) {
        self.0.store(now.0, Ordering::SeqCst);
    }
}

impl Clock for SetClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }
}

pub fn name(name: &str) -> ServerId {
    ServerId::new(name).unwrap()
}

/// A federation's folders, and its time.
pub struct Made {
    directory: TempDir,
    pub clock: Arc<SetClock>,
    /// As its voters keep it.
    pub authority: Authority,
    first: String,
}

impl Made {
    pub fn by(first: &str) -> Made {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().join(first);
        let founded = found(&folder.join(IDENTITY), &name(first), NOW).unwrap();
        let server = NewServer {
            directory: DirectoryId(founded.joined.directory),
            name: name(first),
            addresses: Addresses::default(),
            zone: String::new(),
            role: Role::Data,
            features: FEATURES,
        };
        let federation = FederationId(founded.federation().bytes());
        logs::found(&folder.join(CONTROL_FOLDER), federation, server, founded.sealed, false).unwrap();
        Founded::end(&folder.join(IDENTITY)).unwrap();
        Joined::end(&folder.join(IDENTITY)).unwrap();
        let clock = Arc::new(SetClock(AtomicU64::new(NOW.0)));
        Made { directory, clock, authority: founded.authority, first: first.to_owned() }
    }

    pub fn folder(&self, called: &str) -> PathBuf {
        self.directory.path().join(called)
    }

    pub fn identity(&self, called: &str) -> Arc<Identity> {
        Arc::new(Identity::open(&self.folder(called).join(IDENTITY), self.clock.clone()).unwrap().unwrap())
    }

    /// As this server, which is one of the federation, and joins at `join`.
    pub fn being(&self, called: &str, join: Option<&str>, options: &mut Options) {
        options.identity = Some(self.identity(called));
        options.join = join.map(str::to_owned);
        options.membership = Some(MembershipOptions {
            directory: self.folder(called).join(CONTROL_FOLDER),
            identity_folder: self.folder(called).join(IDENTITY),
            join: join.map(str::to_owned),
            zone: String::new(),
            features: FEATURES,
        });
    }

    /// As the server that has made it.
    pub fn first(&self, options: &mut Options) {
        self.being(&self.first, None, options);
    }

    /// The first server, once it leads.
    pub fn coordinator(&self) -> Storeless {
        self.coordinator_with(|_| ())
    }

    pub fn coordinator_with(&self, change: impl FnOnce(&mut Options)) -> Storeless {
        let coordinator = Storeless::start(&self.first, |options| {
            self.first(options);
            change(options);
        });
        wait_until("it to lead", || coordinates(&coordinator.federation));
        coordinator
    }

    pub fn token(&self) -> JoinToken {
        self.authority.issue_token(self.clock.now()).unwrap()
    }

    pub fn join_with(&self, token: JoinToken, called: &str, address: &str) -> ecotone_cluster::Result<Joined> {
        let clock: Arc<dyn Clock> = self.clock.clone();
        let about = Introduction {
            min_feature_level: FEATURES.min,
            max_feature_level: FEATURES.max,
            ..Introduction::default()
        };
        join_federation(&self.folder(called).join(IDENTITY), address, token, name(called), &about, &clock)
    }

    /// The identity of a server that joins now.
    pub fn joined(&self, called: &str, address: &str) -> Arc<Identity> {
        let joined = self.join_with(self.token(), called, address).unwrap();
        logs::begin(
            &self.folder(called).join(CONTROL_FOLDER),
            FederationId(joined.federation.bytes()),
            joined.generation,
            MemberId(joined.member.number()),
            DirectoryId(joined.directory),
        )
        .unwrap();
        Joined::end(&self.folder(called).join(IDENTITY)).unwrap();
        self.identity(called)
    }

    /// A server that has joined.
    pub fn start(&self, called: &str, address: &str) -> Storeless {
        Storeless::start(called, |options| self.being(called, Some(address), options))
    }

    pub fn member(&self, called: &str, address: &str) -> Storeless {
        self.joined(called, address);
        self.start(called, address)
    }
}

/// What this server knows of its federation.
pub fn known(federation: &Federation) -> Arc<Known> {
    federation.membership().unwrap().known()
}

/// Whether it places the jobs of all.
pub fn coordinates(federation: &Federation) -> bool {
    known(federation).leads() && federation.servers().iter().any(|server| server.is_self && server.is_coordinator)
}

/// How many servers belong to the federation, as this one knows.
pub fn members(server: &Storeless) -> usize {
    known(&server.federation).map.members().count()
}

/// Removes a server, as the leader is asked to.
pub fn remove(leader: &Storeless, removed: &Identity) {
    let member = MemberId(removed.own().member.number());
    let remove = Entry::Remove { member, force: false };
    let decided = leader.federation.membership().unwrap().propose(remove).unwrap();
    assert_eq!(decided.decision, Decision::Changed);
}
