//! What a copy records of itself, beside its files (rules 1, 2, 5 and 6).
//!
//! It stands for what the in-sync set cannot name: which boot and which directory the member was
//! that was counted. A directory without a standing is new, and holds nothing that it acknowledged.

use ecotone_control::ids::Epoch;

use crate::position::{BootId, History};

/// The record. It is durable before anything that follows from it is said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// It acknowledges and promises nothing in this epoch or an earlier one.
    pub sealed: Epoch,
    /// The last epoch that it was opened in as primary.
    pub opened: Epoch,
    /// In this boot it acknowledged what may not be durable. Another boot may lack some of it.
    pub unsynced_in: Option<BootId>,
    /// It holds all that it acknowledged.
    pub is_whole: bool,
    /// Where the epochs before its last one ended.
    pub history: History,
}

impl Standing {
    /// The first copy of a new shard, which holds nothing because there is nothing.
    pub fn founded() -> Self {
        Self { is_whole: true, ..Self::default() }
    }

    /// As a process finds it in `boot`. Whether that differs, and has to be recorded.
    pub fn start(&mut self, boot: BootId) -> bool {
        let may_lack = self.is_whole && self.unsynced_in.is_some_and(|before| before != boot);
        self.is_whole &= !may_lack;
        may_lack
    }
}
