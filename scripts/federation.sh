#!/usr/bin/env bash
# Three servers on loopback form a federation by tokens; its leader is killed, and clients go on.
# Usage: federation.sh ECOTONE
set -euo pipefail

ecotone=$1
# How long anything may take, in looks; a look is a tenth of a second.
looks=300
# Settings and a password that the caller has for servers of their own.
unset "${!ECOTONE_@}" REDISCLI_AUTH

command -v redis-cli >/dev/null || { echo 'federation: redis-cli is missing; make setup installs it' >&2; exit 1; }
folder=$(mktemp -d "${TMPDIR:-/tmp}/ecotone-federation.XXXXXX")
declare -A server clients peers

cleanup() {
  local child
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
another_leads() { [ -n "$(leader "$other")" ] && [ "$(leader "$other")" != "$first" ]; }
all_serve() { local name; for name in a b c; do client $name cluster info | grep -q "^cluster_slots_ok:16384" || return 1; done; }
client() { redis-cli -c -h 127.0.0.1 -p "${clients[$1]##*:}" "${@:2}"; }

echo
echo 'Three servers form a federation, and its leader is killed:'
say cluster init --dir "$folder/a" --name a --zone zone-a | sed -n 1,2p
start a
for name in b c; do
  echo "  > ecotone cluster token; ecotone serve --join ... --token ... --name $name"
  token=$("$ecotone" cluster token "${clients[a]}")
  start $name --join "${peers[a]}" --token "$token"
done
await 'three servers vote' three_vote
echo "  a, b and c vote; $(leader a) leads"
say cluster create "${clients[b]}" --shards 6
await 'all servers serve their shards' all_serve

echo '  > redis-cli -c set key:1 ... key:60'
for key in $(seq 60); do
  [ "$(client a set "key:$key" "value $key")" = OK ] || fail "key:$key was not written"
done

first=$(leader a)
other=$([ "$first" = a ] && echo b || echo a)
# In one group: the shell tells of a child that was killed where it next looks.
{
  kill -KILL "${server[$first]}"
  wait "${server[$first]}"
} 2>/dev/null || true
began=$(date +%s%N)
echo "  kill -9 of $first, which leads"
await 'another server leads' another_leads
echo "  $(leader "$other") leads after $((($(date +%s%N) - began) / 1000000)) ms"

# Who holds a key is asked of a server that is there: a client goes where it is sent.
answered=0 away=0
for key in $(seq 60); do
  found=$(timeout 5 redis-cli -c -h 127.0.0.1 -p "${clients[$other]##*:}" get "key:$key" 2>/dev/null || true)
  if [ "$found" = "value $key" ]; then answered=$((answered + 1)); else away=$((away + 1)); fi
done
[ $answered -ge 20 ] && [ $away -ge 1 ] || fail "$answered keys were read, $away were not"
echo "  $answered of 60 keys are served by the two that are left; $away wait for $first, which has their only copy"

echo "  the new leader decides:"
say cluster drain "${clients[$other]}" "$first" | sed -n 1,3p
start "$first"
say cluster undrain "${clients[$other]}" "$first"
reads_all() {
  local key
  for key in $(seq 60); do
    [ "$(timeout 5 redis-cli -c -h 127.0.0.1 -p "${clients[$other]##*:}" get "key:$key" 2>/dev/null)" = "value $key" ] || return 1
  done
}
await 'all keys are served again' reads_all
await 'it knows who leads' follows
echo "  $first is back: all 60 keys are served, and it follows $(leader "$first")"
for name in a b c; do kill -TERM "${server[$name]}"; done
for name in a b c; do wait "${server[$name]}"; done
server=()
echo 'The federation went on without its leader.'
