//! Names in configurations, metrics and on the wire are the same, and no two things share one.
use std::collections::BTreeSet;
use std::fmt::Debug;

use ecotone_policy::PolicyName;
use ecotone_policy::machine::{DeclineReason, LocalReason};
use ecotone_types::{Duty, JobPurpose, ServerId};
use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::{Error, StrDeserializer};

fn read<'de, T: Deserialize<'de>>(name: &'de str) -> Result<T, Error> {
    let deserializer: StrDeserializer<'de, Error> = name.into_deserializer();
    T::deserialize(deserializer)
}

fn check<T: Deserialize<'static> + PartialEq + Debug + Copy>(all: &[T], name: impl Fn(T) -> &'static str) {
    let names: BTreeSet<_> = all.iter().map(|one| name(*one)).collect();
    assert_eq!(names.len(), all.len(), "two things share a name");
    for one in all {
        assert_eq!(read::<T>(name(*one)).unwrap(), *one);
    }
}

#[test]
fn what_is_written_is_what_is_read() {
    check(&PolicyName::ALL, PolicyName::name);
    check(&JobPurpose::ALL, JobPurpose::name);
    check(&LocalReason::ALL, LocalReason::name);
    check(&DeclineReason::ALL, DeclineReason::name);
    check(&Duty::ALL, Duty::name);
    assert!(read::<PolicyName>("edge-pilot").is_err());
}

#[test]
fn a_server_name_from_the_wire_is_checked() {
    assert_eq!(read::<ServerId>("high-1").unwrap().as_str(), "high-1");
    for bad in ["", "a\u{7}b"] {
        assert!(read::<ServerId>(bad).is_err(), "{bad:?}");
    }
}
