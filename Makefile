# Every target sets up what it needs: a virtual environment with the pinned packages, made again only when the
# lock file or the project file changes.
PYTHON ?= python3.11
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

FUZZ ?= 10m
SOAK ?= 10m

.PHONY: help demo test test-vllm test-extremes fuzz soak check format bench bench-table dist release lock clean
help: ## Show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

$(STAMP): requirements-dev.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(STAMP) ## Two engines, two sidecars: watch a prefix being pulled (KEEP=1 goes on, with the debug page)
	$(BIN)/sidecar lab demo $(if $(KEEP),--keep)

test: $(STAMP) ## All tests but real engines and benchmarks
	$(BIN)/python -m pytest

test-vllm: $(STAMP) ## The scenarios on real vLLM engines (CPU): installs vLLM once, then 10 to 12 minutes
	$(BIN)/python -m tests.vllm

test-extremes: $(STAMP) ## The extremes in full size: 2,000 streams, 200 MB to slow readers, a minute's trickle
	EXTREMES=full $(BIN)/python -m pytest tests/extremes

fuzz: $(STAMP) ## Fuzz what reads bytes of others, guided by coverage, each seam for FUZZ (10m; needs Linux on x86-64)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-fuzz.txt
	$(BIN)/python -m tests.fuzz $(FUZZ)

soak: $(STAMP) ## Mixed traffic with faults at random for SOAK (10m): everything accounted for, memory and files flat
	$(BIN)/python -m tests.soak $(SOAK)

check: $(STAMP) ## Format, lint, types, import rules, README's generated parts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports pyproject.toml
	$(BIN)/hadolint Dockerfile
	$(BIN)/python -m tests.readme --check
	$(BIN)/python -m tests.deploy.rules --check

format: $(STAMP) ## Reformat, fix what can be fixed, regenerate README's generated parts
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/python -m tests.readme
	$(BIN)/python -m tests.deploy.rules

bench: $(STAMP) ## CPU, latency and memory beside a bare relay and a naive proxy (BENCH='--quick' and others)
	$(BIN)/python -m tests.bench $(BENCH)

bench-table: $(STAMP) ## The same with vllm-router and 100,000 requests, kept as README's table (10 minutes)
	$(BIN)/python -m tests.bench --readme --long --vllm-router $(BENCH)

dist: $(STAMP) ## Wheel, sdist and SBOM (CycloneDX, from the lock file) of the version in sidecar/__init__.py
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist
	$(BIN)/cyclonedx-py requirements requirements.txt --pyproject pyproject.toml --mc-type application \
	    --output-reproducible --of JSON -o dist/sidecar-$$($(BIN)/python -c 'import sidecar; print(sidecar.__version__)').cdx.json
	$(BIN)/python -m tests.release dist

release: dist ## The same, refused unless the changelog has the version
	$(BIN)/python -m tests.release dist --final

lock: $(STAMP) ## Pin the dependencies again, with hashes
	$(BIN)/pip-compile $(LOCK) --extra otlp --extra kubernetes --output-file requirements.txt pyproject.toml
	$(BIN)/pip-compile $(LOCK) --all-extras --allow-unsafe --output-file requirements-dev.txt pyproject.toml
	$(BIN)/pip-compile $(LOCK) --allow-unsafe --build-deps-for wheel --only-build-deps --output-file deploy/image/requirements-build.txt pyproject.toml
	$(BIN)/pip-compile $(LOCK) --output-file requirements-fuzz.txt requirements-fuzz.in
LOCK := --quiet --strip-extras --generate-hashes --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --upgrade

clean: ## Remove what the targets made
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .fuzz .import_linter_cache
