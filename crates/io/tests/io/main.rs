//! Files, each part used as those who build on it will.

mod awaited_reads;
mod mapped_file;
mod mapped_reads;
mod numbers;
mod objects;
mod tmpfs;
