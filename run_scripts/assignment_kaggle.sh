#!/usr/bin/env bash
# Step 4: writes the CSV to upload to Kaggle (three uploads a day).
#
#   ./run_scripts/assignment_kaggle.sh [MODEL_DIR]
#
# MODEL_DIR is the model that was trained last unless given. Ranks the test
# split once more: about five minutes, estimated as in assignment_hand_in.sh.
# The last line is
#
#   894 rows: /home/you/out/tpugraphs_tiles/kaggle.csv
#
# With the sample data's test split the file has its kernels instead: Kaggle
# refuses it, but every step before has been done once.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/assignment.sh"

make_environment
MODEL_DIR=$(model_or_newest "${1:-}")
SAMPLE=sample_submission.csv
for folder in "$TPU_GRAPHS_ROOT" \
    "$(dirname "$TPU_GRAPHS_ROOT")/tpu_graphs_scripts"; do
  [ -f "$folder/$SAMPLE" ] && SAMPLE=$folder/$SAMPLE && break
done
verb predict --dir "$MODEL_DIR" --models_py "$MODELS_PY" --stats all \
  --data_root "$DATA_ROOT" --out "$OUT_DIR/predictions.csv"
if grep -q '^tile:' "$OUT_DIR/predictions.csv" &&
    [ "$(grep -c '^tile:' "$OUT_DIR/predictions.csv")" != 844 ]; then
  echo "A rehearsal: $DATA_ROOT is not the real collection, so Kaggle would \
refuse this file." >&2
  { head -n 1 "$SAMPLE"; grep '^tile:' "$OUT_DIR/predictions.csv"
    grep '^layout:' "$SAMPLE"; } > "$OUT_DIR/rehearsal_sample.csv"
  SAMPLE=$OUT_DIR/rehearsal_sample.csv
fi
verb kaggle-csv --tile "$OUT_DIR/predictions.csv" --sample "$SAMPLE" \
  --data_root "$DATA_ROOT" --out "$OUT_DIR/kaggle.csv"
