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

# Before anything is changed: the baseline would end in `No files matched`.
previous=
for flag in "$@"; do
  case $flag in -data_root=*|--data_root=*) DATA_ROOT=${flag#*=} ;; esac
  case $previous in -data_root|--data_root) DATA_ROOT=$flag ;; esac
  previous=$flag
done
DATA_ROOT=${DATA_ROOT/#\~/$HOME}
for split in train valid test; do
  [ -n "$(find "$DATA_ROOT/$split" -name '*.npz' -print -quit 2>/dev/null)" ] ||
    stop "there are no .npz files in $DATA_ROOT/$split; get them with \
./run_scripts/download_data.sh, or name another folder as DATA_ROOT."
done
make_environment
verb install --root "$TPU_GRAPHS_ROOT" \
  --models_py "${MODELS_PY:-$PROJECT/models.py}"
cd "$TPU_GRAPHS_ROOT"
verb run tiles_train.py --model=MyEarlyJoinSAGE --data_root="$DATA_ROOT" \
  --out_dir="$OUT_DIR" "$@"
echo "trained: $(model_or_newest)"
echo "next:    ./run_scripts/assignment_hand_in.sh"
