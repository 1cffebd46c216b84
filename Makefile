# Everything sets itself up from nothing: only python3 (3.11 or newer) and make are needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BASE := $(VENV)/.base-installed
DEV := $(VENV)/.dev-installed
EXPORT_VENV := .venv-export
EXPORT := $(EXPORT_VENV)/.installed
DOCS_VENV := .venv-docs
DOCS := $(DOCS_VENV)/.installed
OLDER := $(EXPORT_VENV)/older-transformers
WORKERS := -n 2 --dist loadgroup --no-loadscope-reorder
PATHS := engine stages export_tools tests bench

.PHONY: help setup demo test test-export unit soak faults check format docs bench clean

help:
	@echo "make demo    a real model in two shards answers four prompts on this machine"
	@echo "make test    static checks and all tests, with a real broker and the real model (minutes)"
	@echo "make test-export  small models of every family through optimum-intel; its own environment (6 GB, minutes)"
	@echo "make unit    tests of single parts, without broker and model (seconds)"
	@echo "make faults  all fault tests twenty times each (hours); COUNT=1 for once (a quarter of an hour)"
	@echo "make soak    ten minutes of mixed load on real processes, memory watched; MINUTES=60 for longer"
	@echo "make check   formatting, lint, spelling, types"
	@echo "make docs    the documentation as a site in build/site"
	@echo "make bench   measures everything and writes bench/results/REPORT.md (two hours; wants an idle machine); QUICK=1: minutes"

setup: $(BASE)

$(BASE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("shardline needs Python 3.11 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing shardline into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(DEV): $(BASE)
	@echo "installing the development tools into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(BASE)
	@$(BIN)/shardline demo

check: $(DEV)
	$(BIN)/ruff format --check $(PATHS)
	$(BIN)/ruff check $(PATHS)
	$(BIN)/codespell README.md CHANGELOG.md docs deploy $(PATHS)
	$(BIN)/pyright

format: $(DEV)
	$(BIN)/ruff format $(PATHS)
	$(BIN)/ruff check --fix $(PATHS)

unit: $(DEV)
	$(BIN)/python -m pytest $(WORKERS) -m 'not broker and not model and not faults and not pipelines'

faults: $(DEV)
	PYTEST_PYTHON=$(BIN)/python tests/faults/repeat.sh

soak: $(DEV)
	SHARDLINE_SOAK_MINUTES=$(or $(MINUTES),10) $(BIN)/python -m pytest tests/system/test_mixed_load.py

test: check
	$(BIN)/python -m pytest $(WORKERS) --durations=25 -m 'not thorough'

$(EXPORT): pyproject.toml
	@test -x $(EXPORT_VENV)/bin/python || $(PYTHON) -m venv $(EXPORT_VENV)
	@echo "installing torch and optimum-intel into $(EXPORT_VENV) (6 GB)"
	@$(EXPORT_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev,export]'
	@$(EXPORT_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(OLDER) 'transformers==5.0.*'
	@touch $@

test-export: $(EXPORT)
	SHARDLINE_OLDER_TRANSFORMERS=$(abspath $(OLDER)) $(EXPORT_VENV)/bin/python -m pytest -m export tests/families

$(DOCS): pyproject.toml
	@test -x $(DOCS_VENV)/bin/python || $(PYTHON) -m venv $(DOCS_VENV)
	@$(DOCS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check 'mkdocs-material>=9.6,<10'
	@touch $@

docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --strict --quiet
	@echo "build/site/index.html"

bench: $(DEV)
	$(BIN)/python -m bench.all $(if $(QUICK),--quick)

clean:
	rm -rf $(VENV) $(EXPORT_VENV) $(DOCS_VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
