#!/usr/bin/env bash
# Three servers on loopback form a federation by tokens, with three copies of each shard. The server that
# leads, and is the primary of a third of them, is killed under load: clients go on, and every write that was
# acknowledged is there.
# Usage: federation.sh ECOTONE
set -euo pipefail

ecotone=$1
# How long anything may take, in looks; a look is a tenth of a second.
looks=600
# Settings and a password that the caller has for servers of their own.
unset "${!ECOTONE_@}" REDISCLI_AUTH

command -v redis-cli >/dev/null || { echo 'federation: redis-cli is missing; make setup installs it' >&2; exit 1; }
folder=$(mktemp -d "${TMPDIR:-/tmp}/ecotone-federation.XXXXXX")
declare -A server clients peers

cleanup() {
  local child
  rm -f "$folder/load"
  [ -z "${loader:-}" ] || wait "$loader" 2>/dev/null || true
  for child in "${server[@]}"; do
    kill -KILL "$child" 2>/dev/null || true
    wait "$child" 2>/dev/null || true
  done
  rm -rf "$folder"
}
trap cleanup EXIT

fail() {
  echo "federation: $*" >&2
  cat "$folder"/*.log >&2 2>/dev/null || true
  exit 1
}

# The value of a name in the last JSON object that was printed, which has it once: a text or a number.
value() { sed -n "s/.*\"$1\":\"\{0,1\}\([^\",}]*\).*/\1/p"; }

# Says a command and carries it out.
say() {
  echo "  > ecotone $*"
  "$ecotone" "$@" | sed 's/^/  /'
}

# Waits until a command succeeds.
await() {
  local what=$1
  shift
  for _ in $(seq $looks); do
    "$@" >/dev/null 2>&1 && return
    sleep 0.1
  done
  fail "$what: not within $((looks / 10)) s"
}

# Ports are the system's choice at the first start, and the same later: clients know them.
start() {
  local name=$1
  shift
  local listen=${peers[$name]:-127.0.0.1:0} serves=${clients[$name]:-127.0.0.1:0}
  : >"$folder/$name.records"
  RUST_LOG=error "$ecotone" serve --dir "$folder/$name" --name "$name" --zone "zone-$name" --listen "$listen" --clients "$serves" \
    --http off --records "$folder/$name.records" "$@" 2>"$folder/$name.log" &
  server[$name]=$!
  for _ in $(seq $looks); do
    clients[$name]=$(head -n 1 "$folder/$name.records" | value clients)
    if [ -n "${clients[$name]}" ]; then
      peers[$name]=$(head -n 1 "$folder/$name.records" | value listen)
      return
    fi
    kill -0 "${server[$name]}" 2>/dev/null || fail "$name did not come up"
    sleep 0.1
  done
  fail "$name does not answer"
}

control() { redis-cli -h 127.0.0.1 -p "${clients[$1]##*:}" info cluster | tr -d '\r' | sed -n "s/^control_$2://p"; }
leader() { control "$1" leader; }
three_vote() { [ "$(control a voters)" = a,b,c ] && [ "$(control a servers_active)" = 3 ]; }
follows() { [ -n "$(leader "$first")" ]; }
# Shards that have fewer copies in sync than there should be, as a server knows it.
incomplete() { "$ecotone" cluster status "${clients[$1]}" --json | value incomplete_shards; }
all_in_sync() { [ "$(incomplete "$other")" = 0 ]; }
# Writes that were acknowledged: a line each, when and which.
acknowledged() { wc -l <"$folder/acknowledged"; }
has_acknowledged() { [ "$(acknowledged)" -ge "$1" ]; }
another_leads() { [ -n "$(leader "$other")" ] && [ "$(leader "$other")" != "$first" ]; }
all_serve() { local name; for name in a b c; do client $name cluster info | grep -q "^cluster_slots_ok:16384" || return 1; done; }
client() { redis-cli -c -h 127.0.0.1 -p "${clients[$1]##*:}" "${@:2}"; }

echo
echo 'Three servers form a federation, and the one that leads is killed under load:'
say cluster init --dir "$folder/a" --name a --zone zone-a | sed -n 1,2p
start a
for name in b c; do
  echo "  > ecotone cluster token; ecotone serve --join ... --token ... --name $name"
  token=$("$ecotone" cluster token "${clients[a]}")
  start $name --join "${peers[a]}" --token "$token"
done
await 'three servers vote' three_vote
echo "  a, b and c vote; $(leader a) leads"
first=$(leader a)
other=$([ "$first" = a ] && echo b || echo a)
say cluster create "${clients[b]}" --shards 6 --copies 3 | sed -n 1,2p
await 'all servers serve their shards' all_serve
await 'all copies are in sync' all_in_sync
echo '  every shard has three copies in sync; a write is acknowledged when two have it (level quorum)'

# A key at a time, each until it is acknowledged, at a server that stays: a client goes where it is sent.
load() {
  local key=0
  while [ -e "$folder/load" ]; do
    key=$((key + 1))
    until [ "$(timeout 2 redis-cli -c -h 127.0.0.1 -p "${clients[$other]##*:}" set "key:$key" "value $key" 2>/dev/null)" = OK ]; do
      [ -e "$folder/load" ] || return 0
    done
    echo "$(date +%s%N) $key" >>"$folder/acknowledged"
  done
}
: >"$folder/load"
: >"$folder/acknowledged"
echo '  > redis-cli -c set key:1 ..., on and on'
load &
loader=$!
await 'writes are acknowledged' has_acknowledged 100
before=$(acknowledged)
# In one group: the shell tells of a child that was killed where it next looks.
{
  kill -KILL "${server[$first]}"
  wait "${server[$first]}"
} 2>/dev/null || true
echo "  kill -9 of $first, which leads and is the primary of two shards, after $before writes"
await 'another server leads' another_leads
await 'writes go on' has_acknowledged $((before + 100))
rm "$folder/load"
wait "$loader"
loader=
longest=$(awk 'NR > 1 && $1 - last > gap { gap = $1 - last } { last = $1 } END { printf "%d", gap / 1000000 }' "$folder/acknowledged")
echo "  $(leader "$other") leads; writes went on, the longest wait between two was $longest ms"

lost=0
while read -r _ key; do
  # While a shard is handed over, as when shards are spread anew, no server answers for it: it is asked again.
  for _ in $(seq 50); do
    found=$(timeout 5 redis-cli -c -h 127.0.0.1 -p "${clients[$other]##*:}" get "key:$key" 2>/dev/null || true)
    case $found in CLUSTERDOWN* | TRYAGAIN*) sleep 0.1 ;; *) break ;; esac
  done
  [ "$found" = "value $key" ] || lost=$((lost + 1))
done <"$folder/acknowledged"
[ $lost = 0 ] || fail "$lost of $(acknowledged) acknowledged writes are lost"
echo "  all $(acknowledged) acknowledged writes are there"

start "$first"
await 'it knows who leads' follows
await 'its copies are in sync again' all_in_sync
echo "  $first is back, and its copies are in sync again:"
say cluster status "${clients[$(leader "$other")]}" | tail -n 8
primary=$("$ecotone" cluster status "${clients[$other]}" --json | sed -n 's/.*"primary":"\([abc]\)","shard":1,.*/\1/p')
to=$([ "$primary" = a ] && echo b || echo a)
say cluster switch-over "${clients[$other]}" 1 --to "$to"
for name in a b c; do kill -TERM "${server[$name]}"; done
for name in a b c; do wait "${server[$name]}"; done
server=()
echo 'The federation lost nothing that it had acknowledged.'
