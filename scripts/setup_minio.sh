#!/usr/bin/env bash
# Build MinIO with Go into a cache outside the checkout, where tests and benchmarks look for it
# (tests/support/minio.py). Five minutes of compiling, once: a second run finds it and ends at once.
set -euo pipefail

version=v0.0.0-20260212201848-7aac2a2c5b7c
folder=${XDG_CACHE_HOME:-$HOME/.cache}/icecore
stamp=$folder/minio.version

if [ -x "$folder/minio" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$version" ]; then
    echo "MinIO is there: $folder/minio"
    exit 0
fi
if ! command -v go >/dev/null; then
    echo "MinIO can't be built: there is no Go in PATH. Install Go 1.24 or newer (https://go.dev/dl/)," \
        "or put a minio program into PATH." >&2
    exit 1
fi
mkdir -p "$folder"
echo "building MinIO into $folder, which takes five minutes"
GOBIN=$folder CGO_ENABLED=0 go install -ldflags '-s -w' "github.com/minio/minio@$version"
echo "$version" >"$stamp"
