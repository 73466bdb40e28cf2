#!/usr/bin/env bash
# progress.sh COMMAND...: runs a cargo command and returns its exit status. While RocksDB compiles cargo is silent for many
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
    newest=$(ls -t "$folder" 2>/dev/null | head -n 1)
    if [[ $newest == *.o ]]; then
      echo "$folder"
      return
    fi
  done
}

report() {
  local interval=120 clear='' begun=$SECONDS folder objects
  if [ -t 2 ]; then
    interval=30
    clear=$'\r\e[K' # cargo draws its bar on the last line
  fi
  # A read that nothing answers, with a time limit, is a sleep without a child process to leave behind.
  local never
  exec {never}<> <(:)
  while kill -0 $$ 2>/dev/null; do
    read -r -t "$interval" -u "$never" _
    folder=$(compiling)
    [ -n "$folder" ] || continue
    objects=$(find "$folder" -maxdepth 1 -name '*.o' -newer "${folder%out}invoked.timestamp" 2>/dev/null | wc -l)
    printf '%s    RocksDB: %d of about %d files compiled, %d min\n' "$clear" "$objects" "$total" $(((SECONDS - begun) / 60)) >&2
  done
}

if ! archives; then
  echo '    RocksDB is compiled first: about 19 minutes on two cores, once for each target folder.' >&2
fi
report &
reporter=$!
trap 'kill "$reporter" 2>/dev/null' EXIT
"$@"
