# Every target sets up what it needs in .venv (inside the project, pinned by deploy/constraints.txt) and works offline the second time.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
# Test files run side by side, each with brokers of its own: most of their time is spent waiting for throttles to end.
PYTEST_WORKERS ?= 4
SOAK_MINUTES ?= 30
BIN := $(VENV)/bin
# Usage records of the demo, and the reports on them.
DEMO_USAGE ?= demo-usage
DEMO_REPORTS ?= demo-reports
REPORT ?= usage
# A week that is shipped, its teams and prices.
SAMPLE = examples/usage/week.parquet --owners examples/usage/owners.yaml --recent 2 \
	$(if $(filter all chargeback,$(REPORT)),--prices examples/usage/prices.yaml)
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
PINS := pyproject.toml deploy/constraints.txt
# The data path is compiled by the target for it, and not a second time by pip. Nor does pip compile every module of every
# package to bytecode: Python does so with those that are imported, a third of them in a run of the tests.
INSTALL := KQUOTA_PURE=1 $(PIP) install --no-compile -c deploy/constraints.txt
# What a C compiler made of the same code for another checkout is taken from ccache's directory, where there is ccache.
CCACHE := $(if $(and $(shell command -v ccache),$(shell command -v gcc)),CC="$${CC:-ccache gcc}")
# Modules that are compiled as they are, what tells the compiler of their types, and the one of system calls that is C throughout.
TYPES := $(wildcard quota/*.pxd proxy/*/*/*.pxd)
COMPILED := $(TYPES) $(patsubst %.pxd,%.py,$(filter-out proxy/net/tls/%,$(TYPES))) $(wildcard proxy/*/*/*.pyx)
# Tests start Python some two thousand times, with plugins that pytest rewrites: an environment that has Python keep no
# bytecode would have every one of these starts compile all modules again, which doubles what a sidecar's start takes.
export PYTHONDONTWRITEBYTECODE :=
# A checkout runs what is written in it; what measures, or is shown, runs what images have (quota/compiled.py).
AS_IMAGES := KQUOTA_PURE=0
LOCK = $(BIN)/uv pip compile --quiet --no-config --generate-hashes --no-annotate --python-version 3.11 --python-platform linux \
	--constraint $(VENV)/image-pins.txt --custom-compile-command 'make image-lock'

.PHONY: help classes test-spark docs docs-serve docs-pictures compile accuracy evasion analysis demo test test-all test-long test-unit test-integration test-apiserver test-kubernetes test-kubernetes-short check audit bench bench-guard load faults soak fuzz sanitize schema kafka-release chart image-lock sweep clean test-object-store report hooks release-check test-chart peer-suites coverage stream-kills world

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort | expand -t 12

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit("kquota needs Python 3.11 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	@echo "· creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# What compiles has a place of its own: a change of the data path needs no network, and the venv stays what users have.
$(VENV)/build/.packages: $(VENV)/.created deploy/image/build.txt
	@$(BIN)/python -m venv --without-pip $(VENV)/build
	@$(PIP) --python $(VENV)/build/bin/python install --require-hashes --only-binary :all: -r deploy/image/build.txt
	@touch $@

# Tried again each time as long as there is nothing to compile with: a compiler may come.
$(VENV)/.compiled: $(VENV)/build/.packages setup.py $(COMPILED)
	@echo "· compiling the data path (about a minute; without a C compiler the pure Python one is used)"
	@$(CCACHE) $(VENV)/build/bin/python setup.py --quiet build_ext --inplace --force
	@if [ -e quota/_compiled/SHA256SUMS ]; then touch $@; fi

$(VENV)/.demo: $(VENV)/.created $(PINS) | $(VENV)/.compiled
	@echo "· installing kquota with the demo's clients (pinned)"
	@$(INSTALL) -e '.[demo]'
	@touch $@

$(VENV)/.analysis: $(VENV)/.created $(PINS) | $(VENV)/.compiled
	@echo "· installing kquota with what the Spark reports need (pinned)"
	@$(INSTALL) -e '.[analysis]'
	@touch $@

$(VENV)/.dev: $(VENV)/.created $(PINS) | $(VENV)/.compiled
	@echo "· installing kquota with everything the tests need (pinned)"
	@$(INSTALL) -e '.[dev]'
	@touch $@ $(VENV)/.demo $(VENV)/.analysis

# An environment of its own: it wants other versions of what we use.
$(VENV)/.s3: $(VENV)/.dev tests/s3_server.txt
	@echo "· installing an S3 server (pinned)"
	@$(PYTHON) -m venv $(VENV)/s3
	@$(VENV)/s3/bin/python -m pip --disable-pip-version-check --quiet install -r tests/s3_server.txt
	@touch $@

# With what the tests need, in one go: pip prepares the project each time.
$(VENV)/.docs: $(VENV)/.created $(PINS) | $(VENV)/.compiled
	@echo "· installing kquota with everything the tests and the documentation's site need (pinned)"
	@$(INSTALL) -e '.[dev,docs]'
	@touch $@ $(VENV)/.dev $(VENV)/.demo $(VENV)/.analysis

$(VENV)/.bench: $(VENV)/.dev $(PINS)
	@echo "· installing the peers to measure against (pinned)"
	@$(INSTALL) -e '.[dev,bench]'
	@touch $@

demo: $(VENV)/.demo ## A real Kafka broker, the sidecar, real clients, a live view of throttling (about 30 s)
	@$(AS_IMAGES) $(BIN)/kquota demo --usage $(DEMO_USAGE) $(DEMO_ARGS)
	@echo "next: make report, or make report REPORT=throttling: Spark reports on those records (Java 17 or 21 has to be there)"

report: $(VENV)/.analysis ## A Spark report on what the demo's sidecars recorded, else on a sample week: REPORT=all, usage, throttling …
	@if [ -d $(DEMO_USAGE) ]; then input=$(DEMO_USAGE); else input="$(SAMPLE)"; \
		echo "· no records of make demo in $(DEMO_USAGE): reporting on the sample week in examples/usage"; fi; \
	$(BIN)/kquota report $(REPORT) --input $$input --output $(DEMO_REPORTS) $(REPORT_ARGS)

analysis: $(VENV)/.analysis ## What `kquota report` needs: pyspark and what draws the pages (Java 17 or 21 has to be there)

compile: $(VENV)/.compiled ## Compile the data path (modules of quota and proxy), if it has changed; every target that needs kquota does

check: $(VENV)/.docs ## Format, lint, types (strict), import rules, generated files up to date, the site without dead links
	@$(MAKE) --no-print-directory --jobs=2 --output-sync check-types check-docs check-imports check-format check-lint

# Side by side, the longest first; each tells its output as a whole when it is done.
.PHONY: check-types check-docs check-imports check-format check-lint
check-types:
	@echo "· mypy --strict"; $(BIN)/mypy

check-docs:
	@echo "· documentation (strict)"; $(MKDOCS) build --strict > .venv/docs.log 2>&1 || { cat .venv/docs.log; exit 1; }

check-imports:
	@echo "· import rules"; $(BIN)/lint-imports --no-cache > .venv/imports.log || { cat .venv/imports.log; exit 1; }

check-format:
	@echo "· ruff format"; $(BIN)/ruff format --check --quiet .

check-lint:
	@echo "· ruff check"; $(BIN)/ruff check --quiet .

# The notice of its makers about another major version is nothing for each build.
MKDOCS = NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs

docs: $(VENV)/.docs ## The documentation's site in build/docs; dead links and anchors are errors
	@$(MKDOCS) build --strict
	@echo "open $(CURDIR)/build/docs/index.html"

docs-pictures: $(VENV)/.dev ## The pictures of the README again: architecture, a recording of a real run of the demo, the page in use (four minutes)
	@$(BIN)/python docs/_site/draw_architecture.py
	@$(AS_IMAGES) $(BIN)/python docs/_site/record_demo.py
	@$(AS_IMAGES) $(BIN)/python docs/_site/picture_page.py

.PHONY: docs-report-pictures
docs-report-pictures: $(VENV)/.dev ## The picture of a report again, of a generated fleet (minutes; Java 17 or 21 has to be there)
	@$(BIN)/python docs/_site/picture_reports.py

docs-serve: $(VENV)/.docs ## The same at http://127.0.0.1:8000, built at each change
	@$(MKDOCS) serve --strict

# Made once for each Java and set of jars, in the cache outside the project: JVMs of Kafka and Spark start with half of the work.
classes: $(VENV)/.dev
	@$(BIN)/python -m tests.lab.kafka.prepare
	@$(BIN)/python -m tests.support.spark_archive

# pytest's 5 says that PYTEST_ARGS chose none of its tests: an error only where they chose none of the others either.
test: check classes ## check, the unit tests, then every promise with real brokers and real clients (about 10 minutes)
	@unit=0; $(UNIT) $(PYTEST_ARGS) || unit=$$?; [ $$unit = 0 ] || [ $$unit = 5 ] || exit $$unit; \
		rest=0; $(REST) $(PYTEST_ARGS) || rest=$$?; [ $$rest = 0 ] || { [ $$rest = 5 ] && [ $$unit = 0 ]; }

# Other Kafka versions, faults, soak, images, builds, Spark's clusters and streams.
test-long: $(VENV)/.dev classes ## The tests that make test leaves out for their price (tests/README.md)
	@$(LONG) $(PYTEST_ARGS)

# A Spark in a folder of its own, in front of the one in the environment.
SPARKS ?= 3.5.7 $(IMAGE_SPARK)
IMAGE_SPARK := $(shell sed -n 's/^pyspark==//p' deploy/image/spark.txt)
WITH_SPARK = PYTHONPATH=$(CURDIR)/$(VENV)/spark-$(1)

$(VENV)/spark-%/pyspark: $(VENV)/.dev
	@echo "· installing Spark $*"
	@$(PIP) install --no-compile --target $(VENV)/spark-$* pyspark==$*
	@$(call WITH_SPARK,$*) $(BIN)/python -m tests.support.spark_archive

test-spark: classes $(SPARKS:%=$(VENV)/spark-%/pyspark) ## The tests of reports, stream and store on the image's Spark and an older one (SPARKS)
	@for version in $(SPARKS); do echo "· Spark $$version"; \
		$(call WITH_SPARK,$$version) $(SIDE_BY_SIDE) $(PYTEST_ARGS) tests/spark || exit 1; \
	done

test-all: test test-long test-spark bench-guard evasion fuzz sanitize faults soak peer-suites test-apiserver test-kubernetes test-object-store stream-kills ## Every test (hours; root, Go, cargo)

test-unit: $(VENV)/.dev ## The unit tests alone: no processes, no network, no waiting (under a minute)
	@$(UNIT) $(PYTEST_ARGS)

# Workers are measured as well (pyproject.toml). Compiled modules cannot be seen into: the Python code runs. A test that fails
# is not what this looks for: those that bound the CPU time of a charge may, as measuring takes several times of it.
# Floors: raise one when it is passed by more than three, lower one only with a reason in the commit.
COVERAGE_FOLDERS ?= unit loopback
COVERAGE_FLOORS = quota=95 proxy=85 config=94
coverage: $(VENV)/.dev ## Lines and branches that tests reach, by package, and a floor for each (COVERAGE_FOLDERS="unit loopback")
	@rm -rf $(VENV)/coverage && mkdir -p $(VENV)/coverage
	@for folder in $(COVERAGE_FOLDERS); do KQUOTA_PURE=1 HYPOTHESIS_PROFILE=ci $(BIN)/python -m coverage run \
		-m pytest -q -n 2 --dist loadfile --timeout 900 -m $$folder tests/$$folder $(PYTEST_ARGS) || [ $$? = 1 ]; done
	@$(BIN)/python -m coverage combine -q && $(BIN)/python -m coverage report --sort=cover
	@[ "$(COVERAGE_FOLDERS)" != "unit loopback" ] || for floor in $(COVERAGE_FLOORS); do \
		$(BIN)/python -m coverage report --include="$${floor%=*}/**" --fail-under=$${floor#*=} --format=total; done

test-integration: $(VENV)/.dev classes ## make test without check and the unit tests: sockets, processes, brokers, Spark
	@$(REST) $(PYTEST_ARGS)

# By folder, so that only those files are imported, and by marker as well, so that a file in PYTEST_ARGS runs once.
UNIT = $(BIN)/python -m pytest -n 2 --dist worksteal -o testpaths=tests/unit -m unit
SIDE_BY_SIDE = $(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadfile --no-loadscope-reorder \
	-o testpaths='tests/loopback tests/system tests/broker tests/spark'
REST = $(SIDE_BY_SIDE) -m 'not unit and not long'
LONG = $(SIDE_BY_SIDE) -m 'long and not packages'

test-chart: $(VENV)/.dev ## The chart and the webhook, without a cluster (a part of test-integration)
	@$(BIN)/python -m pytest -n 2 tests/system/test_chart.py tests/system/test_chart_analysis.py tests/system/test_webhook.py $(PYTEST_ARGS)

test-apiserver: $(VENV)/.dev ## The chart and the webhook with a real Kubernetes API server (the first time builds it with Go: minutes)
	@echo "· kube-apiserver and etcd, built if need be"; nice $(BIN)/python -m tests.support.apiserver_tools
	@$(BIN)/python -m pytest tests/apiserver/with_apiserver.py tests/apiserver/with_examples.py $(PYTEST_ARGS)

test-kubernetes: $(VENV)/.dev ## The image and the chart on a real Kubernetes node (root, Debian's containerd; the first time builds it: 20 minutes)
	@echo "· the node's programs, built if need be"; nice $(BIN)/python -m tests.kubernetes.programs
	@echo "· images, built if need be"; nice $(BIN)/python -m tests.kubernetes.image_store
	@$(BIN)/python -m tests.kubernetes $(PYTEST_ARGS)

test-kubernetes-short: $(VENV)/.dev ## A part of test-kubernetes: a pod with the sidecar, its limits, changed quotas, a Job
	@nice $(BIN)/python -m tests.kubernetes.programs etcd kube-apiserver kubelet kube-controller-manager kube-scheduler kube-proxy coredns
	@nice $(BIN)/python -m tests.kubernetes.image_store pause client kafka kquota
	@$(BIN)/python -m pytest --timeout=600 tests/kubernetes/with_sidecar.py $(PYTEST_ARGS)

test-object-store: $(VENV)/.s3 $(VENV)/spark-$(IMAGE_SPARK)/pyspark ## Reports from and to an object store: an S3 server on this machine (fetches Hadoop's connector)
	@$(call WITH_SPARK,$(IMAGE_SPARK)) $(BIN)/python -m pytest --timeout 1200 tests/s3_report.py

stream-kills: $(VENV)/spark-$(IMAGE_SPARK)/pyspark ## The stream's exactly once: driver and executors killed twenty times at random, sums compared (KILLS_ARGS="--kills 4 --seed 7")
	@$(call WITH_SPARK,$(IMAGE_SPARK)) $(BIN)/python -m tests.stream_kills $(KILLS_ARGS)

bench: $(VENV)/.bench ## Direct vs HAProxy vs Envoy vs kquota, as ratios of one run (needs haproxy on PATH)
	@$(AS_IMAGES) $(BIN)/python -m benchmarks $(BENCH_ARGS)

bench-guard: $(VENV)/.bench classes ## What a request costs, counted, against stored counts; then HAProxy, coarsely (root, valgrind, strace, haproxy; GUARD_ARGS)
	@$(AS_IMAGES) $(BIN)/python -m benchmarks.suites.guard $(GUARD_ARGS)

sweep: $(VENV)/.bench ## Rates up to the knee and past it: throughput, latency, millicores per MB/s (a JDK, haproxy; SWEEP_ARGS)
	@$(AS_IMAGES) $(BIN)/python -m benchmarks.suites.sweep $(SWEEP_ARGS)

accuracy: $(VENV)/.dev ## Achieved over limit from 0.1 to 100 MB/s, for 1, 8 and 64 connections (about 13 minutes; ACCURACY_ARGS)
	@$(AS_IMAGES) $(BIN)/python -m benchmarks.suites.accuracy $(ACCURACY_ARGS)

evasion: $(VENV)/.dev ## Attacks on every quota, and honest clients far above theirs: achieved over limit (about 25 minutes; EVASION_ARGS, such as --direct)
	@$(AS_IMAGES) $(BIN)/python -m benchmarks.evasion --store $(EVASION_ARGS)

world: $(VENV)/.dev ## Simulated clients, instances, brokers and networks, from seeds (WORLD_ARGS="--seeds 10000 --minutes 30", --mutations, --search)
	@$(AS_IMAGES) $(BIN)/python -m tests.world $(WORLD_ARGS)

load: $(VENV)/.dev ## 2 000 connections at once: held, shared fairly, and what others notice (LOAD_ARGS=--quick for a short one)
	@$(AS_IMAGES) $(BIN)/python -m benchmarks.suites.load $(LOAD_ARGS)

faults: $(VENV)/.dev ## Every fault of docs/testing.md, two minutes of soak (about 7 minutes)
	@KQUOTA_FAULTS=all $(BIN)/python -m pytest tests/broker/test_faults.py tests/broker/test_faults_system.py tests/broker/test_soak.py $(PYTEST_ARGS)

soak: $(VENV)/.dev ## Half an hour of churning clients, reloads and faults: nothing may grow (SOAK_MINUTES=30, SOAK_ARGS="--plot FILE")
	@$(AS_IMAGES) $(BIN)/python -m tests.soak --minutes $(SOAK_MINUTES) $(SOAK_ARGS)

fuzz: $(VENV)/.dev ## Fuzz what reads bytes and files of others, a minute per target (FUZZ_ARGS="--seconds 600 requests" for more)
	@$(AS_IMAGES) $(BIN)/python -m tests.fuzz $(FUZZ_ARGS)

sanitize: $(VENV)/.dev ## The compiled code under AddressSanitizer and UBSan: its tests, then a minute of fuzzing (SANITIZE_ARGS="--seconds 600")
	@$(BIN)/python -m tests.sanitize $(SANITIZE_ARGS)

bench-analysis: $(VENV)/.dev ## The reports on a generated fleet of 100 million records, next to DuckDB (hours; FLEET_ARGS, BENCH_ARGS)
	@$(BIN)/python -m tests.lab.fleet --output $(VENV)/fleet $(FLEET_ARGS)
	@$(BIN)/python -m benchmarks.suites.analysis --fleet $(VENV)/fleet $(if $(BENCH_ARGS),$(BENCH_ARGS),--sizes 4,16,64)

peer-suites: $(VENV)/.dev ## franz-go's and librdkafka's own tests, at a broker and through the sidecar, compared (Go and cargo; PEER_ARGS)
	@$(AS_IMAGES) $(BIN)/python -m tests.peers $(PEER_ARGS)

schema: $(VENV)/.dev ## Generate proxy/core/wire/schema.py from Kafka's published message schemas
	@$(BIN)/python -m tests.lab.wire_schema

# The newest release is recorded whole, the one before it then in part.
kafka-release: $(VENV)/.dev ## Support a Kafka release: VERSION=4.5.0 is fetched, generated from, recorded and run; what is new is printed
	@[ -n "$(VERSION)" ] || { echo "make kafka-release VERSION=4.5.0" >&2; exit 2; }
	@$(BIN)/python -m tests.lab.kafka.lock $(VERSION)
	@$(BIN)/python -m tests.lab.wire_schema
	@$(BIN)/python -m tests.vectors.record $$($(BIN)/python -c 'from tests.lab.releases import RUN; print(*RUN[:2])')
	@$(BIN)/python -m pytest -n 2 --dist loadfile -k "$(VERSION) or wire_table or wire_vectors or wire_responses" tests/unit/test_wire_vectors.py \
		tests/unit/test_wire_responses.py tests/system/test_wire_table.py tests/broker/test_wire_against_broker.py tests/broker/test_transparency.py
	@git --no-pager diff --stat 2>/dev/null || true

chart: $(VENV)/.dev ## Generate what the chart has from the configuration model, its README, golden and plain renders
	@$(BIN)/python -m tests.lab.chart
	@$(BIN)/python -m tests.support.chart_tools

.PHONY: chart-package
chart-package: $(VENV)/.dev ## The chart as a publisher publishes it (CHART_ARGS="--home URL --source URL --image REPOSITORY"; needs helm)
	@$(BIN)/python -m tests.lab.chart_package $(CHART_ARGS)

image-lock: $(VENV)/.dev ## Pin what goes into the image, with SHA-256 sums, from pyproject.toml, deploy/constraints.txt and deploy/image/spark.txt
	@$(PIP) install -c deploy/constraints.txt uv
	@{ grep -v ^pyspark= deploy/constraints.txt; cat deploy/image/spark.txt; } > $(VENV)/image-pins.txt
	@$(LOCK) -o deploy/image/sidecar.txt --extra webhook pyproject.toml
	@$(LOCK) -o deploy/image/analysis.txt --extra analysis pyproject.toml
	@$(LOCK) -o deploy/image/build.txt deploy/image/build.in

audit: $(VENV)/.dev ## Known vulnerabilities of what the image pins (asks PyPI; fails where that does not answer)
	@$(PIP) install -c deploy/constraints.txt 'pip-audit>=2.9,<3'
	@for lock in sidecar analysis build; do echo "· deploy/image/$$lock.txt"; \
		$(BIN)/pip-audit --strict --require-hashes --disable-pip --progress-spinner off -r deploy/image/$$lock.txt || exit; done

hooks: $(VENV)/.dev ## Git hooks for this checkout: format and lint before a commit, check and the unit tests before a push
	@$(BIN)/pre-commit install

release-check: $(VENV)/.dev ## What a release would publish: built twice, read by twine, installed and used; left in dist (RELEASE_TAG=vX.Y.Z)
	@$(BIN)/python -m tests.release_check $(if $(RELEASE_TAG),--tag $(RELEASE_TAG))

clean: ## Remove .venv and caches of tools (the Kafka cache outside the project stays)
	rm -rf $(VENV) demo-usage demo-reports .mypy_cache .ruff_cache .pytest_cache .hypothesis .fuzz *.egg-info build quota/_compiled proxy/*/*/_compiled
