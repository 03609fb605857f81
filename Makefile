# Two commands matter: `make run` (a short night on the embedded model) and `make test`.

PYTHON ?= python3
JOBS ?= 2
# Tests of the loop wait for processes a part of their time, so a worker more than cores is quicker.
WAITING ?= $(or $(shell expr $(JOBS) + 1 2>/dev/null),$(JOBS))
VENV := .venv
BIN := $(VENV)/bin
# Files go whole to a worker: what its tests share is made once. The short files come last.
SPREAD := --dist loadfile --no-loadscope-reorder
STAMP := $(VENV)/.installed
NIGHT := out/night-$(shell date -u +%Y%m%dT%H%M%SZ)

.PHONY: run test coverage lint type contracts levers clean

run: $(STAMP)
	@mkdir -p $(NIGHT)
	$(BIN)/flywheel run --quick --ledger $(NIGHT)/ledger.db
	@$(BIN)/flywheel report --ledger $(NIGHT)/ledger.db --html $(NIGHT)/report.html >/dev/null
	@echo "HTML report: $(NIGHT)/report.html"

# Tests start hundreds of programs, which would each compile every module anew without bytecode.
test coverage: export PYTHONDONTWRITEBYTECODE =

test: $(STAMP)
	@tests/browser
	$(BIN)/python -m pytest -n $(JOBS) $(SPREAD) tests/cpu tests/contract tests/gpu
	$(BIN)/python -m pytest -n $(WAITING) $(SPREAD) tests/faults tests/unit

# A report, at twice the time of what it watches.
coverage: $(STAMP)
	$(BIN)/python -m pytest -n $(WAITING) $(SPREAD) --cov=flywheel --cov-report=term:skip-covered tests/faults tests/unit

lint: $(STAMP)
	$(BIN)/ruff check .

type: $(STAMP)
	$(BIN)/mypy

contracts: $(STAMP)
	$(BIN)/lint-imports

# Most of what is installed is never imported: modules are compiled when they are.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(STAMP)

clean:
	rm -rf $(VENV) out runs build .pytest_cache .mypy_cache .ruff_cache
