//! Reports: how numbers, tables and plots are shown, and the page of a bench.
//!
//! Everything here is a pure function of a report and what the caller says about it; nothing reads
//! a clock or a file. The lab draws its own page from the same parts.

pub mod canvas;
pub mod format;
pub mod palette;
mod store;
mod store_plots;
pub mod table;

pub use store::store_html;

use format::escaped;
use palette::Colour;

/// The style sheet of every page.
pub const STYLE: &str = include_str!("style.css");

/// What only the caller knows about a report.
#[derive(Clone, Copy, Debug)]
pub struct PageHeader<'a> {
    /// The command that made the report, so that a reader can repeat it.
    pub command: &'a str,
    /// When it was made, in words.
    pub date: &'a str,
}

/// Names with their colours.
pub fn legend<'a>(entries: impl IntoIterator<Item = (&'a str, Colour)>) -> String {
    let entries = entries
        .into_iter()
        .map(|(name, colour)| format!("<li><i style=\"background:{}\"></i>{}</li>", colour.css(), escaped(name)));
    format!("<ul class=\"legend\">{}</ul>", entries.collect::<String>())
}

/// A panel: a heading, its plot, and a note below.
pub fn panel(heading: &str, aside: &str, plot: &str, note: &str) -> String {
    let note = if note.is_empty() { String::new() } else { format!("<p class=\"note\">{note}</p>") };
    format!("<div class=\"panel\"><h4>{} <span>{}</span></h4>{plot}{note}</div>", escaped(heading), escaped(aside))
}

/// Panels side by side.
pub fn panels(panels: impl IntoIterator<Item = String>) -> String {
    format!("<div class=\"panels\">{}</div>", panels.into_iter().collect::<String>())
}

/// Panels side by side, twice as wide.
pub fn wide_panels(panels: impl IntoIterator<Item = String>) -> String {
    format!("<div class=\"panels wide\">{}</div>", panels.into_iter().collect::<String>())
}
