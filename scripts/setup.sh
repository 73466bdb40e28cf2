#!/usr/bin/env bash
# setup.sh [tests]: sees to it that the tools of the build and the demo are here: Rust, a C++20 compiler for RocksDB and our
# shim, clang with libclang for bindgen, redis-cli. With `tests` also a Redis server that tests compare with, which they start
# themselves, and three client libraries that they use. Where all are found it returns at once, without network. On Debian
# and Ubuntu it installs what is missing: as root without asking, else through sudo. Elsewhere it names what is missing and
# stops.
set -euo pipefail
cd "$(dirname "$0")/.."

case $* in
  '') for_tests=false ;;
  tests) for_tests=true ;;
  *)
    echo 'usage: setup.sh [tests]' >&2
    exit 2
    ;;
esac

say() { printf 'setup: %s\n' "$*" >&2; }

check_rust() {
  if ! command -v cargo >/dev/null; then
    say 'cargo was not found. Install Rust with rustup (see the Rust home page), open a new shell, and run this again.'
    exit 1
  fi
  local wanted found
  wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
  found=$(cargo --version | cut -d' ' -f2)
  if [ "$(printf '%s\n' "$wanted" "$found" | sort -V | head -n 1)" != "$wanted" ]; then
    say "Rust $found is too old, $wanted or newer is needed. Run: rustup update stable"
    exit 1
  fi
}

has_cxx() { echo '#include <string>' | c++ -std=c++20 -fsyntax-only -x c++ - 2>/dev/null; }

# bindgen asks clang where the compiler's own headers are.
has_clang() { echo '#include <stddef.h>' | clang -fsyntax-only -x c - 2>/dev/null; }

# Where clang-sys, bindgen's loader, looks as well. libclang-cpp is another library.
has_libclang() {
  local folder
  for folder in ${LIBCLANG_PATH:+"$LIBCLANG_PATH"} /usr/lib/llvm-*/lib /usr/lib/*-linux-gnu /usr/lib64 /usr/lib /usr/local/lib; do
    if compgen -G "$folder/libclang.so*" >/dev/null || compgen -G "$folder/libclang-[0-9]*.so*" >/dev/null; then
      return 0
    fi
  done
  return 1
}

# The clients of crates/ecotone/tests/clients/clients_libraries.rs, each as that test finds it.
has_redis_py() { /usr/bin/python3 -c 'import redis' 2>/dev/null; }
has_hiredis() { echo '#include <hiredis/hiredis.h>' | cc -fsyntax-only -x c - 2>/dev/null; }
has_node_redis() { NODE_PATH=/usr/share/nodejs node -e 'require("redis")' 2>/dev/null; }

check_rust

packages=()
has_cxx || packages+=(g++)
has_clang || packages+=(clang)
has_libclang || packages+=(libclang-dev)
command -v redis-cli >/dev/null || packages+=(redis-tools)
if $for_tests; then
  command -v redis-benchmark >/dev/null || packages+=(redis-tools)
  command -v redis-server >/dev/null || packages+=(redis-server)
  has_redis_py || packages+=(python3-redis)
  has_hiredis || packages+=(libhiredis-dev)
  command -v node >/dev/null || packages+=(nodejs)
  has_node_redis || packages+=(node-redis)
  # scripts/cluster-clients.sh makes certificates by it.
  command -v openssl >/dev/null || packages+=(openssl)
fi
[ ${#packages[@]} -gt 0 ] || exit 0

if ! command -v apt-get >/dev/null; then
  say "missing (named as in Debian): ${packages[*]}. Install them with this system's package manager"
  say '(for example: dnf install gcc-c++ clang clang-devel redis, or pacman -S gcc clang redis; for tests also the clients of Redis for Python, C and Node), and run this again.'
  exit 1
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    say "missing: ${packages[*]}, and there is no sudo. As root, run: apt-get install ${packages[*]}"
    exit 1
  fi
  say "Needed and missing: ${packages[*]}. sudo may ask for your password to install them."
  as_root=(sudo)
fi
say "installing ${packages[*]}"
# An install or update of the system's own may hold the lock: wait for it, five minutes at most.
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300)
"${apt[@]}" update

# Debian starts its Redis as soon as the package is there, and at each boot, at 127.0.0.1:6379: where `ecotone serve` listens.
if [[ " ${packages[*]} " == *' redis-server '* ]]; then
  policy=/usr/sbin/policy-rc.d
  # A policy of the machine's own stays as it is.
  if ! [ -e "$policy" ]; then
    trap '"${as_root[@]}" rm -f "$policy"' EXIT
    "${as_root[@]}" tee "$policy" >/dev/null <<'POLICY'
#!/bin/sh
for argument; do
  case $argument in redis-server*) exit 101 ;; esac
done
POLICY
    "${as_root[@]}" chmod 755 "$policy"
  fi
  "${apt[@]}" install -y --no-install-recommends "${packages[@]}"
  "${as_root[@]}" update-rc.d redis-server disable
  "${as_root[@]}" service redis-server stop >/dev/null 2>&1 || true
  say 'redis-server is for tests only: its service is disabled (systemctl enable --now redis-server changes that)'
else
  "${apt[@]}" install -y --no-install-recommends "${packages[@]}"
fi

if ! { has_cxx && has_clang && has_libclang; }; then
  say "${packages[*]} were installed, yet a C++20 compiler, clang or libclang still does not work here. Debian 12 or Ubuntu 22.04 or newer is needed."
  exit 1
fi
if $for_tests && ! { has_redis_py && has_hiredis && has_node_redis; }; then
  say "${packages[*]} were installed, yet a client of Redis for Python (redis), C (hiredis) or Node (redis) still cannot be used: tests need them."
  exit 1
fi
