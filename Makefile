# Every target sets up what it needs: a virtual environment with the pinned packages, made again only when the
# lock file or the project file changes.
PYTHON ?= python3.11
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: help demo test test-vllm check format bench lock clean
help: ## Show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

$(STAMP): requirements-dev.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(STAMP) ## Two engines, two sidecars: watch a prefix being pulled (under a minute)
	$(BIN)/sidecar lab demo

test: $(STAMP) ## All tests but real engines and benchmarks
	$(BIN)/python -m pytest

test-vllm: $(STAMP) ## The scenarios on real vLLM engines (CPU): installs vLLM once, then 7 to 9 minutes
	$(BIN)/python -m tests.vllm

check: $(STAMP) ## Format, lint, types, import rules, README's generated parts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --config pyproject.toml
	$(BIN)/hadolint Dockerfile
	$(BIN)/python -m tests.readme --check

format: $(STAMP) ## Reformat, fix what can be fixed, regenerate README's generated parts
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/python -m tests.readme

bench: $(STAMP) ## CPU cost of the relay beside a bare one
	$(BIN)/python -m tests.bench

lock: $(STAMP) ## Pin the dependencies again, with hashes
	$(BIN)/pip-compile $(LOCK) --extra otlp --output-file requirements.txt pyproject.toml
	$(BIN)/pip-compile $(LOCK) --all-extras --allow-unsafe --output-file requirements-dev.txt pyproject.toml
LOCK := --quiet --strip-extras --generate-hashes --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --upgrade

clean: ## Remove what the targets made
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
