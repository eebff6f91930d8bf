# Every target makes the environment it needs: python3, pip and make are all a fresh machine must have.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo demo-federated bench test fuzz check clean

demo: .venv/.core
	$(BIN)/fahmc demo

demo-federated: .venv/.flare
	$(BIN)/fahmc demo --federated

bench: .venv/.bench
	$(BIN)/fahmc bench

test: .venv/.dev
	$(BIN)/python -m pytest -n 3 --dist loadgroup

fuzz: .venv/.dev
	$(BIN)/python tests/fuzz

check: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

.venv/.core: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

.venv/.dev: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch .venv/.core $@

.venv/.flare: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[flare]'
	touch .venv/.core $@

.venv/.bench: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[bench]'
	touch .venv/.core $@

clean:
	rm -rf .venv build dist
