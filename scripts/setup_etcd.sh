#!/usr/bin/env bash
# Bring etcd into a cache outside the checkout, where tests and benchmarks look for it
# (tests/support/etcd.py): built from its Go module, or else taken out of Debian's package. Three
# minutes of compiling, once: a second run finds it and ends at once.
set -euo pipefail

version=v3.6.16
folder=${XDG_CACHE_HOME:-$HOME/.cache}/icecore
stamp=$folder/etcd.version

if [ -x "$folder/etcd" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$version" ]; then
    echo "etcd is there: $folder/etcd"
    exit 0
fi
mkdir -p "$folder"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
if command -v go >/dev/null; then
    echo "building etcd $version into $folder, which takes three minutes"
    # A module of its own: `go install …@version` refuses modules that replace others, as etcd's does.
    go mod init etcdbuild >/dev/null 2>&1
    go get "go.etcd.io/etcd/server/v3@$version" 2>go.log || { cat go.log >&2; exit 1; }
    CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o etcd go.etcd.io/etcd/server/v3
    mv etcd "$folder/etcd"
    echo "$version" >"$stamp"
elif command -v apt-get >/dev/null && apt-get download etcd-server >/dev/null 2>&1; then
    echo "there is no Go in PATH: taking etcd out of Debian's package etcd-server"
    dpkg -x etcd-server*.deb .
    mv usr/bin/etcd "$folder/etcd"
    echo "debian" >"$stamp"
else
    echo "etcd can't be had: there is neither Go nor Debian's package etcd-server. Install Go 1.24 or" \
        "newer (https://go.dev/dl/), or put an etcd program into PATH." >&2
    exit 1
fi
"$folder/etcd" --version | head -1
