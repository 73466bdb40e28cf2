//! The store's options by name, as the command line and profiles give them.

use ecotone_engine::{MemoryLimit, Profile, Separation, StoreOptions};

use crate::error::{Error, Result};

const PROFILE: &str = "profile=";

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
        options.separation = match value {
            "off" => None,
            bytes => {
                let bytes = bytes.parse().map_err(|_| "must be a whole number from 1 on, or off".to_owned())?;
                Some(Separation::from_bytes(bytes))
            }
        };
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

/// Sets the options that `assignments` name, the profile before all others wherever it stands. Returns the profile.
///
/// # Errors
/// As [`set_store_option`]; two profiles are refused.
pub fn set_store_options(options: &mut StoreOptions, assignments: &[impl AsRef<str>]) -> Result<Profile> {
    let assignments = || assignments.iter().map(AsRef::as_ref);
    let profiles: Vec<&str> = assignments().filter(|one| one.starts_with(PROFILE)).collect();
    if profiles.len() > 1 {
        return Err(Error::Configuration(format!("store option profile is given twice: {}", profiles.join(", "))));
    }
    for assignment in profiles.iter().copied().chain(assignments().filter(|one| !one.starts_with(PROFILE))) {
        set_store_option(options, assignment)?;
    }
    // It was accepted above.
    Ok(profiles.first().and_then(|one| one[PROFILE.len()..].parse().ok()).unwrap_or_default())
}

/// Sets the option that `assignment` (`name=value`) names. `profile` sets all others as well, so it comes first.
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

    #[test]
    fn a_profile_is_what_others_change_wherever_it_stands() {
        let mut options = StoreOptions::default();
        let given = ["memtable_bytes=2097152", "profile=small-device", "separation_min_bytes=128"];
        assert_eq!(set_store_options(&mut options, &given).unwrap(), Profile::SmallDevice);
        let small = StoreOptions::small_device();
        assert_eq!((options.memtable_bytes, options.target_file_bytes), (2 << 20, small.target_file_bytes));
        assert_eq!(options.memory.as_ref().map(MemoryLimit::limit_bytes), small.memory.map(|it| it.limit_bytes()));
        assert_eq!(options.separation, Some(Separation::from_bytes(128)));
        assert_eq!(set_store_options(&mut options, &["memtable_count=3"]).unwrap(), Profile::Default);
        let refused = |given: &[&str]| set_store_options(&mut StoreOptions::default(), given).unwrap_err().to_string();
        assert!(refused(&["profile=tiny"]).contains("small-device"));
        assert!(refused(&["profile=default", "profile=small-device"]).contains("twice"));
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
