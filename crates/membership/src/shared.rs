//! What the tasks and services of a server's part in the federation share.

use std::sync::Arc;

use ecotone_control::ids::MemberId;
use ecotone_identity::Identity;
use ecotone_transport::connections::Connections;
use ecotone_transport::security::Security;
use parking_lot::RwLock;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::driver::Driver;
use crate::known::{Announced, Known};
use crate::outbox::Callers;
use crate::seal::Custody;

/// What tasks and services share.
pub(crate) struct Shared {
    pub(crate) member: MemberId,
    pub(crate) identity: Arc<Identity>,
    pub(crate) security: Arc<Security>,
    pub(crate) connections: Arc<Connections>,
    pub(crate) join: Option<String>,
    pub(crate) custody: Custody,
    pub(crate) announced: watch::Sender<Option<Announced>>,
    pub(crate) callers: Arc<Callers>,
    pub(crate) runtime: Handle,
    pub(crate) known: watch::Receiver<Arc<Known>>,
    /// None once the server stops.
    pub(crate) driver: RwLock<Option<Arc<Driver>>>,
}

impl Shared {
    pub(crate) fn known(&self) -> Arc<Known> {
        self.known.borrow().clone()
    }

    pub(crate) fn following(&self) -> watch::Receiver<Arc<Known>> {
        self.known.clone()
    }

    pub(crate) fn driver(&self) -> Option<Arc<Driver>> {
        self.driver.read().clone()
    }
}
