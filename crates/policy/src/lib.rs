//! Decisions: where, and by which server, a compaction of an edge federation shall run.
//!
//! It holds the models that predict seconds, joules and input rates, the formulas of ECO-KVS and
//! EdgePilot, and [`machine`]: one state machine that takes events and gives commands. The daemon
//! and a simulator are two interpreters of the same commands. Garbage collection has another,
//! [`gc::GcMachine`]. Which cores run fast and which slow is [`power`]'s.
//!
//! **Never in this crate:** IO, clocks, threads, locks, global randomness, and any other crate of
//! the workspace but `types`. Time is an argument ([`ecotone_types::units::Time`]). The same events
//! in the same order give the same commands, on every machine.
//!
//! Formulas name their source: "ECO-KVS" is *ECO-KVS: Energy-aware Compaction Offloading Mechanism
//! for LSM-tree based Key-Value Stores in Edge Federation*; "EdgePilot" is *Coordinating Compaction
//! between LSM-tree based Key-Value Stores for Edge Federation* (CLOUD 2024). Constants of the
//! decisions are named fields of [`machine::Parameters`]; what only keeps numbers within what a
//! float can bear is a named constant where it is used.

pub mod compression;
pub mod dedup;
pub mod duplicates;
pub mod edgecode;
pub mod error;
pub mod gc;
pub mod idle;
pub mod machine;
pub mod policy;
pub mod power;
pub mod predictor;
pub mod prequential;
pub mod queue_order;
pub mod rate;
pub mod regression;
pub mod server_table;
pub mod stall;
pub mod target;

pub use error::{Error, Result};
pub use policy::PolicyName;
