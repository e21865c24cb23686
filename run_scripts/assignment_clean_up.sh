#!/usr/bin/env bash
# Step 5: puts the checkout's own models.py back. Takes a second and prints
# `restored` with the file; `git status` of the checkout is clean afterwards.
# Models, run files and the zip stay.
#
#   ./run_scripts/assignment_clean_up.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/assignment.sh"

make_environment
verb uninstall --root "$TPU_GRAPHS_ROOT"
