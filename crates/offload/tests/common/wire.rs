//! The protocol as a stranger speaks it: generated from the same description, knowing nothing of the crate's insides.
#![allow(clippy::all)]

tonic::include_proto!("ecotone.federation.v1");
