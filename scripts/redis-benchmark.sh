#!/usr/bin/env bash
# redis-benchmark.sh MODE [ECOTONE]: Ecotone beside Debian's redis-server with redis-benchmark, each with a folder and a process of its own,
# one after the other. Prints tables, then one line of JSON that begins with {.
#
#   throughput  ROUNDS rounds in the order Redis, Ecotone, Redis, Ecotone: requests per second with -P 16 of get and set, one at a time of
#               get, set, hset, zadd, incr and lpush, on KEYS keys that are there; medians of the ratio within a round
#   latency     p99.9 of GET, one request at a time on each of 50 connections, at half of what each server reaches so (ecotone bench --rate)
#   idle        share of one core that a server with KEYS keys takes while nobody asks anything, over LENGTH
#   open        milliseconds from the start until PING is answered, on a folder of KEYS keys, in each round after an orderly end and after
#               SIGKILL with a fifth of KEYS written behind it, so that the folder grows; as root nothing of it is in the kernel's memory
#   whole       all tests of redis-benchmark, once, against Ecotone: must end without an error
#
# ECOTONE is the program [default: $CARGO_TARGET_DIR/release/ecotone]. Variables: ROUNDS (5), REQUESTS for each test (1000000; of whole
# 100000), KEYS (1000000), VALUE bytes of each (100; of open and idle alone), LENGTH in seconds (60; of latency 20), WHERE (folders of the servers, on a disk; default /var/tmp), CLIENTS (50),
# REST (seconds that a loaded server may take to come to rest; 300), VALUES (of latency: what values consist of, as of ecotone bench; random), OPTIONS (of ecotone serve; no ECOTONE_ variable counts). Redis has appendonly yes and appendfsync everysec, Ecotone its default durability, which is everysec.
set -euo pipefail

usage() {
  sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2
  exit 2
}
if [ $# -lt 1 ] || [ $# -gt 2 ]; then usage; fi
mode=$1
ecotone=${2:-${CARGO_TARGET_DIR:-target}/release/ecotone}
rounds=${ROUNDS:-5} keys=${KEYS:-1000000} value_bytes=${VALUE:-100} clients=${CLIENTS:-50} rest_s=${REST:-300}
# Settings and a password that the caller has for servers of their own.
unset "${!ECOTONE_@}" REDISCLI_AUTH
case $mode in
  throughput) requests=${REQUESTS:-1000000} seconds=60 value_bytes=100 ;;
  idle | open) requests=${REQUESTS:-1000000} seconds=60 ;;
  latency) requests=${REQUESTS:-1000000} seconds=20 ;;
  whole) requests=${REQUESTS:-100000} seconds=0 ;;
  *) usage ;;
esac
seconds=${LENGTH:-$seconds}

for tool in redis-server redis-benchmark redis-cli python3; do
  command -v "$tool" >/dev/null || { echo "redis-benchmark: $tool is missing; make setup installs it" >&2; exit 1; }
done
[ -x "$ecotone" ] || { echo "redis-benchmark: there is no program $ecotone; build it, or name it" >&2; exit 1; }

work=$(mktemp -d "${WHERE:-/var/tmp}/ecotone-redis.XXXXXX")
server=
stop() {
  if [ -n "$server" ]; then
    kill "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
    server=
  fi
}
trap 'stop; rm -rf "$work"' EXIT
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')

# start KIND FOLDER: starts a server; `server` is its process, `opened_ms` how long it took until it answered PING.
start() {
  local kind=$1 folder=$2
  mkdir -p "$folder"
  local began
  began=$(date +%s%N)
  case $kind in
    redis)
      redis-server --port "$port" --bind 127.0.0.1 --dir "$folder" --appendonly yes --appendfsync everysec --save '' \
        --daemonize no >"$folder.log" 2>&1 &
      ;;
    ecotone)
      # shellcheck disable=SC2086 # several options
      RUST_LOG=warn "$ecotone" serve --clients "127.0.0.1:$port" --listen 127.0.0.1:0 --dir "$folder" ${OPTIONS:-} \
        >"$folder.log" 2>&1 &
      ;;
  esac
  server=$!
  # By the shell itself: another program would take longer to begin than a server to open.
  until answers; do
    if ! kill -0 "$server" 2>/dev/null || [ $(($(date +%s%N) - began)) -gt 600000000000 ]; then
      echo "redis-benchmark: $kind does not come up; its log ends:" >&2
      tail -5 "$folder.log" >&2
      exit 1
    fi
    sleep 0.001
  done
  opened_ms=$((($(date +%s%N) - began) / 1000000))
}

# Whether the server answers PING with PONG: one that still loads says something else.
answers() {
  local said=
  { exec 3<>"/dev/tcp/127.0.0.1/$port"; } 2>/dev/null || return 1
  if printf 'PING\r\n' >&3; then IFS= read -r -t 60 said <&3 || true; fi
  exec 3>&-
  [[ $said == +PONG* ]]
}

# measured NAME ARGUMENTS...: redis-benchmark's lines "test",requests per second,... with NAME before them.
measured() {
  local name=$1
  shift
  redis-benchmark -p "$port" -r "$keys" -d 100 -c "$clients" -n "$requests" --csv "$@" 2>"$work/errors" >"$work/csv" || {
    cat "$work/errors" "$work/csv" >&2
    return 1
  }
  if [ -s "$work/errors" ] || grep -qi '^error\|-ERR' "$work/csv"; then
    cat "$work/errors" "$work/csv" >&2
    return 1
  fi
  grep -v '^"test"' "$work/csv" | sed "s/^/\"$name\",/"
}

# preload [KEYS]: every key that get and set draw is there before anything is measured.
preload() {
  python3 - "$port" "${1:-$keys}" "$value_bytes" <<'PYTHON'
import socket, sys
port, keys, value_bytes = map(int, sys.argv[1:])
value = b"x" * value_bytes
with socket.create_connection(("127.0.0.1", port)) as server:
    answers = server.makefile("rb")
    for begin in range(0, keys, 1000):
        batch = range(begin, min(begin + 1000, keys))
        server.sendall(b"".join(b"*3\r\n$3\r\nSET\r\n$16\r\nkey:%012d\r\n$%d\r\n%s\r\n" % (key, value_bytes, value) for key in batch))
        for _ in batch:
            answer = answers.readline()
            if answer != b"+OK\r\n":
                sys.exit(f"redis-benchmark: SET was answered {answer!r}")
PYTHON
}

# What a loaded server still has to do is not measured: waits until it has done nothing for three looks in a row, a second apart.
rest() {
  local info='' busy='' quiet=0 begun=$SECONDS
  local work='^(memtables_waiting|running_flushes|running_compactions|value_log_gc_segments|aof_rewrite_in_progress|rdb_bgsave_in_progress):0*[1-9]'
  while [ $quiet -lt 3 ]; do
    if [ $((SECONDS - begun)) -gt "$rest_s" ]; then
      echo "redis-benchmark: the server has not come to rest within $rest_s s (REST): ${busy:-INFO is not answered}" >&2
      exit 1
    fi
    sleep 1
    info=$(redis-cli -p "$port" info) || info=
    busy=$(tr -d '\r' <<<"$info" | grep -E "$work") || true
    if [[ -z $busy && $info == *redis_version:* ]]; then quiet=$((quiet + 1)); else quiet=0; fi
  done
}

# Has the kernel forget what it has read of files, where it is asked by root.
forget() {
  [ "$(id -u)" -eq 0 ] || return 0
  sync
  { echo 1 >/proc/sys/vm/drop_caches; } 2>/dev/null || echo 'redis-benchmark: the kernel keeps what it has read of files' >&2
}

# The processor time of the server so far, in clock ticks: fields 14 and 15, behind the name, which may hold spaces.
ticks() {
  sed 's/^.*) //' "/proc/$server/stat" | awk '{ print $12 + $13 }'
}

case $mode in
  throughput)
    for ((round = 1; round <= rounds; round++)); do
      for kind in redis ecotone; do
        start "$kind" "$work/$kind"
        preload
        rest
        echo "round $round of $rounds: $kind" >&2
        {
          measured P16 -P 16 -t get,set
          measured P1 -t get,set,hset,zadd,incr,lpush
        } | sed "s/^/$round,$kind,/" >>"$work/rounds.csv"
        stop
        rm -rf "${work:?}/$kind"
      done
    done
    python3 - "$work/rounds.csv" <<'PYTHON'
import csv, json, statistics, sys
rounds = {}
for number, kind, pipeline, test, per_s, *_ in csv.reader(open(sys.argv[1])):
    rounds.setdefault((pipeline, test), {}).setdefault(int(number), {})[kind] = float(per_s)
table = {}
print(f"{'test':<12}{'redis/s':>12}{'ecotone/s':>12}{'ratio':>8}   (rounds)")
for (pipeline, test), of in rounds.items():
    ratios = sorted(round["ecotone"] / round["redis"] for round in of.values())
    median = {kind: statistics.median(round[kind] for round in of.values()) for kind in ("redis", "ecotone")}
    row = {**{f"{kind}_per_s": per_s for kind, per_s in median.items()}, "ratio": statistics.median(ratios),
           "least": ratios[0], "greatest": ratios[-1]}
    table[f"{test.split(' ')[0]} {pipeline}"] = row
    print(f"{test.split(' ')[0] + ' ' + pipeline:<12}{median['redis']:>12.0f}{median['ecotone']:>12.0f}{row['ratio']:>8.3f}"
          f"   ({row['least']:.3f} to {row['greatest']:.3f})")
print(json.dumps({"mode": "throughput", "rounds": max(map(len, rounds.values())), "tests": table}))
PYTHON
    ;;
  latency)
    # ecotone bench's own keys: 16 bytes, values of 100.
    bench=("$ecotone" bench --target "resp://127.0.0.1:$port" --keys "$keys" --value-bytes 100 --values "${VALUES:-random}"
      --threads "$clients" --json)
    for ((round = 1; round <= rounds; round++)); do
      for kind in redis ecotone; do
        start "$kind" "$work/$kind"
        echo "round $round of $rounds: $kind" >&2
        "${bench[@]}" fillseq --pipeline 16 >/dev/null
        rest
        "${bench[@]}" readrandom --use-existing --seconds "$seconds" --settle-seconds 0 >"$work/peak.json"
        half=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["ops_per_s"] / 2)' "$work/peak.json")
        "${bench[@]}" readrandom --use-existing --seconds "$seconds" --settle-seconds 0 --rate "$half" >"$work/half.json"
        python3 - "$kind" "$work/peak.json" "$work/half.json" >>"$work/rounds" <<'PYTHON'
import json, sys
peak, half = (json.load(open(path)) for path in sys.argv[2:])
assert peak["missed"] == half["missed"] == 0, "reads found no key"
print(json.dumps({"kind": sys.argv[1], "peak_per_s": peak["ops_per_s"], "offered_per_s": half["options"]["workload"]["rate_ops_per_s"],
                  "reached_per_s": half["ops_per_s"], **{f"{name}_us": value for name, value in half["latency_us"]["get"].items()}}))
PYTHON
        stop
        rm -rf "${work:?}/$kind"
      done
    done
    python3 - "$work/rounds" <<'PYTHON'
import json, statistics, sys
runs = [json.loads(line) for line in open(sys.argv[1])]
figures = {}
print(f"{'':<10}{'peak/s':>10}{'offered/s':>11}{'reached/s':>11}{'p50 us':>10}{'p99 us':>10}{'p99.9 us':>10}{'max us':>10}")
for kind in ("redis", "ecotone"):
    of = [run for run in runs if run["kind"] == kind]
    names = ("peak_per_s", "offered_per_s", "reached_per_s", "p50_us", "p99_us", "p999_us", "max_us")
    figures[kind] = {name: statistics.median(run[name] for run in of) for name in names}
    peak, offered, reached, *latency = figures[kind].values()
    print(f"{kind:<10}{peak:>10.0f}{offered:>11.0f}{reached:>11.0f}" + "".join(f"{us:>10.1f}" for us in latency))
print(json.dumps({"mode": "latency", "medians": figures, "runs": runs}))
PYTHON
    ;;
  idle)
    for kind in redis ecotone; do
      start "$kind" "$work/$kind"
      preload
      rest
      sleep 10
      before=$(ticks)
      sleep "$seconds"
      echo "$kind $(($(ticks) - before)) $seconds $(getconf CLK_TCK)" >>"$work/rounds"
      stop
    done
    python3 - "$work/rounds" <<'PYTHON'
import json, sys
shares = {}
for line in open(sys.argv[1]):
    kind, ticks, seconds, per_s = line.split()
    shares[kind] = int(ticks) / int(per_s) / float(seconds)
    print(f"{kind:<10}{shares[kind] * 100:.2f} % of a core over {seconds} s")
print(json.dumps({"mode": "idle", "share_of_a_core": shares}))
PYTHON
    ;;
  open)
    folder_bytes() { du -sb "$work/$kind" | cut -f1; }
    for kind in redis ecotone; do
      start "$kind" "$work/$kind"
      preload
      rest
      stop
      for ((round = 1; round <= rounds; round++)); do
        forget
        start "$kind" "$work/$kind"
        echo "$kind orderly $opened_ms $(folder_bytes)" >>"$work/rounds"
        preload $((keys / 5))
        # In one group: the shell tells of a child that was killed where it next looks.
        {
          kill -KILL "$server"
          wait "$server"
        } 2>/dev/null || true
        forget
        start "$kind" "$work/$kind"
        echo "$kind killed $opened_ms $(folder_bytes)" >>"$work/rounds"
        rest
        stop
      done
      rm -rf "${work:?}/$kind"
    done
    python3 - "$work/rounds" <<'PYTHON'
import json, statistics, sys
opened = {}
for line in open(sys.argv[1]):
    kind, end, ms, size = line.split()
    opened.setdefault(kind, {}).setdefault(end, []).append({"ms": int(ms), "bytes": int(size)})
for kind, ends in opened.items():
    for end, rounds in ends.items():
        median = statistics.median(of["ms"] for of in rounds)
        told = ", ".join(f"{of['ms']} for {of['bytes'] / 1e6:.0f} MB" for of in rounds)
        print(f"{kind:<10}{end:<9}{median:>8.0f} ms (rounds {told})")
print(json.dumps({"mode": "open", "servers": opened}))
PYTHON
    ;;
  whole)
    start ecotone "$work/ecotone"
    measured P1 >"$work/one"
    measured P16 -P 16 >"$work/sixteen"
    errors=$(redis-cli -p "$port" info stats | tr -d '\r' | sed -n 's/^total_error_replies://p')
    stop
    cat "$work/one" "$work/sixteen" | python3 -c '
import csv, json, sys
rows = [(pipeline, test, float(per_s)) for pipeline, test, per_s, *_ in csv.reader(sys.stdin)]
for pipeline, test, per_s in rows:
    print(f"{pipeline:<5}{test:<40}{per_s:>12.0f}/s")
errors = int(sys.argv[1])
print(json.dumps({"mode": "whole", "tests": len(rows), "error_replies": errors}))
sys.exit(errors != 0 or len(rows) < 40)' "$errors"
    ;;
esac
