//! Workers that lie, break and hang: every job ends as a local compaction with its reason counted,
//! the store stays writable and holds what was written, and nothing of what came is left.

use crate::common;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::files::Range;
use common::spoiler::{Act, Answer, Behaviour, Mute, Spoiler};
use common::watched_offload::GivenBack;
use common::wire::job_event::Event;
use common::wire::{Heartbeat, OutputReady};
use common::{BUSY_HOST_ALLOWANCE, Owner, Storeless, limits, one_silence, wait_for};
use ecotone_cluster::{JobOutcome, Options};
use ecotone_types::units::Seconds;

/// Runs a store whose only worker behaves like this until `jobs` of its jobs have failed, and holds
/// it to all that is promised. Each failure must be counted as `kind`. Gives the time from when the
/// worker went silent, or got its first offer if it never did, to when the first of the jobs it had
/// then or later was given back to run here.
fn refused_with(kind: &str, jobs: u64, behaviour: Behaviour, change: impl FnOnce(&mut Options)) -> Duration {
    let mut owner = Owner::start(|options, _| change(options));
    let honest = Storeless::start("honest", |_| ());
    let spoiler = Spoiler::start(owner.federation.address(), Some(honest.federation.address().to_owned()), behaviour);
    let federation = owner.federation.clone();
    // A test that has one job away at a time is no failure of a worker.
    let kinds = move || {
        let mut kinds = federation.statistics().fallbacks;
        kinds.remove("too-many-outstanding");
        kinds
    };
    let failed = |owner: &Owner| jobs_failed_by(&spoiler, owner);
    owner.write_until("failed jobs", |owner| failed(owner).len() as u64 >= jobs);
    let away = failed(&owner)[0].at - spoiler.silent_since().unwrap();
    println!("{kind}: away for {away:?}");
    // The compactions were done here.
    owner.flush();
    owner.compact();
    owner.check();
    wait_for("a local compaction", || (owner.ended.count(JobOutcome::Fallback) > 0).then_some(()));
    let statistics = owner.federation.statistics();
    assert_eq!(kinds().into_keys().collect::<Vec<_>>(), [kind], "{statistics:?}");
    assert_eq!((statistics.offloaded, owner.ended.count(JobOutcome::Offloaded)), (0, 0), "a lie was installed");
    drop(spoiler);
    owner.finish();
    wait_for("the honest worker to forget its jobs", || (honest.worker_folders() == 0).then_some(()));
    away
}

/// The jobs that came back after the worker went silent, or got its first offer if it never did. Of
/// a worker that takes offers only those that it was offered: others come back for reasons of their
/// own.
fn jobs_failed_by(spoiler: &Spoiler, owner: &Owner) -> Vec<GivenBack> {
    let Some(silent) = spoiler.silent_since() else { return Vec::new() };
    let offered: HashSet<u64> = spoiler.offers().iter().map(|offer| offer.job).collect();
    let mut failed = owner.fallbacks_since(silent);
    failed.retain(|job| offered.is_empty() || offered.contains(&job.job));
    failed
}

fn refused(jobs: u64, behaviour: Behaviour) {
    refused_with("bad-result", jobs, behaviour, |_| ());
}

#[test]
fn a_flipped_bit_is_refused_wherever_it_is() {
    let step = AtomicUsize::new(0);
    refused(
        24,
        Behaviour::on_read(move |_, data| {
            let step = step.fetch_add(1, Ordering::Relaxed);
            let mut data = data;
            let place = (step * 7919) % data.len().max(1);
            if let Some(byte) = data.get_mut(place) {
                *byte ^= 1 << (step % 8);
            }
            Answer::Data(data)
        }),
    );
}

#[test]
fn a_range_that_is_too_short_is_refused() {
    refused(2, Behaviour::on_read(|_, data| Answer::Data(data[..data.len() - 1].to_vec())));
}

#[test]
fn a_range_that_is_too_long_is_refused() {
    refused_with(
        "unreachable",
        2,
        Behaviour::on_read(|_, data| Answer::Data([&data[..], b"and more"].concat())),
        |_| (),
    );
    let endless = |_: &Range, data| Answer::Raw { status: 0, length: u32::MAX, data };
    refused_with("unreachable", 2, Behaviour::on_read(endless), |_| ());
}

#[test]
fn a_cut_table_is_refused() {
    let table = |table: OutputReady| vec![OutputReady { bytes: table.bytes - 1, ..table }];
    refused(2, Behaviour::on_table(table));
}

#[test]
fn a_table_that_is_larger_than_announced_is_refused() {
    refused(2, Behaviour::on_table(|table| vec![OutputReady { bytes: table.bytes / 2, ..table }]));
}

#[test]
fn a_table_that_is_smaller_than_announced_is_refused() {
    refused(2, Behaviour::on_table(|table| vec![OutputReady { bytes: table.bytes + 100, ..table }]));
}

#[test]
fn an_endless_table_is_refused() {
    // Whatever range is asked for, it comes: only the owner's own bound ends this.
    refused_with(
        "bad-result",
        1,
        Behaviour {
            on_read: Box::new(|request, _| Answer::Data(vec![7; request.length as usize])),
            ..Behaviour::on_table(|table| vec![OutputReady { bytes: u64::MAX, ..table }])
        },
        |_| (),
    );
}

#[test]
fn tables_without_end_are_refused() {
    // Empty ones are too many some day, sound ones too much.
    let sound = table_of_another_store();
    for table in [Vec::new(), sound] {
        let bytes = table.len() as u64;
        let announce =
            move |number| Act::Send(Event::OutputReady(OutputReady { file: format!("{number:06}.sst"), bytes }));
        let served = Arc::new(AtomicUsize::new(0));
        let count = served.clone();
        let on_read = move |range: &Range, _| {
            let part = range_of(&table, range);
            count.fetch_add(part.len(), Ordering::Relaxed);
            Answer::Data(part)
        };
        refused_with(
            "bad-result",
            1,
            Behaviour {
                on_read: Box::new(on_read),
                ..Behaviour::on_offer(move |_| (0..200_000).map(announce).chain([Act::Hang]).collect())
            },
            |_| (),
        );
        // Any job may write this much, so no other check has ended it.
        assert!(bytes == 0 || served.load(Ordering::Relaxed) >= 16 << 20, "{served:?}");
    }
}

fn range_of(table: &[u8], range: &Range) -> Vec<u8> {
    let begin = (range.offset as usize).min(table.len());
    let end = (begin + range.length as usize).min(table.len());
    table[begin..end].to_vec()
}

/// A sound one, which no job here asked for.
fn table_of_another_store() -> Vec<u8> {
    let mut stranger = Owner::start(|_, _| ());
    stranger.write(5_000);
    stranger.flush();
    stranger.compact();
    let mut files = std::fs::read_dir(&stranger.path).unwrap().map(|entry| entry.unwrap().path());
    let table = files.find(|path| path.extension().is_some_and(|end| end == "sst")).unwrap();
    std::fs::read(table).unwrap()
}

#[test]
fn a_table_of_another_store_is_refused() {
    let foreign = table_of_another_store();
    let bytes = foreign.len() as u64;
    refused(
        2,
        Behaviour {
            on_read: Box::new(move |request, _| Answer::Data(range_of(&foreign, request))),
            ..Behaviour::on_table(move |table| vec![OutputReady { bytes, ..table }])
        },
    );
}

#[test]
fn tables_under_each_others_names_are_refused() {
    // Each name leads to the next one's table; announced when all are known.
    let behind: Arc<Mutex<HashMap<String, String>>> = Arc::default();
    let ready: Mutex<Vec<OutputReady>> = Mutex::default();
    let names = behind.clone();
    let swapped = Arc::new(AtomicUsize::new(0));
    let count = swapped.clone();
    let on_event = move |event| match event {
        Event::OutputReady(table) => {
            ready.lock().unwrap().push(table);
            Vec::new()
        }
        Event::Finished(finished) => {
            let tables = std::mem::take(&mut *ready.lock().unwrap());
            let mut acts = Vec::new();
            for (index, table) in tables.iter().enumerate() {
                let other = &tables[(index + 1) % tables.len()];
                names.lock().unwrap().insert(table.file.clone(), other.file.clone());
                acts.push(Act::Send(Event::OutputReady(OutputReady { bytes: other.bytes, ..table.clone() })));
            }
            if let [_] = tables[..] {
                // One table has no other to be mistaken for: let it be missing.
                acts.clear();
            }
            count.fetch_add(usize::from(tables.len() > 1), Ordering::Relaxed);
            acts.push(Act::Send(Event::Finished(finished)));
            acts
        }
        other => vec![Act::Send(other)],
    };
    let file_behind = move |name: &str| behind.lock().unwrap().get(name).cloned().unwrap_or_else(|| name.to_owned());
    // One job at a time: the names are of one job.
    refused_with(
        "bad-result",
        3,
        Behaviour { file_behind: Box::new(file_behind), ..Behaviour::on_event(on_event) },
        |options| options.policy.max_offloads_outstanding = 1,
    );
    assert!(swapped.load(Ordering::Relaxed) > 0, "no job had two tables");
}

#[test]
fn a_missing_table_is_refused() {
    refused(2, Behaviour::on_table(|_| Vec::new()));
}

#[test]
fn a_doubled_table_is_refused() {
    refused(2, Behaviour::on_table(|table| vec![table.clone(), table]));
}

#[test]
fn a_table_that_the_result_does_not_name_is_refused() {
    // A sound table, which came once already under its own name.
    let twin = |table: &OutputReady| OutputReady { file: format!("9{}", table.file), ..table.clone() };
    let original =
        |name: &str| name.strip_prefix('9').filter(|rest| rest.len() == "000001.sst".len()).map(str::to_owned);
    refused(
        2,
        Behaviour {
            file_behind: Box::new(move |name| original(name).unwrap_or_else(|| name.to_owned())),
            ..Behaviour::on_table(move |table| vec![table.clone(), twin(&table)])
        },
    );
}

/// RocksDB installs some numbers of a result without a check, so none may change on the way.
#[test]
fn a_result_with_one_other_digit_is_refused() {
    let step = AtomicUsize::new(0);
    refused(
        8,
        Behaviour::on_event(move |event| match event {
            Event::Finished(mut finished) => {
                let digits: Vec<usize> =
                    (0..finished.result.len()).filter(|at| finished.result[*at].is_ascii_digit()).collect();
                let at = digits[step.fetch_add(1, Ordering::Relaxed) * 7919 % digits.len()];
                finished.result[at] = b'0' + (finished.result[at] - b'0' + 1) % 10;
                vec![Act::Send(Event::Finished(finished))]
            }
            other => vec![Act::Send(other)],
        }),
    );
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    let outside = tempfile::tempdir().unwrap();
    let absolute = outside.path().join("x.sst").to_string_lossy().into_owned();
    let names = [
        "../../x.sst",
        "../000001.sst",
        "/etc/x.sst",
        &absolute,
        "a.sst",
        "",
        ".sst",
        "..",
        "000001",
        "000001.sst/",
        "000001.sst\0",
        "1/2.sst",
        "-1.sst",
        "\u{661}.sst",
        "MANIFEST-000001",
        "CURRENT",
    ]
    .map(str::to_owned);
    let step = AtomicUsize::new(0);
    let count = names.len() as u64;
    refused(
        count,
        Behaviour::on_table(move |table| {
            let name = names[step.fetch_add(1, Ordering::Relaxed) % names.len()].clone();
            vec![OutputReady { file: name, ..table }]
        }),
    );
    assert_eq!(common::entries(outside.path()), 0);
}

#[test]
fn a_damaged_result_is_refused() {
    let step = AtomicUsize::new(0);
    refused(
        12,
        Behaviour::on_result(move |result| match step.fetch_add(1, Ordering::Relaxed) % 6 {
            0 => result.clear(),
            1 => result.truncate(result.len() / 2),
            2 => *result = b"no result at all".to_vec(),
            3 => *result = vec![0xFF; 1 << 20],
            4 => result.reverse(),
            _ => result.rotate_left(1),
        }),
    );
}

#[test]
fn a_result_that_names_other_files_is_refused() {
    let step = AtomicUsize::new(0);
    refused(
        10,
        Behaviour::on_result(move |result| {
            // RocksDB writes strings in hex.
            let names = ["999999.sst", "../../x.sst", "/etc/passwd", "a.sst", ""];
            let name = names[step.fetch_add(1, Ordering::Relaxed) % names.len()];
            let hex: String = name.bytes().map(|byte| format!("{byte:02X}")).collect();
            let field = b"file_name=";
            let begin = result.windows(field.len()).position(|window| window == field).unwrap() + field.len();
            let end = begin + result[begin..].iter().position(|byte| *byte == b';').unwrap();
            result.splice(begin..end, hex.into_bytes());
        }),
    );
}

#[test]
fn a_result_without_any_work_is_refused() {
    refused(2, Behaviour::finish_with(b""));
    refused(2, Behaviour::finish_with(b"\x01\x00\x00\x00status={};"));
}

#[test]
fn a_worker_may_decline_or_fail() {
    refused_with("declined", 2, Behaviour::decline("no-free-core"), |_| ());
    refused_with("declined", 2, Behaviour::decline("a reason of a later release"), |_| ());
    refused_with("worker-failed", 2, Behaviour::fail(), |_| ());
    refused_with("worker-failed", 2, Behaviour::on_offer(|_| vec![Act::Close]), |_| ());
}

#[test]
fn a_worker_of_another_version_is_refused() {
    for version in [0, ecotone_cluster::PROTOCOL_VERSION + 1] {
        let mut owner = Owner::start(|_, _| ());
        let spoiler = Spoiler::start(owner.federation.address(), None, Behaviour { version, ..Behaviour::default() });
        owner.write_until("a refused version", |owner| owner.fallbacks("version") >= 2);
        assert!(spoiler.offers().is_empty(), "it was sent a job");
        owner.finish();
    }
}

#[test]
fn silence_is_death() {
    let away = refused_with("silent", 1, Behaviour::on_offer(|_| vec![Act::Hang]), |_| ());
    assert!(away >= limits().heartbeat_timeout / 2 && away <= one_silence(), "{away:?}");
}

#[test]
fn a_worker_that_takes_a_connection_or_an_offer_and_never_answers_is_given_up_in_time() {
    for mute in [Mute::Connected, Mute::Offered] {
        let away = refused_with("silent", 2, Behaviour::mute(mute), |_| ());
        assert!(away <= one_silence(), "{mute:?}: {away:?}");
    }
}

#[test]
fn a_worker_that_goes_silent_with_a_release_is_given_up_in_time() {
    // What it was doing meanwhile is lost in its stream or in a read; what is offered later in the
    // call.
    let mut owner = Owner::start(|_, _| ());
    let honest = Storeless::start("honest", |_| ());
    let address = honest.federation.address().to_owned();
    let spoiler = Spoiler::start(owner.federation.address(), Some(address), Behaviour::mute(Mute::Released));
    owner.write_until("a job that is given back", |owner| !jobs_failed_by(&spoiler, owner).is_empty());
    assert!(owner.offloaded() > 0, "the first jobs were done there");
    let away = jobs_failed_by(&spoiler, &owner)[0].since(spoiler.silent_since().unwrap());
    println!("silent: away for {away:?}");
    assert!(away <= one_silence(), "{away:?}");
    drop(spoiler);
    owner.finish();
}

#[test]
fn a_worker_that_never_answers_a_release_keeps_neither_jobs_nor_calls() {
    let mut owner = Owner::start(|_, _| ());
    let honest = Storeless::start("honest", |_| ());
    let address = honest.federation.address().to_owned();
    let spoiler = Spoiler::start(owner.federation.address(), Some(address), Behaviour::mute(Mute::OnlyReleases));
    owner.write_until("jobs after an unanswered release", |owner| {
        spoiler.unanswered_releases() > 0 && owner.offloaded() >= 8
    });
    assert!(jobs_failed_by(&spoiler, &owner).is_empty(), "no job waits for a release");
    // No compaction, no further release: those under way end by themselves.
    owner.flush();
    owner.compact();
    let quiet = Instant::now();
    wait_for("the owner to give up its calls", || (spoiler.unanswered_releases() == 0).then_some(()));
    assert!(quiet.elapsed() <= one_silence(), "{:?}", quiet.elapsed());
    owner.finish();
}

#[test]
fn a_beating_heart_is_no_excuse_past_the_deadline() {
    let beat = Event::Heartbeat(Heartbeat { input_bytes_read: 0 });
    // As fast as it can, too: a message that is always there must not keep the owner from looking
    // at the clock.
    for pause in [Duration::from_millis(50), Duration::ZERO] {
        let beat = beat.clone();
        let away = refused_with(
            "deadline",
            1,
            Behaviour::on_offer(move |_| vec![Act::Repeat(beat.clone(), pause)]),
            |options| options.policy.min_deadline = Seconds(1.0),
        );
        assert!(away >= Duration::from_millis(500) && away <= Duration::from_secs(1) + BUSY_HOST_ALLOWANCE, "{away:?}");
    }
}

#[test]
fn a_worker_that_hangs_while_it_is_read_is_given_up() {
    let away = refused_with("unreachable", 1, Behaviour::on_read(|_, _| Answer::Hang), |_| ());
    assert!(away <= one_silence(), "{away:?}");
}

#[test]
fn a_worker_that_drips_is_given_up() {
    // Each byte comes soon after the one before: only a bound on the whole range ends this.
    let drip = |_: &Range, data| Answer::Drip(data, Duration::from_millis(20));
    let away = refused_with("unreachable", 1, Behaviour::on_read(drip), |_| ());
    assert!(away <= one_silence(), "{away:?}");
}

#[test]
fn a_worker_that_refuses_its_own_tables_is_given_up() {
    refused_with("unreachable", 2, Behaviour::on_read(|_, _| Answer::Refuse), |_| ());
    refused_with("unreachable", 2, Behaviour::on_read(|_, _| Answer::Close), |_| ());
}
