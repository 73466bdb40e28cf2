//! What `CLUSTER NODES`, `SLOTS`, `SHARDS`, `INFO` and `LINKS`, and redirects, say of a
//! [`ClusterView`], in Redis' forms.
//!
//! A server of a federation may serve some shards and have copies of others, which Redis cannot
//! say of one: `NODES` calls it a master then, and `SLOTS` and `SHARDS` name it wherever it has a
//! copy.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;

use crate::client::ClientInfo;
use crate::cluster_view::{ClusterView, Endpoint, Health, LinkView, ReplicaView, ServerView, ShardView};
use crate::protocol::reply::Reply;
use ecotone_keyspace::Slot;
use ecotone_keyspace::error::Failure;

/// A view as one client is told of it.
pub(super) struct Addressed<'v> {
    view: &'v ClusterView,
    /// It is told of ports for TLS.
    is_tls: bool,
    /// The address that it has reached this server under.
    came_to: String,
}

/// The redirect to a server, by its place.
pub(crate) fn moved(view: &ClusterView, slot: Slot, server: usize, is_tls: bool) -> Failure {
    let server = &view.servers()[server];
    let host = match view.endpoint() {
        Endpoint::Ip => server.ip.as_str(),
        Endpoint::HostName if server.host_name.is_empty() => "?",
        Endpoint::HostName => server.host_name.as_str(),
        // The client keeps the one that it knows.
        Endpoint::Unknown => "",
    };
    Failure::with(format!("MOVED {} {host}:{}", slot.number(), port(server, is_tls)))
}

/// The port for a client that came by TLS or not; the other one where there is none.
fn port(server: &ServerView, is_tls: bool) -> u16 {
    let (wanted, other) = if is_tls { (server.tls_port, server.port) } else { (server.port, server.tls_port) };
    if wanted > 0 { wanted } else { other }
}

impl<'v> Addressed<'v> {
    pub(super) fn to(view: &'v ClusterView, client: &ClientInfo) -> Self {
        let came_to = client.local_address.parse::<SocketAddr>().map(|address| address.ip().to_canonical());
        // Who came to all addresses came to none.
        let came_to = came_to.ok().filter(|ip| !ip.is_unspecified());
        Self {
            view,
            is_tls: client.is_tls.load(Ordering::Relaxed),
            came_to: came_to.as_ref().map(IpAddr::to_string).unwrap_or_default(),
        }
    }

    pub(super) fn ip(&self, server: usize) -> &str {
        match self.view.servers()[server].ip.as_str() {
            "" if server == self.view.own() => &self.came_to,
            ip => ip,
        }
    }

    pub(super) fn port(&self, server: usize) -> u16 {
        port(&self.view.servers()[server], self.is_tls)
    }

    /// A server's line of `NODES`, without its end.
    pub(super) fn line(&self, place: usize) -> String {
        let (view, server) = (self.view, &self.view.servers()[place]);
        let is_own = place == view.own();
        let replica_of = view.replica_of(place);
        let host_name = if server.host_name.is_empty() { String::new() } else { format!(",{}", server.host_name) };
        let mut flags = Vec::new();
        flags.extend(is_own.then_some("myself"));
        flags.push(if replica_of.is_some() { "slave" } else { "master" });
        flags.extend(match server.health {
            Health::Online => None,
            Health::Suspected => Some("fail?"),
            Health::Failed => Some("fail"),
        });
        let master = replica_of.map_or("-", |shard| &view.servers()[shard.primary].id);
        let epoch = view.epoch_of(replica_of.map_or(place, |shard| shard.primary));
        let link = if is_own || server.is_connected { "connected" } else { "disconnected" };
        let slots: String = view.slots_of(place).into_iter().map(|range| format!(" {}", range_text(range))).collect();
        format!(
            "{} {}:{}@{}{host_name} {} {master} {} {} {epoch} {link}{slots}",
            server.id,
            self.ip(place),
            self.port(place),
            server.bus_port,
            flags.join(","),
            server.ping_sent_ms,
            server.pong_received_ms,
        )
    }

    pub(super) fn slots(&self, reply: &mut Reply) {
        let ranges = self.view.ranges();
        reply.array(ranges.len());
        for (first, last, shard) in ranges {
            // As in Redis without those that have failed, and that have not everything yet.
            let is_there = |replica: &&ReplicaView| {
                replica.is_in_sync && self.view.servers()[replica.server].health != Health::Failed
            };
            let replicas: Vec<usize> = shard.replicas.iter().filter(is_there).map(|replica| replica.server).collect();
            reply.array(3 + replicas.len());
            reply.integer(first.into());
            reply.integer(last.into());
            for server in [shard.primary].into_iter().chain(replicas) {
                self.server_of_slots(reply, server);
            }
        }
    }

    fn server_of_slots(&self, reply: &mut Reply, place: usize) {
        let (endpoint, server) = (self.view.endpoint(), &self.view.servers()[place]);
        reply.array(4);
        match endpoint {
            Endpoint::Ip => reply.bulk_text(self.ip(place)),
            Endpoint::HostName => reply.bulk_text(self.endpoint(place)),
            Endpoint::Unknown => reply.null(),
        }
        reply.integer(self.port(place).into());
        reply.bulk_text(&server.id);
        // What it can be reached under besides.
        let has_host_name = endpoint != Endpoint::HostName && !server.host_name.is_empty();
        let has_ip = endpoint != Endpoint::Ip;
        reply.map(usize::from(has_ip) + usize::from(has_host_name));
        if has_ip {
            reply.bulk_text("ip");
            reply.bulk_text(self.ip(place));
        }
        if has_host_name {
            reply.bulk_text("hostname");
            reply.bulk_text(&server.host_name);
        }
    }

    /// The name that clients are to use, as `SHARDS` tells it.
    fn endpoint(&self, place: usize) -> &str {
        let server = &self.view.servers()[place];
        match self.view.endpoint() {
            Endpoint::Ip => self.ip(place),
            Endpoint::HostName if server.host_name.is_empty() => "?",
            Endpoint::HostName => &server.host_name,
            Endpoint::Unknown => "",
        }
    }

    pub(super) fn shards(&self, reply: &mut Reply) {
        reply.array(self.view.shards().len());
        for shard in self.view.shards() {
            reply.map(2);
            reply.bulk_text("slots");
            reply.array(2 * shard.slots.len());
            for slot in shard.slots.iter().flat_map(|(first, last)| [first, last]) {
                reply.integer((*slot).into());
            }
            reply.bulk_text("nodes");
            reply.array(1 + shard.replicas.len());
            self.server_of_shard(reply, shard, shard.primary);
            for replica in &shard.replicas {
                self.server_of_shard(reply, shard, replica.server);
            }
        }
    }

    fn server_of_shard(&self, reply: &mut Reply, shard: &ShardView, place: usize) {
        let server = &self.view.servers()[place];
        let is_behind = shard.replica_at(place).is_some_and(|replica| !replica.is_in_sync);
        let health = match server.health {
            Health::Failed => "fail",
            _ if is_behind => "loading",
            Health::Online | Health::Suspected => "online",
        };
        let mut fields = vec![("id", Field::Text(&server.id))];
        let ports = [("port", server.port), ("tls-port", server.tls_port)];
        fields.extend(
            ports.into_iter().filter(|(_, port)| *port > 0).map(|(name, port)| (name, Field::Number(port.into()))),
        );
        fields.push(("ip", Field::Text(self.ip(place))));
        fields.push(("endpoint", Field::Text(self.endpoint(place))));
        fields.extend((!server.host_name.is_empty()).then_some(("hostname", Field::Text(&server.host_name))));
        fields.push(("role", Field::Text(if place == shard.primary { "master" } else { "replica" })));
        fields.push(("replication-offset", Field::Number(shard.offset_at(place) as i64)));
        fields.push(("health", Field::Text(health)));
        reply.map(fields.len());
        for (name, field) in fields {
            reply.bulk_text(name);
            match field {
                Field::Text(text) => reply.bulk_text(text),
                Field::Number(number) => reply.integer(number),
            }
        }
    }
}

/// A value in the description of a server.
enum Field<'t> {
    Text(&'t str),
    Number(i64),
}

fn range_text((first, last): (u16, u16)) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

/// The text of `INFO`. Servers send no gossip, so no messages are counted.
pub(super) fn info(view: &ClusterView) -> String {
    let (mut assigned, mut suspected, mut failed) = (0_u64, 0, 0);
    for (first, last, shard) in view.ranges() {
        let slots = u64::from(last - first) + 1;
        assigned += slots;
        match view.servers()[shard.primary].health {
            Health::Online => {}
            Health::Suspected => suspected += slots,
            Health::Failed => failed += slots,
        }
    }
    let size = (0..view.servers().len()).filter(|server| view.is_primary(*server)).count();
    let state = if view.failure().is_some() { "fail" } else { "ok" };
    let mut lines = vec![
        ("cluster_state", state.to_owned()),
        ("cluster_slots_assigned", assigned.to_string()),
        ("cluster_slots_ok", (assigned - suspected - failed).to_string()),
        ("cluster_slots_pfail", suspected.to_string()),
        ("cluster_slots_fail", failed.to_string()),
        ("cluster_known_nodes", view.servers().len().to_string()),
        ("cluster_size", size.to_string()),
        ("cluster_current_epoch", view.current_epoch().to_string()),
        (
            "cluster_my_epoch",
            view.epoch_of(view.replica_of(view.own()).map_or(view.own(), |shard| shard.primary)).to_string(),
        ),
        ("cluster_stats_messages_sent", "0".to_owned()),
        ("cluster_stats_messages_received", "0".to_owned()),
        ("total_cluster_links_buffer_limit_exceeded", "0".to_owned()),
    ];
    if let Some(why) = view.failure() {
        // It stays one line, whatever is in it.
        lines.push(("cluster_failure", why.replace(['\r', '\n'], " ")));
    }
    lines.into_iter().map(|(name, value)| format!("{name}:{value}\r\n")).collect()
}

/// Connections to servers that clients are not told of, as witnesses are, are left out.
pub(super) fn links(view: &ClusterView, mut links: Vec<LinkView>, reply: &mut Reply) {
    links.retain(|link| view.servers().iter().any(|server| server.id == link.node));
    reply.array(links.len());
    for link in links {
        reply.map(6);
        for (name, text) in [("direction", if link.is_outgoing { "to" } else { "from" }), ("node", link.node.as_str())]
        {
            reply.bulk_text(name);
            reply.bulk_text(text);
        }
        reply.bulk_text("create-time");
        reply.integer(link.since_ms as i64);
        reply.bulk_text("events");
        reply.bulk_text(if link.queued_bytes > 0 { "rw" } else { "r" });
        for (name, bytes) in [("send-buffer-allocated", link.buffer_bytes), ("send-buffer-used", link.queued_bytes)] {
            reply.bulk_text(name);
            reply.integer(bytes as i64);
        }
    }
}
