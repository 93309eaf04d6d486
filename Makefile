# Two commands matter: make demo, make test. Each sets up what it needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready
JOBS   ?= $(shell nproc)

.PHONY: help setup demo test test-core bench bench-setup lint format sanitize stubs clean

help:
	@echo "make demo       search Teal's docs by meaning from two processes at once, and see where the time went"
	@echo "make test       all tests"
	@echo "make setup      .venv with everything in it (.venv/bin/teal then works)"
	@echo "make bench      teal bench call, with rivals if make bench-setup was run"
	@echo "make lint       ruff, mypy --strict"
	@echo "make sanitize   core tests under ASan+UBSan and TSan"

setup: $(STAMP)

# The C++ compiler is the one thing pip cannot bring.
$(STAMP): pyproject.toml CMakeLists.txt locks/test.txt locks/build.txt locks/torch.txt $(shell find core -name '*.[ch]pp')
	@command -v c++ >/dev/null || { echo "no C++ compiler: install one, e.g. apt-get install -y g++"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check -r locks/build.txt -r locks/test.txt
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps -r locks/demo-data.txt
	@$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/python -m pip install -q --disable-pip-version-check -r locks/torch.txt || echo "torch not installed: its tests will be skipped"
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-build-isolation --no-deps -C build-dir=build/editable -e .
	@touch $(STAMP)

demo: $(STAMP)
	@$(BIN)/teal demo

test: $(STAMP) test-core
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup

test-core: $(STAMP)
	@$(BIN)/cmake -S . -B build/core -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) -DTEAL_PYTHON=OFF -DTEAL_TESTS=ON >/dev/null
	@$(BIN)/cmake --build build/core -j $(JOBS) | tail -n 1
	@$(BIN)/ctest --test-dir build/core --output-on-failure | tail -n 4

# The rivals of the benches, in an environment of their own so that Teal's stays small.
bench-setup: .venv-bench/.ready

.venv-bench/.ready: locks/bench.txt
	@$(PYTHON) -m venv --clear .venv-bench
	@.venv-bench/bin/python -m pip install -q --disable-pip-version-check --no-deps -r locks/bench.txt
	@.venv-bench/bin/python -m pip check
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
	rm -rf build $(VENV) .venv-bench
