#!/usr/bin/env bash
# Makes the results of docs/results/. Usage: tools/evaluate.sh PART... GSM8K_FOLDER
#   codecs:    fidelity of codecs and caches on three models (about two hours on two cores)
#   topology:  policies at equal bytes for receivers with instructions of their own (hours)
#   documents: fidelity on documents with facts, of 1K, 4K and 8K tokens (hours)
#   chains:    right answers after up to five hops of a 1.5B model (an arm takes hours)
#   times:     time to first token and memory (needs a quiet machine)
#   report:    one page and Markdown of what there is
# GSM8K_FOLDER has train.jsonl and test.jsonl (https://github.com/openai/grade-school-math). Each part goes on where it
# was interrupted. THREADS: 2.
set -euo pipefail
cd "$(dirname "$0")/.."

data=${*: -1}
out=docs/results
program=build/release/bin/qkvshare
threads=${THREADS:-2}

# MODEL NAME SET MORE...
fidelity() {
  local model=$1 name=$2 set=$3
  shift 3
  echo "== $model, $name"
  "$program" eval fidelity -m "$model" -t "$threads" --set "$set" -o "$out/$name-$model.jsonl" "$@"
}

arms() {
  local arm
  for arm in "$@"; do printf -- '--arm\n%s\n' "$arm"; done
}

codecs() {
  local model
  mapfile -t list < <(arms floor exact \
    {uniform,local,random}@{2.75,3.25,4.25} uniform@{2,4,8} uniform@{2,3,4},rounding=nearest \
    roundtrip:{q8_0/q8_0,q8_0/q4_0,q4_0/q4_0} cache:{q8_0/q8_0,q8_0/q4_0,q4_0/q4_0})
  for model in smollm2-135m qwen2.5-coder-0.5b qwen2.5-coder-1.5b; do
    fidelity "$model" fidelity-gsm8k "gsm8k:$data/test.jsonl" --context 1024 --prompts 24 "${list[@]}"
  done
}

for part in "${@:1:$#-1}"; do "$part"; done
