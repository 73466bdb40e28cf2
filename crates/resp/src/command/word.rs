//! Words that mean something by themselves: options, sections, settings, categories; and patterns of them.
//!
//! A client may send one that is as long as a request. Those that mean something are short, so no more of any is looked at, copied or matched.

use smallvec::SmallVec;

use crate::error::{Failure, Outcome};

/// No word that means something has so many bytes.
const MORE_THAN_ANY: usize = 64;

/// All patterns of one command together, each with a byte more for itself: with so many names as there are that takes milliseconds whatever they are.
const MOST_PATTERN_BYTES: usize = 4096;

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
/// Together they are longer than anybody needs.
pub(crate) fn patterns(arguments: &[&[u8]]) -> Outcome<Vec<Vec<u8>>> {
    if arguments.iter().map(|pattern| pattern.len() + 1).sum::<usize>() > MOST_PATTERN_BYTES {
        return Err(Failure::with(format!("ERR patterns of names may take {MOST_PATTERN_BYTES} bytes together")));
    }
    Ok(arguments.iter().map(|pattern| pattern.to_ascii_lowercase()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::table;

    #[test]
    fn a_word_is_cut_behind_all_that_mean_something() {
        assert!(table::all_with_subcommands().all(|command| command.name.len() < MORE_THAN_ANY));
        assert_eq!(*upper(b"withScores"), *b"WITHSCORES");
        assert_eq!(*lower(b"withScores"), *b"withscores");
        assert_eq!(lower(&[b'X'; 1000]).len(), MORE_THAN_ANY);
    }

    #[test]
    fn patterns_are_bounded_together() {
        let pattern = [b'*'; MOST_PATTERN_BYTES / 2 - 1];
        assert_eq!(patterns(&[&pattern, &pattern]).unwrap().len(), 2);
        assert!(patterns(&[&pattern, &pattern, b""]).is_err());
    }
}
