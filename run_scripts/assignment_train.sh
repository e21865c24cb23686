#!/usr/bin/env bash
# Step 2: puts models.py into the checkout and trains through the unchanged
# tiles_train.py on the real data.
#
#   ./run_scripts/assignment_train.sh [--model=NAME] [--epochs=N] ...
#
# Without flags MyEarlyJoinSAGE for up to 100 epochs; flags go to
# tiles_train.py. Takes 6.8 GB, and up to two minutes an epoch on two cores (571
# steps), beside reading the data, which it caches, and predicting. Flags are
# checked before the data is read. Prints Keras' progress and, at the end,
# `trained:` with the folder model_<hash> that this run wrote.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/assignment.sh"

make_environment
exec "$PYTHON" -I -m tpu_graphs_ext.course.training "$TPU_GRAPHS_ROOT" \
  "${MODELS_PY:-$PROJECT/models.py}" "$OUT_DIR" --model=MyEarlyJoinSAGE \
  --data_root="$DATA_ROOT" --out_dir="$OUT_DIR" "$@"
