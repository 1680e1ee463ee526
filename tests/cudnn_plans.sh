#!/bin/sh
# Whether cuDNN has plans for the graphs of attention that are asked of it, for A100 and H100, without a GPU.
#
# usage: tests/cudnn_plans.sh [PATH-OF-EXAMPLE]   (default: cargo builds cudnn-plans; it needs a C compiler)
# cuDNN, cublasLt and NVRTC are in $CUDNN (folders as in LD_LIBRARY_PATH), or come from their Python packages, 2.2 GB of them,
# installed into a folder that goes away; $VERSION is that of cuDNN's package (==9.10.2.21).
# Exits with 77 where they cannot be had.
set -u
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'exit 1' INT TERM
if [ -z "${CUDNN:-}" ]; then
    if ! python3 -m venv "$folder/python" 2>"$folder/log" ||
        ! "$folder/python/bin/pip" install -q "nvidia-cudnn-cu12${VERSION:-}" nvidia-cuda-nvrtc-cu12 >>"$folder/log" 2>&1; then
        echo "skipped: the Python packages of cuDNN could not be installed, and CUDNN is not set:"
        tail -n 3 "$folder/log"
        exit 77
    fi
    CUDNN=$(find "$folder/python" -path '*/nvidia/*/lib' | tr '\n' ':')
fi
"${CC:-cc}" -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$folder/libcuda.so.1" "$here/tools/driver_stub.c" || exit 1
example=${1:-}
if [ -z "$example" ]; then
    (cd "$here/.." && cargo build -q -p trainwright-kernels --features cuda --example cudnn-plans) || exit 1
    example=$here/../target/debug/examples/cudnn-plans
fi
LD_LIBRARY_PATH="$folder:$CUDNN${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$example"
