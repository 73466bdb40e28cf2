//! Sorted sets: replies as Redis gives them, and what is in the store.

use crate::common;
mod large;
mod model;
mod ranks;
mod replies;
mod stored;

use common::Fixture;
use ecotone_keyspace::collections::sorted_set::MAX_MEMBER_BYTES;
use ecotone_resp::protocol::reply::Version;

#[test]
fn members_are_added_and_moved_as_the_options_say() {
    Fixture::check(replies::ADDING);
}

#[test]
fn members_are_found_ranked_and_removed() {
    Fixture::check(replies::MEMBERS);
}

#[test]
fn members_are_taken_from_both_ends() {
    Fixture::check(replies::POPPING);
}

#[test]
fn ranges_of_ranks_are_read_and_removed() {
    Fixture::check(replies::RANKS);
}

#[test]
fn ranges_of_scores_are_read_and_removed() {
    Fixture::check(replies::SCORES);
}

#[test]
fn ranges_of_members_are_read_and_removed() {
    Fixture::check(replies::NAMES);
}

#[test]
fn members_are_scanned_and_drawn() {
    Fixture::check(replies::SCANNING);
}

#[test]
fn what_is_no_sorted_set_is_refused() {
    Fixture::check(replies::WRONG_TYPES);
}

#[test]
fn the_benchmark_ycsb_gets_the_replies_it_needs() {
    Fixture::check(replies::YCSB);
}

#[test]
fn replies_in_resp3_have_doubles_and_pairs() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    client.speak(Version::Resp3);
    for (request, reply) in replies::IN_RESP3 {
        assert_eq!(client.ask(request), *reply, "{request}");
    }
}

#[test]
fn no_member_is_longer_than_a_key_of_the_store() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    let (longest, longer) = ("m".repeat(MAX_MEMBER_BYTES), "m".repeat(MAX_MEMBER_BYTES + 1));
    let refusal = format!("-ERR the member has {} bytes, the most is {MAX_MEMBER_BYTES}\r\n", longer.len());
    assert_eq!(client.ask(&format!("ZADD z 1 a 1 {longer}")), refusal);
    // Nothing of it was done.
    assert_eq!(client.ask("EXISTS z"), ":0\r\n");
    assert_eq!(client.ask(&format!("ZADD z 1 a 1 {longest}")), ":2\r\n");
    assert_eq!(client.ask(&format!("ZADD z 1 {longer}")), refusal);
    assert_eq!(client.ask(&format!("ZSCORE z {longest}")), "$1\r\n1\r\n");
    assert_eq!(client.ask(&format!("ZSCORE z {longer}")), "$-1\r\n");
    assert_eq!(client.ask(&format!("ZREM z {longer} {longest}")), ":1\r\n");
    assert_eq!(client.ask("ZCARD z"), ":1\r\n");
}
