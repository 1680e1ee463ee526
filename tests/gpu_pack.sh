#!/bin/sh
# Puts all that tests/gpu.sh needs on a machine with a GPU into target/gpu: both programs as they are released and without symbols, the
# scripts, and what the scripts read. Fails if that is more than 40 MB, because such machines are reached through narrow ways.
#
# usage: tests/gpu_pack.sh        needs cargo and the binutils of a C compiler
# There: gpu/tests/gpu.sh gpu-results
set -eu
cd "$(dirname "$0")/.."
limit=40000000
built=${CARGO_TARGET_DIR:-target}/release
pack=target/gpu

cargo build --release --locked -p trainwright -p trainwright-kernels --features cuda --bin trainwright --example gpu-check
rm -rf "$pack"
mkdir -p "$pack/tests/tools/gpu" "$pack/spec/catalog"
strip -o "$pack/trainwright" "$built/trainwright"
strip -o "$pack/gpu-check" "$built/examples/gpu-check"
cp tests/gpu.sh "$pack/tests"
cp tests/tools/gpu_run.py "$pack/tests/tools"
cp tests/tools/gpu/*.py tests/tools/gpu/*.csv "$pack/tests/tools/gpu"
cp spec/catalog/drivers.toml "$pack/spec/catalog"

# What is packed works without the rest of the tree.
"$pack/trainwright" --version
if command -v python3 >/dev/null 2>&1; then
    python3 -B "$pack/tests/tools/gpu_run.py" --help >/dev/null
fi

find "$pack" -type f -exec wc -c {} + | sort -n
size=$(find "$pack" -type f -exec cat {} + | wc -c)
if [ "$size" -gt "$limit" ]; then
    echo "$pack has $size bytes, and may have $limit: see what has grown" >&2
    exit 1
fi
