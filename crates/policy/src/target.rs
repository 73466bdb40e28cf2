//! ECO-KVS's target: among the servers that end in time, the one that uses the least energy
//! (section V, equations 3 and 4).

use std::cmp::Ordering;

use crate::machine::Prediction;
use ecotone_types::ServerId;
use ecotone_types::units::Seconds;

/// A server that could run a job, and what that would take.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The server.
    pub server: ServerId,
    /// f_offload-time and f_offload-energy of ECO-KVS.
    pub prediction: Prediction,
}

impl Candidate {
    /// Whether it belongs to N_no-stall of ECO-KVS equation 3: it takes less than `latest`. Without
    /// a latest time every server does.
    pub fn is_in_time(&self, latest: Option<Seconds>) -> bool {
        latest.is_none_or(|latest| self.prediction.seconds < latest)
    }
}

/// N_target of ECO-KVS equation 4: the server of least energy within N_no-stall of equation 3.
/// Equal energies are decided by time and then by name, so that the order of the candidates does
/// not matter.
pub fn least_energy_in_time(candidates: &[Candidate], latest: Option<Seconds>) -> Option<&Candidate> {
    candidates.iter().filter(|candidate| candidate.is_in_time(latest)).min_by(|one, other| {
        let (p, q) = (&one.prediction, &other.prediction);
        by_value(p.joules.0, q.joules.0)
            .then_with(|| by_value(p.seconds.0, q.seconds.0))
            .then_with(|| one.server.cmp(&other.server))
    })
}

/// The server of least time; equal times are decided by energy and then by name.
pub fn fastest(candidates: &[Candidate]) -> Option<&Candidate> {
    candidates.iter().min_by(|one, other| {
        let (p, q) = (&one.prediction, &other.prediction);
        by_value(p.seconds.0, q.seconds.0)
            .then_with(|| by_value(p.joules.0, q.joules.0))
            .then_with(|| one.server.cmp(&other.server))
    })
}

fn by_value(one: f64, other: f64) -> Ordering {
    one.total_cmp(&other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ecotone_types::units::Joules;

    fn candidate(name: &str, seconds: f64, joules: f64) -> Candidate {
        let prediction = Prediction { seconds: Seconds(seconds), joules: Joules(joules), time_error: 0.0, samples: 20 };
        Candidate { server: ServerId::new(name).unwrap(), prediction }
    }

    fn target(candidates: &[Candidate], latest: Option<f64>) -> Option<String> {
        least_energy_in_time(candidates, latest.map(Seconds)).map(|candidate| candidate.server.to_string())
    }

    #[test]
    fn the_cheapest_in_time_wins_and_not_the_fastest() {
        // ECO-KVS section IV: Medium is fast enough for Low and costs less than High.
        let candidates = [candidate("high", 1.0, 45.0), candidate("low", 3.0, 20.0), candidate("medium", 1.8, 34.0)];
        assert_eq!(target(&candidates, Some(2.0)).as_deref(), Some("medium"));
        assert_eq!(target(&candidates, Some(1.8)).as_deref(), Some("high"), "equation 3 is strict");
        assert_eq!(target(&candidates, Some(1.0)), None);
        assert_eq!(target(&candidates, None).as_deref(), Some("low"));
        assert_eq!(fastest(&candidates).map(|c| c.server.as_str()), Some("high"));
        assert_eq!(fastest(&[]), None);
    }

    #[test]
    fn ties_are_decided_by_time_then_name_whatever_the_order() {
        let mut candidates = [
            candidate("c", 2.0, 10.0),
            candidate("b", 1.0, 10.0),
            candidate("a", 1.0, 10.0),
            candidate("d", 1.0, 11.0),
        ];
        for _ in 0..candidates.len() {
            candidates.rotate_left(1);
            assert_eq!(target(&candidates, Some(5.0)).as_deref(), Some("a"));
            assert_eq!(fastest(&candidates).map(|c| c.server.as_str()), Some("a"));
        }
    }
}
