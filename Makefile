# Two commands to begin with: `make lab` and `make test`.
PYTHON ?= python3
SUBMISSIONS ?= autograde/sample_class
RESULTS ?= autograde/results
LAB_ARGS ?=

BIN := .venv/bin
# nbgrader calls `alembic` and `jupyter` by name.
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: lab build check test grade nbval mutate screenshots bundle clean

lab: .venv/installed
	@# Learners work in copies, so that a newer course overwrites nobody's answers.
	mkdir -p my-work && { cp -Rn course/. my-work/ || true; }  # some systems call a kept copy a failure
	@# nbgrader finds the course through its configuration under autograde/.
	JUPYTER_CONFIG_PATH="$(CURDIR)/autograde" $(BIN)/jupyter lab --ServerApp.root_dir="$(CURDIR)" \
	    --LabApp.default_url=/lab/tree/my-work $(LAB_ARGS)

build: .venv/installed
	$(BIN)/python -m autograde build

check: .venv/installed
	$(BIN)/python -m autograde build --check
	$(BIN)/ruff check .

test: .venv/installed
	$(BIN)/python -m pytest

grade: .venv/installed
	$(BIN)/python -m autograde grade "$(SUBMISSIONS)" --results "$(RESULTS)"

# What the solved notebooks printed is kept until a source changes, not when a package does.
nbval: export COURSE_OFFLINE = 1
nbval: build/nbval/made
	$(BIN)/python -m pytest --nbval --nbval-cell-timeout 300 -p autograde.nbval_report build/nbval/*/*/*.ipynb

build/nbval/made: $(wildcard solutions/*.py solutions/toolkit/*.py) autograde/build.py autograde/inline.py | .venv/installed
	$(BIN)/python -m autograde build --solved build/nbval
	touch $@

mutate: .venv/installed
	$(BIN)/python -m autograde mutate

screenshots: .venv/installed
	$(BIN)/python -m autograde.screenshots

bundle: .venv/installed
	$(BIN)/python -m autograde bundle

clean:
	rm -rf .venv build autograde/results

.venv/installed: pyproject.toml autograde/constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint autograde/constraints.txt --editable '.[dev]'
	touch $@
