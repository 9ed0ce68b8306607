# One command for every step of the development loop. `make` alone prints what there is.
# Needs python3 >= 3.11 with venv, and make; everything else is installed into .venv.

PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.installed

# Test runs print their own summary; WORKERS is the number of processes of the parallel kinds.
WORKERS ?= 2
SEEDS   ?= 100
SEED    ?=

.DEFAULT_GOAL := help
.PHONY: help setup proto fmt check test demo bench sim model chaos clean

help: ## show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## create .venv and install the project into it, editable

# A stamp file: runs again only when pyproject.toml changes.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "icecore needs Python 3.11 or newer")'
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[server,arrow,dev]'
	@touch $@

proto: setup ## generate icecore/v1 from proto/icecore/v1
	$(PY) scripts/generate_protos.py

fmt: setup ## format and sort imports, fix what can be fixed
	$(PY) -m ruff check --fix-only --quiet .
	$(PY) -m ruff format --quiet .

check: setup ## lint, format, types, generated code fresh, tidy rules
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) scripts/generate_protos.py --check
	$(PY) -m pytest -q tests/test_tidy.py

test: setup ## all tests: unit and conformance, then simulation, then cluster
	WORKERS=$(WORKERS) scripts/run_tests.sh

demo: setup ## a local cluster, a year of real departures in and out
	$(PY) -m examples.flights_demo

bench: setup ## produce and fetch throughput and latency on this machine
	$(PY) -m benchmarks.produce_fetch

sim: setup ## simulate: SEEDS=n random worlds, or SEED=k to replay one
	$(PY) -m tests.simulation.run $(if $(SEED),--seed $(SEED),--seeds $(SEEDS))

chaos: setup ## break real processes under load: SECONDS=n of faults per scenario, as root
	$(PY) -m tests.chaos.run --seconds $(or $(SECONDS),20)

model: setup ## check the protocol: every state of the named worlds, every seeded mistake
	$(PY) -m tests.model.run

clean: ## remove .venv, caches and build output
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
