//! A store looked at from outside: where its bytes are, and whether all of them are as they were written.

mod space;
mod verify;

pub use space::{SegmentSpace, Space};
pub use verify::{Checking, Finding, VerifyReport, verify};
