#!/usr/bin/env bash
# Run both commands of the README on a bare Debian, in a fresh clone of this
# checkout: as root, which installs what is missing, or as a user who may not.
# To be run by hand, as root; debootstrap has to be installed.
#
#   tools/bare_root.sh RELEASE FOLDER root|user [ARGUMENT OF tools/test.sh...]
#
# RELEASE is a name as debootstrap takes it. FOLDER keeps the bare system for
# further runs; each has a new copy of it, which stays to be looked at. Nothing
# of this machine is in reach but its network. Options, by environment:
#   BARE_ROOT_FILES=FOLDER  files that are copied into the system first, such
#                           as etc/pip.conf, or a CA's certificate in
#                           usr/local/share/ca-certificates
#   BARE_ROOT_MIRROR=URL    of Debian's packages
set -euo pipefail
if [ -z "${BARE_ROOT_ALONE:-}" ]; then
    # What is mounted and started below ends with this script.
    BARE_ROOT_ALONE=1 exec unshare --mount --pid --ipc --uts --fork \
        --kill-child --mount-proc "$0" "$@"
fi
release=${1:?a release of Debian}
mkdir -p "${2:?a folder for the systems}"
base=$(cd "$2" && pwd)/$release
user=${3:?root or user}
shift 3
cd "$(dirname "$0")/.."
# shellcheck source=tools/lib.sh
. tools/lib.sh

# Run a command in the system, as root.
inside() {
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 TERM=dumb \
        HOME="$home" chroot "$root" "$@"
}

# Run a script of the clone, and keep how it ended.
try() {
    local code=0 begin=$SECONDS
    # shellcheck disable=SC2016
    inside setpriv --reuid "$user" --regid "$user" --init-groups \
        bash -c 'cd ~/clone && exec "$@"' - "$@" </dev/null || code=$?
    ended+=("$1 ended with $code after $((SECONDS - begin)) s")
}

if [ ! -e "$base/etc/os-release" ]; then
    say "Make a bare $release"
    debootstrap --variant=minbase --include=ca-certificates,git,python3 \
        "$release" "$base" ${BARE_ROOT_MIRROR:+"$BARE_ROOT_MIRROR"}
fi
say "Copy it"
root=$base-$user
rm -rf --one-file-system "$root"
cp -a "$base" "$root"
if [ -n "${BARE_ROOT_FILES:-}" ]; then
    cp -r "$BARE_ROOT_FILES/." "$root"
fi
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
ln -sf pts/ptmx "$root/dev/ptmx"
home=/root
inside update-ca-certificates
inside apt-get update -q
if [ "$user" != root ]; then
    inside useradd --create-home --shell /bin/bash "$user"
    inside apt-get install -y -q --no-install-recommends python3-venv
    home=/home/$user
fi
git clone --quiet --no-local . "$root$home/clone"
commit=$(git -C "$root$home/clone" rev-parse --short HEAD)
inside chown -R "$user:" "$home/clone"
ended=()
try tools/quickstart.sh
try tools/test.sh "$@"
say "$commit on $release as $user"
printf '%s\n' "${ended[@]}"
