#!/bin/sh
# Checks and measures the CUDA kernels and training on a machine with an NVIDIA GPU. Needs no cargo, only the built programs:
#   cargo build --release -p trainwright-kernels --features cuda --example gpu-check
#   cargo build --release --features cuda
#
# usage: tests/gpu.sh [FOLDER] [GPU-CHECK] [TRAINWRIGHT] [PART]...
#   checks       every kernel and product against plain loops, and what each version takes: checks.csv, versions.csv
#   parity       losses of plans beside the CPU's: parity.csv; beside it PyTorch fills its caches, if speed is asked for: torch.csv
#   calibrate    what kernels, links and every op of three models take: measured/
#   speed        tokens per second of these models beside PyTorch's: speed.csv
#   validation   their forecasts beside runs: validation.csv
#   sanitizer    compute-sanitizer's memcheck and racecheck of the kernels: sanitizer-*.txt
# No part named: all. Leaves in FOLDER (default: gpu-results) the files above, each row written as soon as it is known, gpu.txt (what
# the machine is), clocks.csv (its clocks while this ran) and table.txt (what was printed). What needs training is left out where
# TRAINWRIGHT or Python is not there.
#
# All takes GPU_SECONDS (default: 480) at most. A part has its share of what is left; CHECKS_SECONDS, PARITY_SECONDS and so on give it as
# many instead. What a part does not need is for those behind it. What is stopped by its limit is neither right nor wrong.
# GPU_DEVICE=emulated lets small models train without a GPU, to see that this works.
# Exits with 2 where there is no GPU, 1 where something is wrong.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
folder=${1:-gpu-results}
program=${2:-$root/target/release/examples/gpu-check}
trainwright=${3:-$root/target/release/trainwright}
if [ $# -gt 3 ]; then shift 3; else set --; fi
all="checks parity calibrate speed validation sanitizer"
for part in "$@"; do
    case " $all " in
    *" $part "*) ;;
    *)
        echo "no part \`$part\`: there are $all" >&2
        exit 1
        ;;
    esac
done
wanted=" ${*:-$all} "
parts=
for part in $all; do
    case $wanted in *" $part "*) parts="$parts $part" ;; esac
done
if [ ! -x "$program" ]; then
    echo "no program at $program: build it, or name it as the second argument" >&2
    exit 1
fi
mkdir -p "$folder" || exit 1
folder=$(cd "$folder" && pwd)
began=$(date +%s)

# Where CUDA's libraries may be: Python packages such as PyTorch's, what the user says, the driver's folder, the toolkit.
paths=
if command -v python3 >/dev/null 2>&1; then
    for found in $(python3 -c 'import glob, site, sys
for place in dict.fromkeys(sys.path + site.getsitepackages()):
    print(*glob.glob(place + "/nvidia/*/lib"), sep="\n")' 2>/dev/null); do
        paths=$paths$found:
    done
fi
paths=$paths${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/usr/local/nvidia/lib64:/usr/local/cuda/lib64
# PyTorch finds its own.
LD_LIBRARY_PATH_BEFORE=${LD_LIBRARY_PATH:-}
export LD_LIBRARY_PATH_BEFORE
PATH=$PATH:/usr/local/cuda/bin
# The loader of libraries does not try NCCL's only name, libnccl.so.2.
links=$(mktemp -d)
clocks=
trap 'if [ -n "$clocks" ]; then kill "$clocks" 2>/dev/null; fi; rm -rf "$links"' EXIT
trap 'exit 1' INT TERM
for place in $(echo "$paths" | tr ':' ' ') "$(ldconfig -p 2>/dev/null | sed -n 's|.*libnccl\.so\.2 .*=> \(.*\)/libnccl\.so\.2$|\1|p' | head -n 1)"; do
    if [ ! -e "$links/libnccl.so" ] && [ -e "$place/libnccl.so.2" ]; then ln -s "$place/libnccl.so.2" "$links/libnccl.so"; fi
done
LD_LIBRARY_PATH=$links:$paths
export LD_LIBRARY_PATH
# Without a cache every process would compile all kernels again.
cache=${XDG_CACHE_HOME:-${HOME:+$HOME/.cache}}
if [ -z "$cache" ] || ! mkdir -p "$cache/trainwright" 2>/dev/null; then
    XDG_CACHE_HOME=$folder/.cache
    export XDG_CACHE_HOME
fi

{
    date -u '+%Y-%m-%dT%H:%M:%SZ'
    uname -srm
    nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,clocks.mem,power.limit --format=csv 2>/dev/null ||
        echo "no nvidia-smi"
} >"$folder/gpu.txt"
timeout -k 10 60 "$program" "$folder" about >"$folder/table.txt" 2>&1
code=$?
cat "$folder/gpu.txt" "$folder/table.txt"
if [ "$code" -ne 0 ]; then
    if [ "$code" -eq 2 ]; then exit 2; fi
    echo "$program could not say what GPU there is: exit code $code" >&2
    exit 1
fi
# Keeps the driver ready, too; changes nothing.
if command -v nvidia-smi >/dev/null 2>&1; then
    nvidia-smi --query-gpu=timestamp,index,clocks.sm,clocks.mem,power.draw,temperature.gpu --format=csv -l 2 >"$folder/clocks.csv" 2>&1 &
    clocks=$!
fi

# Seconds that parts have if all run; their sum is 480.
share() {
    case $1 in
    checks) echo 70 ;;
    parity) echo 80 ;;
    calibrate) echo 100 ;;
    speed) echo 150 ;;
    validation) echo 50 ;;
    sanitizer) echo 30 ;;
    esac
}

# Seconds for a part: what the environment says, or its share of what is left for it and those behind it.
limit() {
    eval "given=\${$(echo "$1" | tr '[:lower:]' '[:upper:]')_SECONDS:-}"
    if [ -n "$given" ]; then
        echo "$given"
        return
    fi
    of=0
    for part in $parts; do
        if [ "$part" = "$1" ] || [ "$of" -gt 0 ]; then of=$((of + $(share "$part"))); fi
    done
    seconds=$(((began + ${GPU_SECONDS:-480} - $(date +%s)) * $(share "$1") / of))
    echo $((seconds > 10 ? seconds : 10))
}

# A line for people, which is kept.
say() {
    echo "$*" | tee -a "$folder/table.txt"
}

# Runs what the rest of the arguments say for so many seconds, into a file. 124: it was stopped.
within() {
    for_seconds=$1 into=$2
    shift 2
    timeout -k 10 "$for_seconds" "$@" >"$into" 2>&1
    case $? in
    0) return 0 ;;
    124 | 137) return 124 ;;
    *) return 1 ;;
    esac
}

# What a part came to: its name, its file, how it ended, how long it had.
tell() {
    cat "$2"
    cat "$2" >>"$folder/table.txt"
    if [ "$3" -eq 124 ]; then say "$1 was stopped after $4 s: what is there was known by then"; fi
    if [ "$3" -eq 1 ]; then wrong=1; fi
}

# A part of gpu_run.py, which stops by itself a little earlier.
train() {
    within "$2" "$folder/$1.txt" python3 "$root/tests/tools/gpu_run.py" "$1" "$folder" --trainwright "$trainwright" \
        --device "${GPU_DEVICE:-cuda}" --seconds "$(($2 - ($2 + 9) / 10))"
}

wrong=0
trains=yes
if [ ! -x "$trainwright" ] || ! command -v python3 >/dev/null 2>&1; then
    trains=no
    say "training is left out: it needs $trainwright and python3"
fi
for part in $parts; do
    seconds=$(limit "$part")
    case $part in
    checks)
        within "$seconds" "$folder/checks.txt" "$program" "$folder"
        tell checks "$folder/checks.txt" $? "$seconds"
        ;;
    sanitizer)
        if ! command -v compute-sanitizer >/dev/null 2>&1; then
            say "compute-sanitizer is not there: memory accesses and races were not checked"
            continue
        fi
        for tool in memcheck racecheck; do
            file=$folder/sanitizer-$tool.txt
            within "$((seconds / 2))" "$file" compute-sanitizer --tool "$tool" --error-exitcode 3 "$program" "$folder/$tool" checks
            case $? in
            0) say "compute-sanitizer $tool: nothing found" ;;
            124)
                found=$(grep -c '=========.*\(Invalid\|hazard\|Error:\)' "$file")
                say "compute-sanitizer $tool: stopped after $((seconds / 2)) s; findings until then: $found"
                if [ "$found" -gt 0 ]; then wrong=1; fi
                ;;
            *)
                say "compute-sanitizer $tool: see $file"
                wrong=1
                ;;
            esac
        done
        ;;
    *)
        if [ "$trains" = no ]; then continue; fi
        # Nothing is timed in parity, so that PyTorch may compile beside it.
        beside=
        case "$part $parts " in
        "parity "*" speed "*)
            train warm "$seconds" &
            beside=$!
            ;;
        esac
        train "$part" "$seconds"
        tell "$part" "$folder/$part.txt" $? "$seconds"
        if [ -n "$beside" ]; then
            wait "$beside"
            cat "$folder/warm.txt" | tee -a "$folder/table.txt"
        fi
        ;;
    esac
done
nvidia-smi --query-gpu=clocks.sm,clocks.mem,temperature.gpu --format=csv >>"$folder/gpu.txt" 2>/dev/null
echo "files are in $folder"
if [ "$wrong" -ne 0 ]; then exit 1; fi
