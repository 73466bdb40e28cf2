#!/usr/bin/env bash
# A client's session with a server that is killed in the middle: what was acknowledged is there again.
# Usage: session.sh ECOTONE
set -euo pipefail

ecotone=$1
# How long the first increments may take, in looks at what was replied; a look is a twentieth of a second.
looks=1200
# Settings and a password that the caller has for servers of their own.
unset "${!ECOTONE_@}" REDISCLI_AUTH

command -v redis-cli >/dev/null || { echo 'session: redis-cli is missing; make setup installs it' >&2; exit 1; }
folder=$(mktemp -d "${TMPDIR:-/tmp}/ecotone-session.XXXXXX")
socket=$folder/socket
server='' writer=''

cleanup() {
  local child
  for child in $writer $server; do
    kill -KILL "$child" 2>/dev/null || true
    wait "$child" 2>/dev/null || true
  done
  rm -rf "$folder"
}
trap cleanup EXIT

client() { redis-cli -s "$socket" "$@"; }

cat >"$folder/ecotone.toml" <<TOML
[server]
dir = "$folder/data"
log_level = "warn"
[federation]
listen = "127.0.0.1:0"
[http]
listen = "off"
[clients]
listen = "127.0.0.1:0"
unix_socket = "$socket"
TOML

start() {
  "$ecotone" serve --config "$folder/ecotone.toml" &
  server=$!
  for _ in $(seq 600); do
    [ "$(client ping 2>/dev/null)" = PONG ] && return
    kill -0 "$server" 2>/dev/null || { echo 'session: the server did not come up' >&2; exit 1; }
    sleep 0.1
  done
  echo 'session: the server does not answer' >&2
  exit 1
}

# Says a command, carries it out, and compares the reply.
expect() {
  local reply=$1 got
  shift
  echo "  > $*"
  got=$(client "$@" | tr '\n' ' ' | sed 's/ $//')
  echo "  $got"
  [ "$got" = "$reply" ] || { echo "session: expected $reply" >&2; exit 1; }
}

echo
echo 'A session with redis-cli, and a kill:'
start
expect OK set greeting hello
expect 3 hset sensor:7 temperature 21.5 humidity 48 place 'hall 2'
expect 2 zadd alarms 3 overheat 1 door
expect 'overheat door' zrange alarms 0 -1 rev
expect 3 rpush jobs weigh seal label
expect weigh lpop jobs
expect 2 sadd doors:open north east
expect OK set badge:9 guest ex 3600

echo '  > multi, set account:a 90, set account:b 110, exec'
client >/dev/null <<'COMMANDS'
multi
set account:a 90
set account:b 110
exec
COMMANDS

echo '  > incr counter, again and again, until kill -9'
# Not by `client`: a function in the background is a shell of its own, and the kill would not reach redis-cli.
: >"$folder/replies" # the background shell may come to its redirection after the first look
redis-cli -s "$socket" -r 1000000 incr counter >"$folder/replies" 2>/dev/null &
writer=$!
for ((look = 1; $(wc -l <"$folder/replies") < 2000; look++)); do
  kill -0 "$server" 2>/dev/null || { echo 'session: the server ended under the increments' >&2; exit 1; }
  kill -0 "$writer" 2>/dev/null || { echo 'session: redis-cli ended before 2000 increments were answered' >&2; exit 1; }
  [ $look -lt $looks ] || { echo 'session: 2000 increments were not answered within a minute' >&2; exit 1; }
  sleep 0.05
done
# In one group: the shell tells of a child that was killed where it next looks.
{
  kill -KILL "$server"
  wait "$server" "$writer"
} 2>/dev/null || true
writer=
told=$(grep -E '^[0-9]+$' "$folder/replies" | tail -n 1)
echo "  killed; the last reply was $told"

start
expect hello get greeting
expect '21.5 48 hall 2' hmget sensor:7 temperature humidity place
expect 'overheat door' zrange alarms 0 -1 rev
expect '90 110' mget account:a account:b
expect 'seal label' lrange jobs 0 -1
expect '1 1 0' smismember doors:open north east west
expect guest get badge:9
left_s=$(client ttl badge:9)
echo "  > ttl badge:9"
echo "  $left_s"
[ "$left_s" -gt 0 ] && [ "$left_s" -le 3600 ] || { echo 'session: the badge has lost its expiry' >&2; exit 1; }
found=$(client get counter)
echo "  > get counter"
echo "  $found"
# The increment under way at the kill may be there too.
if [ "$found" -ne "$told" ] && [ "$found" -ne $((told + 1)) ]; then
  echo "session: $told was acknowledged, $found is there" >&2
  exit 1
fi
kill -TERM "$server"
wait "$server"
server=
echo 'Nothing that was acknowledged is lost.'
