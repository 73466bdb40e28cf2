//! The coordinator's half: ECO-KVS's Global System (section VI-B) with Scheduler, Predictor and
//! Tracker, or EdgePilot's Scheduler with its queue and EdgeCode (section IV).
//!
//! Requests come one at a time: whoever drives the machine queues them in a bounded queue, as both
//! papers' schedulers do.

use crate::predictor::Predictor;
use crate::queue_order::{self, QueueLimits, ServerStatus};
use crate::server_table::{Disabled, ServerTable};
use crate::target::{self, Candidate};
use ecotone_types::ServerId;
use ecotone_types::units::{BytesPerSecond, Cores, Seconds, Time};

use super::message::{LoadSample, PlacementAnswer, PlacementRequest};
use super::parameters::{Parameters, WhenNoneInTime};
use super::reason::LocalReason;

/// The Global System.
#[derive(Clone, Debug)]
pub(super) struct GlobalSystem {
    table: ServerTable,
}

impl GlobalSystem {
    pub(super) fn new(parameters: &Parameters) -> Self {
        Self { table: ServerTable::new(parameters) }
    }

    /// Takes a load sample into the server table; `false` when the table is full.
    #[must_use]
    pub(super) fn observe(&mut self, now: Time, sample: LoadSample) -> bool {
        self.table.update(now, sample)
    }

    /// Whether a server may be given work; see [`ServerTable::check`].
    pub(super) fn check(&self, now: Time, server: &ServerId) -> Result<(), Disabled> {
        self.table.check(now, server)
    }

    /// Finds a worker. The request must be free of problems.
    pub(super) fn place(
        &mut self,
        now: Time,
        request: &PlacementRequest,
        parameters: &Parameters,
        predictor: &Predictor,
    ) -> PlacementAnswer {
        self.table.observe_away(&request.owner, request.away);
        match self.choose(now, request, parameters, predictor) {
            Ok(Candidate { server, prediction }) => {
                self.table.count_placement(&server, &request.owner);
                PlacementAnswer::Worker { worker: server, prediction }
            }
            Err(reason) => PlacementAnswer::Local { reason },
        }
    }

    fn choose(
        &self,
        now: Time,
        request: &PlacementRequest,
        parameters: &Parameters,
        predictor: &Predictor,
    ) -> Result<Candidate, LocalReason> {
        let policy = parameters.policy;
        if let Some(reason) =
            LocalReason::of_policy(policy, request.purpose, request.input_level, !request.holders.is_empty())
        {
            return Err(reason);
        }
        if policy.has_energy_target() {
            self.choose_least_energy(now, request, parameters, predictor)
        } else {
            self.choose_head(now, request, parameters, predictor)
        }
    }

    /// Servers that may be given this job: enabled, not the owner, not avoided by it; for garbage
    /// collection with a copy of the shard.
    fn eligible<'a>(
        &'a self,
        now: Time,
        request: &'a PlacementRequest,
    ) -> impl Iterator<Item = (&'a ServerId, Cores, BytesPerSecond)> {
        self.table.enabled(now).filter(move |(server, ..)| {
            let may_have_it =
                !request.purpose.needs_copy() || request.holders.iter().any(|holder| holder.server == **server);
            **server != request.owner && !request.avoid.contains(server) && may_have_it
        })
    }

    /// ECO-KVS equations 3 and 4.
    fn choose_least_energy(
        &self,
        now: Time,
        request: &PlacementRequest,
        parameters: &Parameters,
        predictor: &Predictor,
    ) -> Result<Candidate, LocalReason> {
        let candidates: Vec<Candidate> = self
            .eligible(now, request)
            .filter_map(|(server, ..)| {
                let prediction = predictor.remote(now, server, &request.owner, request.shape_on(server))?;
                Some(Candidate { server: server.clone(), prediction })
            })
            .collect();
        if candidates.is_empty() {
            return Err(LocalReason::NoServerEnabled);
        }
        if let Some(target) = target::least_energy_in_time(&candidates, request.latest) {
            return Ok(target.clone());
        }
        match parameters.when_none_in_time {
            WhenNoneInTime::Local => Err(LocalReason::NoneInTime),
            WhenNoneInTime::FastestIfFaster => {
                let local = local_time(request, predictor);
                let fastest = target::fastest(&candidates)
                    .filter(|fastest| local.is_some_and(|local| fastest.prediction.seconds < local));
                fastest.cloned().ok_or(LocalReason::NoneInTime)
            }
        }
    }

    /// EdgePilot: the head of the queue of Algorithm 2, if EdgeCode finds it faster than the owner.
    fn choose_head(
        &self,
        now: Time,
        request: &PlacementRequest,
        parameters: &Parameters,
        predictor: &Predictor,
    ) -> Result<Candidate, LocalReason> {
        let statuses: Vec<ServerStatus> = self
            .eligible(now, request)
            .filter_map(|(server, available_cores, available_network)| {
                let compaction_bytes_per_s = predictor.compaction_bytes_per_s(server)?;
                Some(ServerStatus {
                    server: server.clone(),
                    available_cores,
                    available_network,
                    compaction_bytes_per_s,
                })
            })
            .collect();
        let limits =
            QueueLimits { min_cores: parameters.min_free_cores, min_network: parameters.min_free_network_bytes_per_s };
        let head = queue_order::head(&statuses, limits).ok_or(LocalReason::NoServerEnabled)?;
        let candidate = |server: &ServerId| {
            let prediction = predictor.remote(now, server, &request.owner, request.shape_on(server))?;
            Some(Candidate { server: server.clone(), prediction })
        };
        let head = candidate(&head.server).ok_or(LocalReason::NoPrediction)?;
        // EdgePilot knows of no copies: its queue is in the order of processors and networks. A server
        // that holds one takes the head's place where it is predicted faster.
        let is_held = |server: &ServerId| request.holders.iter().any(|holder| holder.server == *server);
        let holders = statuses.iter().filter(|status| is_held(&status.server));
        let nearest = target::fastest(&holders.filter_map(|status| candidate(&status.server)).collect::<Vec<_>>())
            .filter(|nearest| nearest.prediction.seconds < head.prediction.seconds)
            .cloned();
        let chosen = nearest.unwrap_or(head);
        let is_faster = match predictor.edge_code(now, &chosen.server, &request.owner, request.shape().class) {
            Some(edge_code) if !is_held(&chosen.server) => edge_code.offload_is_faster(request.input_bytes),
            // CTO < CTL, of what travels.
            Some(edge_code) => chosen.prediction.seconds.0 < edge_code.owner.at(request.input_bytes),
            // The owner has never reported: its own word for its own time.
            None => chosen.prediction.seconds < request.local_time.ok_or(LocalReason::NoPrediction)?,
        };
        if is_faster { Ok(chosen) } else { Err(LocalReason::NotFaster) }
    }
}

/// What the job takes on its owner: as the coordinator's models say, or as the owner says where
/// they know nothing.
fn local_time(request: &PlacementRequest, predictor: &Predictor) -> Option<Seconds> {
    predictor.local(&request.owner, request.shape()).map(|local| local.seconds).or(request.local_time)
}
