#!/usr/bin/env bash
# Lint the protos, and see that what was released is still understood: no number or type of a field has changed.
# They are compared with the newest tag v*, without one with the last commit. Until 1.0.0 a change may break (see
# CHANGELOG.md): BREAKING=1 lets it pass, for the commit that makes it.
set -euo pipefail
cd "$(dirname "$0")/.."

buf=${BUF:-.venv/bin/buf}
"$buf" lint
if ! git rev-parse --quiet --verify HEAD >/dev/null 2>&1; then
    echo "no git here: protos are compared with nothing" >&2
    exit 0
fi
before=$(git describe --tags --abbrev=0 --match 'v*' 2>/dev/null || echo HEAD)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
git archive "$before" proto buf.yaml | tar -x -C "$folder"
if "$buf" breaking --against "$folder"; then exit 0; fi
if [ "${BREAKING:-}" = 1 ]; then
    echo "protos break with $before, as BREAKING=1 allows" >&2
    exit 0
fi
echo "protos break with $before: keep numbers and types, or say so in CHANGELOG.md and run with BREAKING=1" >&2
exit 1
