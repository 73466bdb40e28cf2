//! Clients that are served over the store: the keyspace, the service, and the threads that listen.
//!
//! Stop order: the threads first, which answer what they have begun; then nobody holds the store any more but its owner.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

use ecotone_engine::{Durability, DutyObserver, Store};
use ecotone_resp::keyspace::Keyspace;
use ecotone_resp::serve::{Listening, Pulse, ServeError, Server};
use ecotone_resp::service::Service;
use tracing::info;

use crate::error::{Error, Result};
use crate::host::{Around, ServerHost};
use crate::options::ClientOptions;

/// Clients are served until it is stopped.
pub(crate) struct Served {
    server: Server,
    service: Arc<Service>,
}

impl Served {
    /// Listens, and serves what `around` has. `durability` is that of the store.
    pub(crate) fn start(
        options: ClientOptions,
        around: Around,
        durability: Durability,
        duties: Arc<dyn DutyObserver>,
    ) -> Result<Served> {
        let limits = options.config.limits()?;
        let has_password = limits.password.is_some();
        if let Some(path) = &options.listen.socket {
            refuse_other_than_socket(path)?;
        }
        let store: Arc<Store> = around.store.clone();
        let keyspace = Keyspace::open(store, durability)?;
        let host = Arc::new(ServerHost::new(options.config, around, options.shut_down));
        let service = Arc::new(Service::new(keyspace, limits, host.clone()));
        let server = Server::start(service.clone(), &options.listen, Some(duties)).map_err(|error| match error {
            ServeError::Listen { .. } => Error::Configuration(format!(
                "clients: {error}; choose another address (--clients or clients.listen), or end the process that has it"
            )),
            ServeError::Thread(source) => Error::Thread { what: "clients", source },
        })?;
        host.serves(&service, server.listening().clone());
        tell(server.listening(), has_password);
        Ok(Served { server, service })
    }

    /// Where clients are listened for.
    pub(crate) fn listening(&self) -> &Listening {
        self.server.listening()
    }

    /// What is served.
    pub(crate) fn service(&self) -> &Arc<Service> {
        &self.service
    }

    /// The signs of life of its threads.
    pub(crate) fn pulses(&self) -> &Arc<[Pulse]> {
        self.server.pulses()
    }

    /// Takes no more requests, sends what is owed, and closes all connections.
    pub(crate) fn stop(self) {
        self.server.stop();
        self.service.saves.finish();
    }
}

/// A socket that was left behind is replaced; anything else is somebody's file.
fn refuse_other_than_socket(path: &Path) -> Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => Err(Error::Configuration(format!(
            "clients.unix_socket: {} is there and is no socket; remove it or choose another path",
            path.display()
        ))),
        _ => Ok(()),
    }
}

fn tell(listening: &Listening, has_password: bool) {
    let addresses = listening.addresses.iter().map(ToString::to_string);
    let socket = listening.socket.iter().map(|path| path.display().to_string());
    let listening = addresses.chain(socket).collect::<Vec<_>>().join(", ");
    if has_password {
        info!(%listening, "clients are served; a password is asked for");
    } else {
        info!(%listening, "clients are served, of this machine only: set clients.password to listen beyond it");
    }
}
