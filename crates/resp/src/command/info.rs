//! INFO: Redis' sections, as far as they make sense for this store, and those of the host.

use std::fmt::Display;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use super::cluster::{addressed, replicas_of, written_bytes};
use super::entry::plain;
use super::{Call, Command, flag, word};
use crate::buffers::Buffers;
use crate::client_events::ClientEvent;
use crate::cluster_view::Health;
use crate::host::{Allocator, AllocatorCounts, InfoSection};
use crate::process;
use crate::service::COMPATIBLE_VERSION;
use ecotone_keyspace::error::Outcome;
use ecotone_keyspace::{KeyCountEstimate, MAINTENANCE_HZ};

/// The family.
pub const COMMANDS: &[Command] = &[Command {
    usage: "[section...]",
    ..plain(
        "info",
        -1,
        flag::LOADING | flag::STALE | flag::WAITS,
        "server",
        "1.0.0",
        "Returns information and statistics about the server.",
        info,
    )
}];

/// The percentiles of `Latencystats`, as Redis has them by default.
const PERCENTILES: [f64; 3] = [50.0, 99.0, 99.9];

/// Redis' clock of when keys were last used, in seconds, begins anew after so many.
const LRU_CLOCK_ENDS: u64 = 1 << 24;

/// Lines of one section.
type Lines = Vec<(String, String)>;

/// A section: its name, whether it is shown by default, and its lines.
type Section = (&'static str, bool, fn(&mut Call<'_>, &mut Lines) -> Outcome);

/// In Redis' order.
const SECTIONS: [Section; 13] = [
    ("Server", true, server),
    ("Clients", true, clients),
    ("Memory", true, memory),
    ("Persistence", true, persistence),
    ("Stats", true, stats),
    ("Replication", true, replication),
    ("CPU", true, cpu),
    ("Modules", true, modules),
    ("Commandstats", false, commandstats),
    ("Errorstats", true, errorstats),
    ("Latencystats", false, latencystats),
    ("Cluster", true, cluster),
    ("Keyspace", true, keyspace),
];

fn info(call: &mut Call<'_>) -> Outcome {
    let mut asked: Vec<String> =
        call.arguments[1..].iter().map(|name| String::from_utf8_lossy(&word::lower(name)).into_owned()).collect();
    if asked.is_empty() {
        asked.push("default".into());
    }
    let mut others = of_the_host(call, &asked);
    let mut text = String::new();
    for (name, by_default, lines_of) in SECTIONS {
        let is_asked = asked.iter().any(|asked| match asked.as_str() {
            "all" | "everything" => true,
            "default" => by_default,
            asked => asked.eq_ignore_ascii_case(name),
        });
        if is_asked {
            let mut lines = Lines::new();
            lines_of(call, &mut lines)?;
            if let Some(index) = others.iter().position(|other| other.name.eq_ignore_ascii_case(name)) {
                lines.extend(others.remove(index).lines);
            }
            write(&mut text, name, &lines);
        }
    }
    for other in others {
        write(&mut text, other.name, &other.lines);
    }
    call.reply.verbatim(*b"txt", &text);
    Ok(())
}

/// Each once, whatever is asked for.
fn of_the_host(call: &Call<'_>, asked: &[String]) -> Vec<InfoSection> {
    let mut sections: Vec<InfoSection> = Vec::new();
    for section in asked.iter().flat_map(|name| call.service.host.info(name)) {
        if !sections.iter().any(|known| known.name == section.name) {
            sections.push(section);
        }
    }
    sections
}

fn write(text: &mut String, name: &str, lines: &Lines) {
    if !text.is_empty() {
        text.push_str("\r\n");
    }
    text.push_str(&format!("# {name}\r\n"));
    for (key, value) in lines {
        // It stays one line, whatever is in it.
        text.push_str(&format!("{key}:{}\r\n", value.replace(['\r', '\n'], " ")));
    }
}

fn add(lines: &mut Lines, key: &str, value: impl Display) {
    lines.push((key.to_owned(), value.to_string()));
}

/// For what does not exist here, or is not counted since nothing depends on it.
fn add_none(lines: &mut Lines, keys: &[&str]) {
    for key in keys {
        add(lines, key, 0);
    }
}

/// Bytes, and the same for people.
fn add_bytes(lines: &mut Lines, key: &str, bytes: u64) {
    add(lines, key, bytes);
    add(lines, &format!("{key}_human"), human(bytes));
}

fn human(bytes: u64) -> String {
    const UNITS: [char; 5] = ['K', 'M', 'G', 'T', 'P'];
    if bytes < 1024 {
        return format!("{bytes}B");
    }
    let (mut value, mut unit) = (bytes as f64 / 1024.0, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.2}{}", UNITS[unit])
}

/// The value of a setting as `CONFIG GET` returns it: the two must not contradict one another.
fn setting(call: &Call<'_>, name: &str) -> Option<String> {
    call.service.host.settings(&|known| known == name).remove(name)
}

fn server(call: &mut Call<'_>, lines: &mut Lines) -> Outcome {
    let up_s = call.service.since.elapsed().as_secs();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    add(lines, "redis_version", COMPATIBLE_VERSION);
    // As of a Redis that was built outside of its repository.
    add(lines, "redis_git_sha1", "00000000");
    add(lines, "redis_git_dirty", 0);
    add(lines, "redis_build_id", "0");
    let is_cluster = call.client.seen(&call.service.cluster).is_cluster();
    add(lines, "redis_mode", if is_cluster { "cluster" } else { "standalone" });
    add(lines, "ecotone_version", env!("CARGO_PKG_VERSION"));
    add(lines, "os", process::system());
    add(lines, "arch_bits", usize::BITS);
    add(lines, "monotonic_clock", "POSIX clock_gettime");
    add(lines, "multiplexing_api", "epoll");
    add(lines, "process_id", std::process::id());
    let is_supervised = std::env::var_os("NOTIFY_SOCKET").is_some();
    add(lines, "process_supervised", if is_supervised { "systemd" } else { "no" });
    add(lines, "run_id", &call.service.run_id);
    if let Some(port) = setting(call, "port") {
        add(lines, "tcp_port", port);
    }
    add(lines, "server_time_usec", now.as_micros());
    add(lines, "uptime_in_seconds", up_s);
    add(lines, "uptime_in_days", up_s / (24 * 60 * 60));
    // How often a second the maintenance of keys runs.
    add(lines, "hz", MAINTENANCE_HZ);
    add(lines, "configured_hz", MAINTENANCE_HZ);
    add(lines, "lru_clock", now.as_secs() % LRU_CLOCK_ENDS);
    if let Ok(executable) = std::env::current_exe() {
        add(lines, "executable", executable.display());
    }
    let has_more_event_loops = call.service.statistics.event_loops.load(Ordering::Relaxed) > 1;
    add(lines, "io_threads_active", u8::from(has_more_event_loops));
    for (number, listener) in call.service.listeners.lock().iter().enumerate() {
        add(lines, &format!("listener{number}"), listener);
    }
    // Of a server that speaks TLS: seconds since 1970, as the metric of this name.
    let ends = &call.service.certificate_ends;
    for (name, end_s) in [("certificate", ends.certificate_s()), ("client_ca", ends.client_ca_s())] {
        if let Some(end_s) = end_s {
            add(lines, &format!("tls_{name}_expiry_seconds"), end_s);
        }
    }
    Ok(())
}

fn clients(call: &mut Call<'_>, lines: &mut Lines) -> Outcome {
    let all = call.service.clients.all();
    let most = |of: fn(&Buffers, u64) -> usize| all.iter().map(|client| of(&client.buffers, client.age_ms())).max();
    let (query, output) = (most(Buffers::query_peak).unwrap_or(0), most(Buffers::output_peak).unwrap_or(0));
    add(lines, "connected_clients", all.len());
    add(lines, "cluster_connections", 0);
    add(lines, "maxclients", call.service.limits.read().clients);
    add(lines, "client_recent_max_input_buffer", query);
    add(lines, "client_recent_max_output_buffer", output);
    add(lines, "blocked_clients", 0);
    add(lines, "event_loops_in_use", call.service.statistics.event_loops.load(Ordering::Relaxed));
    add(lines, "waiting_clients", call.service.statistics.waiting.load(Ordering::Relaxed));
    add(lines, "tracking_clients", 0);
    add_none(lines, &["clients_in_timeout_table", "total_blocking_keys", "total_blocking_keys_on_nokey"]);
    Ok(())
}

/// What Redis counts in its allocator is here what the process has in memory: logs and tables that
/// are mapped are its memory as well. So `used_memory_dataset` is what is kept in memory of the
/// data.
fn memory(call: &mut Call<'_>, lines: &mut Lines) -> Outcome {
    let memory = process::memory();
    let service = call.service;
    let startup_bytes = service.memory_at_start_bytes.min(memory.resident_bytes);
    let client_bytes = service.clients_bytes();
    let overhead_bytes = startup_bytes.saturating_add(client_bytes).min(memory.resident_bytes);
    let dataset_bytes = memory.resident_bytes - overhead_bytes;
    let beyond_startup_bytes = (memory.resident_bytes - startup_bytes).max(1);
    add_bytes(lines, "used_memory", memory.resident_bytes);
    add_bytes(lines, "used_memory_rss", memory.resident_bytes);
    add_bytes(lines, "used_memory_peak", memory.peak_bytes);
    let share = memory.resident_bytes as f64 / memory.peak_bytes.max(1) as f64;
    add(lines, "used_memory_peak_perc", format!("{:.2}%", share * 100.0));
    add(lines, "used_memory_overhead", overhead_bytes);
    add(lines, "used_memory_startup", startup_bytes);
    add(lines, "used_memory_dataset", dataset_bytes);
    let share = dataset_bytes as f64 / beyond_startup_bytes as f64;
    add(lines, "used_memory_dataset_perc", format!("{:.2}%", share * 100.0));
    add_bytes(lines, "total_system_memory", memory.system_bytes);
    // There are neither scripts nor functions.
    for none in ["used_memory_lua", "used_memory_vm_total", "used_memory_scripts"] {
        add_bytes(lines, none, 0);
    }
    add_none(lines, &["used_memory_vm_eval", "used_memory_scripts_eval", "number_of_cached_scripts"]);
    add_none(
        lines,
        &["number_of_functions", "number_of_libraries", "used_memory_vm_functions", "used_memory_functions"],
    );
    // There is no limit after which keys are evicted.
    add_bytes(lines, "maxmemory", 0);
    add(lines, "maxmemory_policy", "noeviction");
    add(lines, "mem_fragmentation_ratio", "1.00");
    add_none(lines, &["mem_fragmentation_bytes", "mem_not_counted_for_evict", "mem_replication_backlog"]);
    add_none(lines, &["mem_total_replication_buffers", "mem_clients_slaves", "mem_cluster_links", "mem_aof_buffer"]);
    add(lines, "mem_clients_normal", client_bytes);
    allocator(service.host.allocator(), memory.resident_bytes, lines);
    add(lines, "active_defrag_running", 0);
    // Collections without a key whose elements are not reclaimed yet.
    add(lines, "lazyfree_pending_objects", service.keyspace.reclaimable_collections());
    add(lines, "lazyfreed_objects", service.keyspace.reclaimed_collections());
    Ok(())
}

/// For an allocator without figures, as Redis does for the C library's: what is in memory is what
/// was allocated.
fn allocator(allocator: Option<&dyn Allocator>, process_bytes: u64, lines: &mut Lines) {
    let all_used = AllocatorCounts { allocated: process_bytes, active: process_bytes, resident: process_bytes };
    let counts = allocator.and_then(Allocator::counts).unwrap_or(all_used);
    add(lines, "allocator_allocated", counts.allocated);
    add(lines, "allocator_active", counts.active);
    add(lines, "allocator_resident", counts.resident);
    for (name, more, less) in [
        ("allocator_frag", counts.active, counts.allocated),
        ("allocator_rss", counts.resident, counts.active),
        ("rss_overhead", process_bytes, counts.resident),
    ] {
        add(lines, &format!("{name}_ratio"), format!("{:.2}", more as f64 / less.max(1) as f64));
        add(lines, &format!("{name}_bytes"), more as i64 - less as i64);
    }
    // As Redis names that of the C library.
    add(lines, "mem_allocator", allocator.map_or_else(|| "libc".to_owned(), Allocator::name));
}

fn persistence(call: &mut Call<'_>, lines: &mut Lines) -> Outcome {
    let saved = call.service.saves.last();
    let writes = call.service.keyspace.stores().all(|store| store.write_failure().is_none());
    let seconds = |took: Option<std::time::Duration>| took.map_or(-1, |took| took.as_secs() as i64);
    let running = saved.background_since.map(|since| since.elapsed());
    add(lines, "loading", 0);
    add(lines, "async_loading", 0);
    // No process is forked for a save, and none counts what it has saved.
    add_none(lines, &["current_cow_peak", "current_cow_size", "current_cow_size_age", "current_save_keys_processed"]);
    add_none(lines, &["current_save_keys_total", "rdb_last_cow_size", "aof_last_cow_size"]);
    add(lines, "current_fork_perc", "0.00");
    add_none(lines, &["rdb_last_load_keys_expired", "rdb_last_load_keys_loaded"]);
    add_none(lines, &["module_fork_in_progress", "module_fork_last_cow_size"]);
    let changes = call.service.keyspace.keys_written().saturating_sub(saved.keys_written);
    add(lines, "rdb_changes_since_last_save", changes);
    add(lines, "rdb_bgsave_in_progress", u8::from(running.is_some()));
    add(lines, "rdb_last_save_time", saved.at_s);
    add(lines, "rdb_last_bgsave_status", if saved.background_succeeded { "ok" } else { "err" });
    add(lines, "rdb_last_bgsave_time_sec", seconds(saved.background_took));
    add(lines, "rdb_current_bgsave_time_sec", seconds(running));
    add(lines, "rdb_saves", saved.number);
    let appends = setting(call, "appendonly").is_some_and(|appends| appends == "yes");
    add(lines, "aof_enabled", u8::from(appends));
    // The log is never rewritten: compactions serve that purpose.
    add(lines, "aof_rewrite_in_progress", 0);
    add(lines, "aof_rewrite_scheduled", 0);
    add(lines, "aof_last_rewrite_time_sec", -1);
    add(lines, "aof_current_rewrite_time_sec", -1);
    add(lines, "aof_last_bgrewrite_status", "ok");
    add_none(lines, &["aof_rewrites", "aof_rewrites_consecutive_failures"]);
    add(lines, "aof_last_write_status", if writes { "ok" } else { "err" });
    Ok(())
}

/// Without `expired_keys`: expired keys are removed by compactions, which see older versions of a
/// key as well and may run on another server, so they cannot be counted.
fn stats(call: &mut Call<'_>, lines: &mut Lines) -> Outcome {
    let statistics = &call.service.statistics;
    let [commands, bytes_in, bytes_out] =
        [&statistics.commands, &statistics.bytes_in, &statistics.bytes_out].map(|count| count.load(Ordering::Relaxed));
    let (turns, turns_us) = statistics.loops.totals();
    let [commands_rate, in_rate, out_rate, turns_rate, busy_us_rate] =
        statistics.rates.of([commands, bytes_in, bytes_out, turns, turns_us]);
    add(lines, "total_connections_received", statistics.connections.load(Ordering::Relaxed));
    add(lines, "total_commands_processed", commands);
    add(lines, "instantaneous_ops_per_sec", commands_rate.round());
    add(lines, "total_net_input_bytes", bytes_in);
    add(lines, "total_net_output_bytes", bytes_out);
    add(lines, "instantaneous_input_kbps", format!("{:.2}", in_rate / 1024.0));
    add(lines, "instantaneous_output_kbps", format!("{:.2}", out_rate / 1024.0));
    add(lines, "rejected_connections", call.service.client_events.number(ClientEvent::MaxClients));
    add_none(lines, &["total_net_repl_input_bytes", "total_net_repl_output_bytes"]);
    for none in ["instantaneous_input_repl_kbps", "instantaneous_output_repl_kbps"] {
        add(lines, none, "0.00");
    }
    add_none(lines, &["sync_full", "sync_partial_ok", "sync_partial_err", "evicted_keys", "evicted_clients"]);
    add_none(lines, &["total_eviction_exceeded_time", "current_eviction_exceeded_time"]);
    add(lines, "reads_awaited", statistics.reads_awaited.load(Ordering::Relaxed));
    add(lines, "blocking_requests", statistics.blocking_requests.load(Ordering::Relaxed));
    add(lines, "keyspace_hits", statistics.hits.load(Ordering::Relaxed));
    add(lines, "keyspace_misses", statistics.misses.load(Ordering::Relaxed));
    add_none(lines, &["pubsub_channels", "pubsub_patterns", "pubsubshard_channels", "latest_fork_usec", "total_forks"]);
    add_none(lines, &["migrate_cached_sockets", "slave_expires_tracked_keys"]);
    add_none(
        lines,
        &["active_defrag_hits", "active_defrag_misses", "active_defrag_key_hits", "active_defrag_key_misses"],
    );
    add_none(lines, &["total_active_defrag_time", "current_active_defrag_time"]);
    add_none(lines, &["tracking_total_keys", "tracking_total_items", "tracking_total_prefixes"]);
    add_none(lines, &["unexpected_error_replies", "dump_payload_sanitizations"]);
    add(lines, "forwarded_commands", statistics.forwarded.load(Ordering::Relaxed));
    add(lines, "forwarded_commands_failed", statistics.forwards_failed.load(Ordering::Relaxed));
    add(lines, "total_error_replies", statistics.errors.load(Ordering::Relaxed));
    add(lines, "total_reads_processed", statistics.reads.load(Ordering::Relaxed));
    add(lines, "total_writes_processed", statistics.writes.load(Ordering::Relaxed));
    // A turn of an event loop corresponds to a cycle of Redis'. Commands are executed by other
    // threads as well.
    add(lines, "eventloop_cycles", turns);
    add(lines, "eventloop_duration_sum", turns_us);
    add(lines, "eventloop_duration_cmd_sum", statistics.usage.took_us());
    add(lines, "instantaneous_eventloop_cycles_per_sec", turns_rate.round());
    let turn_us = if turns_rate > 0.0 { busy_us_rate / turns_rate } else { 0.0 };
    add(lines, "instantaneous_eventloop_duration_usec", turn_us.round());
    // There is one user, with all permissions.
    add(lines, "acl_access_denied_auth", statistics.wrong_passwords.load(Ordering::Relaxed));
    add_none(lines, &["acl_access_denied_cmd", "acl_access_denied_key", "acl_access_denied_channel"]);
    Ok(())
}

/// In Redis' words, and with what it does not know: which shard a copy is of, whether
/// acknowledgements count it, and how many bytes it is behind. `lag`, Redis' seconds since a copy
/// gave a sign of life, is 0 where it answers and -1 otherwise.
fn replication(call: &mut Call<'_>, lines: &mut Lines) -> Outcome {
    let view = call.client.seen(&call.service.cluster).view().clone();
    let (own, addressed) = (view.own(), addressed(call, &view));
    if let Some(shard) = view.replica_of(own) {
        let primary = &view.servers()[shard.primary];
        let is_in_sync = shard.replica_at(own).is_some_and(|replica| replica.is_in_sync);
        add(lines, "role", "slave");
        add(lines, "master_host", addressed.ip(shard.primary));
        add(lines, "master_port", addressed.port(shard.primary));
        add(lines, "master_link_status", if primary.health == Health::Online { "up" } else { "down" });
        add(lines, "master_sync_in_progress", u8::from(!is_in_sync));
        add(lines, "slave_repl_offset", shard.offset_at(own));
        add(lines, "slave_read_only", 1);
    } else {
        add(lines, "role", "master");
    }
    let replicas: Vec<_> = replicas_of(&view, own).collect();
    add(lines, "connected_slaves", replicas.len());
    for (number, (shard, replica)) in replicas.into_iter().enumerate() {
        let value = format!(
            "ip={},port={},state={},offset={},lag={},shard={},in_sync={},lag_bytes={}",
            addressed.ip(replica.server),
            addressed.port(replica.server),
            if replica.is_in_sync { "online" } else { "send_bulk" },
            shard.offset_at(replica.server),
            if view.servers()[replica.server].health == Health::Online { 0 } else { -1 },
            shard.id,
            u8::from(replica.is_in_sync),
            replica.lag_bytes.map_or_else(|| "unknown".to_owned(), |bytes| bytes.to_string()),
        );
        add(lines, &format!("slave{number}"), value);
    }
    if call.service.keyspace.has_gates() {
        let awaiting = call.service.statistics.awaiting_copies.load(Ordering::Relaxed);
        add(lines, "clients_awaiting_copies", awaiting);
    }
    add(lines, "master_failover_state", "no-failover");
    add(lines, "master_replid", &call.service.run_id);
    add(lines, "master_replid2", "0".repeat(call.service.run_id.len()));
    add(lines, "master_repl_offset", written_bytes(&view, own));
    add(lines, "second_repl_offset", -1);
    add_none(
        lines,
        &["repl_backlog_active", "repl_backlog_size", "repl_backlog_first_byte_offset", "repl_backlog_histlen"],
    );
    Ok(())
}

fn cpu(_: &mut Call<'_>, lines: &mut Lines) -> Outcome {
    if let Some((user_s, system_s)) = process::cpu_s() {
        add(lines, "used_cpu_sys", format!("{system_s:.6}"));
        add(lines, "used_cpu_user", format!("{user_s:.6}"));
        // It has no child processes.
        for none in ["used_cpu_sys_children", "used_cpu_user_children"] {
            add(lines, none, "0.000000");
        }
    }
    Ok(())
}

/// There are none, and no way to load any.
fn modules(_: &mut Call<'_>, _: &mut Lines) -> Outcome {
    Ok(())
}

fn commandstats(call: &mut Call<'_>, lines: &mut Lines) -> Outcome {
    for counts in call.service.statistics.usage.used() {
        let [calls, took_ns, refused, failed] = [&counts.calls, &counts.took_ns, &counts.refused, &counts.failed]
            .map(|count| count.load(Ordering::Relaxed));
        let took_us = took_ns as f64 / 1000.0;
        let each_us = took_us / calls.max(1) as f64;
        let value = format!(
            "calls={calls},usec={took_us:.0},usec_per_call={each_us:.2},rejected_calls={refused},failed_calls={failed}"
        );
        add(lines, &format!("cmdstat_{}", counts.name), value);
    }
    Ok(())
}

fn errorstats(call: &mut Call<'_>, lines: &mut Lines) -> Outcome {
    for (word, count) in call.service.statistics.errors_by_word.lock().iter() {
        add(lines, &format!("errorstat_{word}"), format!("count={count}"));
    }
    Ok(())
}

/// Times are counted in classes: the value is the longest time of the class that this percentile is
/// in.
fn latencystats(call: &mut Call<'_>, lines: &mut Lines) -> Outcome {
    for counts in call.service.statistics.usage.used() {
        let times = PERCENTILES.map(|percentile| (percentile, counts.times.percentile_s(percentile)));
        let told: Vec<String> = times
            .into_iter()
            .filter_map(|(percentile, time_s)| Some(format!("p{percentile}={:.3}", time_s? * 1e6)))
            .collect();
        if !told.is_empty() {
            add(lines, &format!("latency_percentiles_usec_{}", counts.name), told.join(","));
        }
    }
    Ok(())
}

fn cluster(call: &mut Call<'_>, lines: &mut Lines) -> Outcome {
    let seen = call.client.seen(&call.service.cluster);
    add(lines, "cluster_enabled", u8::from(seen.is_cluster()));
    let view = seen.view();
    if seen.is_cluster() || view.servers().len() > 1 {
        add(lines, "cluster_state", if view.failure().is_some() { "fail" } else { "ok" });
        if let Some(why) = view.failure() {
            add(lines, "cluster_failure", why);
        }
        add(lines, "cluster_servers", view.servers().len());
        add(lines, "cluster_shards", view.shards().len());
        add(lines, "cluster_map_epoch", view.map_epoch());
    }
    Ok(())
}

/// Exact where there are few keys, else about.
fn keyspace(call: &mut Call<'_>, lines: &mut Lines) -> Outcome {
    let KeyCountEstimate { keys, expiring, average_ttl_ms } = call.keys.estimate_key_count()?;
    if keys > 0 {
        add(lines, "db0", format!("keys={keys},expires={expiring},avg_ttl={average_ttl_ms}"));
    }
    Ok(())
}
