# Two commands: `make quickstart` trains, `make test` tests. Each sets up what it needs on a fresh
# clone. Plain pip in a virtual environment; nothing outside this folder and educe's cache is touched.
#
#   make test PYTHON=python3.12                  another interpreter (3.11 to 3.13)
#   make quickstart TORCH_INDEX=URL              an index of CPU wheels of torch (smaller)

VENV ?= .venv
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null \
	&& echo $$p && break; done)
TORCH_INDEX ?=
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check \
	--constraint requirements/lock.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
# Typed strictly: the layers that everything else stands on, and what checks recipes.
TYPED := $(wildcard $(addprefix src/educe/,core config parallel algorithms rewards sandbox \
	scheduling observability native models serving preflight explain.py cli/main.py cli/explain.py \
	cli/serve.py))

.PHONY: quickstart test lint types docs setup setup-dev clean
.DEFAULT_GOAL := quickstart

quickstart: setup
	$(BIN)/educe quickstart

# One thread a test process: two pools of threads on two cores slow each other down.
test: lint types
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

lint: setup-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup-dev
	$(BIN)/mypy $(TYPED)

docs: setup
	$(BIN)/python -m educe.config.reference > docs/recipes.md

setup: $(VENV)/.installed
setup-dev: $(VENV)/.installed-dev

$(VENV)/.installed: pyproject.toml requirements/lock.txt
	@$(MAKE) --no-print-directory $(BIN)/python
	@echo "educe: installing into $(VENV): 1.5 GB on disk, about 0.4 GB to download with the CPU"
	@echo "educe: wheel of torch (TORCH_INDEX), about 3 GB with CUDA; one to ten minutes"
	@$(PIP_INSTALL) --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml requirements/lock.txt
	@$(MAKE) --no-print-directory $(VENV)/.installed
	@echo "educe: adding the tools of the tests: 60 MB; less than a minute"
	@$(PIP_INSTALL) --editable '.[dev]'
	@touch $@

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "educe: Python 3.11, 3.12 or 3.13 is needed; name one with" \
		"make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "educe: $(PYTHON) has no venv;" \
		"on Debian: apt-get install python3-venv" >&2; exit 1; }
	@$(PYTHON) -c 'import pathlib, shutil, sys, sysconfig; sys.exit(not (shutil.which("cc") and \
		pathlib.Path(sysconfig.get_path("include"), "Python.h").exists()))' || { \
		echo "educe: one dependency (pycosat, of reasoning-gym) is compiled: a C compiler and" \
		"Python's headers are needed; on Debian: apt-get install build-essential python3-dev" >&2; \
		exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
