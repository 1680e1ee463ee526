#!/bin/sh
# Checks and measures the CUDA kernels and training on a machine with an NVIDIA GPU. Needs no cargo, only the built programs:
#   cargo build --release -p trainwright-kernels --features cuda --example gpu-check
#   cargo build --release --features cuda
#
# usage: tests/gpu.sh [FOLDER] [GPU-CHECK] [TRAINWRIGHT]
# Leaves in FOLDER (default: gpu-results): gpu.txt (what the machine is), table.txt (what was printed), checks.csv,
# profile.csv, parity.csv (losses of plans beside the CPU's), speed.csv (tokens per second beside PyTorch's), validation.csv and
# profile-*/ (forecasts beside runs, and the measured ops that they were made from), and sanitizer-*.txt where compute-sanitizer is there. Takes at most 8 minutes; training is left out where TRAINWRIGHT or Python
# is not there.
# Exits with 2 where there is no GPU, 1 where something is wrong.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
folder=${1:-gpu-results}
program=${2:-$root/target/release/examples/gpu-check}
trainwright=${3:-$root/target/release/trainwright}
if [ ! -x "$program" ]; then
    echo "no program at $program: build it, or name it as the second argument" >&2
    exit 1
fi
mkdir -p "$folder" || exit 1
folder=$(cd "$folder" && pwd)

# Where CUDA's libraries may be: the toolkit, and Python packages such as PyTorch's.
paths=/usr/local/cuda/lib64
if command -v python3 >/dev/null 2>&1; then
    for found in $(python3 -c 'import glob, site, sys
for place in dict.fromkeys(sys.path + site.getsitepackages()):
    print(*glob.glob(place + "/nvidia/*/lib"), sep="\n")' 2>/dev/null); do
        paths=$paths:$found
    done
fi
# The loader of libraries does not try NCCL's only name, libnccl.so.2.
links=$(mktemp -d)
trap 'rm -rf "$links"' EXIT
trap 'exit 1' INT TERM
for place in $(echo "$paths" | tr ':' ' '); do
    if [ -e "$place/libnccl.so.2" ]; then ln -sf "$place/libnccl.so.2" "$links/libnccl.so"; fi
done
LD_LIBRARY_PATH=$links:${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$paths
export LD_LIBRARY_PATH

{
    date -u '+%Y-%m-%dT%H:%M:%SZ'
    uname -srm
    nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,clocks.mem,power.limit --format=csv 2>/dev/null ||
        echo "no nvidia-smi"
} >"$folder/gpu.txt"

# 120 s for checks and measurements of kernels, 100 s for plans, 120 s for tokens per second, 70 s for forecasts, 30 s for each
# pass of the sanitizer.
timeout 120 "$program" "$folder" >"$folder/table.txt" 2>&1
code=$?
cat "$folder/gpu.txt" "$folder/table.txt"
if [ "$code" -eq 2 ]; then exit 2; fi
if [ "$code" -eq 124 ]; then echo "the program was stopped after 120 s"; fi

wrong=0
if [ -x "$trainwright" ] && command -v python3 >/dev/null 2>&1; then
    for part in "parity 100 20" "speed 120 12" "validation 70 8"; do
        set -- $part
        timeout "$2" python3 "$root/tests/tools/gpu_run.py" "$1" "$folder" --trainwright "$trainwright" \
            --seconds "$(($2 - 20))" --steps "$3" >"$folder/$1.txt" 2>&1
        case $? in
        0) ;;
        124) echo "$1: stopped after $2 s" ;;
        *) wrong=1 ;;
        esac
        cat "$folder/$1.txt"
        cat "$folder/$1.txt" >>"$folder/table.txt"
    done
else
    echo "training was left out: it needs $trainwright and python3"
fi
if command -v compute-sanitizer >/dev/null 2>&1; then
    for tool in memcheck racecheck; do
        timeout 30 compute-sanitizer --tool "$tool" --error-exitcode 3 "$program" "$folder/$tool" checks \
            >"$folder/sanitizer-$tool.txt" 2>&1
        case $? in
        0) echo "compute-sanitizer $tool: nothing found" ;;
        124) echo "compute-sanitizer $tool: stopped after 30 s, nothing is known" ;;
        *)
            echo "compute-sanitizer $tool: see $folder/sanitizer-$tool.txt"
            wrong=1
            ;;
        esac
    done
else
    echo "compute-sanitizer is not there: memory accesses and races were not checked"
fi
nvidia-smi --query-gpu=clocks.sm,clocks.mem,temperature.gpu --format=csv >>"$folder/gpu.txt" 2>/dev/null
echo "files are in $folder"
if [ "$code" -ne 0 ] || [ "$wrong" -ne 0 ]; then exit 1; fi
