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
verb kaggle-csv --tile "$OUT_DIR/predictions.csv" --sample "$SAMPLE" \
  --data_root "$DATA_ROOT" --out "$OUT_DIR/kaggle.csv"
