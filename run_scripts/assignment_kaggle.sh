#!/usr/bin/env bash
# Step 4: writes the CSV to upload to Kaggle (three uploads a day).
#
#   ./run_scripts/assignment_kaggle.sh [MODEL_DIR]
#
# MODEL_DIR is the model that was trained last unless given. Ranks the test
# split once more, in minutes.
# The last line is
#
#   894 rows: /home/you/out/tpugraphs_tiles/kaggle.csv
#
# On sample data the file has its kernels instead, and a warning says that Kaggle
# would refuse it.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/assignment.sh"

make_environment
MODEL_DIR=$(model_or_newest "${1:-}")
SAMPLE=$TPU_GRAPHS_ROOT/sample_submission.csv
[ -f "$SAMPLE" ] ||
  SAMPLE=$(dirname "$TPU_GRAPHS_ROOT")/tpu_graphs_scripts/sample_submission.csv
[ -f "$SAMPLE" ] || stop "sample_submission.csv is neither in $TPU_GRAPHS_ROOT \
nor in tpu_graphs_scripts beside it; get the course's scripts with \
./run_scripts/assignment_setup.sh"
PREDICTIONS=$OUT_DIR/predictions.csv
verb predict --dir "$MODEL_DIR" --models_py "$(models_py_of "$MODEL_DIR")" \
  --stats all --data_root "$DATA_ROOT" --out "$PREDICTIONS"
if [ "$(grep -c '^tile:' "$PREDICTIONS")" != 844 ]; then
  # A rehearsal on other data: the rows of its kernels.
  { head -n 1 "$SAMPLE"; grep '^tile:' "$PREDICTIONS"
    grep '^layout:' "$SAMPLE"; } > "$OUT_DIR/rehearsal_sample.csv"
  SAMPLE=$OUT_DIR/rehearsal_sample.csv
fi
verb kaggle-csv --tile "$PREDICTIONS" --sample "$SAMPLE" \
  --out "$OUT_DIR/kaggle.csv"
