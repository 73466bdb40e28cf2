//! How long a federation takes to decide: a change while all is well, and the next one after its
//! leader has failed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::report::{Commits, Failovers, Times};
use super::servers::{Federation, Scene, change};
use crate::error::LabError;
use crate::process::Signal;

/// A change that was not decided is asked for again so much later.
const RETRY_DELAY: Duration = Duration::from_millis(5);
/// A federation that has settled is left alone for so long before its leader fails: longer than an
/// election takes, so that each failure meets one that is at rest.
const REST: Duration = Duration::from_millis(1000);

/// What happens to a leader.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Failure {
    /// SIGKILL.
    Killed,
    /// SIGSTOP: its connections stay.
    Paused,
    /// It is heard, and hears nobody.
    CutOneWay,
}

impl Failure {
    const fn name(self) -> &'static str {
        match self {
            Failure::Killed => "killed",
            Failure::Paused => "paused",
            Failure::CutOneWay => "cut_one_way",
        }
    }
}

/// Changes asked for at the leader and at another server in turn, one at a time.
pub(super) fn commits(scene: &mut Scene<'_>, federation: &mut Federation) -> Result<Commits, LabError> {
    (scene.say)("changes of the federation");
    let leader = federation.settled(scene)?;
    let another = (leader + 1) % federation.servers.len();
    let connect =
        |index: usize| -> Result<_, LabError> { Ok((index, Vec::new(), federation.servers[index].connect()?)) };
    let mut clients = [connect(leader)?, connect(another)?];
    for number in 0..u64::from(scene.options.commits) {
        for (index, times, client) in &mut clients {
            scene.goes_on()?;
            let server = &federation.servers[*index];
            let began = Instant::now();
            // Values differ: a setting that is as it was would be no change.
            let decided = change(client, 2 * number + u64::from(*index == another));
            times.push(began.elapsed().as_secs_f64() * 1e3);
            if !decided.map_err(|error| server.failure(&format!("does not answer: {error}")))? {
                return Err(server.failure("could not have a change decided"));
            }
        }
    }
    let [(_, at_leader, _), (_, at_another, _)] = clients;
    Ok(Commits {
        all: Times::of([at_leader.clone(), at_another.clone()].concat()),
        at_leader: Times::of(at_leader),
        at_another: Times::of(at_another),
    })
}

/// One leader after the other fails, and comes back. For cuts there are other servers, which reach
/// each other through the lab.
pub(super) fn failovers(scene: &mut Scene<'_>, federation: &mut Federation) -> Result<Failovers, LabError> {
    let (kills, pauses) = (scene.options.kills, scene.options.pauses);
    let killed = of_kind(scene, federation, Failure::Killed, kills)?;
    let paused = of_kind(scene, federation, Failure::Paused, pauses)?;
    let mut forwarded = scene.federation("forwarded", scene.options.servers, true)?;
    let cut = of_kind(scene, &mut forwarded, Failure::CutOneWay, pauses)?;
    let kinds = [(Failure::Killed, killed.clone()), (Failure::Paused, paused), (Failure::CutOneWay, cut)];
    let kinds: BTreeMap<_, _> = kinds.into_iter().map(|(kind, times)| (kind.name().to_owned(), times)).collect();
    Ok(Failovers { killed, kinds })
}

fn of_kind(scene: &mut Scene<'_>, federation: &mut Federation, kind: Failure, rounds: u32) -> Result<Times, LabError> {
    let mut times = Vec::new();
    for round in 0..u64::from(rounds) {
        (scene.say)(&format!("leader {}: {} of {rounds}", kind.name(), round + 1));
        times.push(failover(scene, federation, kind, round)?.as_secs_f64() * 1e3);
    }
    Ok(Times::of(times))
}

/// From the leader's failure until a change is decided that is asked for at another server at once.
fn failover(scene: &Scene<'_>, federation: &mut Federation, kind: Failure, round: u64) -> Result<Duration, LabError> {
    federation.settled(scene)?;
    scene.rest(REST)?;
    let leader = federation.settled(scene)?;
    let others = federation.servers.len() - 1;
    // Each of the others in turn.
    let asked = (leader + 1 + (round as usize) % others) % (others + 1);
    let mut client = federation.servers[asked].connect()?;
    let began = Instant::now();
    match kind {
        Failure::Killed => federation.servers[leader].signal(Signal::Kill),
        Failure::Paused => federation.servers[leader].signal(Signal::Stop),
        Failure::CutOneWay => federation.forwarders[leader].hold(true),
    }
    let decided = loop {
        scene.goes_on()?;
        let server = &federation.servers[asked];
        // As the time: one that differs from all before.
        let number = began.elapsed().as_nanos() as u64 ^ (round << 40);
        match change(&mut client, number) {
            Ok(true) => break began.elapsed(),
            Err(error) => return Err(server.failure(&format!("does not answer: {error}"))),
            Ok(false) if began.elapsed() >= scene.options.patience => {
                return Err(server.failure("has no leader again in time"));
            }
            Ok(false) => std::thread::sleep(RETRY_DELAY),
        }
    };
    match kind {
        Failure::Killed => {
            let gone = federation.servers.remove(leader).kill();
            federation.servers.insert(leader, scene.start_again(gone)?);
        }
        Failure::Paused => federation.servers[leader].signal(Signal::Continue),
        Failure::CutOneWay => federation.forwarders[leader].hold(false),
    }
    Ok(decided)
}
