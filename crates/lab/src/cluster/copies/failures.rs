//! How long a client of the cluster cannot write: while a primary is replaced that was killed, and
//! while a shard is handed over.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::super::report::Times;
use super::client::ClusterClient;
use super::{Measurement, SERVERS};
use crate::error::LabError;
use crate::process::Signal;

/// Before a failure: what the last one left to do is done.
const REST: Duration = Duration::from_millis(500);
/// Of how many kills one is of a primary that leads.
const BOTH_PART: u32 = 4;

/// From kills of the primary to the next acknowledged write. With `both` it leads the federation,
/// else another server does.
pub(super) fn failovers(measurement: &mut Measurement<'_>, both: bool) -> Result<Times, LabError> {
    let kills = if both { measurement.options.kills.div_ceil(BOTH_PART) } else { measurement.options.kills };
    let mut times = Vec::new();
    for kill in 1..=kills {
        let whom = if both { "leader and primary" } else { "the primary" };
        (measurement.scene.say)(&format!("killing {whom}: {kill} of {kills}"));
        times.push(failover(measurement, both)?.as_secs_f64() * 1e3);
    }
    Ok(Times::of(times))
}

fn failover(measurement: &mut Measurement<'_>, both: bool) -> Result<Duration, LabError> {
    let primary = placed(measurement, both)?;
    let servers = &measurement.federation.servers;
    let mut client = ClusterClient::of(servers, measurement.places.password());
    until_written(measurement, &mut client)?;
    let began = Instant::now();
    measurement.federation.servers[primary].signal(Signal::Kill);
    until_written(measurement, &mut client)?;
    let time = began.elapsed();
    let gone = measurement.federation.servers.remove(primary).kill();
    let back = measurement.scene.start_again(gone)?;
    measurement.federation.servers.insert(primary, back);
    Ok(time)
}

/// All copies are in sync, and the primary leads or does not, as wished; which server it is.
fn placed(measurement: &Measurement<'_>, leads: bool) -> Result<usize, LabError> {
    let until = Instant::now() + measurement.scene.options.patience;
    loop {
        measurement.in_sync(SERVERS, None)?;
        measurement.scene.rest(REST)?;
        let (leader, shard) = measurement.in_sync(SERVERS, None)?;
        let servers = &measurement.federation.servers;
        let primary = servers.iter().position(|server| server.name == shard.primary).unwrap_or(leader);
        if (primary == leader) == leads {
            return Ok(primary);
        }
        if Instant::now() >= until {
            return Err(servers[leader].failure("and the primary cannot be brought together, or apart"));
        }
        let to = if leads { leader } else { (leader + 1) % servers.len() };
        let to = servers[to].name.clone();
        measurement.hand_over(leader, &shard, &to)?;
        measurement.in_sync(SERVERS, Some(&to))?;
    }
}

fn until_written(measurement: &Measurement<'_>, client: &mut ClusterClient) -> Result<(), LabError> {
    let until = Instant::now() + measurement.scene.options.patience;
    while !client.write() {
        measurement.scene.goes_on()?;
        if Instant::now() >= until {
            return Err(measurement.failure("no server takes writes again in time".into()));
        }
    }
    Ok(())
}

/// The longest times between two acknowledged writes of a client while the shard is handed over.
pub(super) fn switch_overs(measurement: &mut Measurement<'_>) -> Result<Times, LabError> {
    let switches = measurement.options.switches;
    let mut times = Vec::new();
    for switch in 1..=switches {
        (measurement.scene.say)(&format!("handing over: {switch} of {switches}"));
        let (leader, shard) = measurement.in_sync(SERVERS, None)?;
        let next = shard.copies.iter().map(|copy| &copy.0).find(|name| **name != shard.primary);
        let next = next.cloned().ok_or_else(|| measurement.failure("the shard has one copy".into()))?;
        let mut client = ClusterClient::of(&measurement.federation.servers, measurement.places.password());
        until_written(measurement, &mut client)?;
        let ends = AtomicBool::new(false);
        let (acknowledged, handed_over) = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut acknowledged = vec![Instant::now()];
                while !ends.load(Ordering::Relaxed) {
                    if client.write() {
                        acknowledged.push(Instant::now());
                    }
                }
                // One that still waits is a pause, too.
                acknowledged.push(Instant::now());
                acknowledged
            });
            let handed_over = measurement
                .scene
                .rest(REST)
                .and_then(|()| measurement.hand_over(leader, &shard, &next))
                .and_then(|()| measurement.in_sync(SERVERS, Some(&next)))
                .and_then(|_| measurement.scene.rest(REST));
            ends.store(true, Ordering::Relaxed);
            (writer.join().unwrap_or_default(), handed_over)
        });
        handed_over?;
        let pauses = acknowledged.windows(2).map(|two| (two[1] - two[0]).as_secs_f64() * 1e3);
        times.push(pauses.fold(0.0, f64::max));
    }
    Ok(Times::of(times))
}
