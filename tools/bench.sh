#!/usr/bin/env bash
# Runs the built benchmarks; BENCH_ARGS goes to each, for example BENCH_ARGS=--benchmark_filter=Decode.
set -euo pipefail
cd "$(dirname "$0")/.."

shopt -s nullglob
for source in bench/*.cc; do
  name=$(basename "$source" .cc)
  echo "== $name"
  # shellcheck disable=SC2086  # several arguments
  "build/release/bench/$name" ${BENCH_ARGS:-}
done
