//! Whether what clients saw of one key is linearizable: whether each operation can have taken place
//! at one moment between its request and its reply, and no reply contradicts that order (Herlihy and
//! Wing 1990). Found by the search of Wing and Gong (1993), with the states that were met before
//! kept in mind (Lowe 2017).
//!
//! An operation whose outcome is not known may have taken place at any moment after its request, or
//! never. Since no two operations write one value, most of these are decided beforehand: what it
//! wrote was seen, so it took place before that reply; or nobody saw it, so it may as well not have.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

/// States of the search of one key. Histories of tests need a few for each operation.
const MAX_STATES: usize = 5_000_000;
/// Operations that a refusal shows before the one that fits nowhere.
const SHOWN: usize = 12;

/// What a key holds; nothing where there is no key.
pub type Value = Option<u64>;

/// What one client asked for, and saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// Not the same after an outcome that is not known.
    pub client: u64,
    /// Who answered, or was asked last.
    pub server: String,
    /// What the key held when it took place; nothing where that is not known.
    pub found: Option<Value>,
    /// What the key holds afterwards; nothing where that is the same.
    pub wrote: Option<Value>,
    /// Nanoseconds since the test began.
    pub invoked: u64,
    /// Nothing where the outcome is not known.
    pub returned: Option<u64>,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |at: u64| at as f64 / 1e6;
        write!(f, "{:12.3} to ", ms(self.invoked))?;
        match self.returned {
            Some(returned) => write!(f, "{:12.3}", ms(returned))?,
            None => f.write_str("     unknown")?,
        }
        write!(f, " ms, client {:4} at {}:", self.client, self.server)?;
        let shown = |value: Value| value.map_or("nothing".to_owned(), |value| value.to_string());
        if let Some(found) = self.found {
            write!(f, " found {}", shown(found))?;
        }
        if let Some(wrote) = self.wrote {
            write!(f, " wrote {}", shown(wrote))?;
        }
        Ok(())
    }
}

/// An operation that has taken place.
#[derive(Debug, Clone, Copy)]
struct Known {
    found: Option<Value>,
    wrote: Option<Value>,
    invoked: u64,
    returned: u64,
    /// Among all.
    number: usize,
}

/// What the search has put in order so far.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    /// All before this have taken place,
    low: usize,
    /// and these behind it.
    beyond: Vec<usize>,
    /// How many of the deletions whose outcome is not known; those first that were asked for first.
    deletions: usize,
    value: Value,
}

/// Says why the operations on a key that held nothing are not linearizable, or that it is not known.
pub fn check(operations: &[Operation]) -> Result<(), String> {
    let (known, deletions) = decided(operations);
    let first = State { low: 0, beyond: Vec::new(), deletions: 0, value: None };
    let mut met = HashSet::from([first.clone()]);
    let mut open = vec![first.clone()];
    let mut furthest = first;
    while let Some(state) = open.pop() {
        if state.low == known.len() {
            return Ok(());
        }
        if (state.low, state.beyond.len()) > (furthest.low, furthest.beyond.len()) {
            furthest = state.clone();
        }
        // What is likely to be right comes last, so it is taken first.
        for next in successors(&known, &deletions, &state) {
            if met.insert(next.clone()) {
                open.push(next);
            }
        }
        if met.len() > MAX_STATES {
            return Err(format!("not decided after {MAX_STATES} states of {} operations", known.len()));
        }
    }
    Err(shown(operations, &known, &furthest))
}

/// Those that have taken place, by request, and when deletions of unknown outcome were asked for.
fn decided(operations: &[Operation]) -> (Vec<Known>, Vec<u64>) {
    let mut known = Vec::new();
    let (mut deletions, mut unknown): (Vec<u64>, Vec<usize>) = (Vec::new(), Vec::new());
    // Until when each value that was seen must have been written.
    let mut seen_by: BTreeMap<u64, u64> = BTreeMap::new();
    let mut take = |number: usize, returned: u64, seen_by: &mut BTreeMap<u64, u64>| {
        let Operation { found, wrote, invoked, .. } = operations[number];
        if let Some(Some(value)) = found {
            let by = seen_by.entry(value).or_insert(returned);
            *by = returned.min(*by);
        }
        known.push(Known { found, wrote, invoked, returned, number });
    };
    for (number, operation) in operations.iter().enumerate() {
        match (operation.returned, operation.wrote) {
            (Some(returned), _) => take(number, returned, &mut seen_by),
            (None, Some(Some(_))) => unknown.push(number),
            (None, Some(None)) => deletions.push(operation.invoked),
            (None, None) => {}
        }
    }
    // Each that is found to have taken place may have seen another one.
    loop {
        let before = unknown.len();
        unknown.retain(|number| {
            let by = operations[*number].wrote.flatten().and_then(|value| seen_by.get(&value).copied());
            by.inspect(|by| take(*number, *by, &mut seen_by)).is_none()
        });
        if unknown.len() == before {
            break;
        }
    }
    known.sort_by_key(|operation| operation.invoked);
    deletions.sort_unstable();
    (known, deletions)
}

/// Those that may be next, and the latest moment at which they must have been asked for.
fn candidates(known: &[Known], state: &State) -> (Vec<usize>, u64) {
    let (mut found, mut first_reply) = (Vec::new(), u64::MAX);
    for (at, operation) in known.iter().enumerate().skip(state.low) {
        if operation.invoked > first_reply {
            break;
        }
        if state.beyond.binary_search(&at).is_err() {
            found.push(at);
            first_reply = first_reply.min(operation.returned);
        }
    }
    (found, first_reply)
}

fn successors(known: &[Known], deletions: &[u64], state: &State) -> Vec<State> {
    let (mut candidates, first_reply) = candidates(known, state);
    candidates.retain(|at| known[*at].found.is_none_or(|found| found == state.value));
    // What changes nothing and is right by now is in nobody's way.
    if let Some(reads) = candidates.iter().find(|at| known[**at].wrote.is_none()) {
        return vec![after(known, state, *reads)];
    }
    candidates.sort_by_key(|at| std::cmp::Reverse(known[*at].returned));
    let mut next = Vec::new();
    if state.value.is_some() && deletions.get(state.deletions).is_some_and(|invoked| *invoked <= first_reply) {
        next.push(State { deletions: state.deletions + 1, value: None, ..state.clone() });
    }
    next.extend(candidates.into_iter().map(|at| after(known, state, at)));
    next
}

fn after(known: &[Known], state: &State, at: usize) -> State {
    let mut next = state.clone();
    next.value = known[at].wrote.unwrap_or(state.value);
    let place = next.beyond.partition_point(|other| *other < at);
    next.beyond.insert(place, at);
    let in_order = next.beyond.iter().enumerate().take_while(|(place, other)| next.low + place == **other).count();
    next.beyond.drain(..in_order);
    next.low += in_order;
    next
}

fn shown(operations: &[Operation], known: &[Known], state: &State) -> String {
    let list = |of: &[usize]| {
        of.iter().map(|at| format!("\n  {}", operations[known[*at].number])).collect::<Vec<_>>().concat()
    };
    let before: Vec<usize> = (state.low.saturating_sub(SHOWN)..state.low).chain(state.beyond.iter().copied()).collect();
    format!(
        "not linearizable: after these, in some order, the key holds {:?}:{}\nand none of these can be next:{}",
        state.value,
        list(&before),
        list(&candidates(known, state).0)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn operation(invoked: u64, returned: u64, found: Option<Value>, wrote: Option<Value>) -> Operation {
        let returned = (returned != 0).then_some(returned);
        Operation { client: 0, server: String::new(), found, wrote, invoked, returned }
    }

    fn write(invoked: u64, returned: u64, value: u64) -> Operation {
        operation(invoked, returned, None, Some(Some(value)))
    }

    fn read(invoked: u64, returned: u64, value: Value) -> Operation {
        operation(invoked, returned, Some(value), None)
    }

    fn swap(invoked: u64, returned: u64, found: Value, value: u64) -> Operation {
        operation(invoked, returned, Some(found), Some(Some(value)))
    }

    fn delete(invoked: u64, returned: u64) -> Operation {
        operation(invoked, returned, None, Some(None))
    }

    #[test]
    fn what_can_be_put_in_order_is_linearizable() {
        let good: [(&str, Vec<Operation>); 9] = [
            ("nothing", vec![]),
            (
                "one after the other",
                vec![read(1, 2, None), write(3, 4, 1), read(5, 6, Some(1)), swap(7, 8, Some(1), 2)],
            ),
            ("at the same time, seen before", vec![write(1, 10, 1), read(2, 3, Some(1)), read(4, 5, Some(1))]),
            ("at the same time, seen after", vec![write(1, 10, 1), read(2, 3, None), read(4, 5, Some(1))]),
            ("two at once", vec![write(1, 10, 1), write(2, 9, 2), read(11, 12, Some(1))]),
            ("unknown, never seen", vec![write(1, 2, 1), write(3, 0, 2), read(4, 5, Some(1)), read(90, 91, Some(1))]),
            (
                "unknown, seen late",
                vec![write(1, 2, 1), write(3, 0, 2), read(4, 5, Some(1)), read(90, 91, Some(2)), read(92, 93, Some(2))],
            ),
            (
                "unknown, seen by what is unknown itself",
                vec![write(1, 0, 1), swap(3, 0, Some(1), 2), read(4, 5, None), read(6, 7, Some(2))],
            ),
            (
                "unknown deletions",
                vec![
                    write(1, 2, 1),
                    delete(3, 0),
                    delete(4, 0),
                    read(5, 6, Some(1)),
                    read(7, 8, None),
                    write(9, 10, 2),
                ],
            ),
        ];
        for (what, history) in good {
            assert_eq!(check(&history), Ok(()), "{what}");
        }
    }

    #[test]
    fn what_contradicts_every_order_is_not() {
        let bad: [(&str, Vec<Operation>); 10] = [
            ("lost", vec![write(1, 2, 1), read(3, 4, None)]),
            ("an older one", vec![write(1, 2, 1), write(3, 4, 2), read(5, 6, Some(1))]),
            ("of nobody", vec![write(1, 2, 1), read(3, 4, Some(2))]),
            ("before it was asked for", vec![read(1, 2, Some(1)), write(3, 4, 1)]),
            ("seen, and then not", vec![write(1, 10, 1), read(2, 3, Some(1)), read(4, 5, None)]),
            ("unknown, seen, and then not", vec![write(1, 0, 1), read(2, 3, Some(1)), read(4, 5, None)]),
            ("two that found the same", vec![write(1, 2, 1), swap(3, 10, Some(1), 2), swap(4, 9, Some(1), 3)]),
            ("in two orders", vec![write(1, 10, 1), write(1, 10, 2), read(11, 12, Some(1)), read(13, 14, Some(2))]),
            (
                "more deleted than was asked for",
                vec![write(1, 2, 1), delete(3, 0), read(4, 5, None), read(6, 7, Some(1))],
            ),
            (
                "one deletion for two",
                vec![write(1, 2, 1), delete(3, 0), read(4, 5, None), write(6, 7, 2), read(8, 9, None)],
            ),
        ];
        for (what, history) in bad {
            assert!(check(&history).is_err(), "{what}");
        }
    }

    /// Tries all orders, with each operation of unknown outcome left out and in.
    fn by_all_orders(history: &[Operation], done: &mut Vec<usize>, value: Value) -> bool {
        let left = |at: &usize| !done.contains(at);
        let numbers: Vec<usize> = (0..history.len()).filter(left).collect();
        if numbers.iter().all(|at| history[*at].returned.is_none()) {
            return true;
        }
        for at in &numbers {
            let next = &history[*at];
            let comes_late = numbers.iter().any(|other| history[*other].returned.is_some_and(|at| at < next.invoked));
            if comes_late || next.found.is_some_and(|found| found != value) {
                continue;
            }
            done.push(*at);
            if by_all_orders(history, done, next.wrote.unwrap_or(value)) {
                return true;
            }
            done.pop();
        }
        false
    }

    #[test]
    fn the_search_finds_what_trying_all_orders_finds() {
        let mut random = Random::new(7);
        let mut counts = [0; 2];
        for _ in 0..20_000 {
            let mut history = Vec::new();
            for value in 1..=3 + random.below(4) as u64 {
                let invoked = 1 + random.below(12) as u64;
                let returned = if random.once_in(4) { 0 } else { invoked + 1 + random.below(6) as u64 };
                let found = (random.below(6) as u64).checked_sub(1);
                history.push(match random.below(6) {
                    0 | 1 => write(invoked, returned, value),
                    2 => swap(invoked, returned, found, value),
                    3 => delete(invoked, returned),
                    _ => read(invoked, returned, found),
                });
            }
            let is_so = by_all_orders(&history, &mut Vec::new(), None);
            counts[usize::from(is_so)] += 1;
            assert_eq!(check(&history).is_ok(), is_so, "{history:#?}");
        }
        assert!(counts.iter().all(|count| *count > 1000), "{counts:?}");
    }
}
