#!/usr/bin/env bash
# The native code under AddressSanitizer and UndefinedBehaviorSanitizer: builds the extension a second time, into
# build/sanitize, and runs the constraint machine's and the CPU kernels' tests over that build. Any report ends the run.
# Usage: tests/native/sanitize.sh [pytest arguments]; without arguments the fixed slice below.
set -euo pipefail
cd "$(dirname "$0")/../.."
mkdir -p build

python=$PWD/.venv/bin/python
build=$PWD/build/sanitize
flags="-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer"
compiler=${CXX:-g++}

"$python" -c 'import ninja' 2>/dev/null && PATH="$PWD/.venv/bin:$PATH"
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_COMPILER="$compiler" -DPython_EXECUTABLE="$python" \
  -DCMAKE_CXX_FLAGS="$flags" -DCMAKE_LIBRARY_OUTPUT_DIRECTORY="$build/out" > build/sanitize-cmake.log \
  || { cat build/sanitize-cmake.log; exit 1; }
cmake --build "$build"

# libstdc++ beside libasan, or ASan finds no __cxa_throw to intercept when it starts before the extension is loaded.
preload=$("$compiler" -print-file-name=libasan.so):$("$compiler" -print-file-name=libstdc++.so)
slice=(tests/grammars/test_{native_machine,native_values,regex_front,json_schema_front,lark_front,tools,think}.py
  tests/sdk/test_explain.py tests/kernels/test_cpu_{attention,elementwise,linear,packed,runtime,sampling}.py)
per_file=25
if (($#)); then
  slice=("$@") per_file=0
fi
LD_PRELOAD=$preload ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 UBSAN_OPTIONS=print_stacktrace=1 OMP_NUM_THREADS=1 \
  PYTHONPATH=. "$python" tests/native/with_extension.py "$build"/out/_native*.so "$per_file" --durations=8 "${slice[@]}"
