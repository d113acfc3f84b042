#!/usr/bin/env bash
# Runs the tests of a built preset. Usage: tools/test.sh PRESET [CTEST_ARGUMENT...]
set -euo pipefail
cd "$(dirname "$0")/.."

preset=$1
shift
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=1:strict_string_checks=1:check_initialization_order=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
export LSAN_OPTIONS=${LSAN_OPTIONS:-print_suppressions=0}
tsan_options=halt_on_error=1:second_deadlock_stack=1
if [[ -e tools/tsan.supp ]]; then tsan_options+=:suppressions=$PWD/tools/tsan.supp; fi
export TSAN_OPTIONS=${TSAN_OPTIONS:-$tsan_options}
# ggml itself is instrumented for tsan: real models would take an hour, and tiny ones run the same code.
if [[ $preset == tsan ]]; then export GTEST_FILTER=${GTEST_FILTER:--RealModelTest.*}; fi
# The tests on a real model need it; whatever is missing is said in one line.
"build/$preset/bin/qkvshare" models get smollm2-135m >/dev/null
exec ctest --test-dir "build/$preset" --output-on-failure --no-tests=error -j "${QKV_JOBS:-$(nproc)}" "$@"
