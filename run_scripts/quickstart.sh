#!/usr/bin/env bash
# From a bare machine to trained models and predictions, on sample data.
#
#   ./run_scripts/quickstart.sh [--python PATH] [--out DIR] [--epochs N]
#                               [--task layout]
#
# Installs into .venv, unpacks sample data (kernels of Google's TPU compiler),
# trains MyEarlyJoinSAGE and the baseline's EarlyJoinSAGE, and prints their
# errors side by side.
# Under ten minutes on two cores with the installation; a second run reuses what
# is there. --python chooses another Python (3.9 to 3.13), which gets an
# environment of its own. TPU_GRAPHS_ROOT=/path/to/tpu_graphs trains through the
# baseline's unchanged tiles_train.py. --task layout shows the other task: whole
# programs, MyLayoutSAGE and ResModel, through the unchanged layout_train.py.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

arguments=()
while [ $# -gt 0 ]; do
  case $1 in
    --python)
      [ $# -ge 2 ] || stop '--python must be followed by the path of a Python.'
      PYTHON=$2
      shift ;;
    --python=*) PYTHON=${1#*=} ;;
    *) arguments+=("$1") ;;
  esac
  shift
done
make_environment report  # For the last command that it prints.
cd "$PROJECT"
exec "$PYTHON" -m tpu_graphs_ext.quickstart ${arguments[@]+"${arguments[@]}"}
