#!/usr/bin/env bash
# Write the pictures of the README and of the page about pages, with Chromium and
# curl, from a daemon that serves pages: tools/screenshots.sh http://127.0.0.1:9393
# tools/quickstart.sh --serve starts one.
set -euo pipefail
address=${1:?the address of a daemon that serves pages}
address=${address%/}
cd "$(dirname "$0")/.."
folder=doc/source/images
# Largest size of a picture in bytes, so that it loads fast.
limit=150000
profile=$(mktemp -d)
trap 'rm -rf "$profile"' EXIT
# As root Chromium starts without its sandbox only.
options=(--headless --disable-gpu --hide-scrollbars "--user-data-dir=$profile")
[ "$(id -u)" != 0 ] || options+=(--no-sandbox)

shoot() { # name path width,height
    local file=$folder/$1.png bytes
    chromium "${options[@]}" --window-size="$3" --screenshot="$file" \
        "$address$2" >/dev/null 2>&1
    bytes=$(stat -c %s "$file")
    echo "$file: $bytes bytes"
    if [ "$bytes" -gt "$limit" ]; then
        echo "More than $limit bytes" >&2
        return 1
    fi
}

mkdir -p "$folder"
# The newest decision for which RamFilter left no host.
refused=$(curl -fsS "$address/v1/decisions?filter=RamFilter&limit=1" |
    grep -o '"request_id": *"[^"]*"' | head -n 1 | cut -d '"' -f 4)
shoot decision "/decisions/${refused:?nothing was refused by RamFilter}" 1160,740
shoot cloud /cloud 1200,900
