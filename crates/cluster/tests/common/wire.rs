//! The protocol's messages and calls, which the tests speak for themselves.

pub use ecotone_transport::wire::*;
