#!/usr/bin/env bash
# Run unit tests with the lowest versions of libraries that pyproject.toml
# allows, on the lowest Python: later ones have no wheels of some of them.
# tools/test.sh runs it where every server is required. Tests of programs, pages
# and tools are left out: they take most of the time.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv-lowest
if ! command -v python3.11 >/dev/null; then
    echo "Not tried: Python 3.11 is not installed"
    exit
fi
[ -x "$venv/bin/pip" ] || python3.11 -m venv "$venv"
"$venv/bin/python" -c '
import pathlib, tomllib
project = tomllib.loads(pathlib.Path("pyproject.toml").read_text())["project"]
extras = project["optional-dependencies"]
needed = project["dependencies"] + extras["kubernetes"] + extras["tracing"]
print("\n".join(needed).replace(">=", "=="))
' >"$venv/lowest.txt"
pip=("$venv/bin/pip" --quiet --disable-pip-version-check install --no-compile)
# That of Python 3.11 takes twice as long to choose versions.
"${pip[@]}" --upgrade pip
"${pip[@]}" --requirement "$venv/lowest.txt" \
    pytest pytest-timeout hypothesis cryptography
"${pip[@]}" --no-deps --editable .
# As the leader of a group of processes: oslo.messaging 18.3.0 needs one that
# lives, and the shell that started this script may have ended.
exec setsid --wait "$venv/bin/python" -m pytest -q -p no:cacheprovider \
    tests/unit --ignore tests/unit/benchmarks --ignore tests/unit/cmd \
    --ignore tests/unit/docs --ignore tests/unit/test_dependencies.py
