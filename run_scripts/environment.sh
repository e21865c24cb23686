# Sourced by the other scripts: makes .venv with a Python that TensorFlow 2.15
# has wheels for, and installs this project there with exact versions.
#
#   make_environment EXTRA...   for example: make_environment dev
#
# A second call with the same versions does nothing. Afterwards $PYTHON is the
# environment's interpreter. PYTHON=/path/to/python chooses another to start
# from; VENV=/path/to/folder another place.

PROJECT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=${VENV:-$PROJECT/.venv}
export TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-3}

stop() {  # One sentence on what is wrong and what to do.
  echo "error: $*" >&2
  exit 1
}

python_version() {  # "3.10", or nothing when the command is no Python.
  "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null
}

find_python() {  # Sets BASE_PYTHON to a Python 3.9 to 3.11.
  local candidate version found=''
  for candidate in ${PYTHON:-} python3.11 python3.10 python3.9 python3 python; do
    version=$(python_version "$candidate") || continue
    case $version in
      3.9|3.10|3.11)
        "$candidate" -c 'import venv, ensurepip' 2>/dev/null || {
          found="$found $candidate ($version, without the venv module)"
          continue
        }
        BASE_PYTHON=$candidate
        return ;;
      '') ;;
      *) found="$found $candidate ($version)" ;;
    esac
  done
  stop "no usable Python 3.9, 3.10 or 3.11 was found${found:+; found$found}. \
Install one (Debian, Ubuntu: apt-get install python3.11 python3.11-venv) or \
name it with PYTHON=/path/to/python3.11."
}

check_disk() {  # TensorFlow and what comes with it take about 2.5 GB.
  local free_kb
  mkdir -p "$VENV" 2>/dev/null || stop "the folder $VENV cannot be made; \
free some disk or choose another place with VENV=/path/to/folder."
  free_kb=$(df -Pk "$VENV" | awk 'NR == 2 {print $4}')
  [ "${free_kb:-0}" -ge 4000000 ] || stop "only $((free_kb / 1000)) MB are free \
for $VENV, and the installation takes about 2,500 MB and as much again while \
it runs; free some disk or choose another place with VENV=/path/to/folder."
}

install() {  # Runs pip; shows its last lines only when it fails.
  local log=$VENV/install.log
  "$VENV/bin/python" -m pip install --disable-pip-version-check "$@" \
    > "$log" 2>&1 && return
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

make_environment() {
  local extras stamp version
  extras=$(IFS=,; echo "$*")
  if [ -x "$VENV/bin/python" ]; then
    version=$(python_version "$VENV/bin/python")
  else
    find_python
    check_disk
    version=$(python_version "$BASE_PYTHON")
    echo "Making $VENV with Python $version ..."
    rm -rf "$VENV"
    "$BASE_PYTHON" -m venv "$VENV" || stop "$BASE_PYTHON -m venv failed; \
install the venv module (Debian, Ubuntu: apt-get install python$version-venv)."
  fi
  PYTHON=$VENV/bin/python
  local constraints=$PROJECT/constraints/python$version.txt
  [ -f "$constraints" ] || stop "$VENV has Python $version, and this project \
runs on 3.9, 3.10 and 3.11; remove that folder and start again."
  stamp=$VENV/installed-$extras-$(cat "$PROJECT/setup.py" "$constraints" \
    | cksum | tr ' ' '-')
  [ -e "$stamp" ] && return
  check_disk
  echo "Installing TensorFlow and the project (about two minutes) ..."
  install --constraint "$constraints" 'setuptools>=64' wheel
  install --constraint "$constraints" --no-build-isolation \
    --editable "$PROJECT${extras:+[$extras]}"
  touch "$stamp"
}
