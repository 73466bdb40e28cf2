//! What a command prints on standard output when it has done its work.

use std::io::{ErrorKind, Write};

use anyhow::{Context, Result};

/// One more line of a `String`.
macro_rules! line {
    ($text:expr, $($what:tt)*) => {{
        $text.push_str(&format!($($what)*));
        $text.push('\n');
    }};
}
pub(crate) use line;

/// Prints `text` and, where it has none, the end of the line.
///
/// # Errors
///
/// It cannot be written, but for a reader that wants no more: that is its own affair.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{}", text.trim_end_matches('\n')).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        printed => printed.context("cannot print what was found"),
    }
}
