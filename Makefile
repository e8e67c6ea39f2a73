# Every target first sets up .venv from requirements.lock, again only after that file or
# pyproject.toml changed. Needs Python 3.11 or newer; `make PYTHON=...` chooses one.

PYTHONS := python3 python3.14 python3.13 python3.12 python3.11 python
PYTHON ?= $(shell for p in $(PYTHONS); do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)

BIN := .venv/bin
STAMP := .venv/.installed
LOG := .venv/setup.log
# One process more than cores, up to four, because some tests wait; each with one BLAS thread. Quick
# tests of a file run in one process and share what it loads; slow ones are spread. Compiled files
# are kept: without them each program that a test starts compiles all of app/ again.
# `make test ARGS=tests/ui PROCESSES=2` runs a part, in two processes.
PROCESSES ?= $(shell expr `getconf _NPROCESSORS_ONLN` + 1)
TESTS = env -u PYTHONDONTWRITEBYTECODE OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -q \
	--maxprocesses 4 -n $(PROCESSES) $(ARGS)

.PHONY: help run demo demo-real real-models real-encoder real-pair real-llama real-texts \
	real-producers real-report test test-slow test-benchmarks test-real mutants smoke \
	picture pictures recording lint shell dist formula

help:
	@echo "make run        the app"
	@echo "make demo       ask about a long text, sparsely and in full, side by side"
	@echo "make demo-real  the same by a small real model (fetches 93 MB, unless F6 has)"
	@echo "make test       the quick tests"
	@echo "make test-slow  the slow tests"
	@echo "make test-benchmarks  the tests of the benchmarks, and of the demo model's answers"
	@echo "make test-real  the tests with real models, which it fetches"
	@echo "make smoke      ask the demo model, or MODELS, with specchat ask and serve"
	@echo "make mutants    plant 80 small faults in app/, and count those that make test finds (hours)"
	@echo "make real-models  fetch SmolLM2 135M and Gemma 3 270M (350 MB) into .cache/real"
	@echo "make real-pair  fetch Qwen2.5-Coder 1.5B and 0.5B (1.6 GB; 9 GB once converted) into .cache/real"
	@echo "make real-llama  build llama.cpp from its source into .cache/llama, to compare with (minutes)"
	@echo "make real-encoder  fetch multilingual-e5-small (100 MB; 280 MB once converted) into .cache/real"
	@echo "make real-texts  fetch the real documents that evaluations ask about into .cache/real"
	@echo "make real-producers  let 40 programs write documents into .cache/producers, and read these"
	@echo "make real-report  measure real models on real documents for benchmarks/results/real-models (hours)"
	@echo "make picture    draw the README's map from a run of the demo"
	@echo "make pictures   record the app in all its states, for tests and docs"
	@echo "make recording  record the README's recording from a real run of the demo pair"
	@echo "make lint       style, types and import rules"
	@echo "make shell      write man page and completions from the command line's parser"
	@echo "make dist       build wheel, source distribution and bill of materials in dist/"
	@echo "make formula    write the Homebrew formula of that wheel, for RELEASE=its future URL"

run: $(STAMP)
	@$(BIN)/python -m app

demo: $(STAMP)
	@$(BIN)/python -m app demo

demo-real: $(STAMP)
	@$(BIN)/python -m app demo --real

test: $(STAMP)
	@$(TESTS) --dist loadfile -m "not slow and not benchmarks and not real"

# With more examples for hypothesis, also in its quick tests.
test-slow: $(STAMP)
	@$(TESTS) --dist worksteal --hypothesis-profile=slow -m "(slow or hypothesis) and not benchmarks and not real"

test-benchmarks: $(STAMP)
	@$(TESTS) --dist worksteal -m "benchmarks and not real"

# In one process, because each needs gigabytes and all cores.
test-real: $(STAMP)
	@$(BIN)/python -m pytest -q -p no:xdist -m real

real-producers: $(STAMP)
	@PYTHON=$(BIN)/python benchmarks/producers/install.sh
	@.cache/producers/venv/bin/python benchmarks/producers/write.py .cache/producers/files
	@$(BIN)/python -m benchmarks.producers.compare
	@test -z "$(PEERS)" || { PYTHON=$(BIN)/python benchmarks/producers/install.sh peers && \
		.cache/producers/peers/bin/python benchmarks/producers/peers.py .cache/producers/files \
			.cache/producers/peers.json && \
		$(BIN)/python -m benchmarks.producers.compare --peers .cache/producers/peers.json; }

smoke: $(STAMP)
	@$(BIN)/python packaging/smoke.py $(MODELS)

mutants: $(STAMP)
	@$(BIN)/python benchmarks/mutants.py run --known benchmarks/results/mutants/before.json

real-models: $(STAMP)
	@$(BIN)/python -m tests.real.packages

real-pair: $(STAMP)
	@$(BIN)/python -m tests.real.packages qwen2.5-coder-1.5b-instruct qwen2.5-coder-0.5b-instruct

real-encoder: $(STAMP)
	@$(BIN)/python -m tests.real.encoder

real-texts: $(STAMP)
	@$(BIN)/python -m tests.real.documents

real-llama: $(STAMP)
	@"$(PYTHON)" -m venv .cache/llama && CMAKE_BUILD_PARALLEL_LEVEL=2 \
		.cache/llama/bin/python -m pip install --quiet --disable-pip-version-check llama-cpp-python

real-report: $(STAMP)
	@$(BIN)/python -m tests.real.report

picture: $(STAMP)
	@$(BIN)/python -m app demo --picture assets/map.svg

pictures: $(STAMP)
	@$(BIN)/python -m tests.ui.pictures

recording: $(STAMP)
	@$(BIN)/python -m tests.ui.recording

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

shell: $(STAMP)
	@$(BIN)/python packaging/shell.py

dist: $(STAMP)
	@rm -rf dist
	@$(BIN)/python -m build
	@$(BIN)/python packaging/sbom.py >dist/specchat.cdx.json

formula: $(STAMP)
	@test -n "$(RELEASE)" || { echo "Give the URL of the wheel: make formula RELEASE=https://..." \
		>&2; exit 1; }
	@$(BIN)/python packaging/formula.py dist/specchat-*.whl --release "$(RELEASE)" >dist/specchat.rb

$(STAMP): pyproject.toml requirements.lock
	@test -n "$(PYTHON)" || { echo "specchat needs Python 3.11 or newer: install it, or name it" \
		"with make PYTHON=..." >&2; exit 1; }
	@echo "Setting up .venv (once, about a minute)…"
	@mkdir -p .venv
	@{ "$(PYTHON)" -m venv .venv && \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check \
			--require-hashes -r requirements.lock && \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e . ; \
		} >$(LOG) 2>&1 || { cat $(LOG) >&2; echo "Setting up .venv failed: see above." >&2; exit 1; }
	@$(SYSTEM)
	@touch $@

# System packages for Linux: installed when run as root, otherwise named. specchat works without them.
define SYSTEM
test "$$(uname -s)" = Linux || exit 0; \
missing() { \
	$(BIN)/python -c 'import ctypes; ctypes.CDLL("libopenblas.so.0")' 2>/dev/null || \
		printf 'libopenblas0-pthread '; \
	command -v tmux >/dev/null || printf 'tmux '; \
}; \
if test -n "$$(missing)" && test "$$(id -u)" = 0 && command -v apt-get >/dev/null; then \
	{ apt-get update -qq; DEBIAN_FRONTEND=noninteractive \
		apt-get install -y -qq --no-install-recommends $$(missing); } >>$(LOG) 2>&1; \
fi; \
for package in $$(missing); do case $$package in \
	tmux) echo "tmux is not installed: with it, the tests also drive the app in a real terminal." ;; \
	*) echo "$$package is not installed: with it, models on this CPU run many times faster." ;; \
esac; done
endef
