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

# Install packages of the distribution, where we may.
apt_install() {
    if [ "$(id -u)" -ne 0 ]; then
        echo "Not root: please install these packages: $*" >&2
        return 1
    fi
    apt-get update -q
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q \
        --no-install-recommends "$@"
}

# Make a virtual environment, unless it is there.
# $1: its folder
make_venv() {
    local python
    [ -x "$1/bin/pip" ] && return 0
    python=$(find_python)
    if ! "$python" -m venv "$1" 2>/dev/null; then
        # Debian keeps this part of Python in a package of its own.
        rm -rf "$1"
        apt_install python3-venv
        "$python" -m venv "$1"
    fi
}
