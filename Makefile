# Every target makes the environment it needs: python3, pip and make are all a fresh machine must have.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help demo demo-federated docs bench test fuzz chaos mutants check clean

help:  ## this list
	@awk -F ':.*  ## ' '/^[a-z-]+:.*  ## / {printf "make %-15s %s\n", $$1, $$2}' Makefile

demo: .venv/.core  ## the embedded trial: draws, figures and report in half a minute
	$(BIN)/fahmc demo

demo-federated: .venv/.flare  ## the same with a process for each clinic, over mutual TLS
	$(BIN)/fahmc demo --federated

docs: .venv/.docs  ## the documentation in site/, to open site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

bench: .venv/.bench  ## how fast it is here, against PyTorch, BlackJAX and NumPyro
	$(BIN)/fahmc bench

test: .venv/.dev  ## all tests, real federations among them
	$(BIN)/python -m pytest -n 3 --dist loadgroup --no-loadscope-reorder

fuzz: .venv/.dev  ## tens of thousands of mutated inputs
	$(BIN)/python tests/fuzz

chaos: .venv/.dev  ## faults done to real federations
	$(BIN)/python tests/chaos

mutants: .venv/.dev  ## breakages that the tests must notice
	$(BIN)/python tests/mutants

check: .venv/.dev  ## ruff, pyright, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

# The mark of an environment that has fahmc with an extra, or, of .core, without one.
.venv/.%: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.$(patsubst [core],,[$*])'
	touch .venv/.core $@

clean:  ## remove .venv and what was built
	rm -rf .venv build dist site
