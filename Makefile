# make audit: audit this machine.  make test: run every test.  Both do all set-up themselves.
SHELL := /bin/bash
MAKEFLAGS += --no-print-directory
VENV := .venv
BIN := $(VENV)/bin
PYTHON := $(shell for p in python3.13 python3.12 python3.11 python3; do \
	command -v $$p >/dev/null && $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' 2>/dev/null && echo $$p && break; done)
PIP := $(BIN)/python -m pip --disable-pip-version-check
export PATH := $(CURDIR)/$(BIN):$(PATH)
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg
# Two workers, one of them for the test VM until that is done (tests/conftest.py): as many cores as they need.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadscope --no-loadscope-reorder

.PHONY: audit test test-long lint bench probe lab-image clean help

help:
	@echo 'make audit      audit this machine (read-only); ARGS="..." goes to ansible-playbook'
	@echo 'make test       all tests'
	@echo 'make test-long  the tests that take long as well'
	@echo 'make lint       ruff, mypy, ansible-lint'
	@echo 'make bench      timings; exits 1 on a missed ratio'
	@echo 'make probe      a short latency probe of this CPU; ARGS="..." goes to hostcheck probe'
	@echo 'make lab-image  the test VM'

$(BIN)/python:
	@if [ -z "$(PYTHON)" ]; then \
		echo 'hostcheck needs Python 3.11 or newer. On Debian 12/13 or Ubuntu 24.04: sudo apt install python3 python3-venv' >&2; exit 2; fi
	@if ! $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null; then \
		echo "$(PYTHON) has no venv. On Debian or Ubuntu: sudo apt install python3-venv" >&2; exit 2; fi
	@echo "set-up: making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 2; }

$(VENV)/.ready: pyproject.toml | $(BIN)/python
	@echo 'set-up: installing what the audit needs (about a minute)'
	@$(PIP) install --progress-bar off -e . | sed -u -n 's/^Collecting \([^ ]*\).*/set-up:   \1/p; s/^\(Successfully\)/set-up: \1/p'; exit $${PIPESTATUS[0]}
	@touch $@

$(VENV)/.ready-test: pyproject.toml | $(BIN)/python
	@echo 'set-up: installing what the tests need (some minutes)'
	@$(PIP) install --progress-bar off -e '.[test]' | sed -u -n 's/^Collecting \([^ ]*\).*/set-up:   \1/p; s/^\(Successfully\)/set-up: \1/p'; exit $${PIPESTATUS[0]}
	@touch $@ $(VENV)/.ready

audit: $(VENV)/.ready
	@before=$$(readlink reports/latest); ansible-playbook playbooks/audit.yml $(ARGS); \
	if [ "$$(readlink reports/latest)" = "$$before" ]; then echo 'audit: 2'; exit 2; fi; \
	hostcheck report --code reports/latest

test: $(VENV)/.ready-test
	@$(PYTEST) -m 'not long' $(ARGS)

test-long: $(VENV)/.ready-test
	@$(PYTEST) $(ARGS)

lint: $(VENV)/.ready-test
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/ansible-lint --offline --profile production playbooks roles inventory

lab-image: | $(BIN)/python
	@$(BIN)/python -m tests.lab.vm.build

probe: $(VENV)/.ready-test
	@hostcheck probe --device cpu --quick $(ARGS)

bench: $(VENV)/.ready-test
	@status=0; for one in gather log probe verdict trial; do echo "== $$one"; $(BIN)/python -m tests.bench.bench_$$one || status=1; done; exit $$status

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build *.egg-info
