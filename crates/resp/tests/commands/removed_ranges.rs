//! Elements that are removed as a range: within a group as after its commit, beside a model, and
//! without memory for each of them.

use crate::common;

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use common::random::cases;
use common::redis::texts;
use common::{Fixture, TestClient};
use ecotone_engine::{Direction, StoreSettings};
use ecotone_keyspace::{Blocking, CollectionId, Keys, Slot, WriteGroup};
use ecotone_resp::service::Limits;
use proptest::prelude::*;

/// More than are removed one by one.
const MANY: usize = 12_000;

#[derive(Debug, Clone)]
enum Step {
    Set(u8),
    Remove(u8),
    RemoveRange(u8, u8),
    Clear,
    Mark,
    Undo,
    Commit,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => any::<u8>().prop_map(Step::Set),
        3 => any::<u8>().prop_map(Step::Remove),
        3 => any::<(u8, u8)>().prop_map(|(one, other)| Step::RemoveRange(one.min(other), one.max(other))),
        1 => Just(Step::Clear),
        2 => Just(Step::Mark),
        2 => Just(Step::Undo),
        1 => Just(Step::Commit),
    ]
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn found(keys: &mut Keys<'_>, id: CollectionId, direction: Direction) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut found = Vec::new();
    keys.visit_all_elements(id, direction, |sub_key, value| {
        found.push((sub_key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    })
    .unwrap();
    found
}

fn check(keys: &mut Keys<'_>, id: CollectionId, model: &Model) -> Result<(), TestCaseError> {
    let expected: Vec<_> = model.clone().into_iter().collect();
    prop_assert_eq!(&found(keys, id, Direction::Forward), &expected);
    prop_assert_eq!(found(keys, id, Direction::Reverse), expected.into_iter().rev().collect::<Vec<_>>());
    for sub_key in 0..=u8::MAX {
        let value = keys.element(id, &[&[sub_key]]).unwrap().map(|value| value.to_vec());
        prop_assert_eq!(value.as_ref(), model.get(&[sub_key][..]));
        prop_assert_eq!(keys.has_element(id, &[&[sub_key]]).unwrap(), value.is_some());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(24)))]

    #[test]
    fn a_group_sees_what_it_will_have_written(steps in prop::collection::vec(step(), 1..60)) {
        let fixture = Fixture::new();
        let (id, neighbour) = fixture.change(|keys| {
            let [id, neighbour] = [(); 2].map(|()| keys.new_collection(b"key").unwrap());
            (id, neighbour)
        });
        let mut group = WriteGroup::new(fixture.service.keyspace.clone());
        let hold = |group: &mut WriteGroup| assert!(group.hold(&Slot::all().collect::<Vec<_>>(), Blocking::Allowed));
        hold(&mut group);
        // Beside it: no range goes beyond its collection.
        group.keys(Blocking::Allowed).set_element(neighbour, &[b"beside"], b"it").unwrap();
        let (mut model, mut was_cleared) = (Model::new(), false);
        let mut mark = (group.savepoint(), model.clone(), was_cleared);
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Set(sub_key) => {
                    // A group keeps short ones, longer ones and those that find no room beside
                    // these in different places.
                    let value = number.to_be_bytes().repeat([1, 3, 40, 4000, 0][number % 5]);
                    group.keys(Blocking::Allowed).set_element(id, &[&[sub_key]], &value).unwrap();
                    model.insert(vec![sub_key], value);
                }
                Step::Remove(sub_key) => {
                    group.keys(Blocking::Allowed).remove_element(id, &[&[sub_key]]);
                    model.remove(&[sub_key][..]);
                }
                Step::RemoveRange(from, to) => {
                    group.keys(Blocking::Allowed).remove_elements(id, &[from]..&[to]).unwrap();
                    model.retain(|sub_key, _| !(from..to).contains(&sub_key[0]));
                }
                Step::Clear => {
                    group.keys(Blocking::Allowed).clear();
                    (model, was_cleared) = (Model::new(), true);
                }
                Step::Mark => {
                    group.keep();
                    mark = (group.savepoint(), model.clone(), was_cleared);
                }
                Step::Undo => {
                    group.rollback_to(mark.0);
                    (model, was_cleared) = (mark.1.clone(), mark.2);
                }
                Step::Commit => {
                    group.commit(Blocking::Allowed).unwrap();
                    hold(&mut group);
                    mark = (group.savepoint(), model.clone(), was_cleared);
                }
            }
            check(&mut group.keys(Blocking::Allowed), id, &model)?;
        }
        group.commit(Blocking::Allowed).unwrap();
        fixture.change(|keys| {
            check(keys, id, &model)?;
            prop_assert_eq!(keys.has_element(neighbour, &[b"beside"]).unwrap(), !was_cleared);
            Ok(())
        })?;
    }
}

fn fill_list(client: &mut TestClient<'_>, key: &str, elements: std::ops::Range<usize>) {
    for chunk in elements.collect::<Vec<_>>().chunks(10_000) {
        let words: Vec<String> = chunk.iter().map(ToString::to_string).collect();
        client.ask(&format!("RPUSH {key} {}", words.join(" ")));
    }
}

fn list(client: &mut TestClient<'_>, key: &str) -> Vec<usize> {
    let reply = client.send(&[b"LRANGE", key.as_bytes(), b"0", b"-1"]);
    texts(&reply).into_iter().map(|text| String::from_utf8(text).unwrap().parse().unwrap()).collect()
}

#[test]
fn many_elements_of_a_list_go_from_either_end_and_come_again() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    fill_list(&mut client, "l", 0..3 * MANY);
    let id = fixture.large("l").unwrap().id;
    let left = |expected: &std::ops::Range<usize>, client: &mut TestClient<'_>| {
        assert_eq!(list(client, "l"), expected.clone().collect::<Vec<_>>());
        assert_eq!(fixture.elements(id).len(), expected.len(), "no entry is left behind");
    };
    assert_eq!(client.ask(&format!("LTRIM l {MANY} -1")), "+OK\r\n");
    left(&(MANY..3 * MANY), &mut client);
    // They come where others were, in the transaction that removes them and after it.
    for request in ["MULTI", "LPUSH l 11999 11998", &format!("LPOP l {MANY}"), "LPUSH l 7", "RPUSH l 36000", "LPOP l"] {
        client.ask(request);
    }
    assert!(client.ask("EXEC").ends_with("$5\r\n23997\r\n:12003\r\n:12004\r\n$1\r\n7\r\n"));
    left(&(2 * MANY - 2..3 * MANY + 1), &mut client);
    fill_list(&mut client, "l", 3 * MANY + 1..5 * MANY);
    assert!(client.ask(&format!("RPOP l {}", 2 * MANY - 1)).starts_with("*23999\r\n$5\r\n59999\r\n"));
    left(&(2 * MANY - 2..3 * MANY + 1), &mut client);
    fill_list(&mut client, "l", 3 * MANY + 1..4 * MANY);
    left(&(2 * MANY - 2..4 * MANY), &mut client);
}

#[test]
fn many_elements_go_from_both_ends_and_from_within_and_the_store_opens_without_them() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    fill_list(&mut client, "l", 0..3 * MANY);
    let id = fixture.large("l").unwrap().id;
    let same = vec!["x"; MANY].join(" ");
    assert_eq!(client.ask(&format!("LTRIM l {MANY} {}", 2 * MANY - 1)), "+OK\r\n");
    assert_eq!(fixture.elements(id).len(), MANY, "no entry is left behind");
    assert_eq!(client.ask(&format!("LPUSH l {same}")), format!(":{}\r\n", 2 * MANY));
    assert_eq!(client.ask("LPUSH l 7"), format!(":{}\r\n", 2 * MANY + 1));
    assert_eq!(client.ask("LREM l 0 x"), format!(":{MANY}\r\n"));
    let left: Vec<usize> = std::iter::once(7).chain(MANY..2 * MANY).collect();
    assert_eq!(list(&mut client, "l"), left);
    assert_eq!(fixture.elements(id).len(), left.len(), "no entry is left behind");
    let Fixture { service, directory, .. } = fixture;
    drop(service);
    let fixture = Fixture::at(directory, StoreSettings::default().with_separation(128));
    assert_eq!(list(&mut fixture.client(), "l"), left);
    assert_eq!(fixture.elements(id).len(), left.len());
}

#[test]
fn the_elements_of_a_list_go_without_memory_for_each() {
    let fixture = Fixture::with(StoreSettings::default());
    let mut client = fixture.client();
    fill_list(&mut client, "l", 0..2 * MANY);
    fixture.service.set_limits(Limits { memory_bytes: 1 << 20, ..Limits::default() });
    assert_eq!(client.ask(&format!("LTRIM l {} -1", MANY + 5000)), "+OK\r\n");
    assert_eq!(client.ask("LLEN l"), format!(":{}\r\n", MANY - 5000));
}
