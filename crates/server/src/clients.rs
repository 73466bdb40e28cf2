//! Clients that are served over the stores: the keyspace, the service, and the threads that listen.
//!
//! Stop order: the threads first, which answer what they have begun; then nobody holds the stores
//! any more but its owner.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ecotone_engine::{Durability, DutyObserver, Error as StoreError};
use ecotone_keyspace::{Keyspace, ShardError};
use ecotone_membership::{Announced, Known};
use ecotone_replication::is_replicated;
use ecotone_resp::cluster_view::ServerView;
use ecotone_resp::serve::{Heartbeat, Listen, Listening, Machine, ServeError, Server};
use ecotone_resp::service::Service;
use tracing::{info, warn};

use crate::cluster_view::{Alone, address_text};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::host::copies::CopiesHandle;
use crate::host::{Around, ServerHost};
use crate::host_load::HostLoad;
use crate::options::ClientOptions;
use crate::shards::Viewer;

/// In how many places keys may be, by the map: more than one where a shard has copies, as another
/// server may have it next.
fn places(known: &Known) -> usize {
    let is_copied = known.map.shards.values().any(|shard| is_replicated(&known.map, shard));
    known.map.shards.len().max(if is_copied { 2 } else { 0 })
}

/// A clock that is corrected by less than this is not worth a warning.
const CLOCK_WARNING: Duration = Duration::from_secs(60);

/// Clients are served until it is stopped.
pub(crate) struct Served {
    server: Server,
    service: Arc<Service>,
    alone: Arc<Alone>,
    /// This server, as clients are told of it.
    own: ServerView,
    config: Config,
    copies: CopiesHandle,
}

impl Served {
    /// Listens, and serves what `around` has. `durability` is that of the stores.
    pub(crate) fn start(
        options: ClientOptions,
        around: Around,
        durability: Durability,
        duties: Arc<dyn DutyObserver>,
    ) -> Result<Served> {
        let mut limits = options.config.limits()?;
        let most = options.max_clients()?;
        if limits.clients > most {
            warn!(
                "clients.max_clients is {}, but the process may open too few files for so many: {most} are served; raise its limit \
                 (ulimit -n, LimitNOFILE)",
                limits.clients
            );
            limits.clients = most;
        }
        let has_password = limits.password.is_some();
        warn_if_anybody_reads_the_password(&options.config);
        let asks_certificate = options.listen.tls.as_ref().is_some_and(|tls| tls.files.client_ca.is_some());
        let config = options.config.clone();
        if let Some(path) = &options.listen.socket {
            refuse_other_than_socket(path, &config)?;
        }
        let shards = around.stores.shards();
        let forgets_time = options.config.trusts_system_clock()?;
        for shard in shards.iter().filter(|_| forgets_time) {
            match Keyspace::forget_time(&shard.store) {
                // A full store is there to be read; keys expire by the later clock meanwhile.
                Err(error @ (StoreError::OutOfSpace { .. } | StoreError::DiskFull { .. })) => {
                    warn!(%error, "clients.trust_system_clock has no effect yet: start once more when there is free space");
                }
                forgotten => forgotten?,
            }
        }
        let (store_directory, address) = (around.stores.first_directory(), around.federation.address().to_owned());
        let (membership, known) = (around.federation.membership().cloned(), around.known.clone());
        let copies = around.copies.clone();
        let keyspace = Keyspace::open_shards(shards, durability).map_err(|error| match error {
            ShardError::Store(error) => Error::Store(error),
            other => Error::Shard(other),
        })?;
        warn_of_clock(keyspace.clock().ahead_of_system());
        let host = Arc::new(ServerHost::new(options.config, most, around, options.shut_down, options.allocator));
        let service = Arc::new(Service::new(keyspace, limits, host.clone()));
        let alone = Arc::new(Alone::new(&config, &store_directory, &address, &service.run_id)?);
        // Before the first client comes; a port that is any free one is known only after.
        let tls_addresses = options.listen.tls.as_ref().map(|tls| tls.addresses.as_slice()).unwrap_or_default();
        let first = match &known {
            Some(known) => alone.view_of(known, &alone.server(&options.listen.addresses, tls_addresses), &[]),
            None => alone.view(&options.listen.addresses, tls_addresses),
        };
        service.cluster.set_mode(config.cluster_mode(known.as_deref().map_or(1, places)));
        service.cluster.publish(first);
        let mut host_load = HostLoad::new();
        let machine = Machine {
            duties: Some(duties),
            idle_cores: Some(Box::new(move || host_load.idle_cores())),
            panicked: Some(options.panicked),
        };
        let server = Server::start(service.clone(), &options.listen, machine).map_err(|error| match error {
            ServeError::Listen { address, source } => cannot_listen(&options.listen, &config, &address, &source),
            ServeError::Tls(error) => config.explain_tls(&error),
            ServeError::Thread(source) => Error::Thread { what: "clients", source },
        })?;
        let listening = server.listening();
        let own = alone.server(&listening.addresses, &listening.tls_addresses);
        match &membership {
            // Clients are told of changes by who opens the shards that come with them.
            Some(membership) => {
                let clients = address_text(&own, &address);
                membership.announce(Announced { peers: address, clients: Some(clients) });
            }
            None => service.cluster.publish(alone.view(&listening.addresses, &listening.tls_addresses)),
        }
        host.serves(&service, listening.clone());
        log_addresses(server.listening(), has_password, asks_certificate);
        Ok(Served { server, service, alone, own, config, copies })
    }

    /// What clients are told of the federation, as it changes.
    pub(crate) fn viewer(&self) -> Viewer {
        let (alone, own, config) = (self.alone.clone(), self.own.clone(), self.config.clone());
        let copies = self.copies.clone();
        Box::new(move |known, service| {
            let view = alone.view_of(known, &own, &copies.facts());
            service.cluster.set_mode(config.cluster_mode(places(known)));
            view
        })
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
    pub(crate) fn heartbeats(&self) -> &Arc<[Heartbeat]> {
        self.server.heartbeats()
    }

    /// Takes no more requests, sends what is owed, and closes all connections.
    pub(crate) fn stop(self) {
        // Its client gets the error before it is disconnected.
        self.service.compactions.end();
        self.server.stop();
        self.service.inspections.finish();
        self.service.compactions.finish();
        self.service.saves.stop();
        self.service.backups.finish();
        self.service.federation.finish();
    }
}

/// A socket that was left behind is replaced; anything else is somebody's file.
fn refuse_other_than_socket(path: &Path, config: &Config) -> Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            let why = format!("{} is there and is no socket; remove it or choose another path", path.display());
            Err(config.refuse("clients.unix_socket", &why))
        }
        _ => Ok(()),
    }
}

/// Names the key, and its place, of the address that cannot be listened on.
fn cannot_listen(listen: &Listen, config: &Config, address: &str, error: &std::io::Error) -> Error {
    let is_socket = listen.socket.as_ref().is_some_and(|path| path.display().to_string() == address);
    let is_plain = listen.addresses.iter().any(|own| own.to_string() == address);
    let (key, instead) = match (is_socket, is_plain) {
        (true, _) => ("clients.unix_socket", "make its folder, end the process that has it, or choose another path"),
        (_, true) => {
            ("clients.listen", "choose another address (--clients or clients.listen), or end the process that has it")
        }
        _ => ("clients.tls_listen", "choose another address, or end the process that has it"),
    };
    config.refuse(key, &format!("cannot listen on {address}: {error}; {instead}"))
}

fn warn_if_anybody_reads_the_password(config: &Config) {
    let Some(file) = config.file_that_says("clients.password") else { return };
    let mode = std::fs::metadata(file).map_or(0, |found| found.mode());
    if mode & 0o004 != 0 {
        warn!(
            file = %file.display(), mode = format!("{:o}", mode & 0o777),
            "clients.password is in a file that everybody may read: chmod 640, or give it by ECOTONE_CLIENTS_PASSWORD"
        );
    }
}

fn warn_of_clock(ahead: Duration) {
    if ahead >= CLOCK_WARNING {
        warn!(
            ahead_s = ahead.as_secs(),
            "the system's clock is behind the latest time of this store, and keys expire by the later one. If the system's clock is right \
             now and was ahead before, start once with clients.trust_system_clock = true"
        );
    }
}

fn log_addresses(listening: &Listening, has_password: bool, asks_certificate: bool) {
    let addresses = listening.addresses.iter().map(ToString::to_string);
    let socket = listening.socket.iter().map(|path| path.display().to_string());
    let plain = addresses.chain(socket).collect::<Vec<_>>().join(", ");
    let tls = listening.tls_addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let tls = (!tls.is_empty()).then_some(tls.as_str());
    match (has_password, asks_certificate) {
        (true, true) => {
            info!(listening = plain, tls, "clients are served; a password is asked for, by TLS also a certificate")
        }
        (true, false) => info!(listening = plain, tls, "clients are served; a password is asked for"),
        (false, true) => info!(
            listening = plain,
            tls,
            "clients are served, by TLS those that show a certificate, otherwise of this machine only: set clients.password to listen beyond it"
        ),
        (false, false) => info!(
            listening = plain,
            tls, "clients are served, of this machine only: set clients.password to listen beyond it"
        ),
    }
}
