#!/usr/bin/env bash
# Install what the tests need and run everything: style, types, fences,
# scripts, and the tests against real servers.
#
# SCHEDULER_TEST_REQUIRE_SERVICES=1 makes a missing server a failure.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/lib.sh
. tools/lib.sh

venv=${SCHEDULER_TEST_VENV:-.venv-test}
make_venv "$venv"
bin=$PWD/$venv/bin
say "Install scheduler-service and its test tools into $venv"
"$bin/pip" install --quiet --disable-pip-version-check bindep
"$bin/pip" install --quiet --disable-pip-version-check --editable '.[test]'

missing=$("$bin/bindep" -b test || true)
if [ -n "$missing" ]; then
    say "Install from the distribution"
    echo "$missing"
    # One name a word, as bindep prints them.
    # shellcheck disable=SC2086
    apt_install $missing || [ -z "${SCHEDULER_TEST_REQUIRE_SERVICES:-}" ]
fi

say "Style"
"$bin/ruff" check .
"$bin/ruff" format --check .
say "Types"
"$bin/mypy"
say "Fences"
"$bin/lint-imports"
say "Scripts"
scripts=(tools/*.sh .ci/run devstack/plugin.sh devstack/settings)
bash -n "${scripts[@]}"
if command -v shellcheck >/dev/null; then
    shellcheck --external-sources "${scripts[@]}"
fi
"$bin/bashate" --ignore E005,E006 "${scripts[@]}"
say "Release notes"
"$bin/reno" lint
say "Tests"
"$bin/python" -m pytest "$@"
