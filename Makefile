# Python that .venv is made with: the first of python3, python3.13, 3.12, 3.11 that is new enough,
# or the one named here: make setup PYTHON=python3.12
PYTHON ?=
# More for pytest: make test ARGS="-k writer -x"
ARGS ?=
# Test processes; the tests of one module stay together, since they share what takes long to start, and
# modules come in the order of folders: the long ones first.
JOBS ?= 3

.DEFAULT_GOAL := help
.PHONY: help setup demo test bench check clean

help: ## This list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1	\2/p' Makefile | expand -t 14

setup: ## Make .venv with everything that demo and test need (minutes once, then nothing)
	@PYTHON="$(PYTHON)" bash scripts/setup.sh

demo: setup ## A real small model answers 60 real rows with vLLM on this machine's CPU
	@.venv/bin/batchwright demo

test: setup ## Run the tests
	@.venv/bin/python -m pytest -n $(JOBS) --dist loadscope --no-loadscope-reorder $(ARGS)

bench: setup ## batchwright beside vLLM's LLM.generate on this machine's CPU (10 minutes at most)
	@.venv/bin/python -m benchmarks.throughput --tiny 25m --workloads W1-short \
	  --systems batchwright,llm-tuned --dir runs/bench/engine-bound --budget-s 290 $(ARGS)
	@.venv/bin/python -m benchmarks.throughput --tiny 1m --workloads W3-5 \
	  --systems batchwright,llm-tuned --dir runs/bench/prefix --budget-s 290 $(ARGS)

check: setup ## Format, lint, types, import rules and tests: what a change must pass
	@bash scripts/check.sh $(ARGS)

clean: ## Remove .venv and the tools' caches (runs/ and the demo's model stay)
	@rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
