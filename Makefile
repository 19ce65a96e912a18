# make demo   trains the dummy drone in real time and proves it; on a fresh machine it installs first
# make test   checks and tests, as CI does
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -c constraints.txt

# the tests with a screen need an X server without a monitor
APT := apt-get -o Acquire::Retries=3
SCREEN = command -v Xvfb >/dev/null || \
    { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && $(APT) update && $(APT) install -y --no-install-recommends xvfb; } || \
    echo "there is no Xvfb, so tests with a screen will be skipped: sudo apt-get install xvfb"

GAME = command -v supertux2 /usr/games/supertux2 >/dev/null || \
    { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && $(APT) update && \
        $(APT) install -y --no-install-recommends supertux; } || \
    echo "there is no SuperTux, so tests that play it will be skipped: sudo apt-get install --no-install-recommends supertux"

.PHONY: help install demo test check test-long learn chaos mutants docs audit release clean distclean

help:
	@echo "make demo       install what is needed, train the drone, prove that it learned (10 minutes at most)"
	@echo "make install    .venv with everything for development"
	@echo "make test       lint, types, docs, tests"
	@echo "make check      the same without the tests"
	@echo "make test-long  tests that take minutes of real time, and each benchmark for less than one"
	@echo "make learn      agents must solve their tasks (two hours)"
	@echo "make chaos      parts are killed, frozen and cut hundreds of times (an hour)"
	@echo "make mutants    code is broken on purpose, to find what no test notices (hours)"
	@echo "make docs       the documentation, in docs/_build/html"
	@echo "make audit      known holes in the versions of constraints.txt (asks PyPI's advisories)"
	@echo "make release    wheel, source, bill of materials and their hashes, in dist"
	@echo "make clean      remove what was built; make distclean also removes .venv"

install: $(VENV)/.installed

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "$(PYTHON) is too old: Python 3.11 or newer is needed (make PYTHON=python3.11 ...)"; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(VENV)/.demo: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) -e '.[plot,fast]'
	touch $@

$(VENV)/.installed: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) -e '.[test,dev,docs,plot,fast,tensorboard,mujoco,box2d,vizdoom,desktop,carla,onnx,engine,sb3]'
	@$(SCREEN)
	touch $(VENV)/.demo $@

demo: $(VENV)/.demo
	$(BIN)/tmrl-like run config/drone.yaml --proof

check: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@if [ -f docs/conf.py ]; then $(MAKE) --no-print-directory docs; fi

# three at a time even on two cores: many tests wait for a process
test: check
	$(BIN)/pytest -n 3 --dist worksteal

test-long: $(VENV)/.installed
	@$(GAME)
	$(BIN)/pytest -m long

learn: $(VENV)/.installed
	@$(GAME)
	$(BIN)/pytest -m learn

chaos: $(VENV)/.installed
	$(BIN)/pytest -m chaos

# MUTANTS='tmrl_like.server.relay*': those of one module; `mutmut show NAME` shows a mutant
mutants: $(VENV)/.installed
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/mutmut run $(MUTANTS)
	$(BIN)/mutmut results

docs: $(VENV)/.installed
	$(BIN)/sphinx-build -W -q docs docs/_build/html

# --strict: a package that cannot be looked up is a failure, not a pass
audit: $(BIN)/python
	$(PIP) pip-audit
	$(BIN)/pip-audit --strict --no-deps --disable-pip -r constraints.txt

# the same bytes from the same commit; the bill lists what a plain install of the wheel brings
release: $(BIN)/python
	rm -rf dist build/release
	$(PIP) build cyclonedx-bom
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) PIP_CONSTRAINT="$$PWD/constraints.txt" $(BIN)/python -m build -o dist
	$(BIN)/python -m venv build/release
	build/release/bin/python -m pip install -q -c constraints.txt dist/*.whl
	$(BIN)/cyclonedx-py environment build/release --pyproject pyproject.toml --output-reproducible -o dist/tmrl_like.cdx.json
	cd dist && $(abspath $(BIN))/python -c 'import hashlib, pathlib; [print(hashlib.sha256(f.read_bytes()).hexdigest(), "", f) \
	    for f in sorted(pathlib.Path().iterdir())]' > ../build/SHA256SUMS && mv ../build/SHA256SUMS .

clean:
	rm -rf build dist mutants docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
	find tmrl_like tests tutorials -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
