//! What a server is started with.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ecotone_energy::PStateTable;
use ecotone_engine::StoreSettings;
use ecotone_policy::policy::PolicyName;
use ecotone_policy::power::PowerSettings;
use ecotone_resp::host::Allocator;
use ecotone_resp::serve::Listen;
use ecotone_types::ServerId;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::open_files::max_clients;
use crate::stores::ShardOptions;

/// Cores that the lab emulates for this server.
#[derive(Debug, Clone)]
pub struct EmulatedCores {
    /// The server's cgroup, made by the lab.
    pub cgroup: PathBuf,
    /// Speed of one core as a share of a host core.
    pub speed: f64,
    /// A file with the frequencies that a core can have; none: those of a Xeon Silver 4114.
    pub p_states: Option<PathBuf>,
}

impl EmulatedCores {
    /// The frequencies.
    ///
    /// # Errors
    /// [`Error::Configuration`] that names the file, and what is wrong with it.
    pub(crate) fn table(&self) -> Result<PStateTable> {
        let Some(path) = &self.p_states else { return Ok(PStateTable::xeon_silver_4114()) };
        let wrong = |why: String| Error::Configuration(format!("{} (--p-states): {why}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        PStateTable::parse(&text).map_err(|error| wrong(error.to_string()))
    }
}

/// Clients that are served.
#[derive(Clone)]
pub struct ClientOptions {
    /// Where they are listened for.
    pub listen: Listen,
    /// The settings that they may read and change, their limits among them.
    pub config: Config,
    /// Makes the process end, as a signal does. It returns at once.
    pub shut_down: Arc<dyn Fn() + Send + Sync>,
    /// Called when a thread that serves has panicked; should make the process end. It returns at
    /// once.
    pub panicked: Arc<dyn Fn() + Send + Sync>,
    /// The allocator of the process, for those who ask about memory; `None`: the C library's.
    pub allocator: Option<Arc<dyn Allocator>>,
}

impl ClientOptions {
    /// How many clients may be allowed at a time while the server runs: for so many the process has
    /// file descriptors.
    ///
    /// # Errors
    ///
    /// Those of the limits.
    pub(crate) fn max_clients(&self) -> Result<usize> {
        Ok(max_clients(self.config.limits()?.clients))
    }
}

/// Where metrics and health checks are listened for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpOptions {
    /// Addresses; port 0 takes any free one.
    pub addresses: Vec<SocketAddr>,
    /// Nobody asked for them: where another process has them already, the server goes on without.
    pub is_default: bool,
}

/// Everything a server needs to know.
#[derive(Clone)]
pub struct ServeOptions {
    /// Folder of the stores; `worker/` in it is for the jobs of others.
    pub directory: PathBuf,
    /// Where the federation's services listen.
    pub listen: SocketAddr,
    /// Address under which other servers reach this one, if not the one it listens on.
    pub announce: Option<String>,
    /// A server of the federation; without identities the coordinator. `None`: the federation is
    /// known from its log, or this server coordinates.
    pub join: Option<String>,
    /// What fails together with this server; empty: nobody says.
    pub zone: String,
    /// It votes, and has neither a store nor clients.
    pub witness: bool,
    /// The token with which it joins, if it has no certificate yet.
    pub token: Option<String>,
    /// This server's name in the federation; `None`: that of its certificate, or the address under
    /// which others reach it.
    pub name: Option<ServerId>,
    /// Where compactions run.
    pub policy: PolicyName,
    /// Cores of the server.
    pub cores: u32,
    /// Set when the lab emulates the cores.
    pub emulated: Option<EmulatedCores>,
    /// Watts of one busy core above idle, at the highest frequency.
    pub active_watts: f64,
    /// Watts of the idle server.
    pub idle_watts: f64,
    /// How fast cores run where the federation does not say it.
    pub power: PowerSettings,
    /// Where the files of the machine's meters and frequencies lie: `/`, or a test's folder.
    pub machine_root: PathBuf,
    /// Jobs of others at a time; `None`: a quarter of the cores, at least one.
    pub worker_slots: Option<u32>,
    /// Bandwidth each way, in bytes/s.
    pub network_bytes_per_s: f64,
    /// Subcompactions of one compaction of L0; `None`: the policy's choice.
    pub max_subcompactions: Option<u32>,
    /// The stores, all together: what they take of memory and files is for all of them. Their
    /// `max_subcompactions` is replaced by the one above or the policy's.
    pub store: StoreSettings,
    /// The shards that the server holds, each with a store: none or several.
    pub shards: Vec<ShardOptions>,
    /// Whether nobody has said how large its memtables and its first level are: a store that
    /// clients use has them by its memory then.
    pub fits_memtables: bool,
    /// Clients; `None`: the store is used by this process alone.
    pub clients: Option<ClientOptions>,
    /// Metrics and health checks by HTTP; `None`: none.
    pub http: Option<HttpOptions>,
    /// Called once the stores are open, before any client is: who ends the process from then on
    /// closes it first.
    pub opened: Option<Arc<dyn Fn() + Send + Sync>>,
    /// How many lines of the log nobody could take; `None`: none is ever lost.
    pub lost_log_lines: Option<LostLines>,
}

/// Counts lines.
pub type LostLines = Arc<dyn Fn() -> u64 + Send + Sync>;

impl ServeOptions {
    /// Jobs of others that this server takes at a time.
    pub fn worker_slots(&self) -> u32 {
        self.worker_slots.unwrap_or_else(|| (self.cores / 4).max(1))
    }

    /// Speed of one core relative to a host core.
    pub fn core_speed(&self) -> f64 {
        self.emulated.as_ref().map_or(1.0, |emulated| emulated.speed)
    }
}

/// The folder by its absolute name without symbolic links, as far as it is there. An engine names the
/// files of its store so, and a copy tells by that name which of its files is meant.
pub(crate) fn without_links(folder: &Path) -> io::Result<PathBuf> {
    let absolute = std::path::absolute(folder)?;
    for ancestor in absolute.ancestors() {
        match std::fs::canonicalize(ancestor) {
            Ok(real) => {
                let rest = absolute.strip_prefix(ancestor).unwrap_or(Path::new(""));
                return Ok(if rest.as_os_str().is_empty() { real } else { real.join(rest) });
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(absolute)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_one_name_whatever_leads_to_it_and_whether_it_is_there() {
        let directory = tempfile::tempdir().unwrap();
        let real = std::fs::canonicalize(directory.path()).unwrap().join("real");
        std::fs::create_dir(&real).unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        assert_eq!(without_links(&link).unwrap(), real);
        assert_eq!(without_links(&link.join("new/server")).unwrap(), real.join("new/server"));
        assert_eq!(without_links(&real).unwrap(), real);
        let working = std::fs::canonicalize(".").unwrap();
        assert_eq!(without_links(Path::new("not-there-yet")).unwrap(), working.join("not-there-yet"));
    }
}
