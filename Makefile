# Everything is installed into .venv, from locks; a target that needs it makes it. `make` alone lists the targets.
.DEFAULT_GOAL := help
.PHONY: help setup demo live chaos test test-fast test-full coverage lint docs screenshots recording bench lock clean
.DELETE_ON_ERROR:

# The first Python here that is new enough; another one: make setup PYTHON=/path/to/python
PYTHON = $(shell for python in python3 python3.13 python3.12 python3.11 python3.14 python; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done)
NO_PYTHON = No Python 3.11 or newer is on the PATH: install one (Debian, Ubuntu: apt install python3 python3-venv)
VENV := .venv/bin
STAMP := .venv/.stamp
TOOLS := .venv/.tools
BROWSER := .venv/.browser
PROXY := .venv/.proxy
ARGS =

# Where Python is told to keep no compiled files, every process of a test or demo would compile Spark's again: 2 s each.
# They stay in this folder, and git ignores them.
unexport PYTHONDONTWRITEBYTECODE

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r name what; do \
		printf '  make %-10s %s\n' "$$name" "$$what"; done

setup: $(TOOLS) ## install all that is needed into .venv, test tools too (40 s the first time; again: make -B setup)

demo: $(STAMP) ## run the main job on embedded defaults; options in ARGS="..."
	$(VENV)/stateside demo $(ARGS)

live: $(STAMP) ## run the whole system until Ctrl-C, to watch and to break by a key; options in ARGS="..."
	$(VENV)/stateside demo --live $(ARGS)

chaos: $(STAMP) ## break the whole system in every way, and write docs/crash-matrix.md (some 20 min, some of it as root)
	mkdir -p .cache
	$(VENV)/stateside chaos --all --json .cache/chaos.json $(ARGS)
	$(VENV)/python tools/crash_matrix.py .cache/chaos.json

test: $(TOOLS) $(BROWSER) $(PROXY) lint ## lint, then run all tests; pytest's options in ARGS="..."
	$(VENV)/python tools/test.py $(ARGS)

test-fast: export STATESIDE_TEST_FAST = 1
test-fast: $(TOOLS) ## run the tests that need neither Spark nor whole processes nor the network, with fewer examples
	$(VENV)/python tools/test.py -m "not spark and not e2e and not network and not browser" $(ARGS)

test-full: export STATESIDE_TEST_FULL = 1
test-full: test ## like test, with the long versions of the long tests

coverage: $(TOOLS) $(BROWSER) $(PROXY) ## run the tests and show which lines they reach; pytest's options in ARGS="..."
	rm -rf .cache/coverage && mkdir -p .cache/coverage
	$(VENV)/coverage run tools/test.py $(ARGS) || true
	$(VENV)/coverage combine --quiet
	$(VENV)/coverage report
	$(VENV)/coverage html --quiet --directory .cache/coverage/html

lint: $(TOOLS) ## check style, types and which room imports which
	$(VENV)/ruff check
	$(VENV)/ruff format --check
	$(VENV)/mypy
	$(VENV)/mypy tools
	$(VENV)/lint-imports
	@$(VENV)/python tools/shape.py

docs: export NO_MKDOCS_2_WARNING = 1
docs: $(TOOLS) ## build the documentation's site, its links checked, into build/site
	$(VENV)/mkdocs build --strict --quiet
	@echo "docs: open build/site/index.html"

screenshots: $(TOOLS) $(BROWSER) ## take the pictures of the pages in docs/pages again
	$(VENV)/python tools/screenshots.py $(ARGS)

recording: $(TOOLS) $(BROWSER) ## record the live demo, with a kill in it, as docs/pages/live.gif
	$(VENV)/python tools/recording.py

bench: $(TOOLS) ## run the benchmarks; options in ARGS="..."
	$(VENV)/python -m benchmarks $(ARGS)

lock: $(VENV)/uv ## lock the dependencies again; all of them to their newest with ARGS=--upgrade
	$(VENV)/python tools/lock.py $(ARGS)

clean: ## remove .venv and all caches in this folder
	rm -rf .venv .cache .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist src/*.egg-info
	find src tests tools benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

LOCKED = pyproject.toml uv.lock $(wildcard tools/*.py tools/*.lock)

$(STAMP): $(LOCKED)
	@$(or $(PYTHON),$(error $(NO_PYTHON))) tools/setup.py $(if $(wildcard $(TOOLS)),--tools)
	@touch $@ $(wildcard $(TOOLS))

$(TOOLS): $(LOCKED)
	@$(or $(PYTHON),$(error $(NO_PYTHON))) tools/setup.py --tools
	@touch $(STAMP) $@

$(BROWSER): $(TOOLS) tools/browser.py
	@$(VENV)/python tools/browser.py $@

$(PROXY): $(TOOLS) tools/proxy.py
	@$(VENV)/python tools/proxy.py $@

$(VENV)/uv:
	@$(or $(PYTHON),$(error $(NO_PYTHON))) tools/setup.py --only-uv
