# The environment is made when a target needs it. Another Python: make demo PYTHON=python3.13
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# A shell that forbids bytecode files would let each of the hundreds of processes compile postdate anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help env demo test test-fast test-long test-browser test-helm test-rabbitmq4 check format bench compare compare-report screens docs simulate prove cost release lock clean

help: ## show this list
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | while IFS='|' read -r name text; do \
		printf '%-24s%s\n' "$$name" "$$text"; done

env: $(READY) ## create .venv from requirements.lock
	@:

$(READY): pyproject.toml $(wildcard requirements.lock)
	@.ci/env "$(PYTHON)" "$(VENV)"
	@touch $@

# Fetched while the environment is made, where that is missing.
demo test: export FETCH := redis rabbitmq kafka

demo: $(READY) ## watch delayed messages live; starts RabbitMQ, Kafka and Redis unless their URLs are set
	@$(BIN)/python -m tests.devstack run redis rabbitmq 'kafka?' -- $(BIN)/postdate demo

# Most of these tests wait for time to pass: five processes, each with its own servers, fit on two cores.
test: $(READY) ## run all tests except the long ones
	@$(BIN)/python -m pytest -q -m "not long" -n 5 --dist worksteal

test-fast: $(READY) ## run the tests that need no server and no process; *_crashes.py with few seeds
	@$(BIN)/python -m pytest -q --fast -p no:logging -n 2 --dist worksteal tests/unit tests/property tests/lua tests/conformance

test-long: $(READY) ## run the long tests, more than half an hour
	@$(BIN)/python -m pytest -q -m long

test-browser: $(READY) ## run every test of the page in Chromium, some minutes
	@$(BIN)/python -m pytest -q tests/browser

test-helm: $(READY) ## build Helm with Go, five minutes, once; run the tests of the chart
	@$(BIN)/python -m tests.devstack.helm
	@$(BIN)/python -m pytest -q tests/helm/test_chart.py

test-rabbitmq4: $(READY) ## run every RabbitMQ test on the RabbitMQ of Debian's next release
	@POSTDATE_TEST_RABBITMQ=4 $(BIN)/python -m pytest -q -m rabbitmq

SCRIPTS := 'bridge/http/page/*.js' 'deploy/examples/**/*.js'

check: $(READY) ## run ruff, mypy --strict and the formatter of the page's scripts
	@failed=0; $(BIN)/ruff check . || failed=1; $(BIN)/ruff format --check . || failed=1; \
		$(BIN)/oxfmt --list-different $(SCRIPTS) || failed=1; $(BIN)/mypy || failed=1; exit $$failed

format: $(READY) ## format the Python files and the page's scripts
	@$(BIN)/ruff format -q .; $(BIN)/oxfmt $(SCRIPTS)

bench: $(READY) ## run the full benchmark, half an hour; postdate bench --quick takes one minute
	@$(BIN)/python -m tests.devstack run redis rabbitmq 'kafka?' -- $(BIN)/postdate bench

compare: $(READY) ## compare the delay methods, some minutes; postdate compare --quick takes one or two
	@$(BIN)/python -m tests.devstack run redis rabbitmq -- $(BIN)/postdate compare

compare-report: $(READY) ## the same; writes deploy/compare/ and the table in deploy/levels.md
	@$(BIN)/python -m tests.devstack run redis rabbitmq -- .ci/compare-report $(BIN)/postdate

screens: $(READY) ## draw the screenshots of README.md from a running postdate, about twenty minutes
	@$(BIN)/python -m tests.devstack run redis rabbitmq kafka -- $(BIN)/python -m tests.browser.screens

SEEDS ?= 200
FROM ?= 1

simulate: $(READY) ## run postdate on virtual time with faults drawn from seeds: SEEDS=1000 FROM=1, SEED=7 (trace), MUTATION=all
	@$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS) --from $(FROM)) \
		$(if $(MUTATION),--mutation "$(MUTATION)")

prove: $(READY) ## run the fault matrix on real servers, over an hour: QUICK=1 without the long tests, ONLY=words
	@$(BIN)/python -m tests.proof $(if $(QUICK),--quick) $(if $(ONLY),--only "$(ONLY)") $(if $(PAGE),--page)

cost: $(READY) ## count instructions for a message, in Redis and in postdate, a minute; KEEP=1 leaves tests/cost/table.json
	@$(BIN)/python -m tests.cost $(if $(KEEP),--keep)

docs: ## build the documentation site in build/docs/site; a broken link is a failure
	@.ci/docs $(PYTHON)

release: $(READY) ## build wheel, sdist, chart and SBOMs in build/release, twice; fails if a byte differs
	@.ci/release "$(CURDIR)/$(BIN)/python" "$(CURDIR)/build/release"

LOCKED := --quiet --generate-hashes --strip-extras --allow-unsafe \
	--no-emit-index-url --no-emit-find-links --no-emit-trusted-host

lock: $(READY) ## write requirements.lock and those in deploy/ from pyproject.toml
	@$(BIN)/pip-compile $(LOCKED) --extra dev --output-file requirements.lock pyproject.toml
	@$(BIN)/pip-compile $(LOCKED) --constraint requirements.lock --build-deps-for wheel \
		--output-file deploy/requirements.lock pyproject.toml
	@$(BIN)/pip-compile $(LOCKED) --constraint requirements.lock --build-deps-for wheel \
		--extra aws --extra otel --extra sql --output-file deploy/extras.lock pyproject.toml
	@$(BIN)/pip-compile $(LOCKED) --output-file .ci/docs.lock .ci/docs.in

clean: ## remove .venv and all caches, but not .devstack
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	@find . -name __pycache__ -type d -not -path './.devstack/*' -prune -exec rm -rf {} +
