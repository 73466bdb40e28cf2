//! What this server tells of itself, and knows of others, for people who watch.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ecotone_policy::ids::ServerId;
use ecotone_policy::units::{Seconds, Time};
use parking_lot::Mutex;

use super::Shared;
use crate::activity::{Activity, KnownServer, Told};

impl Shared {
    /// How this server fares, for people who watch.
    pub(crate) fn activity(&self) -> Activity {
        let statistics = &self.statistics;
        let sum = |counts: &Mutex<HashMap<&'static str, u64>>| counts.lock().values().sum();
        let forecast = self.core.lock().stall_forecast();
        Activity {
            stall_in_s: forecast.and_then(|forecast| forecast.latest()).map(|latest| latest.0),
            running_worker_jobs: self.worker.running() as u32,
            jobs_offloaded_total: statistics.offloaded.load(Ordering::Relaxed),
            jobs_taken_total: statistics.taken.load(Ordering::Relaxed),
            jobs_declined_total: sum(&statistics.declined),
            jobs_fallen_back_total: sum(&statistics.fallbacks),
            ..self.load.get().map(|source| source.activity()).unwrap_or_default()
        }
    }

    pub(crate) fn coordinator_told(&self, told: Told) {
        *self.coordinator_told.lock() = Some((Instant::now(), told));
    }

    /// This server and those that it knows: all that report where it is the coordinator, else its coordinator.
    pub(super) fn known(&self) -> Vec<KnownServer> {
        let own = KnownServer {
            name: self.name.clone(),
            address: self.address(),
            is_self: true,
            is_coordinator: self.queue.is_some(),
            silent_for: Duration::ZERO,
            load: self.last_sample(),
            activity: Some(self.activity()),
            takes_jobs: None,
        };
        let mut known = vec![own];
        let other = |name: &ServerId, address: &str, at: Instant, told: Option<&Told>| KnownServer {
            name: name.clone(),
            address: address.to_owned(),
            is_self: false,
            is_coordinator: false,
            silent_for: at.elapsed(),
            load: told.and_then(|told| told.load.clone()),
            activity: told.and_then(|told| told.activity.clone()),
            takes_jobs: None,
        };
        if self.queue.is_some() {
            known.extend(self.heard.lock().each().map(|(name, address, at, told)| other(name, address, at, told)));
            let (now, core) = (Time(Seconds(self.started.elapsed().as_secs_f64())), self.core.lock());
            for server in &mut known {
                server.takes_jobs = Some(core.takes_jobs(now, &server.name));
            }
        } else if let Some((at, told)) = &*self.coordinator_told.lock()
            && let Some(load) = &told.load
        {
            let coordinator = other(&load.server, &self.coordinator_address(), *at, Some(told));
            known.push(KnownServer { is_coordinator: true, ..coordinator });
        }
        known[1..].sort_by(|one, other| one.name.cmp(&other.name));
        known
    }
}
