# The commands that every developer types. `make demo` and `make test` make the environment themselves.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: demo locked test faults quick coverage docs check lint types links bench audit sbom ui clean

# Hashes hold for the files of every platform, but an editable package has none: pip would refuse it.
VERSIONS = sed -n 's/^\([A-Za-z0-9._-]*==[^ ]*\).*/\1/p' requirements.lock > $(VENV)/versions.txt

$(BIN)/surgeproof: pyproject.toml requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(VERSIONS)
	$(BIN)/pip install --quiet --disable-pip-version-check -c $(VENV)/versions.txt -e '.[ui]'

$(VENV)/.test: pyproject.toml requirements.lock | $(BIN)/surgeproof
	$(VERSIONS)
	$(BIN)/pip install --quiet --disable-pip-version-check -c $(VENV)/versions.txt -e '.[test]'
	touch $@

# Everything from files whose hashes are in the lock, as continuous integration does it (Python 3.11).
locked:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -e .
	$(BIN)/pip check
	touch $(VENV)/.test

demo: $(BIN)/surgeproof
	$(BIN)/surgeproof demo

test: $(VENV)/.test
	$(BIN)/pytest -n 2 -m 'not faults and not compiled and not install'

faults: $(VENV)/.test
	$(BIN)/pytest -n 2 -m 'faults or compiled or install' tests/e2e

quick: $(VENV)/.test
	$(BIN)/pytest -n 2 -m 'not slow' tests/unit

coverage: $(VENV)/.test
	$(BIN)/pytest -n 2 -m 'not slow' --cov --cov-report=term:skip-covered tests/unit tests/integration

docs: $(VENV)/.test
	$(BIN)/python docs/generate.py

# The folders are mapped below one name at installation; tools that follow folders need links.
links:
	rm -rf .links && mkdir -p .links/surgeproof
	for item in surgeproof/*; do ln -sfn ../../$$item .links/surgeproof/$$(basename $$item); done
	for room in benchmarks ci commands examples gpu loadgen runs sandbox slo storage traces webui; do ln -sfn ../../$$room .links/surgeproof/$$room; done

lint: $(VENV)/.test links
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	cd .links && ../$(BIN)/lint-imports ../pyproject.toml

types: $(VENV)/.test links
	$(BIN)/mypy .links/surgeproof

check: lint types test faults

bench: $(VENV)/.test
	$(BIN)/python -m surgeproof.benchmarks

# Tools of their own environment, so that they change nothing that is tested.
$(VENV)/tools/.made:
	$(PYTHON) -m venv $(VENV)/tools
	$(VENV)/tools/bin/pip install --quiet --disable-pip-version-check pip-audit cyclonedx-bom
	touch $@

audit: $(VENV)/tools/.made
	@$(VENV)/tools/bin/pip-audit --requirement requirements.lock --require-hashes --disable-pip --strict --progress-spinner off || \
	  { echo "make audit: there are advisories, or no advisory data for some packages (see above)"; exit 1; }

sbom: $(VENV)/.test $(VENV)/tools/.made
	mkdir -p dist && $(VENV)/tools/bin/cyclonedx-py environment --output-file dist/sbom.json $(BIN)/python

ui: $(BIN)/surgeproof
	$(BIN)/surgeproof ui

clean:
	rm -rf $(VENV) .links build dist *.egg-info
