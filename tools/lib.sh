# shellcheck shell=bash
# Functions of the scripts beside this file; sourced, not run.

# Print what goes on, to be seen among the output of tools.
say() {
    printf '\n=== %s\n' "$*"
}

# Find the newest Python that is new enough, runs, and has the modules that
# some builds lack. A version manager's stand-in for one that is not selected
# is passed over without a word.
find_python() {
    local name
    for name in python3.13 python3.12 python3.11 python3; do
        if command -v "$name" >/dev/null && "$name" -c '
import ssl, sqlite3, sys, venv
sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            command -v "$name"
            return 0
        fi
    done
    echo "Python 3.11 or later is needed" >&2
    return 1
}

# Print the services that are started with the machine.
enabled_units() {
    systemctl --root=/ list-unit-files --type=service,socket \
        --state=enabled --no-legend | cut -d ' ' -f 1 | sort
}

# Install packages of the distribution, where we may. Servers among them are
# not started, now or with the machine.
apt_install() (
    if [ "$(id -u)" -ne 0 ]; then
        echo "Not root: please install these packages: $*" >&2
        return 1
    fi
    units=
    if command -v systemctl >/dev/null; then
        units=$(enabled_units)
    fi
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        trap 'rm -f "$policy"' EXIT
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod +x "$policy"
    fi
    apt-get update -q
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q \
        --no-install-recommends "$@" || return
    if [ -n "$units" ]; then
        comm -13 <(echo "$units") <(enabled_units) |
            xargs --no-run-if-empty systemctl --root=/ --quiet disable
    fi
)

# Make a virtual environment, unless it is there.
# $1: its folder
make_venv() {
    local python
    [ -x "$1/bin/pip" ] && return 0
    python=$(find_python)
    if ! "$python" -c 'import ensurepip' 2>/dev/null; then
        # Debian keeps this part of Python in a package of its own.
        apt_install "$("$python" -c '
import sys
print("python%d.%d-venv" % sys.version_info[:2])')"
    fi
    "$python" -m venv "$1"
    # The pip of an older Python takes twice as long to choose versions.
    "$1/bin/pip" install --quiet --disable-pip-version-check --no-compile \
        --upgrade pip
}
