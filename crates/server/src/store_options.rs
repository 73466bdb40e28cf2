//! The store's options by name, as the command line and profiles give them.

use std::num::NonZeroU32;

use ecotone_engine::{
    Compression, CompressionMode, DEFAULT_SEPARATION_BYTES, DedupMode, Durability, ExtensionThreshold, MemtableOrder,
    Profile, StoreSettings,
};
use ecotone_policy::dedup::DedupThreshold;
use ecotone_types::units::Seconds;

use crate::config::Kind;
use crate::error::{Error, Result};

const PROFILE: &str = "profile=";
const SEPARATION: &str = "separation_min_bytes=";
const THROTTLED_RATIO: &str = "gc_throttled_ratio=";

/// A memtable of a server that separates values, unless set otherwise: on a machine with little
/// memory, and with little space, it is large enough; where clients are served and there is more
/// memory it grows ([`crate::memory_shares`]).
const SEPARATED_MEMTABLE_BYTES: u64 = 8 << 20;

/// Its first level, which grows with it: small memtables bring a small part of the keys at a time,
/// so that two levels pay sooner.
const SEPARATED_LEVEL_BASE_BYTES: u64 = 16 * SEPARATED_MEMTABLE_BYTES;

/// An option of the store.
pub struct StoreOption {
    /// Its name.
    pub name: &'static str,
    /// What it is for.
    pub about: &'static str,
    /// What a number counts; empty for none.
    pub unit: &'static str,
    /// Which values there are. Values that do not fit one another are refused when the store is
    /// opened.
    pub kind: fn() -> Kind,
    set: fn(&mut StoreSettings, &str) -> std::result::Result<(), String>,
    /// The value that holds, as text.
    pub get: fn(&StoreSettings) -> String,
}

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
const GIB: u64 = 1024 * MIB;
/// For what is bounded by something else.
const PIB: u64 = 1024 * 1024 * GIB;

/// An option that is a field with a whole number.
macro_rules! whole {
    ($field:ident, $unit:literal, $least:expr, $most:expr, $about:literal) => {
        StoreOption {
            name: stringify!($field),
            about: $about,
            unit: $unit,
            kind: || Kind::Whole { least: $least, most: $most, words: &[] },
            set: |options, value| number(value).map(|number| options.$field = number),
            get: |options| options.$field.to_string(),
        }
    };
}

/// Every option.
pub const STORE_OPTIONS: &[StoreOption] = &[
    StoreOption {
        name: "profile",
        about: "What all others start from, wherever it is given: `small-device` keeps the process below 128 MiB.",
        unit: "",
        kind: || Kind::OneOf(Profile::ALL.map(Profile::name).to_vec()),
        set: |options, value| {
            let profile: Profile = value.parse().map_err(|_| "must be default or small-device".to_owned())?;
            *options = StoreSettings { value_compression: CompressionMode::Auto, ..profile.settings() };
            Ok(())
        },
        // Options do not know where they come from.
        get: |_| Profile::default().name().into(),
    },
    StoreOption {
        name: "durability",
        about: "When the write-ahead log is synced: before a write is acknowledged (`always`), so often that it holds all but the last second (`everysec`), or when the \
                kernel likes (`none`). A killed process loses nothing in any case, a machine without power what was not synced.",
        unit: "",
        kind: || Kind::OneOf(Durability::ALL.map(Durability::name).to_vec()),
        set: |options, value| {
            options.durability = value.parse().map_err(|_| "must be none, everysec or always".to_owned())?;
            Ok(())
        },
        get: |options| options.durability.name().into(),
    },
    StoreOption {
        name: "compression",
        about: "Compression of tables.",
        unit: "",
        kind: || Kind::OneOf(Compression::ALL.map(Compression::name).to_vec()),
        set: |options, value| {
            options.compression = value.parse().map_err(|_| "must be none, lz4 or zstd".to_owned())?;
            Ok(())
        },
        get: |options| options.compression.name().into(),
    },
    StoreOption {
        name: "memtable_order",
        about: "How memtables keep their entries in order: a tree, which takes less processor time, or RocksDB's skip list, which takes some 15 \
                bytes less for each entry.",
        unit: "",
        kind: || Kind::OneOf(MemtableOrder::ALL.map(MemtableOrder::name).to_vec()),
        set: |options, value| {
            options.memtable_order = value.parse().map_err(|_| "must be tree or skip-list".to_owned())?;
            Ok(())
        },
        get: |options| options.memtable_order.name().into(),
    },
    StoreOption {
        name: "memory_limit_bytes",
        about: "Block cache, row cache, memtables, and ranks of large sorted sets, of the whole process; `auto`: where clients are served an eighth of the memory of the machine, or \
                three eighths of what its own control group is limited to if that is 512 MiB or more, else a quarter of it, and at least 64 MiB unless that is more than a quarter of all; else a cache of 64 MiB, and the memtables beside it.",
        unit: "bytes",
        kind: || Kind::Whole { least: 4 * MIB, most: PIB, words: &["auto"] },
        set: |options, value| {
            options.memory_limit_bytes = number_or(value, "auto")?;
            Ok(())
        },
        get: |options| options.memory_limit_bytes.map_or_else(|| "auto".into(), |bytes| bytes.to_string()),
    },
    StoreOption {
        name: "row_cache_bytes",
        about: "Memory for the row cache: short values and pointers to long ones by key, and values of up to 2 KiB that were read; 0 is none. `auto`: where clients are served half of `memory_limit_bytes`, or two thirds where that is `auto` in a control group of 512 MiB or more, of which the rest is left to block cache and memtables; else none.",
        unit: "bytes",
        kind: || Kind::Whole { least: 0, most: PIB, words: &["auto"] },
        set: |options, value| {
            options.row_cache_bytes = number_or(value, "auto")?;
            Ok(())
        },
        get: |options| options.row_cache_bytes.map_or_else(|| "auto".into(), |bytes| bytes.to_string()),
    },
    StoreOption {
        name: "page_cache_bytes",
        about: "What the kernel is expected to keep in memory of the store's files. Where separated values take four times as much, requests of clients \
                read those of up to 2 KiB past its cache (`clients.io_uring`). `auto`: where clients are served, what its control group may have beyond twice \
                `memory_limit_bytes`, and at least an eighth, or half of the machine's memory; else all of them.",
        unit: "bytes",
        kind: || Kind::Whole { least: 0, most: PIB, words: &["auto"] },
        set: |options, value| {
            options.page_cache_bytes = number_or(value, "auto")?;
            Ok(())
        },
        get: |options| options.page_cache_bytes.map_or_else(|| "auto".into(), |bytes| bytes.to_string()),
    },
    whole!(
        memtable_bytes,
        "bytes",
        64 * KIB,
        16 * GIB,
        "Size of a memtable before it is flushed. Where clients are served, and neither this nor `level_base_bytes` is given, a sixteenth of the \
         memory for block cache and memtables if that is more, 32 MiB at most, and `level_base_bytes` at least eight times as much."
    ),
    whole!(
        memtable_count,
        "memtables",
        2,
        1024,
        "Memtables, the active one included, before writers wait for a flush."
    ),
    whole!(l0_compaction_trigger, "tables", 1, 1 << 20, "L0 tables that start a compaction."),
    whole!(l0_slowdown_trigger, "tables", 1, 1 << 20, "L0 tables that slow writers: the stall threshold."),
    whole!(l0_stop_trigger, "tables", 1, 1 << 20, "L0 tables that stop writers."),
    whole!(level_base_bytes, "bytes", MIB, PIB, "Target size of the first level below L0."),
    whole!(level_multiplier, "", 2, 1000, "Growth of the target size from level to level."),
    StoreOption {
        name: "dynamic_levels",
        about: "Whether level sizes are counted from the last level, so that little data is stored twice; else from the first.",
        unit: "",
        kind: || Kind::Flag,
        set: |options, value| {
            options.dynamic_levels = value.parse().map_err(|_| "must be true or false".to_owned())?;
            Ok(())
        },
        get: |options| options.dynamic_levels.to_string(),
    },
    whole!(target_file_bytes, "bytes", 64 * KIB, 4 * GIB, "Size of a table."),
    whole!(
        max_subcompactions,
        "subcompactions",
        1,
        256,
        "Subcompactions of one compaction of level 0, or of garbage collection."
    ),
    whole!(background_flushes, "flushes", 1, 256, "Flushes at a time."),
    whole!(
        background_compactions,
        "compactions",
        1,
        256,
        "Compactions at a time, those that wait for a worker included."
    ),
    whole!(bloom_bits_per_key, "bits", 0, 30, "Bits per key of the Bloom filter, 0 for none."),
    whole!(block_bytes, "bytes", KIB, MIB, "Size of a data block before compression."),
    StoreOption {
        name: "separation_min_bytes",
        about: "Values of at least this length are separated from their keys: they go to the value log. Where any are, \
                `memtable_bytes`, `level_base_bytes` and `target_file_bytes` are smaller, and `memtable_count` is 3, unless they are given.",
        unit: "bytes",
        kind: || Kind::Whole { least: 1, most: u32::MAX.into(), words: &["off"] },
        set: |options, value| {
            if value == "off" {
                options.separation = None;
                return Ok(());
            }
            let bytes: NonZeroU32 =
                value.parse().map_err(|_| format!("must be a whole number of bytes, 1 to {}, or off", u32::MAX))?;
            *options = std::mem::take(options).with_separation(bytes.get());
            Ok(())
        },
        get: |options| options.separation.map_or_else(|| "off".into(), |separation| separation.min_bytes.to_string()),
    },
    StoreOption {
        name: "value_compression",
        about: "Compression of separated values, one by one, with a dictionary that is trained from them: by whichever of LZ4 and zstd is measured to be \
                worth it (`auto`), by one of them where that is worth it, or not at all from now on (`none`). A store in which values were compressed cannot \
                be opened by a version that knows no such values.",
        unit: "",
        kind: || Kind::OneOf(CompressionMode::ALL.map(CompressionMode::name).to_vec()),
        set: |options, value| {
            let mode = CompressionMode::ALL.into_iter().find(|mode| mode.name() == value);
            options.value_compression = mode.ok_or_else(|| "must be auto, none, lz4 or zstd".to_owned())?;
            Ok(())
        },
        get: |options| options.value_compression.name().into(),
    },
    StoreOption {
        name: "gc_ratio",
        about: "The ratio of the bytes of all segments to those that may live at which garbage collection is forced: tables are compacted to free values \
                that nothing references any more. The other ratios of garbage collection keep their distance to it: writers are throttled from about \
                half as much garbage on, and then it rises towards `gc_throttled_ratio` where there is space, as far as burst credit goes. The larger, \
                the more space, and the fewer copies and waits.",
        unit: "",
        kind: || Kind::Real { least: 1.1, most: 10.0 },
        set: |options, value| {
            let ratio = value.parse().map_err(|_| "must be a number".to_owned())?;
            options.gc = options.gc.with_ratio(ratio);
            Ok(())
        },
        get: |options| options.gc.forced_ratio.to_string(),
    },
    StoreOption {
        name: "gc_throttled_ratio",
        about: "What `gc_ratio` becomes while writers are throttled for a fifth of the time of their writes and more, and a quarter of the space is free; less \
                the less they are throttled and the less is free: the same copies free more then. It returns once they are not throttled, or have been \
                for long (`gc_burst_credit_seconds`). No more than `gc_ratio`: it never changes. A smaller \
                `gc_ratio` makes less of this as well, unless it is given.",
        unit: "",
        kind: || Kind::Real { least: 1.1, most: 10.0 },
        set: |options, value| {
            options.gc.throttled_ratio = value.parse().map_err(|_| "must be a number".to_owned())?;
            Ok(())
        },
        get: |options| options.gc.throttled_ratio.to_string(),
    },
    StoreOption {
        name: "gc_burst_credit_seconds",
        about: "Burst credit: for how long `gc_throttled_ratio` holds while writers are throttled for a fifth of their time: all of it for half of these \
                seconds, then less and less, down to `gc_ratio`. It lasts longer the less they are throttled, and for good where that is a twentieth, whose \
                share of it is a fifth. Four seconds in which it does not hold give back one, a restart gives back all. So a burst is taken at once, and \
                writes that are faster for good than garbage collection meet a store of a known size, and are throttled.",
        unit: "seconds",
        kind: || Kind::Real { least: 0.0, most: 1e9 },
        set: |options, value| {
            options.gc.burst_credit = Seconds(value.parse().map_err(|_| "must be a number".to_owned())?);
            Ok(())
        },
        get: |options| options.gc.burst_credit.0.to_string(),
    },
    StoreOption {
        name: "gc_min_garbage_share",
        about: "A segment of values of which less is garbage is never collected. A store of many levels with a threshold of duplicates writes less with \
                0.35 to 0.4, for little more space.",
        unit: "",
        kind: || Kind::Real { least: 0.01, most: 0.5 },
        set: |options, value| {
            options.gc.min_garbage_share = value.parse().map_err(|_| "must be a number".to_owned())?;
            Ok(())
        },
        get: |options| options.gc.min_garbage_share.to_string(),
    },
    StoreOption {
        name: "dedup",
        about: "How shadowed versions in lower levels are counted, after each compaction: `sample` by one key in 64 of each table, \
                `filter` by a filter of all its keys, which takes more memory and time and finds no more. New tables carry what that \
                needs. Counting frees nothing: `dedup_threshold` does. `auto`: `sample` where there is a threshold, else `off`.",
        unit: "",
        kind: || Kind::OneOf(vec!["auto", "off", "sample", "filter"]),
        set: |options, value| {
            options.dedup.mode = match value {
                "auto" => None,
                "off" => Some(DedupMode::Off),
                "sample" => Some(DedupMode::Sample),
                _ => Some(DedupMode::Filter),
            };
            Ok(())
        },
        get: |options| options.dedup.mode.map_or("auto", DedupMode::name).into(),
    },
    StoreOption {
        name: "dedup_threshold",
        about: "Levels are merged down to the last one, beyond what compactions do, where at least one entry in so many is freed by that: the larger, the more writing, for less \
                space up to 10 or so. `off`: none is. `auto`: 10 where new values are separated (but for `background_compactions = 1`), else `off`: where \
                values are stored with their keys, entries are expensive to rewrite; 5 to 10 there. Where levels differ tenfold (`level_multiplier`), a merge frees one entry in 11 or 12 at \
                best, so 10 hardly ever makes one there; it takes more than 12.",
        unit: "entries",
        kind: || Kind::Whole { least: 2, most: 100, words: &["auto", "off"] },
        set: |options, value| {
            options.dedup.threshold = match value {
                "auto" => ExtensionThreshold::Auto,
                "off" => ExtensionThreshold::Off,
                ratio => {
                    let ratio =
                        number::<u32>(ratio).ok().and_then(|ratio| DedupThreshold::try_from(f64::from(ratio)).ok());
                    ExtensionThreshold::At(ratio.ok_or("must be from 2 to 100, auto or off")?)
                }
            };
            Ok(())
        },
        get: |options| match options.dedup.threshold {
            ExtensionThreshold::Auto => "auto".into(),
            ExtensionThreshold::Off => "off".into(),
            ExtensionThreshold::At(ratio) => ratio.to_string(),
        },
    },
    StoreOption {
        name: "space_max_bytes",
        about: "Most bytes that the store's folder may take, compactions included: at least 4 reserves and 5 memtables.",
        unit: "bytes",
        kind: || Kind::Whole { least: 32 * MIB, most: PIB, words: &["off"] },
        set: |options, value| {
            options.space.max_bytes = number_or(value, "off")?;
            Ok(())
        },
        get: |options| options.space.max_bytes.map_or_else(|| "off".into(), |bytes| bytes.to_string()),
    },
    StoreOption {
        name: "space_reserve_bytes",
        about: "Bytes kept free, below which writes are refused; `auto`: 64 MiB, and 128 MiB more with a value log, but at \
                most a tenth of the space.",
        unit: "bytes",
        kind: || Kind::Whole { least: 8 * MIB, most: PIB, words: &["auto"] },
        set: |options, value| {
            options.space.reserve_bytes = number_or(value, "auto")?;
            Ok(())
        },
        get: |options| options.space.reserve_bytes.map_or_else(|| "auto".into(), |bytes| bytes.to_string()),
    },
    StoreOption {
        name: "max_open_files",
        about: "Tables held open, and as many segments at most, beside those that are not synced yet; `off`: all tables, and 256 segments, as far as the file descriptors that the process may have leave room for them beside clients.",
        unit: "files",
        kind: || Kind::Whole { least: 16, most: 1 << 24, words: &["off"] },
        set: |options, value| {
            let files = number_or(value, "off")?;
            options.max_open_files = files.map(u32::try_from).transpose().map_err(|_| "is too many".to_owned())?;
            Ok(())
        },
        get: |options| options.max_open_files.map_or_else(|| "off".into(), |files| files.to_string()),
    },
    whole!(
        max_wal_bytes,
        "bytes",
        0,
        PIB,
        "Bytes of write-ahead logs beyond which memtables are flushed: 0 for RocksDB's, else at least a memtable."
    ),
    whole!(
        expired_compaction_seconds,
        "seconds",
        0,
        10 * 365 * 24 * 60 * 60,
        "Age at which a table is rewritten that nothing else compacts, so that what has expired in it frees its space; 0 is never. What was \
         loaded together comes due together, and so does all that is older when the server starts. Other compactions of this server free it as well, those that run on another do not. Only where clients are served."
    ),
];

fn number<T: std::str::FromStr>(value: &str) -> std::result::Result<T, String> {
    value.parse().map_err(|_| "must be a whole number in the option's range".into())
}

/// A number, or `None` for `word`.
fn number_or(value: &str, word: &str) -> std::result::Result<Option<u64>, String> {
    if value == word {
        return Ok(None);
    }
    value.parse().map(Some).map_err(|_| format!("must be a whole number of bytes, or {word}"))
}

/// What a server's store is opened with: the profile's options, with values of at least
/// [`DEFAULT_SEPARATION_BYTES`] separated, and then what `assignments` say. Both change sizes that
/// other options set, so they are set first wherever they are given.
///
/// # Errors
/// As [`set_store_option`]; two profiles are refused, and two lengths from which values are
/// separated.
pub fn store_options(assignments: &[impl AsRef<str>]) -> Result<StoreSettings> {
    let assignments = || assignments.iter().map(AsRef::as_ref);
    let only = |begin: &'static str| {
        let found: Vec<&str> = assignments().filter(|one| one.starts_with(begin)).collect();
        match found[..] {
            [] => Ok(None),
            [one] => Ok(Some(one)),
            _ => {
                let name = begin.trim_end_matches('=');
                Err(Error::Configuration(format!("store option {name} is given twice: {}", found.join(", "))))
            }
        }
    };
    let mut options = StoreSettings { value_compression: CompressionMode::Auto, ..StoreSettings::default() };
    if let Some(profile) = only(PROFILE)? {
        set_store_option(&mut options, profile)?;
    }
    match only(SEPARATION)? {
        Some(separation) => set_store_option(&mut options, separation)?,
        None => options = options.with_separation(DEFAULT_SEPARATION_BYTES),
    }
    if options.separation.is_some() {
        options.memtable_bytes = options.memtable_bytes.min(SEPARATED_MEMTABLE_BYTES);
        options.level_base_bytes = options.level_base_bytes.min(SEPARATED_LEVEL_BASE_BYTES);
    }
    let of_others = |one: &&str| !one.starts_with(PROFILE) && !one.starts_with(SEPARATION);
    // `gc_ratio` makes less of it, unless it is given.
    let (last, others): (Vec<&str>, _) =
        assignments().filter(of_others).partition(|one| one.starts_with(THROTTLED_RATIO));
    for assignment in others.into_iter().chain(last) {
        set_store_option(&mut options, assignment)?;
    }
    Ok(options)
}

/// Sets the option that `assignment` (`name=value`) names. `profile` sets all others as well, so it
/// comes first; then a length from which values are separated, which cuts sizes as
/// [`StoreSettings::with_separation`] does.
///
/// # Errors
/// [`Error::Configuration`], with the names there are or what the value must be.
pub fn set_store_option(options: &mut StoreSettings, assignment: &str) -> Result<()> {
    let (name, value) = assignment
        .split_once('=')
        .ok_or_else(|| Error::Configuration(format!("store option {assignment:?} is not of the form name=value")))?;
    let Some(option) = STORE_OPTIONS.iter().find(|option| option.name == name) else {
        let names: Vec<&str> = STORE_OPTIONS.iter().map(|option| option.name).collect();
        return Err(Error::Configuration(format!("there is no store option {name:?}; there are {}", names.join(", "))));
    };
    let set = (option.kind)().check(value).and_then(|()| (option.set)(options, value));
    set.map_err(|why| Error::Configuration(format!("store option {name}: {value:?} {why}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(options: &StoreSettings) -> [u64; 3] {
        [options.memtable_bytes, options.level_base_bytes, options.target_file_bytes]
    }

    #[test]
    fn a_profile_is_what_others_change_wherever_it_is_given() {
        let given = ["memtable_bytes=2097152", "profile=small-device", "separation_min_bytes=200"];
        let options = store_options(&given).unwrap();
        let small = StoreSettings::small_device().with_separation(200);
        assert_eq!(sizes(&options), [2 << 20, small.level_base_bytes, small.target_file_bytes]);
        assert_eq!(options.memory_limit_bytes, small.memory_limit_bytes);
        assert_eq!(options.separation, small.separation);
        let refused = |given: &[&str]| store_options(given).unwrap_err().to_string();
        assert!(refused(&["profile=tiny"]).contains("small-device"));
        assert!(refused(&["profile=default", "profile=small-device"]).contains("profile is given twice"));
    }

    #[test]
    fn values_are_separated_unless_it_is_turned_off() {
        let of = |given: &[&str]| store_options(given).unwrap();
        for (given, profile) in [(&[][..], Profile::Default), (&["profile=small-device"], Profile::SmallDevice)] {
            let (options, mut separated) = (of(given), profile.settings().with_separation(DEFAULT_SEPARATION_BYTES));
            separated.memtable_bytes = separated.memtable_bytes.min(SEPARATED_MEMTABLE_BYTES);
            separated.level_base_bytes = separated.level_base_bytes.min(SEPARATED_LEVEL_BASE_BYTES);
            assert_eq!((options.separation, sizes(&options)), (separated.separation, sizes(&separated)), "{profile}");
            assert!(options.separation.is_some());
            let options = of(&[given, &["separation_min_bytes=off"]].concat());
            assert_eq!((options.separation, sizes(&options)), (None, sizes(&profile.settings())), "{profile}");
        }
        // Sizes that are asked for are taken as they are, on either side.
        let large = ["memtable_bytes=134217728", "separation_min_bytes=1000"];
        assert_eq!(of(&large).memtable_bytes, 128 << 20);
        assert_eq!(of(&large).separation.map(|it| it.min_bytes), Some(1000));
        for wrong in ["0", "-1", "", "128B", "1.5", "on", "none", "Off", "4294967296"] {
            let refused = store_options(&[format!("separation_min_bytes={wrong}")]).unwrap_err().to_string();
            assert!(refused.contains("separation_min_bytes") && refused.contains("or off"), "{refused}");
        }
        let throttled_ratio = |given: &[&str]| of(given).gc.throttled_ratio;
        for given in [["gc_throttled_ratio=3", "gc_ratio=1.2"], ["gc_ratio=1.2", "gc_throttled_ratio=3"]] {
            assert_eq!(throttled_ratio(&given), 3.0);
        }
        assert!(throttled_ratio(&["gc_ratio=1.2"]) < 1.6);
        let twice = store_options(&["separation_min_bytes=128", "separation_min_bytes=off"]).unwrap_err().to_string();
        assert!(twice.contains("separation_min_bytes is given twice"), "{twice}");
    }

    #[test]
    fn options_are_set_by_name_and_refused_with_a_reason() {
        let mut options = StoreSettings::default();
        set_store_option(&mut options, "memtable_bytes=8388608").unwrap();
        set_store_option(&mut options, "compression=zstd").unwrap();
        assert_eq!(options.memtable_bytes, 8 << 20);
        set_store_option(&mut options, "space_max_bytes=1073741824").unwrap();
        set_store_option(&mut options, "space_reserve_bytes=67108864").unwrap();
        assert_eq!((options.space.max_bytes, options.space.reserve_bytes), (Some(1 << 30), Some(64 << 20)));
        set_store_option(&mut options, "space_max_bytes=off").unwrap();
        set_store_option(&mut options, "space_reserve_bytes=auto").unwrap();
        assert_eq!(options.space, ecotone_engine::SpaceLimits::default());
        assert_eq!(options.compression, ecotone_engine::Compression::Zstd);
        assert_eq!(options.dedup_mode(), DedupMode::Off);
        let assignments = [
            "dedup_threshold=auto",
            "dedup_threshold=off",
            "dedup_threshold=30",
            "dedup=filter",
            "dedup=auto",
            "gc_min_garbage_share=0.35",
            "gc_ratio=2.5",
            "gc_throttled_ratio=3.5",
            "gc_burst_credit_seconds=0.5",
        ];
        for assignment in assignments {
            set_store_option(&mut options, assignment).unwrap();
            let (name, value) = assignment.split_once('=').unwrap();
            let option = STORE_OPTIONS.iter().find(|option| option.name == name).unwrap();
            assert_eq!((option.get)(&options), value);
        }
        assert_eq!(options.dedup_mode(), DedupMode::Sample, "what a threshold needs");
        set_store_option(&mut options, "dedup_threshold=off").unwrap();
        assert_eq!(options.dedup_threshold(), None);
        for (wrong, says) in [
            ("memtable_bytes", "name=value"),
            ("memtable_bytes=much", "whole number"),
            ("memtables=3", "memtable_count"),
            ("durability=maybe", "everysec"),
            ("space_max_bytes=most", "or off"),
            ("space_reserve_bytes=off", "or auto"),
            ("dedup=triggered", "off, sample or filter"),
            ("dedup_threshold=1", "from 2 to 100, auto or off"),
            ("dedup_threshold=101", "from 2 to 100, auto or off"),
            ("gc_min_garbage_share=0.6", "from 0.01 to 0.5"),
            ("gc_min_garbage_share=NaN", "from 0.01 to 0.5"),
            ("gc_ratio=1", "from 1.1 to 10"),
            ("gc_throttled_ratio=1", "from 1.1 to 10"),
            ("gc_burst_credit_seconds=-1", "from 0 to"),
            ("gc_burst_credit_seconds=inf", "from 0 to"),
        ] {
            let message = set_store_option(&mut options, wrong).unwrap_err().to_string();
            assert!(message.contains(says), "{message}");
        }
    }
}
