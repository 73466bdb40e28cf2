//! EdgeCode: whether an offload saves time (EdgePilot section III, equations 1 to 6).
//!
//! The functions take lines over the size of a compaction, as EdgePilot's linear regressions
//! LR(size) do.

use crate::regression::Line;
use ecotone_types::units::Bytes;

/// The lines that EdgeCode compares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EdgeCode {
    /// Low-LR: a compaction at the owner, from its own storage. CTL of EdgePilot section III-A.
    pub owner: Line,
    /// Network-LR: the compaction at the worker, from the owner's storage over the network. CTO.
    pub network: Line,
}

impl EdgeCode {
    /// Whether the offload is effective: Diff_comp - Diff_trans > 0. EdgePilot equation 3.
    ///
    /// Diff_comp(size) = Low-LR(size) - High-LR(size) is the computation saved and
    /// Diff_trans(size) = Network-LR(size) - High-LR(size) the transfer added, where High-LR is the
    /// worker's compaction of its own files. It drops out of their difference, so this is the
    /// comparison of Figure 6, CTO < CTL, done without rounding twice.
    pub fn offload_is_faster(&self, size: Bytes) -> bool {
        self.network.at(size) < self.owner.at(size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offload_is_faster_where_the_equations_say_so() {
        let lines = EdgeCode { owner: Line { a: 4.0, b: 1.0 }, network: Line { a: 2.0, b: 5.0 } };
        let worker = Line { a: 1.0, b: 0.5 };
        for bytes in 1..10 {
            let size = Bytes(bytes);
            let diff_comp = lines.owner.at(size) - worker.at(size);
            let diff_trans = lines.network.at(size) - worker.at(size);
            assert_eq!(lines.offload_is_faster(size), diff_comp - diff_trans > 0.0, "{bytes}");
        }
        // 2 bytes: 9 s at home, 9 s away. Nothing is saved, so nothing is sent.
        assert!(!lines.offload_is_faster(Bytes(2)) && lines.offload_is_faster(Bytes(3)));
    }
}
