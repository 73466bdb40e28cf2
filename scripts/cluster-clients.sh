#!/usr/bin/env bash
# cluster-clients.sh ECOTONE [CLIENT...]: runs cluster clients against a federation of three servers with six shards, a
# password and TLS, and prints what each of them has checked. ECOTONE is the program. Without names all clients run.
#
# CLIENT is one of
#   redis-cli redis-py node-redis                      of the system (make setup installs them), or
#   redis-py-8 node-redis-6 ioredis go-redis jedis lettuce ycsb
#                                                      of their registries, in versions that cluster-clients/ pins.
# Those are downloaded at their first use, and that of Go compiled, into CLUSTER_CLIENTS_HOME
# [default: ~/.cache/ecotone/cluster-clients]. A client whose language is not installed is skipped, with a line that says
# so; where nothing else was wrong the script ends well.
#
# Each program is given a server, the password and, where it is to use TLS, the certificate of an authority. It prints `ok NAME` for each
# check, and `N checks` at last. Where it prints `await restart`, `await kill` or `await start` it reads a line when that
# is done: another server than the one it was given has been restarted, the leader has been killed (the line then names
# the keys that are left), and it has been started again.
set -euo pipefail

if [ $# -lt 1 ]; then
  sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2
  exit 2
fi
ecotone=$1
shift
own=$(cd "$(dirname "$0")/cluster-clients" && pwd)
home=${CLUSTER_CLIENTS_HOME:-$HOME/.cache/ecotone/cluster-clients}
password='the password of a test'
# How long anything may take, in looks; a look is a tenth of a second.
looks=300
# And a client's whole session.
session_seconds=240
# Settings and a password that the caller has for servers of their own.
unset "${!ECOTONE_@}"
export REDISCLI_AUTH=$password

[ $# -gt 0 ] || set -- redis-cli redis-py node-redis redis-py-8 node-redis-6 ioredis go-redis jedis lettuce ycsb
for tool in redis-cli openssl; do
  command -v "$tool" >/dev/null || { echo "cluster-clients: $tool is missing; make setup installs redis-cli" >&2; exit 1; }
done

folder=$(mktemp -d "${TMPDIR:-/tmp}/ecotone-cluster-clients.XXXXXX")
declare -A server clients tls peers
session=''

cleanup() {
  local child
  for child in $session "${server[@]}"; do
    kill -KILL "$child" 2>/dev/null || true
    wait "$child" 2>/dev/null || true
  done
  rm -rf "$folder"
}
trap cleanup EXIT

fail() {
  echo "cluster-clients: $*" >&2
  cat "$folder"/*.log >&2 2>/dev/null || true
  exit 1
}

# The value of a name in the last JSON object that was printed, which has it once: a text or a number.
value() { sed -n "s/.*\"$1\":\"\{0,1\}\([^\",}]*\).*/\1/p"; }

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

certificates() (
  cd "$folder"
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=authority \
    -keyout authority.key -out authority.pem
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=server -keyout server.key -out server.csr
  echo 'subjectAltName = DNS:localhost, IP:127.0.0.1' >extensions
  openssl x509 -req -in server.csr -CA authority.pem -CAkey authority.key -CAcreateserial -days 1 -extfile extensions -out server.pem
  chmod 600 server.key
) >/dev/null 2>&1

# Ports are the system's choice at the first start, and the same later: clients know them.
start() {
  local name=$1
  shift
  local listen=${peers[$name]:-127.0.0.1:0} serves=${clients[$name]:-127.0.0.1:0} serves_tls=${tls[$name]:-127.0.0.1:0}
  : >"$folder/$name.records"
  ECOTONE_CLIENTS_PASSWORD=$password ECOTONE_CLIENTS_TLS_LISTEN=$serves_tls ECOTONE_CLIENTS_TLS_CERTIFICATE=$folder/server.pem \
    ECOTONE_CLIENTS_TLS_KEY=$folder/server.key RUST_LOG=error \
    "$ecotone" serve --dir "$folder/$name" --name "$name" --zone "zone-$name" --listen "$listen" --clients "$serves" \
    --http off --records "$folder/$name.records" "$@" 2>>"$folder/$name.log" &
  server[$name]=$!
  for _ in $(seq $looks); do
    clients[$name]=$(head -n 1 "$folder/$name.records" | value clients)
    if [ -n "${clients[$name]}" ]; then
      peers[$name]=$(head -n 1 "$folder/$name.records" | value listen)
      tls[$name]=127.0.0.1:$(ask "$name" config get tls-port | tail -n 1)
      return
    fi
    kill -0 "${server[$name]}" 2>/dev/null || fail "$name did not come up"
    sleep 0.1
  done
  fail "$name does not answer"
}

ask() { redis-cli --no-auth-warning -h 127.0.0.1 -p "${clients[$1]##*:}" "${@:2}"; }
control() { ask "$1" info cluster | tr -d '\r' | sed -n "s/^control_$2://p"; }
three_vote() { [ "$(control a voters)" = a,b,c ] && [ "$(control a servers_active)" = 3 ]; }
all_are_told() {
  local name
  for name in a b c; do
    [ "$(control $name shards)" = 6 ] && [ -n "$(control $name leader)" ] || return 1
    # It tells clients of all three, and nobody is known to be away.
    [ "$(ask $name cluster nodes | grep -c -E ' 127\.0\.0\.1:[1-9][0-9]*@.* connected [0-9]')" = 3 ] || return 1
    ! ask $name cluster nodes | grep -q fail || return 1
    ask $name cluster info | grep -q '^cluster_state:ok' || return 1
  done
}

found_by() {
  local name
  for name in a b c; do [ "${server[$name]}" = "$1" ] && echo "$name"; done
}

# What a session waits for; prints the line that it reads.
carry_out() {
  local name
  case $1 in
    restart)
      name=c
      kill -TERM "${server[$name]}"
      wait "${server[$name]}"
      start $name
      await 'all are there again' all_are_told
      echo restarted
      ;;
    kill)
      killed=$(control b leader)
      { kill -KILL "${server[$killed]}"; wait "${server[$killed]}"; } 2>/dev/null || true
      for name in a b c; do [ $name = "$killed" ] || ask $name keys 'key:[0-9]*'; done | paste -s -d ' '
      ;;
    start)
      start "$killed"
      await 'all are there again' all_are_told
      echo started
      ;;
    *) fail "a session waits for $1" ;;
  esac
}

# session NAME COMMAND...: runs a client's program to its end; fails unless it made checks and ended well.
session() {
  local name=$1 line checks=0 told='' status=0 began=$SECONDS
  shift
  rm -f "$folder/in" "$folder/out"
  mkfifo "$folder/in" "$folder/out"
  timeout --kill-after=5 $session_seconds "$@" <"$folder/in" >"$folder/out" 2>"$folder/$name.errors" &
  session=$!
  exec 8>"$folder/in" 9<"$folder/out"
  while read -r line <&9; do
    case $line in
      'ok '*) checks=$((checks + 1)) ;;
      'await '*) carry_out "${line#await }" >&8 ;;
      *' checks') told=${line% checks} ;;
      'version '*) version=${line#version } ;;
      *) echo "    $line" ;;
    esac
  done
  exec 8>&- 9<&-
  wait "$session" || status=$?
  session=''
  if [ $status -ne 0 ] || [ "$told" != $checks ] || [ $checks -lt 1 ]; then
    cat "$folder/$name.errors" >&2
    fail "$name: exit status $status after $checks checks${told:+ of $told}"
  fi
  passed=$((passed + 1))
  echo "  $name $version: $checks checks passed in $((SECONDS - began)) s"
}

skip() {
  skipped=$((skipped + 1))
  echo "  $1: skipped, $2"
}

has() { command -v "$1" >/dev/null; }

# kept NAME FILE...: an empty folder of that name, unless one was completed with these files, as they are; then fails.
kept() {
  kept=$home/$1
  shift
  local sum
  sum=$(cat "$@" | sha256sum)
  [ "$(cat "$kept/complete" 2>/dev/null)" != "$sum" ] || return 1
  rm -rf "$kept"
  mkdir -p "$kept"
  cp "$@" "$kept"
}
complete() { (cd "$kept" && cat "$@" | sha256sum >complete); }

client() {
  local name=$1 at=${clients[a]} at_tls=localhost:${tls[a]##*:} ca=$folder/authority.pem
  case $name in
    redis-cli) session redis-cli "$own/redis-cli.sh" "$at" "$password" "$ca" "$at_tls" ;;
    redis-py)
      /usr/bin/python3 -c 'import redis' 2>/dev/null || { skip "$name" 'python3-redis is not installed'; return; }
      session "$name" /usr/bin/python3 "$own/redis-py.py" "$at" "$password"
      session "$name-tls" /usr/bin/python3 "$own/redis-py.py" "$at_tls" "$password" "$ca"
      ;;
    redis-py-8)
      has python3 && python3 -c 'import venv' || { skip "$name" 'python3 is not installed'; return; }
      if kept python "$own/python/requirements.txt"; then
        python3 -m venv "$kept/venv"
        "$kept/venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r "$kept/requirements.txt"
        complete requirements.txt
      fi
      session "$name" "$kept/venv/bin/python" "$own/redis-py.py" "$at" "$password"
      session "$name-tls" "$kept/venv/bin/python" "$own/redis-py.py" "$at_tls" "$password" "$ca"
      ;;
    node-redis)
      NODE_PATH=/usr/share/nodejs node -e 'require("redis")' >/dev/null 2>&1 || { skip "$name" 'node-redis is not installed'; return; }
      NODE_PATH=/usr/share/nodejs session "$name" node "$own/node-redis.js" "$at" "$password"
      ;;
    node-redis-6 | ioredis)
      has npm || { skip "$name" 'npm is not installed'; return; }
      if kept node "$own/node/package.json" "$own/node/package-lock.json"; then
        (cd "$kept" && npm ci --silent --ignore-scripts >&2)
        complete package.json package-lock.json
      fi
      local program=${name%-6}.js
      NODE_PATH=$kept/node_modules session "$name" node "$own/$program" "$at" "$password"
      NODE_PATH=$kept/node_modules session "$name-tls" node "$own/$program" "$at_tls" "$password" "$ca"
      ;;
    go-redis)
      has go || { skip "$name" 'Go is not installed'; return; }
      if kept go "$own"/go/{go.mod,go.sum,main.go}; then
        (cd "$kept" && go build -o session .)
        complete go.mod go.sum main.go
      fi
      session "$name" "$kept/session" "$at" "$password"
      session "$name-tls" "$kept/session" "$at_tls" "$password" "$ca"
      ;;
    jedis | lettuce)
      { has mvn && has javac; } || { skip "$name" 'Maven or a JDK is not installed'; return; }
      if kept java "$own"/java/{pom.xml,Session.java,JedisSession.java,LettuceSession.java}; then
        mvn -q -B -Dstyle.color=never -f "$kept/pom.xml" org.apache.maven.plugins:maven-dependency-plugin:3.6.0:copy-dependencies \
          -DincludeScope=runtime -DoutputDirectory="$kept/lib" >&2
        javac -nowarn -XDsuppressNotes -cp "$kept/lib/*" -d "$kept/classes" "$kept"/*.java
        complete pom.xml Session.java JedisSession.java LettuceSession.java
      fi
      local class=${name^}Session
      session "$name" java -cp "$kept/classes:$kept/lib/*" "$class" "$at" "$password"
      session "$name-tls" java -cp "$kept/classes:$kept/lib/*" "$class" "$at_tls" "$password" "$ca"
      ;;
    ycsb)
      { has mvn && has javac; } || { skip "$name" 'Maven or a JDK is not installed'; return; }
      version='core 0.17.0, binding with jedis 2.9.0'
      local began=$SECONDS name
      for name in a b c; do ask $name flushall >/dev/null; done
      YCSB_CLUSTER=1 YCSB_PASSWORD=$password "$own/../ycsb.sh" 127.0.0.1 "${at##*:}" ac 1000 10000 4 | sed 's/^/    /'
      for name in a b c; do
        # Where all records are at one server no client of a cluster was tried.
        [ "$(ask $name dbsize)" -gt 200 ] || fail "ycsb: $name has $(ask $name dbsize) records"
      done
      passed=$((passed + 1))
      echo "  ycsb $version: workloads a and c without errors in $((SECONDS - began)) s"
      ;;
    *) fail "there is no client $name" ;;
  esac
}

passed=0 skipped=0 version=''
certificates
ECOTONE_CLIENTS_PASSWORD=$password "$ecotone" cluster init --dir "$folder/a" --name a --zone zone-a >/dev/null
start a
export ECOTONE_CLIENTS_PASSWORD=$password
for name in b c; do
  token=$("$ecotone" cluster token "${clients[a]}")
  start $name --join "${peers[a]}" --token "$token"
done
await 'three servers vote' three_vote
"$ecotone" cluster create "${clients[b]}" --shards 6 >/dev/null
await 'all servers know the shards' all_are_told
echo 'Three servers, six shards:'
for name; do client "$name"; done
for name in a b c; do kill -TERM "${server[$name]}"; done
for name in a b c; do wait "${server[$name]}"; done
server=()
echo "$passed sessions passed, $skipped clients skipped"
