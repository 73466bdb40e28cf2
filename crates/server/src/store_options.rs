//! The store's options by name, as the command line and profiles give them.

use std::num::NonZeroU32;

use ecotone_engine::{DEFAULT_SEPARATION_BYTES, MemoryLimit, Profile, StoreOptions};

use crate::error::{Error, Result};

const PROFILE: &str = "profile=";
const SEPARATION: &str = "separation_min_bytes=";

type Setter = fn(&mut StoreOptions, &str) -> std::result::Result<(), String>;

/// Name, meaning and setter of every option.
pub const STORE_OPTIONS: &[(&str, &str, Setter)] = &[
    ("profile", "default or small-device: what all others start from, wherever it stands", |options, value| {
        let profile: Profile = value.parse().map_err(|_| "must be default or small-device".to_owned())?;
        *options = profile.options();
        Ok(())
    }),
    ("durability", "none, everysec or always", |options, value| {
        options.durability = value.parse().map_err(|_| "must be none, everysec or always".to_owned())?;
        Ok(())
    }),
    ("compression", "none, lz4 or zstd", |options, value| {
        options.compression = value.parse().map_err(|_| "must be none, lz4 or zstd".to_owned())?;
        Ok(())
    }),
    ("memory_limit_bytes", "block cache and memtables of the whole process", |options, value| {
        options.memory = Some(MemoryLimit::new(number(value)?));
        Ok(())
    }),
    ("memtable_bytes", "size of a memtable before it is flushed", |options, value| {
        number(value).map(|number| options.memtable_bytes = number)
    }),
    ("memtable_count", "memtables, the active one included", |options, value| {
        number(value).map(|number| options.memtable_count = number)
    }),
    ("l0_compaction_trigger", "L0 tables that start a compaction", |options, value| {
        number(value).map(|number| options.l0_compaction_trigger = number)
    }),
    ("l0_slowdown_trigger", "L0 tables that slow writers: the stall threshold", |options, value| {
        number(value).map(|number| options.l0_slowdown_trigger = number)
    }),
    ("l0_stop_trigger", "L0 tables that stop writers", |options, value| {
        number(value).map(|number| options.l0_stop_trigger = number)
    }),
    ("level_base_bytes", "target size of the first level below L0", |options, value| {
        number(value).map(|number| options.level_base_bytes = number)
    }),
    ("level_multiplier", "growth of the target size from level to level", |options, value| {
        number(value).map(|number| options.level_multiplier = number)
    }),
    ("dynamic_levels", "true: level sizes counted from the last level; false: from the first", |options, value| {
        options.dynamic_levels = value.parse().map_err(|_| "must be true or false".to_owned())?;
        Ok(())
    }),
    ("target_file_bytes", "size of a table", |options, value| {
        number(value).map(|number| options.target_file_bytes = number)
    }),
    ("max_subcompactions", "parts of one L0 compaction", |options, value| {
        number(value).map(|number| options.max_subcompactions = number)
    }),
    ("background_flushes", "flushes at a time", |options, value| {
        number(value).map(|number| options.background_flushes = number)
    }),
    ("background_compactions", "compactions at a time, waiting ones included", |options, value| {
        number(value).map(|number| options.background_compactions = number)
    }),
    ("bloom_bits_per_key", "bits per key of the Bloom filter, 0 for none", |options, value| {
        number(value).map(|number| options.bloom_bits_per_key = number)
    }),
    ("block_bytes", "size of a data block", |options, value| number(value).map(|number| options.block_bytes = number)),
    ("separation_min_bytes", "least length of a value that is kept apart from its key, or off", |options, value| {
        if value == "off" {
            options.separation = None;
            return Ok(());
        }
        let bytes: NonZeroU32 =
            value.parse().map_err(|_| format!("must be a whole number of bytes, 1 to {}, or off", u32::MAX))?;
        *options = std::mem::take(options).with_separation(bytes.get());
        Ok(())
    }),
    ("space_max_bytes", "most bytes that the store's folder may take, or off", |options, value| {
        options.space.max_bytes = number_or(value, "off")?;
        Ok(())
    }),
    ("space_reserve_bytes", "bytes kept free, below which writes are refused, or auto", |options, value| {
        options.space.reserve_bytes = number_or(value, "auto")?;
        Ok(())
    }),
    ("mapped_read_bytes", "bytes of values that may be mapped into memory for reads, 0 for none", |options, value| {
        number(value).map(|number| options.mapped_read_bytes = number)
    }),
    (
        "mapped_bytes",
        "bytes of values that may be mapped into memory while they are relocated, 0 for none",
        |options, value| number(value).map(|number| options.mapped_bytes = number),
    ),
    ("max_open_files", "tables held open, and as many segments at most", |options, value| {
        number(value).map(|number| options.max_open_files = Some(number))
    }),
    (
        "max_wal_bytes",
        "bytes of write-ahead logs beyond which memtables are flushed, 0 for RocksDB's",
        |options, value| number(value).map(|number| options.max_wal_bytes = number),
    ),
    ("compaction_readahead_bytes", "bytes a compaction reads ahead", |options, value| {
        number(value).map(|number| options.compaction_readahead_bytes = number)
    }),
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

/// What a server's store is opened with, and the profile that it comes from: the profile's options, with values of at least
/// [`DEFAULT_SEPARATION_BYTES`] apart from their keys, and then what `assignments` say. Both change sizes that others name, so
/// they are set first wherever they stand.
///
/// # Errors
/// As [`set_store_option`]; two profiles are refused, and two lengths from which values are kept apart.
pub fn store_options(assignments: &[impl AsRef<str>]) -> Result<(StoreOptions, Profile)> {
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
    let mut options = StoreOptions::default();
    let profile = only(PROFILE)?;
    if let Some(profile) = profile {
        set_store_option(&mut options, profile)?;
    }
    match only(SEPARATION)? {
        Some(separation) => set_store_option(&mut options, separation)?,
        None => options = options.with_separation(DEFAULT_SEPARATION_BYTES),
    }
    for assignment in assignments().filter(|one| !one.starts_with(PROFILE) && !one.starts_with(SEPARATION)) {
        set_store_option(&mut options, assignment)?;
    }
    // It was accepted above.
    Ok((options, profile.and_then(|one| one[PROFILE.len()..].parse().ok()).unwrap_or_default()))
}

/// Sets the option that `assignment` (`name=value`) names. `profile` sets all others as well, so it comes first; then a length
/// from which values are kept apart, which cuts sizes as [`StoreOptions::with_separation`] does.
///
/// # Errors
/// [`Error::Configuration`], with the names there are or what the value must be.
pub fn set_store_option(options: &mut StoreOptions, assignment: &str) -> Result<()> {
    let (name, value) = assignment
        .split_once('=')
        .ok_or_else(|| Error::Configuration(format!("store option {assignment:?} is not of the form name=value")))?;
    let Some((_, _, set)) = STORE_OPTIONS.iter().find(|(known, _, _)| *known == name) else {
        let names: Vec<&str> = STORE_OPTIONS.iter().map(|(name, _, _)| *name).collect();
        return Err(Error::Configuration(format!("there is no store option {name:?}; there are {}", names.join(", "))));
    };
    set(options, value).map_err(|why| Error::Configuration(format!("store option {name}: {value:?} {why}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(options: &StoreOptions) -> [u64; 3] {
        [options.memtable_bytes, options.level_base_bytes, options.target_file_bytes]
    }

    #[test]
    fn a_profile_is_what_others_change_wherever_it_stands() {
        let given = ["memtable_bytes=2097152", "profile=small-device", "separation_min_bytes=200"];
        let (options, profile) = store_options(&given).unwrap();
        assert_eq!(profile, Profile::SmallDevice);
        let small = StoreOptions::small_device().with_separation(200);
        assert_eq!(sizes(&options), [2 << 20, small.level_base_bytes, small.target_file_bytes]);
        assert_eq!(options.memory.as_ref().map(MemoryLimit::limit_bytes), small.memory.map(|it| it.limit_bytes()));
        assert_eq!(options.separation, small.separation);
        assert_eq!(store_options(&["memtable_count=3"]).unwrap().1, Profile::Default);
        let refused = |given: &[&str]| store_options(given).unwrap_err().to_string();
        assert!(refused(&["profile=tiny"]).contains("small-device"));
        assert!(refused(&["profile=default", "profile=small-device"]).contains("profile is given twice"));
    }

    #[test]
    fn values_are_apart_unless_it_is_turned_off() {
        let of = |given: &[&str]| store_options(given).unwrap().0;
        for (given, profile) in [(&[][..], Profile::Default), (&["profile=small-device"], Profile::SmallDevice)] {
            let (options, apart) = (of(given), profile.options().with_separation(DEFAULT_SEPARATION_BYTES));
            assert_eq!((options.separation, sizes(&options)), (apart.separation, sizes(&apart)), "{profile}");
            assert!(options.separation.is_some());
            let options = of(&[given, &["separation_min_bytes=off"]].concat());
            assert_eq!((options.separation, sizes(&options)), (None, sizes(&profile.options())), "{profile}");
        }
        // Sizes that are asked for are taken as they are, on either side.
        let large = ["memtable_bytes=134217728", "separation_min_bytes=1000"];
        assert_eq!(of(&large).memtable_bytes, 128 << 20);
        assert_eq!(of(&large).separation.map(|it| it.min_bytes), Some(1000));
        for wrong in ["0", "-1", "", "128B", "1.5", "on", "none", "Off", "4294967296"] {
            let refused = store_options(&[format!("separation_min_bytes={wrong}")]).unwrap_err().to_string();
            assert!(refused.contains("separation_min_bytes") && refused.contains("or off"), "{refused}");
        }
        let twice = store_options(&["separation_min_bytes=128", "separation_min_bytes=off"]).unwrap_err().to_string();
        assert!(twice.contains("separation_min_bytes is given twice"), "{twice}");
    }

    #[test]
    fn options_are_set_by_name_and_refused_with_a_reason() {
        let mut options = StoreOptions::default();
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
        for (wrong, says) in [
            ("memtable_bytes", "name=value"),
            ("memtable_bytes=much", "whole number"),
            ("memtables=3", "memtable_count"),
            ("durability=maybe", "everysec"),
            ("space_max_bytes=most", "or off"),
            ("space_reserve_bytes=off", "or auto"),
        ] {
            let message = set_store_option(&mut options, wrong).unwrap_err().to_string();
            assert!(message.contains(says), "{message}");
        }
    }
}
