//! Clients and their commands. Counters begin anew at `CONFIG RESETSTAT`, as at a new start.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use ecotone_resp::backups::Backups;
use ecotone_resp::client_events::ClientEvent;
use ecotone_resp::histogram::BUCKETS;
use ecotone_resp::service::Service;
use ecotone_resp::usage::CommandCounts;

use super::page::Page;

/// Error words that are shown one by one. The server has fewer; more would be a mistake, and are
/// shown as `other`.
const MAX_WORDS: usize = 64;

fn number(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

pub(super) fn write(page: &mut Page, service: Option<&Service>) {
    let statistics = service.map(|service| &service.statistics);
    page.gauge("ecotone_clients_connected", "Clients that are connected.", service.map(|of| of.clients.len()));
    page.gauge("ecotone_clients_max", "Clients that may be connected.", service.map(|of| of.limits.read().clients));
    page.gauge(
        "ecotone_clients_memory_bytes",
        "Memory that all clients together take: for requests, replies, transactions and what their commands collect.",
        service.map(|of| of.client_memory.load(Ordering::Relaxed)),
    );
    page.gauge(
        "ecotone_clients_memory_max_bytes",
        "The most that it may be (clients.max_memory_bytes).",
        service.map(|of| of.limits.read().memory_bytes),
    );
    let ends = service.map(|of| &of.certificate_ends);
    let ends = ends.map(|ends| [("certificate", ends.certificate_s()), ("client_ca", ends.client_ca_s())]);
    page.gauges(
        "ecotone_tls_certificate_expiry_seconds",
        "When a certificate of TLS expires, in seconds since 1970, by what it is: the server's own or one between it and its \
         authority, whichever expires first, or of the authorities of clients the first. None without clients.tls_listen.",
        ["file"],
        ends.into_iter().flatten().filter_map(|(file, end_s)| Some(([file], end_s?))),
    );
    page.gauge(
        "ecotone_ranks_collections",
        "Large sorted sets whose ranks are counted in memory.",
        service.map(|of| of.keyspace.ranks().collections()),
    );
    page.gauge("ecotone_ranks_bytes", "Memory that this takes.", service.map(|of| of.keyspace.ranks().bytes()));
    page.gauge(
        "ecotone_clients_event_loops",
        "Threads that serve clients at the moment.",
        statistics.map(|of| of.event_loops.load(Ordering::Relaxed)),
    );
    page.gauge(
        "ecotone_clients_waiting",
        "Clients whose request waits for the device or runs on a thread that may block.",
        statistics.map(|of| of.waiting.load(Ordering::Relaxed)),
    );
    for (name, help, value) in [
        ("ecotone_clients_connections_total", "Connections taken.", statistics.map(|of| number(&of.connections))),
        (
            "ecotone_clients_rejected_total",
            "Connections refused because there were too many.",
            service.map(|of| of.client_events.number(ClientEvent::MaxClients)),
        ),
        (
            "ecotone_clients_received_bytes_total",
            "Bytes received from clients.",
            statistics.map(|of| number(&of.bytes_in)),
        ),
        ("ecotone_clients_sent_bytes_total", "Bytes sent to clients.", statistics.map(|of| number(&of.bytes_out))),
        (
            "ecotone_clients_reads_awaited_total",
            "Times a request waited until the kernel had read what was not in memory, before it was tried again.",
            statistics.map(|of| number(&of.reads_awaited)),
        ),
        (
            "ecotone_clients_blocking_requests_total",
            "Requests that were handed to a thread that may block.",
            statistics.map(|of| number(&of.blocking_requests)),
        ),
        (
            "ecotone_keyspace_hits_total",
            "Keys that commands asked for and found.",
            statistics.map(|of| number(&of.hits)),
        ),
        (
            "ecotone_keyspace_misses_total",
            "Keys that commands asked for and did not find.",
            statistics.map(|of| number(&of.misses)),
        ),
    ] {
        page.counter(name, help, value);
    }
    // Those for whom there was no place are counted above.
    let reasons = ClientEvent::ALL.into_iter().filter(|of| *of != ClientEvent::MaxClients);
    page.counters(
        "ecotone_clients_disconnected_total",
        "Clients that were disconnected because of a limit, or because they spoke another protocol, by reason.",
        ["reason"],
        service.into_iter().flat_map(|service| {
            reasons.clone().filter_map(|of| Some(([of.reason()?], service.client_events.number(of))))
        }),
    );
    page.histograms(
        "ecotone_clients_response_seconds",
        "From the receipt of requests until their replies may be sent: what a client waits for in the server. Requests that came together \
         count once.",
        [],
        statistics.map(|of| {
            let sum_s = number(&of.responses.sum_ns) as f64 / 1e9;
            ([""; 0], of.responses.histogram.counts(), sum_s)
        }),
    );
    backups(page, service.map(|of| &*of.backups));
    let words = statistics.map(|of| of.errors_by_word.lock().clone()).unwrap_or_default();
    page.counters(
        "ecotone_clients_errors_total",
        "Replies that were errors, by their first word.",
        ["word"],
        bounded(words),
    );
    commands(page, service);
}

fn backups(page: &mut Page, backups: Option<&Backups>) {
    let counts = backups.map(|of| &of.counts);
    page.gauge(
        "ecotone_backup_running",
        "Backups that are being made: each holds a snapshot of the store.",
        backups.map(Backups::held),
    );
    page.gauge(
        "ecotone_backup_last_completed_timestamp_seconds",
        "When the last backup of an only store was completed, in seconds since 1970; none before the first since the start.",
        counts.map(|of| number(&of.last_completed_s)).filter(|at_s| *at_s > 0),
    );
    page.counter(
        "ecotone_backup_completed_total",
        "Backups completed; of a federation each shard that was copied.",
        counts.map(|of| number(&of.completed)),
    );
    page.counter(
        "ecotone_backup_aborted_total",
        "Backups that ended before they were complete; the next one continues from there.",
        counts.map(|of| number(&of.given_up)),
    );
    page.counter(
        "ecotone_backup_read_bytes_total",
        "Bytes of the store's files that were read for backups.",
        counts.map(|of| number(&of.read_bytes)),
    );
}

/// At most [`MAX_WORDS`], and the rest together.
fn bounded(words: BTreeMap<String, u64>) -> Vec<([String; 1], u64)> {
    let others: u64 = words.values().skip(MAX_WORDS).sum();
    let mut shown: Vec<_> = words.into_iter().take(MAX_WORDS).map(|(word, count)| ([word], count)).collect();
    if others > 0 {
        shown.push((["other".into()], others));
    }
    shown
}

fn commands(page: &mut Page, service: Option<&Service>) {
    let used = || service.into_iter().flat_map(|service| service.statistics.usage.used());
    let of = |count: fn(&CommandCounts) -> &AtomicU64| used().map(move |counts| ([counts.name], number(count(counts))));
    page.counters("ecotone_commands_total", "Commands carried out.", ["command"], of(|counts| &counts.calls));
    page.counters(
        "ecotone_commands_failed_total",
        "Commands that replied an error.",
        ["command"],
        of(|counts| &counts.failed),
    );
    page.counters(
        "ecotone_commands_refused_total",
        "Commands refused before they were carried out: by the number of their arguments, for lack of a password.",
        ["command"],
        of(|counts| &counts.refused),
    );
    page.counters(
        "ecotone_commands_seconds_total",
        "Time to carry out commands, without the commit of what they wrote.",
        ["command"],
        of(|counts| &counts.took_ns).map(|(command, took_ns)| (command, took_ns as f64 / 1e9)),
    );
    let mut families: BTreeMap<&str, ([u64; BUCKETS], u64)> = BTreeMap::new();
    for counts in service.into_iter().flat_map(|service| service.statistics.usage.all()) {
        let (buckets, sum_ns) = families.entry(counts.group).or_insert(([0; BUCKETS], 0));
        buckets.iter_mut().zip(counts.times.counts()).for_each(|(all, count)| *all += count);
        *sum_ns += number(&counts.took_ns);
    }
    page.histograms(
        "ecotone_command_duration_seconds",
        "Time to carry out commands by family, without the commit of what they wrote.",
        ["family"],
        families.into_iter().map(|(family, (buckets, sum_ns))| ([family], buckets, sum_ns as f64 / 1e9)),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_words_are_shown_than_there_may_be() {
        let words: BTreeMap<String, u64> = (0..MAX_WORDS + 3).map(|word| (format!("W{word:03}"), 2)).collect();
        let shown = bounded(words);
        assert_eq!(shown.len(), MAX_WORDS + 1);
        assert_eq!(shown.last(), Some(&(["other".to_owned()], 6)));
        assert_eq!(bounded(BTreeMap::from([("ERR".to_owned(), 1)])), [(["ERR".to_owned()], 1)]);
    }
}
