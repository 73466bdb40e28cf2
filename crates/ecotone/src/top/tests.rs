//! Screens as they are, from texts of INFO as servers send them, and from texts that no server of
//! ours would send.

#![allow(clippy::unwrap_used)] // a test that cannot go on should say where

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::style::Color;

use super::asker::{Asker, Trouble as Away, retry_after, with_port};
use super::draw::{Theme, draw, plain};
use super::model::board::{Board, Trouble, Wish};
use super::model::info::Info;
use super::model::snapshot::Snapshot;

const THEME: Theme = Theme { has_colours: true };

/// Names, and the fields of the server after its name, `second` seconds after its start.
fn line(index: usize, name: &str, second: u64, more: &str) -> String {
    let (role, is_self) = if index == 0 { ("coordinator", 1) } else { ("member", 0) };
    let ops = 1000 * (index as u64 + 1);
    format!(
        "server{index}:name={name},address=10.0.0.{n}:7411,role={role},self={is_self},report_age_ms={age},takes_jobs=yes,stalled=0,\
         l0_tables={l0},write_bytes_per_s={bytes},written_bytes_total={written},cores=4.00,free_cores=1.50,worker_slots_free=2,\
         joules_total={joules:.3},uptime_ms={up},writers=run,ops_per_s={ops}.0,operations_total={operations},stall_ms_total={stall},\
         running_compactions={own},running_offloaded={index},running_worker_jobs=1,watts=11.250,energy_source=model,frequency_hz=2400000000,\
         store_bytes=3100000000,live_bytes=2500000000,free_bytes=64000000000,jobs_offloaded_total=12,jobs_taken_total=3450,\
         jobs_declined_total=7,jobs_fallen_back_total=1{more}\r\n",
        n = index + 1,
        own = index + 2,
        age = index * 400,
        l0 = index * 5,
        bytes = ops * 1016,
        written = ops * 1016 * second,
        joules = 11.25 * second as f64,
        up = second * 1000,
        operations = ops * second,
        stall = second * 100 * index as u64,
    )
}

/// What a coordinator with the servers `names` says.
fn text(names: &[&str], second: u64, more: &[&str]) -> String {
    let mut text = format!(
        "# Server\r\nredis_version:7.0.15\r\necotone_version:0.1.0\r\nrun_id:0123\r\nuptime_in_seconds:{second}\r\n\r\n# Store\r\n\
         value_log_segments:41\r\nvalue_log_bytes:2600000000\r\nvalue_log_referenced_bytes:2100000000\r\n\
         value_log_gc_segments:3\r\nvalue_log_gc_bytes_total:{gc_bytes}\r\nvalue_log_removed_bytes_total:{removed}\r\n\
         value_log_throttled_ms_total:{throttled}\r\nshadowed_keys_estimate:64000\r\nshadowed_bytes_estimate:70400000\r\ndup_ratio_estimate:31.25\r\n\
         dup_ratio_error:0.031\r\ndedup_extensions_total:5\r\ndedup_merges_total:17\r\nlevel0:tables=2,bytes=9\r\n\
         level5:tables=2,bytes=9,shadowed_keys=9000,shadowed_bytes=9900000\r\nlevel6:tables=7,bytes=99,shadowed_keys=55000,shadowed_bytes=60500000\r\nspace_writes_refused:0\r\n\r\n# Federation\r\nfederation_name:{name}\r\n\
         federation_role:coordinator\r\npolicy:eco\r\njobs_declined_total:7\r\njobs_declined_no_free_core:5\r\n\
         jobs_declined_no_free_slot:2\r\njobs_fallen_back_total:1\r\njobs_fallen_back_unreachable:1\r\n",
        gc_bytes = second * 5_000_000,
        removed = second * 9_000_000,
        throttled = second * 40,
        name = names[0],
    );
    for (index, name) in names.iter().enumerate() {
        text.push_str(&line(index, name, second, more.get(index).unwrap_or(&"")));
    }
    let joules = |watts: f64| watts * second as f64;
    text + &format!(
        "\r\n# Energy\r\nenergy_source:model\r\nenergy_joules_total:{:.3}\r\nenergy_joules_foreground:{:.3}\r\nenergy_joules_flush:{:.3}\r\n\
         energy_joules_compaction:{:.3}\r\nenergy_joules_worker:{:.3}\r\nenergy_joules_idle:{:.3}\r\nenergy_joules_coding:0.000\r\n",
        joules(11.25),
        joules(3.5),
        joules(0.4),
        joules(2.1),
        joules(0.25),
        joules(5.0)
    )
}

fn snapshot(text: &str, at_s: f64) -> Snapshot {
    Snapshot::of(&Info::parse(text), at_s).unwrap()
}

/// A board that has got `seconds` answers.
fn board(names: &[&str], seconds: u64, more: &[&str]) -> Board {
    let mut board = Board::new("10.0.0.1:6379", 1.0);
    for second in 1..=seconds {
        board.take(snapshot(&text(names, second, more), second as f64));
    }
    board
}

fn drawn(board: &Board, width: u16, height: u16, now_s: f64) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, board, now_s, THEME)).unwrap();
    terminal.backend().buffer().clone()
}

fn shown(board: &Board, width: u16, height: u16) -> String {
    plain(&drawn(board, width, height, 31.0))
}

const FIVE: [&str; 5] = ["high", "low-1", "low-2", "medium-1", "medium-2"];
const OF_FIVE: [&str; 5] =
    ["", ",stall_in_s=4.3", ",writers=slowed,stall_in_s=0.0", ",writers=stopped", ",takes_jobs=no-free-core"];

#[test]
fn one_server() {
    let board = board(&["edge"], 30, &[]);
    insta::assert_snapshot!("one_80x24", shown(&board, 80, 24));
    insta::assert_snapshot!("one_160x50", shown(&board, 160, 50));
}

#[test]
fn a_server_of_a_federation_shows_who_leads_it() {
    let control = |more: &str| {
        let text = text(&["edge"], 30, &[]);
        let more = format!(
            "\r\n# Cluster\r\ncluster_enabled:1\r\ncontrol_term:3\r\ncontrol_voters:edge,low-1,low-2\r\ncontrol_map_version:17\r\n\
             control_shards:6\r\ncontrol_shards_owned:2\r\nserver_time_usec:1000000000000\r\n{more}"
        );
        let mut board = Board::new("10.0.0.1:6379", 1.0);
        board.take(snapshot(&(text + &more), 30.0));
        (shown(&board, 120, 24), super::json::object(&board, 1.0)["control"].clone())
    };
    let (screen, json) = control("control_leader:low-1\r\ncontrol_certificate_expiry_seconds:1086400\r\n");
    let line = screen.lines().nth(2).unwrap();
    assert_eq!(line, " low-1 leads  term 3  voters edge,low-1,low-2  shards 2 of 6  map 17  certificate 24h");
    assert_eq!(
        (&json["leader"], &json["voters"][2], &json["certificate_left_s"]),
        (&"low-1".into(), &"low-2".into(), &86_400.into())
    );
    assert!(screen.lines().nth(3).unwrap().starts_with(" server"), "the table is below: {screen}");
    let (screen, json) = control("control_leader:\r\ncontrol_certificate_expiry_seconds:999999\r\n");
    let line = screen.lines().nth(2).unwrap();
    assert!(line.starts_with(" nobody leads") && line.ends_with("its certificate has ended"), "{line}");
    assert!(json["leader"].is_null() && json["certificate_left_s"] == -1);
    let (screen, _) = control("control_stopped:the disk is full\r\n");
    assert_eq!(screen.lines().nth(2).unwrap(), " the control plane has stopped here: the disk is full");
}

#[test]
fn copies_have_a_line_that_says_what_hangs_on_one_server() {
    let copies = |more: &str| {
        let more = format!(
            "\r\n# Cluster\r\ncontrol_term:3\r\ncontrol_leader:edge\r\ncopies_wanted:3\r\ncopies_level:quorum\r\ncopies_here:6\r\n\
             copies_here_in_sync:5\r\ncopies_max_lag_bytes:2048\r\ncopies_max_lag_ms:12\r\n{more}"
        );
        let mut board = Board::new("10.0.0.1:6379", 1.0);
        board.take(snapshot(&(text(&["edge"], 30, &[]) + &more), 30.0));
        let screen = shown(&board, 140, 24);
        let lines: Vec<String> = screen.lines().map(str::to_owned).collect();
        assert!(lines[4].starts_with(" server"), "the table is below: {screen}");
        (lines[3].clone(), super::json::object(&board, 1.0)["copies"].clone())
    };
    let (line, json) =
        copies("copies_seeding_bytes:1024\r\ncopies_seeding_of_bytes:4096\r\ncopies_shards_incomplete:2\r\n");
    assert!(line.starts_with(" 2 shards have fewer than 3 copies  5 of 6 copies here in sync"), "{line}");
    assert!(line.contains("12 ms behind  level quorum  being made "), "{line}");
    assert_eq!((&json["max_lag_bytes"], &json["seeding_of_bytes"]), (&2048.into(), &4096.into()));
    let (line, _) = copies("copies_shards_unprotected:1\r\ncopies_shards_incomplete:2\r\n");
    assert!(line.starts_with(" 1 shards hang on one server  "), "{line}");
    assert!(copies("").0.starts_with(" all shards have 3 copies  "));
    let (line, json) = copies("copies_trouble:shard 1: no space\r\n");
    assert_eq!(
        (line.as_str(), &json["trouble"]),
        (" a copy here is in trouble: shard 1: no space", &"shard 1: no space".into())
    );
}

#[test]
fn five_servers() {
    let board = board(&FIVE, 30, &OF_FIVE);
    insta::assert_snapshot!("five_80x24", shown(&board, 80, 24));
    insta::assert_snapshot!("five_160x50", shown(&board, 160, 50));
}

#[test]
fn the_first_answer_shows_what_the_server_says_of_its_last_second() {
    insta::assert_snapshot!("first_answer", shown(&board(&["edge"], 1, &[]), 80, 24));
}

#[test]
fn the_help_lies_above_the_rest() {
    let mut board = board(&FIVE, 3, &OF_FIVE);
    board.wish(Wish::Help);
    insta::assert_snapshot!("help_80x24", shown(&board, 80, 24));
}

#[test]
fn a_member_that_is_gone_has_no_figures_of_now() {
    let board = board(&FIVE, 30, &["", ",report_age_ms=83000"]);
    let screen = shown(&board, 80, 24);
    let row = screen.lines().find(|line| line.contains("low-1")).unwrap();
    assert!(row.contains("gone 83s") && row.contains(" - "), "{row}");
}

#[test]
fn the_server_that_is_asked_is_gone() {
    let mut board = board(&FIVE, 30, &OF_FIVE);
    board.lose(Trouble { why: "Connection refused (os error 111)".into(), next_try_s: 35.0 });
    let screen = plain(&drawn(&board, 80, 24, 34.0));
    let said = screen.lines().nth(1).unwrap();
    assert!(said.contains("10.0.0.1:6379 does not answer since 4s, asked again in 1s: Connection refused"), "{said}");
    board.take(snapshot(&text(&FIVE, 36, &OF_FIVE), 36.0));
    assert!(!shown(&board, 80, 24).contains("does not answer"));
}

#[test]
fn a_history_shows_when_nobody_looked_and_how_far_its_figures_are_apart() {
    let mut board = Board::new("10.0.0.1:6379", 0.2);
    for second in [1, 2, 3, 4, 20, 21, 22] {
        board.take(snapshot(&text(&["edge"], second, &[]), second as f64));
    }
    let screen = shown(&board, 80, 24);
    assert!(screen.contains("edge, one figure every 1 s"), "the server samples once a second: {screen}");
    let watts = screen.lines().find(|line| line.starts_with(" watts")).unwrap();
    assert!(watts.ends_with(&format!(" ████{}███", "·".repeat(15))), "{watts}");
}

#[test]
fn every_size_of_a_terminal_is_drawn_on() {
    let names: Vec<String> = (0..200).map(|number| format!("server-{number:03}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut full = board(&names, 2, &[]);
    full.wish(Wish::Last);
    let empty = Board::new("x", 1.0);
    for width in [0, 1, 2, 7, 20, 39, 49, 60, 75, 80, 81, 120, 300] {
        for height in [0, 1, 2, 3, 4, 6, 9, 12, 24, 60] {
            drawn(&empty, width, height, 0.0);
            let screen = plain(&drawn(&full, width, height, 3.0));
            // Whoever is selected is shown wherever there is a table at all.
            assert!(width < 20 || height < 6 || screen.contains(">server-199"), "{width}x{height}\n{screen}");
            full.wish(Wish::Help);
            drawn(&full, width, height, 3.0);
            full.wish(Wish::Back);
        }
    }
}

#[test]
fn without_colours_no_colour_is_used_and_states_are_words() {
    let board = board(&FIVE, 30, &OF_FIVE);
    let mut terminal = Terminal::new(TestBackend::new(160, 50)).unwrap();
    terminal.draw(|frame| draw(frame, &board, 31.0, Theme { has_colours: false })).unwrap();
    let buffer = terminal.backend().buffer();
    assert!(buffer.content.iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
    let screen = plain(buffer);
    assert!(screen.contains("slowed") && screen.contains("stopped"), "{screen}");
    assert_eq!(screen, shown(&board, 160, 50));
}

/// What would steer a terminal, wherever a server may say something; what is no figure; what is far
/// too large.
#[test]
fn a_hostile_server_breaks_nothing_and_reaches_no_terminal() {
    let evil = "\u{1b}[2J\u{1b}]0;owned\u{7}\u{9b}31m\u{202e}\u{200b}%1B[31m%0d%0a\u{85}e\u{301}\u{301}漢字\u{1f468}\u{200d}\u{1f469}";
    let numbers = ["18446744073709551615", "99999999999999999999999", "-5", "1e308", "nan", "inf", "", evil];
    let mut board = Board::new("10.0.0.1:6379", 1.0);
    let fields = line(0, "x", 1, ",stall_in_s=1");
    let names: Vec<&str> =
        fields.split_once(':').unwrap().1.split(',').map(|field| field.split_once('=').unwrap().0).collect();
    for (second, number) in numbers.iter().enumerate() {
        let mut text = format!(
            "ecotone_version:{evil}\r\nfederation_name:{evil}\r\nfederation_role:{evil}\r\npolicy:{evil}\r\nrun_id:1\r\n"
        );
        text += &format!("federation_coordinator:{evil}\r\nenergy_source:{evil}\r\nuptime_in_seconds:{number}\r\n");
        text += &format!(
            "jobs_declined_{evil}:{number}\r\njobs_fallen_back_{evil}:{number}\r\nenergy_joules_{evil}:{number}\r\n"
        );
        for name in ["segments", "bytes", "referenced_bytes", "gc_bytes_total", "throttled_ms_total"] {
            text += &format!("value_log_{name}:{number}\r\n");
        }
        for index in 0..2000 {
            let all: Vec<String> = names.iter().map(|name| format!("{name}={number}")).collect();
            text += &format!("server{index}:{},name={evil}{index},writers={evil},takes_jobs={evil}\r\n", all.join(","));
        }
        text += &format!("{}\r\n:::\r\n\0\0\0\r\nserver7\r\n", "x".repeat(1 << 20));
        board.take(snapshot(&text, second as f64));
        for (width, height) in [(80, 24), (160, 50), (33, 9)] {
            let buffer = drawn(&board, width, height, 1e300);
            for cell in &buffer.content {
                let bad = |character: char| character.is_control() || ('\u{200b}'..='\u{202e}').contains(&character);
                assert!(!cell.symbol().contains(bad), "{:?} after {number:?}", cell.symbol());
            }
        }
        let object = super::json::object(&board, 1.0).to_string();
        assert!(!object.contains(|character: char| character.is_control()), "{object}");
    }
    assert!(Snapshot::of(&Info::parse("redis_version:7.2.4\r\n"), 0.0).is_none());
}

/// A server that answers every connection with `said` and closes it.
fn fake(said: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.set_read_timeout(Some(Duration::from_secs(10)));
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(said);
        }
    });
    address
}

fn refusal(said: &'static [u8]) -> (Away, String) {
    let away = Asker::new(fake(said), None, Instant::now()).ask().unwrap_err();
    let text = away.to_string();
    assert!(!text.contains(|character: char| character.is_control() && character != '\n'), "{text:?}");
    (away, text)
}

#[test]
fn what_is_no_ecotone_server_is_told_with_what_to_do() {
    let redis = b"$71\r\n# Server\r\nredis_version:7.2.4\r\nredis_mode:standalone\r\nuptime_in_se:12\r\n\r\n";
    let (away, text) = refusal(redis);
    assert!(matches!(away, Away::NotEcotone { .. }), "{text}");
    assert!(text.contains("redis_version: 7.2.4") && text.contains("redis_mode: standalone"), "{text}");
    assert!(text.contains("ecotone serve"), "{text}");

    let (away, text) = refusal(b"-NOPERM User default has no permissions\x1b[2J\r\n");
    assert!(matches!(away, Away::Refused { .. }) && text.contains("NOPERM"), "{text}");
    let (away, text) = refusal(b"-NOAUTH Authentication required.\r\n");
    assert!(matches!(away, Away::NeedsPassword { .. }) && text.contains("--password-file"), "{text}");
    let (away, text) = refusal(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    assert!(matches!(away, Away::NotRedis { .. }) && text.contains("HTTP/1.1 400"), "{text}");
    let (away, text) = refusal(b"\x15\x03\x03\x00\x02\x02\x32");
    assert!(matches!(away, Away::SpeaksTls { .. }) && text.contains("clients.listen"), "{text}");
    for broken in [&b"$99999999999\r\n"[..], b"$-5\r\n", b"$3\r\nabcdef", b"\0\0\x12\x04", b"*1\r\n"] {
        let (away, text) = refusal(broken);
        assert!(matches!(away, Away::NotRedis { .. }), "{broken:?}: {text}");
    }
    for cut in [&b""[..], b"$12\r\nabc", b"-NOAU"] {
        let (away, text) = refusal(cut);
        assert!(matches!(away, Away::Lost { .. }), "{cut:?}: {text}");
    }
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let text = Asker::new(nobody.clone(), None, Instant::now()).ask().unwrap_err().to_string();
    assert!(text.contains(&nobody) && text.contains("ecotone serve") && text.contains("HOST:PORT"), "{text}");
}

#[test]
fn addresses_are_completed() {
    for (given, meant) in [
        ("edge", "edge:6379"),
        ("edge:7", "edge:7"),
        ("7000", "127.0.0.1:7000"),
        ("::1", "[::1]:6379"),
        ("[::1]:7", "[::1]:7"),
        ("[::1]", "[::1]:6379"),
    ] {
        assert_eq!(with_port(given), meant, "{given}");
    }
}

#[test]
fn a_server_that_is_away_is_asked_ever_more_seldom_up_to_a_limit() {
    let waits: Vec<u64> = (1..8).map(|failures| retry_after(failures, Duration::from_secs(1)).as_secs()).collect();
    assert_eq!(waits, [1, 2, 4, 8, 10, 10, 10]);
    assert_eq!(retry_after(u32::MAX, Duration::from_secs(60)), Duration::from_secs(60));
    assert_eq!(retry_after(1, Duration::from_millis(100)), Duration::from_secs(1));
}
