//! What cluster clients are told, and which requests are not carried out here. The federation is
//! made by hand: this server, 10.0.0.1, has the slots up to 5460, two others have the rest, and of
//! the second one's it has a copy.

use ecotone_engine::{Durability, StoreSettings};
use ecotone_keyspace::{Blocking, WriteGroup};
use ecotone_resp::cluster_view::{
    ClusterMode, ClusterView, Endpoint, Health, LinkView, ReplicaView, ServerView, ShardView,
};
use ecotone_resp::command::table;
use ecotone_resp::execute::{Step, execute_command};
use ecotone_resp::protocol::reply::{Reply, Version};

use crate::common::redis::{elements, text};
use crate::common::{Fixture, TestClient};

const CLUSTER: ClusterMode = ClusterMode { is_cluster: true, is_proxy: false };
const SINGLE: ClusterMode = ClusterMode { is_cluster: false, is_proxy: false };

/// Ids are shown as `server1` or `shard1` below.
fn id(kind: char, number: usize) -> String {
    format!("{kind}{number:039x}")
}

fn server(number: usize) -> ServerView {
    ServerView { bus_port: 7411, ..ServerView::at(id('e', number), format!("10.0.0.{number}"), 6379) }
}

fn servers() -> Vec<ServerView> {
    vec![
        server(1),
        ServerView { host_name: "two.example".into(), tls_port: 6380, ..server(2) },
        ServerView {
            health: Health::Failed,
            is_connected: false,
            ping_sent_ms: 1_700_000_000_000,
            pong_received_ms: 1_699_999_999_000,
            failure_reports: 2,
            ..server(3)
        },
    ]
}

fn shard(number: usize, slots: &[(u16, u16)], primary: usize, replicas: &[usize]) -> ShardView {
    let epoch = 10 * number as u64;
    let replicas = replicas.iter().map(|server| ReplicaView::at(*server)).collect();
    ShardView { id: id('d', number), slots: slots.to_vec(), primary, replicas, epoch, written_bytes: 0 }
}

fn view() -> ClusterView {
    let shards = vec![
        shard(1, &[(0, 5460)], 0, &[]),
        shard(2, &[(5461, 5461), (5463, 10_922)], 1, &[0]),
        shard(3, &[(5462, 5462), (10_923, 16_383)], 2, &[]),
    ];
    ClusterView::new(servers(), 0, shards, 41).unwrap()
}

fn fixture(view: ClusterView, mode: ClusterMode) -> Fixture {
    let fixture = Fixture::new();
    fixture.service.cluster.publish(view);
    fixture.service.cluster.set_mode(mode);
    fixture
}

/// A reply on one line.
fn shown(reply: &str) -> String {
    let mut shown = reply.trim_end().replace("\r\n", " ").replace('\n', "|");
    for number in 1..=4 {
        shown = shown.replace(&id('e', number), &format!("server{number}"));
        shown = shown.replace(&id('d', number), &format!("shard{number}"));
    }
    shown
}

fn says(client: &mut TestClient<'_>, requests: &[(&str, &str)]) {
    for (request, reply) in requests {
        assert_eq!(shown(&client.ask(request)), *reply, "{request}");
    }
}

#[test]
fn slots_shards_and_links_have_the_form_of_redis_in_both_protocols() {
    let link = |number, is_outgoing, since_ms, queued_bytes, buffer_bytes| LinkView {
        node: id('e', number),
        is_outgoing,
        since_ms,
        queued_bytes,
        buffer_bytes,
    };
    let fixture = fixture(view(), CLUSTER);
    // The last one is with a server that clients are not told of.
    *fixture.host.links.lock() = vec![link(2, true, 7, 0, 0), link(2, false, 8, 5, 64), link(9, true, 9, 0, 64)];
    let mut client = fixture.client();
    let one = "*4 $8 10.0.0.1 :6379 $40 server1 *0";
    let two = "*4 $8 10.0.0.2 :6379 $40 server2 *2 $8 hostname $11 two.example";
    let three = "*4 $8 10.0.0.3 :6379 $40 server3 *0";
    let slots = format!(
        "*5 *3 :0 :5460 {one} *4 :5461 :5461 {two} {one} *3 :5462 :5462 {three} *4 :5463 :10922 {two} {one} \
         *3 :10923 :16383 {three}"
    );
    assert_eq!(shown(&client.ask("CLUSTER SLOTS")), slots);
    let described = |number: usize, more: &str, host_name: &str, role: &str, health: &str| {
        let fields = if host_name.is_empty() { 7 } else { 9 };
        format!(
            "*{} $2 id $40 server{number} $4 port :6379 {more}$2 ip $8 10.0.0.{number} $8 endpoint $8 10.0.0.{number} \
             {host_name}$4 role ${} {role} $18 replication-offset :0 $6 health ${} {health}",
            2 * fields,
            role.len(),
            health.len()
        )
    };
    let own = described(1, "", "", "master", "online");
    let copy = described(1, "", "", "replica", "online");
    let second = described(2, "$8 tls-port :6380 ", "$8 hostname $11 two.example ", "master", "online");
    let third = described(3, "", "", "master", "fail");
    let shards = format!(
        "*3 *4 $5 slots *2 :0 :5460 $5 nodes *1 {own} *4 $5 slots *4 :5461 :5461 :5463 :10922 $5 nodes *2 {second} \
         {copy} *4 $5 slots *4 :5462 :5462 :10923 :16383 $5 nodes *1 {third}"
    );
    assert_eq!(shown(&client.ask("CLUSTER SHARDS")), shards);
    let links = "*2 *12 $9 direction $2 to $4 node $40 server2 $11 create-time :7 $6 events $1 r $21 send-buffer-allocated \
                 :0 $16 send-buffer-used :0 *12 $9 direction $4 from $4 node $40 server2 $11 create-time :8 $6 events $2 rw \
                 $21 send-buffer-allocated :64 $16 send-buffer-used :5";
    assert_eq!(shown(&client.ask("CLUSTER LINKS")), links);
    // In version 3 what are pairs are maps.
    client.speak(Version::Resp3);
    let maps = |told: &str| told.replace("*0", "%0").replace("*2 $8 hostname", "%1 $8 hostname");
    assert_eq!(shown(&client.ask("CLUSTER SLOTS")), maps(&slots));
    let maps = shards.replace("*4 $5 slots", "%2 $5 slots").replace("*14 ", "%7 ").replace("*18 ", "%9 ");
    assert_eq!(shown(&client.ask("CLUSTER SHARDS")), maps);
    assert_eq!(shown(&client.ask("CLUSTER LINKS")), links.replace("*12", "%6"));
}

#[test]
fn nodes_and_info_are_texts_as_in_redis() {
    let fixture = fixture(view(), CLUSTER);
    let mut client = fixture.client();
    let nodes = "server1 10.0.0.1:6379@7411 myself,master - 0 0 10 connected 0-5460|\
                 server2 10.0.0.2:6379@7411,two.example master - 0 0 20 connected 5461 5463-10922|\
                 server3 10.0.0.3:6379@7411 master,fail - 1700000000000 1699999999000 30 disconnected 5462 10923-16383";
    let reply = client.ask("CLUSTER NODES");
    let (header, lines) = reply.split_once("\r\n").unwrap();
    assert_eq!((header, lines.len()), (format!("${}", lines.len() - 2).as_str(), lines.len()));
    assert!(lines.ends_with("\n\r\n"), "each line ends");
    assert_eq!(shown(lines), nodes);
    let info = "cluster_state:ok cluster_slots_assigned:16384 cluster_slots_ok:10922 cluster_slots_pfail:0 cluster_slots_fail:5462 \
                cluster_known_nodes:3 cluster_size:3 cluster_current_epoch:41 cluster_my_epoch:10 cluster_stats_messages_sent:0 \
                cluster_stats_messages_received:0 total_cluster_links_buffer_limit_exceeded:0";
    assert_eq!(shown(client.ask("CLUSTER INFO").split_once("\r\n").unwrap().1), info);
    client.speak(Version::Resp3);
    for request in ["CLUSTER NODES", "CLUSTER INFO"] {
        let reply = client.ask(request);
        assert!(reply.starts_with('=') && reply.contains("\r\ntxt:"), "{reply}");
    }
    fixture.service.cluster.publish(view().failing("two of three voters\r\nare gone"));
    let info = client.ask("CLUSTER INFO");
    assert!(info.contains("cluster_state:fail\r\n"), "{info}");
    assert!(info.contains("\r\ncluster_failure:two of three voters  are gone\r\n"), "{info}");
}

#[test]
fn a_server_with_nothing_but_a_copy_is_a_slave() {
    let shards = vec![shard(1, &[(0, 16_383)], 0, &[1, 2])];
    let mut told = servers();
    told[1].health = Health::Suspected;
    let fixture = fixture(ClusterView::new(told, 1, shards, 1).unwrap(), CLUSTER);
    let mut client = fixture.client();
    let two = "server2 10.0.0.2:6379@7411,two.example myself,slave,fail? server1 0 0 10 connected";
    let three = "server3 10.0.0.3:6379@7411 slave,fail server1 1700000000000 1699999999000 10 disconnected";
    let nodes = format!("server1 10.0.0.1:6379@7411 master - 0 0 10 connected 0-16383|{two}|{three}");
    assert_eq!(shown(client.ask("CLUSTER NODES").split_once("\r\n").unwrap().1), nodes);
    for command in ["REPLICAS", "slaves"] {
        let reply = client.send(&[b"CLUSTER", command.as_bytes(), id('e', 1).as_bytes()]);
        let lines: Vec<String> =
            elements(&reply).unwrap().into_iter().map(|line| shown(&String::from_utf8_lossy(text(line)))).collect();
        assert_eq!(lines, [two, three]);
    }
    // One that has failed is not told to those who look for copies to read.
    assert!(!client.ask("CLUSTER SLOTS").contains(&id('e', 3)));
    let refused = |client: &mut TestClient<'_>, command: &str, server: &str| {
        shown(&String::from_utf8_lossy(&client.send(&[b"CLUSTER", command.as_bytes(), server.as_bytes()])))
    };
    assert_eq!(refused(&mut client, "REPLICAS", &id('e', 3)), "-ERR The specified node is not a master");
    assert_eq!(refused(&mut client, "REPLICAS", "nobody"), "-ERR Unknown node nobody");
    assert_eq!(refused(&mut client, "COUNT-FAILURE-REPORTS", "nobody"), "-ERR Unknown node nobody");
    assert_eq!(refused(&mut client, "COUNT-FAILURE-REPORTS", &id('e', 3)), ":2");
    says(&mut client, &[("CLUSTER MYID", "$40 server2"), ("CLUSTER MYSHARDID", "$40 shard1")]);
    assert!(client.ask("HELLO").contains("role\r\n$7\r\nreplica\r\n"));
    // What READONLY asks for is kept, and copies are not read all the same.
    says(
        &mut client,
        &[
            ("GET a", "-MOVED 15495 10.0.0.1:6379"),
            ("READONLY", "+OK"),
            ("GET a", "-MOVED 15495 10.0.0.1:6379"),
            ("SET a 1", "-MOVED 15495 10.0.0.1:6379"),
        ],
    );
    let flags = |client: &mut TestClient<'_>| {
        let info = client.ask("CLIENT INFO");
        info.split(' ').find_map(|field| field.strip_prefix("flags=")).unwrap().to_owned()
    };
    assert_eq!(flags(&mut client), "r");
    says(&mut client, &[("READWRITE", "+OK")]);
    assert_eq!(flags(&mut client), "N");
    says(&mut client, &[("READONLY", "+OK"), ("RESET", "+RESET")]);
    assert_eq!(flags(&mut client), "N");
}

#[test]
fn copies_are_told_of_with_how_far_they_are() {
    let behind = ReplicaView { is_in_sync: false, lag_bytes: Some(300), ..ReplicaView::at(1) };
    let near = ReplicaView { lag_bytes: Some(1), ..ReplicaView::at(0) };
    let shards = vec![
        ShardView { replicas: vec![ReplicaView::at(2), behind], written_bytes: 1000, ..shard(1, &[(0, 5460)], 0, &[]) },
        ShardView { replicas: vec![near], written_bytes: 50, ..shard(2, &[(5461, 16_383)], 1, &[]) },
    ];
    // The server that has the one shard, and a copy of the other.
    let own = fixture(ClusterView::new(servers(), 0, shards.clone(), 1).unwrap(), CLUSTER);
    let mut client = own.client();
    assert_eq!(
        shown(&client.ask("ROLE")),
        "*3 $6 master :1000 *2 *3 $8 10.0.0.3 $4 6379 $1 0 *3 $8 10.0.0.2 $4 6379 $3 700"
    );
    let info = client.ask("INFO replication");
    for line in [
        "role:master".to_owned(),
        "connected_slaves:2".to_owned(),
        format!(
            "slave0:ip=10.0.0.3,port=6379,state=online,offset=0,lag=-1,shard={},in_sync=1,lag_bytes=unknown",
            id('d', 1)
        ),
        format!(
            "slave1:ip=10.0.0.2,port=6379,state=send_bulk,offset=700,lag=0,shard={},in_sync=0,lag_bytes=300",
            id('d', 1)
        ),
        "master_repl_offset:1000".to_owned(),
    ] {
        assert!(info.split("\r\n").any(|told| told == line), "{line} in {info}");
    }
    // Also a server with slots of its own is one that has a copy.
    let names = |client: &mut TestClient<'_>, of: usize| -> Vec<String> {
        let reply = client.send(&[b"CLUSTER", b"REPLICAS", id('e', of).as_bytes()]);
        let lines = elements(&reply).unwrap();
        lines.into_iter().map(|line| String::from_utf8_lossy(&text(line)[..40]).into_owned()).collect()
    };
    assert_eq!(names(&mut client, 1), [id('e', 2), id('e', 3)]);
    assert_eq!(names(&mut client, 2), [id('e', 1)]);
    // Who reads from copies is sent to none that lacks something.
    let slots = client.ask("CLUSTER SLOTS");
    let first = slots.split(":5461").next().unwrap();
    assert!(!first.contains(&id('e', 2)) && !first.contains(&id('e', 3)), "{first}");
    let shards_told = shown(&client.ask("CLUSTER SHARDS"));
    for told in [
        "replication-offset :700 $6 health $7 loading",
        "replication-offset :1000 $6 health $6 online",
        "replication-offset :49 $6 health $6 online",
    ] {
        assert!(shards_told.contains(told), "{told} in {shards_told}");
    }
    // A server with nothing but copies.
    let third = fixture(ClusterView::new(servers(), 2, shards.clone(), 1).unwrap(), CLUSTER);
    assert_eq!(shown(&third.client().ask("ROLE")), "*5 $5 slave $8 10.0.0.1 :6379 $9 connected :0");
    let moved = vec![ShardView { primary: 2, ..shards[0].clone() }];
    let second = fixture(ClusterView::new(servers(), 1, moved, 1).unwrap(), CLUSTER);
    assert_eq!(shown(&second.client().ask("ROLE")), "*5 $5 slave $8 10.0.0.3 :6379 $4 sync :700");
    let info = second.client().ask("INFO replication");
    for line in
        ["role:slave", "master_host:10.0.0.3", "master_port:6379", "master_link_status:down", "connected_slaves:0"]
    {
        assert!(info.split("\r\n").any(|told| told == line), "{line} in {info}");
    }
}

#[test]
fn keys_of_others_are_redirected_before_anything_is_done() {
    let fixture = fixture(view(), CLUSTER);
    let mut client = fixture.client();
    says(
        &mut client,
        &[
            // b is here, c of the second server, a of the third.
            ("SET b 1", "+OK"),
            ("GET b", "$1 1"),
            ("GET c", "-MOVED 7365 10.0.0.2:6379"),
            ("SET a 1", "-MOVED 15495 10.0.0.3:6379"),
            ("SET a{b} 1", "+OK"),
            ("GET {a}b", "-MOVED 15495 10.0.0.3:6379"),
            ("MGET b a{b} x{b}y", "*3 $1 1 $1 1 $-1"),
            // As in Redis the first key says whose the request would be.
            ("MGET b c", "-CROSSSLOT Keys in request don't hash to the same slot"),
            ("MGET c b", "-CROSSSLOT Keys in request don't hash to the same slot"),
            ("MGET b hello", "-CROSSSLOT Keys in request don't hash to the same slot"),
            ("SINTERCARD 2 b hello", "-CROSSSLOT Keys in request don't hash to the same slot"),
            ("SINTERCARD 2 a x{a}", "-MOVED 15495 10.0.0.3:6379"),
            ("MEMORY USAGE a", "-MOVED 15495 10.0.0.3:6379"),
            ("WATCH a", "-MOVED 15495 10.0.0.3:6379"),
            // What names no key is of this server.
            ("DBSIZE", ":2"),
            ("PING", "+PONG"),
            ("KEYS *", "*2 $4 a{b} $1 b"),
            ("ASKING", "+OK"),
            ("GET a", "-MOVED 15495 10.0.0.3:6379"),
            // Wrong requests are wrong wherever they are sent.
            ("GET", "-ERR wrong number of arguments for 'get' command"),
            ("SET a", "-ERR wrong number of arguments for 'set' command"),
            // The number of keys makes no sense: there are none.
            ("SINTERCARD x a", "-ERR numkeys should be greater than 0"),
            ("SELECT 0", "+OK"),
            ("SELECT 1", "-ERR SELECT is not allowed in cluster mode"),
            ("COPY b x{b} DB 1", "-ERR DB index is out of range"),
            ("FLUSHALL", "+OK"),
            ("RANDOMKEY", "$-1"),
        ],
    );
    let refused: u64 = client
        .ask("INFO errorstats")
        .lines()
        .find_map(|line| line.strip_prefix("errorstat_MOVED:count=")?.parse().ok())
        .unwrap();
    assert_eq!(refused, 7);
}

#[test]
fn transactions_stay_within_a_slot_of_this_server() {
    let fixture = fixture(view(), CLUSTER);
    let mut client = fixture.client();
    says(
        &mut client,
        &[
            ("MULTI", "+OK"),
            ("SET b 1", "+QUEUED"),
            ("APPEND a{b} 2", "+QUEUED"),
            ("EXEC", "*2 +OK :1"),
            // Refused when it would be queued.
            ("MULTI", "+OK"),
            ("SET b 2", "+QUEUED"),
            ("SET a 2", "-MOVED 15495 10.0.0.3:6379"),
            ("SET b 3", "+QUEUED"),
            ("EXEC", "-EXECABORT Transaction discarded because of previous errors."),
            ("GET b", "$1 1"),
            // Two slots of this server: Redis finds out at the end, and says so.
            ("MULTI", "+OK"),
            ("SET b 2", "+QUEUED"),
            ("SET hello 2", "+QUEUED"),
            ("EXEC", "-CROSSSLOT Keys in request don't hash to the same slot"),
            ("EXEC", "-ERR EXEC without MULTI"),
            ("GET b", "$1 1"),
            ("EXISTS hello", ":0"),
        ],
    );
    // The shard goes to another server between the queue and its execution.
    says(&mut client, &[("MULTI", "+OK"), ("SET b 2", "+QUEUED")]);
    let shards = vec![shard(1, &[(0, 16_383)], 2, &[])];
    fixture.service.cluster.publish(ClusterView::new(servers(), 0, shards, 42).unwrap());
    says(&mut client, &[("EXEC", "-MOVED 3300 10.0.0.3:6379"), ("EXEC", "-ERR EXEC without MULTI")]);
    fixture.service.cluster.publish(view());
    says(&mut client, &[("GET b", "$1 1"), ("WATCH b", "+OK"), ("MULTI", "+OK"), ("PING", "+QUEUED")]);
    // A watched key that has gone elsewhere may have been changed there.
    let shards = vec![shard(1, &[(0, 16_383)], 2, &[])];
    fixture.service.cluster.publish(ClusterView::new(servers(), 0, shards, 42).unwrap());
    says(&mut client, &[("EXEC", "*-1")]);
}

#[test]
fn what_is_not_served_is_refused_as_redis_refuses_it() {
    let one = ClusterView::new(servers(), 0, vec![shard(1, &[(3300, 3300), (15_495, 15_495)], 0, &[])], 1).unwrap();
    let fixture = fixture(one.clone(), CLUSTER);
    let mut client = fixture.client();
    says(
        &mut client,
        &[
            ("SET b 1", "+OK"),
            ("GET c", "-CLUSTERDOWN Hash slot not served"),
            ("MGET c b", "-CLUSTERDOWN Hash slot not served"),
            ("MGET b c", "-CROSSSLOT Keys in request don't hash to the same slot"),
        ],
    );
    fixture.service.cluster.publish(one.failing("no leader"));
    says(
        &mut client,
        &[
            ("GET b", "-CLUSTERDOWN The cluster is down"),
            ("MULTI", "+OK"),
            ("GET b", "-CLUSTERDOWN The cluster is down"),
            ("EXEC", "-EXECABORT Transaction discarded because of previous errors."),
            ("GET c", "-CLUSTERDOWN Hash slot not served"),
            ("PING", "+PONG"),
            ("DBSIZE", ":1"),
        ],
    );
}

#[test]
fn outside_of_cluster_mode_keys_go_together_by_shard() {
    let fixture = fixture(ClusterView::of_one(server(1), id('d', 1)).unwrap(), SINGLE);
    let mut client = fixture.client();
    says(
        &mut client,
        &[
            ("MSET a 1 b 2 c 3", "+OK"),
            ("MULTI", "+OK"),
            ("RENAME a d", "+QUEUED"),
            ("GET c", "+QUEUED"),
            ("EXEC", "*2 +OK $1 3"),
            ("CLUSTER SLOTS", "-ERR This instance has cluster support disabled"),
            ("READONLY", "-ERR This instance has cluster support disabled"),
            ("CLUSTER MEET 10.0.0.1 1", "-ERR This instance has cluster support disabled"),
        ],
    );
    assert!(client.ask("INFO server").contains("\r\nredis_mode:standalone\r\n"));
    // Two shards here, one elsewhere.
    let shards = vec![
        shard(1, &[(0, 5460)], 0, &[]),
        shard(2, &[(5461, 10_922)], 0, &[]),
        shard(3, &[(10_923, 16_383)], 1, &[]),
    ];
    fixture.service.cluster.publish(ClusterView::new(servers(), 0, shards, 43).unwrap());
    says(
        &mut client,
        &[
            ("MGET b hello", "*2 $1 2 $-1"),
            ("MGET b c", "-CROSSSLOT Keys in request don't hash to the same slot"),
            ("MGET a foo", "-MOVED 15495 10.0.0.2:6379"),
            ("MULTI", "+OK"),
            ("GET b", "+QUEUED"),
            ("GET hello", "+QUEUED"),
            ("EXEC", "*2 $1 2 $-1"),
            ("MULTI", "+OK"),
            ("GET b", "+QUEUED"),
            ("GET c", "+QUEUED"),
            ("EXEC", "-CROSSSLOT Keys in request don't hash to the same slot"),
        ],
    );
    assert!(client.ask("INFO cluster").contains("cluster_enabled:0\r\ncluster_state:ok\r\ncluster_servers:3\r\n"));
}

#[test]
fn servers_are_told_by_the_name_that_is_preferred() {
    let fixture = fixture(view(), CLUSTER);
    let mut client = fixture.client();
    for (endpoint, moved, slots, shards) in [
        (Endpoint::Ip, "10.0.0.2", "$8 10.0.0.2 :6379 $40 server2 *2 $8 hostname $11 two.example", "$8 10.0.0.2"),
        (
            Endpoint::HostName,
            "two.example",
            "$11 two.example :6379 $40 server2 *2 $2 ip $8 10.0.0.2",
            "$11 two.example",
        ),
        (Endpoint::Unknown, "", "$-1 :6379 $40 server2 *4 $2 ip $8 10.0.0.2 $8 hostname $11 two.example", "$0 "),
    ] {
        fixture.service.cluster.publish(view().told_by(endpoint));
        assert_eq!(client.ask("GET c"), format!("-MOVED 7365 {moved}:6379\r\n"));
        let reply = shown(&client.ask("CLUSTER SLOTS"));
        assert!(reply.contains(&format!("*4 {slots}")), "{endpoint:?}: {reply}");
        let reply = shown(&client.ask("CLUSTER SHARDS"));
        assert!(reply.contains(&format!("$8 endpoint {shards} $8 hostname $11 two.example")), "{endpoint:?}: {reply}");
    }
    // One without a name, in Redis' words.
    fixture.service.cluster.publish(view().told_by(Endpoint::HostName));
    assert_eq!(client.ask("GET a"), "-MOVED 15495 ?:6379\r\n");
    // Who comes by TLS is sent to where TLS is spoken.
    client.client.info.is_tls.store(true, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(client.ask("GET c"), "-MOVED 7365 two.example:6380\r\n");
    assert!(client.ask("CLUSTER NODES").contains("10.0.0.2:6380@7411,two.example"));
    // A server that does not know its own address is where its client has found it.
    let unnamed = ServerView { ip: String::new(), ..server(1) };
    fixture.service.cluster.publish(ClusterView::of_one(unnamed, id('d', 1)).unwrap());
    assert!(client.ask("CLUSTER NODES").contains(" 127.0.0.1:6379@7411 myself,master "));
}

#[test]
fn keys_of_a_slot_are_counted_and_listed() {
    let fixture = fixture(ClusterView::of_one(server(1), id('d', 1)).unwrap(), CLUSTER);
    let mut client = fixture.client();
    // Slot 0 has the empty key.
    let last = (0..)
        .map(|number| format!("k{number}"))
        .find(|key| ecotone_keyspace::Slot::of(key.as_bytes()).number() == 16_383)
        .unwrap();
    client.send(&[b"SET", b"", b"v"]);
    client.ask(&format!("SET {last} v"));
    for number in 0..1500 {
        client.ask(&format!("SET {{b}}{number} v"));
    }
    client.ask("RPUSH {b}list 1 2 3");
    client.ask("SET {b}gone v PX 1");
    std::thread::sleep(std::time::Duration::from_millis(20));
    client.ask("DEL {b}7");
    says(
        &mut client,
        &[
            ("CLUSTER KEYSLOT somekey", ":11058"),
            ("CLUSTER KEYSLOT foo{hash_tag}", ":2515"),
            ("CLUSTER COUNTKEYSINSLOT 3300", ":1500"),
            ("CLUSTER COUNTKEYSINSLOT 3301", ":0"),
            ("CLUSTER COUNTKEYSINSLOT 0", ":1"),
            ("CLUSTER COUNTKEYSINSLOT 16383", ":1"),
            ("CLUSTER COUNTKEYSINSLOT 16384", "-ERR Invalid slot"),
            ("CLUSTER COUNTKEYSINSLOT -1", "-ERR Invalid slot"),
            ("CLUSTER COUNTKEYSINSLOT x", "-ERR value is not an integer or out of range"),
            ("CLUSTER GETKEYSINSLOT 0 5", "*1 $0"),
            ("CLUSTER GETKEYSINSLOT 3300 0", "*0"),
            ("CLUSTER GETKEYSINSLOT 3301 10", "*0"),
            ("CLUSTER GETKEYSINSLOT 3300 -1", "-ERR Invalid slot or number of keys"),
            ("CLUSTER GETKEYSINSLOT 16384 1", "-ERR Invalid slot or number of keys"),
            ("CLUSTER GETKEYSINSLOT 1 x", "-ERR value is not an integer or out of range"),
        ],
    );
    assert_eq!(client.ask("CLUSTER GETKEYSINSLOT 16383 10"), format!("*1\r\n${}\r\n{last}\r\n", last.len()));
    for asked in [1, 700, 1500, 5000] {
        let reply = client.send(&[b"CLUSTER", b"GETKEYSINSLOT", b"3300", asked.to_string().as_bytes()]);
        let keys = crate::common::redis::texts(&reply);
        assert_eq!(keys.len(), asked.min(1500));
        assert!(keys.iter().all(|key| key.starts_with(b"{b}") && key != b"{b}7" && key != b"{b}gone"));
    }
    // What was written and is not committed counts as well.
    let mut group = WriteGroup::new(fixture.service.keyspace.clone());
    client.ask_in(&mut group, "SET {c}1 v");
    assert_eq!(client.ask_in(&mut group, "CLUSTER COUNTKEYSINSLOT 7365"), ":1\r\n");
    group.commit(Blocking::Allowed).unwrap();
}

#[test]
fn a_slot_with_very_many_keys_does_not_hold_up_a_thread_that_must_not_wait() {
    let settings = StoreSettings { durability: Durability::None, ..StoreSettings::default() };
    let fixture = Fixture::with(settings);
    fixture.service.cluster.publish(ClusterView::of_one(server(1), id('d', 1)).unwrap());
    fixture.service.cluster.set_mode(CLUSTER);
    let mut client = fixture.client();
    for number in 0..3000 {
        client.ask(&format!("SET {{b}}{number} v"));
    }
    let would_block = ecotone_resp::execute::Step::WouldBlock;
    assert_eq!(client.step_at_once("CLUSTER COUNTKEYSINSLOT 3300"), would_block);
    assert_eq!(client.step_at_once("CLUSTER GETKEYSINSLOT 3300 2000"), would_block);
    assert_eq!(client.ask("CLUSTER COUNTKEYSINSLOT 3300"), ":3000\r\n");
}

#[test]
fn what_a_federation_does_otherwise_says_how() {
    let fixture = fixture(view(), CLUSTER);
    let mut client = fixture.client();
    for request in [
        "ADDSLOTS 1",
        "ADDSLOTSRANGE 1 2",
        "BUMPEPOCH",
        "DELSLOTS 1",
        "DELSLOTSRANGE 1 2",
        "FLUSHSLOTS",
        "FORGET x",
        "MEET 10.0.0.9 6379",
        "REPLICATE x",
        "RESET",
        "SAVECONFIG",
        "SET-CONFIG-EPOCH 1",
        "SETSLOT 1 STABLE",
    ] {
        let reply = client.ask(&format!("CLUSTER {request}"));
        let name = request.split(' ').next().unwrap();
        let begins = format!("-ERR CLUSTER {name} is not how a federation changes: ");
        assert!(reply.starts_with(&begins), "{reply}");
    }
    assert_eq!(view(), *fixture.service.cluster.view());
    let help = client.ask("CLUSTER HELP");
    for told in ["KEYSLOT <key>", "SHARDS", "COUNTKEYSINSLOT <slot>"] {
        assert!(help.contains(&format!("+{told}\r\n")), "{help}");
    }
}

#[test]
fn a_client_is_told_that_it_speaks_to_a_cluster() {
    let fixture = fixture(view(), CLUSTER);
    let mut client = fixture.client();
    assert!(client.ask("HELLO").contains("$4\r\nmode\r\n$7\r\ncluster\r\n$4\r\nrole\r\n$6\r\nmaster\r\n"));
    assert!(client.ask("INFO server").contains("\r\nredis_mode:cluster\r\n"));
    let info = client.ask("INFO cluster");
    assert!(info.contains(
        "cluster_enabled:1\r\ncluster_state:ok\r\ncluster_servers:3\r\ncluster_shards:3\r\ncluster_map_epoch:41\r\n"
    ));
    client.ask("READONLY");
    assert!(client.ask("CLIENT INFO").contains(" flags=r "));
    client.ask("READWRITE");
    assert!(client.ask("CLIENT INFO").contains(" flags=N "));
    // Commands that need the password need it here as well.
    let limits = ecotone_resp::service::Limits { password: Some("p".into()), ..Default::default() };
    fixture.service.set_limits(limits);
    let mut stranger = fixture.client();
    says(
        &mut stranger,
        &[("GET a", "-NOAUTH Authentication required."), ("CLUSTER SLOTS", "-NOAUTH Authentication required.")],
    );
}

#[test]
fn a_command_that_was_let_through_begins_anew_where_its_keys_went_elsewhere_since() {
    let fixture = fixture(view(), CLUSTER);
    let mut client = fixture.client();
    says(&mut client, &[("SET b 1", "+OK")]);
    let shards = vec![shard(1, &[(0, 16_383)], 2, &[])];
    fixture.service.cluster.publish(ClusterView::new(servers(), 0, shards, 42).unwrap());
    for words in ["SET b 2", "GET b", "WATCH b"] {
        let arguments = words.split(' ').map(str::as_bytes).collect::<Vec<_>>();
        let command = table::find(arguments[0]).unwrap();
        let mut group = WriteGroup::new(fixture.service.keyspace.clone());
        let mut reply = Reply::new(Version::Resp2);
        // As if the view had come between the decision and the latch.
        let step = execute_command(
            &fixture.service,
            &mut client.client,
            &mut group,
            command,
            &arguments,
            &mut reply,
            Blocking::Allowed,
        );
        assert_eq!((step, reply.is_empty(), group.is_empty()), (Step::Latched, true, true), "{words}");
        // Nor is it left with the latch.
        assert!(!group.holds_any(), "{words}");
    }
    fixture.service.cluster.publish(view());
    says(&mut client, &[("GET b", "$1 1")]);
}
