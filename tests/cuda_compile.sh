#!/bin/sh
# Compiles every CUDA kernel by NVRTC for sm_80 and sm_90, without a GPU.
#
# usage: tests/cuda_compile.sh [ARCHITECTURE ...]
# NVRTC is $NVRTC (a path of libnvrtc.so), or comes from its Python package, installed into a folder that goes away.
# Exits with 77 where neither can be had.
set -u
here=$(cd "$(dirname "$0")" && pwd)
if [ -n "${NVRTC:-}" ]; then
    exec python3 "$here/cuda_compile.py" "$NVRTC" "$@"
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'exit 1' INT TERM
if ! python3 -m venv "$folder/python" 2>"$folder/log" ||
    ! "$folder/python/bin/pip" install -q --no-deps nvidia-cuda-nvrtc-cu12 >>"$folder/log" 2>&1; then
    echo "skipped: NVRTC's Python package (nvidia-cuda-nvrtc-cu12) could not be installed, and NVRTC is not set:"
    tail -n 3 "$folder/log"
    exit 77
fi
library=$(find "$folder/python" -name 'libnvrtc.so.*' | head -n 1)
python3 "$here/cuda_compile.py" "$library" "$@"
