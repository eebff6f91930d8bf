# Every target makes the environment it needs: python3, pip and make are all a fresh machine must have.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo demo-federated bench test fuzz chaos mutants check clean

demo: .venv/.core
	$(BIN)/fahmc demo

demo-federated: .venv/.flare
	$(BIN)/fahmc demo --federated

bench: .venv/.bench
	$(BIN)/fahmc bench

test: .venv/.dev
	$(BIN)/python -m pytest -n 3 --dist loadgroup

# Tens of thousands of mutated inputs; faults done to real federations; breakages that the tests must notice.
fuzz: .venv/.dev
	$(BIN)/python tests/fuzz

chaos: .venv/.dev
	$(BIN)/python tests/chaos

mutants: .venv/.dev
	$(BIN)/python tests/mutants

check: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

# The mark of an environment that has fahmc with an extra, or, of .core, without one.
.venv/.%: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.$(patsubst [core],,[$*])'
	touch .venv/.core $@

clean:
	rm -rf .venv build dist
