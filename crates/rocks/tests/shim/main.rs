//! The shim, each part used as those who build on it will.

mod common;
mod compaction_filter;
mod containment;
mod job;
mod mapped_log;
mod memtable;
mod mirror;
mod remap;
mod remote;
mod salvage;
mod second_process;
mod tables;
#[path = "../../../io/tests/io/tmpfs.rs"]
mod tmpfs;
mod verify;
