#!/usr/bin/env bash
# From a bare machine to trained models and predictions, on sample data.
#
#   ./run_scripts/quickstart.sh [--python PATH] [--out DIR] [--epochs N]
#                               [--task tile|layout]
#
# Installs into .venv, unpacks sample data (kernels of Google's TPU compiler),
# trains MyEarlyJoinSAGE and the baseline's EarlyJoinSAGE, and prints their
# errors side by side; each command is shown, to be used again. Under ten
# minutes on two cores with the installation; a second run reuses what is there.
# --python chooses another Python (3.9 to 3.13), which gets an environment of
# its own. The models are trained by the baseline's unchanged script, in a clone
# of TPU_GRAPHS_ROOT or from GitHub, or without either by `tpu-graphs-ext
# train`. --task layout shows the other task: whole programs, MyLayoutSAGE and
# ResModel.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

TASK=tile OUT=out/quickstart EPOCHS=''
while [ $# -gt 0 ]; do
  case $1 in
    --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit ;;
    --*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;;
  esac
  [ -n "${2:-}" ] || stop "$1 must be followed by a value; see --help."
  case $1 in
    --python) PYTHON=$2 ;;
    --out) OUT=$2 ;;
    --epochs) EPOCHS=$2 ;;
    --task) TASK=$2 ;;
    *) stop "there is no flag $1; see --help." ;;
  esac
  shift 2
done
case $TASK in
  tile)
    prefix='' names=(MyEarlyJoinSAGE EarlyJoinSAGE) epochs=15
    script=(tiles_train.py) labelled=valid ;;
  layout)
    prefix=layout_ names=(MyLayoutSAGE ResModel) epochs=10
    script=(layout_train.py --source=xla --search=random)
    labelled=xla/random/test_labelled ;;
  *) stop "--task must be tile or layout; got $TASK." ;;
esac
make_environment report  # For the last command that it prints.
cd "$PROJECT"
data=$OUT/${prefix}sample_data models=$OUT/${prefix}models root=$OUT/tpu_graphs
of_data=(--data_root "$data" --cache_dir "$OUT/cache")

verb() {  # Shows and runs a command; of a script only how it failed.
  printf '\n$ tpu-graphs-ext%s\n' "$(printf ' %q' "$@")" >&2
  if [ "$1" != run ]; then
    "$PYTHON" -m tpu_graphs_ext.cli "$@"
    return
  fi
  "$PYTHON" -m tpu_graphs_ext.cli "$@" > "$OUT/script.log" 2>&1 ||
    stop "${script[0]} failed: $(tail -n 3 "$OUT/script.log") (all of its \
output is in $OUT/script.log)."
}

train() {  # Trains a model, and adds its folder to `trained`.
  if [ -d "$root" ]; then
    verb run --root "$root" "${script[@]}" "--model=$1" \
      "--epochs=${EPOCHS:-$epochs}" "--data_root=$data" "--cache_dir=$cache" \
      "--out_dir=$models"
  else
    verb train --task "$TASK" --model "$1" --epochs "${EPOCHS:-$epochs}" \
      "${of_data[@]}" --out_dir "$models"
  fi
  trained+=("$(ls -td "$models"/model_* | head -n 1)")
}

verb sample-data --task "$TASK" --out "$data"
if [ ! -d "$root" ]; then
  GIT_TERMINAL_PROMPT=0 timeout 60 git clone --quiet --depth 1 "${TPU_GRAPHS_ROOT:-\
https://github.com/google-research-datasets/tpu_graphs}" "$root" 2>/dev/null ||
    echo 'The baseline could not be cloned, so `train` takes its place.'
fi
[ ! -d "$root" ] || verb install --root "$root" --task "$TASK"
# The scripts' own cache tells data by their folder alone.
cache=$(mktemp -d) trained=()
trap 'rm -rf "$cache"' EXIT
for name in "${names[@]}"; do
  printf '\nTraining %s ...\n' "$name"
  train "$name"
done
compare() {  # Prints how the models rank labelled kernels or programs.
  verb evaluate --task "$TASK" --dir "${trained[@]}" --data "$1" \
    "${of_data[@]}" | sed -n '/^mean of/,$p'
}

printf "\nBy the compiler's own estimates:\n"
compare "$data/$labelled"
real=$root/tpu_graphs/process_data/tensorflow_ops/testdata/op_tuning_data.pb
if [ "$TASK" = tile ] && [ -f "$real" ]; then
  printf '\n15 real TPU kernels, as measured; trained on estimates alone:\n'
  compare "$real"
fi
verb predict --task "$TASK" --dir "${trained[0]}" "${of_data[@]}" \
  --out "$OUT/${prefix}predictions.csv"
command=${PYTHON%/*}/tpu-graphs-ext command=${command#"$PROJECT/"}
[ "$TASK" = layout ] || printf '%s\n' '' "Next, in $PROJECT:" \
  "  $command rank --dir ${trained[0]} --data $data/valid" \
  "  $command report $models --data_root $data" \
  "  $command train --model ${names[0]} --recipe best --data_root $data \
--out_dir $models"
