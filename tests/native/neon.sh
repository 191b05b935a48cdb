#!/usr/bin/env bash
# The CPU kernels cross-compiled for AArch64, and the NEON ones compared with the portable ones under emulation.
# Needs aarch64-linux-gnu-g++ and qemu-aarch64 (Debian: g++-aarch64-linux-gnu, qemu-user).
set -euo pipefail
cd "$(dirname "$0")/../.."
out=build/neon
mkdir -p "$out"
compile() {  # source, flags
  aarch64-linux-gnu-g++ -std=c++20 -O2 -ffp-contract=off -I. -Wall -Wextra -Werror -Wno-unused-parameter "${@:2}" \
    -c "$1" -o "$out/$(basename "$1" .cpp).o"
}
for part in isa decoder packed products ops thread_pool weight_memory kernels_scalar kernels_neon; do
  compile "kernels/cpu/$part.cpp"
done
compile kernels/cpu/kernels_neondot.cpp -march=armv8.2-a+dotprod
compile tests/native/neon_agrees.cpp
aarch64-linux-gnu-g++ -static "$out"/*.o -lpthread -o "$out/neon_agrees"
qemu-aarch64 -cpu max "$out/neon_agrees"
