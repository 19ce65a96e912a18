# make demo   trains the dummy drone in real time and proves it; on a fresh machine it installs first
# make test   checks and tests, as CI does
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -c constraints.txt

.PHONY: help install demo test check test-long learn chaos mutants docs clean distclean

help:
	@echo "make demo       install what is needed, train the drone, prove that it learned (10 minutes at most)"
	@echo "make install    .venv with everything for development"
	@echo "make test       lint, types, docs, tests"
	@echo "make check      the same without the tests"
	@echo "make test-long  tests that take minutes of real time"
	@echo "make learn      agents must solve their tasks (an hour and a half)"
	@echo "make chaos      parts are killed, frozen and cut hundreds of times (an hour)"
	@echo "make mutants    code is broken on purpose, to find what no test notices (half an hour)"
	@echo "make docs       the documentation, in docs/_build/html"
	@echo "make clean      remove what was built; make distclean also removes .venv"

install: $(VENV)/.installed

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "$(PYTHON) is too old: Python 3.11 or newer is needed (make PYTHON=python3.11 ...)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) -e '.[plot,fast]'
	touch $@

$(VENV)/.installed: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) -e '.[test,dev,docs,plot,fast,tensorboard,mujoco,box2d,vizdoom,desktop,carla,onnx,engine,page,sb3]'
	touch $(VENV)/.demo $@

demo: $(VENV)/.demo
	$(BIN)/tmrl-like run config/drone.yaml --proof

check: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@if [ -f docs/conf.py ]; then $(MAKE) --no-print-directory docs; fi

test: check
	$(BIN)/pytest -n 2 --dist worksteal

test-long: $(VENV)/.installed
	$(BIN)/pytest -m long

learn: $(VENV)/.installed
	$(BIN)/pytest -m learn

chaos: $(VENV)/.installed
	$(BIN)/pytest -m chaos

# MUTANTS='--per-module 0': all of them; MUTANTS=relay: of one module; see tests/mutants.py --help
mutants: $(VENV)/.installed
	$(BIN)/python tests/mutants.py $(MUTANTS)

docs: $(VENV)/.installed
	$(BIN)/sphinx-build -W -q docs docs/_build/html

clean:
	rm -rf build dist mutants docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
	find tmrl_like tests tutorials -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
