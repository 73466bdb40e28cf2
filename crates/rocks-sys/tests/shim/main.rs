//! The shim, each part used as those who build on it will.

mod awaited_reads;
mod common;
mod compaction_filter;
mod containment;
mod job;
mod mapped_file;
mod mapped_log;
mod mapped_reads;
mod memtable;
mod mirror;
mod remap;
mod remote;
mod salvage;
mod second_process;
mod tables;
mod tmpfs;
mod verify;
