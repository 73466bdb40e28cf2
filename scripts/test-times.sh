#!/usr/bin/env bash
# Passes on what `cargo test` prints, standard error and output together, and says at the end which tests took longer than
# SLOW_SECONDS.
#
# The stable harness says when a test ends, not when it began. But it begins tests in the order of their names,
# RUST_TEST_THREADS of them at once and each further one when another ends. So a test began when that one ended which
# made way for it.
set -uo pipefail
export LC_ALL=C
trap '' INT # who reads is told of what ran until then

slow_ms=$((${SLOW_SECONDS:-20} * 1000))
threads=${RUST_TEST_THREADS:-$(nproc)}
suite='' expected='' began=0 tests=0
names=() ends=() slow=()
declare -A ended

now() {
  ms=$((${EPOCHREALTIME//[.,]/} / 1000))
}

tell_if_slow() {
  local took=$1 what=$2
  if ((took > slow_ms)); then
    slow+=("$(printf '%6d.%d s  %s' $((took / 1000)) $((took % 1000 / 100)) "$what")")
  fi
}

# All tests of a binary have ended.
take_times() {
  local name number=0 start
  now
  if ((${#names[@]} != expected)); then
    tell_if_slow $((ms - began)) "$suite, as a whole: not every test was told of"
    return
  fi
  ((tests += expected))
  while IFS= read -r name; do
    start=$began
    if ((number >= threads)); then
      start=${ends[number - threads]}
    fi
    tell_if_slow $((ended[$name] - start)) "$suite: $name"
    ((++number))
  done < <(((expected == 0)) || printf '%s\n' "${names[@]}" | sort)
}

suite_line='^ +(Running|Doc-tests) ([^(]*[^( ])'
begin_line='^running ([0-9]+) tests?$'
test_line='^test (.+) \.\.\. (ok|FAILED|ignored.*)$'
while IFS= read -r line || [ -n "$line" ]; do
  printf '%s\n' "$line"
  if [[ $line =~ $suite_line ]]; then
    suite=${BASH_REMATCH[2]} expected='' names=() ends=() ended=()
  # Only the first: a child of a test may say the same.
  elif [[ -z $expected && $line =~ $begin_line ]]; then
    expected=${BASH_REMATCH[1]}
    now
    began=$ms
  elif [[ -n $expected && $line =~ $test_line ]]; then
    now
    name=${BASH_REMATCH[1]% - should panic}
    names+=("$name") ends+=("$ms") ended[$name]=$ms
  elif [[ -n $expected && $line == 'test result: '* ]]; then
    take_times
    expected=''
  fi
done

echo "== tests that took longer than $((slow_ms / 1000)) s, of $tests in $SECONDS s"
if ((${#slow[@]})); then
  printf '%s\n' "${slow[@]}" | sort -rn
fi
