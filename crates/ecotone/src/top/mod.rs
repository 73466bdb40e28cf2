//! `ecotone top`: a federation, live in a terminal, as one of its servers reports it.
//!
//! [`asker`] speaks to the server, [`model`] makes figures of what it says, [`draw`] shows them.
//! The server is not trusted: what it says is bounded, and cannot steer the terminal.
//!
//! # Threads
//!
//! One asks and may wait for the network; the main one draws and listens to keys, and waits for
//! neither.

mod asker;
mod draw;
mod json;
mod model;
mod terminal;
#[cfg(test)]
mod tests;

use std::io::{IsTerminal, Write};
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::Terminal;
use ratatui::backend::TestBackend;

pub(crate) use asker::with_port;
use asker::{Answer, Asker};
use draw::Theme;
use model::board::{Board, Trouble, Wish};
use terminal::Screen;

use crate::live_server::PasswordArgument;

/// How long a key may wait for its effect at most: how often the screen polls for answers.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// How often the screen is drawn while nothing comes: ages are shown in seconds.
const REDRAW: Duration = Duration::from_secs(1);

/// The range of intervals, in seconds: a server counts once a second.
const INTERVALS_S: std::ops::RangeInclusive<f64> = 0.1..=3600.0;

/// The least width and height of the text of `--once`.
const ONCE_SIZE: (u16, u16) = (80, 24);

#[derive(clap::Args)]
#[command(
    after_help = "Ask the coordinator to see every server; a member knows itself and its coordinator. It is asked without TLS.\n\nKeys: q quit, arrows select, s sort, \
                        p pause, h help. Colours are left out where NO_COLOR is set.\n\nExamples:\n  ecotone top\n  ecotone top 10.0.0.5:6379 \
                        --password-file /etc/ecotone/password\n  ecotone top --once --json"
)]
pub(crate) struct Arguments {
    /// Where a server of the federation serves clients
    #[arg(value_name = "HOST:PORT", default_value = "127.0.0.1:6379")]
    address: String,
    #[command(flatten)]
    password: PasswordArgument,
    /// Seconds between two questions
    #[arg(long, default_value_t = 1.0)]
    interval_s: f64,
    /// Print one JSON object for each answer, a line each, instead of a screen
    #[arg(long)]
    json: bool,
    /// Ask once, print what came, and end
    #[arg(long)]
    once: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    if !INTERVALS_S.contains(&arguments.interval_s) {
        bail!("--interval-s must be from {} to {}", INTERVALS_S.start(), INTERVALS_S.end());
    }
    let interval = Duration::from_secs_f64(arguments.interval_s);
    let has_screen = !arguments.json && !arguments.once;
    if has_screen && !(std::io::stdout().is_terminal() && std::io::stdin().is_terminal()) {
        bail!("the screen needs a terminal; give --once for one text, or --json for lines of JSON");
    }
    let since = Instant::now();
    let address = asker::with_port(&arguments.address);
    let mut board = Board::new(&address, arguments.interval_s);
    let mut asker = Asker::new(address, arguments.password.password()?, since);
    // A server that is not there at the beginning is a mistake of the user; later it is news.
    board.take(asker.ask()?);
    match (arguments.json, arguments.once) {
        (true, true) => print_json(&board),
        (false, true) => print_once(&board),
        (true, false) => print_each(board, asker, interval),
        (false, false) => show(board, asker, interval, since),
    }
}

/// A line of JSON. Who reads may have enough: that is no error.
fn print_json(board: &Board) -> Result<()> {
    let at_unix_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let line = json::object(board, at_unix_s).to_string();
    match writeln!(std::io::stdout().lock(), "{line}") {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        outcome => outcome.context("cannot print"),
    }
}

/// Lines until somebody ends it. Trouble is reported once for each time that it begins, on standard
/// error.
fn print_each(mut board: Board, asker: Asker, interval: Duration) -> Result<()> {
    print_json(&board)?;
    std::thread::sleep(interval);
    let mut is_away = false;
    for answer in asker::start(asker, interval)? {
        match answer {
            Answer::Snapshot(snapshot) => {
                if std::mem::take(&mut is_away) {
                    eprintln!("ecotone: {} answers again", board.address);
                }
                board.take(*snapshot);
                print_json(&board)?;
            }
            Answer::Trouble { trouble, .. } => {
                if !std::mem::replace(&mut is_away, true) {
                    eprintln!("ecotone: {trouble}\necotone: it is asked again and again");
                }
            }
        }
    }
    bail!("the thread that asks has ended")
}

/// The screen as text.
fn print_once(board: &Board) -> Result<()> {
    let (width, height) = match crossterm::terminal::size() {
        Ok((width, height)) if std::io::stdout().is_terminal() => (width.max(ONCE_SIZE.0), height.max(ONCE_SIZE.1) - 1),
        _ => ONCE_SIZE,
    };
    let mut terminal = Terminal::new(TestBackend::new(width, height))?;
    let now_s = board.snapshot.as_ref().map_or(0.0, |snapshot| snapshot.at_s);
    terminal.draw(|frame| draw::draw(frame, board, now_s, Theme { has_colours: false }))?;
    print!("{}", draw::plain(terminal.backend().buffer()));
    Ok(())
}

fn show(mut board: Board, asker: Asker, interval: Duration, since: Instant) -> Result<()> {
    let mut screen = Screen::take()?;
    let answers = asker::start(asker, interval)?;
    let theme = Theme::of_environment();
    let mut drawn: Option<Instant> = None;
    let mut has_news = true;
    while !screen.must_end()? {
        if has_news || drawn.is_none_or(|drawn| drawn.elapsed() >= REDRAW) {
            screen.terminal.draw(|frame| draw::draw(frame, &board, since.elapsed().as_secs_f64(), theme))?;
            (drawn, has_news) = (Some(Instant::now()), false);
        }
        if crossterm::event::poll(POLL_INTERVAL)? {
            has_news = true;
            match wish(&crossterm::event::read()?) {
                Said::End => break,
                Said::Wish(wish) if wish == Wish::Back && !board.shows_help => break,
                Said::Wish(wish) => board.wish(wish),
                Said::Nothing => {}
            }
        }
        loop {
            match answers.try_recv() {
                Ok(Answer::Snapshot(snapshot)) => board.take(*snapshot),
                Ok(Answer::Trouble { trouble, next_try_s }) => board.lose(Trouble { why: trouble.short(), next_try_s }),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    screen.must_end()?;
                    bail!("the thread that asks has ended")
                }
            }
            has_news = true;
        }
    }
    Ok(())
}

/// What a key, or another event, means.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    End,
    Wish(Wish),
    Nothing,
}

fn wish(event: &Event) -> Said {
    let Event::Key(key) = event else { return Said::Nothing };
    if key.kind == KeyEventKind::Release {
        return Said::Nothing;
    }
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return if matches!(key.code, KeyCode::Char('c' | 'd')) { Said::End } else { Said::Nothing };
    }
    Said::Wish(match key.code {
        KeyCode::Char('q' | 'Q') => return Said::End,
        KeyCode::Esc => Wish::Back,
        KeyCode::Up | KeyCode::Char('k') => Wish::Up,
        KeyCode::Down | KeyCode::Char('j') => Wish::Down,
        KeyCode::Home => Wish::First,
        KeyCode::End => Wish::Last,
        KeyCode::Char('s') => Wish::Sort,
        KeyCode::Char('p' | ' ') => Wish::Pause,
        KeyCode::Char('h' | '?') => Wish::Help,
        _ => return Said::Nothing,
    })
}
