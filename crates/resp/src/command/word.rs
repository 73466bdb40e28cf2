//! Words that mean something by themselves: options, sections, settings, categories; and patterns
//! of them.
//!
//! A client may send one that is as long as a request. Those that mean something are short, so no
//! more of any is read, copied or matched.

use smallvec::SmallVec;

use crate::protocol::glob::Pattern;
use ecotone_keyspace::error::Outcome;
use ecotone_keyspace::memory::MemoryReservation;

/// No word that means something has so many bytes.
const MORE_THAN_ANY: usize = 64;

/// A word to be compared with those that mean something.
pub(crate) type Word = SmallVec<[u8; MORE_THAN_ANY]>;

/// The word in upper case; of one that is longer than any, its beginning.
pub(crate) fn upper(argument: &[u8]) -> Word {
    argument.iter().take(MORE_THAN_ANY).map(u8::to_ascii_uppercase).collect()
}

/// The same in lower case.
pub(crate) fn lower(argument: &[u8]) -> Word {
    argument.iter().take(MORE_THAN_ANY).map(u8::to_ascii_lowercase).collect()
}

/// Patterns of words, in lower case.
///
/// # Errors
///
/// There is no `room` for so many.
pub(crate) fn patterns(arguments: &[&[u8]], reservation: &mut MemoryReservation<'_>) -> Outcome<Vec<Pattern>> {
    let mut patterns = Vec::new();
    for argument in arguments {
        let pattern = Pattern::lower(argument, MORE_THAN_ANY);
        // What they lie in grows by doubling.
        reservation.take(2 * pattern.memory_bytes())?;
        patterns.push(pattern);
    }
    Ok(patterns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::table;
    use ecotone_keyspace::memory::Memory;

    #[test]
    fn a_word_is_cut_behind_all_that_mean_something() {
        assert!(table::all_with_subcommands().all(|command| command.name.len() < MORE_THAN_ANY));
        assert_eq!(*upper(b"withScores"), *b"WITHSCORES");
        assert_eq!(*lower(b"withScores"), *b"withscores");
        assert_eq!(lower(&[b'X'; 1000]).len(), MORE_THAN_ANY);
    }

    #[test]
    fn patterns_are_bounded_by_the_memory_there_is() {
        let memory = Memory::default();
        memory.limit_to(1 << 20);
        let patterns = |number| {
            patterns(&vec![&[b'?'; MORE_THAN_ANY][..]; number], &mut MemoryReservation::new(&memory, true))
                .map(|all| all.len())
        };
        assert_eq!(patterns(500).unwrap(), 500);
        assert!(patterns(5000).is_err());
    }
}
