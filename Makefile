# The environment is made when a target needs it. Another Python: make demo PYTHON=python3.13
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help env demo test test-fast test-long test-rabbitmq4 check bench compare compare-report screens lock clean

help: ## show this list
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | while IFS='|' read -r name text; do \
		printf '%-24s%s\n' "$$name" "$$text"; done

env: $(READY) ## create .venv from requirements.lock
	@:

$(READY): pyproject.toml $(wildcard requirements.lock)
	@.ci/env "$(PYTHON)" "$(VENV)"
	@touch $@

demo: $(READY) ## watch delayed messages live; starts RabbitMQ, Kafka and Redis unless their URLs are set
	@$(BIN)/python -m tests.devstack run redis rabbitmq 'kafka?' -- $(BIN)/postdate demo

# Most of these tests wait for time to pass: three processes, each with its own servers, fit on two cores.
test: $(READY) ## run all tests except the long ones
	@$(BIN)/python -m pytest -q -m "not long" -n 3 --dist worksteal

test-fast: $(READY) ## run the tests that need no server and no process, in about half a minute
	@$(BIN)/python -m pytest -q --fast -n 2 --dist worksteal tests/unit tests/property tests/lua tests/conformance

test-long: $(READY) ## run the long tests, more than half an hour
	@$(BIN)/python -m pytest -q -m long

test-rabbitmq4: $(READY) ## run every RabbitMQ test on RabbitMQ 4.3
	@POSTDATE_TEST_RABBITMQ=4 $(BIN)/python -m pytest -q -m rabbitmq

check: $(READY) ## run ruff and mypy --strict
	@failed=0; $(BIN)/ruff check . || failed=1; $(BIN)/ruff format --check . || failed=1; \
		$(BIN)/mypy || failed=1; exit $$failed

bench: $(READY) ## run the full benchmark, half an hour; postdate bench --quick takes one minute
	@$(BIN)/python -m tests.devstack run redis rabbitmq 'kafka?' -- $(BIN)/postdate bench

compare: $(READY) ## compare the delay methods, some minutes; postdate compare --quick takes one or two
	@$(BIN)/python -m tests.devstack run redis rabbitmq -- $(BIN)/postdate compare

compare-report: $(READY) ## the same; writes deploy/compare/ and the table in README.md
	@$(BIN)/python -m tests.devstack run redis rabbitmq -- .ci/compare-report $(BIN)/postdate

screens: $(READY) ## draw the screenshots of README.md from a running postdate, about twenty minutes
	@$(BIN)/python -m tests.devstack run redis rabbitmq kafka -- $(BIN)/python -m tests.browser.screens

LOCKED := --quiet --generate-hashes --strip-extras --allow-unsafe \
	--no-emit-index-url --no-emit-find-links --no-emit-trusted-host

lock: $(READY) ## write requirements.lock and deploy/requirements.lock from pyproject.toml
	@$(BIN)/pip-compile $(LOCKED) --extra dev --output-file requirements.lock pyproject.toml
	@$(BIN)/pip-compile $(LOCKED) --constraint requirements.lock --build-deps-for wheel \
		--output-file deploy/requirements.lock pyproject.toml

clean: ## remove .venv and all caches, but not .devstack
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	@find . -name __pycache__ -type d -not -path './.devstack/*' -prune -exec rm -rf {} +
