#!/usr/bin/env bash
# The fault tests COUNT times, each round on a fresh broker and fresh processes; at the end how often each test passed.
# A failure stops nothing, but the exit code is 1 then. Reports of all rounds stay in build/faults.
set -uo pipefail
python="${PYTEST_PYTHON:-python}" reports=build/faults
rm -rf "$reports" && mkdir -p "$reports"
trap 'trap - INT; "$python" -m tests.faults.tally "$reports"; exit 130' INT
for round in $(seq 1 "${COUNT:-20}"); do
  echo "round $round of ${COUNT:-20}"
  "$python" -m pytest tests/faults --junitxml="$reports/round-$(printf %03d "$round").xml" "$@"
done
"$python" -m tests.faults.tally "$reports"
