//! Consecutive reads in a pipeline, whose keys are looked up together.
//!
//! Nothing is executed here: a request that does not have the usual form, or is incomplete, ends
//! the sequence.

use crate::command::{KeyPositions, flag, table};
use ecotone_keyspace::MAX_PREFETCH_KEYS;

/// The keys of the requests that `bytes` begin with: up to the first that does more than to read
/// one key, or takes its latch, or does with what is known of the value without reading it.
pub(super) fn read_keys(bytes: &[u8]) -> Vec<&[u8]> {
    let (mut keys, mut rest) = (Vec::new(), bytes);
    while keys.len() < MAX_PREFETCH_KEYS
        && let Some((key, behind)) = read_key(rest)
    {
        keys.push(key);
        rest = behind;
    }
    keys
}

fn read_key(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (arguments @ 2.., rest) = number(bytes, b'*')? else { return None };
    let (name, rest) = argument(rest)?;
    let command = table::find(name)?;
    let only_reads = command.flags & (flag::READONLY | flag::LATCHES | flag::WAITS | flag::DESCRIBES) == flag::READONLY;
    if !only_reads || command.keys != KeyPositions::FIRST {
        return None;
    }
    let (key, mut rest) = argument(rest)?;
    for _ in 2..arguments {
        (_, rest) = argument(rest)?;
    }
    Some((key, rest))
}

fn argument(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = number(bytes, b'$')?;
    let (argument, rest) = rest.split_at_checked(length)?;
    Some((argument, rest.strip_prefix(b"\r\n")?))
}

/// The number behind `kind`, of few digits and nothing else, and what follows its line.
fn number(bytes: &[u8], kind: u8) -> Option<(usize, &[u8])> {
    /// Requests with longer ones are not prefetched.
    const MAX_DIGITS: usize = 6;
    let digits = bytes.strip_prefix(&[kind])?;
    let end = digits.iter().take(MAX_DIGITS + 1).position(|byte| *byte == b'\r')?;
    let number = digits[..end]
        .iter()
        .try_fold(0, |number, byte| byte.is_ascii_digit().then(|| number * 10 + usize::from(byte - b'0')))?;
    Some((number, digits[end..].strip_prefix(b"\r\n")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_ends_where_a_request_does_more_or_looks_unusual() {
        let read =
            b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n*3\r\n$4\r\nhget\r\n$1\r\nb\r\n$1\r\nf\r\n*2\r\n$3\r\nGET\r\n$0\r\n\r\n";
        let keys: [&[u8]; 3] = [b"a", b"b", b""];
        for behind in [
            &b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\nv\r\n"[..],
            b"*2\r\n$6\r\nSTRLEN\r\n$1\r\na\r\n*2\r\n$3\r\nGET\r\n$1\r\na\r\n",
            b"*2\r\n$3\r\nTTL\r\n$1\r\na\r\n",
            b"*2\r\n$4\r\nMGET\r\n$1\r\na\r\n",
            b"GET a\r\n",
            b"*2\r\n$3\r\nGET\r\n$1\r\n",
            b"*2\r\n$3\r\nGET\r\n$-1\r\n",
            b"*2\r\n$3\r\nGET\r\n$99999999999999999999\r\n",
            b"*1\r\n$3\r\nGET\r\n",
            b"*2\r\n$3\r\nGET\r\n$1\r\naXX*2\r\n",
            b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n",
            b"*",
            b"",
        ] {
            assert_eq!(read_keys(&[read, behind].concat()), keys, "{}", behind.escape_ascii());
        }
        assert_eq!(read_keys(&b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n".repeat(1000)).len(), MAX_PREFETCH_KEYS);
    }
}
