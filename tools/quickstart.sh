#!/usr/bin/env bash
# Set up in .venv and take the tour: no server is needed.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/lib.sh
. tools/lib.sh

venv=${SCHEDULER_VENV:-.venv}
make_venv "$venv"
if [ ! -x "$venv/bin/scheduler-quickstart" ]; then
    say "Install scheduler-service into $venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check --editable .
fi
exec "$venv/bin/scheduler-quickstart" "$@"
