#!/usr/bin/env bash
# The main job: agent A reads a report and hands it to agent B, in another process. MODEL: a name of `qkvshare models
# list` or a GGUF file (default smollm2-135m). BITS, POLICY: as of `qkvshare pack`.
set -euo pipefail
cd "$(dirname "$0")/.."

model=${MODEL:-smollm2-135m}
qkvshare=build/release/bin/qkvshare
folder=build/demo/$(basename "$model")
mkdir -p "$folder"

if [[ ! -f $model ]]; then
  echo "Model $model"
  "$qkvshare" models get "$model" >/dev/null
fi

echo "Agent A reads tools/demo/document.md and writes a card"
"$qkvshare" pack -m "$model" --chat -sys 'You answer questions about the document.' -f tools/demo/document.md \
  --agent A --policy "${POLICY:-uniform}" --bits "${BITS:-4}" -o "$folder/report.card" --state-output "$folder/report.state"
echo
"$qkvshare" info "$folder/report.card"
echo
echo "Agent B takes the card and is asked two questions"
echo
exec "$qkvshare" eval handoff -m "$model" --card "$folder/report.card" --state "$folder/report.state" -n 32 \
  -q 'How many steps does the tower have?' -q 'What is the name of the new weather observer?' \
  --known-answer 'Please summarize the document.' tools/demo/summary.md
