# Sourced by the other scripts: makes an environment with exact versions and
# installs this project there.
#
#   make_environment EXTRA...   for example: make_environment dev
#
# A second call with the same versions does nothing. Afterwards $PYTHON is the
# environment's interpreter, $STACK is classic (Python 3.9 to 3.11, TensorFlow
# 2.15) or current (Python 3.10 to 3.13, today's TensorFlow).
#
#   PYTHON=/path/to/python        the Python to start from; else the first of
#                                 3.11, 3.10, 3.9, 3.12, 3.13 that is there
#   TPU_GRAPHS_EXT_STACK=current  the stack; else classic where there is a choice
#   VENV=/path/to/folder          the environment; else .venv, and
#                                 .venv-<stack>-python<version> where one of the
#                                 two above is given

PYTHON=${PYTHON:-}
PROJECT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-3}

stop() {  # One sentence on what is wrong and what to do.
  echo "error: $*" >&2
  exit 1
}

python_version() {  # "3.10", or nothing when the command is no Python.
  "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null
}

find_stack() {  # Sets STACK for a version of Python; fails when there is none.
  local stack
  for stack in ${TPU_GRAPHS_EXT_STACK:-classic current}; do
    [ -f "$PROJECT/constraints/$stack-python$1.txt" ] || continue
    STACK=$stack
    return
  done
  return 1
}

supported() {  # "3.9, 3.10, 3.11", in the order of the versions.
  local version found=''
  for version in 3.9 3.10 3.11 3.12 3.13; do
    find_stack "$version" && found="$found, $version"
  done
  echo "${found#, }"
}

find_python() {  # Sets BASE_PYTHON and STACK.
  local candidate version found=''
  case ${TPU_GRAPHS_EXT_STACK:-classic} in
    classic|current) ;;
    *) stop "TPU_GRAPHS_EXT_STACK must be classic or current; got \
$TPU_GRAPHS_EXT_STACK." ;;
  esac
  local candidates=("$PYTHON")
  [ -n "$PYTHON" ] || candidates=(
    python3.11 python3.10 python3.9 python3.12 python3.13 python3 python)
  for candidate in "${candidates[@]}"; do
    version=$(python_version "$candidate") || continue
    if [ -z "$version" ]; then
      continue
    elif ! find_stack "$version"; then
      found="$found $candidate ($version)"
    elif ! "$candidate" -c 'import venv, ensurepip' 2>/dev/null; then
      found="$found $candidate ($version, without the venv module)"
    else
      BASE_PYTHON=$candidate
      return
    fi
  done
  if [ -n "$PYTHON" ]; then
    stop "$PYTHON is no usable Python${found:+; found$found}. It must be one of \
$(supported)${TPU_GRAPHS_EXT_STACK:+ for the stack $TPU_GRAPHS_EXT_STACK}."
  fi
  stop "no usable Python of $(supported) was found${found:+; found$found}. \
Install one (Debian, Ubuntu: apt-get install python3 python3-venv) or name it \
with PYTHON=/path/to/python3."
}

check_disk() {  # TensorFlow and what comes with it take about 2.5 GB.
  local free_kb
  mkdir -p "$VENV" 2>/dev/null || stop "the folder $VENV cannot be made; \
free some disk or choose another place with VENV=/path/to/folder."
  free_kb=$(df -Pk "$VENV" | awk 'NR == 2 {print $4}')
  [ "${free_kb:-0}" -ge 4000000 ] || stop "only $((free_kb / 1000)) MB are free \
for $VENV, and the installation takes about 2,500 MB and up to 4,000 MB while \
it runs; free some disk or choose another place with VENV=/path/to/folder."
}

install() {  # Runs pip; shows its last lines only when it fails.
  local log=$VENV/install.log
  TPU_GRAPHS_EXT_STACK=$STACK "$VENV/bin/python" -m pip install \
    --disable-pip-version-check "$@" > "$log" 2>&1 && return
  if grep -qiE 'no space left' "$log"; then
    stop "the disk is full; free some and start again. All output: $log"
  elif grep -qiE \
      'connection|resol(ve|ution)|timed out|unreachable|no matching' "$log"
  then
    stop "pip could not download a package; check the network (or the package \
index that pip is set to) and start again. All output: $log"
  fi
  tail -n 5 "$log" >&2
  stop "pip failed, see above; all of its output is in $log."
}

find_environment() {  # Sets VENV and STACK; makes the environment if missing.
  local version
  if [ -z "${VENV:-}" ]; then
    VENV=$PROJECT/.venv
    if [ -n "$PYTHON${TPU_GRAPHS_EXT_STACK:-}" ]; then
      find_python
      VENV=$PROJECT/.venv-$STACK-python$(python_version "$BASE_PYTHON")
    fi
  fi
  if [ -x "$VENV/bin/python" ]; then
    version=$(python_version "$VENV/bin/python")
    find_stack "$version" || stop "$VENV has Python $version, and this project \
runs on $(supported); remove that folder and start again."
    return
  fi
  find_python
  # What is replaced below is empty, or what is left of an environment.
  [ -e "$VENV/pyvenv.cfg" ] || rmdir "$VENV" 2>/dev/null || [ ! -e "$VENV" ] ||
    stop "$VENV holds something other than an environment; name a new folder \
with VENV=/path/to/folder."
  check_disk
  version=$(python_version "$BASE_PYTHON")
  echo "Making $VENV with Python $version ..."
  rm -rf "$VENV"
  "$BASE_PYTHON" -m venv "$VENV" || stop "$BASE_PYTHON -m venv failed; \
install the venv module (Debian, Ubuntu: apt-get install python$version-venv)."
}

make_environment() {
  local extras constraints stamp
  extras=$(IFS=,; echo "$*")
  find_environment
  PYTHON=$VENV/bin/python
  constraints=$PROJECT/constraints/$STACK-python$(python_version "$PYTHON").txt
  stamp=$VENV/installed-$extras-$(cat "$PROJECT"/{setup.py,pyproject.toml} \
    "$PROJECT"/tpu_graphs_ext/stacks/*.txt "$constraints" | cksum | tr ' ' '-')
  [ -e "$stamp" ] && return
  check_disk
  echo "Installing the $STACK stack and the project (about two minutes) ..."
  install --constraint "$constraints" 'setuptools>=64' wheel
  install --constraint "$constraints" --no-build-isolation \
    --editable "$PROJECT${extras:+[$extras]}"
  touch "$stamp"
}
