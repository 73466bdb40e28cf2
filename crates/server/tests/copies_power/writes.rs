//! A sequence of writes that a seed determines, and what a store holds after so many of them.

use std::collections::BTreeMap;

use ecotone_engine::{Batch, Direction, Store};

use crate::random::Random;

/// Where each write says its number.
pub const COUNT: &[u8] = b"count";

/// Few, so that most writes overwrite.
const KEYS: usize = 60;

enum Change {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    DeleteRange(Vec<u8>, Vec<u8>),
}

/// One that is there as a whole, or not at all.
pub struct Write(Vec<Change>);

pub type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

fn key(number: usize) -> Vec<u8> {
    format!("key:{number:04}").into_bytes()
}

/// The write of a number; the first is 1.
pub fn write(seed: u64, number: usize) -> Write {
    let mut random = Random::new(seed ^ (number as u64).wrapping_mul(0xA076_1D64_78BD_642F));
    let some = 1 + random.below(3);
    let mut changes: Vec<Change> = (0..some)
        .map(|_| match random.below(16) {
            0 | 1 => Change::Delete(key(random.below(KEYS))),
            2 => {
                let from = random.below(KEYS);
                Change::DeleteRange(key(from), key(from + 1 + random.below(4)))
            }
            of => {
                let bytes = if of < 6 { random.below(90) } else { 100 + random.below(1_500) };
                let value = (0..bytes).map(|_| random.next() as u8).collect();
                Change::Put(key(random.below(KEYS)), value)
            }
        })
        .collect();
    changes.push(Change::Put(COUNT.to_vec(), number.to_le_bytes().to_vec()));
    Write(changes)
}

impl Write {
    pub fn apply(&self, store: &Store) {
        let mut batch = Batch::new();
        for change in &self.0 {
            match change {
                Change::Put(key, value) => batch.put(key, value).unwrap(),
                Change::Delete(key) => batch.delete(key).unwrap(),
                Change::DeleteRange(from, to) => batch.delete_range(&from[..]..&to[..]).unwrap(),
            }
        }
        store.write(&batch, ecotone_engine::WriteOptions::default()).unwrap();
    }
}

/// What is there after so many writes.
pub fn contents_after(seed: u64, writes: usize) -> Contents {
    let mut contents = Contents::new();
    for number in 1..=writes {
        for change in write(seed, number).0 {
            match change {
                Change::Put(key, value) => _ = contents.insert(key, value),
                Change::Delete(key) => _ = contents.remove(&key),
                Change::DeleteRange(from, to) => {
                    let gone: Vec<_> = contents.range(from..to).map(|(key, _)| key.clone()).collect();
                    gone.iter().for_each(|key| drop(contents.remove(key)));
                }
            }
        }
    }
    contents
}

/// What a store holds, each entry by scan and by lookup.
pub fn contents_of(store: &Store) -> Contents {
    let entries = store.scan(.., Direction::Forward, None).unwrap();
    let contents: Contents = entries.map(|entry| entry.unwrap()).collect();
    for (key, value) in &contents {
        assert_eq!(store.get(key).unwrap().as_deref(), Some(&**value), "scan and lookup differ");
    }
    contents
}
