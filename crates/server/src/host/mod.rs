//! The server around the protocol, as its commands see it: INFO, CONFIG and SHUTDOWN.
//!
//! Threads: any may ask. A change of settings holds the lock on them, so that of two changes one
//! comes after the other.

pub(crate) mod copies;
pub(crate) mod federation;
mod info;
mod named;
mod settings;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock, Weak};

use ecotone_cluster::Federation;
use ecotone_control::ids::MemberId;
use ecotone_energy::EnergyThread;
use ecotone_membership::Known;
use ecotone_policy::policy::PolicyName;
use ecotone_resp::cluster_view::LinkView;
use ecotone_resp::federation::FederationRequest;
use ecotone_resp::host::{Allocator, BackupTarget, Host, HostError, InfoSection};
use ecotone_resp::serve::Listening;
use ecotone_resp::service::Service;
use ecotone_types::ServerId;
use parking_lot::Mutex;
use tracing::{info, warn};

use self::copies::CopiesHandle;
use crate::cluster_view::server_id;
use crate::config::{Config, Replaced};
use crate::monitor::SamplerState;
use crate::replica_reads::{self, ReadsHandle};
use crate::stores::Stores;

/// What a server consists of besides its clients.
pub(crate) struct Around {
    pub(crate) stores: Arc<Stores>,
    /// What was known of the federation when the stores were opened.
    pub(crate) known: Option<Arc<Known>>,
    pub(crate) federation: Arc<Federation>,
    pub(crate) energy: Arc<EnergyThread>,
    pub(crate) sampler: Arc<SamplerState>,
    pub(crate) name: ServerId,
    pub(crate) join: Option<String>,
    pub(crate) policy: PolicyName,
    pub(crate) worker_slots: u32,
    /// What drives copies of shards, once something does.
    pub(crate) copies: CopiesHandle,
    /// The copies that clients read here, once there may be some.
    pub(crate) reads: ReadsHandle,
}

/// The server, for the commands of its clients.
pub(crate) struct ServerHost {
    config: Mutex<Config>,
    /// More clients are never allowed: for these there are file descriptors.
    max_clients: usize,
    rewriting: Mutex<()>,
    around: Around,
    shut_down: Arc<dyn Fn() + Send + Sync>,
    allocator: Option<Arc<dyn Allocator>>,
    serving: OnceLock<Serving>,
}

/// What exists only once clients are listened for.
struct Serving {
    /// Weak: the service holds its host.
    service: Weak<Service>,
    listening: Listening,
}

impl ServerHost {
    pub(crate) fn new(
        config: Config,
        max_clients: usize,
        around: Around,
        shut_down: Arc<dyn Fn() + Send + Sync>,
        allocator: Option<Arc<dyn Allocator>>,
    ) -> ServerHost {
        let config = Mutex::new(config);
        let (rewriting, serving) = (Mutex::default(), OnceLock::new());
        ServerHost { config, max_clients, rewriting, around, shut_down, allocator, serving }
    }

    /// Clients are served from now on.
    pub(crate) fn serves(&self, service: &Arc<Service>, listening: Listening) {
        let _ = self.serving.set(Serving { service: Arc::downgrade(service), listening });
    }
}

impl Host for ServerHost {
    fn info(&self, name: &str) -> Vec<InfoSection> {
        let is_asked = |section: &str| matches!(name, "default" | "all" | "everything") || name == section;
        let mut sections = Vec::new();
        if is_asked("server") {
            let file = self.config.lock().file().and_then(|file| std::path::absolute(file).ok());
            let shown = file.map(|file| file.display().to_string()).unwrap_or_default();
            sections.push(InfoSection { name: "Server", lines: vec![("config_file".to_owned(), shown)] });
        }
        if is_asked("store") {
            let keys = self.around.sampler.sample().and_then(|sample| sample.keys);
            sections.push(InfoSection { name: "Store", lines: info::store(&self.around.stores, keys) });
        }
        if is_asked("federation") {
            sections.push(InfoSection { name: "Federation", lines: info::federation(&self.around) });
        }
        if is_asked("cluster") {
            let lines = federation::lines(&self.around.federation, &self.around.copies);
            sections.push(InfoSection { name: "Cluster", lines });
        }
        if is_asked("replication") {
            let lines = replica_reads::info_lines(&self.around.reads.facts());
            sections.push(InfoSection { name: "Replication", lines });
        }
        if is_asked("energy") {
            sections.push(InfoSection { name: "Energy", lines: info::energy(&self.around) });
        }
        // As long as an hour: for who asks for it by its name.
        if name == "energy_history" {
            sections.push(InfoSection { name: "Energy_history", lines: info::energy_history(&self.around) });
        }
        sections
    }

    fn settings(&self, matches: &dyn Fn(&str) -> bool) -> BTreeMap<String, String> {
        let mut all = settings::all(&self.config.lock(), self.serving.get().map(|serving| &serving.listening));
        if let Some(service) = self.serving.get().and_then(|serving| serving.service.upgrade()) {
            // As many as there are descriptors for, as Redis shows it; under our own name is what
            // was asked for.
            all.insert("maxclients".into(), service.limits.read().clients.to_string());
        }
        all.retain(|name, _| matches(name));
        all
    }

    fn allocator(&self) -> Option<&dyn Allocator> {
        self.allocator.as_deref()
    }

    fn is_secret(&self, name: &str) -> bool {
        settings::is_secret(name)
    }

    fn change(&self, settings: &[(String, String)]) -> Result<(), String> {
        let mut config = self.config.lock();
        let listening = self.serving.get().map(|serving| &serving.listening);
        let changed = settings::changed(&config, listening, settings)?;
        let mut limits = changed.limits().map_err(|error| settings::unfit(settings, &error.to_string()))?;
        if limits.clients > self.max_clients {
            settings::refuse_clients(settings, self.max_clients)?;
            limits.clients = self.max_clients;
        }
        if let Some(service) = self.serving.get().and_then(|serving| serving.service.upgrade()) {
            service.set_limits(limits);
        }
        let paths = settings::paths(settings);
        for (path, place) in changed.lost_at_next_start(&paths.iter().map(String::as_str).collect::<Vec<_>>()) {
            warn!(
                setting = path, %place,
                "CONFIG SET has changed a setting that counts until the server ends: at the next start the other place counts again, also \
                 after CONFIG REWRITE; change it there"
            );
        }
        *config = changed;
        Ok(())
    }

    fn rewrite(&self) -> Result<(), String> {
        let _one_at_a_time = self.rewriting.lock();
        // What is written takes the time of the device, in which others ask for settings.
        let config = self.config.lock().clone();
        if config.file().is_none() {
            return Err("The server is running without a config file".into());
        }
        let (written, replaced) = config.rewrite().map_err(|error| format!("Rewriting config file: {error}"))?;
        let file = config.file().unwrap_or(Path::new("")).display();
        for (path, place) in config.lost_at_next_start(&written) {
            warn!(
                setting = path, %file, %place,
                "CONFIG REWRITE has written a setting into the file over which another place wins: at the next start that counts; change it there"
            );
        }
        match replaced {
            Replaced::Whole => info!(%file, settings = written.join(", "), "the configuration is written"),
            Replaced::InPlace { why } => {
                info!(%file, settings = written.join(", "), why, "the configuration is written, in place: the file could not be replaced")
            }
        }
        Ok(())
    }

    fn backup_target(&self) -> Option<Arc<dyn BackupTarget>> {
        Some(Arc::new(self.config.lock().backup_target()?))
    }

    fn federation(&self, request: &FederationRequest) -> Result<Vec<u8>, String> {
        federation::answer(&self.around.federation, &self.around.copies, request)
    }

    fn links(&self) -> Vec<LinkView> {
        let Some(membership) = self.around.federation.membership() else { return Vec::new() };
        let federation = membership.known().map.federation;
        let links = self.around.federation.links().into_iter().map(|link| LinkView {
            node: server_id(federation, MemberId(link.member.number())),
            is_outgoing: !link.is_incoming,
            since_ms: link.since_ms,
            queued_bytes: link.queued_bytes,
            buffer_bytes: link.buffer_bytes,
        });
        links.collect()
    }

    fn fail_over(&self, force: bool) -> Result<(), HostError> {
        let none = || HostError("this server is alone: there are no copies that it could take over".into());
        let known = self.around.federation.membership().ok_or_else(none)?.known();
        copies::fail_over(&self.around.copies, &known, force).map_err(HostError)
    }

    fn shut_down(&self) {
        (self.shut_down)();
    }
}
