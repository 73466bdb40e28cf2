//! The machine of compression: a golden table of scenes, and what holds whatever happens.

use ecotone_policy::compression::{
    Codec, Command, CompressionMachine, CompressionMode, Event, Measured, MeasuredCodecs, Origin, PARAMETERS,
};
use ecotone_types::units::{Bytes, Seconds};
use proptest::prelude::*;

const TABLE: &str = include_str!("../golden/compression.txt");

/// Samples that a training is measured with.
const RAW: Bytes = Bytes::from_mib(1);

fn stored(raw: Bytes, ratio: f64) -> Bytes {
    Bytes((raw.as_f64() * ratio).round() as u64)
}

fn measured(raw: Bytes, ratio: f64, ns_per_byte: f64) -> Measured {
    Measured { stored: stored(raw, ratio), took: Seconds(raw.as_f64() * ns_per_byte / 1e9) }
}

fn codecs(words: &[&str]) -> MeasuredCodecs {
    let [lz4, lz4_ns, zstd, zstd_ns]: [f64; 4] =
        words.iter().map(|word| word.parse().unwrap()).collect::<Vec<_>>().try_into().unwrap();
    MeasuredCodecs { lz4: measured(RAW, lz4, lz4_ns), zstd: measured(RAW, zstd, zstd_ns) }
}

fn codec(word: &str) -> Codec {
    match word {
        "none" => Codec::None,
        "lz4" => Codec::Lz4,
        "zstd" => Codec::Zstd,
        other => panic!("the table does not know `{other}`"),
    }
}

fn mode(word: &str) -> CompressionMode {
    match word {
        "auto" => CompressionMode::Auto,
        "none" => CompressionMode::None,
        "lz4" => CompressionMode::Lz4,
        "zstd" => CompressionMode::Zstd,
        other => panic!("the table does not know `{other}`"),
    }
}

fn shown(commands: &[Command]) -> String {
    let one = |command: &Command| match command {
        Command::Collect => "collect".to_owned(),
        Command::Train => "train".to_owned(),
        Command::Install => "install".to_owned(),
        Command::Use(origin, codec) => format!("{origin:?} {codec:?}").to_lowercase(),
    };
    match commands {
        [] => "-".to_owned(),
        some => some.iter().map(one).collect::<Vec<_>>().join(", "),
    }
}

fn play(machine: &mut Option<CompressionMachine>, words: &[&str]) -> Vec<Command> {
    if let ["mode", word, resumed @ ..] = words {
        let resumed = match resumed {
            [] => Codec::None,
            ["resumed", word] => codec(word),
            other => panic!("the table does not know `{other:?}`"),
        };
        let (new, commands) = CompressionMachine::new(mode(word), PARAMETERS, resumed);
        *machine = Some(new);
        return commands;
    }
    let machine = machine.as_mut().expect("a scene begins with a mode");
    match words {
        ["holds", mib] => machine.handle(Event::Holds(Bytes::from_mib(mib.parse().unwrap()))),
        ["samples"] => machine.handle(Event::SamplesReady),
        ["trained", "before", rest @ ..] => {
            let after = (rest.len() > 4).then(|| {
                assert_eq!(rest[4], "after");
                codecs(&rest[5..])
            });
            machine.handle(Event::Trained { raw: RAW, before: codecs(&rest[..4]), after })
        }
        ["stored", mib, origin, codec_name, rest @ ..] => {
            let origin = if *origin == "written" { Origin::Written } else { Origin::Relocated };
            let ratio = match rest {
                [] => 1.0,
                [ratio] => ratio.parse().unwrap(),
                other => panic!("the table does not know `{other:?}`"),
            };
            let event = Event::Stored {
                origin,
                codec: codec(codec_name),
                raw: Bytes::from_mib(1),
                stored: stored(Bytes::from_mib(1), ratio),
            };
            (0..mib.parse::<u32>().unwrap()).flat_map(|_| machine.handle(event)).collect()
        }
        other => panic!("the table does not know `{other:?}`"),
    }
}

#[test]
fn every_scene_is_played_as_written() {
    let (mut title, mut machine, mut followed) = ("", None, None::<String>);
    let (mut wrong, mut scenes) = (Vec::new(), 0);
    for (line, text) in (1..).zip(TABLE.lines()) {
        if text.trim().is_empty() || text.starts_with('#') {
            continue;
        }
        if let Some(expected) = text.strip_prefix("=> ") {
            let got = followed.take().unwrap_or_else(|| panic!("line {line}: nothing has happened"));
            if got != expected {
                wrong.push(format!("line {line}, {title}\n  expected {expected}\n  got      {got}"));
            }
            continue;
        }
        assert_eq!(followed, None, "line {line}: what follows is not said");
        if let Some(next) = text.strip_prefix("== ") {
            (title, machine, scenes) = (next, None, scenes + 1);
            continue;
        }
        followed = Some(shown(&play(&mut machine, &text.split_whitespace().collect::<Vec<_>>())));
    }
    assert!(scenes > 12, "the table was read: {scenes} scenes");
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

fn any_measured() -> impl Strategy<Value = MeasuredCodecs> {
    let one = || (0.0_f64..1.3, 0.0_f64..200.0).prop_map(|(ratio, ns)| measured(RAW, ratio, ns));
    (one(), one()).prop_map(|(lz4, zstd)| MeasuredCodecs { lz4, zstd })
}

fn any_event() -> impl Strategy<Value = Event> {
    let codec = prop::sample::select(&[Codec::None, Codec::Lz4, Codec::Zstd][..]);
    let origin = prop::sample::select(&Origin::ALL[..]);
    prop_oneof![
        (origin, codec, 0_u64..1 << 28, 0.0_f64..1.3).prop_map(|(origin, codec, raw, ratio)| {
            Event::Stored { origin, codec, raw: Bytes(raw), stored: stored(Bytes(raw), ratio) }
        }),
        Just(Event::SamplesReady),
        (0_u64..1 << 32).prop_map(|bytes| Event::Holds(Bytes(bytes))),
        (any_measured(), prop::option::of(any_measured())).prop_map(|(before, after)| Event::Trained {
            raw: RAW,
            before,
            after
        }),
    ]
}

proptest! {
    #[test]
    fn whatever_happens_commands_come_in_their_order_and_within_the_setting(
        mode in prop::sample::select(
            &[CompressionMode::Auto, CompressionMode::None, CompressionMode::Lz4, CompressionMode::Zstd][..]
        ),
        events in prop::collection::vec(any_event(), 0..300),
    ) {
        let (mut machine, first) = CompressionMachine::new(mode, PARAMETERS, Codec::None);
        let mut asked = first.last().copied();
        prop_assert_eq!(asked.is_none(), mode == CompressionMode::None);
        let (mut written, mut trainings) = (0, 0);
        for event in events {
            let before = Origin::ALL.map(|origin| machine.used(origin));
            let commands = machine.handle(event);
            if let Event::Stored { raw, .. } = event {
                written += raw.0;
            }
            for command in &commands {
                match command {
                    Command::Collect => {
                        prop_assert_eq!(asked, None, "one training at a time");
                        asked = Some(Command::Collect);
                    }
                    Command::Train => {
                        prop_assert_eq!((event, asked), (Event::SamplesReady, Some(Command::Collect)));
                        asked = Some(Command::Train);
                        trainings += 1;
                    }
                    Command::Install => {
                        prop_assert_eq!(asked, Some(Command::Train));
                        let is_of_use = Origin::ALL.iter().any(|origin| machine.used(*origin) != Codec::None);
                        let has_one = matches!(event, Event::Trained { after: Some(_), .. });
                        prop_assert!(is_of_use && has_one);
                    }
                    Command::Use(origin, codec) => {
                        // After a training, or where values did not bear out what one promised.
                        let is_stored = matches!(event, Event::Stored { .. });
                        prop_assert_eq!(asked, if is_stored { None } else { Some(Command::Train) });
                        prop_assert_eq!(machine.used(*origin), *codec);
                        prop_assert_ne!(before[*origin as usize], *codec);
                    }
                }
            }
            let is_answer = matches!(event, Event::Trained { .. }) && asked == Some(Command::Train);
            if is_answer {
                asked = None;
            }
            for origin in Origin::ALL {
                let used = machine.used(origin);
                let allowed = match mode {
                    CompressionMode::Auto => true,
                    CompressionMode::None => used == Codec::None,
                    CompressionMode::Lz4 => used != Codec::Zstd,
                    CompressionMode::Zstd => used != Codec::Lz4,
                };
                prop_assert!(allowed);
                if let (true, Event::Trained { raw, before, after }) = (is_answer, event) {
                    let is_worth_it = |measured: MeasuredCodecs| {
                        let stored = match used {
                            Codec::None => Bytes(0),
                            Codec::Lz4 => measured.lz4.stored,
                            Codec::Zstd => measured.zstd.stored,
                        };
                        stored.as_f64() <= raw.as_f64() * PARAMETERS.max_ratio
                    };
                    prop_assert!(is_worth_it(before) || after.is_some_and(is_worth_it));
                }
            }
        }
        prop_assert!(trainings <= 1 + written / PARAMETERS.rest.0, "{trainings} trainings for {written} bytes");
    }

    #[test]
    fn values_that_do_not_compress_are_tried_for_a_share_of_their_bytes_that_vanishes_and_never_for_the_last_time(
        gib in 10_u64..100,
    ) {
        let (mut machine, _) = CompressionMachine::new(CompressionMode::Auto, PARAMETERS, Codec::None);
        let useless = || MeasuredCodecs { lz4: measured(RAW, 1.0, 1.0), zstd: measured(RAW, 1.0, 4.0) };
        machine.handle(Event::SamplesReady);
        machine.handle(Event::Trained { raw: RAW, before: useless(), after: None });
        let (mut tries, mut since) = (0, 0);
        for _ in 0..gib * 1024 {
            let raw = Bytes::from_mib(1);
            let event =
                Event::Stored { origin: Origin::Written, codec: Codec::None, raw, stored: raw };
            since += raw.0;
            if machine.handle(event) == [Command::Collect] {
                tries += 1;
                since = 0;
                machine.handle(Event::SamplesReady);
                let trained = Event::Trained { raw: RAW, before: useless(), after: Some(useless()) };
                prop_assert_eq!(machine.handle(trained), []);
            }
            prop_assert!(since <= PARAMETERS.max_rest.0);
        }
        prop_assert!(tries <= 6 + gib / 4, "{tries} tries in {gib} GiB");
    }
    #[test]
    fn what_values_never_bear_out_is_tried_for_a_share_of_their_bytes_that_vanishes(
        gib in 10_u64..100,
        mode in prop::sample::select(&[CompressionMode::Auto, CompressionMode::Lz4, CompressionMode::Zstd][..]),
    ) {
        let (mut machine, _) = CompressionMachine::new(mode, PARAMETERS, Codec::None);
        let praised = || MeasuredCodecs { lz4: measured(RAW, 0.3, 2.0), zstd: measured(RAW, 0.17, 9.0) };
        let raw = Bytes::from_mib(1);
        let mut in_vain = 0;
        let mut commands = vec![Command::Collect];
        for _ in 0..gib * 1024 {
            if commands == [Command::Collect] {
                machine.handle(Event::SamplesReady);
                machine.handle(Event::Trained { raw: RAW, before: praised(), after: Some(praised()) });
            }
            let codec = machine.used(Origin::Written);
            in_vain += u64::from(codec != Codec::None);
            commands = machine.handle(Event::Stored { origin: Origin::Written, codec, raw, stored: raw });
        }
        // 16 MiB by each codec of each try, and no more.
        prop_assert!(in_vain <= 32 * (6 + gib / 4), "{in_vain} MiB of {gib} GiB");
        prop_assert!(in_vain > 0);
    }
}
