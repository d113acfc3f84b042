#!/usr/bin/env bash
# Formats all C and C++ sources, or with --check reports what is not formatted.
set -euo pipefail
cd "$(dirname "$0")/.."

tools/setup/packages.sh check
mode=(-i)
if [[ ${1:-} == --check ]]; then mode=(--dry-run -Werror); fi
find include src tests bench fuzz examples -regex '.*\.\(h\|hpp\|c\|cc\)' -print0 2>/dev/null |
  xargs -0 -r clang-format-19 --style=file "${mode[@]}"
