#!/usr/bin/env bash
# All checks, as CI runs them. Stops at the first that fails.
set -euo pipefail
cd "$(dirname "$0")/.."
unset QKV_FORCE_ISA

step() {  # step NAME COMMAND...
  local name=$1 start=$SECONDS
  shift
  echo "== $name"
  if ! "$@"; then
    echo "check: $name failed" >&2
    exit 1
  fi
  echo "== $name: ok, $((SECONDS - start)) s"
}

# Output of long quiet steps goes to a log, whose end is shown when they fail.
logged() {  # logged LOG COMMAND...
  local log=$1
  shift
  mkdir -p build
  if ! "$@" >"$log" 2>&1 </dev/null; then
    tail -n 50 "$log"
    echo "full log: $log"
    return 1
  fi
}

step "setup" tools/setup.sh --check
step "includes" tools/check_includes.py
step "README" tools/check_readme.py
step "format" tools/format.sh --check
step "build with g++" logged build/check-gcc.log tools/build.sh release
step "tests" tools/test.sh release
step "tests, scalar kernels" env QKV_FORCE_ISA=scalar tools/test.sh release
step "NEON kernels" logged build/check-neon.log tools/neon.sh
step "build with clang" logged build/check-clang.log tools/build.sh clang
step "clang-tidy" tools/tidy.py build/clang
step "make demo" logged build/check-demo.log make demo
echo "check: all passed in $SECONDS s"
