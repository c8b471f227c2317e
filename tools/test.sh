#!/usr/bin/env bash
# Install what the tests need and run everything: style, types, fences,
# scripts, documentation, and the tests against real servers.
#
#   tools/test.sh [--fast] [ARGUMENT OF PYTEST...]
#
# --fast leaves out the tests that are marked slow. Options, by environment:
#   SCHEDULER_TEST_REQUIRE_SERVICES=1  a missing server is a failure
#   SCHEDULER_TEST_PROCESSES=N         number of test processes (three for each
#                                      processor, since the slow ones mostly
#                                      wait; at most 8, which share servers)
#   SCHEDULER_TEST_SEED=N              what tests choose at random is the same
#   SCHEDULER_TEST_SLOWNESS=N          waits may take N times as long (measured)
#   SCHEDULER_TEST_VENV=FOLDER         the virtual environment (.venv-test)
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/lib.sh
. tools/lib.sh

required=${SCHEDULER_TEST_REQUIRE_SERVICES:-}
select=()
if [ "${1:-}" = --fast ]; then
    select=(-m "not slow")
    shift
fi

venv=${SCHEDULER_TEST_VENV:-.venv-test}
make_venv "$venv"
bin=$(cd "$venv/bin" && pwd)
say "Install scheduler-service and its test tools into $venv"
# Most modules are never imported: to compile them is half the time.
"$bin/pip" install --quiet --disable-pip-version-check --no-compile \
    bindep --editable '.[test]'

missing=$("$bin/bindep" -b test || true)
if command -v kubectl >/dev/null; then
    # From elsewhere; the distribution's package would overwrite it.
    missing=$(grep -vx kubernetes-client <<<"$missing" || true)
fi
if [ -n "$missing" ]; then
    say "Install from the distribution"
    echo "$missing"
    # One name a word, as bindep prints them.
    # shellcheck disable=SC2086
    apt_install $missing || [ -z "$required" ]
fi

# Before anything else runs here: limits and bounds of tests follow it.
SCHEDULER_TEST_SLOWNESS=${SCHEDULER_TEST_SLOWNESS:-$("$bin/python" -c '
from tests.support.waiting import SLOWNESS
print(SLOWNESS)')}
export SCHEDULER_TEST_SLOWNESS

# While tests wait, these do not.
mkdir -p build
nice "$bin/mypy" >build/types.log 2>&1 &
types=$!
documentation=
if command -v dot >/dev/null || [ -n "$required" ]; then
    nice "$bin/python" -m sphinx -W --keep-going -q -b html doc/source \
        doc/build/html >build/documentation.log 2>&1 &
    documentation=$!
fi
lowest=
if [ -n "$required" ]; then
    nice tools/lowest.sh >build/lowest.log 2>&1 &
    lowest=$!
fi
trap 'kill "$types" $documentation $lowest 2>/dev/null || true' EXIT

say "Style"
"$bin/ruff" check .
"$bin/ruff" format --check .
say "Fences"
"$bin/lint-imports"
if git grep -nE '^(from|import) tests\.(unit|functional|conformance|interop)' \
    -- tests; then
    echo "A test imports another test: move what they share to tests/support"
    exit 1
fi
say "Scripts"
scripts=(tools/*.sh .ci/run devstack/plugin.sh devstack/settings)
bash -n "${scripts[@]}"
if command -v shellcheck >/dev/null; then
    shellcheck --external-sources "${scripts[@]}"
fi
"$bin/bashate" --ignore E005,E006 "${scripts[@]}"
say "Release notes"
"$bin/reno" --quiet lint
# Each process that runs tests, and each daemon and command that one starts,
# would compile the same files again. What fails here fails again below.
unset PYTHONDONTWRITEBYTECODE
"$bin/python" -m pytest --collect-only -q "$@" >/dev/null || true
say "Tests"
processes=$((3 * $(nproc)))
processes=${SCHEDULER_TEST_PROCESSES:-$((processes < 8 ? processes : 8))}
passed=0
"$bin/python" -m pytest -n "$processes" \
    --dist loadfile --no-loadscope-reorder "${select[@]}" "$@" || passed=$?
say "Types"
wait "$types" || passed=$?
cat build/types.log
say "Documentation"
if [ -n "$documentation" ]; then
    wait "$documentation" || passed=$?
    cat build/documentation.log
else
    echo "Not built, since dot is not installed: see bindep.txt"
fi
if [ -n "$lowest" ]; then
    say "Lowest versions"
    wait "$lowest" || passed=$?
    cat build/lowest.log
fi
exit "$passed"
