#!/usr/bin/env bash
# progress.sh COMMAND...: becomes a cargo command. While RocksDB compiles cargo is silent for minutes, so this counts the
# parts that rocksdb-c++.sh has compiled and prints a line now and then: every 15 s on a terminal, else every minute.
set -uo pipefail

kept=${ECOTONE_ROCKSDB_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/ecotone/rocksdb}
# The parts of RocksDB 11.12. Only for display: a wrong number spoils nothing.
total=27

report() {
  local begun=$SECONDS interval=60 clear='' never folder parts
  if [ -t 2 ]; then
    interval=15
    clear=$'\r\e[K' # cargo draws its bar on the last line
  fi
  local due=$interval is_told=false
  # A read that nothing answers, with a time limit, is a sleep without a child process. It wakes each second, so as not
  # to outlive the command by more than that.
  exec {never}<> <(:)
  while kill -0 $$ 2>/dev/null; do
    read -r -t 1 -u "$never" _
    # The folder of a part that is being compiled.
    folder=$(find "$kept" -mindepth 2 -maxdepth 2 -name 'work.*' -newermt '-30 minutes' -printf '%h\n' -quit 2>/dev/null)
    [ -n "$folder" ] || continue
    if ! $is_told; then
      is_told=true
      printf '%s    RocksDB is compiled first: minutes, once for all target folders (kept in %s).\n' "$clear" "$kept" >&2
    fi
    ((SECONDS - begun >= due)) || continue
    due=$((SECONDS - begun + interval))
    parts=$(find "$folder" -maxdepth 1 -name '*.o' | wc -l)
    printf '%s    RocksDB: %d of about %d parts compiled, %d min\n' "$clear" "$parts" "$total" $(((SECONDS - begun) / 60)) >&2
  done
}

report &
exec "$@" # so that the command's exit status and the signals sent to it need no care
