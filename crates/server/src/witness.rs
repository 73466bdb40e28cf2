//! A witness: a server that votes, and has neither a store nor clients. Two servers with data and a
//! witness survive the loss of any one of the three.
//!
//! It is asked for no jobs, since it reports no load.

use std::sync::Arc;

use ecotone_cluster::{Federation, JobObserver, Limits, Options};
use ecotone_energy::cores::Unbound;
use ecotone_energy::{EnergyMeter, PowerModel, ThreadDuties};
use ecotone_policy::machine::Parameters;
use ecotone_replication::Copies;
use ecotone_replication::service::Service as CopiesService;
use tracing::info;

use crate::copies;
use crate::daemon::cannot_start;
use crate::error::{Error, Result};
use crate::identity;
use crate::options::ServeOptions;

/// A running witness. Ends when dropped.
pub struct Witness {
    /// Before what they are asked through. It may lead, and then chooses primaries for others.
    _copies: Option<Copies>,
    federation: Federation,
}

/// It has no jobs to observe.
struct NoJobs;

impl JobObserver for NoJobs {}

impl Witness {
    /// Starts it: it votes as soon as the federation makes it a voter.
    ///
    /// # Errors
    /// [`Error::Configuration`] without an identity or a token for one; what is wrong with the
    /// address.
    pub fn start(options: &ServeOptions) -> Result<Witness> {
        let identity = identity::open(options)?.ok_or_else(|| {
            Error::Configuration("a witness belongs to a federation: let it join with --join and --token".into())
        })?;
        let meter = EnergyMeter::start(PowerModel::hardware(options.idle_watts, options.active_watts)?)?;
        let duties = Arc::new(ThreadDuties::new(meter, Arc::new(Unbound)));
        let service = CopiesService::new();
        let federation = Federation::start_with(
            Options {
                name: options.name.clone(),
                listen: options.listen,
                announce: options.announce.clone(),
                join: options.join.clone(),
                worker_directory: options.directory.join("worker"),
                policy: Parameters { policy: options.policy, ..Parameters::default() },
                network_bytes_per_s: options.network_bytes_per_s,
                identity: Some(identity),
                membership: Some(identity::membership_options(options)),
                limits: Limits { worker_slots: 0, ..Limits::default() },
                steps: None,
            },
            duties,
            Arc::new(NoJobs),
            |routes| service.add_to(routes),
        );
        let federation = federation.map_err(cannot_start)?;
        let membership = federation.membership();
        let copies = membership.map(|membership| copies::start_leading(membership, federation.runtime(), &service));
        let copies = copies.transpose()?;
        info!(server = %federation.name(), address = federation.address(), "a witness is running");
        Ok(Witness { _copies: copies, federation })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.federation.name().as_str()
    }

    /// Where other servers reach it.
    pub fn address(&self) -> &str {
        self.federation.address()
    }
}
