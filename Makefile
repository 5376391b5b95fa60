# Two commands do all the set-up: `make tour` (numpy-sized) and `make test` (with the extras).
# PYTHON=python3.12 make … sets .venv up with that Python.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
APART := .venv-apart
# The versions that tests and linters are run with on the Python of .venv, or of $(PYTHON) where there is none yet.
PINNED = constraints/py$(shell $$(test -x $(BIN)/python && echo $(BIN)/python || echo $(PYTHON)) -c \
	'import sys; print("%d.%d" % sys.version_info[:2])').txt

.PHONY: tour test test-all bench docs flax frontend lint constraints lowest clean

tour: $(VENV)/base
	$(BIN)/meshwright tour

test: $(VENV)/dev lint
	$(BIN)/python -m pytest -n 2 -m "not slow"

test-all: $(VENV)/dev lint
	$(BIN)/python -m pytest -n 2

bench: $(VENV)/dev
	for file in benchmarks/bench_*.py; do $(BIN)/python $$file || exit 1; done

# The book as a static site, build/site/index.html, in a virtual environment of its own
docs:
	rm -rf $(APART)
	$(PYTHON) -m venv $(APART)
	$(APART)/bin/python -m pip install --quiet --constraint $(PINNED) --editable ".[docs]"
	$(APART)/bin/python docs/site.py build/book
	$(APART)/bin/sphinx-build --quiet --fail-on-warning --conf-dir docs build/book build/site
	rm -rf $(APART)

# The page that compiled.report() writes, built from its sources: needs Node.js and npm
frontend:
	npm ci --prefix frontend --no-audit --no-fund
	npm run check --prefix frontend
	npm run build --prefix frontend

# A training loop of flax and optax with one word changed, models of flax and equinox read by from_jax, and one of flax and
# optax run by run-jax as it is, in a virtual environment of their own
flax:
	rm -rf $(APART)
	$(PYTHON) -m venv $(APART)
	$(APART)/bin/python -m pip install --quiet --constraint $(PINNED) ".[jax]" flax optax equinox pytest hypothesis
	$(APART)/bin/python -m pytest tests/interop/test_from_jax_libraries.py tests/models/test_jax_scripts.py \
		tests/models/test_jax_models_read.py -k "libraries or flax"
	$(APART)/bin/python benchmarks/bench_flax.py
	rm -rf $(APART)

lint: $(VENV)/dev
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/mypy

# The newest versions for this Python, written down (docs/versions.md)
constraints:
	rm -rf $(APART)
	$(PYTHON) -m venv $(APART)
	$(APART)/bin/python -m pip install --quiet ".[jax,dev,docs]"
	$(APART)/bin/python -m pip freeze --exclude meshwright > $(APART)/versions
	mkdir -p constraints
	cp $(APART)/versions constraints/py$$($(APART)/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])').txt
	rm -rf $(APART)

# The package alone, without JAX, on the lowest versions that it declares
lowest:
	rm -rf $(APART)
	$(PYTHON) -m venv $(APART)
	$(APART)/bin/python -m pip install --quiet pytest hypothesis safetensors $$($(APART)/bin/python tests/lowest.py)
	$(APART)/bin/python -m pip install --quiet --no-deps --editable .
	$(APART)/bin/python -m pip check
	$(APART)/bin/meshwright tour
	$(APART)/bin/python -m pytest -m "not slow" --ignore tests/tour/test_seed_001_texts.py \
		tests/tour tests/errors tests/arrays tests/propagate/test_run.py
	rm -rf $(APART)

clean:
	rm -rf $(VENV) $(APART)

$(VENV)/base: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/dev: pyproject.toml $(wildcard constraints/*.txt)
	@test -f $(PINNED) || { echo "There is no $(PINNED): PYTHON=python3.13 make test, or make constraints"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint $(PINNED) --editable ".[jax,dev]"
	touch $(VENV)/base $@
