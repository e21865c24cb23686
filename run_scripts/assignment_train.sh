#!/usr/bin/env bash
# Step 2: puts models.py into the checkout and trains through the unchanged
# tiles_train.py on the real data.
#
#   ./run_scripts/assignment_train.sh [--model=NAME] [--epochs=N] ...
#
# Without flags MyEarlyJoinSAGE for up to 100 epochs, told how its features are
# scaled (`tpu-graphs-ext stats`); flags go to tiles_train.py. Most of an hour
# on two cores, estimated from the steps of the sample data (571 steps of about
# 30 ms an epoch) and not measured on the real data. Prints Keras' progress and,
# at the end, `wrote` with the folder model_<hash>.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/assignment.sh"

make_environment
verb install --root "$TPU_GRAPHS_ROOT" --models_py "$MODELS_PY"
case " $*" in
  # Another model, or other kernels to scale with: as the flags say.
  *" --model"* | *" --toy_data"* | *" --configs"*) told=() ;;
  *) told=("--model_kwargs_json=$(verb stats --data_root "$DATA_ROOT")") ;;
esac
cd "$TPU_GRAPHS_ROOT"
verb run tiles_train.py --model=MyEarlyJoinSAGE --data_root="$DATA_ROOT" \
  --out_dir="$OUT_DIR" ${told[@]+"${told[@]}"} "$@"
echo "trained: $(model_or_newest)"
