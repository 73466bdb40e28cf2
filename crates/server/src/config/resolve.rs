//! What a server is started with, made of its settings; and which of them do not fit together.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use ecotone_cluster::Error as FederationError;
use ecotone_engine::{Error as StoreError, StoreSettings};
use ecotone_membership::folder::CONTROL_FOLDER;
use ecotone_policy::power::PowerSettings;
use ecotone_resp::cluster_view::{ClusterMode, Endpoint};
use ecotone_resp::serve::{EventLoops, Listen, ListenTls, TlsError, TlsFile, TlsFiles};
use ecotone_resp::service::{DebugCommand, Limits};
use ecotone_types::ServerId;
use ecotone_types::units::Watts;

use super::{Config, OFF, ON, keys};
use crate::backup::{BackupOptions, LocalTarget};
use crate::error::{Error, Result};
use crate::founding::IDENTITY_FOLDER;
use crate::host_memory::host_memory;
use crate::options::{HttpOptions, ServeOptions};
use crate::store_options::store_options;
use crate::stores::ShardOptions;

/// The word for a number that the server finds itself.
const AUTO: &str = "auto";

/// A store takes no less than so many memtables.
const MIN_MEMTABLES: u64 = 5;

/// And no less than so many reserves.
const MIN_RESERVES: u64 = 4;

/// The share of the memory that clients together may keep unless set otherwise.
const CLIENTS_MEMORY_SHARE: u64 = 8;

/// What cluster clients are told of a server, beside what it knows of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AnnouncedToClients {
    /// Empty: nothing was said.
    pub(crate) ip: String,
    /// Empty: none.
    pub(crate) host_name: String,
    pub(crate) port: Option<u16>,
    pub(crate) tls_port: Option<u16>,
    pub(crate) endpoint: Endpoint,
}

impl Config {
    /// What a server is started with, but for its clients ([`listen`](Self::listen)) and emulated
    /// cores.
    ///
    /// # Errors
    ///
    /// [`Error::Configuration`]: what is missing, or what does not fit together, and where it is set.
    pub fn serve_options(&self) -> Result<ServeOptions> {
        if self.text("server.dir").is_empty() {
            let why = "a server needs a folder: give --dir, server.dir in the configuration or ECOTONE_SERVER_DIR";
            return Err(Error::Configuration(why.into()));
        }
        self.check_backups()?;
        let store = self.store()?;
        let listen: SocketAddr = self.parsed("federation.listen")?;
        let given = |path: &str| Some(self.text(path)).filter(|text| !text.is_empty()).map(str::to_owned);
        let announce = given("federation.announce");
        if listen.ip().is_unspecified() && announce.is_none() {
            let why = "it listens on every interface; say with federation.announce under which address other servers reach it";
            return Err(self.refuse("federation.listen", why));
        }
        // Where it is not said it is named by its certificate, or by where others reach it.
        let name = given("server.name").map(ServerId::new).transpose();
        let options = ServeOptions {
            directory: PathBuf::from(self.text("server.dir")),
            listen,
            announce,
            join: given("federation.join"),
            token: given("federation.token"),
            zone: self.text("federation.zone").to_owned(),
            witness: self.is_witness(),
            name: name.map_err(|error| self.refuse("server.name", &error.to_string()))?,
            policy: self.parsed("federation.policy")?,
            cores: self.cores()?,
            emulated: None,
            active_watts: self.parsed("energy.active_watts")?,
            idle_watts: self.parsed("energy.idle_watts")?,
            power: PowerSettings {
                mode: self.parsed("power.mode")?,
                cap: self.number("power.cap_watts")?.map(|watts: u64| Watts(watts as f64)),
            },
            machine_root: PathBuf::from("/"),
            worker_slots: self.number("federation.worker_slots")?,
            network_bytes_per_s: self.parsed("federation.network_bytes_per_s")?,
            // What was asked for wins over the policy, also where it is RocksDB's default.
            max_subcompactions: self.number("store.max_subcompactions")?,
            store,
            shards: ShardOptions::only(),
            fits_memtables: !self.is_said("store.memtable_bytes") && !self.is_said("store.level_base_bytes"),
            clients: None,
            http: self.http()?,
            opened: None,
            lost_log_lines: None,
        };
        Ok(options)
    }

    /// Where `BGSAVE` makes backups, and how; `None`: nowhere.
    pub(crate) fn backup_target(&self) -> Option<LocalTarget> {
        let directory = self.path("backup.dir")?;
        // Each is a number or a word that means none; values have been checked.
        let number = |path: &str| self.text(path).parse().ok();
        let options =
            BackupOptions { limit_bytes_per_s: number("backup.limit_bytes_per_s"), keep: number("backup.keep") };
        Some(LocalTarget { directory, options })
    }

    /// Refuses a folder of backups among files that the server has for itself.
    fn check_backups(&self) -> Result<()> {
        let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
        let Some(backups) = self.path("backup.dir").map(absolute) else { return Ok(()) };
        let own = absolute(PathBuf::from(self.text("server.dir")));
        let is_own = backups == own
            || ["store", "shards", "worker", IDENTITY_FOLDER, CONTROL_FOLDER]
                .iter()
                .any(|within| backups.starts_with(own.join(within)));
        if is_own {
            let why = "the server has that folder for itself; name another, on another disk if it can be";
            return Err(self.refuse("backup.dir", why));
        }
        Ok(())
    }

    /// Where clients are listened for; `None`: nowhere.
    ///
    /// # Errors
    ///
    /// [`Error::Configuration`] if that is beyond this machine and no password is asked for, or a
    /// file of TLS cannot be used.
    pub fn listen(&self) -> Result<Option<Listen>> {
        let addresses = self.addresses("clients.listen");
        let socket = self.path("clients.unix_socket");
        if self.is_witness() {
            return self.refuse_clients_of_witness();
        }
        let tls = self.listen_tls()?;
        if addresses.is_empty() && socket.is_none() && tls.is_none() {
            return Ok(None);
        }
        self.check_limits()?;
        self.announced()?;
        let event_loops = match self.number("clients.event_loops")? {
            Some(event_loops) => EventLoops::All(event_loops),
            None => EventLoops::UpTo(self.cores()? as usize),
        };
        let blocking_threads = self.parsed("clients.blocking_threads")?;
        let uses_io_uring = self.parsed("clients.io_uring")?;
        Ok(Some(Listen { addresses, socket, tls, event_loops, blocking_threads, uses_io_uring }))
    }

    /// Whether it only votes.
    fn is_witness(&self) -> bool {
        self.text("federation.witness") == "true"
    }

    /// A witness has no clients: where somebody has said where they are listened for, that is a slip.
    fn refuse_clients_of_witness<T>(&self) -> Result<Option<T>> {
        let said = ["clients.listen", "clients.tls_listen", "clients.unix_socket"].into_iter().find(|path| {
            let text = self.text(path);
            self.is_said(path) && !text.is_empty() && text != OFF
        });
        let why =
            "a witness has no store, and so no clients: leave this out, or leave out federation.witness (--witness)";
        said.map_or(Ok(None), |path| Err(self.refuse(path, why)))
    }

    fn listen_tls(&self) -> Result<Option<ListenTls>> {
        let addresses = self.addresses("clients.tls_listen");
        if addresses.is_empty() {
            return Ok(None);
        }
        let file = |path: &str| {
            let why = format!("it takes {path}, the path of a PEM file");
            self.path(path).ok_or_else(|| self.refuse("clients.tls_listen", &why))
        };
        let files = TlsFiles {
            certificate: file("clients.tls_certificate")?,
            key: file("clients.tls_key")?,
            client_ca: self.path("clients.tls_client_ca"),
        };
        // Now, and not when the store is open already.
        files.check().map_err(|error| self.explain_tls(&error))?;
        Ok(Some(ListenTls { addresses, files, handshake_within: ListenTls::HANDSHAKE_WITHIN }))
    }

    /// Names the key, and its place, of the file that cannot be used.
    pub(crate) fn explain_tls(&self, error: &TlsError) -> Error {
        let path = match error.file {
            TlsFile::Certificate => "clients.tls_certificate",
            TlsFile::Key => "clients.tls_key",
            TlsFile::ClientCa => "clients.tls_client_ca",
        };
        self.refuse(path, &error.reason)
    }

    /// Where metrics and health checks are listened for; `None`: nowhere.
    fn http(&self) -> Result<Option<HttpOptions>> {
        let addresses = super::key::addresses(self.text("http.listen")).unwrap_or_default();
        let beyond = addresses.iter().find(|address| !is_loopback(address.ip()));
        if let Some(address) = beyond.filter(|_| self.text("http.public") != "true") {
            let why = format!(
                "{address} can be reached from other machines, and no password is asked for: set http.public = true (or \
                 ECOTONE_HTTP_PUBLIC) on a network that you trust, or listen on 127.0.0.1 only"
            );
            return Err(self.refuse_one_of(&["http.listen", "http.public"], &why));
        }
        let is_default = !self.is_said("http.listen");
        Ok((!addresses.is_empty()).then_some(HttpOptions { addresses, is_default }))
    }

    /// What clients may take.
    ///
    /// # Errors
    ///
    /// [`Error::Configuration`] where limits do not fit one another, or a password is needed.
    pub fn limits(&self) -> Result<Limits> {
        self.check_limits()?;
        let password = self.text("clients.password");
        Ok(Limits {
            clients: self.parsed("clients.max_clients")?,
            request_bytes: self.parsed("clients.max_request_bytes")?,
            argument_bytes: self.parsed("clients.max_argument_bytes")?,
            pipeline_requests: self.parsed("clients.pipeline_requests")?,
            output_bytes: self.parsed("clients.max_output_bytes")?,
            idle: self.number("clients.idle_timeout_s")?.map(Duration::from_secs),
            send: Duration::from_secs(self.parsed("clients.send_timeout_s")?),
            transaction_bytes: self.parsed("clients.transaction_bytes")?,
            memory_bytes: self.client_memory_bytes()?,
            password: (!password.is_empty()).then(|| password.to_owned()),
            slow_after: self.number("clients.slow_after_us")?.map(Duration::from_micros),
            slowlog_entries: self.parsed("clients.slowlog_entries")?,
            debug_command: DebugCommand::of(self.text("clients.enable_debug_command")).unwrap_or_default(),
        })
    }

    /// How clients are treated that ask for keys of other servers, where the federation has so many
    /// shards.
    pub(crate) fn cluster_mode(&self, shards: usize) -> ClusterMode {
        let said = self.text("clients.cluster");
        let is_cluster = said == ON || (said != OFF && shards > 1);
        ClusterMode { is_cluster, is_proxy: self.text("clients.proxy") == ON }
    }

    /// What cluster clients are told of this server, as far as it is said.
    ///
    /// # Errors
    ///
    /// [`Error::Configuration`]: host names are to be told, and it has none.
    pub(crate) fn announced(&self) -> Result<AnnouncedToClients> {
        let endpoint = Endpoint::of(self.text("clients.preferred_endpoint")).unwrap_or_default();
        let host_name = self.text("clients.announce_hostname").to_owned();
        if endpoint == Endpoint::HostName && host_name.is_empty() {
            let why = "clients are to be told host names: say clients.announce_hostname as well";
            return Err(self.refuse("clients.preferred_endpoint", why));
        }
        Ok(AnnouncedToClients {
            ip: self.text("clients.announce_ip").to_owned(),
            host_name,
            port: self.number("clients.announce_port")?,
            tls_port: self.number("clients.announce_tls_port")?,
            endpoint,
        })
    }

    /// Whether the system's clock counts though it is behind the store's clock.
    pub(crate) fn trusts_system_clock(&self) -> Result<bool> {
        self.parsed("clients.trust_system_clock")
    }

    fn client_memory_bytes(&self) -> Result<usize> {
        let bytes = match self.number("clients.max_memory_bytes")? {
            Some(bytes) => bytes,
            None => host_memory().map_or(1 << 30, |memory| memory.bytes / CLIENTS_MEMORY_SHARE),
        };
        Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    fn addresses(&self, path: &str) -> Vec<SocketAddr> {
        super::key::addresses(self.text(path)).unwrap_or_default()
    }

    fn path(&self, path: &str) -> Option<PathBuf> {
        Some(self.text(path)).filter(|text| !text.is_empty()).map(PathBuf::from)
    }

    /// Whether clients must give a password.
    fn asks_password(&self) -> bool {
        !self.text("clients.password").is_empty()
    }

    /// Names the key, and its place, of what the store refused, and of a folder that cannot be
    /// used; other errors stay what they are.
    pub fn explain(&self, error: Error) -> Error {
        if let Error::Federation(FederationError::Io { path, source, .. }) = &error
            && path.starts_with(self.text("server.dir"))
        {
            return self.refuse("server.dir", &format!("{} cannot be used: {source}", path.display()));
        }
        let Error::Store(StoreError::InvalidArgument { field, reason }) = &error else { return error };
        let path = match field.split_once('.') {
            Some(("space", _)) => (*field).to_owned(),
            Some((of, name)) => format!("store.{of}_{name}"),
            None => format!("store.{field}"),
        };
        if keys::find(&path).is_some() { self.refuse(&path, reason) } else { error }
    }

    /// The options of the store, as [`store_options`] makes them of what was said.
    pub(crate) fn store(&self) -> Result<StoreSettings> {
        let said = self.said.iter().filter_map(|(path, said)| {
            let said = said.last()?;
            let name = match path.split_once('.')? {
                ("store", name) => name.to_owned(),
                ("space", name) => format!("space_{name}"),
                _ => return None,
            };
            // The policy's choice is made where the policy is known.
            (said.text != AUTO || name != "max_subcompactions").then(|| format!("{name}={}", said.text))
        });
        let options = store_options(&said.collect::<Vec<_>>())?;
        self.check_store(&options)?;
        Ok(options)
    }

    fn check_store(&self, options: &StoreSettings) -> Result<()> {
        let (compaction, slowdown, stop) =
            (options.l0_compaction_trigger, options.l0_slowdown_trigger, options.l0_stop_trigger);
        if slowdown < compaction {
            let why =
                format!("writers are slowed at {slowdown} L0 tables, before the first compaction at {compaction}");
            return Err(self.refuse_one_of(&["store.l0_slowdown_trigger", "store.l0_compaction_trigger"], &why));
        }
        if stop < slowdown {
            let why = format!("writers are stopped at {stop} L0 tables, before they are slowed at {slowdown}");
            return Err(self.refuse_one_of(&["store.l0_stop_trigger", "store.l0_slowdown_trigger"], &why));
        }
        let memtable = options.memtable_bytes;
        if options.max_wal_bytes != 0 && options.max_wal_bytes < memtable {
            let why = format!("max_wal_bytes is {}, less than memtable_bytes, {memtable}", options.max_wal_bytes);
            return Err(self.refuse_one_of(&["store.max_wal_bytes", "store.memtable_bytes"], &why));
        }
        if let Some(memory) =
            options.memory_limit_bytes.filter(|memory| memtable > *memory && self.is_said("store.memtable_bytes"))
        {
            let why = format!(
                "it cannot be filled: block cache and memtables together have {memory} bytes, by memory_limit_bytes or the profile"
            );
            return Err(self.refuse("store.memtable_bytes", &why));
        }
        let reserves = options.space.reserve_bytes.unwrap_or(0).saturating_mul(MIN_RESERVES);
        let least = reserves.max(memtable.saturating_mul(MIN_MEMTABLES));
        if let Some(max) = options.space.max_bytes.filter(|max| *max < least) {
            let why =
                format!("max_bytes is {max}, less than {MIN_RESERVES} reserves or {MIN_MEMTABLES} memtables: {least}");
            return Err(self.refuse_one_of(&["space.max_bytes", "space.reserve_bytes", "store.memtable_bytes"], &why));
        }
        Ok(())
    }

    fn check_limits(&self) -> Result<()> {
        let (request, argument): (usize, usize) =
            (self.parsed("clients.max_request_bytes")?, self.parsed("clients.max_argument_bytes")?);
        if argument > request {
            let why = format!("an argument may have {argument} bytes, a whole request {request}");
            return Err(self.refuse_one_of(&["clients.max_argument_bytes", "clients.max_request_bytes"], &why));
        }
        let output: usize = self.parsed("clients.max_output_bytes")?;
        if output < argument.saturating_add(Limits::AROUND_LONGEST_BYTES) {
            let why = format!(
                "a string may have {argument} bytes, and replies {output}, which must be {} more: else it could be stored, and not be read in a \
                 transaction or behind other replies",
                Limits::AROUND_LONGEST_BYTES
            );
            return Err(self.refuse_one_of(&["clients.max_output_bytes", "clients.max_argument_bytes"], &why));
        }
        let beyond = |path| self.addresses(path).into_iter().find(|address| !is_loopback(address.ip()));
        if let Some(address) = beyond("clients.listen").filter(|_| !self.asks_password()) {
            let why = format!(
                "{address} can be reached from other machines, and no password is asked for: set clients.password \
                 (or ECOTONE_CLIENTS_PASSWORD), or listen on 127.0.0.1 or clients.unix_socket only"
            );
            return Err(self.refuse_one_of(&["clients.listen", "clients.password"], &why));
        }
        let asks_certificate = self.path("clients.tls_client_ca").is_some();
        if let Some(address) = beyond("clients.tls_listen").filter(|_| !self.asks_password() && !asks_certificate) {
            let why = format!(
                "{address} can be reached from other machines, and neither a password nor a certificate is asked for: set \
                 clients.password (or ECOTONE_CLIENTS_PASSWORD) or clients.tls_client_ca, or listen on 127.0.0.1 only"
            );
            return Err(self.refuse_one_of(&["clients.tls_listen", "clients.password"], &why));
        }
        Ok(())
    }

    fn cores(&self) -> Result<u32> {
        match self.number("server.cores")? {
            Some(cores) => Ok(cores),
            None => Ok(ecotone_energy::host_cores()?.floor().max(1.0) as u32),
        }
    }

    /// The number at `path`; `None` for its word.
    fn number<T: FromStr>(&self, path: &str) -> Result<Option<T>> {
        match self.text(path) {
            OFF | AUTO => Ok(None),
            _ => self.parsed(path).map(Some),
        }
    }

    /// The value at `path`. Its text was checked when it was set; what is refused here is too much
    /// for this machine.
    fn parsed<T: FromStr>(&self, path: &str) -> Result<T> {
        self.text(path).parse().map_err(|_| self.refuse(path, "this machine cannot have that much"))
    }

    /// Refuses the first of the keys that somebody spoke of.
    fn refuse_one_of(&self, paths: &[&str], why: &str) -> Error {
        let said = paths.iter().find(|path| self.is_said(path)).or(paths.first());
        self.refuse(said.copied().unwrap_or_default(), why)
    }
}

fn is_loopback(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_loopback(),
        IpAddr::V6(address) => {
            address.is_loopback() || address.to_ipv4_mapped().is_some_and(|address: Ipv4Addr| address.is_loopback())
        }
    }
}
