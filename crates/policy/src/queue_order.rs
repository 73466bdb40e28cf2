//! The order of EdgePilot's queue of servers (section IV-A, Algorithms 1 and 2).
//!
//! Algorithm 2 as printed compares with "at least as good" throughout, so that of two equal servers
//! each comes before the other. That is no strict order: a priority queue built on it may put
//! either first, depending on who reported first. It also compares whatever it is given, and a
//! value that is not a number beats and loses to everything at once. [`compare`] keeps its
//! decisions wherever one server is better, and makes the rest a total order: it sorts servers into
//! three classes first (usable; without bandwidth; without cores), which is what the printed
//! conditions amount to, and decides what is equal by name. The property test
//! `the_order_is_total_and_agrees_with_algorithm_2` holds the two together.

use std::cmp::Ordering;

use ecotone_types::ServerId;
use ecotone_types::units::{BytesPerSecond, Cores};

/// What EdgePilot's Monitor knows of a server (Algorithm 1, lines 5 to 9).
#[derive(Clone, Debug, PartialEq)]
pub struct ServerStatus {
    /// The server.
    pub server: ServerId,
    /// `available_core`.
    pub available_cores: Cores,
    /// `available_NB`: network bandwidth that is unused.
    pub available_network: BytesPerSecond,
    /// `compaction_perf`: input bytes that the server compacts in a second, by its own model, at a
    /// size that is the same for all. More is better.
    pub compaction_bytes_per_s: BytesPerSecond,
}

/// What a server needs to be usable (Algorithm 2, lines 2 to 6).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueueLimits {
    /// More cores than this must be available; EdgePilot has 1.
    pub min_cores: Cores,
    /// More bandwidth than this must be available; EdgePilot has 0.
    pub min_network: BytesPerSecond,
}

/// EdgePilot's order as a total one: `Less` means that `a` comes before `b` in the queue.
pub fn compare(a: &ServerStatus, b: &ServerStatus, limits: QueueLimits) -> Ordering {
    let class = class_of(a, limits);
    class.cmp(&class_of(b, limits)).then_with(|| {
        let better = match class {
            Class::WithoutCores => descending(a.available_cores.0, b.available_cores.0),
            Class::WithoutNetwork => descending(a.available_network.0, b.available_network.0),
            Class::Usable => descending(a.compaction_bytes_per_s.0, b.compaction_bytes_per_s.0)
                .then_with(|| descending(a.available_cores.0, b.available_cores.0)),
        };
        better.then_with(|| a.server.cmp(&b.server))
    })
}

/// The head of the queue: the server that Algorithm 2 prefers to all others.
pub fn head(statuses: &[ServerStatus], limits: QueueLimits) -> Option<&ServerStatus> {
    statuses.iter().min_by(|a, b| compare(a, b, limits))
}

/// Best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Usable,
    WithoutNetwork,
    WithoutCores,
}

fn class_of(status: &ServerStatus, limits: QueueLimits) -> Class {
    // A value that is not a number is not above the limit: nothing is available.
    let has_cores = status.available_cores > limits.min_cores;
    let has_network = status.available_network > limits.min_network;
    match (has_cores, has_network) {
        (false, _) => Class::WithoutCores,
        (true, false) => Class::WithoutNetwork,
        (true, true) => Class::Usable,
    }
}

fn descending(a: f64, b: f64) -> Ordering {
    // What is not a number comes last; adding zero makes -0 and 0 equal, as the printed comparison
    // does.
    let key = |value: f64| if value.is_nan() { f64::NEG_INFINITY } else { value + 0.0 };
    key(b).total_cmp(&key(a))
}
