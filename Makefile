# Everything from a bare checkout: Python 3.11 or newer and make are all that is needed.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
DEMO ?= demo-report

.PHONY: demo test check soak docs bench bench-peers clean

demo: $(VENV)/.demo ## FedBalancer against FedAvg and Prox on real smartwatch data, eight seeds; prints where the report is
	$(BIN)/fedbalancer compare --out $(DEMO) --overwrite

test: $(VENV)/.dev ## lint, types and all tests
	BIN=$(BIN) scripts/check

soak: $(VENV)/.dev ## the long checks: kills and resumes, random compositions, all Flower faults, kernels under sanitizers
	$(BIN)/pytest -m soak -n 0 --timeout 7200 tests

docs: $(VENV)/.dev ## the site, into site/; fetches nothing, and a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --site-dir site
	@echo "open site/index.html, or with its search: $(BIN)/python -m http.server -d site"

bench: $(VENV)/.dev ## ratios against named alternatives
	$(BIN)/python benchmarks/algorithms.py
	$(BIN)/python benchmarks/scale.py
	$(BIN)/fedbalancer bench

bench-peers: $(VENV)/.dev ## the same training in Flower and pfl-research, which it installs apart: half an hour
	$(BIN)/python benchmarks/peers/run.py

clean:
	rm -rf $(VENV) $(DEMO) site .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Installed once; again only when the list of dependencies changes.
$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[torch,demo]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[torch,demo,dev]'
	@touch $@ $(VENV)/.demo
