#!/usr/bin/env bash
# Makes the results of docs/results/. Usage: tools/evaluate.sh PART... GSM8K_FOLDER
#   labels:    what one token at 2 bits costs, to train controllers on (tools/train_controller.py)
#   codecs:    fidelity of codecs, policies and caches on GSM8K, three models
#   features:  what each feature of I(t) adds to policy local
#   topology:  policies at equal bytes, for 1,000 receivers with instructions of their own; what each feature of T(t) adds
#   documents: fidelity on documents with facts, of 1K, 4K and 8K tokens; means and scales of other text there and at 16K
#   chains:    right answers after up to five hops of a 1.5B model; an arm takes hours
#   hops:      KL by hop of the same chains
#   times:     time to first token and memory; needs a quiet machine
#   report:    one page and Markdown of what there is
# GSM8K_FOLDER has train.jsonl and test.jsonl (https://github.com/openai/grade-school-math). Each part takes hours, and
# goes on where it was interrupted. THREADS: 2. OUT: docs/results.
set -euo pipefail
data=$(realpath "${*: -1}")
[[ -z ${OUT:-} ]] || OUT=$(realpath -m "$OUT")
[[ -z ${PROGRAM:-} ]] || PROGRAM=$(realpath "$PROGRAM")
cd "$(dirname "$0")/.."

out=${OUT:-docs/results}
program=${PROGRAM:-build/release/bin/qkvshare}
chains=$out/chains-qwen2.5-coder-1.5b
threads=${THREADS:-2}
mkdir -p "$out" build/floats

for model in smollm2-135m qwen2.5-coder-{0.5b,1.5b}; do "$program" models get "$model" >/dev/null; done

# The path of a model with its weights as floats, which show what is below the noise of quantized products.
floats() {
  local file=build/floats/$1.gguf
  [[ -e $file ]] || "$program" models dequantize "$1" -o "$file"
  echo "$file"
}

# MODEL FILE SET FLAG...
fidelity() {
  echo "== $2"
  "$program" eval fidelity -m "$1" -t "$threads" --set "$3" -o "$out/$2.jsonl" "${@:4}"
}

# ARM...: flags of arms.
arms() {
  printf -- '--arm\n%s\n' "$@"
}

labels() {
  "$program" eval sensitivity -m "$(floats smollm2-135m)" -t "$threads" --data "$data/train.jsonl" --prompts 48 --tokens 16 \
    --context 512 -o "$out/labels-gsm8k-smollm2-135m-f32.jsonl"
}

codecs() {
  local model flags gsm8k=(gsm8k:"$data/test.jsonl" --context 1024 --prompts 20)
  mapfile -t flags < <(arms uniform@{2,3,4,8} uniform@{2,3,4},rounding=nearest {uniform,local,learned}@{2.75,3.25,4.25} local@4 \
    random@{3.25,4.25} exact floor {cache,roundtrip}:{q8_0/q8_0,q8_0/q4_0,q4_0/q4_0})
  for model in smollm2-135m qwen2.5-coder-0.5b qwen2.5-coder-1.5b; do
    fidelity "$(floats "$model")" "fidelity-gsm8k-$model-f32" "${gsm8k[@]}" "${flags[@]}"
  done
}

# Beside the arms of the same prompts that `codecs` has.
features() {
  local flags
  mapfile -t flags < <(arms inverted@3.25 \
    local@3.25,features={-attention,default+variance,default+entropy,default+rarity,default+confidence,default+next_entropy,full})
  fidelity "$(floats smollm2-135m)" features-smollm2-135m-f32 gsm8k:"$data/test.jsonl" --context 1024 --prompts 20 \
    "${flags[@]}"
}

topology() {
  local flags
  mapfile -t flags < <(arms {local,random,topology,learned,oracle}@{3,4} random@{3,4},control_of=topology \
    topology@3,features={default-probe,default-prior,default-anchors})
  fidelity "$(floats smollm2-135m)" topology-smollm2-135m-f32 receivers --context 600 --prompts 100 "${flags[@]}"
  # How much of what is left is the question itself.
  mapfile -t flags < <(arms oracle@{3,4},sees=turn)
  fidelity "$(floats smollm2-135m)" asked-smollm2-135m-f32 receivers --context 600 --prompts 100 "${flags[@]}"
}

# Keys of the first 4,096 tokens of other text, for the channels of any.
documents() {
  local context model=qwen2.5-coder-0.5b profile=$out/qwen2.5-coder-0.5b.profile
  [[ -e $profile ]] || "$program" calibrate -m "$model" -t "$threads" -f "$data/train.jsonl" -n 4096 -o "$profile"
  local of_other_text=uniform@4,profile=$profile
  for context in 1024 4096 8000; do
    fidelity "$model" "fidelity-facts-$context-$model" facts --context "$context" --prompts 20 \
      --arm uniform@2 --arm uniform@3 --arm uniform@4 --arm "$of_other_text" --arm local@3 \
      --arm learned@3,controller=gsm8k-window --arm floor --arm cache:q8_0/q4_0 --arm cache:q4_0/q4_0
  done
  fidelity "$model" "fidelity-facts-16000-$model" facts --context 16000 --prompts 5 --arm uniform@4 \
    --arm "$of_other_text" --arm floor
}

# The arms of the first part of the question, then the others.
chains() {
  local arms=() arm
  for arm in f16 uniform@4 topology@4 random@4,control_of=topology local@4 requantized@4 uniform@8 cache:q8_0/q8_0 \
    cache:q4_0/q4_0 text; do
    arms+=(--arm "$arm")
  done
  "$program" eval chain -m qwen2.5-coder-1.5b -t "$threads" --problems "$data/test.jsonl" --examples "$data/train.jsonl" \
    --count 150 --shots 2 -np 5 -o "$chains" "${arms[@]}"
}

hops() {
  mkdir -p "$chains"
  "$program" eval hops -m qwen2.5-coder-1.5b -t "$threads" --problems "$data/test.jsonl" --examples "$data/train.jsonl" \
    --count 150 --shots 2 -np 5 --first 24 --conversations "$chains/f16.jsonl" \
    -o "$out/hops-qwen2.5-coder-1.5b.jsonl" --arm uniform@4 --arm topology@4 --arm requantized@4 --arm uniform@8 \
    --arm once@4 --arm floor
}

times() {
  [[ -e build/times.txt ]] || cat docs/*.md README.md >build/times.txt
  for model in qwen2.5-coder-0.5b qwen2.5-coder-1.5b; do
    "$program" eval ttft -m "$model" -t "$threads" -f build/times.txt --depth 1024,2048,4096,8192 -o "$out/ttft-$model.jsonl"
    "$program" eval memory -m "$model" -t "$threads" -f build/times.txt --depth 4096 -o "$out/memory-$model.jsonl"
  done
}

report() {
  shopt -s nullglob
  local against=() arm
  for arm in uniform@{3.25,4.25} cache:q8_0/q4_0 {local,random}@{3,4} local@{3.25,4.25} random@{3,4},control_of=topology f16 uniform@4 once@4; do
    against+=(--against "$arm")
  done
  "$program" report "$out"/*.jsonl "$chains"/*.jsonl "${against[@]}" -o "$out/report.html" --markdown "$out/report.md"
}

for part in "${@:1:$#-1}"; do "$part"; done
