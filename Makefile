# Everything from a bare checkout: Python 3.11 or newer and make are all that is needed.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
DEMO ?= demo-report

.PHONY: demo test check soak docs bench bench-peers clean

demo: $(VENV)/.demo ## FedBalancer against FedAvg and Prox on real smartwatch data, eight seeds; prints where the report is
	$(BIN)/fedbalancer compare --out $(DEMO) --overwrite

test: $(VENV)/.dev ## lint, types and all quick tests
	BIN=$(BIN) scripts/check

soak: $(VENV)/.dev ## the long checks: kills and resumes, fuzzing, compositions, sanitizers, attacks; then all Flower faults
	BIN=$(BIN) scripts/soak

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
	@echo 'Making a virtual environment in $(VENV)'
	$(PYTHON) -m venv $(VENV)

# Installed once; again only when the list of dependencies changes. pip says what it fetches, how large and how far.
$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	@echo 'Installing once into $(VENV), about 1.4 GB: torch .75 (its CPU build; that for CUDA 5.8), polars .2, scipy .15,'
	@echo 'matplotlib, NumPy, and seglearn with scikit-learn for the recordings. All of these the demo uses.'
	$(PIP) -e '.[torch,demo]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --quiet -e '.[torch,demo,dev]'
	@touch $@ $(VENV)/.demo
