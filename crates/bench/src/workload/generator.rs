//! The operations of one thread.

use super::distribution::{GeneralizedPareto, ScatteredZipfian, ScrambledZipfian, Zipfian};
use super::random::Random;
use super::{Operation, Workload, WorkloadOptions};

/// db_bench's `mix_max_scan_len`: scan lengths wrap below it.
const MIXGRAPH_SCAN_ENTRIES: u64 = 10_000;

/// db_bench's least value size of `mixgraph`, in bytes. (It applies it to sizes below zero only,
/// which do not occur; an empty value would leave nothing to read.)
const MIXGRAPH_MIN_VALUE_BYTES: u64 = 10;

/// YCSB's `maxscanlength` of workload E, in pairs; lengths are uniform from 1.
const YCSB_SCAN_ENTRIES: u64 = 100;

/// The endless operations of one thread of a workload.
#[derive(Clone, Debug)]
pub struct Generator {
    random: Random,
    keys: u64,
    value_bytes: u32,
    thread: u64,
    threads: u64,
    pattern: Pattern,
}

#[derive(Clone, Debug)]
enum Pattern {
    Sequence { next: u64, from: u64, to: u64 },
    Puts,
    Gets,
    Seeks { entries: u32 },
    MixGraph { sizes: GeneralizedPareto, longest_value_bytes: u32, lengths: GeneralizedPareto },
    Updates { keys: ScrambledZipfian, reads_percent: u64 },
    ReadModifyWrites { keys: ScrambledZipfian, reads_percent: u64 },
    ReadsOfLatest { distances: Zipfian, inserted: u64 },
    Scans { keys: ScrambledZipfian, inserted: u64 },
    UpdatesAndInserts { popular: Option<ScatteredZipfian>, update_share: f64, inserted: u64 },
}

impl Generator {
    /// The operations of thread `thread` (from 0) of all that [`Workload::driver_threads`] counts.
    /// Of `readwhilewriting` thread 0 is the writer.
    ///
    /// The options must be valid ([`WorkloadOptions::validate`]).
    pub fn new(options: &WorkloadOptions, thread: u32) -> Self {
        let threads = u64::from(options.workload.driver_threads(options.threads));
        let thread = u64::from(thread);
        let keys = options.keys;
        let scrambled = || ScrambledZipfian::new(keys);
        let pattern = match options.workload {
            Workload::FillSeq => {
                let (from, to) = share(keys, thread, threads);
                Pattern::Sequence { next: from, from, to }
            }
            Workload::FillRandom | Workload::Overwrite => Pattern::Puts,
            Workload::ReadWhileWriting if thread == 0 => Pattern::Puts,
            Workload::ReadRandom | Workload::ReadWhileWriting => Pattern::Gets,
            Workload::SeekRandom => Pattern::Seeks { entries: options.entries_per_seek() },
            Workload::MixGraph => Pattern::MixGraph {
                sizes: GeneralizedPareto::value_bytes(options.value_bytes),
                longest_value_bytes: options.longest_value_bytes(),
                lengths: GeneralizedPareto::scan_entries(),
            },
            Workload::YcsbA => Pattern::Updates { keys: scrambled(), reads_percent: 50 },
            Workload::YcsbB => Pattern::Updates { keys: scrambled(), reads_percent: 95 },
            Workload::YcsbC => Pattern::Updates { keys: scrambled(), reads_percent: 100 },
            Workload::YcsbD => Pattern::ReadsOfLatest { distances: Zipfian::new(keys), inserted: 0 },
            Workload::YcsbE => Pattern::Scans { keys: scrambled(), inserted: 0 },
            Workload::YcsbF => Pattern::ReadModifyWrites { keys: scrambled(), reads_percent: 50 },
            Workload::Updates => Pattern::UpdatesAndInserts {
                popular: options.zipf_theta.map(|theta| ScatteredZipfian::new(keys, theta)),
                update_share: options.update_share() / 100.0,
                inserted: 0,
            },
        };
        Self {
            random: Random::new(options.seed, thread),
            keys,
            value_bytes: options.value_bytes,
            thread,
            threads,
            pattern,
        }
    }

    /// The puts that fill the store before the measured part: thread `thread` of `threads` loads
    /// its share of the keys, in key order. Ends when the share is loaded.
    pub fn preload(options: &WorkloadOptions, thread: u32, threads: u32) -> impl Iterator<Item = Operation> + use<> {
        let (from, to) = share(options.keys, u64::from(thread), u64::from(threads));
        // A stream of its own: the measured operations are the same with and without loading.
        let mut random = Random::new(options.seed, u64::from(thread) | 1 << 32);
        let sizes = ValueSizes::of(options);
        (from..to).map(move |key| Operation::Put { key, value_bytes: sizes.draw(&mut random) })
    }

    /// The puts of uniformly drawn loaded keys between the load and the measured part: thread
    /// `thread` of `threads` makes its share.
    pub fn updates_before(
        options: &WorkloadOptions,
        thread: u32,
        threads: u32,
    ) -> impl Iterator<Item = Operation> + use<> {
        let (from, to) = share(options.updates_before(), u64::from(thread), u64::from(threads));
        // A stream of its own, as that of the load.
        let mut random = Random::new(options.seed, u64::from(thread) | 1 << 33);
        let sizes = ValueSizes::of(options);
        let keys = options.keys;
        (from..to).map(move |_| Operation::Put { key: random.below(keys), value_bytes: sizes.draw(&mut random) })
    }

    /// The next operation.
    pub fn next_operation(&mut self) -> Operation {
        let Self { random, keys, value_bytes, .. } = self;
        let (keys, value_bytes) = (*keys, *value_bytes);
        match &mut self.pattern {
            Pattern::Sequence { next, from, to } => {
                let key = *next;
                *next = if key + 1 >= *to { *from } else { key + 1 };
                Operation::Put { key, value_bytes }
            }
            Pattern::Puts => Operation::Put { key: random.below(keys), value_bytes },
            Pattern::Gets => Operation::Get { key: random.below(keys) },
            Pattern::Seeks { entries } => Operation::Seek { key: random.below(keys), entries: *entries },
            Pattern::MixGraph { sizes, longest_value_bytes, lengths } => {
                let key = random.below(keys);
                match random.below(4) {
                    0 => Operation::Put { key, value_bytes: mixgraph_value_bytes(sizes, *longest_value_bytes, random) },
                    1 => {
                        let entries = lengths.draw(random) % MIXGRAPH_SCAN_ENTRIES;
                        Operation::Seek { key, entries: entries.max(1) as u32 }
                    }
                    _ => Operation::Get { key },
                }
            }
            Pattern::Updates { keys, reads_percent } => {
                let key = keys.draw(random);
                match random.below(100) < *reads_percent {
                    true => Operation::Get { key },
                    false => Operation::Put { key, value_bytes },
                }
            }
            Pattern::ReadModifyWrites { keys, reads_percent } => {
                let key = keys.draw(random);
                match random.below(100) < *reads_percent {
                    true => Operation::Get { key },
                    false => Operation::ReadModifyWrite { key, value_bytes },
                }
            }
            Pattern::ReadsOfLatest { distances, inserted } => {
                if random.below(100) >= 95 {
                    *inserted += 1;
                    return Operation::Put {
                        key: inserted_key(keys, self.thread, self.threads, *inserted - 1),
                        value_bytes,
                    };
                }
                // Back from the newest: first what this thread inserted, then the loaded keys from
                // their end.
                let distance = distances.draw(random);
                let key = match inserted.checked_sub(distance + 1) {
                    Some(number) => inserted_key(keys, self.thread, self.threads, number),
                    None => keys - 1 - (distance - *inserted),
                };
                Operation::Get { key }
            }
            Pattern::Scans { keys: scrambled, inserted } => {
                if random.below(100) >= 95 {
                    *inserted += 1;
                    return Operation::Put {
                        key: inserted_key(keys, self.thread, self.threads, *inserted - 1),
                        value_bytes,
                    };
                }
                let entries = 1 + random.below(YCSB_SCAN_ENTRIES) as u32;
                Operation::Scan { key: scrambled.draw(random), entries }
            }
            Pattern::UpdatesAndInserts { popular, update_share, inserted } => {
                // A unit is above 0 and at most 1: a share of 0 never updates, one of 1 always.
                let key = if random.unit() <= *update_share {
                    match popular {
                        Some(popular) => popular.draw(random),
                        None => random.below(keys),
                    }
                } else {
                    *inserted += 1;
                    inserted_key(keys, self.thread, self.threads, *inserted - 1)
                };
                Operation::Put { key, value_bytes }
            }
        }
    }
}

/// The lengths of the values that are put before the measured part.
enum ValueSizes {
    All(u32),
    MixGraph { sizes: GeneralizedPareto, longest_bytes: u32 },
}

impl ValueSizes {
    fn of(options: &WorkloadOptions) -> Self {
        match options.workload {
            Workload::MixGraph => Self::MixGraph {
                sizes: GeneralizedPareto::value_bytes(options.value_bytes),
                longest_bytes: options.longest_value_bytes(),
            },
            _ => Self::All(options.value_bytes),
        }
    }

    fn draw(&self, random: &mut Random) -> u32 {
        match self {
            Self::All(bytes) => *bytes,
            Self::MixGraph { sizes, longest_bytes } => mixgraph_value_bytes(sizes, *longest_bytes, random),
        }
    }
}

/// The number of the `number`-th key that a thread inserts: the threads take turns beyond the
/// loaded keys, so that no two insert the same and none needs to know of the others.
fn inserted_key(keys: u64, thread: u64, threads: u64, number: u64) -> u64 {
    keys + thread + threads * number
}

/// The contiguous share of `0..keys` of a thread; shares differ by at most one key and cover all.
fn share(keys: u64, thread: u64, threads: u64) -> (u64, u64) {
    let bound = |thread: u64| (u128::from(keys) * u128::from(thread) / u128::from(threads)) as u64;
    (bound(thread), bound(thread + 1))
}

fn mixgraph_value_bytes(sizes: &GeneralizedPareto, longest_bytes: u32, random: &mut Random) -> u32 {
    // A mean below the least size would turn the bounds around.
    let longest_bytes = u64::from(longest_bytes).max(MIXGRAPH_MIN_VALUE_BYTES);
    sizes.draw(random).clamp(MIXGRAPH_MIN_VALUE_BYTES, longest_bytes) as u32
}

#[cfg(test)]
mod tests;
