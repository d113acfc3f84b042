#!/usr/bin/env bash
# Checks that the programs and headers of the given groups are there: build (always), check, neon, fuzz.
# What is missing is installed when root on Debian or Ubuntu; otherwise the command to run is printed.
set -euo pipefail

missing=()

need_program() {  # need_program PACKAGE PROGRAM...: any one of the programs will do
  local package=$1 program
  shift
  for program in "$@"; do
    if command -v "$program" >/dev/null; then return; fi
  done
  missing+=("$package")
}

# One preprocessor run for all headers: it looks where the compiler will look, on any distribution.
need_headers() {  # need_headers HEADER=PACKAGE...
  local compiler=${CXX:-c++} pair
  if ! command -v "${compiler%% *}" >/dev/null; then
    for pair in "$@"; do missing+=("${pair#*=}"); done
    return
  fi
  local found
  if ! found=$(for pair in "$@"; do
    printf '#if !__has_include(<%s>)\nQKV_MISSING %s\n#endif\n' "${pair%%=*}" "${pair#*=}"
  done | $compiler -E -P -x c++ - 2>/dev/null | sed -n 's/^QKV_MISSING //p; s/ - /-/g'); then
    echo "setup: the compiler '$compiler' does not run: install g++, or correct or unset CXX" >&2
    exit 1
  fi
  if [[ -n $found ]]; then mapfile -t -O "${#missing[@]}" missing <<<"$found"; fi
}

collect() {
  missing=()
  local group compiler=${CXX:-c++}
  for group in "$@"; do
    case $group in
      build)
        need_program g++ "${compiler%% *}"  # without its arguments
        need_program cmake cmake
        need_program ninja-build ninja
        need_program ccache ccache
        need_program mold mold
        need_program pkg-config pkg-config
        need_program python3 python3
        if ! command -v python3 >/dev/null ||
          ! python3 -c 'import importlib.util as u, sys; sys.exit(u.find_spec("pip") is None)'; then
          missing+=(python3-pip)
        fi
        need_headers nlohmann/json.hpp=nlohmann-json3-dev CLI/CLI.hpp=libcli11-dev fmt/format.h=libfmt-dev \
          hwy/highway.h=libhwy-dev sodium.h=libsodium-dev xxhash.h=libxxhash-dev gtest/gtest.h=libgtest-dev \
          benchmark/benchmark.h=libbenchmark-dev yaml-cpp/yaml.h=libyaml-cpp-dev
        ;;
      check)
        need_program clang-19 clang++-19
        need_program clang-tidy-19 clang-tidy-19
        need_program clang-format-19 clang-format-19
        ;;
      neon)
        need_program g++-aarch64-linux-gnu aarch64-linux-gnu-g++
        need_program qemu-user qemu-aarch64
        ;;
      fuzz)
        need_program clang-19 clang++-19
        if ! compgen -G '/usr/lib/llvm-19/lib/clang/19/lib/linux/libclang_rt.fuzzer-*.a' >/dev/null; then
          missing+=(libclang-rt-19-dev)
        fi
        ;;
      *)
        echo "packages.sh: unknown group '$group': use build, check, neon or fuzz" >&2
        exit 2
        ;;
    esac
  done
}

install_missing() {
  local log
  log=$(mktemp)
  local apt=(apt-get -o DPkg::Lock::Timeout=300 -qq -y --no-install-recommends install "${missing[@]}")
  echo "setup: installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  if ! "${apt[@]}" >"$log" 2>&1 </dev/null; then
    # The package lists may be absent or old.
    if ! { apt-get -o DPkg::Lock::Timeout=300 -qq update && "${apt[@]}"; } >>"$log" 2>&1 </dev/null; then
      echo "setup: apt-get could not install ${missing[*]} ($(grep -m1 '^E:' "$log" || true)): see $log," \
        "then run this again" >&2
      exit 1
    fi
  fi
  rm -f "$log"
}

collect "$@"
if ((${#missing[@]} == 0)); then exit 0; fi
mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)
if ! command -v apt-get >/dev/null; then
  echo "setup: missing (by their Debian names): ${missing[*]}. Install them, then run this again" >&2
  exit 1
fi
if (($(id -u) != 0)); then
  echo "setup: packages are missing. Run: sudo apt-get install -y --no-install-recommends ${missing[*]}" >&2
  exit 1
fi
install_missing
collect "$@"
if ((${#missing[@]} != 0)); then
  echo "setup: still not found after installing: ${missing[*]}. Is another program or compiler first in PATH?" >&2
  exit 1
fi
