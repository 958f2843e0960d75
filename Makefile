# Every task first makes the virtual environment and the extension, if they are missing or older
# than their sources.

PYTHON ?= python3# 3.10 or newer; it makes the virtual environment

ifeq ($(OS),Windows_NT)
  BIN := .venv/Scripts
else
  BIN := .venv/bin
endif
VENV := .venv/pyvenv.cfg
INSTALLED := .venv/installed.stamp
BUILT := .venv/built.stamp
DOCS_INSTALLED := .venv/docs.stamp
SOURCES := pyproject.toml Cargo.toml Cargo.lock $(shell find rust -path rust/core/tests -prune -o \
  \( -name '*.rs' -o -name Cargo.toml \) -print)
BENCHES := $(wildcard benches/*.py)
PEERS := .peers

# maturin refuses two environments; Cargo compiles PyO3 again whenever the interpreter changes.
export VIRTUAL_ENV := $(CURDIR)/.venv
unexport CONDA_PREFIX
export PYO3_PYTHON := $(CURDIR)/$(BIN)/python

FUZZ_SECONDS ?= 60
PARITY_SECONDS ?= 20
DEMO_SECONDS ?= 20
# One worker per core; a file's tests stay together, and slow files come first (tests/conftest.py).
PARALLEL := -n logical --dist loadfile --no-loadscope-reorder
TESTS ?= # options of pytest
FUZZ_CASES ?= 1000000# of each property of the core

export PROPTEST_CASES ?= 500

# Tests that share, move or resize memory, or describe it wrongly.
SANITIZED := $(wildcard $(addprefix tests/*/test_, memory.py safety.py *attacks.py *_input.py arrow*.py \
  ragged.py dense_rows.py fields.py views.py builder*.py moved_memory.py forks.py))
# These tests measure the usual allocator.
NOT_SANITIZED := not take_no_page_faults and not small_batches_leave_no_memory

.PHONY: help demo test test-rust test-python test-together test-alone test-fast test-wheel peers parity gpu fuzz fuzz-core corpus sanitize bench bench-smoke lint lint-rust lint-python lint-installed format docs pictures build rollouts clean

help: ## list the tasks
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-14s%s\n", $$1, $$2 }' Makefile

demo: $(BUILT) ## merge and train on recorded rollouts, train for DEMO_SECONDS (20) on new ones, and report
	$(BIN)/python examples/demo.py
	$(BIN)/python examples/train_grpo.py --seconds $(DEMO_SECONDS)
	mkdir -p target
	$(BIN)/python -m fastcollate report examples/rollouts/rollouts.jsonl.gz \
	  --tokenizer examples/rollouts/tokenizer.json --output target/report.html

test: test-rust test-python ## run the Rust and the Python tests

test-rust: $(VENV) ## run the Rust tests
	cargo test --workspace

test-python: $(BUILT) ## run the Python tests
	$(MAKE) test-together
	$(MAKE) test-alone

test-together: $(BUILT)
	$(BIN)/python -m pytest $(PARALLEL) -m 'not alone'

test-alone: $(BUILT)
	$(BIN)/python -m pytest -m alone

test-fast: $(BUILT) ## run the Rust tests and the quick Python tests, on few examples
	PROPTEST_CASES=50 cargo test --workspace
	$(BIN)/python -m pytest $(PARALLEL) -m 'not alone and not slow' --hypothesis-profile=quick

peers: $(PEERS)/installed.stamp ## download the frameworks that tests and benchmarks compare with

parity: $(BUILT) $(PEERS)/installed.stamp ## compare with frameworks' own functions, for PARITY_SECONDS (20)
	$(BIN)/python -m frameworks.parity skyrl transformers trl verl --seconds $(PARITY_SECONDS)

gpu: $(BUILT) ## run the tests and benchmarks that need a GPU, and write docs/gpu.md
	$(BIN)/python benches/gpu.py --tests

test-wheel: $(INSTALLED) ## build the wheel and run the Python tests on it instead of the checkout
	rm -rf $(BUILT) dist/tested
	$(BIN)/maturin build --release --locked --out dist/tested --interpreter $(PYO3_PYTHON)
	$(BIN)/python -m pip install --force-reinstall --no-deps dist/tested/*.whl
	$(BIN)/python -m pytest $(TESTS)

fuzz: $(BUILT) ## look for input that breaks the library, for FUZZ_SECONDS (60)
	$(BIN)/python fuzz/run.py --seconds $$(($(FUZZ_SECONDS) / 2))
	$(BIN)/python fuzz/run.py --seconds $$(($(FUZZ_SECONDS) / 2)) --random

fuzz-core: $(INSTALLED) ## check properties of the core on FUZZ_CASES (1000000) inputs each
	PROPTEST_CASES=$(FUZZ_CASES) cargo test --package fastcollate --profile fuzz --test '*'

# The fuzzer is guided by coverage of Rust, too: a second build of the extension counts it, for the
# libFuzzer that comes with atheris. Linux on x86-64 only.
COUNTED := target/counted
COUNTING := -Cpasses=sancov-module $(addprefix -Cllvm-args=-sanitizer-coverage-,\
	level=3 inline-8bit-counters pc-table)
HOST = $(shell rustc -vV | sed -n 's/^host: //p')

corpus: $(BUILT) ## look for FUZZ_SECONDS, and renew the inputs that fuzzing begins with
	RUSTFLAGS="$(COUNTING)" cargo build --release --package fastcollate-python \
		--target $(HOST) --target-dir $(COUNTED)
	rm -rf $(COUNTED)/python && mkdir $(COUNTED)/python && cp -r python/fastcollate $(COUNTED)/python
	cp $(COUNTED)/$(HOST)/release/lib_fastcollate.so $(COUNTED)/$(wildcard python/fastcollate/*.so)
	LD_PRELOAD=$$($(BIN)/python -c "import atheris; print(atheris.path())")/ubsan_with_fuzzer.so \
		PYTHONPATH=$(COUNTED)/python $(BIN)/python fuzz/run.py --seconds $(FUZZ_SECONDS) --keep

sanitize: $(INSTALLED) ## run tests of memory, and the fuzzer, with AddressSanitizer (Linux on x86-64)
	.ci/sanitize $(BIN)/python -m pytest --hypothesis-profile=quick -k '$(NOT_SANITIZED)' $(SANITIZED)
	.ci/sanitize $(BIN)/python fuzz/run.py --seconds $(FUZZ_SECONDS) --random

bench: $(BUILT) ## measure the speed
	cargo bench --package fastcollate --bench '*'
	for bench in $(BENCHES); do $(BIN)/python $$bench || exit; done

bench-smoke: $(BUILT) ## run every benchmark once on little data, to check that it works
	cargo test --workspace --bench '*'
	PYTHONPATH=benches $(BIN)/python -m common.smoke $(BENCHES)

lint: lint-rust lint-python lint-installed ## check formatting, lints, types, stubs, workflows, and the sdist for PyPI

# The first two parts need no extension: .ci/run does them while pip downloads and while it is built.
lint-rust: $(VENV)
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo clippy --package fastcollate-python --features abi3 -- -D warnings

lint-python: $(INSTALLED)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/mypy tests/helpers/typed_program.py
	$(BIN)/zizmor --offline --quiet --config .github/zizmor.yml .github
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	rm -rf target/sdist && $(BIN)/maturin sdist --out target/sdist
	$(BIN)/twine check --strict target/sdist/*

lint-installed: $(BUILT)
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/python -m mypy.stubtest fastcollate._fastcollate

format: $(INSTALLED) ## format the code and fix what lints can fix
	cargo fmt --all
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(DOCS_INSTALLED) $(BUILT) ## build the documentation site
	$(BIN)/python -m sphinx --jobs auto --fail-on-warning --keep-going --quiet \
	  --doctree-dir target/doctrees docs target/docs
	@echo target/docs/index.html

pictures: $(BUILT) ## draw the pictures of the documentation again
	$(BIN)/python docs/drawing

build: $(BUILT) ## build the extension in release mode

rollouts: $(INSTALLED) ## record the rollouts in examples/rollouts again
	PYTHONPATH=examples PYTHONHASHSEED=0 $(BIN)/python -m rollouts.record

clean: ## remove the virtual environment and everything built
	cargo clean
	rm -rf .venv $(PEERS) dist python/fastcollate/_fastcollate.*.so python/fastcollate/_fastcollate.*.pyd

$(VENV):
	$(PYTHON) -m venv .venv

# uv unpacks torch's libraries in a third of the time; pip is for machines where uv cannot be
# installed or finds no packages. Not compiled: Python compiles the few modules that are imported.
install = { $(BIN)/python -m pip install --quiet uv==0.13.9 && $(BIN)/uv pip install $(1); } || \
	$(BIN)/python -m pip install --no-compile $(1)

$(INSTALLED): requirements.txt requirements-gil.txt | $(VENV)
	$(call install,--requirement requirements.txt \
	  $$($(BIN)/python -c 'import sysconfig; sysconfig.get_config_var("Py_GIL_DISABLED") or print("--requirement requirements-gil.txt")'))
	touch $@

$(DOCS_INSTALLED): requirements-docs.txt | $(INSTALLED)
	$(call install,--requirement $<)
	touch $@

# Without dependencies: imports are stubs (frameworks/installed.py). SkyRL's wheel is for Python 3.12
# or newer; the compared modules run on 3.11, too.
$(PEERS)/installed.stamp: requirements-peers.txt frameworks/installed.py | $(INSTALLED)
	rm -rf $(PEERS)
	$(BIN)/python -m pip install --no-deps --ignore-requires-python --require-hashes --no-compile \
	  --target $(PEERS) --requirement requirements-peers.txt
	$(BIN)/python -m frameworks.installed || { rm -rf $(PEERS); exit 1; }
	touch $@

# The install is editable: a change of Python code needs no build.
$(BUILT): $(INSTALLED) $(SOURCES)
	$(BIN)/maturin develop --release
	touch $@
