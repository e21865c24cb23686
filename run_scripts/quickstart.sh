#!/usr/bin/env bash
# From a bare machine to trained models and predictions, on sample data.
#
#   ./run_scripts/quickstart.sh [--out DIR] [--epochs N]
#
# Installs into .venv, makes synthetic sample data, trains MyEarlyJoinSAGE and
# the baseline's EarlyJoinSAGE, and prints their validation errors side by side.
# Under ten minutes on two cores with the installation; a second run reuses what
# is there. TPU_GRAPHS_ROOT=/path/to/tpu_graphs trains through the baseline's
# unchanged tiles_train.py.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

make_environment
cd "$PROJECT"
exec "$PYTHON" -m tpu_graphs_ext.quickstart "$@"
