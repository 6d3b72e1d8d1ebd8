# `make` lists the commands. Every target does its own set-up: a virtual environment in .venv with pinned versions.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
CLASSES := $(VENV)/spark-classes.jsa
PYTEST := $(BIN)/python -m pytest
# Three at a time, also on two cores: tests of clients and groups wait most of their time. A file stays together: its tests share
# servers and Spark sessions. WORKERS=0 runs them in one process.
WORKERS ?= 3

# Where Python may not write bytecode (PYTHONDONTWRITEBYTECODE, common in containers), each start would compile all sources anew.
SOURCES := log streams sql connect logflume examples

.PHONY: help setup bytecode java kerberos demo test check format soak kills spark-at-scale fuzz mutants bench docs sbom clean

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 16

setup: $(READY) ## make .venv with everything needed

$(READY): pyproject.toml constraints.txt scripts/setup.sh log/batch/_walk.c
	@scripts/setup.sh "$(PYTHON)" "$(VENV)"

java: ## install Java 17 for the Spark parts, where that is possible
	@scripts/java.sh

kerberos: $(READY) ## install a Kerberos KDC and gssapi for their tests, where that is possible
	@scripts/kerberos.sh "$(VENV)"

bytecode: $(READY)
	@$(BIN)/python -m compileall -q $(SOURCES)

demo: bytecode java ## the main job: flights of New York 2013 through log, streams, SQL, connectors and Spark
	@$(BIN)/python -m examples.demo

$(CLASSES): $(READY) tests/_java.py | java
	-@$(BIN)/python -m tests._java 2>/dev/null

test: bytecode java kerberos $(CLASSES) ## every test
	@$(PYTEST) -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

check: $(READY) ## what to run before each commit: format, lint, types, imports, fast tests
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy -p logflume
	@$(BIN)/lint-imports --no-logo --no-cache
	@$(PYTEST) -q -m "not slow and not spark" $(ARGS)

format: $(READY) ## rewrite the sources in the house format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

soak: $(READY) ## ten minutes of clients while the broker is killed every few seconds, then a check of all they saw; ARGS="--minutes 2"
	@$(BIN)/python -m tests.soak $(ARGS)

kills: $(READY) ## kill applications of every family and their broker, damage their disks, compare; ARGS="--records 1000000 --families sql"
	@$(BIN)/python -m tests.kills $(ARGS)

spark-at-scale: $(READY) java ## histories of every family on Spark, then live, against live over all; ARGS="--records 1000000 --families sql"
	@$(BIN)/python -m tests.spark_at_scale $(ARGS)

fuzz: $(READY) ## ten minutes of hostile frames beside honest clients, then a restart and a full read-back; ARGS="--seconds 60"
	@$(BIN)/python -m tests.fuzz $(ARGS)

mutants: $(READY) ## plant seeded bugs one at a time and run the tests that must find them; ARGS="--only WORD"
	@$(BIN)/python -m tests.mutants $(ARGS)

bench: bytecode java ## every benchmark, each figure beside its budget
	@$(BIN)/python -m benchmarks $(ARGS)

docs: $(READY) ## the guide as a site in build/site; links are checked
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

sbom: $(READY) ## what logflume[all] brings, with licences, as build/sbom.json (CycloneDX)
	@mkdir -p build && $(BIN)/python scripts/sbom.py > build/sbom.json

clean: ## remove what the other commands made
	find $(SOURCES) -name __pycache__ -prune -exec rm -rf {} +
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis demo-data
