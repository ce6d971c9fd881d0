# Everything a newcomer or CI types. `make` alone lists it.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help install demo demo-heal test test-fast test-clocks explore check format compatibility bench bench-kubernetes placement-study soak soak-detectors soak-real gpu-test diagnose-score clean

help: ## list these targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Bireme needs Python 3.11 or newer: make PYTHON=python3.12 ..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing Bireme into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.installed
	@echo "installing the test tools ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

install: $(VENV)/.installed ## make the virtual environment and install Bireme into it

demo: $(VENV)/.installed ## eight virtual nodes x eight GPUs on this machine, real jobs, under a minute
	@$(BIN)/python examples/demo.py

demo-heal: $(VENV)/.installed ## a node dies under a gang, which runs again from its checkpoint by itself, in half a minute
	@$(BIN)/python examples/heal_demo.py

test: $(VENV)/.dev ## install what the tests need, then run all of them
	@$(BIN)/python -m tests.prepare
	@$(BIN)/python -m tests.suite $(if $(AGAIN),--again)

test-fast: $(VENV)/.dev ## the tests that need no daemon
	@$(BIN)/python -m pytest tests/unit tests/scenarios tests/properties tests/tidy

test-clocks: $(VENV)/.dev ## as root: the tests at midnight, at the end of a month, when summer time begins and ends
	@$(BIN)/python -m tests.clocks

explore: $(VENV)/.dev ## the properties, each time with other examples (make test has fixed ones)
	@HYPOTHESIS_PROFILE=explore $(BIN)/python -m pytest tests/properties tests/unit

check: $(VENV)/.dev ## ruff, mypy, import contracts, tidy tests
	@$(BIN)/ruff check src tests examples bench deploy
	@$(BIN)/ruff format --check src tests examples bench deploy
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m pytest -q tests/tidy

format: $(VENV)/.dev ## format the code
	@$(BIN)/ruff check --fix-only --quiet src tests examples bench deploy
	@$(BIN)/ruff format src tests examples bench deploy

compatibility: $(VENV)/.dev ## compare with a real Slurm (root on Debian), write COMPATIBILITY.md
	@$(BIN)/python -m tests.prepare
	@$(BIN)/python -m tests.oracle --out tests/oracle/measured.json
	@$(BIN)/python -m tests.oracle.compatibility > COMPATIBILITY.md

bench: $(VENV)/.dev ## measure; prints a table, writes bench-results/
	@$(BIN)/python -m bench

bench-kubernetes: $(VENV)/.dev ## place the same pods with kube-scheduler and with Bireme, on a thousand fake nodes
	@$(BIN)/python -m tests.prepare
	@$(BIN)/python -m bench.kubernetes

soak: $(VENV)/.installed ## fault worlds without end (or SECONDS=600): the real kernel, and everything that can go wrong
	@$(BIN)/python -m bireme sim soak $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--first $(SEED))

soak-detectors: $(VENV)/.dev ## plant bugs one after the other, and count the fault worlds that each needs to be found
	@$(BIN)/python -m tests.simulation.planted

soak-real: $(VENV)/.dev ## real daemons, agents and jobs, killed at random (SECONDS=600 or KILLS=500, SEED=1): no loss, no double, no stray
	@$(BIN)/python -m tests.soak_real $(if $(SECONDS),--seconds $(SECONDS)) $(if $(KILLS),--kills $(KILLS)) $(if $(SEED),--seed $(SEED))

OPENB ?= ../shared/data/openb
placement-study: $(VENV)/.dev ## seven placement policies on six openb lists, ten seeds each (docs/placement.md); ~15 min
	@test -d $(OPENB) || { echo "$(OPENB) is not there: make placement-study OPENB=FOLDER, with Alibaba's openb lists (docs/placement.md)"; exit 1; }
	@$(BIN)/bireme sim placement $(OPENB)/openb_node_list_gpu_node.csv $(OPENB)/openb_pod_list_*.csv.gz \
	  --published $(OPENB)_expected/fgd_summary_by_policy.csv --processes 2

gpu-test: $(if $(BIREME_NO_INSTALL),,$(VENV)/.dev) ## on a machine with an NVIDIA GPU: discovery, binding, confinement, torchrun
	@$(if $(BIREME_NO_INSTALL),$(PYTHON),$(BIN)/python) -m pytest -v -m gpu tests/gpu

diagnose-score: $(VENV)/.dev ## the rules of bireme diagnose against failures of public issues: a confusion table
	@$(BIN)/python -m tests.diagnosis.score

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis bench-results
