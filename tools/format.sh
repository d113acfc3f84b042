#!/usr/bin/env bash
# Formats all C++ sources, or with --check reports what is not formatted.
set -euo pipefail
cd "$(dirname "$0")/.."

tools/setup/packages.sh check
mode=(-i)
if [[ ${1:-} == --check ]]; then mode=(--dry-run -Werror); fi
find include src tests bench fuzz \( -name '*.h' -o -name '*.cc' \) -print0 2>/dev/null |
  xargs -0 -r clang-format-19 --style=file "${mode[@]}"
