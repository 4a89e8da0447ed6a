#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every kernel instance under compute-sanitizer's four tools, on problems of a few tiles.
#   tests/sanitize.sh [build directory, default build/cuda] [tool ...]
# Logs: <build directory>/sanitize/. Exit status: 1 where a tool found something.
set -euo pipefail

build=${1:-build/cuda}
[ $# -eq 0 ] || shift
tools=("$@")
[ ${#tools[@]} -gt 0 ] || tools=(memcheck racecheck initcheck synccheck)
binary="$build/tests/onchip_cuda_tests"
filter='Gpu/GpuInstances.*:Gpu/GpuHopperInstances.*:Gpu/GpuHopperSoftmax.Nan*:Gpu/GpuHelpers.*:Gpu/GpuRandom.SmallOnes*:Gpu/GpuDegenerate.Keys*'

die() { printf 'sanitize: %s\n' "$*" >&2; exit 1; }
[ -x "$binary" ] || die "$binary is not there: ./dev build --cuda makes it"
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
[ -x "$sanitizer" ] || die "compute-sanitizer is not there: it comes with the CUDA toolkit"
if "$binary" --gtest_filter='Gpu/GpuHelpers.Splits/float32' | grep -q 'SKIPPED'; then
  die "no GPU to run on"
fi

logs="$build/sanitize"
rm -rf "$logs"
mkdir -p "$logs"
cpus=$(getconf _NPROCESSORS_ONLN)
shards=$((cpus / ${#tools[@]} > 0 ? cpus / ${#tools[@]} : 1))

# shard <tool> <number>: the tests are dealt out by GoogleTest.
shard() {
  local raw=()
  # What initcheck is to see uninitialised must not be filled with NaN first.
  [ "$1" != initcheck ] || raw=(ONCHIP_TEST_RAW_WORKSPACE=1)
  env "${raw[@]}" GTEST_TOTAL_SHARDS="$shards" GTEST_SHARD_INDEX="$2" \
    "$sanitizer" --tool "$1" --error-exitcode 9 --print-limit 20 \
    "$binary" --gtest_filter="$filter" --gtest_brief=1 >"$logs/$1.$2.log" 2>&1
}

# run <tool>: all shards at once, then one line about them.
run() {
  local n started=$SECONDS failed=0 pids=()
  for ((n = 0; n < shards; ++n)); do
    shard "$1" "$n" &
    pids+=($!)
  done
  for n in "${pids[@]}"; do wait "$n" || failed=1; done
  local tests findings
  tests=$(sed -n 's/.*\[==========\] \([0-9]*\) tests\{0,1\} from .* ran.*/\1/p' "$logs/$1".*.log |
    awk '{ n += $1 } END { print n + 0 }')
  findings=$(sed -n 's/^========= \(ERROR\|RACECHECK\) SUMMARY: \([0-9]*\).*/\2/p' "$logs/$1".*.log |
    awk '{ n += $1 } END { print n + 0 }')
  printf '%-10s %4s tests %4s findings %4s s  %s\n' "$1" "$tests" "$findings" \
    "$((SECONDS - started))" "$([ $failed = 0 ] && echo clean || echo "FAILED, see $logs/$1.*.log")"
  return $failed
}

status=0
pids=()
for tool in "${tools[@]}"; do
  run "$tool" &
  pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid" || status=1; done
exit $status
