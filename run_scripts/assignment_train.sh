#!/usr/bin/env bash
# Step 2: puts models.py into the checkout and trains through the unchanged
# tiles_train.py on the real data.
#
#   ./run_scripts/assignment_train.sh [--model=NAME] [--epochs=N] ...
#
# Without flags MyEarlyJoinSAGE for up to 100 epochs; flags go to
# tiles_train.py. Most of an hour on two cores, estimated from the steps of the
# sample data (571 steps of about 30 ms an epoch) and not measured on the real
# data. Prints Keras' progress and, at the end, `wrote` with the folder
# model_<hash>.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/assignment.sh"

case " $*" in *" --data_root"*) ;; *)
  [ -n "$(find "$DATA_ROOT/train" -name '*.npz' -print -quit 2>/dev/null)" ] ||
    stop "there are no .npz files in $DATA_ROOT/train; get them with \
run_scripts/download_data.sh, or name another folder as DATA_ROOT." ;;
esac
make_environment
verb install --root "$TPU_GRAPHS_ROOT" --models_py "$MODELS_PY"
cd "$TPU_GRAPHS_ROOT"
verb run tiles_train.py --model=MyEarlyJoinSAGE --data_root="$DATA_ROOT" \
  --out_dir="$OUT_DIR" "$@"
echo "trained: $(model_or_newest)"
