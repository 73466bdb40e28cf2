#!/usr/bin/env bash
# progress.sh COMMAND...: becomes a cargo command. While RocksDB compiles cargo is silent for many
# minutes, so this counts RocksDB's object files and prints a line now and then: every 30 s on a terminal, else every
# 2 minutes.
set -uo pipefail

target=${CARGO_TARGET_DIR:-target}
# What rust-librocksdb-sys 0.49 compiles. Only for display: a wrong number spoils nothing.
total=350

archives() { compgen -G "$target/release/build/rust-librocksdb-sys-*/out/librocksdb.a" >/dev/null; }

# The folder where RocksDB is compiled now: it has objects, and no archive that is newer than its last object.
compiling() {
  local folder newest
  for folder in "$target"/release/build/rust-librocksdb-sys-*/out; do
    # shellcheck disable=SC2012 # cc names the objects: no odd characters
    newest=$(ls -t "$folder" 2>/dev/null | head -n 1)
    if [[ $newest == *.o ]]; then
      echo "$folder"
      return
    fi
  done
}

report() {
  local begun=$SECONDS interval=120 clear='' never folder objects
  if [ -t 2 ]; then
    interval=30
    clear=$'\r\e[K' # cargo draws its bar on the last line
  fi
  local due=$interval
  # A read that nothing answers, with a time limit, is a sleep without a child process. It wakes each second, so as not
  # to outlive the command by more than that.
  exec {never}<> <(:)
  while kill -0 $$ 2>/dev/null; do
    read -r -t 1 -u "$never" _
    ((SECONDS - begun >= due)) || continue
    due=$((SECONDS - begun + interval))
    folder=$(compiling)
    [ -n "$folder" ] || continue
    # An earlier build that was interrupted leaves objects too.
    objects=$(find "$folder" -maxdepth 1 -name '*.o' -newer "${folder%out}invoked.timestamp" 2>/dev/null | wc -l)
    printf '%s    RocksDB: %d of about %d files compiled, %d min\n' "$clear" "$objects" "$total" $(((SECONDS - begun) / 60)) >&2
  done
}

if ! archives; then
  echo '    RocksDB is compiled first: about 19 minutes on two cores, once for each target folder.' >&2
fi
report &
exec "$@" # so that the command's exit status and the signals sent to it need no care
