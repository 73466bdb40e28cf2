//! The federation as cluster clients are told of it: this server alone, with all slots, or what the
//! map says.
//!
//! The id of a server alone follows from its store's, those of a federation from their numbers, so
//! clients find them again after a restart.
//!
//! How clients reach a server stands in the map as text: `ADDRESS:PORT`, then `+PORT` where TLS is
//! spoken, then `@NAME` where it has a host name.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

use ecotone_control::ids::{FederationId, MemberId, ShardId};
use ecotone_control::map::Role;
use ecotone_membership::Known;
use ecotone_replication::Facts;
use ecotone_resp::cluster_view::{ClusterView, Health, ID_CHARACTERS, ReplicaView, ServerView, ShardView};

use crate::config::{AnnouncedToClients, Config};
use crate::error::Result;

/// The file in a store's folder that names it: RocksDB makes it once.
const STORE_NAME_FILE: &str = "IDENTITY";

/// What a server alone tells its clients of itself.
pub(crate) struct Alone {
    announced: AnnouncedToClients,
    /// Of the server and of its shard.
    ids: [String; 2],
    bus_port: u16,
}

impl Alone {
    /// The server whose store is in `store`, which others reach at `address`. A store without a
    /// readable name gives it the id `otherwise`, which no other has.
    ///
    /// # Errors
    ///
    /// Those of [`Config::announced`].
    pub(crate) fn new(config: &Config, store: &Path, address: &str, otherwise: &str) -> Result<Self> {
        let name = std::fs::read_to_string(store.join(STORE_NAME_FILE)).ok().and_then(|name| digits_of(&name));
        let name = name.unwrap_or_else(|| otherwise.to_owned());
        let bus_port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(0);
        Ok(Self { announced: config.announced()?, ids: [0, 1].map(|number| id(&name, number)), bus_port })
    }

    /// What clients are told where it listens at these addresses, by TLS and otherwise.
    pub(crate) fn view(&self, addresses: &[SocketAddr], tls_addresses: &[SocketAddr]) -> ClusterView {
        let shard_id = self.ids[1].clone();
        ClusterView::of_one(self.server(addresses, tls_addresses), shard_id)
            .unwrap_or_else(|error| unreachable!("settings are checked, and ids are made here: {error}"))
            .told_by(self.announced.endpoint)
    }

    /// This server as clients are told of it.
    pub(crate) fn server(&self, addresses: &[SocketAddr], tls_addresses: &[SocketAddr]) -> ServerView {
        let announced = &self.announced;
        let port_of = |said: Option<u16>, addresses: &[SocketAddr]| {
            said.or_else(|| addresses.first().map(SocketAddr::port)).unwrap_or(0)
        };
        let listens = addresses.iter().chain(tls_addresses).next().map(|address| address.ip().to_canonical());
        let own_ip = listens.filter(|ip| !ip.is_unspecified()).map(|ip| ip.to_string()).unwrap_or_default();
        let ip = if announced.ip.is_empty() { own_ip } else { announced.ip.clone() };
        ServerView {
            host_name: announced.host_name.clone(),
            tls_port: port_of(announced.tls_port, tls_addresses),
            bus_port: self.bus_port,
            ..ServerView::at(self.ids[0].clone(), ip, port_of(announced.port, addresses))
        }
    }

    /// The federation of the map, with this server as `own`. What cannot be told of another server,
    /// because its address makes no sense, is left out. `facts` are of the copies here, as far as there
    /// are any: a primary knows how far its replicas are, and a replica how far itself is.
    pub(crate) fn view_of(&self, known: &Known, own: &ServerView, facts: &[(ShardId, Facts)]) -> ClusterView {
        let map = &known.map;
        let mut servers = Vec::new();
        let mut places = BTreeMap::new();
        for (member, server) in map.members().filter(|(_, server)| server.role == Role::Data) {
            let id = server_id(map.federation, member);
            let view = if member == known.member {
                ServerView { id, ..own.clone() }
            } else {
                let bus_port = server.addresses.peers.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
                let health = if known.gone.contains(&member) { Health::Failed } else { Health::Online };
                let there = client_address(&server.addresses.clients).unwrap_or_default();
                ServerView {
                    host_name: there.host_name,
                    tls_port: there.tls_port,
                    bus_port: bus_port.unwrap_or(0),
                    health,
                    ..ServerView::at(id, there.ip, there.port)
                }
            };
            places.insert(member, servers.len());
            servers.push(view);
        }
        let is_in = places.contains_key(&known.member);
        let own_place = *places.entry(known.member).or_insert(servers.len());
        if !is_in {
            servers.push(ServerView { id: server_id(map.federation, known.member), ..own.clone() });
        }
        let shards: Vec<ShardView> = map
            .shards
            .iter()
            .filter_map(|(id, shard)| {
                let primary = *places.get(&shard.primary?)?;
                // Who has not said yet where it serves clients: nobody can be sent there.
                let is_told = primary == own_place || servers[primary].port != 0 || servers[primary].tls_port != 0;
                if !is_told {
                    return None;
                }
                Some(ShardView {
                    id: shard_id(map.federation, *id),
                    slots: shard.slots.iter().map(|range| (range.first, range.last)).collect(),
                    primary,
                    replicas: shard
                        .copies
                        .iter()
                        .filter(|member| Some(**member) != shard.primary)
                        .filter_map(|member| {
                            let is_in_sync = shard.in_sync.contains(member);
                            let here = facts.iter().find(|(of, _)| of == id).map(|(_, facts)| facts);
                            let lag_bytes = here.and_then(|facts| lag_of(facts, *member, known.member));
                            Some(ReplicaView { server: *places.get(member)?, is_in_sync, lag_bytes })
                        })
                        .collect(),
                    epoch: shard.epoch.0,
                    written_bytes: 0,
                })
            })
            .collect();
        let view = ClusterView::new(servers, own_place, shards, map.version)
            .unwrap_or_else(|error| unreachable!("the map is checked, and ids are made here: {error}"))
            .told_by(self.announced.endpoint);
        if known.is_removed() {
            return view.failing("this server was removed from the federation");
        }
        if map.shards.is_empty() {
            return view.failing("no slots are dealt yet: `ecotone cluster create` deals them");
        }
        view
    }
}

/// How many bytes the replica of `member` is behind, as the copy of the shard at `own` knows it.
fn lag_of(facts: &Facts, member: MemberId, own: MemberId) -> Option<u64> {
    if member == own {
        return facts.staleness.map(|staleness| staleness.bytes);
    }
    *facts.lag_bytes.get(&member)?
}

/// How clients reach a server, as the map has it.
///
/// One that listens everywhere and says nothing is where other servers reach it, at `peers`.
pub(crate) fn address_text(server: &ServerView, peers: &str) -> String {
    let host = peers.rsplit_once(':').map_or(peers, |(host, _)| host);
    let ip = match server.ip.as_str() {
        "" => host.to_owned(),
        ip if ip.contains(':') => format!("[{ip}]"),
        ip => ip.to_owned(),
    };
    let tls = if server.tls_port == 0 { String::new() } else { format!("+{}", server.tls_port) };
    let name = if server.host_name.is_empty() { String::new() } else { format!("@{}", server.host_name) };
    format!("{ip}:{}{tls}{name}", server.port)
}

/// What [`address_text`] says.
#[derive(Debug, Default, PartialEq, Eq)]
struct ClientAddress {
    ip: String,
    port: u16,
    tls_port: u16,
    host_name: String,
}

fn client_address(text: &str) -> Option<ClientAddress> {
    let (text, host_name) = text.split_once('@').unwrap_or((text, ""));
    let (text, tls_port) = match text.split_once('+') {
        Some((text, port)) => (text, port.parse().ok()?),
        None => (text, 0),
    };
    let (ip, port) = text.rsplit_once(':')?;
    let ip = ip.trim_start_matches('[').trim_end_matches(']');
    let is_told =
        |text: &str| !text.chars().any(|letter| letter.is_whitespace() || letter.is_control() || letter == ',');
    let address =
        ClientAddress { ip: ip.to_owned(), port: port.parse().ok()?, tls_port, host_name: host_name.to_owned() };
    (is_told(&address.ip) && is_told(&address.host_name) && !address.host_name.contains('@')).then_some(address)
}

/// The id of a server in a federation.
pub(crate) fn server_id(federation: FederationId, member: MemberId) -> String {
    id_in(federation, 0, member.0)
}

/// The id of a shard in a federation.
fn shard_id(federation: FederationId, shard: ShardId) -> String {
    id_in(federation, 1, shard.0.into())
}

/// What distinguishes it comes first: `redis-cli --cluster` shows, and takes, the first 8 characters
/// for a server.
fn id_in(federation: FederationId, kind: u32, number: u64) -> String {
    format!("{:08x}{federation}{kind:08x}{:08x}", number & u64::from(u32::MAX), number >> 32)
}

/// The hexadecimal digits of a UUID.
fn digits_of(name: &str) -> Option<String> {
    const UUID_DIGITS: usize = 32;
    let digits = name.trim().replace('-', "").to_ascii_lowercase();
    let is_uuid = digits.len() == UUID_DIGITS && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_uuid.then_some(digits)
}

/// An id that begins as `name` does, and ends with a number.
fn id(name: &str, number: u32) -> String {
    const NUMBER_DIGITS: usize = 8;
    let digits: String = name.chars().take(ID_CHARACTERS - NUMBER_DIGITS).collect();
    format!("{digits:0<width$}{number:08x}", width = ID_CHARACTERS - NUMBER_DIGITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(settings: &[(&str, &str)]) -> Config {
        let variables =
            settings.iter().map(|(name, value)| (format!("ECOTONE_CLIENTS_{name}").into(), (*value).into()));
        Config::load(None, variables).unwrap()
    }

    fn addresses(text: &str) -> Vec<SocketAddr> {
        crate::config::addresses(text).unwrap_or_default()
    }

    #[test]
    fn a_server_keeps_its_id_as_long_as_its_store() {
        let folder = tempfile::tempdir().unwrap();
        let ids = || Alone::new(&config(&[]), folder.path(), "10.0.0.1:7411", &"f".repeat(40)).unwrap().ids;
        let unnamed = ids();
        assert!(unnamed[0].starts_with("ffffffff") && unnamed[0] != unnamed[1], "{unnamed:?}");
        std::fs::write(folder.path().join(STORE_NAME_FILE), "0090e0d3-d140-42a1-ac61-abfc26c873e9").unwrap();
        assert_eq!(ids()[0], "0090e0d3d14042a1ac61abfc26c873e900000000");
        assert_eq!(ids()[1], "0090e0d3d14042a1ac61abfc26c873e900000001");
    }

    #[test]
    fn servers_and_shards_of_a_federation_are_known_by_the_first_characters() {
        let federation = FederationId(*b"ecotone!");
        let high = (1 << 32) | 7;
        let servers = [1, 2, 7, u64::from(u32::MAX)].map(|number| server_id(federation, MemberId(number)));
        let shown: std::collections::BTreeSet<&str> = servers.iter().map(|id| &id[..8]).collect();
        assert_eq!(shown.len(), servers.len());
        let others = [server_id(federation, MemberId(high)), shard_id(federation, ShardId(7))];
        let all: std::collections::BTreeSet<&String> = servers.iter().chain(&others).collect();
        assert_eq!(all.len(), servers.len() + others.len());
        assert!(all.iter().all(|id| id.len() == ID_CHARACTERS && id.bytes().all(|byte| byte.is_ascii_hexdigit())));
    }

    #[test]
    fn a_primary_knows_how_far_others_are_and_a_replica_how_far_itself_is() {
        let [own, other] = [MemberId(1), MemberId(2)];
        let primary = Facts { lag_bytes: [(other, Some(40))].into(), ..Facts::default() };
        assert_eq!((lag_of(&primary, other, own), lag_of(&primary, MemberId(3), own)), (Some(40), None));
        let staleness = ecotone_replica::receiver::Staleness { bytes: 7, us: 9 };
        let replica = Facts { staleness: Some(staleness), ..Facts::default() };
        assert_eq!((lag_of(&replica, own, own), lag_of(&replica, other, own)), (Some(7), None));
    }

    #[test]
    fn clients_are_told_what_is_announced_and_otherwise_where_it_listens() {
        let folder = tempfile::tempdir().unwrap();
        for (settings, listen, tls, told) in [
            (&[][..], "127.0.0.1:6379", "", ("127.0.0.1", "", 6379, 0)),
            (&[], "0.0.0.0:6379", "0.0.0.0:6380", ("", "", 6379, 6380)),
            (&[], "", "[::1]:6380", ("::1", "", 0, 6380)),
            (
                &[("ANNOUNCE_IP", "203.0.113.7"), ("ANNOUNCE_PORT", "7000"), ("ANNOUNCE_HOSTNAME", "edge-7.example")],
                "0.0.0.0:6379",
                "0.0.0.0:6380",
                ("203.0.113.7", "edge-7.example", 7000, 6380),
            ),
        ] {
            let alone = Alone::new(&config(settings), folder.path(), "10.0.0.1:7411", &"0".repeat(40)).unwrap();
            let view = alone.view(&addresses(listen), &addresses(tls));
            let server = &view.servers()[0];
            assert_eq!((server.ip.as_str(), server.host_name.as_str(), server.port, server.tls_port), told);
            assert_eq!(server.bus_port, 7411);
            assert_eq!(view.slots_of(0), [(0, 16383)]);
        }
        let nameless = config(&[("PREFERRED_ENDPOINT", "hostname")]).announced().unwrap_err().to_string();
        assert!(nameless.contains("clients.announce_hostname"), "{nameless}");
    }
}
