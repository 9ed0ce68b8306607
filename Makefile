# One command for every step of the development loop. `make` alone prints what there is.
# Needs python3 >= 3.11 with venv, and make; everything else is installed into .venv.

PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.installed

# Of the two lanes of `make test`: processes that compute, and processes that wait for servers.
WORKERS ?= 3
WAIT_WORKERS ?= 3
CACHE   := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/icecore
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
SEEDS   ?= 100
SEED    ?=
ONLY    ?=
OUT     ?=

# Each step of `make check`, also alone: `make check-types`. Their caches outlive the checkout.
CHECKS := check-style check-types check-protos check-generated check-tidy

BENCH_OPTIONS = $(if $(ONLY),--only $(ONLY)) $(if $(OUT),--out $(OUT))

.DEFAULT_GOAL := help
.PHONY: help setup proto blocking contract references fmt check $(CHECKS) test test-all demo \
	bench bench-matrix bench-peers bench-gates bench-install bench-report soak setup-bench setup-demo \
	setup-etcd setup-minio setup-spark setup-docs docs release check-release image test-docker setup-helm check-helm test-kubernetes lock sim sim-mutants model chaos fuzz clean

help: ## show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## create .venv and install the project into it, editable

# A stamp file: runs again only when pyproject.toml changes.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "icecore needs Python 3.11 or newer")'
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[server,arrow,tier,dev]'
	@touch $@

proto: setup ## generate icecore/v1 from proto/icecore/v1
	$(PY) scripts/generate_protos.py

blocking: setup ## write icecore/blocking/admin.py and lookup.py from the asyncio classes
	$(PY) scripts/generate_blocking.py

contract: setup ## write docs/reference/errors.md and docs/reference/format_vectors.json from the code
	$(PY) scripts/generate_format_vectors.py
	$(PY) scripts/generate_errors.py

references: setup ## generate docs/performance.md, and of docs/reference settings.md, commands.md, metrics.md
	$(PY) scripts/generate_references.py
	$(PY) scripts/generate_performance.py

fmt: setup ## format and sort imports, fix what can be fixed
	$(PY) -m ruff check --fix-only --quiet .
	$(PY) -m ruff format --quiet .

check: setup ## lint, format, types, generated code fresh, tidy rules, side by side
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target $(CHECKS)

check-style: setup
	$(PY) -m ruff check --cache-dir $(CACHE)/ruff .
	$(PY) -m ruff format --cache-dir $(CACHE)/ruff --check .

check-types: setup
	$(PY) -m mypy --cache-dir $(CACHE)/mypy

check-protos: setup
	scripts/check_protos.sh
	$(PY) scripts/generate_protos.py --check

check-generated: setup
	$(PY) scripts/generate_blocking.py --check
	$(PY) scripts/generate_format_vectors.py --check
	$(PY) scripts/generate_errors.py --check
	$(PY) scripts/generate_references.py --check
	$(PY) scripts/generate_performance.py --check

check-tidy: setup
	$(PY) -m pytest -q -p no:cacheprovider tests/tidy

test: setup setup-spark ## all tests of this rotation: what computes beside what waits, WORKERS and WAIT_WORKERS each
	WORKERS=$(WORKERS) WAIT_WORKERS=$(WAIT_WORKERS) $(PY) -m tests.lanes.run

test-all: setup setup-spark setup-docs ## all tests, nothing left for another rotation; etcd and MinIO are built once
	@$(MAKE) --no-print-directory setup-minio || echo 'MinIO could not be built: its tests are left out' >&2
	@$(MAKE) --no-print-directory setup-etcd || echo 'etcd could not be had: its tests are left out' >&2
	ICECORE_ROTATION=all WORKERS=$(WORKERS) WAIT_WORKERS=$(WAIT_WORKERS) $(PY) -m tests.lanes.run

demo: setup setup-demo ## a local cluster, a year of real departures in and out; DEMO_SPARK=0 without Spark
	$(PY) -m examples.flights_demo

bench: setup ## two minutes: produce and fetch, RF 1 and 3, ratio to the disk
	$(PY) -m benchmarks.run --preset short

bench-matrix: setup ## every case: ONLY="rf=3 partitions=16,256" for some, OUT=file.jsonl
	$(PY) -m benchmarks.run --preset matrix $(BENCH_OPTIONS)

bench-peers: setup-bench ## beside Kafka and NATS, in the same run: ONLY and OUT as above
	$(PY) -m benchmarks.run --preset peers --systems icecore kafka nats $(BENCH_OPTIONS)

bench-gates: setup-bench ## ratios and their bands: BASE=<commit>, RUNS=3, OUT=file.jsonl, GATES="rf3_limit …", BANDS=1 to write bands
	$(PY) -m benchmarks.gates --runs $(or $(RUNS),3) $(if $(BASE),--base $(BASE)) \
		$(if $(GATES),--only $(GATES)) $(if $(OUT),--json $(OUT)) $(if $(BANDS),--update-bands)

soak: setup $(if $(SPARK),setup-spark) ## keep a cluster busy, fail when a process grows: MINUTES=60, RATE=800 records/s, SPARK=1
	$(PY) -m benchmarks.soak --minutes $(or $(MINUTES),60) --records-per-s $(or $(RATE),800) \
		$(if $(SPARK),--spark)

bench-install: setup ## size of a client's environment, its import, the first help
	$(PY) -m benchmarks.install

bench-report: setup-bench ## table and plots of RESULTS=file.jsonl, into build/bench
	$(PY) -m benchmarks.harness.report $(RESULTS) --plots build/bench

# What only comparisons and plots need; a peer that can't be had is skipped by the runner.
setup-bench: setup
	@$(PY) -c 'import confluent_kafka, matplotlib, nats' 2>/dev/null || \
		$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[bench]' || \
		echo 'the extra "bench" could not be installed: comparisons are skipped' >&2

# Tests with Spark need it and a JVM; where they can't be had these tests are skipped.
setup-spark: setup
	@$(PY) -c 'import pyspark' 2>/dev/null || \
		$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[spark]' || \
		echo 'the extra "spark" could not be installed: tests with Spark are skipped' >&2

# The site needs Sphinx; where it can't be had its test is skipped.
setup-docs: setup
	@$(PY) -c 'import furo, myst_parser' 2>/dev/null || \
		$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[docs]' || \
		echo 'the extra "docs" could not be installed: the site is not built' >&2

docs: setup-docs ## build the documents as a site into build/site; a broken link or anchor fails
	$(PY) -m scripts.docs_site build/site

setup-minio: ## build MinIO with Go, once for all checkouts: tests and benchmarks of object storage
	scripts/setup_minio.sh

setup-etcd: ## bring etcd, once for all checkouts: tests and benchmarks of metadata in etcd
	scripts/setup_etcd.sh

# The demo's last part.
setup-demo: setup
	@test "$(DEMO_SPARK)" = 0 || $(PY) -c 'import pyspark, matplotlib' 2>/dev/null || \
		$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[spark,demo]' || \
		{ echo 'Spark could not be installed: DEMO_SPARK=0 leaves it out' >&2; exit 1; }

release: setup ## wheel, source archive, chart, SBOM and their digests into dist/; two builds of a commit are equal
	$(PY) scripts/build_release.py dist

# Installs from a package index, as users do. PYTHONS="python3.12 /opt/py313/bin/python", SPARK=1 too.
check-release: release ## install the wheel into empty environments and use it: PYTHONS="…", SPARK=1
	$(PY) scripts/check_release.py dist/icecore-*.whl $(or $(PYTHONS),$(PYTHON)) $(if $(SPARK),--spark)

# BUILD_OPTIONS goes to `docker build`: --build-arg PYTHON_IMAGE=…, --network host.
image: release ## build the container image with Docker: IMAGE=icecore:0.1.0, BUILD_OPTIONS="…"
	docker build --file docker/Dockerfile --tag $(or $(IMAGE),icecore:$(VERSION)) $(BUILD_OPTIONS) \
		--build-arg VERSION=$(VERSION) --build-arg REVISION=$(shell git rev-parse HEAD 2>/dev/null) .

test-docker: setup ## build the image and use it, where a Docker daemon answers: BUILD_OPTIONS as above
	BUILD_OPTIONS='$(BUILD_OPTIONS)' $(PY) -m pytest -q -p no:cacheprovider \
		tests/deploy/test_image.py tests/deploy/test_container.py tests/deploy/test_compose_up.py

setup-helm: setup ## bring Helm 3 and 4, Prometheus and the schemas of Kubernetes, once for all checkouts
	PYTHON=$(PY) scripts/setup_helm.sh

check-helm: setup ## lint and render the chart, compare it with Kubernetes' schemas, test alerts and Compose file: after setup-helm
	@test -x $(CACHE)/helm || command -v helm >/dev/null || \
		echo 'Helm is not here, so the chart is not checked: make setup-helm brings it' >&2
	$(PY) -m pytest -q -p no:cacheprovider tests/deploy/test_chart.py tests/deploy/test_alerts.py tests/deploy/test_compose.py

test-kubernetes: setup ## install the chart in the Kubernetes of the current context and break it: ICECORE_TEST_IMAGE=…
	$(PY) -m pytest -q -s -p no:cacheprovider tests/deploy/test_kubernetes*.py

lock: setup ## choose the exact libraries of the image again, with their digests: docker/requirements.lock
	$(PY) -m pip install --quiet --disable-pip-version-check 'uv>=0.9'
	$(PY) -m uv pip compile --quiet --upgrade --generate-hashes --no-header --no-annotate \
		--python-version 3.13 --python-platform x86_64-manylinux_2_28 \
		--extra server --extra tier --output-file docker/requirements.lock pyproject.toml

sim: setup ## simulate: SEEDS=n random worlds, or SEED=k to replay one
	$(PY) -m tests.simulation.run $(if $(SEED),--seed $(SEED),--seeds $(SEEDS))

sim-mutants: setup ## see that the simulator notices seeded mistakes in the real code
	$(PY) -m tests.simulation.mutants --jobs 2

chaos: setup ## break real processes under load, then attack them: SECONDS=n of each, as root
	$(PY) -m tests.chaos.run --seconds $(or $(SECONDS),20)
	$(PY) -m benchmarks.abuse --seconds $(or $(SECONDS),20)

fuzz: setup ## send altered messages to servers under load: MINUTES=15, SEED=k, ONLY=NodeService/Open
	$(PY) -m tests.cluster.fuzz --minutes $(or $(MINUTES),15) $(if $(SEED),--seed $(SEED)) \
		$(if $(ONLY),--only $(ONLY))

model: setup ## check the protocol: every state of the named worlds, every seeded mistake
	$(PY) -m tests.model.run

clean: ## remove .venv, caches and build output
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
