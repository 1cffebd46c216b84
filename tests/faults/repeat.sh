#!/usr/bin/env bash
# The fault tests COUNT times, each time on a fresh broker and fresh processes; stops at the first failure.
set -euo pipefail
for round in $(seq 1 "${COUNT:-20}"); do
  echo "round $round of ${COUNT:-20}"
  "${PYTEST_PYTHON:-python}" -m pytest tests/faults "$@"
done
