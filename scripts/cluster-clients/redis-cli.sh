#!/usr/bin/env bash
# A session of redis-cli against a cluster of several servers. Arguments: a server (host:port), the password, the authority's
# certificate, the server's address for TLS. What it prints and reads is told in cluster-clients.sh.
set -euo pipefail

where=$1 authority=$3 by_tls=$4
export REDISCLI_AUTH=$2 TERM=dumb
checks=0

check() {
  local name=$1
  shift
  "$@" || { echo "not ok: $name" >&2; exit 1; }
  checks=$((checks + 1))
  echo "ok $name"
}
is() { [ "$1" = "$2" ] || { printf '%.500s\nis not\n%.500s\n' "$1" "$2" >&2; return 1; }; }
has() { grep -q -- "$2" <<<"$1" || { printf '%.5000s\nhas no line %s\n' "$1" "$2" >&2; return 1; }; }
await() {
  echo "await $1"
  read -r reply
}

cli() { redis-cli --no-auth-warning "$@"; }
one() { cli -h 127.0.0.1 -p "${where##*:}" "$@"; }
follows() { cli -c -h 127.0.0.1 -p "${where##*:}" "$@"; }
tls() { cli -c --tls --cacert "$authority" -h "${by_tls%:*}" -p "${by_tls##*:}" "$@"; }

echo "version $(redis-cli --version | cut -d ' ' -f 2)"
check 'cluster call' has "$(cli --cluster call "$where" flushall 2>&1)" 'OK'
for number in $(seq 300); do echo "set key:$number value:$number"; done >"${TMPDIR:-/tmp}/ecotone-redis-cli.$$"
input=${TMPDIR:-/tmp}/ecotone-redis-cli.$$
trap 'rm -f "$input"' EXIT
check 'set, following redirects' is "$(follows <"$input" | grep -c '^OK$')" 300
sed -i 's/^set \(.*\) .*/get \1/' "$input"
expected=$(for number in $(seq 300); do echo "value:$number"; done)
check 'get' is "$(follows <"$input" | grep '^value:')" "$expected"
check 'get by TLS' is "$(tls <"$input" | grep '^value:')" "$expected"

all=$(cli --cluster check "$where" 2>&1)
check 'cluster check' has "$all" '^\[OK\] 300 keys in 3 masters\.$'
check 'configuration agreed' has "$all" '^\[OK\] All nodes agree about slots configuration\.$'
check 'all slots covered' has "$all" '^\[OK\] All 16384 slots covered\.$'
check 'no errors' is "$(grep -c -E '\[ERR\]|\[WARNING\]' <<<"$all" || true)" 0
check 'three masters' is "$(grep -c '^M: ' <<<"$all")" 3
info=$(cli --cluster info "$where" 2>&1)
check 'cluster info' has "$info" '^\[OK\] 300 keys in 3 masters\.$'
check 'slots of each' is "$(grep -o '| [0-9]* slots' <<<"$info" | awk '{ slots += $2 } END { print NR, slots }')" '3 16384'
check 'cluster check by TLS' has "$(cli --tls --cacert "$authority" --cluster check "$by_tls" 2>&1)" \
  '^\[OK\] All 16384 slots covered\.$'
check 'a rebalance finds nothing to do' has "$(cli --cluster rebalance "$where" --cluster-simulate 2>&1)" \
  'No rebalancing needed'
check 'two slots' has "$(follows mget key:1 key:2 2>&1)" '^CROSSSLOT '
check 'one tag' is "$(follows mset '{tag}a' 1 '{tag}b' 2; follows mget '{tag}a' '{tag}b' | paste -s -d ' ')" "OK
1 2"
check 'without -c' has "$(for number in 1 2 3 4 5 6; do one get key:$number; done 2>&1)" '^MOVED [0-9]* 127.0.0.1:'
transaction=$(printf 'multi\nset {tag}a 5\nincr {tag}a\nexec\n' | follows)
check 'a transaction' is "$(tail -n 2 <<<"$transaction" | paste -s -d ' ')" 'OK 6'
if command -v redis-benchmark >/dev/null; then
  measured=$(redis-benchmark -h 127.0.0.1 -p "${where##*:}" -a "$REDISCLI_AUTH" --cluster -t set,get -n 3000 -r 1000 -q 2>&1)
  check 'redis-benchmark --cluster' is "$(tr '\r' '\n' <<<"$measured" | grep -c 'requests per second')" 2
fi

await restart
check 'all keys after a restart' is "$(follows <"$input" | grep '^value:')" "$expected"
addresses=$(one cluster nodes | cut -d ' ' -f 2 | cut -d @ -f 1)
await kill
read -r -a left <<<"$reply"
check 'some are left' [ ${#left[@]} -gt 30 ]
# From a server that is there, as its user would.
for address in $addresses; do
  where=$address
  [ "$(one ping 2>/dev/null)" != PONG ] || break
done
for key in "${left[@]}"; do echo "get $key"; done >"$input"
check "keys of the others after the leader's death" is "$(follows <"$input" | grep '^value:')" \
  "$(for key in "${left[@]}"; do echo "value:${key#key:}"; done)"
for number in $(seq 300); do echo "get key:$number"; done >"$input"
await start
check 'all keys when it is back' is "$(follows <"$input" | grep '^value:')" "$expected"
check 'cluster check when it is back' has "$(cli --cluster check "$where" 2>&1)" '^\[OK\] All 16384 slots covered\.$'
echo "$checks checks"
