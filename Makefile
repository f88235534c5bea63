# The environment is made when a target needs it. Another Python: make demo PYTHON=python3.13
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help env demo test test-fast test-long test-rabbitmq4 check bench compare compare-report lock clean

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | while IFS='|' read -r name text; do \
		printf '%-24s%s\n' "$$name" "$$text"; done

env: $(READY) ## the environment in .venv, from requirements.lock
	@:

$(READY): pyproject.toml $(wildcard requirements.lock)
	@.ci/env "$(PYTHON)" "$(VENV)"
	@touch $@

demo: $(READY) ## messages from producer to consumer, live; starts RabbitMQ, Kafka and Redis where none are named
	@$(BIN)/python -m tests.devstack run redis rabbitmq 'kafka?' -- $(BIN)/postdate demo

test: $(READY) ## every test but the long ones, in two processes with servers of their own
	@$(BIN)/python -m pytest -q -m "not long" -n 2 --dist worksteal

test-fast: $(READY) ## the tests without servers, processes and pauses, in less than 20 seconds
	@$(BIN)/python -m pytest -q --fast -n 2 --dist worksteal tests/unit tests/property tests/lua tests/conformance

test-long: $(READY) ## the tests that take minutes
	@$(BIN)/python -m pytest -q -m long

test-rabbitmq4: $(READY) ## every RabbitMQ test, on RabbitMQ 4.3
	@POSTDATE_TEST_RABBITMQ=4 $(BIN)/python -m pytest -q -m rabbitmq

check: $(READY) ## ruff and mypy --strict
	@failed=0; $(BIN)/ruff check . || failed=1; $(BIN)/ruff format --check . || failed=1; \
		$(BIN)/mypy || failed=1; exit $$failed

bench: $(READY) ## the yardstick, half an hour; postdate bench --quick takes one minute
	@$(BIN)/python -m tests.devstack run redis rabbitmq 'kafka?' -- $(BIN)/postdate bench

compare: $(READY) ## the ways to wait, some minutes; postdate compare --quick takes one or two
	@$(BIN)/python -m tests.devstack run redis rabbitmq -- $(BIN)/postdate compare

compare-report: $(READY) ## the same, kept in deploy/compare/ and shown in README.md
	@$(BIN)/python -m tests.devstack run redis rabbitmq -- .ci/compare-report $(BIN)/postdate

LOCKED := --quiet --generate-hashes --strip-extras --allow-unsafe \
	--no-emit-index-url --no-emit-find-links --no-emit-trusted-host

lock: $(READY) ## both lock files from pyproject.toml: everything, and (deploy/) what an installation needs
	@$(BIN)/pip-compile $(LOCKED) --extra dev --output-file requirements.lock pyproject.toml
	@$(BIN)/pip-compile $(LOCKED) --constraint requirements.lock --build-deps-for wheel \
		--output-file deploy/requirements.lock pyproject.toml

clean: ## removes the environment and what tools leave, not the servers in .devstack
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	@find . -name __pycache__ -type d -not -path './.devstack/*' -prune -exec rm -rf {} +
