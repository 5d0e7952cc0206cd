# Each target sets up what it needs: a virtual environment in .venv, with the exact versions in constraints.txt.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help demo test lint format clean

help: ## Show this help
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

demo: .venv/examples.installed ## Train on two bouncing balls, print a table, write two_balls.png
	$(BIN)/python examples/two_balls.py --output two_balls.png

test: .venv/test.installed .venv/examples.installed ## Run the tests
	$(BIN)/python -m pytest

lint: .venv/lint.installed ## Check style, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/lint.installed ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove the virtual environment and caches
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/%.installed: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$*]'
	touch $@
