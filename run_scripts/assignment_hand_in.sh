#!/usr/bin/env bash
# Step 3: grades the model as the graders will, and packs it.
#
#   ./run_scripts/assignment_hand_in.sh [MODEL_DIR]
#
# MODEL_DIR is the model that was trained last unless given (the first line says
# its class, epochs and validation OPA); its models.py the copy that
# assignment_train.sh left in that folder, or MODELS_PY. It ranks the test split
# twice, once here and once through the course's script: minutes on two cores,
# and 2.2 GB. Prints what was checked; the last lines are
#
#   this hand-in works
#   /home/you/out/tpugraphs_tiles/submission.zip
#
# or every reason why it does not, and then no file is written.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/assignment.sh"

make_environment
MODEL_DIR=$(model_or_newest "${1:-}")
verb package --model_dir "$MODEL_DIR" \
  --models_py "$(models_py_of "$MODEL_DIR")" --root "$TPU_GRAPHS_ROOT" \
  --data_root "$DATA_ROOT" --out "$OUT_DIR/submission.zip"
