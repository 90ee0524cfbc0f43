# What a newcomer needs: `make demo` and `make test`. `make help` lists more, `make help-all` all.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest
PACKAGES := tracker spark_client experiments benchmarks
# Each worker takes whole files, and has a Spark session of its own. WORKERS=0: one process, for debuggers.
WORKERS := 3
# Tests and demos start hundreds of processes. Where the environment forbids it, as images do, each would compile all again.
export PYTHONDONTWRITEBYTECODE :=
IMAGE ?= substream-tracker
ENGINE ?= docker
PARALLEL := --numprocesses=$(WORKERS) --dist=loadfile
DOCTESTS := $(PYTEST) --doctest-modules --ignore=tracker/wire/gen --ignore=tracker/core/compiled.py --ignore=benchmarks/spark.py --ignore=benchmarks/exactness/programs $(PACKAGES)

.DEFAULT_GOAL := help
.PHONY: help help-all install doctor demo demo-delays demo-kafka demo-lake demo-replay demo-state test test-thorough test-all test-fast test-spark test-slow test-bounds test-oldest test-matrix exactness-peers jars image lint types proto proto-check docs-check site format integrations clean check

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

help-all: ## the other targets, too; rare programs are modules: `python -m tests.chaos`, `benchmarks`, `scripts.…` (CONTRIBUTING.md)
	@grep -hE '^[a-z-]+:.*#[#-] ' $(MAKEFILE_LIST) | sed -E 's/:.*#[#-] /\t/' | expand -t 16

install: $(STAMP) ## make .venv with everything

doctor:
	@PYTHON="$(PYTHON)" bash scripts/doctor.sh

$(STAMP): pyproject.toml constraints.txt
	@PYTHON="$(PYTHON)" bash scripts/doctor.sh
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (a few minutes the first time)"
	@set -o pipefail; PYTHONUNBUFFERED=1 PYTHONWARNINGS=ignore PIP_CONSTRAINT=constraints.txt \
	  $(BIN)/python -m pip install --progress-bar off --disable-pip-version-check -e '.[server,notify,load,spark,demo,dev]' \
	  | { grep --line-buffered -oE '(Downloading|Using cached) .*[0-9] MB\)|Building wheel for [^ ]+|^Installing collected packages' || true; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --only-binary=numba,llvmlite \
	  -e '.[fast]' 2>/dev/null || echo "without numba, which has no wheel for this Python: tests of compiled loops are skipped"
	@$(BIN)/python scripts/generate_stubs.py --fetch
	@$(BIN)/python scripts/compile_pyspark.py
	@touch $@

demo: $(STAMP) ## a quarter of a year of flights through two Spark queries while the tracker is killed; DAYS=365: the year
	@$(BIN)/python -m examples.flights.demo $(if $(DAYS),--days $(DAYS))

demo-delays: $(STAMP) #- two weeks of the flights in hourly steps: how soon each result is out, as a table and a picture
	@$(BIN)/python -m examples.flights.delays

demo-failover: $(STAMP) #- the flights while the leader of two trackers with a journal in Redis is killed every ten seconds
	@$(BIN)/python -m examples.flights.failover

demo-hand-over: $(STAMP) #- the flights in three deployments that hand over, the last one with another shape of state
	@$(BIN)/python -m examples.flights.hand_over

demo-kafka: $(STAMP) #- flights over Kafka into PostgreSQL, with a retry loop, while everything is killed
	@bash scripts/fetch_jars.sh >/dev/null
	@$(BIN)/python -m examples.flights_kafka.demo

demo-lake: $(STAMP) #- flights over Spark Connect into Delta and Iceberg, all in an object store, while everything is killed
	@$(BIN)/python -m examples.lake.demo

demo-replay: $(STAMP) #- a year of flights, dry: which promise would have been right, as a table and a page
	@$(BIN)/python -m examples.flights.dry_run

demo-state: $(STAMP) #- rows of keyed state over time, ended by the tracker, by a time to live and by a watermark, as a picture
	@$(BIN)/python -m examples.state.demo

# Half of what a JVM with Spark costs to start; without it the tests are slower, and nothing else.
CLASSES := .cache/spark-classes.jsa
$(CLASSES): $(STAMP)
	@mkdir -p $(@D) && rm -f $@
	@$(BIN)/python -m tests.spark.archive $@ >/dev/null 2>&1 || true
	@touch $@

test: $(CLASSES) ## every rule, in some eleven minutes
	@$(DOCTESTS)
	@$(PYTEST) $(PARALLEL) tests -m "not slow and not thorough"

SHARE := 0/1
test-thorough: $(CLASSES) #- what takes longer: kills at every step, drawn lives, every type, chaos; SHARE=0/3: a third of it
	@$(PYTEST) $(PARALLEL) tests -m "thorough and not slow" --share=$(SHARE)

test-all: test test-thorough ## both

test-fast: $(STAMP) ## without Spark
	@$(DOCTESTS)
	@$(PYTEST) $(PARALLEL) tests -m "not slow and not spark"

test-spark: $(CLASSES) #- only Spark
	@$(PYTEST) $(PARALLEL) tests -m "spark and not slow"

test-slow: $(CLASSES) #- the long simulations and failure runs
	@$(PYTEST) tests -m slow

.cache/airflow/.installed .cache/dagster/.installed: .cache/%/.installed: requirements/%.txt integrations/%/pyproject.toml pyproject.toml
	@test -x .cache/$*/bin/python || $(PYTHON) -m venv .cache/$*
	@echo "installing into .cache/$* (a few minutes the first time)"
	@.cache/$*/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/$*.txt
	@.cache/$*/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e . -e integrations/$*
	@touch $@

.cache/dbt/.installed .cache/glue/.installed: .cache/%/.installed: requirements/%.txt
	@test -x .cache/$*/bin/python || $(PYTHON) -m venv .cache/$*
	@.cache/$*/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/$*.txt
	@touch $@

integrations: $(STAMP) $(addprefix .cache/,$(addsuffix /.installed,airflow dagster dbt glue)) #- the packages for orchestrators, in a real Airflow, Dagster and dbt, with moto for Glue
	@$(PYTEST) tests/integrations

test-bounds: $(STAMP) #- the client with the lowest and the highest versions of what it needs
	@$(BIN)/python scripts/test_bounds.py

test-matrix: $(STAMP) #- what matters most on every supported Spark (3.5 GB in .cache/matrix), and its table in docs; SPARK="4.1 4.3": on these
	@$(BIN)/python scripts/test_matrix.py $(SPARK)

# The oldest Python that is supported, as far as this machine has one: Debian 12's own has no filters of `tarfile`.
OLDEST ?= /usr/bin/python3
.cache/oldest/.installed: pyproject.toml constraints.txt
	@test -x .cache/oldest/bin/python || $(OLDEST) -m venv .cache/oldest
	@echo "installing into .cache/oldest (a few minutes the first time)"
	@PIP_CONSTRAINT=constraints.txt .cache/oldest/bin/python -m pip install --quiet --disable-pip-version-check -e '.[server,notify,load,spark,demo,dev]'
	@touch $@

test-oldest: $(STAMP) .cache/oldest/.installed #- what needs no Spark query, on the system's own Python; OLDEST=PATH: on another one
	@.cache/oldest/bin/python -m pytest $(PARALLEL) tests/core tests/upgrade tests/store tests/journal tests/spark/test_unpacking.py -m "not slow and not thorough"

EXACTNESS := flink beam bytewax
$(EXACTNESS:%=.cache/exactness/%/.installed): .cache/exactness/%/.installed: requirements/exactness-%.txt
	@test -x .cache/exactness/$*/bin/python || $(PYTHON) -m venv .cache/exactness/$*
	@echo "installing into .cache/exactness/$* (a few minutes the first time)"
	@.cache/exactness/$*/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

exactness-peers: $(EXACTNESS:%=.cache/exactness/%/.installed) #- the other engines of `python -m benchmarks.exactness` (2 GB in .cache)
	@bash scripts/fetch_jars.sh broker flink streams >/dev/null

image: ## build the container image with ENGINE (docker), and name it IMAGE
	@$(ENGINE) build --tag $(IMAGE) .

jars: #- fetch Kafka's broker and connector, once
	@bash scripts/fetch_jars.sh

lint: $(STAMP) #- ruff, the protobuf lint, and Prometheus' own check of the alerts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/buf lint proto
	@if command -v promtool >/dev/null; then cd deploy/prometheus && promtool check config prometheus.yml >/dev/null; \
	  else echo "deploy/prometheus is not checked: promtool is missing (apt-get install prometheus)"; fi

format: $(STAMP) #- rewrite the code as the linter wants it
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

types: $(STAMP) #- mypy: strict on packages, nearly so on tests (pyproject.toml)
	@$(BIN)/mypy $(foreach each,$(PACKAGES) examples scripts tests,-p $(each))

proto: $(STAMP) #- generate the stubs from proto/
	@$(BIN)/python scripts/generate_stubs.py

proto-check: $(STAMP) #- the committed stubs are those that proto/ gives
	@$(BIN)/python scripts/generate_stubs.py --check

docs-check: $(STAMP) #- docs: links resolve, Python compiles, command lines are taken
	@$(BIN)/python scripts/check_docs.py

check: lint types proto-check docs-check ## all checks that run no test

.cache/site/.installed: requirements/site.txt
	@test -x .cache/site/bin/python || $(PYTHON) -m venv .cache/site
	@.cache/site/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/site.txt
	@touch $@

site: $(STAMP) .cache/site/.installed ## the documentation and the API reference as one searchable site, in site/
	@NO_MKDOCS_2_WARNING=1 .cache/site/bin/python -m mkdocs build --strict --quiet
	@echo "made site/; to search in it: python3 -m http.server --bind 127.0.0.1 --directory site"

clean: #- remove what was made, the environment too
	@rm -rf $(VENV) build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis artifacts spark-warehouse metastore_db derby.log
