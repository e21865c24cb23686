# Sourced by the scripts of the assignment: where things are.
#
#   TPU_GRAPHS_ROOT   the baseline's checkout            (~/tpu_graphs)
#   DATA_ROOT         folder of train, valid and test    (~/data/tpugraphs/...)
#   OUT_DIR           folder for models and run files    (~/out/tpugraphs_tiles)
#   MODELS_PY         the models.py to train and hand in; by default the
#                     project's to train, and the one trained with to hand in

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

export TPU_GRAPHS_ROOT=${TPU_GRAPHS_ROOT:-$HOME/tpu_graphs}
DATA_ROOT=${DATA_ROOT:-$HOME/data/tpugraphs/npz/tile/xla}
OUT_DIR=${OUT_DIR:-$HOME/out/tpugraphs_tiles}
# What assignment_train.sh put into the checkout.
TRAINED_PY=$TPU_GRAPHS_ROOT/tpu_graphs/baselines/tiles/models.py
[ -f "$TRAINED_PY.installed" ] || TRAINED_PY=$PROJECT/models.py

verb() {  # Runs `tpu-graphs-ext`, and nothing of the working folder (-I).
  "$PYTHON" -I -m tpu_graphs_ext.cli "$@"
}

models_py_of() {  # MODELS_PY, else what trained the model in the folder.
  local copy=$1/trained_models.py
  [ -f "$copy" ] || copy=$TRAINED_PY
  echo "${MODELS_PY:-$copy}"
}

model_or_newest() {  # The folder given, or the one trained last.
  local newest=${1:-}
  if [ -z "$newest" ]; then
    # Trained with another --out_dir, it is noted here.
    newest=$({ cat "$OUT_DIR/trained_last.txt" 2>/dev/null || true
        find "$OUT_DIR/" -maxdepth 1 -name 'model_*' ! -name '*.tmp' -type d \
          2>/dev/null
      } | while read -r folder; do
          [ ! -d "$folder" ] ||
            [ ! -f "${folder%/*}/run_${folder##*/model_}.jsonz" ] ||
            echo "$(date -r "$folder" +%s) $folder"
        done | sort -n | tail -n 1 | cut -d ' ' -f 2-)
  fi
  [ -n "$newest" ] || stop "there is no model_<hash> in $OUT_DIR; train one \
with run_scripts/assignment_train.sh, or name its folder."
  echo "$newest"
}
