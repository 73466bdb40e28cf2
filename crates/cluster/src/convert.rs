//! Between the policy's types and the messages of the wire.
//!
//! Numbers of a peer are checked by the policy (`problem()`), names here: they become keys of
//! tables and parts of logs.

use ecotone_policy::machine::{
    DeclineReason, Holder, JobReport, Link, LoadSample, LocalReason, PlacementAnswer, PlacementRequest, Prediction,
};
use ecotone_transport::wire;
use ecotone_types::JobPurpose;
use ecotone_types::units::{Bytes, BytesPerSecond, Cores, Joules, Seconds, Watts};
use ecotone_types::{JobId, ServerId};

use crate::error::{Error, Result};

pub(crate) fn server(name: &str) -> Result<ServerId> {
    ServerId::new(name).map_err(|error| Error::BadResult(error.to_string()))
}

pub(crate) fn load_to_wire(sample: &LoadSample) -> wire::Load {
    wire::Load {
        server: sample.server.as_str().to_owned(),
        l0_tables: sample.l0_tables,
        input_bytes_per_s: sample.input_bytes_per_s.0,
        input_bytes_total: sample.input_bytes_total.0,
        memtable_bytes: sample.memtable_bytes.0,
        flushed_tables_total: sample.flushed_tables_total,
        cores: sample.cores.0,
        free_cores: sample.free_cores.0,
        core_speed: sample.core_speed,
        free_network_bytes_per_s: sample.free_network_bytes_per_s.0,
        link: sample
            .link
            .map(|link| wire::Link { bytes_per_s: link.bytes_per_s.0, round_trip_seconds: link.round_trip.0 }),
        worker_slots_free: sample.worker_slots_free,
        stalled: sample.stalled,
        active_watts: sample.active_watts.0,
        idle_watts: sample.idle_watts.0,
        joules_total: sample.joules_total.0,
    }
}

pub(crate) fn load_from_wire(load: &wire::Load) -> Result<LoadSample> {
    Ok(LoadSample {
        server: server(&load.server)?,
        l0_tables: load.l0_tables,
        input_bytes_per_s: BytesPerSecond(load.input_bytes_per_s),
        input_bytes_total: Bytes(load.input_bytes_total),
        memtable_bytes: Bytes(load.memtable_bytes),
        flushed_tables_total: load.flushed_tables_total,
        cores: Cores(load.cores),
        free_cores: Cores(load.free_cores),
        core_speed: load.core_speed,
        free_network_bytes_per_s: BytesPerSecond(load.free_network_bytes_per_s),
        link: load.link.as_ref().map(|link| Link {
            bytes_per_s: BytesPerSecond(link.bytes_per_s),
            round_trip: Seconds(link.round_trip_seconds),
        }),
        worker_slots_free: load.worker_slots_free,
        stalled: load.stalled,
        active_watts: Watts(load.active_watts),
        idle_watts: Watts(load.idle_watts),
        joules_total: Joules(load.joules_total),
    })
}

pub(crate) fn report_to_wire(number: u64, job: &JobReport) -> wire::FinishedJob {
    wire::FinishedJob {
        owner: job.owner.as_str().to_owned(),
        worker: job.worker.as_str().to_owned(),
        job: job.job.0,
        input_bytes: job.input_bytes.0,
        output_bytes: job.output_bytes.0,
        seconds: job.seconds.0,
        joules: job.joules.0,
        input_level: job.input_level,
        output_level: job.output_level,
        number,
        held_bytes: job.held_bytes.0,
    }
}

pub(crate) fn report_from_wire(job: &wire::FinishedJob) -> Result<JobReport> {
    Ok(JobReport {
        owner: server(&job.owner)?,
        worker: server(&job.worker)?,
        job: JobId(job.job),
        input_bytes: Bytes(job.input_bytes),
        output_bytes: Bytes(job.output_bytes),
        seconds: Seconds(job.seconds),
        joules: Joules(job.joules),
        held_bytes: Bytes(job.held_bytes),
        input_level: job.input_level,
        output_level: job.output_level,
    })
}

pub(crate) fn request_to_wire(request: &PlacementRequest, session: u64) -> wire::PlaceRequest {
    wire::PlaceRequest {
        owner: request.owner.as_str().to_owned(),
        job: request.job.0,
        purpose: request.purpose.name().to_owned(),
        input_bytes: request.input_bytes.0,
        input_level: request.input_level,
        output_level: request.output_level,
        local_seconds: request.local_time.map(|seconds| seconds.0),
        latest_seconds: request.latest.map(|seconds| seconds.0),
        avoid: request.avoid.iter().map(|server| server.as_str().to_owned()).collect(),
        away: request.away,
        session,
        holders: request.holders.iter().map(holder_to_wire).collect(),
    }
}

pub(crate) fn request_from_wire(request: &wire::PlaceRequest) -> Result<PlacementRequest> {
    Ok(PlacementRequest {
        owner: server(&request.owner)?,
        job: JobId(request.job),
        purpose: purpose_from_wire(&request.purpose),
        input_bytes: Bytes(request.input_bytes),
        input_level: request.input_level,
        output_level: request.output_level,
        local_time: request.local_seconds.map(Seconds),
        latest: request.latest_seconds.map(Seconds),
        avoid: request.avoid.iter().map(|name| server(name)).collect::<Result<_>>()?,
        away: request.away,
        holders: request.holders.iter().map(holder_from_wire).collect::<Result<_>>()?,
    })
}

fn holder_to_wire(holder: &Holder) -> wire::Holder {
    wire::Holder { server: holder.server.as_str().to_owned(), bytes: holder.bytes.0 }
}

fn holder_from_wire(holder: &wire::Holder) -> Result<Holder> {
    Ok(Holder { server: server(&holder.server)?, bytes: Bytes(holder.bytes) })
}

/// One that this release does not know, and none, is taken for a compaction, which every release
/// places.
fn purpose_from_wire(name: &str) -> JobPurpose {
    JobPurpose::ALL.into_iter().find(|purpose| purpose.name() == name).unwrap_or_default()
}

pub(crate) fn answer_to_wire(answer: &PlacementAnswer, worker_address: Option<String>) -> wire::PlaceReply {
    match (answer, worker_address) {
        (PlacementAnswer::Worker { worker, prediction }, Some(worker_address)) => wire::PlaceReply {
            worker: worker.as_str().to_owned(),
            worker_address,
            seconds: prediction.seconds.0,
            joules: prediction.joules.0,
            time_error: prediction.time_error,
            samples: prediction.samples,
            ..Default::default()
        },
        (PlacementAnswer::Local { reason }, _) => {
            wire::PlaceReply { local_reason: reason.name().to_owned(), ..Default::default() }
        }
        // A worker that never said where it listens cannot be sent a job.
        (PlacementAnswer::Worker { .. }, None) => {
            wire::PlaceReply { local_reason: LocalReason::NoServerEnabled.name().to_owned(), ..Default::default() }
        }
    }
}

pub(crate) fn answer_from_wire(reply: &wire::PlaceReply) -> Result<PlacementAnswer> {
    if reply.worker.is_empty() {
        let reason = LocalReason::ALL.into_iter().find(|reason| reason.name() == reply.local_reason);
        return Ok(PlacementAnswer::Local { reason: reason.unwrap_or(LocalReason::ImplausiblePlacement) });
    }
    let prediction = Prediction {
        seconds: Seconds(reply.seconds),
        joules: Joules(reply.joules),
        time_error: reply.time_error,
        samples: reply.samples,
    };
    Ok(PlacementAnswer::Worker { worker: server(&reply.worker)?, prediction })
}

/// A reason that this release does not know is taken for a full worker.
pub(crate) fn decline_from_wire(name: &str) -> DeclineReason {
    DeclineReason::ALL.into_iter().find(|reason| reason.name() == name).unwrap_or(DeclineReason::NoFreeSlot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_arrives_as_it_was_sent_and_one_of_another_release_is_of_a_compaction() {
        for purpose in JobPurpose::ALL {
            let request = PlacementRequest {
                owner: server("edge").unwrap(),
                job: JobId(7),
                purpose,
                input_bytes: Bytes(1 << 20),
                input_level: 2,
                output_level: 4,
                local_time: Some(Seconds(1.5)),
                latest: Some(Seconds(0.5)),
                avoid: vec![server("slow").unwrap()],
                away: 3,
                holders: vec![Holder { server: server("near").unwrap(), bytes: Bytes(1 << 19) }],
            };
            assert_eq!(request_from_wire(&request_to_wire(&request, 1)).unwrap(), request);
            for name in ["", "replication"] {
                let foreign = wire::PlaceRequest { purpose: name.to_owned(), ..request_to_wire(&request, 1) };
                assert_eq!(request_from_wire(&foreign).unwrap().purpose, JobPurpose::Compaction, "{name:?}");
            }
        }
    }
}
