//! Collections of so many elements that they are removed by ranges, and not one by one.

use crate::client::Client;
use crate::families::{Family, LASTING, members, named, number};

/// Elements that one write adds.
const ADDED: u64 = 100;

/// Writes that add some: together more elements than are removed one by one.
const GROWING: u64 = 10;

/// Writes of one life: then it is cut or deleted, and deleted.
const LIFE: u64 = GROWING + 2;

/// What is left of a list that is cut.
const LEFT: u64 = 10;

/// The kinds take turns. Each step is a transaction with its own number, which tells afterwards
/// what must be there.
fn write(who: &str, number: u64) -> Vec<String> {
    let (turn, step) = (number / LIFE, number % LIFE);
    let key = format!("vast:{who}");
    let added = step * ADDED..(step + 1) * ADDED;
    let each = |of: &dyn Fn(u64) -> String| added.clone().map(of).collect::<Vec<_>>().join(" ");
    let change = match (step, turn % 4) {
        (GROWING, 1) => format!("LTRIM {key} -{LEFT} -1"),
        (GROWING.., _) => format!("DEL {key} nothing:{who}"),
        (_, 0) => format!("SADD {key} {}", each(&|element| format!("m{element}"))),
        (_, 1) => format!("RPUSH {key} {}", each(&|element| format!("m{element}"))),
        (_, 2) => format!("HSET {key} {}", each(&|element| format!("m{element} {element:0100}"))),
        (_, _) => format!("ZADD {key} {}", each(&|element| format!("{element} m{element}"))),
    };
    vec!["MULTI".into(), change, format!("SET vast-step:{who} {number}"), "EXEC".into()]
}

fn last(client: &mut Client, who: &str) -> u64 {
    let last = number(&client.ask(&format!("GET vast-step:{who}")).unwrap());
    let (turn, step) = (last / LIFE, last % LIFE);
    // The first write of all has the number 1.
    let first = if turn == 0 { ADDED } else { 0 };
    let expected = match (step, turn % 4) {
        (GROWING, 1) => GROWING * ADDED - LEFT..GROWING * ADDED,
        (GROWING.., _) => 0..0,
        _ if last == 0 => 0..0,
        _ => first..(step + 1) * ADDED,
    };
    let found = members(client, &format!("vast:{who}"));
    assert_eq!(found, named("m", expected), "after step {step} of life {turn}");
    last
}

pub const FAMILIES: [Family; 1] = [Family { write, last, least: 4 * LIFE, ..LASTING }];
