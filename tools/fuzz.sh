#!/usr/bin/env bash
# Runs each built fuzz target for FUZZ_SECONDS (60). Findings and new inputs stay in build/fuzz/.
# Copy inputs worth keeping to fuzz/corpus/NAME, where every test run replays them.
set -euo pipefail
cd "$(dirname "$0")/.."

shopt -s nullglob
programs=(build/fuzz/fuzz/*)
if ((${#programs[@]} == 0)); then
  echo "fuzz: no targets in fuzz/"
  exit 0
fi
failed=0
for program in "${programs[@]}"; do
  name=$(basename "$program")
  if [[ ! -x $program || ! -e fuzz/$name.cc ]]; then continue; fi  # left from a target that is gone
  new=build/fuzz/corpus/$name
  artifacts=build/fuzz/artifacts/$name
  log=build/fuzz/$name.log
  mkdir -p "$new" "$artifacts"
  seeds=()
  if [[ -d fuzz/corpus/$name ]]; then seeds=("fuzz/corpus/$name"); fi
  if "$program" -max_total_time="${FUZZ_SECONDS:-60}" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="$artifacts/" "$new" "${seeds[@]}" >"$log" 2>&1; then
    echo "fuzz: $name: ok, $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs"
  else
    failed=1
    tail -n 30 "$log"
    echo "fuzz: $name: FAILED, input in $artifacts, log in $log" >&2
  fi
done
exit $failed
