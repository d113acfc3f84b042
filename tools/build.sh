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
  tsan) variant=tsan ;;
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
exec cmake --build "build/$preset" -j "${QKV_JOBS:-$(nproc)}" ${1:+--target "$@"}
