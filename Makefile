# The words a person types here; CI types the same ones. `make` alone lists them.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python -m
# One more than the smallest CI machine has cores: one of them runs the heavy tests, which wait more than they work.
PARALLEL := --numprocesses=3 --durations=40 --durations-min=5
UV_VERSION := 0.13.7

.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help
help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Say which Python is needed, rather than fail somewhere in the middle.
define require-python
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Headgate needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." \
	       "Name another one: make $(1) PYTHON=python3.13" >&2; exit 1; }
endef

.PHONY: setup
setup: $(VENV)/.ready ## Make .venv with everything in it; instant when nothing changed.

# The environment is rebuilt from nothing when the lock file changes, so it never holds more than the
# lock says. --require-hashes: a package that differs from the locked one is refused. --no-deps: the lock is
# complete, and pip's resolver looks past a pin for a package that another one wants with an extra. --no-compile: what
# is used gets compiled on first use, the rest never.
PIP_INSTALL := pip install --quiet --no-compile --no-deps --require-hashes
$(VENV)/.locked: requirements/dev.txt
	@$(call require-python,setup)
	$(PYTHON) -m venv --clear $(VENV)
	$(RUN) $(PIP_INSTALL) -r requirements/dev.txt
	@touch $@

# The version is read from __init__.py when the package is installed.
$(VENV)/.ready: $(VENV)/.locked pyproject.toml src/headgate/__init__.py
	$(RUN) pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# The service needs few packages and none of the tools: where there is no .venv it gets a small one of its own, and runs
# from the sources. `make serve SERVE="--port 9000 --engine redis://localhost"` passes options on.
SERVE_VENV := $(if $(wildcard $(VENV)/.ready),$(VENV),.venv-serve)

.PHONY: serve
serve: $(filter-out $(VENV)/.ready,$(SERVE_VENV)/.ready) ## Start the service on http://127.0.0.1:8080; SERVE="..." passes options.
	@PYTHONPATH=src exec $(SERVE_VENV)/bin/python -m headgate serve $(SERVE)

.venv-serve/.ready: requirements/serve.txt
	@$(call require-python,serve)
	$(PYTHON) -m venv --clear .venv-serve
	.venv-serve/bin/python -m $(PIP_INSTALL) -r requirements/serve.txt
	@touch $@

.PHONY: servers
servers: ## Install the servers that tests start; instant when they are there.
	@PYTHON="$(PYTHON)" scripts/install-servers

.PHONY: test
test: check servers ## Run the checks, every test and every example in the documents, and the compiled build's tests.
	$(RUN) tests.twice $(PARALLEL)
	@$(MAKE) $(if $(HAS_COMPILER),test-compiled CORE_TESTS="$(FIRST_TESTS)",no-compiler)

# The compiled build is put into a folder, whose packages come before those of the environment.
COMPILED := build/compiled
FIRST_TESTS := tests/unit/algorithms tests/unit/test_charge.py tests/unit/test_decision.py tests/unit/engines/test_memory.py tests/conformance/test_memory.py
CORE_TESTS := $(FIRST_TESTS) tests/unit/engines/test_state_file.py tests/unit/engines/test_memory_bounds.py tests/unit/test_key_limit.py tests/unit/test_limiter.py tests/unit/test_aio.py \
  tests/unit/test_fork.py tests/property/test_bounds.py tests/property/test_relations.py tests/property/test_retry_after.py tests/property/test_twins.py

.PHONY: test-compiled
test-compiled: $(COMPILED)/.ready ## Run the tests of the core against the compiled build.
	PYTHONPATH=$(CURDIR)/$(COMPILED)/site $(RUN) headgate --version | grep compiled
	PYTHONPATH=$(CURDIR)/$(COMPILED)/site $(RUN) pytest $(PARALLEL) $(CORE_TESTS)

HAS_COMPILER = $(shell $(VENV)/bin/python scripts/has-compiler)

.PHONY: no-compiler
no-compiler:
	@echo "The compiled build was not tested: that takes a C compiler and the headers of Python." >&2
	@test "$(CI)" != true

.PHONY: compiled
compiled: $(COMPILED)/.ready ## Make the compiled build, in build/compiled.

COMPILE := HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 $(RUN) hatchling build --target wheel
$(COMPILED)/.ready: $(VENV)/.ready hatch_build.py $(shell find src -name '*.py' -o -name '*.lua')
	@rm -rf $(COMPILED)
	$(COMPILE) --directory $(COMPILED)/dist
	$(RUN) pip install --quiet --no-deps --no-compile --target $(COMPILED)/site $(COMPILED)/dist/*.whl
	@touch $@

.PHONY: wheel
wheel: setup ## Make the wheels in dist: the one of pure Python, and the compiled one of this system.
	$(RUN) hatchling build --target wheel --directory dist
	$(COMPILE) --directory dist

.PHONY: check
check: setup ## Formatting, lint, types, import contracts, layout, workflows.
	$(RUN) ruff format --check
	$(RUN) ruff check
	$(RUN) mypy
	$(RUN) pyright
	$(VENV)/bin/lint-imports --no-logo
	$(VENV)/bin/python scripts/check-layout
	$(VENV)/bin/zizmor --offline --no-progress --quiet .github

.PHONY: format
format: setup ## Format the code and fix what the linter can fix.
	$(RUN) ruff check --fix-only
	$(RUN) ruff format

.PHONY: cover
cover: setup servers ## Run the tests with branch coverage; the report is build/coverage/index.html.
	$(RUN) pytest $(PARALLEL) --cov --cov-report=term --cov-report=html

.PHONY: bench
bench: setup servers compiled ## Measure against other limiters, side by side.
	@PYTHON="$(PYTHON)" scripts/install-servers wrk
	$(RUN) bench.inprocess
	$(RUN) bench.redis
	$(RUN) bench.leases
	$(RUN) bench.rules
	$(RUN) bench.guards
	$(RUN) bench.middleware
	$(RUN) bench.service
	$(RUN) bench.service.viewers
	$(RUN) bench.service.page
	$(RUN) bench.resp
	$(RUN) bench.cluster
	$(RUN) bench.regions

.PHONY: bounds
bounds: setup servers ## Measure what one hostile caller can cost: CPU for each byte, memory for a million new names.
	$(RUN) bench.bounds $(BOUNDS)

# `make fuzz FUZZ="wire --executions 5000000"` names targets and how long. The HTTP front is attacked through proxies, too.
.PHONY: fuzz
fuzz: setup servers ## Fuzz everything that reads bytes from outside; FUZZ="..." passes targets and --executions.
	$(RUN) tests.fuzz $(FUZZ)
	$(if $(FUZZ),,HEADGATE_LONG=1 $(RUN) pytest -q tests/service/test_behind_proxies.py)

# `make faults FAULTS="F1 E3 --seeds 5"` names faults and how often; SEEDS="0-999" names seeds of the simulator, and KILLS
# is how often owners and leaders die on etcd.
.PHONY: faults
faults: setup servers ## Simulate 50,000 seeds, then break real stores and nodes under load; the report is build/faults/index.html.
	$(RUN) headgate lab simulate --seeds $(or $(SEEDS),50000) --keep build/faults/seeds
	$(RUN) headgate lab simulate --seeds $(or $(SEEDS),50000) --regions
	$(RUN) tests.faults.campaign $(FAULTS)
	HEADGATE_LONG=1 HEADGATE_KILLS=$(or $(KILLS),50) $(RUN) pytest -q tests/faults/test_etcd_engine.py \
	  tests/faults/test_etcd_cluster.py tests/faults/test_etcd_trouble.py tests/faults/test_etcd_partition.py

# A missing server is installed by `make setup`; the frameworks are as old as pyproject.toml says.
.PHONY: test-oldest
test-oldest: setup ## Run the tests of integrations on the oldest frameworks they support.
	$(PYTHON) -m venv --clear build/oldest
	build/oldest/bin/python -m pip install --quiet uv==$(UV_VERSION)
	build/oldest/bin/uv pip install --quiet --python build/oldest/bin/python -c requirements/oldest.txt --group servers \
	  --editable '.[redis,rules,fastapi,flask,django,drf,httpx,requests,aiohttp,celery]' \
	  pytest pytest-xdist hypothesis sybil trustme redis gunicorn uvicorn websockets lupa
	build/oldest/bin/python -m pytest -q -p no:cacheprovider tests/integrations

.PHONY: test-image
test-image: ## Build the image in a clean Debian without a container engine, start it, boot the systemd unit; takes root.
	@scripts/test-image

.PHONY: docs
docs: setup ## Build the documentation into build/docs; warnings are errors.
	$(RUN) sphinx --fail-on-warning --keep-going --quiet docs build/docs
	@echo "The documentation is in build/docs/index.html"

# Keeps the versions already locked; `make lock UPGRADE=1` takes the newest. One file serves every
# Python version and platform (--universal), and no address is written into it.
RESOLVE := build/uv/bin/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
  --no-annotate --quiet --custom-compile-command 'make lock'
.PHONY: lock
lock: ## Resolve the dependencies again into requirements/.
	$(PYTHON) -m venv build/uv
	build/uv/bin/python -m pip install --quiet uv==$(UV_VERSION)
	$(RESOLVE) pyproject.toml --all-extras --group dev $(if $(UPGRADE),--upgrade) -o requirements/dev.txt
	$(RESOLVE) pyproject.toml --extra service --constraint requirements/dev.txt -o requirements/serve.txt
	$(RESOLVE) pyproject.toml --extra service --extra etcd --extra zookeeper --extra otel \
	  --constraint requirements/dev.txt -o requirements/image.txt
	$(RESOLVE) --group compiled --constraint requirements/dev.txt -o requirements/image-build.txt

.PHONY: clean
clean: ## Remove everything the other targets made.
	rm -rf $(VENV) .venv-serve build dist .coverage .coverage.* .hypothesis
	rm -rf .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find bench docs src tests -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
