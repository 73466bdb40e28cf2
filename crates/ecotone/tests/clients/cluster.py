"""A session of a cluster client with Debian's python3-redis. Arguments: the server (host:port) and its password."""

import sys

import redis
from redis.cluster import RedisCluster

where, password = sys.argv[1:]
checks = 0


def check(name, is_so):
    global checks
    if not is_so:
        sys.exit(f"not ok: {name}")
    checks += 1
    print(f"ok {name}")


host, port = where.rsplit(":", 1)
client = RedisCluster(host=host, port=int(port), password=password, require_full_coverage=True)
check("one server", len(client.get_nodes()) == 1 and len(client.get_primaries()) == 1)
check("it is where it listens", client.get_primaries()[0].port == int(port))
check("ping", client.ping())
client.flushall()
check("slots of keys", client.keyslot("a") == client.cluster_keyslot("a") == 15495)
for number in range(300):
    client.set(f"key:{number}", number)
check("keys of many slots", all(client.get(f"key:{number}") == str(number).encode() for number in range(300)))
check("all are counted", client.dbsize() == 300 and len(list(client.scan_iter("key:*", count=50))) == 300)
check("many at once, slot by slot", client.mset_nonatomic({f"{{m{n}}}": n for n in range(50)}))
check("and read", client.mget_nonatomic([f"{{m{n}}}" for n in range(50)]) == [str(n).encode() for n in range(50)])
check("deleted in all slots", client.delete(*[f"{{m{n}}}" for n in range(50)]) == 50)
check("one tag, one slot", client.mset({"{t}a": 1, "{t}b": 2}) and client.mget("{t}a", "{t}b") == [b"1", b"2"])
check("keys of a slot", client.cluster_countkeysinslot(client.keyslot("t")) == 2)
listed = client.cluster_get_keys_in_slot(client.keyslot("t"), 10)
check("by name", sorted(listed) in (["{t}a", "{t}b"], [b"{t}a", b"{t}b"]))
try:
    client.execute_command("MGET", "a", "b", target_nodes=client.get_primaries()[0])
    sys.exit("not ok: two slots: nothing was raised")
except redis.exceptions.ClusterCrossSlotError:
    check("two slots", True)
pipeline = client.pipeline()
for number in range(100):
    pipeline.incr(f"counter:{number}")
    pipeline.hset(f"hash:{number}", "f", number)
check("a pipeline over all slots", pipeline.execute() == [1] * 200)
check("the state", client.cluster_info(target_nodes=client.get_primaries()[0])["cluster_state"] == "ok")
nodes = client.cluster_nodes()
check("nodes", len(nodes) == 1 and list(nodes.values())[0]["slots"] == [["0", "16383"]])
check("a value of 1 MiB", client.set("large", b"x" * (1 << 20)) and len(client.get("large")) == 1 << 20)
direct = redis.Redis(host=host, port=int(port), password=password)
transaction = direct.pipeline(transaction=True)
transaction.set("{t}a", 5)
transaction.incr("{t}a")
check("a transaction in a slot", transaction.execute() == [True, 6])
check("what it says of itself", direct.info("cluster")["cluster_enabled"] == 1)
client.flushall()
print(f"{checks} checks")
