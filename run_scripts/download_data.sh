#!/usr/bin/env bash
# Downloads the tile collection and checks that it is whole.
#
#   ./run_scripts/download_data.sh [FOLDER]
#
# FOLDER is ~/data/tpugraphs unless given, where the baseline looks for it. A
# download that broke off continues where it stopped, and complete files are not
# fetched again. Takes some minutes (an estimate) beyond the download.
# Ends with
#
#   train: 5709 kernels
#   valid: 676 kernels
#   test: 844 kernels
#   data root: /home/you/data/tpugraphs/npz/tile/xla
#
# TPU_GRAPHS_URL names another server than the one below.
set -euo pipefail

URL=${TPU_GRAPHS_URL:-http://download.tensorflow.org/data/tpu_graphs/v0}
FOLDER=${1:-$HOME/data/tpugraphs}
DATA_ROOT=$FOLDER/npz/tile/xla

stop() {  # One sentence on what is wrong and what to do.
  echo "error: $*" >&2
  exit 1
}

published() {  # How many kernels a split has.
  case $1 in train) echo 5709 ;; valid) echo 676 ;; test) echo 844 ;; esac
}

kernels() {  # How many .npz files a folder has.
  [ -d "$1" ] || { echo 0; return; }
  find "$1/" -maxdepth 1 -name '*.npz' | wc -l | tr -d ' '
}

size() {  # Bytes of a file; 0 if there is none.
  if [ -e "$1" ]; then wc -c < "$1" | tr -d ' '; else echo 0; fi
}

server_size() {  # Bytes that the server says a file has; nothing if it does not.
  curl --fail --silent --head --location --retry 3 "$1" | tr -d '\r' \
    | awk 'tolower($1) == "content-length:" {bytes = $2} END {print bytes}'
}

fetch() {  # fetch URL FILE: downloads what is missing of the file.
  local url=$1 file=$2 want have
  want=$(server_size "$url") || stop "$url cannot be reached; check the \
network, or name another server with TPU_GRAPHS_URL."
  have=$(size "$file")
  if [ -n "$want" ] && [ "$have" -gt "$want" ]; then
    stop "$file has $have bytes and should have $want; delete it and start \
again."
  fi
  if [ -z "$want" ] || [ "$have" -lt "$want" ]; then
    echo "Downloading $url ($want bytes, $have are here) ..."
    curl --fail --location --continue-at - --retry 5 --output "$file" "$url" \
      || stop "the download of $url broke off; start again to go on with it."
  fi
  have=$(size "$file")
  if [ -n "$want" ] && [ "$have" -ne "$want" ]; then
    stop "$file has $have bytes and should have $want; start again to go on \
with it."
  fi
}

unpack() {  # unpack FILE SPLIT: the folder appears when it is complete.
  local file=$1 split=$2 temporary found
  temporary=$FOLDER/unpack_$split.tmp
  rm -rf "$temporary"
  mkdir -p "$temporary" "$DATA_ROOT"
  tar -xf "$file" -C "$temporary" || stop "$file cannot be unpacked; delete it \
and start again."
  found=$(find "$temporary" -type d -name "$split" | head -n 1)
  [ "$(kernels "${found:-/nowhere}")" -eq "$(published "$split")" ] \
    || stop "$file holds $(kernels "${found:-/nowhere}") kernels and should \
hold $(published "$split"); delete it and start again."
  rm -rf "${DATA_ROOT:?}/$split"
  mv "$found" "$DATA_ROOT/$split"
  rm -rf "$temporary"
}

command -v curl > /dev/null || stop "curl is missing; install it (Debian, \
Ubuntu: apt-get install curl)."
mkdir -p "$FOLDER"
for split in train valid test; do
  there=$(kernels "$DATA_ROOT/$split")
  if [ "$there" -gt "$(published "$split")" ]; then
    stop "$DATA_ROOT/$split has $there kernels and should have \
$(published "$split"); move the folder away and start again."
  fi
  if [ "$there" -lt "$(published "$split")" ]; then
    fetch "$URL/npz_tile_xla_$split.tar" "$FOLDER/npz_tile_xla_$split.tar"
    unpack "$FOLDER/npz_tile_xla_$split.tar" "$split"
  fi
done
for split in train valid test; do
  echo "$split: $(kernels "$DATA_ROOT/$split") kernels"
done
echo "data root: $DATA_ROOT"
