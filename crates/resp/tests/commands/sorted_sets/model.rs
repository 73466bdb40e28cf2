//! Random commands to large sets and to a model of them.

use std::collections::BTreeMap;

use ecotone_engine::{Durability, StoreSettings};
use ecotone_keyspace::{Blocking, WriteGroup};
use ecotone_resp::protocol::number::format_double;

use crate::common::Fixture;

/// The members with their scores, in their order.
#[derive(Default)]
struct Model(BTreeMap<String, f64>);

impl Model {
    fn sorted(&self) -> Vec<(String, f64)> {
        let mut sorted: Vec<(String, f64)> = self.0.iter().map(|(name, score)| (name.clone(), *score)).collect();
        // The map has the names in order already, and the sort keeps it.
        sorted.sort_by(|(_, one), (_, other)| one.partial_cmp(other).unwrap());
        sorted
    }

    fn take(&mut self, members: &[(String, f64)]) -> usize {
        members.iter().filter(|(name, _)| self.0.remove(name).is_some()).count()
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    /// Few enough that many members have the same.
    fn score(&mut self) -> f64 {
        match self.below(20) {
            0 => f64::INFINITY,
            1 => f64::NEG_INFINITY,
            2 => 5e-324,
            3 => -5e-324,
            4 => 1.23e9,
            _ => (self.below(41) as f64 - 20.0) / 2.0,
        }
    }

    fn name(&mut self) -> String {
        let number = self.below(600);
        format!("{number}{}", "-".repeat(number as usize % 40))
    }
}

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

fn with_scores<'m>(members: impl ExactSizeIterator<Item = &'m (String, f64)>) -> String {
    let length = members.len();
    let answers = members.map(|(name, score)| bulk(name) + &bulk(&format_double(*score).to_string()));
    format!("*{}\r\n{}", 2 * length, answers.collect::<String>())
}

/// One command, and what the model says to it.
fn step(random: &mut Random, model: &mut Model) -> (String, String) {
    let sorted = model.sorted();
    let (name, score) = (random.name(), random.score());
    let low = random.below(sorted.len() as u64 + 3) as usize;
    let most = if random.below(4) == 0 { 700 } else { 12 };
    let high = low + random.below(most) as usize;
    let least = random.score();
    let between = |least: f64, most: f64| -> Vec<(String, f64)> {
        sorted.iter().filter(|(_, score)| *score > least && *score <= most).cloned().collect()
    };
    let ranks = |low: usize, high: usize| sorted[low.min(sorted.len())..(high + 1).min(sorted.len())].to_vec();
    match random.below(18) {
        0..6 => {
            let (second, other) = (random.name(), random.score());
            let mut added = usize::from(model.0.insert(name.clone(), score).is_none());
            added += usize::from(model.0.insert(second.clone(), other).is_none());
            (format!("ZADD z {score} {name} {other} {second}"), format!(":{added}\r\n"))
        }
        6 => {
            let by = (random.below(9) as f64) - 4.0;
            let sum = model.0.get(&name).unwrap_or(&0.0) + by;
            model.0.insert(name.clone(), sum);
            (format!("ZINCRBY z {by} {name}"), bulk(&format_double(sum).to_string()))
        }
        7 => (format!("ZREM z {name}"), format!(":{}\r\n", usize::from(model.0.remove(&name).is_some()))),
        8 => {
            let found =
                model.0.get(&name).map_or("$-1\r\n".to_owned(), |score| bulk(&format_double(*score).to_string()));
            (format!("ZSCORE z {name}"), found)
        }
        9 => {
            let rank = |rank: Option<usize>| rank.map_or("$-1\r\n".to_owned(), |rank| format!(":{rank}\r\n"));
            let from_begin = sorted.iter().position(|(other, _)| *other == name);
            match random.below(2) {
                0 => (format!("ZRANK z {name}"), rank(from_begin)),
                _ => (format!("ZREVRANK z {name}"), rank(from_begin.map(|found| sorted.len() - 1 - found))),
            }
        }
        10 => (format!("ZRANGE z {low} {high} WITHSCORES"), with_scores(ranks(low, high).iter())),
        11 => {
            let turned: Vec<_> = sorted.iter().rev().cloned().collect();
            let part = &turned[low.min(turned.len())..(high + 1).min(turned.len())];
            (format!("ZREVRANGE z {low} {high} WITHSCORES"), with_scores(part.iter()))
        }
        12 => {
            let found = between(least, score);
            let (offset, limit) = (random.below(5) as usize, random.below(20) as usize);
            let part = &found[offset.min(found.len())..(offset + limit).min(found.len())];
            let request = format!("ZRANGEBYSCORE z ({least} {score} WITHSCORES LIMIT {offset} {limit}");
            (request, with_scores(part.iter()))
        }
        13 => {
            let found = between(least, score);
            (format!("ZREVRANGEBYSCORE z {score} ({least} WITHSCORES"), with_scores(found.iter().rev()))
        }
        14 => (format!("ZCOUNT z ({least} {score}"), format!(":{}\r\n", between(least, score).len())),
        15 => {
            let count = random.below(4) as usize;
            let popped = match random.below(2) {
                0 => ("ZPOPMIN", ranks(0, sorted.len())[..count.min(sorted.len())].to_vec()),
                _ => ("ZPOPMAX", sorted.iter().rev().take(count).cloned().collect()),
            };
            model.take(&popped.1);
            (format!("{} z {count}", popped.0), with_scores(popped.1.iter()))
        }
        16 => {
            let gone = ranks(low, low + 3);
            (format!("ZREMRANGEBYRANK z {low} {}", low + 3), format!(":{}\r\n", model.take(&gone)))
        }
        _ => {
            let most = least + 0.5;
            let gone = between(least, most);
            (format!("ZREMRANGEBYSCORE z ({least} {most}"), format!(":{}\r\n", model.take(&gone)))
        }
    }
}

/// Sends commands in groups of up to `most` and compares all replies.
fn compare(fixture: &Fixture, most: u64, seed: u64) {
    let (mut client, mut group) = (fixture.client(), WriteGroup::new(fixture.service.keyspace.clone()));
    let (mut random, mut model) = (Random(seed), Model::default());
    let mut many = String::from("ZADD z");
    for number in 0..300 {
        let (name, score) = (format!("{number}{}", "-".repeat(number % 40)), random.score());
        many.push_str(&format!(" {score} {name}"));
        model.0.insert(name, score);
    }
    assert_eq!(client.ask_in(&mut group, &many), ":300\r\n");
    for at in 0..3000 {
        let (request, reply) = step(&mut random, &mut model);
        assert_eq!(client.ask_in(&mut group, &request), reply, "seed {seed}, {at}: {request}");
        let count = client.ask_in(&mut group, "ZCARD z");
        assert_eq!(count, format!(":{}\r\n", model.0.len()), "seed {seed}, {at}: {request}");
        if random.below(most) == 0 {
            group.commit(Blocking::Allowed).unwrap();
        }
    }
    let all = client.ask_in(&mut group, "ZRANGE z 0 -1 WITHSCORES");
    assert_eq!(all, with_scores(model.sorted().iter()));
    group.commit(Blocking::Allowed).unwrap();
}

#[test]
fn a_large_set_does_what_a_sorted_map_does() {
    for seed in 0..4 {
        let options =
            StoreSettings { memtable_bytes: 64 << 10, durability: Durability::None, ..StoreSettings::default() };
        compare(&Fixture::with(options.with_separation(128)), 1 + seed * 8, seed);
    }
}
