//! A federation of machines in one process: commands go straight to the machine they are meant for.
#![allow(dead_code)] // each test binary uses a part of it

use std::collections::BTreeMap;

use ecotone_policy::machine::{
    Command, Event, JobReport, Link, LoadSample, LocalReason, Parameters, PlacementRequest, PolicyCore, Prediction,
};
use ecotone_types::units::{Bytes, BytesPerSecond, Cores, Joules, Seconds, Time, Watts};
use ecotone_types::{JobId, JobPurpose, ServerId};

pub const MIB: u64 = 1 << 20;

pub fn id(name: &str) -> ServerId {
    ServerId::new(name).unwrap()
}

/// A server that is idle, as fast as the reference core, and can take work.
pub fn idle(name: &str) -> LoadSample {
    LoadSample {
        server: id(name),
        l0_tables: 0,
        input_bytes_per_s: BytesPerSecond::ZERO,
        input_bytes_total: Bytes::ZERO,
        memtable_bytes: Bytes::ZERO,
        flushed_tables_total: 0,
        free_cores: Cores(4.0),
        cores: Cores(8.0),
        core_speed: 1.0,
        free_network_bytes_per_s: BytesPerSecond(1e9),
        link: Some(Link { bytes_per_s: BytesPerSecond(1e9), round_trip: Seconds(0.0002) }),
        worker_slots_free: 2,
        stalled: false,
        active_watts: Watts(10.0),
        idle_watts: Watts(5.0),
        joules_total: Joules::ZERO,
    }
}

pub fn report(owner: &str, worker: &str, bytes: u64, seconds: f64, joules: f64) -> JobReport {
    JobReport {
        owner: id(owner),
        worker: id(worker),
        job: JobId(u64::MAX),
        input_bytes: Bytes(bytes),
        output_bytes: Bytes(bytes),
        seconds: Seconds(seconds),
        joules: Joules(joules),
        held_bytes: Bytes::ZERO,
        input_level: 0,
        output_level: 1,
    }
}

pub fn request(owner: &str, bytes: u64, latest: Option<f64>) -> PlacementRequest {
    PlacementRequest {
        owner: id(owner),
        job: JobId(1),
        purpose: JobPurpose::Compaction,
        input_bytes: Bytes(bytes),
        input_level: 0,
        output_level: 1,
        local_time: None,
        latest: latest.map(Seconds),
        avoid: Vec::new(),
        away: 0,
        holders: Vec::new(),
    }
}

/// Where a compaction ended up.
#[derive(Clone, Debug, PartialEq)]
pub enum Placement {
    Here(LocalReason),
    Worker { worker: ServerId, prediction: Prediction, deadline: Seconds },
}

impl std::fmt::Display for Placement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Placement::Here(reason) => write!(f, "here {reason}"),
            Placement::Worker { worker, .. } => write!(f, "offload {worker}"),
        }
    }
}

pub struct Federation {
    pub now: Time,
    pub cores: BTreeMap<ServerId, PolicyCore>,
    pub coordinator: Option<ServerId>,
    pub last_request: Option<PlacementRequest>,
}

impl Federation {
    /// The first server coordinates.
    pub fn new(names: &[&str], parameters: &Parameters) -> Self {
        let core = |name: &&str| (id(name), PolicyCore::new(id(name), parameters.clone()).unwrap());
        Self {
            now: Time::default(),
            cores: names.iter().map(core).collect(),
            coordinator: names.first().map(|name| id(name)),
            last_request: None,
        }
    }

    pub fn core(&mut self, name: &ServerId) -> &mut PolicyCore {
        self.cores.get_mut(name).unwrap()
    }

    fn tell(&mut self, to: &ServerId, event: Event) -> Vec<Command> {
        let now = self.now;
        self.core(to).handle(now, event)
    }

    /// A load sample reaches its own machine and the coordinator.
    pub fn load(&mut self, sample: LoadSample) {
        self.tell_owner_and_coordinator(sample.server.clone(), Event::LoadSampled(sample));
    }

    /// A finished job reaches its owner and the coordinator.
    pub fn finished(&mut self, report: JobReport) {
        self.tell_owner_and_coordinator(report.owner.clone(), Event::JobFinished(report));
    }

    fn tell_owner_and_coordinator(&mut self, owner: ServerId, event: Event) {
        self.tell(&owner, event.clone());
        if let Some(coordinator) = self.coordinator.clone().filter(|coordinator| *coordinator != owner) {
            self.tell(&coordinator, event);
        }
    }

    /// A compaction asks, and the federation answers.
    pub fn ready(&mut self, owner: &str, job: u64, bytes: u64, level: i32, l0_tables: Option<u32>) -> Placement {
        let event = Event::CompactionReady {
            job: JobId(job),
            purpose: JobPurpose::Compaction,
            input_bytes: Bytes(bytes),
            input_level: level,
            output_level: level + 1,
            l0_tables,
            deadline: None,
            holders: Vec::new(),
        };
        self.place(owner, event)
    }

    /// A job asks, and the federation answers.
    pub fn place(&mut self, owner: &str, event: Event) -> Placement {
        let owner = id(owner);
        let mut commands = self.tell(&owner, event);
        loop {
            assert_eq!(commands.len(), 1, "one command at a time: {commands:?}");
            match commands.remove(0) {
                Command::RunHere { reason, .. } => return Placement::Here(reason),
                Command::Offload { worker, prediction, deadline, .. } => {
                    return Placement::Worker { worker, prediction, deadline };
                }
                Command::AskCoordinator { request } => {
                    self.last_request = Some(request.clone());
                    let job = request.job;
                    commands = match self.coordinator.clone() {
                        Some(coordinator) => self.tell(&coordinator, Event::PlacementRequested { request }),
                        None => self.tell(&owner, Event::PlacementUnavailable { job }),
                    };
                }
                Command::AnswerPlacement { owner, job, answer } => {
                    commands = self.tell(&owner, Event::PlacementAnswered { job, answer });
                }
                Command::Observed(_) => unreachable!("no job has finished"),
            }
        }
    }
}
