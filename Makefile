# One place for every command of the project; each target installs what it needs into .venv.
PYTHON ?= python3
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
LOCK := .venv/lock/bin/uv pip compile --quiet --python-version 3.11 --generate-hashes --no-header --annotation-style line $(addprefix --find-links ,$(PIP_FIND_LINKS))

.PHONY: help test accuracy check lint types layers fast-test bench clean docs fuzz mutants faults service-faults hostile audit lock sbom licences
help:           ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/ \t/' | expand -t 20

# Everything but PyTorch comes with the hashes of the lock; which build of PyTorch is right depends on the machine.
.venv/dev-ready: pyproject.toml requirements.lock
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q --no-deps --require-hashes -r requirements.lock
	$(BIN)/pip install -q --no-build-isolation -e '.[dev]'
	touch $@

test: .venv/dev-ready check   ## set up, check style, types and layers, and run every test
	$(BIN)/python -m pytest -n 2
	$(BIN)/python -m research.gate --fast

accuracy: .venv/dev-ready     ## score every publisher against the last release; fails where one got worse (ten minutes)
	$(BIN)/python -m research.gate

check: lint types layers      ## style, types and layers only

lint: .venv/dev-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/dev-ready
	$(BIN)/mypy

layers: .venv/dev-ready
	$(BIN)/lint-imports

fast-test: .venv/dev-ready    ## the quick tests of the rooms that predict (about a minute of CPU time)
	$(BIN)/python -m pytest -n 2 -m 'not slow' tests/spec tests/lower tests/simulate tests/cost tests/resources tests/store tests/test_files.py tests/test_house.py tests/test_memo.py tests/test_names.py tests/test_registry.py

docs: .venv/dev-ready         ## build the site into site/; a broken link is an error
	$(BIN)/python -m mkdocs build --strict

fuzz: .venv/dev-ready         ## feed every file reader a million damaged inputs (ten minutes of one core)
	$(BIN)/python benchmarks/fuzz.py --inputs 1000000 --record benchmarks/fuzz.json --again

fit-stacks: .venv/dev-ready   ## refit the constants of software stacks from ../shared/cases (about 3 minutes)
	$(BIN)/python -m research.fits.stacks ../shared/cases/single_gpu.parquet ../shared/cases/dp.parquet ../shared/cases/llm.parquet ../shared/cases/memory.parquet

fit-intervals: .venv/dev-ready ## refit how interval widths grow with what is new, and print how they hold (about four minutes)
	$(BIN)/python -m research.fits.intervals ../shared/cases/*.parquet --svg docs --markdown research/results/uncertainty.md

fit-operators: .venv/dev-ready ## refit the operator models from ../shared/data
	$(BIN)/python -m research.fits.operators

fit-interaction-gpu: .venv/dev-ready ## refit the factors by class of operators on GPUs to ../shared (about five minutes)
	$(BIN)/python -m research.fits.interaction_gpu

fit-methods: .venv/dev-ready   ## retrain what answers --method scaledl, predictddl and driple from ../shared (some ten minutes)
	for system in scaledl predictddl driple; do $(BIN)/python -m research.fits.methods $$system || exit 1; done

fit-energy: .venv/dev-ready    ## refit what devices draw and how power limits stretch a step, each GPU left out in turn
	$(BIN)/python -m research.fits.energy

fit-collectives: .venv/dev-ready ## refit the collective model, errors on left-out machines beside it
	$(BIN)/python -m research.fits.collectives ../shared/data --markdown research/results/collectives.md

fit-embedding: .venv/dev-ready ## train the encoder and draw the atlas of known workloads (some minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m research.fits.embedding

mutants: .venv/dev-ready      ## change the code in realistic ways and see whether a test notices (an hour of one core)
	$(BIN)/python benchmarks/mutants.py --again

faults: .venv/dev-ready       ## kill and starve every durable command on real files (root, half an hour)
	$(BIN)/python benchmarks/faults.py --record benchmarks/faults.json --again

audit: .venv/dev-ready        ## look the installed packages up in the database of known vulnerabilities
	$(BIN)/python benchmarks/audit.py --write .venv/locked.txt

lock:                         ## write the lock files again, with hashes (uv, from PyPI)
	$(PYTHON) -m venv .venv/lock && .venv/lock/bin/pip install -q uv
	$(LOCK) pyproject.toml .ci/build.in --extra dev --no-emit-package torch -o requirements.lock
	$(LOCK) pyproject.toml .ci/build.in --extra postgresql --extra configs --extra schedule -o requirements-service.lock

sbom: .venv/dev-ready         ## what is installed as a CycloneDX bill of materials, sbom.json
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible -o sbom.json .venv

licences: .venv/dev-ready     ## the licence of every installed package
	$(BIN)/pip-licenses --format markdown --with-urls --order license

service-faults: .venv/dev-ready ## signals to a running service, on SQLite and PostgreSQL (half an hour)
	$(BIN)/python benchmarks/service_faults.py --kills 100 --write research/results/service-faults.md

hostile: .venv/dev-ready      ## gigabytes of hostile requests: memory and answers of the service meanwhile (ten minutes)
	$(BIN)/python benchmarks/hostile.py --write research/results/hostile.md

clean:                        ## remove what the targets made
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache dist
