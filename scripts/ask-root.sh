#!/usr/bin/env bash
# ask-root.sh PURPOSE COMMAND...: runs COMMAND, as who called, before something that takes root. Where that takes sudo, the
# password is asked for first, so that nobody waits for COMMAND in vain. sudo forgets it after some minutes (15 by default),
# which the first build outlasts, so it is kept awake while COMMAND runs.
set -euo pipefail

purpose=$1
shift
[ "$(id -u)" -ne 0 ] || exec "$@"
if ! command -v sudo >/dev/null; then
  echo "$purpose: unequal cores are made with cgroups, which takes root, and there is no sudo; run make $purpose as root" >&2
  exit 1
fi
echo "$purpose: unequal cores are made with cgroups, which takes root; sudo may ask for your password" >&2
# Not `sudo -v`: that asks for a password also where sudo needs none for commands.
sudo true
while sleep 60 && kill -0 $$ 2>/dev/null; do
  sudo -n true || break
done </dev/null >/dev/null 2>&1 &
trap 'kill $! 2>/dev/null || true' EXIT
"$@"
