//! Whether the server lives, and whether it is ready to serve.
//!
//! It *lives* unless a thread that others wait for gives no sign of life for [`SILENT_LIMIT`]: a restart may help then. It is *ready*
//! when clients are served and may write: who is not ready should get no requests, and a restart does not help.
//!
//! Nothing is asked of the store itself: the sampler asks it once a second, and says beforehand that it does.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::face::{Face, State};
use crate::monitor::Doing;
use crate::seen::Seen;

/// A thread that was silent for so long hangs. Lanes and the sampler give a sign of life once a second; on a machine that has much else
/// to do, or that writes memory to a slow disk, it may take some seconds.
pub const SILENT_LIMIT: Duration = Duration::from_secs(15);

/// Whether a server lives and is ready, for who runs it.
#[derive(Clone)]
pub struct Health {
    pub(crate) face: Arc<Face>,
}

impl Health {
    /// What hangs; nothing if the server is well. It waits for nobody.
    pub fn hanging(&self) -> Vec<String> {
        self.face.hanging(Instant::now())
    }

    /// Why the server is not ready; nothing if it is. What hangs is among it.
    pub fn unready(&self) -> Vec<String> {
        self.face.unready(Instant::now())
    }
}

pub(super) fn hanging(state: &State, now: Instant) -> Vec<String> {
    // While the store is opened or closed there is nothing that could be asked, and both may take long.
    let State::Serving(parts) = state else { return Vec::new() };
    let mut hanging = Vec::new();
    let mut note = |what: &str, silent: Duration| {
        if silent > SILENT_LIMIT {
            let limit_s = SILENT_LIMIT.as_secs();
            hanging.push(format!("{what} has not answered for {} s, more than {limit_s} s", silent.as_secs()));
        }
    };
    let (since, doing) = parts.watch.doing();
    let what = match doing {
        Doing::AskingTheStore => "the store",
        Doing::Sampling => "the sampler",
    };
    note(what, now.saturating_duration_since(since));
    for (number, lane) in parts.clients.iter().flat_map(|clients| clients.lanes.iter().enumerate()) {
        note(&format!("lane {number} of the clients"), lane.silent_for(now));
    }
    hanging
}

pub(super) fn unready(state: &State, now: Instant) -> Vec<String> {
    let parts = match state {
        State::Opening => return vec!["the store is being opened".into()],
        State::Stopping => return vec!["the server stops".into()],
        State::Serving(parts) => parts,
    };
    let mut reasons = hanging(state, now);
    match parts.watch.seen() {
        None => reasons.push("the store has not been looked at yet".into()),
        Some(seen) => reasons.extend(refused_writes(&seen)),
    }
    reasons
}

fn refused_writes(seen: &Seen) -> Option<String> {
    if let Some(failure) = &seen.write_failure {
        return Some(format!("writes fail: {failure}"));
    }
    let room = seen.room.filter(|room| room.writes_refused)?;
    Some(format!(
        "writes are refused for want of space: {} bytes are left beside what is pledged, and {} are kept free",
        room.spare_bytes(),
        room.reserve_bytes
    ))
}

#[cfg(test)]
mod tests {
    use ecotone_resp::serve::Pulse;

    use super::super::face::{ClientParts, Parts};
    use super::*;
    use crate::config::Config;
    use crate::monitor::Watch;

    fn serving(lanes: Arc<[Pulse]>) -> (State, Arc<Watch>) {
        let environment = [("ECOTONE_SERVER_DIR".into(), "/nowhere".into())];
        let options = Config::load(None, environment).unwrap().serve_options().unwrap();
        let watch = Arc::new(Watch::new(&options, None));
        let clients = Some(ClientParts { service: std::sync::Weak::new(), lanes });
        let parts = Parts {
            watch: watch.clone(),
            clients,
            name: "a".into(),
            role: "coordinator",
            policy: "eco",
            worker_slots: 1,
            stall_threshold_tables: 20,
            lost_log_lines: None,
        };
        (State::Serving(parts), watch)
    }

    #[test]
    fn what_is_silent_for_too_long_is_named_and_what_answers_again_is_well() {
        let lanes: Arc<[Pulse]> = Arc::new([Pulse::default(), Pulse::default()]);
        let (state, watch) = serving(lanes.clone());
        let begin = Instant::now();
        let late = begin + SILENT_LIMIT + Duration::from_secs(2);
        assert_eq!(hanging(&state, begin), [""; 0]);
        watch.does(late, Doing::Sampling);
        lanes[0].beat(late);
        let found = hanging(&state, late);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("lane 1 of the clients") && found[0].ends_with("more than 15 s"), "{found:?}");
        lanes[1].beat(late);
        assert_eq!(hanging(&state, late), [""; 0]);
        // The sampler tells whom it waits for.
        let later = late + SILENT_LIMIT + Duration::from_secs(1);
        lanes.iter().for_each(|lane| lane.beat(later));
        assert!(hanging(&state, later)[0].starts_with("the sampler has not answered for 16 s"));
        watch.does(late, Doing::AskingTheStore);
        assert!(hanging(&state, later)[0].starts_with("the store has not answered"));
        assert_eq!(unready(&state, later)[0], hanging(&state, later)[0], "what hangs is not ready");
    }

    #[test]
    fn who_opens_or_stops_lives_and_is_not_ready() {
        let now = Instant::now();
        for (state, reason) in [(State::Opening, "the store is being opened"), (State::Stopping, "the server stops")] {
            assert_eq!((hanging(&state, now).len(), unready(&state, now)), (0, vec![reason.to_owned()]));
        }
    }
}
