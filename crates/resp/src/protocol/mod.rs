//! The bytes between a client and a server: requests are read, replies are written. Nothing here
//! knows a command.
//!
//! The reference is Redis 7.2: what it accepts is accepted, what it refuses is refused with its
//! words, and its replies are matched byte for byte. Where a module goes another way on purpose,
//! its header says so.
//!
//! - [`request`]: bytes of a connection into arguments, with limits.
//! - [`reply`]: answers into bytes, in RESP2 or RESP3.
//! - [`number`]: integers and floating-point numbers as text, as commands take and give them.
//! - [`extended`]: the sums of `INCRBYFLOAT`, which Redis does in 80-bit arithmetic.
//! - [`glob`]: the patterns of `KEYS`, `SCAN` and `PSUBSCRIBE`.
//!
//! Everything is plain computation: no threads, no IO, no clock.

pub mod extended;
pub mod glob;
pub mod number;
pub mod reply;
pub mod request;
mod text;
