//! The screen: who is asked, the table, the panels below, the keys.

mod figures;
mod panels;
mod table;
mod theme;

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Paragraph};

pub(super) use theme::Theme;

use super::model::board::Board;
use super::model::snapshot::{Control, Copies, Snapshot};
use figures::{age, short, uptime};

/// Sparklines of the history.
const SPARKLINES: u16 = 3;

/// The highest that a sparkline becomes, in lines.
const MAX_SPARKLINE_HEIGHT: u16 = 8;

/// What energy, jobs and values get before sparklines become higher.
const DETAIL_LINES: u16 = 14;

/// Fewer lines show nothing of energy, jobs and values.
const MIN_DETAIL_LINES: u16 = 4;

/// Draws everything. `now_s` is on the clock of the snapshots.
pub(super) fn draw(frame: &mut Frame<'_>, board: &Board, now_s: f64, theme: Theme) {
    // A server without an identity has no control plane, and shards need have no copies.
    let has = |what: fn(&Snapshot) -> bool| u16::from(board.snapshot.as_ref().is_some_and(what));
    let lines = 2 + has(|snapshot| snapshot.control.is_some()) + has(|snapshot| snapshot.copies.is_some());
    let [header, body, keys] =
        Layout::vertical([Constraint::Length(lines), Constraint::Fill(1), Constraint::Length(1)]).areas(frame.area());
    draw_header(frame, header, board, now_s, theme);
    draw_body(frame, body, board, theme);
    let keys_line = format!(
        " q quit  ↑↓ select  s sort ({})  p {}  h help",
        board.sort.name(),
        if board.is_paused { "go on" } else { "pause" }
    );
    frame.render_widget(Line::styled(keys_line, theme.quiet()), keys);
    if board.shows_help {
        draw_help(frame, theme);
    }
}

fn draw_header(frame: &mut Frame<'_>, area: Rect, board: &Board, now_s: f64, theme: Theme) {
    let Some(snapshot) = &board.snapshot else { return };
    let up = snapshot.uptime_s.map(uptime).unwrap_or_default();
    let what = format!(
        " ecotone top  {} ({})  policy {}  up {up}  every {} s",
        snapshot.name, snapshot.role, snapshot.policy, board.interval_s
    );
    let (said, style) = if let Some(trouble) = &board.trouble {
        let (old, left_s) = (age(now_s - snapshot.at_s), (trouble.next_try_s - now_s).ceil());
        let next = if left_s > 0.0 { format!("asked again in {}", age(left_s)) } else { "is being asked".into() };
        let text = format!(" {} does not answer since {old}, {next}: {} ", board.address, trouble.why);
        (text, theme.alarm())
    } else if board.is_paused {
        (format!(" paused: figures are {} old, p goes on ", age(now_s - snapshot.at_s)), theme.alarm())
    } else if snapshot.servers.is_empty() {
        (format!(" {} reports nothing of its servers: it is of an earlier release", board.address), theme.quiet())
    } else if let Some(coordinator) = &snapshot.coordinator {
        (format!(" {}: a member knows itself and its coordinator ({coordinator})", board.address), theme.quiet())
    } else {
        let count = snapshot.servers.len();
        let servers = if count == 1 { "server" } else { "servers" };
        (format!(" {}: {count} {servers}, ecotone {}", board.address, snapshot.version), theme.quiet())
    };
    let mut lines = vec![Line::styled(what, theme.strong()), Line::styled(said, style)];
    lines.extend(snapshot.control.as_ref().map(|control| control_line(control, theme)));
    lines.extend(snapshot.copies.as_ref().map(|copies| copies_line(copies, theme)));
    frame.render_widget(Paragraph::new(lines), area);
}

/// Who decides in the federation, and what this server has of it.
fn control_line(control: &Control, theme: Theme) -> Line<'static> {
    if let Some(why) = &control.stopped {
        return Line::styled(format!(" the control plane has stopped here: {why} "), theme.alarm());
    }
    let certificate = match control.certificate_left_s {
        None => String::new(),
        Some(left_s) if left_s <= 0 => "  its certificate has ended".into(),
        Some(left_s) => format!("  certificate {}", age(left_s as f64)),
    };
    let rest = format!(
        "term {}  voters {}  shards {} of {}  map {}{certificate}",
        control.term, control.voters, control.shards_owned, control.shards, control.map_version
    );
    match &control.leader {
        Some(leader) => Line::styled(format!(" {leader} leads  {rest}"), theme.quiet()),
        None => Line::styled(format!(" nobody leads: nothing can be changed  {rest} "), theme.alarm()),
    }
}

/// How the copies here are, and what hangs on one server in the whole federation.
fn copies_line(copies: &Copies, theme: Theme) -> Line<'static> {
    if let Some(why) = &copies.trouble {
        return Line::styled(format!(" a copy here is in trouble: {why} "), theme.alarm());
    }
    let seeding = match copies.seeding_of_bytes {
        0 => String::new(),
        all => format!("  being made {}B of {}B", short(copies.seeding_bytes as f64), short(all as f64)),
    };
    let rest = format!(
        "{} of {} copies here in sync  at most {}B, {} ms behind  level {}{seeding}",
        copies.here_in_sync,
        copies.here,
        short(copies.max_lag_bytes as f64),
        copies.max_lag_ms,
        copies.level
    );
    match (copies.shards_unprotected, copies.shards_incomplete) {
        (0, 0) => Line::styled(format!(" all shards have {} copies  {rest}", copies.wanted), theme.quiet()),
        (0, few) => {
            Line::styled(format!(" {few} shards have fewer than {} copies  {rest} ", copies.wanted), theme.strong())
        }
        (alone, _) => Line::styled(format!(" {alone} shards hang on one server  {rest} "), theme.alarm()),
    }
}

fn draw_body(frame: &mut Frame<'_>, area: Rect, board: &Board, theme: Theme) {
    let servers = board.snapshot.as_ref().map_or(0, |snapshot| snapshot.servers.len());
    let wanted = u16::try_from(servers + 2).unwrap_or(u16::MAX).max(3);
    // The table has two fifths at most, and the rest where nothing else fits.
    let mut table = wanted.min((area.height * 2 / 5).max(3)).min(area.height);
    let left = area.height - table;
    let sparkline = (left.saturating_sub(DETAIL_LINES + 1) / SPARKLINES).clamp(1, MAX_SPARKLINE_HEIGHT);
    let history = Some(1 + SPARKLINES * sparkline).filter(|lines| *lines <= left).unwrap_or(0);
    let mut details = left - history;
    if details < MIN_DETAIL_LINES {
        details = 0;
    }
    table = table.max(wanted.min(area.height - history - details));
    let [table, history, details] =
        Layout::vertical([Constraint::Length(table), Constraint::Length(history), Constraint::Length(details)])
            .areas(area);
    table::draw(frame, table, board, theme);
    if history.height > 0 {
        panels::history(frame, history, board, theme);
    }
    if details.height > 0 {
        panels::details(frame, details, board, theme);
    }
}

fn draw_help(frame: &mut Frame<'_>, theme: Theme) {
    let mut lines: Vec<Line<'_>> = [
        ("q, Esc, Ctrl-C", "end"),
        ("↑ ↓ k j", "select a server: its history is shown"),
        ("s", "sort by the next of name, ops/s, writes, L0, watts, jobs"),
        ("p", "hold the screen, and go on"),
        ("h", "this help, and away with it"),
        ("", ""),
    ]
    .iter()
    .chain(table::MEANINGS)
    .map(|(name, meaning)| Line::from(format!(" {} {meaning}", table::fitted(name, 14, true))))
    .collect();
    lines.push(Line::from(" Energy, jobs and value log below are of the server that is asked."));
    let area = frame.area();
    let (width, height) = (area.width.min(76), area.height.min(lines.len() as u16 + 2));
    let place = Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height };
    frame.render_widget(Clear, place);
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" help ").style(theme.strong())), place);
}

/// What a buffer shows, as text without styles.
pub(super) fn plain(buffer: &Buffer) -> String {
    let mut text = String::new();
    for y in buffer.area.top()..buffer.area.bottom() {
        let mut line = String::new();
        let mut hidden = 0;
        for x in buffer.area.left()..buffer.area.right() {
            let symbol = buffer[(x, y)].symbol();
            // Behind a wide character is an invisible cell.
            if hidden == 0 {
                line.push_str(symbol);
            }
            hidden = table::width_of(symbol).max(hidden).saturating_sub(1);
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
