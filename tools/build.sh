#!/usr/bin/env bash
# Sets up, configures and builds one preset. Usage: tools/build.sh PRESET [TARGET...]
# Jobs: $QKV_JOBS, else one a core.
set -euo pipefail
cd "$(dirname "$0")/.."

preset=$1
shift
variant=release
groups=()
case $preset in
  avx2 | tsan) variant=$preset ;;
  clang) groups=(--check) ;;
  fuzz) groups=(--fuzz) ;;
esac
tools/setup.sh "${groups[@]}" "$variant"
if [[ -n ${QKV_LLAMA_PREFIX:-} ]]; then
  llama=(-DQKV_LLAMA_DIR= "-DQKV_LLAMA_PREFIX=$QKV_LLAMA_PREFIX")
else
  llama=("-DQKV_LLAMA_DIR=$(tools/setup/llama.py "$variant" --dir)" -DQKV_LLAMA_PREFIX=)
fi

log=build/$preset.configure.log
mkdir -p build
if ! cmake --preset "$preset" "${llama[@]}" >"$log" 2>&1; then
  cat "$log" >&2
  exit 1
fi
build=(cmake --build "build/$preset" -j "${QKV_JOBS:-$(nproc)}" ${1:+--target "$@"})
if [[ -t 1 ]]; then exec "${build[@]}"; fi
# In a log: one line, and the compiler's output only where it failed.
log=build/$preset.build.log
if ! "${build[@]}" >"$log" 2>&1; then
  grep -A30 -m1 -E '^FAILED|error' "$log" >&2 || tail -n 40 "$log" >&2
  echo "build/$preset failed; full log: $log" >&2
  exit 1
fi
echo "build/$preset is up to date"
