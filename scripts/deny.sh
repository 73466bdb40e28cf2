#!/usr/bin/env bash
# Runs cargo-deny on the workspace; installs it once, into a folder outside the checkout, where it is missing.
# The advisory check is left out: its database is a git repository that a build machine without free network cannot
# fetch, and a check that passes only sometimes is worse than none. Run `cargo deny check advisories` by hand.
set -euo pipefail
cd "$(dirname "$0")/.."

version=0.20.2
tools=${ECOTONE_TOOLS_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/ecotone/tools}/cargo-deny-$version

if ! [ -x "$tools/bin/cargo-deny" ]; then
  echo "    cargo-deny $version is installed first, into $tools: a few minutes, once." >&2
  mkdir -p "$tools"
  # Built for a short build, not for speed: it runs for a second, and its own profile (fat LTO) takes many minutes.
  CARGO_TARGET_DIR="$tools/build" CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_LTO=off \
    CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_DEBUG=0 \
    cargo install --quiet --locked --root "$tools" --version "=$version" --no-default-features cargo-deny
  rm -rf "$tools/build"
fi
"$tools/bin/cargo-deny" --locked check --hide-inclusion-graph bans licenses sources
