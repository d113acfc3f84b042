#!/usr/bin/env bash
# Builds the tests of src/quant and src/attend for 64-bit ARM and runs them under QEMU, so that the NEON kernels are tested
# on any machine. No library for ARM is needed: fmt and Highway are used from this machine's headers, GoogleTest from
# source.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/setup/packages.sh build neon

out=build/neon
gtest=/usr/src/googletest/googletest
jobs=${QKV_JOBS:-$(nproc)}
compiler=aarch64-linux-gnu-g++
# This machine's headers come last, so that the C library's are those for ARM.
flags=(-std=c++20 -O3 -ffp-contract=off -Wall -Wextra -Werror -Wno-restrict -Wno-stringop-overflow -Wno-array-bounds
  -DFMT_HEADER_ONLY -Iinclude -Isrc
  "-isystem$gtest/include" "-I$gtest" -idirafter /usr/include)

mkdir -p "$out"
sources=(src/base/parallel.cc src/quant/*.cc src/attend/*.cc "$gtest"/src/gtest-all.cc "$gtest"/src/gtest_main.cc)
objects=()
for source in "${sources[@]}"; do objects+=("$out/$(basename "$source" .cc).o"); done
printf '%s\n' "${sources[@]}" |
  xargs -P "$jobs" -I '{}' sh -c 'exec ccache "$@" -c {} -o "$0/$(basename {} .cc).o"' "$out" "$compiler" "${flags[@]}"
"$compiler" "${objects[@]}" -o "$out/kernels_test"

# The scalar set too, where it is compared with known results. An emulator is slow: so in several parts at once.
export GTEST_FILTER='*/neon:*Golden*:HalfTest.*:TileTest.*:RoundTileTest.*:ErrorMetricTest.*:SelectKernelsTest.*:*AttentionTest.*:AttentionSourcesTest.*' GTEST_BRIEF=1 GTEST_TOTAL_SHARDS=$jobs
export QKV_FORCE_ISA=neon
rm -f "$out"/part-*.xml
seq 0 $((jobs - 1)) | GTEST_SHARD_INDEX='' xargs -P "$jobs" -I '{}' env GTEST_SHARD_INDEX='{}' \
  GTEST_OUTPUT="xml:$out/part-{}.xml" qemu-aarch64 -L /usr/aarch64-linux-gnu "$out/kernels_test"

# No test at all is a success for GoogleTest.
count=$(cat "$out"/part-*.xml | grep -c '<testcase name="[^"]*/neon".* status="run" result="completed"' || true)
if ((count == 0)); then
  echo "neon: no test ran on the NEON kernels" >&2
  exit 1
fi
echo "neon: $count tests passed on the NEON kernels"
