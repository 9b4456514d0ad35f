# Everything a person types. `make help` lists it.
SHELL := /bin/bash
PORT ?= 8000
SCENES ?= 20000
# The first Python that is new enough.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	command -v $$p >/dev/null && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' && echo $$p && break; done)
PY := .venv/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --quiet
# The checks run as a site in production would.
PRODUCTION := SECRET_KEY=made-for-the-check-only-0123456789-abcdefghijklmnopqrstuvwxyz ALLOWED_HOSTS=switchyard.example

.PHONY: help up test test-kubernetes slurm-demo check fuzz format lock clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 12

up: .venv/run.stamp ## run everything at http://127.0.0.1:8000 until Ctrl-C (PORT=8123 for another port)
	@exec $(PY) -m scheduler_site.up --port $(PORT)

test: .venv/dev.stamp ## the whole test suite on a throw-away PostgreSQL (ARGS="-k word" to choose)
	$(PY) -m pytest -n auto $(ARGS)

test-kubernetes: .venv/dev.stamp ## what the double of Kubernetes is held against, asked of the cluster that KUBECONFIG names
	@test -n "$$KUBECONFIG" || { echo "KUBECONFIG must name a cluster; a namespace is made there and removed." >&2; exit 1; }
	$(PY) -m pytest apps/execution/tests/test_kubernetes_sequences.py $(ARGS)

slurm-demo: .venv/run.stamp ## a real Slurm of 8 nodes, connected, and a gang on it (root; ARGS=--once ends after that)
	@exec $(PY) -m scripts.slurm_demo --port $(PORT) $(ARGS)

check: .venv/dev.stamp ## format, lint, types, import contracts, migrations, deployment settings
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy .
	.venv/bin/lint-imports
	$(PY) -W ignore::RuntimeWarning manage.py makemigrations --check --dry-run
	$(PRODUCTION) $(PY) manage.py check --deploy --fail-level WARNING

fuzz: .venv/dev.stamp ## random scenes against the planner for as long as you like (SCENES=20000 a property)
	SWITCHYARD_SCENES=$(SCENES) $(PY) -m pytest -n auto apps/scheduling/engine/tests/test_invariants.py apps/simulation/tests/test_invariants.py

format: .venv/dev.stamp ## put the code in shape
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

lock: .venv/dev.stamp ## pin the whole tree of requirements again, with hashes
	$(PIP) install uv
	$(PY) -m uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header $(UPGRADE) -o requirements.txt requirements.in
	$(PY) -m uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header $(UPGRADE) -c requirements.txt -o requirements-dev.txt requirements-dev.in

clean: ## remove caches (var/ and .venv stay)
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "Switchyard needs Python 3.11 or later; none was found (PYTHON=/path/to/python3 names one)." >&2; exit 1; }
	@echo "making .venv with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv .venv || { rm -rf .venv; echo "This Python cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }

.venv/run.stamp: requirements.txt | .venv/bin/python
	@echo "installing requirements.txt"
	@$(PIP) install --require-hashes -r requirements.txt
	@touch $@

.venv/dev.stamp: requirements-dev.txt | .venv/bin/python
	@echo "installing requirements-dev.txt"
	@$(PIP) install --require-hashes -r requirements-dev.txt
	@touch $@
