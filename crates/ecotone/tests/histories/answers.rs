//! Whether two servers have answered for one shard at the same time. A shard has one primary in an
//! epoch, so each answer belongs to an epoch in which the server that gave it was the primary, and
//! no answer belongs to an earlier epoch than one that was there before it was asked for.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// What a server has answered for a shard, in nanoseconds since the test began.
#[derive(Debug, Clone)]
pub struct Answer {
    pub server: String,
    pub invoked: u64,
    pub returned: u64,
}

/// What was said of a shard.
#[derive(Debug, Clone)]
pub struct Said {
    /// When that had come.
    pub at: u64,
    pub epoch: u64,
    pub primary: Option<String>,
}

/// Says which answer belongs to no epoch.
pub fn check(answers: &[Answer], said: &[Said]) -> Result<(), String> {
    let mut primaries: BTreeMap<u64, Option<&str>> = BTreeMap::new();
    for said in said {
        let primary = primaries.entry(said.epoch).or_default();
        *primary = primary.or(said.primary.as_deref());
    }
    let last = primaries.keys().next_back().copied().unwrap_or_default();
    // An epoch that nobody was seen in may have been anybody's.
    let may_answer = |epoch: u64, server: &str| primaries.get(&epoch).is_none_or(|of| *of == Some(server));
    let mut starts: Vec<(u64, u64)> =
        said.iter().filter(|said| said.primary.is_some()).map(|said| (said.at, said.epoch)).collect();
    starts.sort_unstable();
    let mut starts = starts.into_iter().peekable();
    let mut sorted: Vec<&Answer> = answers.iter().collect();
    sorted.sort_by_key(|answer| answer.invoked);
    let mut before: BinaryHeap<Reverse<(u64, u64)>> = BinaryHeap::new();
    // Greater than all that was there before the next one was asked for; the least is tried first.
    let (mut least, mut by) = (0, String::from("nothing"));
    for answer in sorted {
        while let Some((at, epoch)) = starts.next_if(|(at, _)| *at < answer.invoked) {
            if epoch > least {
                (least, by) = (epoch, format!("what was said at {at} ns"));
            }
        }
        while let Some(Reverse((returned, epoch))) =
            before.peek().copied().filter(|Reverse((at, _))| *at < answer.invoked)
        {
            before.pop();
            if epoch > least {
                (least, by) = (epoch, format!("an answer at {returned} ns"));
            }
        }
        let epoch = (least..=last).find(|epoch| may_answer(*epoch, &answer.server));
        let Some(epoch) = epoch else {
            return Err(format!("{answer:?}, and epoch {least} had begun by {by}; primaries: {primaries:?}"));
        };
        before.push(Reverse((answer.returned, epoch)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(server: &str, invoked: u64, returned: u64) -> Answer {
        Answer { server: server.to_owned(), invoked, returned }
    }

    fn said(at: u64, epoch: u64, primary: Option<&str>) -> Said {
        Said { at, epoch, primary: primary.map(str::to_owned) }
    }

    #[test]
    fn each_in_its_epoch_is_well() {
        let said = [said(1, 1, Some("a")), said(20, 2, None), said(30, 3, Some("b")), said(60, 5, Some("a"))];
        let good = [
            vec![answer("a", 2, 3), answer("a", 4, 35), answer("b", 31, 32), answer("a", 61, 62)],
            // It was seen late that another epoch had begun.
            vec![answer("b", 4, 5), answer("b", 40, 41), answer("a", 42, 43)],
            // They may have been given in this order.
            vec![answer("a", 5, 100), answer("b", 31, 32), answer("a", 33, 99)],
            // Nobody knows whose epoch 4 was.
            vec![answer("a", 42, 43), answer("c", 44, 45)],
        ];
        for answers in good {
            assert_eq!(check(&answers, &said), Ok(()));
        }
        let unknown = [said[0].clone(), said[3].clone()];
        assert_eq!(check(&[answer("b", 4, 5), answer("c", 6, 7), answer("a", 8, 9)], &unknown), Ok(()));
    }

    #[test]
    fn two_at_once_are_found() {
        let said = [said(1, 1, Some("a")), said(20, 2, None), said(30, 3, Some("b"))];
        let bad = [
            vec![answer("b", 24, 25), answer("a", 26, 27)],
            vec![answer("a", 31, 32)],
            vec![answer("a", 2, 3), answer("c", 4, 5)],
            vec![answer("a", 2, 3), answer("b", 4, 25), answer("a", 26, 27), answer("b", 5, 6)],
        ];
        for answers in bad {
            assert!(check(&answers, &said).is_err(), "{answers:?}");
        }
    }
}
