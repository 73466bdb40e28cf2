//! The fuzz targets, on the stable compiler: their checked-in inputs and mutations of them, the
//! same in every run. See `fuzz/README.md`.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::random::{Random, with_seeds};
use crate::targets;

/// The longest input that is made.
const MAX_BYTES: usize = 2048;

/// One of `seeds`, changed in some places, put together with another, or an input without any
/// likeness.
fn mutated(seeds: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    if random.below(4) == 0 {
        let length = random.below(200);
        return (0..length).map(|_| random.next() as u8).collect();
    }
    let mut input = seeds[random.below(seeds.len())].clone();
    for _ in 0..=random.below(8) {
        let at = random.below(input.len() + 1);
        match random.below(6) {
            0 if at < input.len() => input[at] ^= 1 << random.below(8),
            1 if at < input.len() => input[at] = random.next() as u8,
            2 if at < input.len() => drop(input.drain(at..(at + 1 + random.below(8)).min(input.len()))),
            3 => input.truncate(at),
            4 => {
                let other = &seeds[random.below(seeds.len())];
                let (from, to) = (random.below(other.len() + 1), random.below(other.len() + 1));
                input.splice(at..at, other[from.min(to)..from.max(to)].iter().copied());
            }
            _ => input.insert(at, random.next() as u8),
        }
    }
    input.truncate(MAX_BYTES);
    input
}

/// Gives `target` its seeds and `mutations` of them, or more in a soak.
fn fuzz(name: &str, target: fn(&[u8]), mutations: u64) {
    let folder = format!("{}/fuzz/seeds/{name}", env!("CARGO_MANIFEST_DIR"));
    let mut files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let seeds: Vec<Vec<u8>> = files.iter().map(|file| std::fs::read(file).unwrap()).collect();
    assert!(!seeds.is_empty(), "{folder} has no inputs");
    let check = |input: &[u8]| {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| target(input))) {
            eprintln!("target {name} fails for b\"{}\"", input.escape_ascii());
            std::panic::resume_unwind(panic);
        }
    };
    seeds.iter().for_each(|seed| check(seed));
    with_seeds(mutations, |number| check(&mutated(&seeds, &mut Random::new(number))));
}

#[test]
fn requests_are_the_same_however_they_are_cut() {
    fuzz("requests", targets::requests::run, 20_000);
}

#[test]
fn commands_with_any_arguments_leave_the_service_whole() {
    fuzz("commands", targets::commands::run, 1_500);
}

#[test]
fn collections_of_any_bytes_are_read_or_refused() {
    fuzz("packed", targets::packed::run, 200);
}

#[test]
fn stored_bytes_decode_strictly() {
    fuzz("stored", targets::stored::run, 100_000);
}
