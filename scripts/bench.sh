#!/usr/bin/env bash
# bench.sh ECOTONE [PATTERN]: runs the measurements that docs/performance.md states, or those whose
# name matches the shell pattern, one after the other: they would disturb each other. What each prints is kept in
# $CARGO_TARGET_DIR/bench/NAME.txt, beneath the command that made it. Stores lie in ECOTONE_BENCH_DIR [default: /var/tmp]
# meanwhile. What values consist of where stores are compared is ECOTONE_BENCH_VALUES [default: half, as db_bench's; random is measured beside it
# in values-*]. All of them take about nine hours; a failed one does not stop the rest, but the script ends with an error then.
set -euo pipefail
cd "$(dirname "$0")/.."

ecotone=$1
pattern=${2:-*}
results=${CARGO_TARGET_DIR:-target}/bench
# Not /tmp, which may be memory: the figures are of a disk.
values=${ECOTONE_BENCH_VALUES:-half}
stores=$(mktemp -d "${ECOTONE_BENCH_DIR:-/var/tmp}/ecotone-bench.XXXXXX")
mkdir -p "$results"
memory_group=
clean() {
  rm -rf "$stores"
  [ -z "$memory_group" ] || rmdir "$memory_group" 2>/dev/null || true
  # The lab takes root; what it found is whose that asked.
  if [ "$(id -u)" -eq 0 ] && [ -n "${SUDO_UID:-}" ]; then chown -R "$SUDO_UID:${SUDO_GID:-}" "$results"; fi
}
trap clean EXIT
# Lines "matched NAME" and "failed NAME"; a file, since measurements at once are processes of their own.
outcome=$stores/.outcome
touch "$outcome"

# measure NAME ARGUMENTS...: one run of ecotone, in the control group `memory_group` if there is one.
measure() {
  local name=$1
  shift
  measure_command "$name" "$ecotone" "$@"
}

# measure_command NAME COMMAND...: the same of another program.
measure_command() {
  local name=$1
  shift
  # shellcheck disable=SC2053 # a pattern is meant
  [[ $name == $pattern ]] || return 0
  echo "matched $name" >>"$outcome"
  local told=$*
  printf '\n== %s\n%s\n' "$name" "${told//"$ecotone"/ecotone}" | tee "$results/$name.txt"
  {
    # Without its limit it would be another measurement.
    [ -z "$memory_group" ] || echo "$BASHPID" >"$memory_group/cgroup.procs" || exit 1
    "$@" 2>&1
  } | tee -a "$results/$name.txt" || echo "failed $name" >>"$outcome"
}

# limit_memory BYTES: makes `memory_group`, a control group (version 1 or 2) of at most so much memory. Where that fails, so does what is measured
# in it.
limit_memory() {
  local root=/sys/fs/cgroup limit=memory.max
  if [ -d $root/memory ]; then
    root=$root/memory limit=memory.limit_in_bytes
  else
    echo +memory >$root/cgroup.subtree_control || true
  fi
  memory_group=$root/ecotone-bench.$$
  mkdir "$memory_group" && echo "$1" >"$memory_group/$limit" || memory_group=/nowhere
}

# One store, with values with their keys, beside bare RocksDB with the same options: what our layers cost.
for workload in fillseq fillrandom overwrite readrandom readwhilewriting seekrandom mixgraph ycsb-{a,b,c,d,e,f}; do
  measure "plain-$workload" bench "$workload" --separation off --compare --json --dir "$stores/$workload" --keys 1000000 --seconds 10 \
    --rounds 3 --values "$values"
  rm -rf "${stores:?}/$workload"
done

# Separated values, as by default, beside RocksDB alone whose log nobody syncs (scripts/compared.py makes the table).
# measure_separated NAME WORKLOAD ARGUMENTS...
measure_separated() {
  local name=separated-$1 workload=$2
  shift 2
  measure "$name" bench "$workload" --compare --json --baseline-durability none --dir "$stores/$name" --values "$values" "$@"
  rm -rf "${stores:?}/$name"
}
measure_separated fillrandom fillrandom --keys 40000000 --seconds 60 --rounds 2
measure_separated fillrandom-overwriting fillrandom --keys 10000000 --seconds 60 --rounds 2
measure_separated fillrandom-cores fillrandom --keys 10000000 --seconds 60 --cores 0.4 --rounds 3
for bytes in 256 100; do
  measure_separated fillrandom-$bytes fillrandom --keys 10000000 --seconds 20 --cores 0.4 --rounds 3 --value-bytes $bytes
done
measure_separated fillseq-8k fillseq --keys 250000 --value-bytes 8192 --rounds 3
# So long that what a burst may leave (`store.gc_burst_credit_seconds`) is freed before the second half; and a burst.
measure_separated updates updates --seconds 280 --cores 0.4 --rounds 2
measure_separated updates-zipf updates --zipf 0.99 --seconds 280 --cores 0.4 --rounds 2
measure_separated updates-burst updates --seconds 60 --cores 0.4 --rounds 3
measure_separated updates-zipf-burst updates --zipf 0.99 --seconds 60 --cores 0.4 --rounds 3
measure separated-always bench fillrandom --compare --json --dir "$stores/always" --keys 1000000 --seconds 15 --settle-seconds 20 --rounds 5 \
  --durability always --threads 16 --values "$values"
measure_separated readrandom readrandom --keys 300000 --seconds 10 --cores 0.4 --rounds 3
measure_separated seekrandom seekrandom --keys 300000 --seconds 10 --cores 0.4 --rounds 3
measure_separated seekrandom-50 seekrandom --keys 300000 --seconds 10 --cores 0.4 --rounds 3 --scan-entries 50 --updates-before 100
measure_separated readwhilewriting readwhilewriting --keys 500000 --seconds 15 --cores 0.4 --rounds 5
# A quarter of the data.
# shellcheck disable=SC2053 # a pattern is meant
if [[ separated-readrandom-beyond-memory == $pattern ]]; then
  limit_memory 314572800
  measure_separated readrandom-beyond-memory readrandom --keys 1200000 --seconds 15 --rounds 3
  rmdir "$memory_group" || true
  memory_group=
fi

# The same by what values consist of: beside RocksDB alone, and updates beside BlobDB (scripts/compared.py makes the table).
for kind in random half json text; do
  for bytes in 300 1000; do
    for workload in fillrandom readrandom; do
      # Both with zstd for tables: what RocksDB makes of the values at its best.
      name=values-$kind-$bytes-$workload
      measure "$name" bench $workload --compare --json --baseline-durability none --dir "$stores/$name" --keys 1000000 --value-bytes $bytes \
        --seconds 20 --cores 0.4 --rounds 3 --values $kind --compression zstd
      rm -rf "${stores:?}/$name"
    done
  done
  name=values-$kind-1000-updates-blob
  measure "$name" bench updates --compare --baseline rocksdb-blob --json --baseline-durability none --dir "$stores/$name" --seconds 60 --cores 0.4 \
    --rounds 3 --values $kind --compression zstd --blob-compression zstd
  rm -rf "${stores:?}/$name"
done

# Updates on 0.4 core, of which garbage shows in the space over time (scripts/updates.py draws it): the three stores at once, since the host's
# speed changes; and of ours at a rate that leaves relocation time, both draws at once.
measure_updates() {
  local name=updates-$1
  shift
  measure "$name" bench updates --json --settle-seconds 0 --dir "$stores/$name" --values "$values" "$@"
  rm -rf "${stores:?}/$name"
}
for keys in uniform zipf; do
  drawn=()
  [ $keys = uniform ] || drawn=(--zipf 0.99)
  measure_updates $keys-engine "${drawn[@]}" --seconds 300 --cores 0.4 &
  for target in rocksdb rocksdb-blob; do
    measure_updates $keys-$target "${drawn[@]}" --seconds 300 --cores 0.4 --target $target --durability none &
  done
  wait
done
# At as much space as BlobDB takes, one after the other.
for keys in uniform:3 zipf:2; do
  drawn=()
  [ ${keys%:*} = uniform ] || drawn=(--zipf 0.99)
  measure_updates "${keys%:*}-ample" "${drawn[@]}" --seconds 60 --cores 0.4 --store-option "gc_ratio=${keys#*:}"
  measure_updates "${keys%:*}-ample-blob" "${drawn[@]}" --seconds 60 --cores 0.4 --target rocksdb-blob --durability none
done
measure_updates 30-minutes --seconds 1800 --cores 0.4
measure_updates uniform-rate --seconds 400 --rate 10000 &
measure_updates zipf-rate --zipf 0.99 --seconds 400 --rate 10000 &
wait
rm -rf "${stores:?}"/*

# Duplicates in lower levels, in a tree of five static ones: space by what is written for it, by way and threshold (scripts/duplicates.py draws
# it); what counting alone costs; how close estimates are where less is overwritten; and what a writer that never waits gets.
duplicates=(updates --keys 1500000 --durability none --settle-seconds 0 --compression none --json)
tree=(level_multiplier=4 dynamic_levels=false)
plain=(--value-bytes 100 --separation off)
plain_tree=(memtable_bytes=2097152 target_file_bytes=1048576 level_base_bytes=4194304)
separate=(--value-bytes 400 --separation 128)
separate_tree=(memtable_bytes=1048576 target_file_bytes=262144 level_base_bytes=1048576)
# measure_duplicates NAME LAYOUT ARGUMENTS...
measure_duplicates() {
  local name=duplicates-$2-$1
  local -n values=$2 sizes=$2_tree
  shift 2
  local options=()
  for option in "${tree[@]}" "${sizes[@]}"; do options+=(--store-option "$option"); done
  measure "$name" bench "${duplicates[@]}" "${values[@]}" "${options[@]}" --dir "$stores/$name" "$@"
  rm -rf "${stores:?}/$name"
}
for layout in plain separate; do
  steady=("$layout" --seconds 60 --rate 40000)
  # A rate at which writers wait for a few hundredths of the time: while they do more garbage may stay, whatever is merged.
  [ $layout = plain ] || steady=("$layout" --seconds 150 --rate 10000)
  measure_duplicates off "${steady[@]}" --dedup off
  for threshold in 2 4 5 6 7 8 10 20 30 50 70 100; do
    measure_duplicates "sample-$threshold" "${steady[@]}" --dedup sample --threshold $threshold
  done
  for threshold in 2 5 10 30 100; do
    measure_duplicates "triggered-$threshold" "${steady[@]}" --dedup triggered --threshold $threshold
  done
  for threshold in 10 30 100; do
    measure_duplicates "filter-$threshold" "${steady[@]}" --dedup filter --threshold $threshold
  done
  for round in 1 2 3; do
    measure_duplicates "counting-$round" "$layout" --seconds 40 --rate 30000 --dedup sample
    measure_duplicates "without-$round" "$layout" --seconds 40 --rate 30000 --dedup off
  done
  for share in 5 20 50; do
    measure_duplicates "share-$share" "$layout" --seconds 30 --rate 30000 --update-share $share --dedup sample
  done
  for round in 1 2 3; do
    for threshold in off 10 30 100; do
      way=(--dedup off)
      [ $threshold = off ] || way=(--dedup sample --threshold $threshold)
      measure_duplicates "flat-out-$threshold-$round" "$layout" --seconds 45 --cores 0.6 "${way[@]}"
    done
  done
done

# Three unequal servers: saturated (three times, in another order each), then at the same offered load, then readers and a mixed load,
# then with the co-located load of another application that grows during the run.
lab=(--profile three-tier --seconds 90)
for order in local,edgepilot,eco eco,local,edgepilot edgepilot,eco,local; do
  measure "lab-fillrandom-${order//,/-}" lab fillrandom "${lab[@]}" --policies "$order" --papers
done
measure lab-parts lab fillrandom "${lab[@]}" --policies local-split,eco-gate,eco-target
measure lab-fillrandom-70 lab fillrandom "${lab[@]}" --policies local,edgepilot,eco --rate 70%
measure lab-readwhilewriting lab readwhilewriting "${lab[@]}" --policies local,edgepilot,eco
measure lab-mixgraph lab mixgraph "${lab[@]}" --policies local,edgepilot,eco
measure lab-colocated lab fillrandom "${lab[@]}" --policies edgepilot,eco --colocated 8
measure lab-separation lab fillrandom "${lab[@]}" --policies local,eco --separation off,128
# Two servers of each tier; what an offload itself costs.
measure lab-six lab fillrandom --profile six --seconds 90 --policies local,edgepilot,eco
measure lab-pair lab fillrandom --profile pair --seconds 90 --policies local,eco-target --rate 4000

# The server beside Debian's Redis, and YCSB in little memory.
export WHERE=$stores
measure_command redis-throughput env ROUNDS=4 REQUESTS=300000 scripts/redis-benchmark.sh throughput "$ecotone"
measure_command redis-latency env ROUNDS=3 LENGTH=8 REQUESTS=200000 scripts/redis-benchmark.sh latency "$ecotone"
measure_command redis-idle scripts/redis-benchmark.sh idle "$ecotone"
# Redis takes 12 GB of memory for it.
measure_command redis-open env KEYS=10000000 VALUE=1000 ROUNDS=3 scripts/redis-benchmark.sh open "$ecotone"
# With YCSB_BINDING by that binding.
measure_command redis-ycsb env OPERATIONS=240000 scripts/ycsb-beside-redis.sh "$ecotone"

if ! grep -q '^matched' "$outcome"; then
  echo "bench: no measurement is named like $pattern; see scripts/bench.sh" >&2
  exit 1
fi
printf '\nResults: %s\n' "$results"
if grep '^failed' "$outcome" >&2; then
  echo "bench: the above failed" >&2
  exit 1
fi
