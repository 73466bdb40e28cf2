#!/usr/bin/env bash
# rocksdb-c++.sh ARGUMENTS...: the C++ compiler of this workspace (`HOST_CXX` in .cargo/config.toml). It is $CXX, or c++; but
# RocksDB's sources it compiles many to a file, since most of the time of each goes to the same headers again. It takes
# the very sources and flags that the build script of rust-librocksdb-sys names, one call for each source:
#
# - The sources are dealt to parts of PART_BYTES, in their order. The call for the first source of a part compiles a file
#   that includes them all, the calls for the others make empty objects. So the archive is made where it always is.
# - A part that a compiler cannot take in one file is compiled source by source, and linked to one object.
# - What was compiled is kept in a folder that all target folders share, by the version of RocksDB, the compiler, the
#   flags and the headers from elsewhere. It may be deleted at any time.
#
# Everything else (our shim, questions about the compiler, other targets) goes to the compiler as it is.
set -euo pipefail

# About 24 parts: the longest takes no longer than the longest source by itself, and a part less than 2 GiB of memory.
PART_BYTES=360000
# Builds of so many kinds (compiler, flags, version) are kept, the latest ones.
MAX_KEPT=4

compiler=${CXX:-c++}

source='' object='' is_compiling=false flags=() folders=()
previous=''
for argument; do
  case $previous in
    -o) object=$argument ;;
    -I | -isystem) folders+=("$argument") ;;
    *)
      case $argument in
        -c) is_compiling=true ;;
        -o | -I | -isystem) ;;
        -I*) folders+=("${argument#-I}") ;;
        rocksdb/*.cc) source=$argument ;;
        *) flags+=("$argument") ;;
      esac
      ;;
  esac
  previous=$argument
done

list=rocksdb_lib_sources.txt
if ! $is_compiling || [ -z "$source" ] || [ -z "$object" ] || ! [ -f "$list" ]; then
  # shellcheck disable=SC2086 # $CXX may have arguments
  exec $compiler "$@"
fi

# The sources of the part that $source is in, the first of them first. CRC32C is compiled alone: on ARM it has flags of
# its own, and comes from another call.
part=$(
  sed 's#^#rocksdb/#' "$list" | xargs stat -c '%s %n' 2>/dev/null | awk -v limit="$PART_BYTES" -v wanted="$source" '
    $2 ~ /^rocksdb\/util\/crc32c/ { if ($2 == wanted) alone = $2; next }
    bytes + $1 > limit && names != "" { if (found) exit; names = ""; bytes = 0 }
    { bytes += $1; names = names $2 "\n"; if ($2 == wanted) found = 1 }
    END { printf "%s", alone != "" ? alone : found ? names : wanted }'
) || true # one of the sources comes with no release: stat complains
first=${part%%$'\n'*}
if [ "$source" != "$first" ]; then
  # shellcheck disable=SC2086
  exec $compiler "${flags[@]}" -w -c -x c++ /dev/null -o "$object"
fi

# Headers from elsewhere count by their text: the folders' names differ from one target folder to the next.
key=$(
  {
    echo "${CARGO_PKG_VERSION:-} $compiler ${flags[*]}"
    # shellcheck disable=SC2086
    $compiler --version
    cat "$0"
    for folder in "${folders[@]}"; do
      case $folder in
        /*) find "$folder" -maxdepth 1 -name '*.h' -print0 | sort -z | xargs -0 -r cat ;;
        *) echo "$folder" ;;
      esac
    done
  } | sha256sum
)
kept=${ECOTONE_ROCKSDB_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/ecotone/rocksdb}
here=$kept/${CARGO_PKG_VERSION:-unknown}-${key:0:16}
if ! [ -d "$here" ]; then
  mkdir -p "$here"
  find "$kept" -mindepth 1 -maxdepth 1 -type d -printf '%T@ %p\0' | sort -zrn | tail -zn +$((MAX_KEPT + 1)) |
    cut -zd' ' -f2- | xargs -0 -r rm -rf
fi
compiled=$here/${first//\//.}.o
if ! [ -f "$compiled" ]; then
  work=$(mktemp -d "$here/work.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  includes=()
  for folder in "${folders[@]}"; do includes+=(-I "$folder"); done
  # From the standard input, so that each source has the name that it has by itself: RocksDB's log shows it.
  # shellcheck disable=SC2086
  if ! sed 's/.*/#include "&"/' <<<"$part" |
    $compiler "${flags[@]}" "${includes[@]}" -w -c -x c++ - -o "$work/part.o" 2>"$work/complaints"; then
    objects=()
    while read -r name; do
      one=$work/${name//\//.}.o
      $compiler "${flags[@]}" "${includes[@]}" -c "$name" -o "$one"
      objects+=("$one")
    done <<<"$part"
    ld -r -o "$work/part.o" "${objects[@]}"
  fi
  mv "$work/part.o" "$compiled"
fi
touch "$here"
cp "$compiled" "$object"
