//! Tokens that carry their own proof.

use std::collections::BTreeSet;

use ecotone_identity::refusal::Refusal;
use ecotone_identity::token::Hash;
use ecotone_identity::{Authority, Error, FederationId, Timestamp, TokenClaim};
use proptest::prelude::*;

use crate::{HOUR, NOW};

fn authority() -> Authority {
    Authority::create(FederationId::from_bytes([1; 8]), NOW).unwrap()
}

fn check(authority: &Authority, secret: &[u8], now: Timestamp) -> Result<TokenClaim, Refusal> {
    authority.check_token(secret, now).map_err(|error| match error {
        Error::Refused(refusal) => refusal,
        other => panic!("{other}"),
    })
}

#[test]
fn a_token_is_good_for_an_hour() {
    let authority = authority();
    let token = authority.issue_token(NOW).unwrap();
    let claim = check(&authority, token.secret(), NOW).unwrap();
    assert_eq!(claim.ends, NOW.plus(HOUR));
    assert_eq!(check(&authority, token.secret(), NOW.plus(HOUR - 1)), Ok(claim));
    assert_eq!(check(&authority, token.secret(), NOW.plus(HOUR)), Err(Refusal::ExpiredToken));
    assert_eq!(check(&authority, token.secret(), NOW.plus(1000 * HOUR)), Err(Refusal::ExpiredToken));
    for refusal in [Refusal::ExpiredToken, Refusal::UnknownToken] {
        assert!(refusal.to_string().contains("cluster token"), "{refusal}");
    }
}

#[test]
fn each_token_is_another_one() {
    let authority = authority();
    let ids: BTreeSet<_> =
        (0..100).map(|_| check(&authority, authority.issue_token(NOW).unwrap().secret(), NOW).unwrap().id).collect();
    assert_eq!(ids.len(), 100);
}

#[test]
fn a_token_of_another_federation_is_unknown() {
    let (one, other) = (authority(), authority());
    let token = one.issue_token(NOW).unwrap();
    assert_eq!(check(&other, token.secret(), NOW), Err(Refusal::UnknownToken));
    // Nor is an expired one told from a forged one, by who cannot know.
    assert_eq!(check(&other, token.secret(), NOW.plus(2 * HOUR)), Err(Refusal::UnknownToken));
}

#[test]
fn what_the_log_names_of_a_spent_token_does_not_let_anybody_in() {
    let authority = authority();
    let token = authority.issue_token(NOW).unwrap();
    let claim = check(&authority, token.secret(), NOW).unwrap();
    // Who reads the log knows the id, and has to guess the proof.
    let padded = [&claim.id[..], &[0; 16]].concat();
    assert_eq!(check(&authority, &padded, NOW), Err(Refusal::UnknownToken));
    assert_eq!(check(&authority, &claim.id, NOW), Err(Refusal::UnknownToken));
    assert_eq!(check(&authority, &[], NOW), Err(Refusal::UnknownToken));
}

#[test]
fn hashes_are_compared_whole() {
    assert!(Hash::of(b"a").is(&Hash::of(b"a")) && !Hash::of(b"a").is(&Hash::of(b"b")));
}

proptest! {
    /// The expiry among them.
    #[test]
    fn no_byte_of_a_secret_can_be_changed(at in 0_usize..32, with in 1_u8.., later in 0..3 * HOUR) {
        let authority = authority();
        let token = authority.issue_token(NOW).unwrap();
        let mut secret = token.secret().to_vec();
        prop_assert_eq!(secret.len(), 32);
        secret[at] ^= with;
        prop_assert_eq!(check(&authority, &secret, NOW.plus(later)), Err(Refusal::UnknownToken));
    }

    #[test]
    fn no_bytes_are_a_secret(secret in prop::collection::vec(any::<u8>(), 0..80)) {
        prop_assert_eq!(check(&authority(), &secret, NOW), Err(Refusal::UnknownToken));
    }
}
