#!/usr/bin/env bash
# Change the code that keeps promises, one small change at a time, and see
# whether a test notices. Not a part of CI: it takes up to an hour.
#
#   tools/mutation.sh [--count N] [--seed N] [--room NAME] [--minutes N]
#
# The first run also learns which lines each test executes, and keeps that in
# build/lines.json; remove the file after the tests have changed. Prints the
# mutants that survived. The exit status is 0 if 90 % were killed.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${SCHEDULER_TEST_VENV:-.venv-test}
exec "$venv/bin/python" tools/mutation.py "$@"
