#!/usr/bin/env bash
# Measures the built program. Usage: tools/bench.sh kernels|speed|avx2|quick
#   kernels: the benchmarks of bench/; BENCH_ARGS goes to each, for example BENCH_ARGS=--benchmark_filter=Decode
#   speed:   receivers of cards against llama.cpp's own caches (qkvshare eval speed), into docs/results/; hours.
#            SPEED_ARGS goes to each, for example SPEED_ARGS='--tests decode,no-card'
#   avx2:    the same with both sides built for AVX2 (builds them first), at 1K and 8K
#   quick:   as speed at 1K, into build/; minutes
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

# MODEL DEPTHS REPEATS FILE [PRESET]
speed() {
  local program=build/${5:-release}/bin/qkvshare
  echo "== $1"
  "$program" models get "$1" >/dev/null
  cat docs/*.md README.md >build/speed.txt
  # shellcheck disable=SC2086  # several arguments
  "$program" eval speed -m "$1" -f build/speed.txt --depth "$2" --repeats "$3" -t "${THREADS:-2}" -o "$4" ${SPEED_ARGS:-}
}

# The same programs as on a CPU without AVX-512: llama.cpp built without it, and our kernels for AVX2.
avx2() {
  if [[ $(uname -m) != x86_64 ]]; then
    echo "no AVX2 on this CPU: not measured"
    return
  fi
  env -u QKV_LLAMA_PREFIX tools/build.sh avx2 qkvshare  # an installed llama.cpp is what it is
  QKV_FORCE_ISA=avx2 speed qwen2.5-coder-0.5b 1024,8192 5 docs/results/speed-qwen2.5-coder-0.5b-avx2.json avx2
}

case $1 in
  kernels) kernels ;;
  quick) speed qwen2.5-coder-0.5b 1024 3 build/speed-quick.json ;;
  avx2) avx2 ;;
  speed)
    speed qwen2.5-coder-0.5b 1024,8192 5 docs/results/speed-qwen2.5-coder-0.5b.json
    speed qwen2.5-coder-1.5b 1024,8192 5 docs/results/speed-qwen2.5-coder-1.5b.json
    # A suffix after so much takes llama.cpp minutes: only where it is asked for.
    [[ ${SPEED_ARGS:-} == *--tests* ]] || SPEED_ARGS+=" --tests decode,first-token,memory"
    speed qwen2.5-coder-0.5b 32768 5 docs/results/speed-qwen2.5-coder-0.5b-32k.json
    ;;
  *)
    sed -n '2s/^# Measures.*Usage/usage/p' "$0" >&2
    exit 2
    ;;
esac
