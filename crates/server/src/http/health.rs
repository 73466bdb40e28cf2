//! Whether the server lives, and whether it is ready to serve.
//!
//! It *lives* unless a thread that others wait for gives no sign of life for [`SILENT_LIMIT`]: a
//! restart may help then. It is *ready* when clients are served and may write: who is not ready
//! should get no requests, and a restart does not help.
//!
//! Nothing is asked of the store itself: the sampler asks it once a second, and says beforehand
//! that it does.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ecotone_membership::Known;

use super::status::{Phase, ServerStatus};
use crate::monitor::Doing;
use crate::monitor::ServerSample;

/// A thread that was silent for so long hangs. Event loops and the sampler give a sign of life once
/// a second; on a machine that has much else to do, or that writes memory to a slow disk, it may
/// take some seconds.
pub const SILENT_LIMIT: Duration = Duration::from_secs(15);

/// Whether a server lives and is ready, for who runs it.
#[derive(Clone)]
pub struct Health {
    pub(crate) status: Arc<ServerStatus>,
}

impl Health {
    /// What hangs; nothing if the server is well. It waits for nobody.
    pub fn hanging(&self) -> Vec<String> {
        hanging(&self.status.phase(), Instant::now())
    }

    /// Why the server is not ready; nothing if it is. What hangs is among it.
    pub fn unready(&self) -> Vec<String> {
        unready(&self.status.phase(), Instant::now())
    }
}

/// What hangs at `now`, by name; nothing if the server is well.
pub(super) fn hanging(state: &Phase, now: Instant) -> Vec<String> {
    // While the store is opened or closed there is nothing that could be asked, and both may take
    // long.
    let Phase::Serving(parts) = state else { return Vec::new() };
    let mut hanging = Vec::new();
    let mut note = |what: &str, silent: Duration| {
        if silent > SILENT_LIMIT {
            let limit_s = SILENT_LIMIT.as_secs();
            hanging.push(format!("{what} has not answered for {} s, more than {limit_s} s", silent.as_secs()));
        }
    };
    let (since, doing) = parts.sampler.doing();
    let what = match doing {
        Doing::AskingTheStore => "the store",
        Doing::Sampling => "the sampler",
    };
    note(what, now.saturating_duration_since(since));
    for (number, event_loop) in parts.clients.iter().flat_map(|clients| clients.event_loops.iter().enumerate()) {
        note(&format!("event loop {number} of the clients"), event_loop.silent_for(now));
    }
    hanging
}

/// Why the server is not ready at `now`; nothing if it is.
pub(super) fn unready(state: &Phase, now: Instant) -> Vec<String> {
    let parts = match state {
        Phase::Opening => return vec!["the store is being opened".into()],
        Phase::Stopping => return vec!["the server stops".into()],
        Phase::Serving(parts) => parts,
    };
    let mut reasons = hanging(state, now);
    match parts.sampler.sample() {
        None => reasons.push("the store has not been sampled yet".into()),
        Some(sample) => {
            reasons.extend(refused_writes(&sample));
            reasons.extend(sample.known.as_ref().and_then(|known| left_behind(known)));
        }
    }
    reasons
}

fn refused_writes(sample: &ServerSample) -> Option<String> {
    if let Some(failure) = &sample.write_failure {
        return Some(format!("writes fail: {failure}"));
    }
    let space = sample.room.filter(|space| space.writes_refused)?;
    Some(format!(
        "writes are refused for want of space: {} bytes are left beside the reservations, and {} are kept free",
        space.spare_bytes(),
        space.reserve_bytes
    ))
}

/// Why a server must not be given requests though it could serve them: it hears of no change of
/// the federation any more, and others may serve its shards.
fn left_behind(known: &Known) -> Option<String> {
    if known.is_removed() {
        return Some("this server was removed from its federation".into());
    }
    let why = known.stopped.as_ref()?;
    Some(format!(
        "the control plane has stopped here, so changes of the federation are not heard of: {why}; start the server anew"
    ))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ecotone_control::ids::{FederationId, MemberId};
    use ecotone_control::map::Map;
    use ecotone_resp::serve::Heartbeat;

    use super::super::status::{ClientParts, ServingParts};
    use super::*;
    use crate::config::Config;
    use crate::monitor::SamplerState;

    fn serving(event_loops: Arc<[Heartbeat]>) -> (Phase, Arc<SamplerState>) {
        let environment = [("ECOTONE_SERVER_DIR".into(), "/nowhere".into())];
        let options = Config::load(None, environment).unwrap().serve_options().unwrap();
        let sampler = Arc::new(SamplerState::new(&options, None));
        let clients = Some(ClientParts { service: std::sync::Weak::new(), event_loops });
        let parts = ServingParts {
            sampler: sampler.clone(),
            clients,
            name: "a".into(),
            role: "coordinator",
            policy: "eco",
            worker_slots: 1,
            stall_threshold_tables: 20,
            lost_log_lines: None,
        };
        (Phase::Serving(parts), sampler)
    }

    #[test]
    fn what_is_silent_for_too_long_is_named_and_what_answers_again_is_well() {
        let event_loops: Arc<[Heartbeat]> = Arc::new([Heartbeat::default(), Heartbeat::default()]);
        let (state, sampler) = serving(event_loops.clone());
        let begin = Instant::now();
        let late = begin + SILENT_LIMIT + Duration::from_secs(2);
        assert_eq!(hanging(&state, begin), [""; 0]);
        sampler.does(late, Doing::Sampling);
        event_loops[0].beat(late);
        let found = hanging(&state, late);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].starts_with("event loop 1 of the clients") && found[0].ends_with("more than 15 s"),
            "{found:?}"
        );
        event_loops[1].beat(late);
        assert_eq!(hanging(&state, late), [""; 0]);
        // The sampler names what it waits for.
        let later = late + SILENT_LIMIT + Duration::from_secs(1);
        event_loops.iter().for_each(|event_loop| event_loop.beat(later));
        assert!(hanging(&state, later)[0].starts_with("the sampler has not answered for 16 s"));
        sampler.does(late, Doing::AskingTheStore);
        assert!(hanging(&state, later)[0].starts_with("the store has not answered"));
        assert_eq!(unready(&state, later)[0], hanging(&state, later)[0], "what hangs is not ready");
    }

    #[test]
    fn who_is_removed_or_hears_of_no_change_is_not_ready() {
        let map = Arc::new(Map::new(FederationId([0; 8])));
        let known = Known {
            map: map.clone(),
            member: MemberId(1),
            leader: None,
            term: 1,
            voters: BTreeSet::new(),
            gone: BTreeSet::new(),
            applied: 1,
            stopped: None,
            told_removed: false,
        };
        assert_eq!(left_behind(&known), None, "without a leader it serves on");
        let stopped = Known { stopped: Some("the disk is full".into()), ..known.clone() };
        assert!(left_behind(&stopped).is_some_and(|why| why.contains("the disk is full")));
        // Its number was given, and it is not there.
        let removed = Known { map: Arc::new(Map { next_member: 2, ..Map::clone(&map) }), ..known };
        assert!(left_behind(&removed).is_some_and(|why| why.contains("removed")));
    }

    #[test]
    fn who_opens_or_stops_lives_and_is_not_ready() {
        let now = Instant::now();
        for (state, reason) in [(Phase::Opening, "the store is being opened"), (Phase::Stopping, "the server stops")] {
            assert_eq!((hanging(&state, now).len(), unready(&state, now)), (0, vec![reason.to_owned()]));
        }
    }
}
