#!/usr/bin/env bash
# ycsb.sh HOST PORT [WORKLOADS [RECORDS [OPERATIONS [THREADS]]]]: runs YCSB's core workloads against a server that speaks the Redis
# protocol, and prints one line of JSON for each: throughput, mean and 99th percentiles in microseconds, errors. Defaults: abcfde (YCSB's
# own order), 20000 records, as many operations, 4 threads. A failed or missing operation ends it with an error.
#
# It starts nothing. Into the server it writes hashes user... and the sorted set _indices, and leaves them there: use an empty one.
# Each workload runs on what the load and those before it have left, as YCSB means it; what d inserted, e writes again.
#
# YCSB's client and workloads are site.ycsb:core 0.17.0. Its Redis binding is not in Maven Central, so ycsb/RedisBinding.java sends the same
# commands with the same library (jedis 2.9.0). With YCSB_BINDING=redis-binding-0.17.0.jar (of YCSB's own release) or another jar or folder of
# classes that binding, class site.ycsb.db.RedisClient, runs instead. To compile it after this has run once:
#   git clone --branch 0.17.0 https://github.com/brianfrankcooper/YCSB && mkdir binding &&
#     javac -cp "$HOME/.cache/ecotone/ycsb/lib/*" -d binding YCSB/redis/src/main/java/site/ycsb/db/RedisClient.java
#
# With YCSB_CLUSTER=1 the server is one of a cluster, and the client asks all of them (redis.cluster=true).
#
# With YCSB_LOADED=1 nothing is loaded: the records are there from an earlier call. So two servers can be asked in turn.
#
# YCSB_HOME: what was downloaded and compiled [default: ~/.cache/ecotone/ycsb]. YCSB_PASSWORD: the server's password.
set -euo pipefail

if [ $# -lt 2 ] || [ $# -gt 6 ]; then
  sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2
  exit 2
fi
host=$1 port=$2 workloads=${3:-abcfde} records=${4:-20000} operations=${5:-$records} threads=${6:-4}
own=$(cd "$(dirname "$0")/ycsb" && pwd)
home=${YCSB_HOME:-$HOME/.cache/ecotone/ycsb}

for tool in mvn java javac python3; do
  command -v "$tool" >/dev/null || { echo "ycsb: $tool is missing; install maven, a JDK and python3" >&2; exit 1; }
done
[[ $workloads =~ ^[a-f]+$ ]] || { echo "ycsb: workloads are letters from a to f, such as abcfde, not $workloads" >&2; exit 2; }
(: <"/dev/tcp/$host/$port") 2>/dev/null || { echo "ycsb: nothing listens at $host:$port; start the server first" >&2; exit 1; }

mkdir -p "$home/lib" "$home/classes"
if [ ! -e "$home/complete" ]; then
  # Of a copy, so that nothing is written into the checkout.
  cp "$own/pom.xml" "$home/pom.xml"
  mvn -q -B -f "$home/pom.xml" org.apache.maven.plugins:maven-dependency-plugin:3.6.0:copy-dependencies \
    -DincludeScope=runtime -DoutputDirectory="$home/lib" >&2
  touch "$home/complete"
fi
if [ -n "${YCSB_BINDING:-}" ]; then
  binding=$YCSB_BINDING class=site.ycsb.db.RedisClient
else
  javac -nowarn -cp "$home/lib/*" -d "$home/classes" "$own/RedisBinding.java"
  binding=$home/classes class=RedisBinding
fi

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
# ycsb NAME ARGUMENTS...: one run; its measurements go to $results/NAME.json.
ycsb() {
  local name=$1
  shift
  java -cp "$binding:$home/lib/*" site.ycsb.Client -db "$class" -threads "$threads" "$@" \
    -p redis.host="$host" -p redis.port="$port" ${YCSB_CLUSTER:+-p redis.cluster=true} ${YCSB_PASSWORD:+-p redis.password="$YCSB_PASSWORD"} \
    -p recordcount="$records" -p operationcount="$operations" -p measurementtype=hdrhistogram \
    -p exporter=site.ycsb.measurements.exporter.JSONArrayMeasurementsExporter -p exportfile="$results/$name.json" \
    >"$results/$name.log" 2>&1 || { tail -20 "$results/$name.log" >&2; return 1; }
}

# summary NAME WANTED: the line of a run, of which so many operations are wanted.
summary() {
  python3 - "$results/$1.json" "$results/$1.log" "$1" "$2" "$class" <<'PYTHON'
import json, sys
path, log, name, wanted, binding = sys.argv[1:]
figures = {}
for figure in json.load(open(path)):
    figures.setdefault(figure["metric"], {})[figure["measurement"]] = figure["value"]
kinds = {kind: of for kind, of in figures.items() if kind in ("READ", "UPDATE", "INSERT", "SCAN", "READ-MODIFY-WRITE")}
returned = [(result, count) for of in figures.values() for result, count in of.items() if result.startswith("Return=")]
errors = sum(count for result, count in returned if result != "Return=OK")
errors += sum(of.get("Operations", 0) for kind, of in figures.items() if kind.endswith("-FAILED"))
# A read-modify-write is counted as a read and an update as well.
single = {kind: of.get("Operations", 0) for kind, of in kinds.items() if kind != "READ-MODIFY-WRITE"}
done = sum(single.values()) - kinds.get("READ-MODIFY-WRITE", {}).get("Operations", 0)
print(json.dumps({
    "workload": name,
    "binding": binding,
    "ops_per_s": round(figures["OVERALL"]["Throughput(ops/sec)"], 1),
    "operations": done,
    "errors": errors,
    "mean_us": {kind: round(of["AverageLatency(us)"], 1) for kind, of in kinds.items()},
    "p99_us": {kind: of["99thPercentileLatency(us)"] for kind, of in kinds.items()},
}))
if errors or done != int(wanted):
    print(f"ycsb: {name}: {errors} operations failed, {done} of {wanted} were done", file=sys.stderr)
    print("".join(open(log).readlines()[-20:]), file=sys.stderr)
    sys.exit(1)
PYTHON
}

if [ -z "${YCSB_LOADED:-}" ]; then
  ycsb load -load -P "$own/workloada"
  summary load "$records"
fi
failed=0
for ((place = 0; place < ${#workloads}; place++)); do
  letter=${workloads:place:1}
  ycsb "$letter" -t -P "$own/workload$letter" || { failed=1; continue; }
  summary "$letter" "$operations" || failed=1
done
exit $failed
