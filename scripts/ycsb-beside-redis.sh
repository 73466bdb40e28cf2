#!/usr/bin/env bash
# ycsb-beside-redis.sh [ECOTONE ...]: YCSB's workloads on Ecotone in a control group of little memory, beside Debian's redis-server without one.
# Both are loaded, stay alive, and are asked in turn. Prints a table, then one line of JSON that begins with {.
#
# ECOTONE is the program [default: $CARGO_TARGET_DIR/release/ecotone]; several are compared with each other too. Variables: WORKLOADS (cafdb,
# in this order), ROUNDS (3), RECORDS (2000000, of 1 KiB), OPERATIONS of each run (240000), THREADS (8), MEMORY of the control group in MiB
# (512), WHERE (folders of the servers, on the disk that is to be measured; default /var/tmp), OPTIONS (of ecotone serve; no ECOTONE_ variable
# counts), and those of ycsb.sh. Redis has appendonly yes and appendfsync everysec, Ecotone its default durability, which is everysec.
#
# Ends with an error where an operation failed, a key was evicted or the kernel ended a process for memory.
#
# Needs the right to make control groups, and memory for Redis: twice the data.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
[ $# -gt 0 ] || set -- "${CARGO_TARGET_DIR:-target}/release/ecotone"
workloads=${WORKLOADS:-cafdb} rounds=${ROUNDS:-3} records=${RECORDS:-2000000} operations=${OPERATIONS:-240000} threads=${THREADS:-8}
memory_mib=${MEMORY:-512}
unset "${!ECOTONE_@}" REDISCLI_AUTH

for tool in redis-server redis-cli python3; do
  command -v "$tool" >/dev/null || { echo "ycsb-beside-redis: $tool is missing; make setup installs it" >&2; exit 1; }
done
for program; do
  [ -x "$program" ] || { echo "ycsb-beside-redis: there is no program $program; build it, or name it" >&2; exit 1; }
done
[[ $workloads =~ ^[a-f]+$ ]] || { echo "ycsb-beside-redis: WORKLOADS are letters from a to f, not $workloads" >&2; exit 2; }

work=$(mktemp -d "${WHERE:-/var/tmp}/ecotone-ycsb.XXXXXX")
processes=() ports=() names=() groups=()
stop() {
  [ ${#processes[@]} -eq 0 ] || kill "${processes[@]}" 2>/dev/null || true
  wait 2>/dev/null || true
  [ ${#groups[@]} -eq 0 ] || rmdir "${groups[@]}" 2>/dev/null || true
}
trap 'stop; rm -rf "$work"' EXIT

# group NAME: makes a control group of so much memory, and prints its folder.
group() {
  local folder
  if [ -d /sys/fs/cgroup/memory ]; then
    folder=/sys/fs/cgroup/memory/$1
    mkdir "$folder" && echo $((memory_mib << 20)) >"$folder/memory.limit_in_bytes"
  else
    folder=/sys/fs/cgroup/$1
    echo +memory >/sys/fs/cgroup/cgroup.subtree_control && mkdir "$folder" && echo $((memory_mib << 20)) >"$folder/memory.max"
  fi || { echo "ycsb-beside-redis: no control group can be made at $folder; run as root" >&2; return 1; }
  echo "$folder"
}

# oom_kills FOLDER: processes of the group that the kernel has ended.
oom_kills() {
  # Of either version of control groups.
  local file=$1/memory.events
  [ -e "$file" ] || file=$1/memory.oom_control
  awk '$1 == "oom_kill" { kills += $2 } END { print kills + 0 }' "$file"
}

# begin NAME GROUP COMMAND...: starts a server of `port`, in the group if it is named, and waits until it answers.
begin() {
  local name=$1 of=$2
  shift 2
  (
    [ -z "$of" ] || echo "$BASHPID" >"$of/cgroup.procs"
    exec "$@"
  ) >"$work/$name.log" 2>&1 &
  processes+=($!) ports+=("$port") names+=("$name") groups+=(${of:+"$of"})
  until [ "$(redis-cli -p "$port" ping 2>/dev/null)" = PONG ]; do
    kill -0 "${processes[-1]}" 2>/dev/null || { tail -5 "$work/$name.log" >&2; exit 1; }
    sleep 0.1
  done
}

free_port() {
  port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
}

free_port
mkdir "$work/redis"
begin redis '' redis-server --port "$port" --bind 127.0.0.1 --dir "$work/redis" --appendonly yes --appendfsync everysec --save '' --daemonize no
number=0
for program; do
  number=$((number + 1)) name=ecotone
  [ $# -eq 1 ] || name=ecotone-$number
  free_port
  of=$(group "ecotone-ycsb-$$-$number")
  # shellcheck disable=SC2086 # several options
  begin "$name" "$of" env RUST_LOG=warn "$program" serve --clients "127.0.0.1:$port" --listen 127.0.0.1:0 --dir "$work/$name" ${OPTIONS:-}
done

# run ROUND SERVER WORKLOADS: one run, with the processor time of the server in it.
run() {
  local before after
  before=$(ticks "$2")
  "$here/ycsb.sh" 127.0.0.1 "${ports[$2]}" "$3" "$records" "$operations" "$threads" >"$work/line"
  after=$(ticks "$2")
  sed "s/^{/{\"round\": $1, \"server\": \"${names[$2]}\", \"ticks\": $((after - before)), /" "$work/line" | tee -a "$work/runs" >&2
}

ticks() {
  sed 's/^.*) //' "/proc/${processes[$1]}/stat" | awk '{ print $12 + $13 }'
}

# The load, and a short run of the first workload, which is in no figure.
for place in "${!names[@]}"; do
  OPERATIONS=1000 "$here/ycsb.sh" 127.0.0.1 "${ports[$place]}" "${workloads:0:1}" "$records" 1000 "$threads" >"$work/line"
  head -1 "$work/line" | sed "s/^{/{\"round\": 0, \"server\": \"${names[$place]}\", \"ticks\": 0, /" | tee -a "$work/runs" >&2
done
export YCSB_LOADED=1
for ((round = 1; round <= rounds; round++)); do
  for ((letter = 0; letter < ${#workloads}; letter++)); do
    for place in "${!names[@]}"; do
      run "$round" "$place" "${workloads:letter:1}"
    done
  done
done

for place in "${!names[@]}"; do
  kills=0
  [ "$place" -eq 0 ] || kills=$(oom_kills "${groups[$((place - 1))]}")
  peak_kib=$(awk '/^VmHWM/ { print $2 }' "/proc/${processes[$place]}/status")
  evicted=$(redis-cli -p "${ports[$place]}" info stats | tr -d '\r' | awk -F: '/^evicted_keys/ { print $2 }')
  echo "${names[$place]} $peak_kib $kills ${evicted:-0}" >>"$work/servers"
done
python3 - "$work/runs" "$work/servers" "$(getconf CLK_TCK)" "$memory_mib" <<'PYTHON'
import json, statistics, sys
runs = [json.loads(line) for line in open(sys.argv[1])]
servers = {name: [int(figure) for figure in figures] for name, *figures in (line.split() for line in open(sys.argv[2]))}
by = {}
for run in runs:
    by.setdefault(run["workload"], {}).setdefault(run["server"], {})[run["round"]] = run
table = {}
print(f"{'workload':<10}{'server':<12}{'ops/s':>9}{'by Redis':>10}   {'(rounds)':<28}{'CPU us/op':>10}   (rounds)")
for workload, of in by.items():
    for server, rounds in of.items():
        per_s = [run["ops_per_s"] for run in rounds.values()]
        ratios = [run["ops_per_s"] / of["redis"][number]["ops_per_s"] for number, run in rounds.items()]
        cpu = [run["ticks"] / int(sys.argv[3]) * 1e6 / run["operations"] for run in rounds.values()]
        table.setdefault(workload, {})[server] = {"ops_per_s": statistics.median(per_s), "by_redis": statistics.median(ratios),
                                                  "rounds": ratios, "cpu_us_per_op": cpu}
        print(f"{workload:<10}{server:<12}{statistics.median(per_s):>9.0f}{statistics.median(ratios):>10.2f}   "
              f"{' '.join(f'{ratio:.2f}' for ratio in ratios):<28}{statistics.median(cpu):>10.1f}   {' '.join(f'{us:.0f}' for us in cpu)}")
for name, (peak_kib, kills, evicted) in servers.items():
    print(f"{name}: {peak_kib >> 10} MiB resident at most, {kills} ended by the kernel for memory, {evicted} keys evicted")
print(json.dumps({"memory_mib": int(sys.argv[4]), "workloads": table, "servers": {
    name: {"resident_mib": peak_kib >> 10, "oom_kills": kills, "evicted": evicted} for name, (peak_kib, kills, evicted) in servers.items()}}))
if any(kills or evicted for _, kills, evicted in servers.values()):
    sys.exit("ycsb-beside-redis: memory did not suffice")
PYTHON
