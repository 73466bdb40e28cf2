//! Colours, and what replaces them where there are none: every state is also a word.

use ratatui::style::{Color, Modifier, Style};

use crate::top::model::board::Row;
use crate::top::model::snapshot::ServerState;

/// The styles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::top) struct Theme {
    pub has_colours: bool,
}

impl Theme {
    /// As the environment wants it: see <https://no-color.org>.
    pub(in crate::top) fn of_environment() -> Self {
        let is_said = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        Self { has_colours: !is_said("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb") }
    }

    fn colour(self, colour: Color) -> Style {
        if self.has_colours { Style::new().fg(colour) } else { Style::new() }
    }

    pub(super) fn strong(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(super) fn titles(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED)
    }

    pub(super) fn quiet(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    pub(super) fn alarm(self) -> Style {
        self.colour(Color::Red).add_modifier(Modifier::BOLD | Modifier::REVERSED)
    }

    pub(super) fn bar(self) -> Style {
        self.colour(Color::Cyan)
    }

    pub(super) fn row(self, row: &Row<'_>) -> Style {
        match (row.is_selected, row.state.is_gone()) {
            (true, _) => Style::new().add_modifier(Modifier::REVERSED),
            (false, true) => self.quiet(),
            (false, false) => Style::new(),
        }
    }

    pub(super) fn state(self, server: &ServerState) -> Style {
        match server.writers.as_deref() {
            _ if server.is_gone() => Style::new(),
            Some("slowed") => self.colour(Color::Yellow).add_modifier(Modifier::BOLD),
            Some("stopped") => self.colour(Color::Red).add_modifier(Modifier::BOLD),
            _ => Style::new(),
        }
    }
}
