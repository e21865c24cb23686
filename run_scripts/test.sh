#!/usr/bin/env bash
# Installs what is missing into .venv and runs the tests.
#
#   ./run_scripts/test.sh                 style and the default tests
#   ./run_scripts/test.sh -m slow         the slow ones
#   TPU_GRAPHS_ROOT=../tpu_graphs ./run_scripts/test.sh -m baseline
#                                         those against the unchanged baseline
#
# TPU_GRAPHS_EXT_OTHER_PYTHON=/path/to/python, of an environment with the other
# stack, adds to the slow tests that models cross from one to the other.
# TPU_GRAPHS_EXT_JAX_PYTHON=/path/to/python, of an environment with JAX, adds
# those that rank functions of JAX, where the extra [tpu] is installed.
# TPU_GRAPHS_EXT_PLAIN_PYTHON=/path/to/python, of an environment that
# quickstart.sh made, saves the slow tests making one.
# Arguments go to pytest. Takes about two minutes to install the first time,
# then five to twelve minutes on two cores, by how busy they are.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

make_environment dev
cd "$PROJECT"
"$PYTHON" -m ruff check --quiet .
exec "$PYTHON" -m pytest --numprocesses auto "$@"
