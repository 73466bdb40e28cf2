//! What servers use while nobody asks them for anything.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use super::report::{Idle, IdlePair, IdleServer};
use super::servers::{Federation, Scene, Server};
use crate::error::LabError;

/// What a start and a join leave to do is done after this.
const REST: Duration = Duration::from_secs(5);

/// What a process has used so far.
#[derive(Clone, Copy, Default)]
struct Used {
    cpu_ns: u64,
    wakes: u64,
}

/// Of all threads that live; those of an idle server stay. In nanoseconds, where `stat` counts
/// hundredths of a second.
fn used(server: &Server) -> Result<Used, LabError> {
    let tasks = format!("/proc/{}/task", server.id());
    let mut used = Used::default();
    for task in fs::read_dir(&tasks).map_err(LabError::io("cannot read", &tasks))? {
        let task = task.map_err(LabError::io("cannot read", &tasks))?.path();
        // A thread may have ended since the folder was read.
        let read = |name: &str| fs::read_to_string(task.join(name)).unwrap_or_default();
        used.cpu_ns += read("schedstat").split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0);
        let status = read("status");
        let switches = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        used.wakes += switches.and_then(|switches| switches.trim().parse::<u64>().ok()).unwrap_or(0);
    }
    if used.cpu_ns == 0 {
        // A kernel without it would show an idle server that uses nothing.
        return Err(LabError::Measurement {
            what: "processor time".into(),
            reason: format!("{tasks}/*/schedstat says nothing; the kernel needs CONFIG_SCHED_INFO"),
        });
    }
    Ok(used)
}

/// A TCP connection of a process, seen from one end.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Socket {
    pid: u32,
    local: String,
    peer: String,
    bytes_sent: u64,
}

/// All connections of processes that this user may see; none without `ss`.
fn sockets() -> Option<Vec<Socket>> {
    let output = Command::new("ss").args(["-H", "-t", "-i", "-n", "-p", "state", "established"]).output().ok()?;
    output.status.success().then(|| read_sockets(&String::from_utf8_lossy(&output.stdout)))
}

/// Reads what `ss` prints: for each connection a line with its ends and processes, and one that
/// begins with a space with its counters.
fn read_sockets(text: &str) -> Vec<Socket> {
    let mut sockets = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(head) = lines.next() {
        let details = lines.next_if(|line| line.starts_with([' ', '\t'])).unwrap_or_default();
        // Two queues, both ends, and who has it.
        let words: Vec<&str> = head.split_whitespace().collect();
        let [_, _, local, peer, ..] = words[..] else { continue };
        let after = |text: &str, mark: &str| {
            let rest = &text[text.find(mark)? + mark.len()..];
            rest.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u64>().ok()
        };
        let Some(pid) = after(head, "pid=").and_then(|pid| u32::try_from(pid).ok()) else { continue };
        // One on which nothing was sent has no such counter.
        let bytes_sent = after(details, "bytes_sent:").unwrap_or(0);
        sockets.push(Socket { pid, local: local.to_owned(), peer: peer.to_owned(), bytes_sent });
    }
    sockets
}

/// Bytes that servers sent each other, by connection end: (from, to, its addresses).
fn between(servers: &[Server], sockets: &[Socket]) -> BTreeMap<(usize, usize, String), u64> {
    let of = |pid: u32| servers.iter().position(|server| server.id() == pid);
    let owners: BTreeMap<&str, usize> =
        sockets.iter().filter_map(|socket| Some((socket.local.as_str(), of(socket.pid)?))).collect();
    let ends = sockets.iter().filter_map(|socket| {
        let (from, to) = (of(socket.pid)?, *owners.get(socket.peer.as_str())?);
        (from != to).then(|| ((from, to, format!("{} {}", socket.local, socket.peer)), socket.bytes_sent))
    });
    ends.collect()
}

/// Watches a federation, and beside it a server without one.
pub(super) fn measure(scene: &mut Scene<'_>, federation: &mut Federation) -> Result<Idle, LabError> {
    let alone = scene.start(&scene.folder.join("alone"), "alone", &[])?;
    federation.settled(scene)?;
    scene.rest(REST)?;
    let leader = federation.settled(scene)?;
    (scene.say)(&format!("watching idle servers for {:.0} s", scene.options.idle.as_secs_f64()));
    let watched: Vec<&Server> = federation.servers.iter().chain([&alone]).collect();
    let sent_before = sockets().map(|sockets| between(&federation.servers, &sockets));
    let began = Instant::now();
    let before = watched.iter().map(|server| used(server)).collect::<Result<Vec<_>, _>>()?;
    scene.rest(scene.options.idle)?;
    let after = watched.iter().map(|server| used(server)).collect::<Result<Vec<_>, _>>()?;
    let seconds = began.elapsed().as_secs_f64();
    let sent_after = sockets().map(|sockets| between(&federation.servers, &sockets));

    let mut servers: Vec<IdleServer> = watched
        .iter()
        .enumerate()
        .map(|(index, server)| IdleServer {
            name: server.name.clone(),
            leads: index == leader,
            core_share: after[index].cpu_ns.saturating_sub(before[index].cpu_ns) as f64 / 1e9 / seconds,
            wakes_per_s: after[index].wakes.saturating_sub(before[index].wakes) as f64 / seconds,
        })
        .collect();
    let alone_core_share = servers.pop().map_or(0.0, |alone| alone.core_share);
    let name = |index: usize| federation.servers[index].name.clone();
    let pairs = sent_before.zip(sent_after).map(|(before, after)| {
        let mut bytes: BTreeMap<[usize; 2], u64> = BTreeMap::new();
        for (end, sent) in &after {
            let pair = [end.0.min(end.1), end.0.max(end.1)];
            *bytes.entry(pair).or_default() += sent.saturating_sub(before.get(end).copied().unwrap_or(0));
        }
        let seen: BTreeSet<[usize; 2]> = bytes.keys().copied().collect();
        let pair = |pair: [usize; 2]| IdlePair { servers: pair.map(name), bytes_per_s: bytes[&pair] as f64 / seconds };
        seen.into_iter().map(pair).collect()
    });
    Ok(Idle { seconds, servers, alone_core_share, pairs })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_read_from_what_ss_prints() {
        // As iproute2 6.1 prints it.
        let text = "0      0      127.0.0.1:36065 127.0.0.1:44527 users:((\"ecotone\",pid=8824,fd=33))\n\
                    \t cubic wscale:7,7 rto:204 rtt:0.06/0.03 mss:32768 cwnd:10 bytes_sent:4711 bytes_acked:4711 bytes_received:17 segs_out:3\n\
                    0      0      127.0.0.1:44527 127.0.0.1:36065 users:((\"ecotone\",pid=8825,fd=12))\n\
                    \t cubic rto:204 bytes_received:4711\n\
                    0      0      127.0.0.1:80 127.0.0.1:81\n\
                    \t cubic bytes_sent:5\n";
        let socket = |pid, local: &str, peer: &str, bytes_sent| Socket {
            pid,
            local: local.into(),
            peer: peer.into(),
            bytes_sent,
        };
        assert_eq!(
            read_sockets(text),
            [
                socket(8824, "127.0.0.1:36065", "127.0.0.1:44527", 4711),
                socket(8825, "127.0.0.1:44527", "127.0.0.1:36065", 0)
            ]
        );
    }
}
