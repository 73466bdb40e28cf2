//! The authority, sealed.

use std::path::Path;

use ecotone_identity::seal::MAX_SEALED_BYTES;
use ecotone_identity::{Authority, Error, FederationId, SealKey, found};
use proptest::prelude::*;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

use crate::{NOW, name};

/// What is in the sealed authority that was made in `folder`, as the format says.
pub fn opened(folder: &Path) -> Vec<u8> {
    let hex = std::fs::read_to_string(folder.join("authority.sealed")).unwrap();
    let digits = hex.trim_end().as_bytes().chunks(2);
    let sealed: Vec<u8> =
        digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect();
    let seal = SealKey::load(folder).unwrap().unwrap();
    let joined: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(folder.join("joined.json")).unwrap()).unwrap();
    let federation: FederationId = joined["federation"].as_str().unwrap().parse().unwrap();
    let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, seal.bytes()).unwrap());
    let authenticated = [&b"ecotone authority\x01"[..], &federation.bytes()].concat();
    assert_eq!(sealed[0], 1);
    let mut text = sealed[13..].to_vec();
    let nonce = Nonce::try_assume_unique_for_key(&sealed[1..13]).unwrap();
    key.open_in_place(nonce, Aad::from(authenticated), &mut text).unwrap().to_vec()
}

fn authority() -> (Authority, SealKey) {
    (Authority::create(FederationId::draw().unwrap(), NOW).unwrap(), SealKey::draw().unwrap())
}

fn refused(sealed: &[u8], key: &SealKey, federation: FederationId) -> String {
    let refused = Authority::open(sealed, key, federation).unwrap_err();
    assert!(matches!(refused, Error::Sealed(_)) && refused.kind() == "sealed", "{refused}");
    refused.to_string()
}

#[test]
fn what_was_sealed_is_opened_with_the_same_key_and_signs_and_checks_as_before() {
    let (authority, key) = authority();
    let sealed = authority.seal(&key).unwrap();
    assert!(sealed.len() < MAX_SEALED_BYTES / 4, "{} bytes leave no room for a longer key", sealed.len());
    assert_ne!(authority.seal(&key).unwrap()[1..13], sealed[1..13], "a nonce is used once");
    let again = Authority::open(&sealed, &key, authority.federation()).unwrap();
    assert_eq!((again.federation(), again.certificate()), (authority.federation(), authority.certificate()));
    let token = authority.issue_token(NOW).unwrap();
    assert!(again.check_token(token.secret(), NOW).is_ok());
    let token = again.issue_token(NOW).unwrap();
    assert!(authority.check_token(token.secret(), NOW).is_ok());
    // Neither the key nor what it protects is shown.
    assert_eq!(format!("{key:?}"), "SealKey(..)");
    assert!(!sealed.windows(11).any(|part| part == b"PRIVATE KEY"));
    assert!(!format!("{authority:?}").contains("key"));
}

#[test]
fn a_seal_opens_with_its_own_key_and_for_its_own_federation_only() {
    let (authority, key) = authority();
    let sealed = authority.seal(&key).unwrap();
    let other = refused(&sealed, &SealKey::draw().unwrap(), authority.federation());
    assert!(other.contains("seal key"), "{other}");
    refused(&sealed, &key, FederationId::draw().unwrap());
    // After the key was changed, what was sealed before stays closed to the new one.
    let next = SealKey::draw().unwrap();
    let resealed = authority.seal(&next).unwrap();
    refused(&sealed, &next, authority.federation());
    refused(&resealed, &key, authority.federation());
    Authority::open(&resealed, &next, authority.federation()).unwrap();
}

#[test]
fn a_seal_that_is_cut_short_or_too_long_or_of_another_version_is_refused() {
    let (authority, key) = authority();
    let federation = authority.federation();
    let sealed = authority.seal(&key).unwrap();
    for length in 0..sealed.len() {
        refused(&sealed[..length], &key, federation);
    }
    refused(&[&sealed[..], &[0]].concat(), &key, federation);
    assert!(refused(&vec![1; MAX_SEALED_BYTES + 1], &key, federation).contains("too long"));
    let newer = [&[2], &sealed[1..]].concat();
    assert!(refused(&newer, &key, federation).contains("version"));
}

#[test]
fn a_seal_key_is_kept_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(SealKey::load(directory.path()).unwrap(), None);
    let key = SealKey::draw().unwrap();
    key.store(directory.path()).unwrap();
    assert_eq!(SealKey::load(directory.path()).unwrap(), Some(key.clone()));
    assert_eq!(SealKey::from_bytes(key.bytes()).unwrap(), key);
    assert!(SealKey::from_bytes(&key.bytes()[1..]).is_err());
    let folder = directory.path().join("a");
    let founded = found(&folder, &name("a"), NOW).unwrap();
    assert_eq!(SealKey::load(&folder).unwrap(), Some(founded.seal));
}

proptest! {
    #[test]
    fn no_byte_of_a_seal_can_be_changed(at in any::<prop::sample::Index>(), with in 1_u8..) {
        let (authority, key) = authority();
        let mut sealed = authority.seal(&key).unwrap();
        let at = at.index(sealed.len());
        sealed[at] ^= with;
        refused(&sealed, &key, authority.federation());
    }

    #[test]
    fn no_bytes_are_a_seal(bytes in prop::collection::vec(any::<u8>(), 0..200), is_of_version in any::<bool>()) {
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut().filter(|_| is_of_version) {
            *first = 1;
        }
        refused(&bytes, &SealKey::draw().unwrap(), FederationId::from_bytes([7; 8]));
    }
}
