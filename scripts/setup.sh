#!/usr/bin/env bash
# setup.sh PYTHON VENV: make the virtual environment VENV with logflume and all that its tests, demo and benchmarks need.
set -euo pipefail
python=$1 venv=$2
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  echo "logflume needs Python 3.11 or newer; found: $("$python" --version 2>&1 || echo none). Try: make PYTHON=python3.12 setup" >&2
  exit 1
fi
if ! "$python" -m venv "$venv" 2>/dev/null; then
  if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    echo "installing python3-venv (needed to make $venv)"
    apt-get -qq update && apt-get -qq install -y python3-venv >/dev/null
    "$python" -m venv "$venv"
  else
    echo "cannot make a virtual environment with $python; on Debian or Ubuntu: sudo apt-get install python3-venv" >&2
    exit 1
  fi
fi
echo "installing into $venv (once; a few minutes on a slow network)"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
touch "$venv/.ready"
