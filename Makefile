# Each target sets up what it needs: a virtual environment in .venv (.venv-bench for the benchmarks, which bring in other
# people's packages), with the exact versions in constraints.txt; .venv-oldest and .venv-newest, with those in
# constraints-oldest.txt and constraints-newest.txt.
PYTHON ?= python3
PYTHON_OLDEST ?= python3.10
PYTHON_NEWEST ?= python3.13
BIN := .venv/bin
# glibc keeps what is freed, instead of giving large blocks back to the system at every step (see benchmarks/README.md).
KEEP_MEMORY := MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=4294967296

# Two processes, each with a thread of its own; PROCESSES=0 for one that a debugger can be attached to.
PROCESSES ?= 2
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(PROCESSES) --dist worksteal

.PHONY: help demo demo-balls test test-fast coverage test-oldest test-newest docs tutorials soak fuzz bench experiments lint format clean

help: ## Show this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 13

demo: .venv/examples.installed ## Fill a table of hourly sensors with outages: demo/filled.csv, scores, a picture, demo/report.html
	OMP_NUM_THREADS=1 $(BIN)/python examples/sensor_table.py --output demo

demo-balls: .venv/examples.installed ## Train on two bouncing balls, print a table, write two_balls.png
	$(BIN)/python examples/two_balls.py --output two_balls.png

test: .venv/test.installed .venv/examples.installed .venv/integrations.installed .venv/table.installed .venv/tutorials.installed ## Run the tests
	$(PYTEST)

test-fast: .venv/test.installed .venv/examples.installed .venv/integrations.installed .venv/table.installed .venv/tutorials.installed ## Run the tests that are not slow, in about two minutes
	$(PYTEST) -m "not slow"

coverage: .venv/test.installed .venv/examples.installed .venv/integrations.installed .venv/table.installed .venv/tutorials.installed ## Run the tests, and measure what they run of the package: htmlcov/index.html
	$(PYTEST) --cov --cov-report=term --cov-report=html

test-oldest: .venv-oldest/test.installed ## Run the tests with the lower bounds of pyproject.toml; downloads several GB
	.venv-oldest/bin/python -m pytest

test-newest: .venv-newest/test.installed ## Run the tests with the newest releases; downloads several GB
	.venv-newest/bin/python -m pytest

docs: .venv/docs.installed ## Build the documentation in docs/_build/html; a warning is an error
	$(BIN)/python -m sphinx --conf-dir docs --fresh-env --fail-on-warning --keep-going --quiet . docs/_build/html
	@echo "Open docs/_build/html/index.html."

NOTEBOOKS ?=
tutorials: .venv/tutorials.installed ## Run the notebooks at full length and keep their outputs: make tutorials NOTEBOOKS="02 08"
	$(BIN)/python tutorials/run.py $(NOTEBOOKS)

soak: .venv/test.installed .venv/table.installed ## Kill training and commands, fill up disks, let writers race, flip bits: nothing may be lost
	$(BIN)/python tests/soak.py --kills 24

FUZZ ?= 20000
fuzz: .venv/test.installed ## Try the properties in tests/fuzz on random tasks for hours: make fuzz FUZZ=500 for minutes
	SGPVAE_FUZZ=$(FUZZ) $(BIN)/python -m pytest tests/fuzz

bench: .venv-bench/bench.installed ## Measure speed and memory beside the real peers, write benchmarks/results
	$(KEEP_MEMORY) .venv-bench/bin/python -m benchmarks
	.venv-bench/bin/python -m benchmarks shapes growth --output benchmarks/results/default-allocator

EXPERIMENT ?= report
experiments: .venv-bench/bench.installed ## One of the paper's experiments: make experiments EXPERIMENT="jura --model gpar"
	.venv-bench/bin/python -m experiments $(EXPERIMENT)

lint: .venv/lint.installed ## Check style, formatting and types, these also as on Windows
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --platform win32 --cache-dir .mypy_cache/win32

format: .venv/lint.installed ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove the virtual environments and caches
	rm -rf .venv .venv-bench .venv-oldest .venv-newest docs/_build build dist htmlcov .coverage *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

.venv-oldest/bin/python: PYTHON := $(PYTHON_OLDEST)
.venv-newest/bin/python: PYTHON := $(PYTHON_NEWEST)
.venv/bin/python .venv-bench/bin/python .venv-oldest/bin/python .venv-newest/bin/python: %/bin/python:
	$(PYTHON) -m venv $*

.venv/%.installed: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$*]'
	touch $@

.venv-oldest/test.installed .venv-newest/test.installed: .venv-%/test.installed: .venv-%/bin/python pyproject.toml constraints-%.txt
	.venv-$*/bin/python -m pip install --quiet --constraint constraints-$*.txt --editable '.[test,examples,table,tutorials]'
	touch $@

.venv-bench/bench.installed: .venv-bench/bin/python pyproject.toml constraints.txt benchmarks/peers.txt
	.venv-bench/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[datasets,examples,train]' \
		--requirement benchmarks/peers.txt
	touch $@
