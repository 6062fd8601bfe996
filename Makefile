PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow lint format docs bench

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' Makefile

demo: $(VENV)/.demo  ## train, evaluate on finer meshes and draw the result into demo/
	$(BIN)/python examples/demo.py

test: $(VENV)/.dev  ## the default tests
	$(BIN)/python -m pytest

test-slow: $(VENV)/.dev  ## the tests that take minutes
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/.dev  ## ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(VENV)/.dev  ## let ruff rewrite what it can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(VENV)/.dev  ## the manual, into docs/_build/html
	$(BIN)/sphinx-build -q -E -W --keep-going -b html docs docs/_build/html

bench: $(VENV)/.dev  ## every script of benchmarks/
	set -e; for script in benchmarks/[!_]*.py; do echo "== $$script"; $(BIN)/python "$$script"; done

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# One stamp an environment: pip runs again only when what it reads has changed.
$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[data,plot]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[dev]'
	@touch $@
