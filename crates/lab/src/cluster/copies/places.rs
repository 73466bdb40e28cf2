//! Where a measured server runs: a quota of processor time of its own, and a network of its own
//! behind a limited link.
//!
//! A quota is a cgroup around the whole process, as [`crate::CoreLimit`] makes it. A network is a
//! namespace, joined to a bridge by a pair of interfaces with a token bucket (tbf) on both: what a
//! server sends and what it gets are limited each for itself. Clients are at the bridge.
//!
//! Failure: a machine that permits one of them not is measured without it, and the report says so.
//! All is removed on drop, after the servers.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use ecotone_energy::EnergyError;
use ecotone_energy::cores::{CpuHierarchy, ThreadGroup};

use crate::error::LabError;
use crate::tree::{EmulatedServer, LabTree};

/// What may pass at once: more than the largest packet that a kernel hands over.
const BURST: &str = "256kb";
/// How long a packet may wait for its turn.
const QUEUE: &str = "50ms";
/// What servers behind a bridge ask clients for; they serve clients beyond loopback with one only.
const PASSWORD: &str = "lab";

/// The places of one lab.
pub(crate) struct Places {
    // Before the tree and the bridge: both are removed when they are empty.
    made: RefCell<BTreeMap<String, Place>>,
    tree: Result<LabTree, String>,
    bridge: Result<Bridge, String>,
    /// Cores that servers are to emulate, of `share` host cores each; none: `share` is a quota of the
    /// whole server.
    emulated: Option<u32>,
    /// The file with their frequencies; none: the default's.
    p_states: Option<PathBuf>,
    /// Host cores of each server.
    share: f64,
    mbit: u32,
}

struct Place {
    group: Option<EmulatedServer>,
    network: Option<Network>,
}

/// What comes before a server's program on its command line.
pub(crate) struct Enter {
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<OsString>,
}

impl Places {
    /// Each server gets `share` of a host core, or several, and a link of `mbit` each way.
    pub(super) fn make(share: f64, mbit: u32) -> Places {
        let tree = CpuHierarchy::detect().and_then(LabTree::create).map_err(|error| error.to_string());
        let made = RefCell::default();
        Places { made, tree, bridge: Bridge::make(), emulated: None, p_states: None, share, mbit }
    }

    /// Each server gets `cores` emulated cores of `speed` host cores, whose speed it changes itself
    /// within the frequencies of `p_states`; all are on this machine's loopback.
    ///
    /// # Errors
    /// [`LabError::Emulation`] without the right to make cgroups: cores of one speed would prove
    /// nothing.
    pub(super) fn emulate(cores: u32, speed: f64, p_states: Option<PathBuf>) -> Result<Places, LabError> {
        let tree = CpuHierarchy::detect().and_then(LabTree::create);
        let tree = Ok(tree.map_err(|error| LabError::Emulation { reason: error.to_string() })?);
        let bridge = Err("servers are on this machine's loopback".to_owned());
        let made = RefCell::default();
        Ok(Places { made, tree, bridge, emulated: Some(cores), p_states, share: speed, mbit: 0 })
    }

    /// What a server is told of its emulated cores.
    pub(crate) fn arguments(&self, name: &str) -> Vec<OsString> {
        let made = self.made.borrow();
        let group = made.get(name).and_then(|place| place.group.as_ref());
        let (Some(cores), Some(group)) = (self.emulated, group) else { return Vec::new() };
        let numbers = [("--cores", cores.to_string()), ("--core-speed", self.share.to_string())];
        let mut all: Vec<OsString> = numbers.into_iter().flat_map(|(name, of)| [name.into(), of.into()]).collect();
        all.extend(["--cgroup".into(), group.folder().as_os_str().to_owned()]);
        if let Some(p_states) = &self.p_states {
            all.extend(["--p-states".into(), p_states.as_os_str().to_owned()]);
        }
        all
    }

    /// Moves the threads of a server whose names begin so from its fast cores to its slow ones, and
    /// says where they were; none where all of its cores have one speed.
    ///
    /// # Errors
    /// Groups that cannot be read, or changed. What was moved is back then, if it can be.
    pub(super) fn move_to_slow_cores(
        &self,
        name: &str,
        process: u32,
        threads: &str,
    ) -> Result<Vec<(u32, ThreadGroup)>, LabError> {
        let made = self.made.borrow();
        let Some(group) = made.get(name).and_then(|place| place.group.as_ref()) else { return Ok(Vec::new()) };
        let groups = group.groups();
        let failed = |error: EnergyError| {
            let what = format!("threads of {name} on slow cores");
            LabError::Measurement { what, reason: error.to_string() }
        };
        let speeds = (0..groups.cores()).map(|core| groups.core_speed(core)).collect::<Result<Vec<_>, _>>();
        let speeds = speeds.map_err(failed)?;
        let fastest = speeds.iter().copied().fold(0.0, f64::max);
        let is_slow = |core: &u32| speeds[*core as usize] < fastest * 0.95;
        let (slow, fast): (Vec<u32>, Vec<u32>) = (0..groups.cores()).partition(is_slow);
        let mut found = Vec::new();
        for core in fast {
            let from = ThreadGroup::Core(core);
            for thread in groups.threads(from).map_err(failed)? {
                let comm = fs::read_to_string(format!("/proc/{process}/task/{thread}/comm")).unwrap_or_default();
                if comm.starts_with(threads) {
                    found.push((thread, from));
                }
            }
        }
        let mut moved = Vec::new();
        for ((thread, from), slow) in found.into_iter().zip(slow.iter().cycle()) {
            if let Err(error) = groups.move_thread(thread, ThreadGroup::Core(*slow)) {
                self.move_back(name, &moved);
                return Err(failed(error));
            }
            moved.push((thread, from));
        }
        Ok(moved)
    }

    /// Puts threads where they were. One that has ended is nowhere.
    pub(super) fn move_back(&self, name: &str, moved: &[(u32, ThreadGroup)]) {
        let made = self.made.borrow();
        let Some(group) = made.get(name).and_then(|place| place.group.as_ref()) else { return };
        for (thread, from) in moved {
            if let Err(error) = group.groups().move_thread(*thread, *from) {
                tracing::debug!(thread, %error, "a thread stays on a slow core");
            }
        }
    }

    /// Why servers have no quotas.
    pub(super) fn no_quota(&self) -> Option<&str> {
        self.tree.as_ref().err().map(String::as_str)
    }

    /// Why servers have no networks of their own.
    pub(super) fn no_network(&self) -> Option<&str> {
        self.bridge.as_ref().err().map(String::as_str)
    }

    /// Makes the place of a server before it is started. One that is there is used again.
    pub(crate) fn prepare(&self, name: &str) -> Result<(), LabError> {
        let mut made = self.made.borrow_mut();
        if made.contains_key(name) {
            return Ok(());
        }
        let failed = |reason: String| LabError::Measurement { what: format!("the place of {name}"), reason };
        let whole = self.share.ceil().max(1.0);
        let (cores, speed) = self.emulated.map_or((whole as u32, self.share / whole), |cores| (cores, self.share));
        let group = match &self.tree {
            Ok(tree) => {
                Some(EmulatedServer::create(tree, name, cores, speed).map_err(|error| failed(error.to_string()))?)
            }
            Err(_) => None,
        };
        let network = match &self.bridge {
            Ok(bridge) => Some(Network::make(bridge, made.len() + 1, self.mbit).map_err(failed)?),
            Err(_) => None,
        };
        made.insert(name.to_owned(), Place { group, network });
        Ok(())
    }

    /// What servers ask clients for.
    pub(crate) fn password(&self) -> Option<&'static str> {
        self.bridge.is_ok().then_some(PASSWORD)
    }

    fn of_network<T>(&self, name: &str, get: impl FnOnce(&Network) -> T) -> Option<T> {
        self.made.borrow().get(name).and_then(|place| place.network.as_ref()).map(get)
    }

    /// The address of a server in its network; none: it is on this machine's loopback.
    pub(crate) fn host(&self, name: &str) -> Option<String> {
        self.of_network(name, |network| network.host.clone())
    }

    /// How its program is started in its network.
    pub(crate) fn enter(&self, name: &str) -> Option<Enter> {
        self.of_network(name, |network| Enter {
            program: "ip".into(),
            arguments: ["netns", "exec", &network.namespace].map(OsString::from).into(),
        })
    }

    /// The file of its network namespace.
    pub(super) fn namespace(&self, name: &str) -> Option<PathBuf> {
        self.of_network(name, |network| PathBuf::from("/var/run/netns").join(&network.namespace))
    }

    /// Bytes that went to the server over its link so far, headers included.
    pub(super) fn received(&self, name: &str) -> Option<u64> {
        let interface = self.of_network(name, |network| network.interface.clone())?;
        let counter = format!("/sys/class/net/{interface}/statistics/tx_bytes");
        fs::read_to_string(counter).ok()?.trim().parse().ok()
    }

    /// Puts the process of a server under its quota.
    pub(crate) fn limit(&self, name: &str, process: u32) -> Result<(), LabError> {
        if self.emulated.is_some() {
            // It goes there itself.
            return Ok(());
        }
        let made = self.made.borrow();
        let Some(group) = made.get(name).and_then(|place| place.group.as_ref()) else { return Ok(()) };
        let procs = group.folder().join("cgroup.procs");
        fs::write(&procs, process.to_string()).map_err(LabError::io("cannot put a server under its quota", &procs))
    }

    /// Sets another limit of all links.
    pub(super) fn set_links(&self, mbit: u32) -> Result<(), LabError> {
        let made = self.made.borrow();
        for network in made.values().filter_map(|place| place.network.as_ref()) {
            network
                .limit("change", mbit)
                .map_err(|reason| LabError::Measurement { what: "a limited link".into(), reason })?;
        }
        Ok(())
    }
}

/// Runs a program of iproute2.
fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| format!("cannot run `{program}` (iproute2): {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{program} {}: {}", arguments.join(" "), said.trim()))
}

/// What joins the networks of all servers and the clients.
struct Bridge {
    name: String,
    /// The first three bytes of all addresses.
    subnet: String,
}

impl Bridge {
    fn make() -> Result<Bridge, String> {
        let id = std::process::id();
        let name = format!("eco{id}b");
        run("ip", &["link", "add", &name, "type", "bridge"])?;
        // Of the addresses for measurements of networks (RFC 2544).
        let bridge = Bridge { name, subnet: format!("198.18.{}", id % 256) };
        run("ip", &["address", "add", &format!("{}.1/24", bridge.subnet), "dev", &bridge.name])?;
        run("ip", &["link", "set", &bridge.name, "up"])?;
        // Whether namespaces and token buckets are there is known by making one.
        drop(Network::make(&bridge, 99, 1000)?);
        Ok(bridge)
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        if let Err(error) = run("ip", &["link", "delete", &self.name]) {
            tracing::warn!("a bridge stays behind: {error}");
        }
    }
}

/// The network of one server.
struct Network {
    namespace: String,
    /// The end of its link at the bridge.
    interface: String,
    host: String,
}

impl Network {
    fn make(bridge: &Bridge, number: usize, mbit: u32) -> Result<Network, String> {
        let id = std::process::id();
        let network = Network {
            namespace: format!("ecolab{id}-{number}"),
            interface: format!("eco{id}v{number}"),
            host: format!("{}.{}", bridge.subnet, 10 + number),
        };
        let (namespace, interface) = (network.namespace.as_str(), network.interface.as_str());
        run("ip", &["netns", "add", namespace])?;
        let peer = ["type", "veth", "peer", "name", "eth0", "netns", namespace];
        run("ip", &[&["link", "add", interface][..], &peer].concat())?;
        run("ip", &["link", "set", interface, "master", &bridge.name, "up"])?;
        let inside = ["-n", namespace];
        run("ip", &[&inside[..], &["address", "add", &format!("{}/24", network.host), "dev", "eth0"]].concat())?;
        run("ip", &[&inside[..], &["link", "set", "eth0", "up"]].concat())?;
        run("ip", &[&inside[..], &["link", "set", "lo", "up"]].concat())?;
        network.limit("add", mbit)?;
        Ok(network)
    }

    fn limit(&self, how: &str, mbit: u32) -> Result<(), String> {
        let rate = format!("{mbit}mbit");
        let bucket = ["root", "tbf", "rate", &rate, "burst", BURST, "latency", QUEUE];
        run("tc", &[&["qdisc", how, "dev", &self.interface][..], &bucket].concat())?;
        run("tc", &[&["-n", &self.namespace, "qdisc", how, "dev", "eth0"][..], &bucket].concat())
    }
}

impl Drop for Network {
    /// The interfaces go with the namespace.
    fn drop(&mut self) {
        if let Err(error) = run("ip", &["netns", "delete", &self.namespace]) {
            tracing::warn!("a network namespace stays behind: {error}");
        }
    }
}
