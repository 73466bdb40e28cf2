//! The options of a server of a federation, and every bound of this crate but two: how long an
//! owner waits for a place and how many of its jobs may be away are the policy's
//! `placement_timeout` and `max_offloads_outstanding`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ecotone_identity::Identity;
use ecotone_membership::Options as MembershipOptions;
use ecotone_policy::machine::Parameters;
use ecotone_transport::connections::Timeouts;
use ecotone_types::ServerId;

use crate::error::{Error, Result};
use crate::steps::StepObserver;

/// What small tables may add to the outputs of a small job.
const OUTPUT_SLACK_BYTES: u64 = 16 << 20;

/// The most that a job may write, on either side: no compaction doubles its input.
pub(crate) fn max_output_bytes(input_bytes: u64) -> u64 {
    input_bytes.saturating_mul(2).saturating_add(OUTPUT_SLACK_BYTES)
}

/// Bounds on queues, waits, messages and memory.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Jobs of others that this server runs at a time. 0: it never works for others. Default 2.
    pub worker_slots: u32,
    /// Bytes of memory for buffers of jobs of others, all together. Default 256 MiB. A job needs
    /// two chunks per input table that it reads at a time, and two target tables for its output.
    pub worker_memory_bytes: u64,
    /// Bytes that must stay free on the worker's disk after a job's output, assumed as large as its
    /// input. Default 256 MiB.
    pub worker_disk_reserve_bytes: u64,
    /// Compactions that run locally at a time after an offload failed, those of level 0 not
    /// counted: these wait for nobody. Default 2: a dead worker gives all its jobs back at once.
    pub fallback_slots: usize,
    /// Requests that wait for the coordinator's answer at a time; more stay local. Default 64.
    pub placement_queue: usize,
    /// Reports of finished jobs that wait to be sent; the oldest are dropped. Default 256.
    pub reports_waiting: usize,
    /// Time between load reports. Default 1 s (both papers' monitors).
    pub report_interval: Duration,
    /// Time between a worker's signs of life. Default 500 ms.
    pub heartbeat_interval: Duration,
    /// Silence after which the other side is taken for dead. Default 3 s.
    pub heartbeat_timeout: Duration,
    /// Longest wait for a connection and its handshake. Default 1 s.
    pub connect_timeout: Duration,
    /// Longest wait for one range of a file. Default 3 s, as for any sign of life.
    pub read_timeout: Duration,
    /// How long a worker keeps a finished job's output for its owner. Default 60 s.
    pub output_kept: Duration,
    /// Connections of other servers at a time, those for files not counted; more are closed at
    /// once. Default 512: two for each server of a federation as large as a coordinator takes.
    pub connections: usize,
    /// Calls of one connection at a time; more wait. Default 256: the jobs, requests and reports of
    /// one server.
    pub calls_per_connection: u32,
    /// Bytes of one range. Default 256 KiB: larger ones fall out of the processor's caches. At most
    /// 8 MiB.
    pub chunk_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            worker_slots: 2,
            worker_memory_bytes: 256 << 20,
            worker_disk_reserve_bytes: 256 << 20,
            fallback_slots: 2,
            placement_queue: 64,
            reports_waiting: 256,
            report_interval: Duration::from_secs(1),
            heartbeat_interval: Duration::from_millis(500),
            heartbeat_timeout: Duration::from_secs(3),
            connect_timeout: Duration::from_secs(1),
            read_timeout: Duration::from_secs(3),
            output_kept: Duration::from_secs(60),
            connections: 512,
            calls_per_connection: 256,
            chunk_bytes: 256 << 10,
        }
    }
}

impl Limits {
    /// The times that a connection needs.
    pub(crate) fn timeouts(&self) -> Timeouts {
        Timeouts { connect: self.connect_timeout, read: self.read_timeout, silence: self.heartbeat_timeout }
    }

    fn validate(&self) -> Result<()> {
        let refuse = |what: &str| Err(Error::Configuration(format!("federation limits: {what}")));
        if !(4096..=8 << 20).contains(&self.chunk_bytes) {
            return refuse("chunk_bytes must be 4 KiB to 8 MiB");
        }
        if self.connections == 0 || self.calls_per_connection == 0 {
            return refuse("connections and calls_per_connection must be at least 1");
        }
        if self.heartbeat_timeout < 2 * self.heartbeat_interval {
            return refuse(
                "heartbeat_timeout must be at least twice heartbeat_interval, or one late message ends a job",
            );
        }
        if self.fallback_slots == 0 || self.placement_queue == 0 || self.reports_waiting == 0 {
            return refuse("fallback_slots, placement_queue and reports_waiting must be at least 1");
        }
        Ok(())
    }
}

/// One server of a federation.
#[derive(Clone)]
pub struct Options {
    /// Name of this server, unique in the federation; `None`: the address that others reach it
    /// under.
    pub name: Option<ServerId>,
    /// Where the services listen; port 0 takes any free one.
    pub listen: SocketAddr,
    /// Address that other servers reach this one under; `None`: the one it listens on.
    pub announce: Option<String>,
    /// `host:port` of the coordinator. `None`: this server is the coordinator.
    pub join: Option<String>,
    /// Folder for the output of jobs that run for others. Emptied at start; it belongs to this
    /// process alone.
    pub worker_directory: PathBuf,
    /// The policy and its constants.
    pub policy: Parameters,
    /// Bandwidth that this server may use, in bytes/s, each way.
    pub network_bytes_per_s: f64,
    /// Who this server is; `None`: it speaks plain text, on loopback only.
    pub identity: Option<Arc<Identity>>,
    /// Its part in the control plane, where it has an identity: the leader coordinates then.
    pub membership: Option<MembershipOptions>,
    /// Bounds.
    pub limits: Limits,
    /// Called at every step of a job; for tests that break it there.
    pub steps: Option<StepObserver>,
}

impl Options {
    pub(crate) fn validate(&self) -> Result<()> {
        self.limits.validate()?;
        if self.name.as_ref().is_some_and(|name| name.as_str().is_empty()) {
            return Err(Error::Configuration("a server needs a name".into()));
        }
        if !(self.network_bytes_per_s > 0.0 && self.network_bytes_per_s.is_finite()) {
            return Err(Error::Configuration(format!(
                "network_bytes_per_s is {}, it must be a positive number of bytes per second",
                self.network_bytes_per_s
            )));
        }
        if self.listen.ip().is_unspecified() && self.announce.is_none() {
            return Err(Error::Configuration(format!(
                "{} listens on every interface; say with `announce` under which address other servers reach it",
                self.listen
            )));
        }
        self.validate_identity()
    }

    /// Nobody is spoken to beyond loopback who does not show who it is.
    fn validate_identity(&self) -> Result<()> {
        let refuse = |what: String| Err(Error::Configuration(what));
        let Some(identity) = &self.identity else {
            if !self.listen.ip().is_loopback() {
                return refuse(format!(
                    "{} can be reached from other machines, and this server has no identity: make a federation with `ecotone cluster \
                     init --dir DIR`, or join one with `ecotone serve --join HOST:PORT --token TOKEN`, or listen on 127.0.0.1",
                    self.listen
                ));
            }
            return match &self.join {
                Some(join) if !is_loopback(join) => refuse(format!(
                    "the coordinator at {join} is on another machine, and this server has no identity: join with a token (--token), which \
                     `ecotone cluster token` prints there"
                )),
                _ => Ok(()),
            };
        };
        let own = identity.own();
        if let Some(name) = self.name.as_ref().filter(|name| **name != own.name) {
            return refuse(format!(
                "this server is called {name}, and its certificate is of {}: leave --name out, or join anew under the new name with a \
                 token and without the folder identity/",
                own.name
            ));
        }
        Ok(())
    }
}

/// Whether `host:port` is surely this machine. A name other than `localhost` may be any.
fn is_loopback(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}
