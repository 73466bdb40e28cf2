"""A session of redis-py against a cluster of several servers. Arguments: a server (host:port), the password, and for
TLS the authority's certificate. What it prints and reads is told in cluster-clients.sh."""

import sys
import time

import redis
from redis.cluster import RedisCluster
from redis.exceptions import RedisClusterException, RedisError

KEYS = 300
PATIENCE_S = 60

where, password, *authority = sys.argv[1:]
host, port = where.rsplit(":", 1)
checks = 0


def check(name, is_so):
    global checks
    if not is_so:
        sys.exit(f"not ok: {name}")
    checks += 1
    print(f"ok {name}", flush=True)


def await_(what):
    print(f"await {what}", flush=True)
    return sys.stdin.readline().split()


def connect(**more):
    options = {"ssl": True, "ssl_ca_certs": authority[0]} if authority else {}
    return RedisCluster(host=host, port=int(port), password=password, socket_timeout=10, **options, **more)


def value_of(key):
    return f"value of {key}".encode()


def until_read(client, keys, what):
    """Reads all keys. A library may first have to see that connections are gone."""
    began = time.monotonic()
    for key in keys:
        while True:
            try:
                value = client.get(key)
                break
            except (RedisError, RedisClusterException) as error:
                if time.monotonic() - began > PATIENCE_S:
                    sys.exit(f"not ok: {what}: {key}: {error!r}")
                time.sleep(0.1)
        if value != value_of(key):
            sys.exit(f"not ok: {what}: {key} is {value}")
    check(what, len(keys) > 0)


print(f"version {redis.__version__}", flush=True)
client = connect()
check("three servers", len(client.get_nodes()) == len(client.get_primaries()) == 3 and not client.get_replicas())
check("all answer", client.ping(target_nodes=RedisCluster.ALL_NODES))
client.flushall(target_nodes=RedisCluster.PRIMARIES)
keys = [f"key:{number}" for number in range(KEYS)]
check("set", all(client.set(key, value_of(key)) for key in keys))
check("get", [client.get(key) for key in keys] == [value_of(key) for key in keys])
sizes = [client.dbsize(target_nodes=[node]) for node in client.get_primaries()]
check("over all servers", sum(sizes) == KEYS and min(sizes) > KEYS // 10)
check("scan", sorted(client.scan_iter("key:*", count=20)) == sorted(key.encode() for key in keys))
pipeline = client.pipeline()
for number in range(200):
    pipeline.incr(f"counter:{number}")
    pipeline.hset(f"hash:{number}", "field", number)
check("a pipeline over all servers", pipeline.execute() == [1] * 400)
check("several keys of a tag", client.mset({"{tag}a": 1, "{tag}b": 2}) and client.mget("{tag}a", "{tag}b") == [b"1", b"2"])
check("many keys, slot by slot", client.mget_nonatomic(keys) == [value_of(key) for key in keys])
check("deleted by slot", client.delete(*[f"counter:{number}" for number in range(200)]) == 200)
owner = client.get_node_from_key("{tag}a")
direct = client.get_redis_connection(owner)
transaction = direct.pipeline(transaction=True)
transaction.set("{tag}a", 5)
transaction.incr("{tag}a")
transaction.mget("{tag}a", "{tag}b")
check("a transaction", transaction.execute() == [True, 6, [b"6", b"2"]])
try:
    client.execute_command("MGET", "a", "b", target_nodes=client.get_node_from_key("a"))
    sys.exit("not ok: two slots: nothing was raised")
except redis.exceptions.ClusterCrossSlotError:
    check("two slots", True)
try:
    elsewhere = next(node for node in client.get_primaries() if node.name != owner.name)
    client.get_redis_connection(elsewhere).get("{tag}a")
    sys.exit("not ok: elsewhere: nothing was raised")
except redis.exceptions.MovedError as error:
    check("elsewhere", (error.slot_id, error.node_addr[1]) == (client.keyslot("tag"), owner.port))
nodes = client.cluster_nodes()
ours = {f"{node.host}:{node.port}" for node in client.get_primaries()}
check("nodes", len(nodes) == 3 and (bool(authority) or set(nodes) == ours))
check("shards", len(client.cluster_shards(target_nodes=client.get_primaries()[0])) == 6 if hasattr(client, "cluster_shards") else True)
reader = connect(read_from_replicas=True)
check("reads from replicas, of which there are none", all(reader.get(key) == value_of(key) for key in keys[:50]))

await_("restart")
until_read(client, keys, "all keys after a restart")
left = await_("kill")
check("some are left", KEYS // 10 < len(left) < KEYS)
until_read(client, left, "keys of the others after the leader's death")
check("and written", all(client.set(key, value_of(key)) for key in left))
try:
    client.get(next(key for key in keys if key not in left))
    sys.exit("not ok: a key that is away: nothing was raised")
except (RedisError, RedisClusterException):
    check("a key that is away", True)
await_("start")
until_read(client, keys, "all keys when it is back")
until_read(connect(), keys, "and for who comes anew")
print(f"{checks} checks", flush=True)
