# Two commands do all the set-up: `make tour` (numpy-sized) and `make test` (with the extras).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: tour test test-all bench lint clean

tour: $(VENV)/base
	$(BIN)/meshwright tour

test: $(VENV)/dev lint
	$(BIN)/python -m pytest -n 2 -m "not slow"

test-all: $(VENV)/dev lint
	$(BIN)/python -m pytest -n 2

bench: $(VENV)/dev
	for file in benchmarks/bench_*.py; do $(BIN)/python $$file || exit 1; done

lint: $(VENV)/dev
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/mypy

clean:
	rm -rf $(VENV)

$(VENV)/base: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/dev: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable ".[jax,dev]"
	touch $(VENV)/base $@
