#!/usr/bin/env bash
# Measures the built program. Usage: tools/bench.sh kernels|speed|quick
#   kernels: the benchmarks of bench/; BENCH_ARGS goes to each, for example BENCH_ARGS=--benchmark_filter=Decode
#   speed:   receivers of cards against llama.cpp's own caches (qkvshare eval speed), into docs/results/; hours
#   quick:   the same at small depths, into build/; minutes
set -euo pipefail
cd "$(dirname "$0")/.."

kernels() {
  shopt -s nullglob
  for source in bench/*.cc; do
    name=$(basename "$source" .cc)
    echo "== $name"
    # shellcheck disable=SC2086  # several arguments
    "build/release/bench/$name" ${BENCH_ARGS:-}
  done
}

# MODEL DEPTHS REPEATS FILE
speed() {
  echo "== $1"
  build/release/bin/qkvshare models get "$1" >/dev/null
  cat docs/*.md README.md >build/speed.txt
  build/release/bin/qkvshare eval speed -m "$1" -f build/speed.txt --depth "$2" --repeats "$3" -t "${THREADS:-2}" -o "$4"
}

case $1 in
  kernels) kernels ;;
  quick) speed qwen2.5-coder-0.5b 1024 3 build/speed-quick.json ;;
  speed)
    mkdir -p docs/results
    speed qwen2.5-coder-0.5b 1024,8192,32768 5 docs/results/speed-qwen2.5-coder-0.5b.json
    speed qwen2.5-coder-1.5b 1024,8192 5 docs/results/speed-qwen2.5-coder-1.5b.json
    ;;
esac
