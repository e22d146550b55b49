# Each target does its own set-up: Python 3.11+ and make are all that a machine needs.
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.installed
BIN := $(VENV)/bin

.PHONY: help install demo test test-services lint types imports check chaos bench api-fuzz audit clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 16

install: $(STAMP)  ## make .venv and install Assay from pinned versions

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Assay needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(STAMP)

demo: $(STAMP)  ## evaluate a new model end to end, in about a minute
	@$(BIN)/assay demo

test: $(STAMP)  ## tests that need no server and no network
	@OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal -m 'not services and not browser'  # a thread a process

test-services: $(STAMP)  ## tests against PostgreSQL, Redis and Chromium (starts what is not running)
	@bash .ci/services
	@$(BIN)/pytest -m services
	@$(BIN)/pytest -m browser  # apart: the browser keeps an event loop running in its process

lint: $(STAMP)  ## ruff
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(STAMP)  ## mypy --strict on our packages
	@$(BIN)/mypy

imports: $(STAMP)  ## import directions
	@$(BIN)/lint-imports

check: test lint types imports  ## what CI runs without servers

chaos: $(STAMP)  ## kill -9 and outages at random moments: SQLite, PostgreSQL, and servers that fail as well
	@$(BIN)/python -m benchmarks.chaos

audit: $(STAMP)  ## dependencies with known vulnerabilities (needs the network)
	@$(BIN)/pip install -q --disable-pip-version-check pip-audit
	@$(BIN)/pip-audit -r constraints.txt --no-deps --disable-pip

api-fuzz: $(STAMP)  ## call every route of the REST API in more than 5,000 ways (schemathesis)
	@$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt schemathesis
	@$(BIN)/python -m benchmarks.api_fuzz

bench: $(STAMP)  ## measure speed and write docs/benchmarks.md
	@$(BIN)/python -m benchmarks.run

clean:  ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis build *.egg-info
