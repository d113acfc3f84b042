#!/usr/bin/env bash
# Gets this machine ready: packages, then llama.cpp. Idempotent; a second where everything is in place.
# Usage: tools/setup.sh [--check] [--fuzz] [release|avx2|tsan]
# With QKV_LLAMA_PREFIX set, the llama.cpp installed there is used and none is built.
set -euo pipefail
cd "$(dirname "$0")/.."

groups=(build)
variant=release
for arg in "$@"; do
  case $arg in
    --check) groups+=(check) ;;
    --fuzz) groups+=(fuzz) ;;
    release | avx2 | tsan) variant=$arg ;;
    *)
      echo "usage: tools/setup.sh [--check] [--fuzz] [release|avx2|tsan]" >&2
      exit 2
      ;;
  esac
done

tools/setup/packages.sh "${groups[@]}"
if [[ -z ${QKV_LLAMA_PREFIX:-} ]]; then exec python3 tools/setup/llama.py "$variant"; fi
