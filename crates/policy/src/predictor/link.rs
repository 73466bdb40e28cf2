//! What the network adds to a job that another server runs: Diff_trans of EdgePilot (equations 1
//! and 5), before any job has shown it.

use crate::machine::{Link, ModelParameters};
use crate::regression::Line;
use ecotone_types::units::{BytesPerSecond, Seconds, Watts};

/// What the two ends of a path have measured, each to the coordinator. An end that has measured
/// nothing (the coordinator itself among them) adds nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkEnds {
    /// At the worker.
    pub worker: Option<Link>,
    /// At the owner.
    pub owner: Option<Link>,
}

impl LinkEnds {
    /// The path between the two: the narrower end, and both round trips, which is what a network
    /// with the coordinator in its middle has, and no less than any other.
    fn path(self, parameters: &ModelParameters) -> Link {
        let prior = Link { bytes_per_s: parameters.prior_link_bytes_per_s, round_trip: parameters.prior_round_trip };
        match (self.worker, self.owner) {
            (None, None) => prior,
            (Some(end), None) | (None, Some(end)) => end,
            (Some(worker), Some(owner)) => Link {
                bytes_per_s: worker.bytes_per_s.min(owner.bytes_per_s),
                round_trip: worker.round_trip + owner.round_trip,
            },
        }
    }
}

/// Seconds that the path adds to a job, over its input bytes: the inputs go one way, the outputs
/// (`output_ratio` of them) the other, and some questions wait for their answers.
pub(super) fn link_line(parameters: &ModelParameters, ends: LinkEnds, output_ratio: f64) -> Line {
    let Link { bytes_per_s: BytesPerSecond(bytes_per_s), round_trip: Seconds(round_trip) } = ends.path(parameters);
    Line { a: (1.0 + output_ratio) / bytes_per_s, b: parameters.round_trips_per_job * round_trip }
}

/// What a byte costs that travels: seconds on the path, joules at both ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TravelPrice {
    pub(super) seconds_per_byte: f64,
    pub(super) joules_per_byte: f64,
}

/// The price of a byte on a path between two servers. Each end is so fast and takes so many watts
/// while its core is busy; an end that is not known is free.
pub(super) fn travel_price(
    parameters: &ModelParameters,
    ends: LinkEnds,
    cores: impl IntoIterator<Item = (f64, Watts)>,
) -> TravelPrice {
    let busy_seconds = 1.0 / parameters.transport_bytes_per_s.0;
    let joules = cores.into_iter().map(|(core_speed, watts)| busy_seconds / core_speed * watts.0);
    TravelPrice { seconds_per_byte: 1.0 / ends.path(parameters).bytes_per_s.0, joules_per_byte: joules.sum() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_as_narrow_as_its_narrower_end_and_as_long_as_both() {
        let parameters = ModelParameters { round_trips_per_job: 10.0, ..ModelParameters::default() };
        let end = |bytes_per_s: f64, round_trip: f64| {
            Some(Link { bytes_per_s: BytesPerSecond(bytes_per_s), round_trip: Seconds(round_trip) })
        };
        let line = link_line(&parameters, LinkEnds { worker: end(100.0, 0.01), owner: end(50.0, 0.02) }, 1.0);
        assert!((line.a - 2.0 / 50.0).abs() < 1e-12 && (line.b - 0.3).abs() < 1e-12, "{line:?}");
        let coordinator_works = link_line(&parameters, LinkEnds { worker: None, owner: end(50.0, 0.02) }, 0.5);
        assert!((coordinator_works.a - 1.5 / 50.0).abs() < 1e-12 && (coordinator_works.b - 0.2).abs() < 1e-12);
        let unknown = link_line(&parameters, LinkEnds { worker: None, owner: None }, 1.0);
        assert_eq!(unknown.a, 2.0 / parameters.prior_link_bytes_per_s.0);
    }
}
