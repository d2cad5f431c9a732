#!/usr/bin/env bash
# Every check that a change must pass; all of them run, the failed ones are named at the end.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
BIN=.venv/bin
failed=()

check() {
  local name=$1
  shift
  printf '\n== %s\n' "$name"
  "$@" || failed+=("$name")
}

check "ruff format" "$BIN/ruff" format --check .
check "ruff check" "$BIN/ruff" check .
check "mypy" "$BIN/mypy"
check "lint-imports" "$BIN/lint-imports"
check "generated docs" "$BIN/python" scripts/make_reference.py --check
check "pytest" "$BIN/python" -m pytest -n "${JOBS:-3}" --dist loadscope --no-loadscope-reorder "$@"

if [ "${#failed[@]}" -gt 0 ]; then
  printf '\nFailed: %s\n' "${failed[*]}"
  exit 1
fi
printf '\nAll checks passed.\n'
