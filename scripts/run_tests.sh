#!/usr/bin/env bash
# Run every kind of test, cheapest first, and stop at the first kind that fails.
# A kind whose folder holds no test yet, or whose extra is not installed, is left out, so that the last line printed
# is always pytest's summary of tests that ran. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."

python=.venv/bin/python
workers=${WORKERS:-2}

has_tests() {
    [ -n "$(find "$1" -name 'test_*.py' -print -quit 2>/dev/null)" ]
}

run_kind() { # title, then arguments of pytest
    local title=$1
    shift
    echo "== $title"
    "$python" -m pytest -q "$@"
}

parallel=()
for folder in tests/tidy tests/unit tests/scenarios tests/conformance tests/model tests/chaos; do
    if has_tests "$folder"; then parallel+=("$folder"); fi
done
run_kind "unit and conformance" -n "$workers" "${parallel[@]}" "$@"

if has_tests tests/simulation; then
    run_kind "simulation" -n "$workers" tests/simulation "$@"
fi
if has_tests tests/spark && "$python" -c 'import pyspark' 2>/dev/null; then
    run_kind "spark" tests/spark "$@"
fi
if has_tests tests/cluster; then
    run_kind "cluster" tests/cluster "$@"
fi
