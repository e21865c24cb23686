#!/usr/bin/env bash
# Step 1: clones the baseline and the course's scripts, and checks everything.
#
#   ./run_scripts/assignment_setup.sh
#
# A clone that exists is kept, and course scripts that lie in the checkout are
# used. Without a network it lists what is missing. About three minutes with
# installing, half a minute without: it reads every file of the data. Prints
# one line per check; when all is well the last one is
# `18 fine, 1 warning, 0 broken`: the warning says that models.py is still the
# baseline's. Get the data first, with ./run_scripts/download_data.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/assignment.sh"

clone() {  # clone URL FOLDER; the doctor lists what is missing then.
  [ -d "$2" ] || git clone --quiet "$1" "$2" || echo "$1 cannot be cloned; \
check the network, or put a copy at $2." >&2
}

make_environment
clone https://github.com/google-research-datasets/tpu_graphs "$TPU_GRAPHS_ROOT"
# The course's scripts may lie in the checkout itself.
[ -f "$TPU_GRAPHS_ROOT/tiles_gen_predictions_csv.py" ] ||
  clone https://github.com/ADAPT-uiuc/tpu_graphs_scripts \
    "$(dirname "$TPU_GRAPHS_ROOT")/tpu_graphs_scripts"
verb doctor --root "$TPU_GRAPHS_ROOT" --data_root "$DATA_ROOT"
