//! EdgeCode: whether an offload saves time (EdgePilot section III, equations 1 to 6).
//!
//! The functions take lines over the size of a compaction, as EdgePilot's linear regressions LR(size) do.

use crate::regression::Line;
use crate::units::{Bytes, Seconds};

/// The four lines that EdgeCode compares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EdgeCode {
    /// Low-LR: a compaction at the owner, from its own storage. CTL of EdgePilot section III-A.
    pub owner: Line,
    /// High-LR: the same compaction at the worker, from the worker's own storage.
    pub worker: Line,
    /// Network-LR: the compaction at the worker, from the owner's storage over the network. CTO.
    pub network: Line,
}

impl EdgeCode {
    /// Computation saved: Diff_comp(size) = Low-LR(size) - High-LR(size). EdgePilot equations 2 and 4.
    pub fn diff_comp(&self, size: Bytes) -> Seconds {
        Seconds(self.owner.at(size) - self.worker.at(size))
    }

    /// Transfer added: Diff_trans(size) = Network-LR(size) - Local-LR(size), where Local-LR is the worker's compaction
    /// of its own files. EdgePilot equations 1 and 5.
    pub fn diff_trans(&self, size: Bytes) -> Seconds {
        Seconds(self.network.at(size) - self.worker.at(size))
    }

    /// Time saved: Diff(size) = Diff_comp(size) - Diff_trans(size). EdgePilot equation 6.
    pub fn diff(&self, size: Bytes) -> Seconds {
        self.diff_comp(size) - self.diff_trans(size)
    }

    /// Whether the offload is effective: Diff_comp - Diff_trans > 0. EdgePilot equation 3.
    ///
    /// The worker's own line drops out, so this is the comparison of Figure 6, CTO < CTL, done without rounding twice.
    pub fn offload_is_faster(&self, size: Bytes) -> bool {
        self.network.at(size) < self.owner.at(size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_differences_follow_the_equations() {
        let lines = EdgeCode {
            owner: Line { a: 4.0, b: 1.0 },
            worker: Line { a: 1.0, b: 0.5 },
            network: Line { a: 2.0, b: 5.0 },
        };
        let size = Bytes(10);
        assert_eq!(lines.diff_comp(size), Seconds(41.0 - 10.5));
        assert_eq!(lines.diff_trans(size), Seconds(25.0 - 10.5));
        assert_eq!(lines.diff(size), Seconds(16.0));
        assert!(lines.offload_is_faster(size));
        // 2 bytes: 9 s at home, 9 s away. Nothing is saved, so nothing is sent.
        assert_eq!(lines.diff(Bytes(2)), Seconds::ZERO);
        assert!(!lines.offload_is_faster(Bytes(2)));
        assert!(!lines.offload_is_faster(Bytes(1)));
    }
}
