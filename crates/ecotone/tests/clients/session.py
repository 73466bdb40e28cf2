"""A session with Debian's python3-redis. Arguments: the server (the path of a socket, or host:port) and its password."""

import sys
import time

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

where, password = sys.argv[1:]
checks = 0


def check(name, is_so):
    global checks
    if not is_so:
        sys.exit(f"not ok: {name}")
    checks += 1
    print(f"ok {name}")


def raises(name, kind, text, action):
    try:
        action()
    except kind as error:
        check(name, text in str(error))
    else:
        sys.exit(f"not ok: {name}: nothing was raised")


def connect(secret=password, **more):
    if where.startswith("/"):
        return redis.Redis(unix_socket_path=where, password=secret, **more)
    host, port = where.rsplit(":", 1)
    return redis.Redis(host=host, port=int(port), password=secret, **more)


# Who may come in.
raises("no password", redis.AuthenticationError, "Authentication required", connect(None).ping)
raises("a wrong password", redis.RedisError, "invalid username-password pair", connect("wrong").ping)
client = connect()
check("ping", client.ping())
check("echo", client.echo("héllo") == "héllo".encode())
check("the name of a client", connect(client_name="python").client_getname() == "python")
client.flushdb()
check("an empty database", client.dbsize() == 0)

# Strings.
every_byte = bytes(range(256))
check("every byte as value", client.set("bytes", every_byte) and client.get("bytes") == every_byte)
check("every byte as key", client.set(every_byte, "v") and client.get(every_byte) == b"v")
check("a key with every byte is listed", every_byte in client.keys())
large = every_byte * 4096
check("1 MiB", client.set("large", large) and client.get("large") == large)
check("a part of 1 MiB", client.getrange("large", -256, -1) == every_byte)
check("an empty value", client.set("empty", b"") and client.get("empty") == b"")
check("nothing", client.get("nothing") is None)
check("many at once", client.mset({"a": 1, "b": 2}) and client.mget("a", "nothing", "b") == [b"1", None, b"2"])
check("set if it is not there", client.set("a", 9, nx=True) is None and client.setnx("new", 1))
check("counting", client.incr("count", 41) == 41 and client.incr("count") == 42 and client.decr("count", 2) == 40)
check("counting with decimals", client.incrbyfloat("float", 0.5) == 0.5)
check("append", client.append("text", "abc") == 3 and client.strlen("text") == 3)
check("get and delete", client.getdel("text") == b"abc" and client.exists("text") == 0)
check("text", connect(decode_responses=True).get("a") == "1")

# Expiry.
check("expiry", client.set("short", "v", px=100_000) and 0 < client.pttl("short") <= 100_000)
check("an expiry that is soon", client.set("short", "v", px=40))
until = time.monotonic() + 30
while client.get("short") is not None and time.monotonic() < until:
    time.sleep(0.005)
check("a key whose time is over", client.exists("short") == 0 and client.ttl("short") == -2)
check("a long time", client.set("long", "v", ex=1000) and 990 < client.ttl("long") <= 1000)
check("persist", client.persist("long") and client.ttl("long") == -1)

# Hashes.
check("hash", client.hset("hash", mapping={"one": 1, "two": 2, "": b"\0\r\n"}) == 3)
check("all fields", client.hgetall("hash") == {b"one": b"1", b"two": b"2", b"": b"\0\r\n"})
check("some fields", client.hmget("hash", "two", "none") == [b"2", None])
check("counting in a hash", client.hincrby("hash", "one", 4) == 5 and client.hincrbyfloat("hash", "one", 0.25) == 5.25)
fields = {f"field{number}": number for number in range(1000)}
check("a large hash", client.hset("fields", mapping=fields) == 1000 and client.hlen("fields") == 1000)
found = dict(client.hscan_iter("fields", count=100))
check("a scan of fields", found == {name.encode(): str(number).encode() for name, number in fields.items()})
check("fields at random", len(set(client.hrandfield("fields", 50))) == 50)
check("deleting fields", client.hdel("fields", *list(fields)[:500]) == 500 and client.hlen("fields") == 500)

# Sorted sets.
check("sorted set", client.zadd("zset", {"one": 1, "two": 2.5, "least": float("-inf")}) == 3)
check("in their order", client.zrange("zset", 0, -1) == [b"least", b"one", b"two"])
check("scores", client.zrange("zset", 1, -1, withscores=True) == [(b"one", 1.0), (b"two", 2.5)])
check("by score", client.zrangebyscore("zset", "(1", "+inf") == [b"two"])
check("ranks", client.zrevrank("zset", "two") == 0 and client.zrank("zset", "none") is None)
check("an infinite score", client.zscore("zset", "least") == float("-inf"))
check("zincrby", client.zincrby("zset", 2, "one") == 3.0 and client.zpopmax("zset") == [(b"one", 3.0)])
client.zadd("scores", {f"m{number}": number for number in range(500)})
check("a scan of scores", {name: score for name, score in client.zscan_iter("scores")}[b"m499"] == 499.0)
check("a range of many", client.zremrangebyrank("scores", 0, 399) == 400 and client.zcard("scores") == 100)

# Sets.
check("set", client.sadd("set", "a", "b", "c") == 3 and client.smembers("set") == {b"a", b"b", b"c"})
client.sadd("other", "b", "c", "d")
check("sets together", client.sinter("set", "other") == {b"b", b"c"} and client.sdiff("set", "other") == {b"a"})
check("smove", client.smove("set", "other", "a") and not client.sismember("set", "a"))
check("many members", client.sadd("members", *range(1000)) == 1000)
check("a scan of members", set(client.sscan_iter("members")) == {str(number).encode() for number in range(1000)})
check("smismember", client.smismember("members", "5", "none") == [1, 0])

# Lists.
check("list", client.rpush("list", "a", "b", "c") == 3 and client.lpush("list", "z") == 4)
check("elements", client.lrange("list", 0, -1) == [b"z", b"a", b"b", b"c"])
check("ends", client.lpop("list") == b"z" and client.rpop("list", 2) == [b"c", b"b"])
check("lmove", client.lmove("list", "moved", "LEFT", "RIGHT") == b"a" and client.exists("list") == 0)
client.rpush("elements", *range(1000))
check("a large list", client.lindex("elements", 500) == b"500" and client.lpos("elements", "999") == 999)
client.ltrim("elements", 990, -1)
check("ltrim", client.lrange("elements", 0, -1) == [str(number).encode() for number in range(990, 1000)])

# Keys.
names = {f"scanned:{number}".encode() for number in range(500)}
client.mset({name: 1 for name in names})
check("a scan of keys", set(client.scan_iter(match="scanned:*", count=50)) == names)
check("a scan by type", set(client.scan_iter(_type="zset")) == {b"zset", b"scores"})
check("types", [client.type(key) for key in ("a", "hash", "zset", "set", "moved", "none")]
      == [b"string", b"hash", b"zset", b"set", b"list", b"none"])
check("rename", client.rename("fields", "renamed") and client.hlen("renamed") == 500)
check("unlink", client.unlink(*names) == 500)

# Pipelines and transactions.
with client.pipeline(transaction=False) as pipe:
    for number in range(1000):
        pipe.set(f"p{number}", number).get(f"p{number}")
    replies = pipe.execute()
check("a pipeline", replies[1::2] == [str(number).encode() for number in range(1000)])
with client.pipeline(transaction=False) as pipe:
    replies = pipe.set("p", 1).lpush("p", 1).get("p").execute(raise_on_error=False)
check("an error in a pipeline", replies[0] and isinstance(replies[1], redis.ResponseError) and replies[2] == b"1")
with client.pipeline() as pipe:
    check("a transaction", pipe.incr("t").hset("th", "f", "v").hgetall("th").execute() == [1, 1, {b"f": b"v"}])


def transfer(pipe):
    balance = int(pipe.get("account") or 0)
    if not interrupted:
        interrupted.append(connect().set("account", 50))
    pipe.multi()
    pipe.set("account", balance + 1)


interrupted = []
client.set("account", 1)
check("watch, and a second try", client.transaction(transfer, "account") == [True] and client.get("account") == b"51")
with client.pipeline() as pipe:
    pipe.watch("account")
    client.set("account", 7)
    pipe.multi()
    pipe.set("account", 8)
    raises("a watched key was written", redis.WatchError, "", pipe.execute)
check("nothing of it was done", client.get("account") == b"7")
with client.pipeline() as pipe:
    pipe.set("ok", 1)
    pipe.execute_command("SET", "refused")
    raises("a refused transaction", redis.ResponseError, "wrong number of arguments", pipe.execute)
check("nothing of that either", client.exists("ok") == 0)

# Errors.
raises("the wrong type", redis.ResponseError, "WRONGTYPE", lambda: client.lpush("a", 1))
raises("no number", redis.ResponseError, "not an integer", lambda: client.incr("bytes"))
raises("no command", redis.ResponseError, "unknown command", lambda: client.execute_command("NOTHING", "x"))
raises("no such key", redis.ResponseError, "no such key", lambda: client.rename("none", "x"))
raises("no syntax", redis.ResponseError, "syntax error", lambda: client.execute_command("SET", "a", "1", "BAD"))

# A connection that is killed, and the next one. It may be told of the end only when it asks for something.
victim = connect(retry=Retry(NoBackoff(), 1), retry_on_error=[redis.ConnectionError])
number = victim.client_id()
check("a client can be killed", client.client_kill_filter(_id=number) == 1)
check("it connects again", victim.ping() and victim.client_id() != number)
check("who is there", any(int(one["id"]) == victim.client_id() for one in client.client_list()))
check("what the server says of itself", client.info("server")["redis_version"].startswith("7."))
check("config", "maxclients" in client.config_get("maxclients"))

print(f"{checks} checks")
