//! The record of tokens and servers.

use std::collections::{BTreeMap, BTreeSet};

use ecotone_identity::ledger::{Entry, LedgerState, MAX_TOKENS};
use ecotone_identity::refusal::Refusal;
use ecotone_identity::token::Hash;
use ecotone_identity::{MemberId, Timestamp};
use proptest::prelude::*;

use crate::{HOUR, NOW, name};

fn member(number: u8) -> MemberId {
    MemberId::from_bytes([number; 8])
}

fn issued(token: &[u8], now: Timestamp) -> Entry {
    Entry::TokenIssued { token: Hash::of(token), ends: now.plus(HOUR), now }
}

fn joined(token: &[u8], key: &[u8], number: u8, called: &str, now: Timestamp) -> Entry {
    let (token, key) = (Hash::of(token), Hash::of(key));
    Entry::Joined { token, key, member: member(number), name: name(called), ends: now.plus(24 * HOUR), now }
}

#[test]
fn a_token_lets_one_key_in_and_no_other() {
    let mut state = LedgerState::default();
    assert_eq!(state.apply(&joined(b"t", b"k", 1, "a", NOW)), Err(Refusal::UnknownToken));
    state.apply(&issued(b"t", NOW)).unwrap();
    assert_eq!(state.apply(&joined(b"u", b"k", 1, "a", NOW)), Err(Refusal::UnknownToken));
    assert_eq!(state.apply(&joined(b"t", b"k", 1, "a", NOW)), Ok(Some(member(1))));
    // The answer was lost: the same key gets the same place, whatever id is proposed.
    assert_eq!(state.apply(&joined(b"t", b"k", 2, "a", NOW)), Ok(Some(member(1))));
    assert_eq!(state.apply(&joined(b"t", b"l", 3, "b", NOW)), Err(Refusal::SpentToken));
    assert_eq!(state.apply(&joined(b"t", b"k", 3, "b", NOW)), Err(Refusal::SpentToken));
    assert_eq!(state.servers().len(), 1);
    // Who was removed does not come back by the token that it has spent.
    state.apply(&Entry::Removed { member: member(1), now: NOW }).unwrap();
    assert_eq!(state.apply(&joined(b"t", b"k", 4, "a", NOW)), Err(Refusal::SpentToken));
}

#[test]
fn a_token_is_good_for_an_hour_and_a_refusal_says_so_for_another() {
    let mut state = LedgerState::default();
    state.apply(&issued(b"t", NOW)).unwrap();
    let late = |seconds| joined(b"t", b"k", 1, "a", NOW.plus(seconds));
    assert_eq!(state.clone().apply(&late(HOUR - 1)), Ok(Some(member(1))));
    assert_eq!(state.clone().apply(&late(HOUR)), Err(Refusal::ExpiredToken));
    assert_eq!(state.clone().apply(&late(2 * HOUR - 1)), Err(Refusal::ExpiredToken));
    assert_eq!(state.apply(&late(2 * HOUR)), Err(Refusal::UnknownToken));
}

#[test]
fn a_name_is_free_again_when_its_server_is_removed_and_the_removed_one_stays_listed() {
    let mut state = LedgerState::default();
    let founded =
        |number| Entry::Founded { member: member(number), name: name("a"), ends: NOW.plus(24 * HOUR), now: NOW };
    state.apply(&founded(1)).unwrap();
    assert_eq!(state.apply(&founded(2)), Err(Refusal::AlreadyFounded));
    state.apply(&issued(b"t", NOW)).unwrap();
    let taken = Refusal::NameTaken { name: name("a"), member: member(1).to_string() };
    assert_eq!(state.apply(&joined(b"t", b"k", 2, "a", NOW)), Err(taken));
    let renewed = NOW.plus(10 * HOUR);
    let renewal = Entry::Renewed { member: member(1), ends: renewed.plus(24 * HOUR), now: renewed };
    assert_eq!(state.apply(&renewal), Ok(Some(member(1))));
    assert_eq!(state.find("a"), Ok(member(1)));
    assert_eq!(state.find(&member(1).to_string()), Ok(member(1)));
    state.apply(&Entry::Removed { member: member(1), now: renewed }).unwrap();
    assert_eq!(state.find("a"), Err(Refusal::UnknownServer("a".into())));
    assert_eq!(state.apply(&renewal), Err(Refusal::UnknownServer(member(1).to_string())));
    // Even to a federation without servers nobody comes without a token.
    assert_eq!(state.apply(&founded(3)), Err(Refusal::AlreadyFounded));
    let removed = |state: &LedgerState| state.removed().collect::<Vec<_>>();
    let at = |seconds| issued(b"later", renewed.plus(seconds));
    state.apply(&at(24 * HOUR)).unwrap();
    assert_eq!(removed(&state), [member(1)], "its last certificate may be valid");
    state.apply(&at(24 * HOUR + 1)).unwrap();
    assert_eq!(removed(&state), []);
}

#[test]
fn there_are_no_more_tokens_than_the_limit_until_some_are_over() {
    let mut state = LedgerState::default();
    for number in 0..MAX_TOKENS {
        state.apply(&issued(&number.to_le_bytes(), NOW)).unwrap();
    }
    assert!(matches!(state.apply(&issued(b"more", NOW)), Err(Refusal::Full(_))));
    state.apply(&issued(b"more", NOW.plus(2 * HOUR))).unwrap();
}

#[test]
fn the_state_is_stored_in_this_form() {
    let mut state = LedgerState::default();
    state.apply(&Entry::Founded { member: member(1), name: name("a"), ends: Timestamp(7), now: Timestamp(1) }).unwrap();
    state.apply(&Entry::TokenIssued { token: Hash::of(b"t"), ends: Timestamp(9), now: Timestamp(2) }).unwrap();
    let stored = serde_json::to_string(&state).unwrap();
    assert_eq!(
        stored,
        "{\"tokens\":[{\"token\":\"e3b98a4da31a127d4bde6e43033f66ba274cab0eb7eb1c70ec41402bf6273dd8\",\"ends\":9,\"spent\":null}],\
         \"servers\":{\"0101010101010101\":{\"name\":\"a\",\"ends\":7}},\"removed\":{}}"
    );
    assert_eq!(serde_json::from_str::<LedgerState>(&stored).unwrap(), state);
}

#[derive(Debug, Clone)]
enum Step {
    Issue(u8),
    Join { token: u8, key: u8, called: u8 },
    Renew(u8),
    Remove(u8),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0_u8..4).prop_map(Step::Issue),
        (0_u8..4, 0_u8..3, 0_u8..3).prop_map(|(token, key, called)| Step::Join { token, key, called }),
        (0_u8..6).prop_map(Step::Renew),
        (0_u8..6).prop_map(Step::Remove),
        (1_u64..2 * HOUR).prop_map(Step::Wait),
    ]
}

proptest! {
    #[test]
    fn whatever_happens_a_token_makes_one_server_and_names_are_unique(
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let (mut state, mut now, mut next) = (LedgerState::default(), NOW, 0_u8);
        // Of each issuing of a token: when it ends, and whom it let in.
        let mut tokens: BTreeMap<u8, (Timestamp, BTreeSet<MemberId>)> = BTreeMap::new();
        let (mut all, mut gone): (Vec<MemberId>, BTreeMap<MemberId, Timestamp>) = Default::default();
        let mut ends: BTreeMap<MemberId, Timestamp> = BTreeMap::new();
        for step in steps {
            match step {
                // A secret is drawn once: the same one is not issued again while it is kept.
                Step::Issue(token) if tokens.get(&token).is_some_and(|(ends, _)| now < ends.plus(HOUR)) => {}
                Step::Issue(token) => {
                    state.apply(&issued(&[token], now)).unwrap();
                    tokens.insert(token, (now.plus(HOUR), BTreeSet::new()));
                }
                Step::Join { token, key, called } => {
                    next = next.wrapping_add(1);
                    if let Ok(Some(joined)) = state.apply(&joined(&[token], &[key], next, &called.to_string(), now)) {
                        let (token_ends, let_in) = tokens.get_mut(&token).unwrap();
                        prop_assert!(now < *token_ends || let_in.contains(&joined));
                        let_in.insert(joined);
                        prop_assert_eq!(let_in.len(), 1, "one token, one server");
                        prop_assert!(!gone.contains_key(&joined), "a removed server came back");
                        ends.insert(joined, now.plus(24 * HOUR));
                        all.push(joined);
                    }
                }
                Step::Renew(number) => {
                    if let Some(server) = all.get(usize::from(number)).copied() {
                        let entry = Entry::Renewed { member: server, ends: now.plus(24 * HOUR), now };
                        prop_assert_eq!(state.apply(&entry).is_ok(), !gone.contains_key(&server));
                        if !gone.contains_key(&server) {
                            ends.insert(server, now.plus(24 * HOUR));
                        }
                    }
                }
                Step::Remove(number) => {
                    if let Some(server) = all.get(usize::from(number)).copied() {
                        let removed = state.apply(&Entry::Removed { member: server, now }).is_ok();
                        prop_assert_eq!(removed, !gone.contains_key(&server));
                        gone.insert(server, ends[&server]);
                    }
                }
                Step::Wait(seconds) => now = now.plus(seconds),
            }
            let names: BTreeSet<_> = state.servers().values().map(|server| server.name.clone()).collect();
            prop_assert_eq!(names.len(), state.servers().len());
            let listed: BTreeSet<_> = state.removed().collect();
            for (server, ends) in &gone {
                prop_assert!(!state.servers().contains_key(server));
                prop_assert!(now > *ends || listed.contains(server), "a removed server is not listed any more");
            }
        }
    }
}
