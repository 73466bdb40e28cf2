//! The protocol's version and its generated messages.

/// Version of `proto/federation.proto`. Raised when a peer of the former version could misunderstand a message; peers of
/// another version are refused in the handshake and again with every offer of a job.
pub const PROTOCOL_VERSION: u32 = 1;

/// Bytes of one message that either side accepts: a range of a file (see [`crate::Limits::chunk_bytes`]) or a job's
/// description, whose size grows with the number of its input tables.
pub(crate) const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// Messages and services generated from `proto/federation.proto`, which documents them.
#[allow(missing_docs, clippy::all)]
pub(crate) mod wire {
    tonic::include_proto!("ecotone.federation.v1");
}
