#!/bin/sh
# Checks and measures the CUDA kernels and training on a machine with an NVIDIA GPU, within ten minutes and the most important facts
# first. Needs no cargo: tests/gpu_pack.sh puts this script and all that it needs into one folder.
#
# usage: tests/gpu.sh [FOLDER [PART]...]
#   first          GPT-2 124M with our attention, with cuDNN's, with a graph: losses beside the CPU's, speed, ops of the last step
#   kernels        every kernel and product against plain loops; beside it PyTorch fills its caches, if `torch` comes later
#   large          LLaMA 1B and GPT-2 1.5B: speed
#   torch          PyTorch on the three models
#   parity         losses of a dozen plans beside the CPU's, two ranks on one GPU by NCCL among them
#   forecasts      forecasts of the three models beside runs, and the calibration of the machine
#   deterministic  cuDNN's attention with and without the same bits in every run
#   versions       the time of each version of a kernel
#   sanitizer      compute-sanitizer's memcheck and racecheck of the kernels; only if it is named
#
# Leaves two files in FOLDER (default: gpu-results): table.txt, all that was printed, line by line; and gpu-results.tar.gz, all tables,
# traces and logs, made anew after each part and renamed to its name when it is complete. A run that is killed leaves both.
#
# All parts take GPU_SECONDS (default: 570) at most. A part has its share of what is left, and leaves what it does not need to those
# behind it; FIRST_SECONDS, KERNELS_SECONDS and so on set one. A part that is stopped by its limit is neither right nor wrong.
# GPU_CHECK and TRAINWRIGHT name other programs than those of the pack, or of target/release.
# GPU_DEVICE=emulated trains stand-ins without a GPU, to see that the script works.
# Exits with 2 if there is no GPU, with 1 if something is wrong.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
folder=${1:-gpu-results}
[ $# -eq 0 ] || shift
device=${GPU_DEVICE:-cuda}
check=$root/gpu-check
[ -x "$check" ] || check=$root/target/release/examples/gpu-check
check=${GPU_CHECK:-$check}
trainwright=$root/trainwright
[ -x "$trainwright" ] || trainwright=$root/target/release/trainwright
trainwright=${TRAINWRIGHT:-$trainwright}

usual="first kernels large torch parity forecasts deterministic versions"
all="$usual sanitizer"
for part in "$@"; do
    case " $all " in
    *" $part "*) ;;
    *)
        echo "no part \`$part\`: there are $all" >&2
        exit 1
        ;;
    esac
done
wanted=" ${*:-$usual} "
parts=
for part in $all; do
    case $wanted in *" $part "*) parts="$parts $part" ;; esac
done
if [ "$device" = cuda ] && [ ! -x "$check" ]; then
    echo "no program at $check: build it with tests/gpu_pack.sh, or name it in GPU_CHECK" >&2
    exit 1
fi
mkdir -p "$folder" || exit 1
folder=$(cd "$folder" && pwd)
table=$folder/table.txt
: >"$table" || exit 1
began=$(date +%s)

# All is made in a scratch folder, of which the part `gpu-results` is packed.
scratch=$(mktemp -d) || exit 1
results=$scratch/gpu-results
mkdir "$results"
clocks=

# A line for people, which is kept.
say() {
    echo "$*" | tee -a "$table"
}

# Makes the archive anew. One that is complete replaces the one before.
pack() {
    cp "$table" "$results/table.txt"
    # 1: a file grew meanwhile, such as the list of clocks.
    tar -C "$scratch" -czf "$folder/.gpu-results.tar.gz" gpu-results 2>"$scratch/tar.txt"
    if [ $? -le 1 ]; then
        mv -f "$folder/.gpu-results.tar.gz" "$folder/gpu-results.tar.gz"
    else
        say "no archive: $(tail -n 1 "$scratch/tar.txt")"
    fi
}

# Ends what still runs, and keeps what is known.
stop() {
    for file in "$scratch"/*.pid; do
        [ -e "$file" ] && kill "$(cat "$file")" 2>/dev/null
    done
    say "stopped by a signal"
    pack
    exit 1
}
trap 'if [ -n "$clocks" ]; then kill "$clocks" 2>/dev/null; fi; rm -rf "$scratch"' EXIT
trap stop INT TERM

# Where CUDA's libraries may be: Python packages such as PyTorch's, what the user says, the driver's folder, the toolkit.
paths=
has_python=no
if command -v python3 >/dev/null 2>&1; then
    has_python=yes
    for found in $(python3 -c 'import glob, site, sys
for place in dict.fromkeys(sys.path + site.getsitepackages()):
    print(*glob.glob(place + "/nvidia/*/lib"), sep="\n")' 2>/dev/null); do
        paths=$paths$found:
    done
fi
# PyTorch finds its own.
LD_LIBRARY_PATH_BEFORE=${LD_LIBRARY_PATH:-}
LD_LIBRARY_PATH=$paths${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/usr/local/nvidia/lib64:/usr/local/cuda/lib64
PYTHONDONTWRITEBYTECODE=1
PATH=$PATH:/usr/local/cuda/bin
export LD_LIBRARY_PATH_BEFORE LD_LIBRARY_PATH PYTHONDONTWRITEBYTECODE
# Without a cache every process would compile all kernels again.
cache=${XDG_CACHE_HOME:-${HOME:+$HOME/.cache}}
if [ -z "$cache" ] || ! mkdir -p "$cache/trainwright" 2>/dev/null; then
    XDG_CACHE_HOME=$scratch/cache
    export XDG_CACHE_HOME
fi

{
    date -u '+%Y-%m-%dT%H:%M:%SZ'
    uname -srm
    nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,clocks.mem,power.limit --format=csv 2>/dev/null ||
        echo "no nvidia-smi"
} | tee "$results/gpu.txt" | tee -a "$table"
if [ "$device" = cuda ]; then
    timeout -k 10 60 "$check" "$results" about >"$scratch/about.txt" 2>&1
    code=$?
    tee -a "$table" <"$scratch/about.txt"
    case $code in
    0) ;;
    2) exit 2 ;;
    *)
        say "$check could not say what GPU there is: exit code $code"
        exit 1
        ;;
    esac
fi
# Keeps the driver ready, too; changes nothing.
if command -v nvidia-smi >/dev/null 2>&1; then
    nvidia-smi --query-gpu=timestamp,index,clocks.sm,clocks.mem,power.draw,temperature.gpu --format=csv -l 2 >"$results/clocks.csv" 2>&1 &
    clocks=$!
fi

# Seconds that a part has if all run; the sum of the usual ones is 570.
share() {
    case $1 in
    first) echo 40 ;;
    kernels | large | parity) echo 60 ;;
    torch) echo 150 ;;
    forecasts) echo 140 ;;
    deterministic) echo 25 ;;
    versions) echo 35 ;;
    sanitizer) echo 570 ;;
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
    seconds=$(((began + ${GPU_SECONDS:-570} - $(date +%s)) * $(share "$1") / of))
    echo $((seconds > 10 ? seconds : 10))
}

# begin NAME SECONDS COMMAND...: runs a command that may take so long, prints what it says line by line, and goes on meanwhile.
begin() {
    name=$1 for_seconds=$2
    shift 2
    rm -f "$scratch/$name.code"
    {
        timeout -k 10 "$for_seconds" "$@" &
        echo $! >"$scratch/$name.pid"
        wait $!
        echo $? >"$scratch/$name.code"
        rm -f "$scratch/$name.pid"
    } 2>&1 | tee -a "$table" &
    eval "printer_$name=\$!"
}

# end NAME SECONDS: waits for it, and judges how it ended.
end() {
    eval "wait \$printer_$1"
    code=$(cat "$scratch/$1.code" 2>/dev/null || echo 1)
    took=$(($(date +%s) - part_began))
    # 137: its limit's second signal, or somebody else's, for example for want of memory.
    case $code in
    0) ;;
    124) say "$1 was stopped after $2 s: what it printed was known by then" ;;
    137) if [ "$took" -ge "$2" ]; then say "$1 was killed after $2 s"; else fail "$1 was killed after $took s"; fi ;;
    *) fail "$1: something is wrong (exit code $code)" ;;
    esac
}

fail() {
    wrong=1
    say "$*"
}

# begin_python PART SECONDS: a part of gpu_run.py, which stops by itself a little earlier.
begin_python() {
    begin "$1" "$2" nice -n "$([ "$1" = warm ] && echo 10 || echo 0)" python3 "$root/tests/tools/gpu_run.py" "$1" "$results" \
        --trainwright "$trainwright" --device "$device" --seconds "$(($2 - ($2 + 9) / 10))"
}

# Why a part cannot run here; nothing if it can.
lacks() {
    case $1 in
    kernels | versions | torch | sanitizer)
        if [ "$device" != cuda ]; then
            echo "it needs a GPU"
            return
        fi
        ;;
    esac
    case $1 in
    kernels | versions) ;;
    sanitizer) command -v compute-sanitizer >/dev/null 2>&1 || echo "compute-sanitizer is not there" ;;
    *)
        if [ "$has_python" = no ]; then
            echo "python3 is not there"
        elif [ ! -x "$trainwright" ]; then
            echo "no program at $trainwright"
        fi
        ;;
    esac
}

# sanitize TOOL SECONDS: the kernels under one tool of compute-sanitizer.
sanitize() {
    begin "$1" "$2" compute-sanitizer --tool "$1" --error-exitcode 3 --log-file "$results/sanitizer-$1.txt" "$check" "$results/$1" checks
    end "$1" "$2"
    found=$(grep -c '=========.*\(Invalid\|hazard\|Error:\)' "$results/sanitizer-$1.txt" 2>/dev/null)
    say "compute-sanitizer $1: ${found:-0} findings"
    if [ "${found:-0}" -gt 0 ]; then wrong=1; fi
}

wrong=0
for part in $parts; do
    seconds=$(limit "$part")
    part_began=$(date +%s)
    missing=$(lacks "$part")
    if [ -n "$missing" ]; then
        say "== $part is left out: $missing"
        continue
    fi
    say "== $part, $seconds s at most, begins after $((part_began - began)) s"
    case $part in
    kernels)
        # Nothing is timed in it, so that PyTorch may compile beside it.
        warms=no
        case $parts in *" torch"*) [ -z "$(lacks torch)" ] && warms=yes ;; esac
        if [ "$warms" = yes ]; then begin_python warm "$seconds"; fi
        begin kernels "$seconds" "$check" "$results" checks
        end kernels "$seconds"
        if [ "$warms" = yes ]; then wait "$printer_warm"; fi
        ;;
    versions)
        begin versions "$seconds" "$check" "$results" versions
        end versions "$seconds"
        ;;
    sanitizer)
        sanitize memcheck $((seconds / 2))
        part_began=$(date +%s)
        sanitize racecheck $((seconds / 2))
        ;;
    *)
        begin_python "$part" "$seconds"
        end "$part" "$seconds"
        ;;
    esac
    pack
done
nvidia-smi --query-gpu=clocks.sm,clocks.mem,temperature.gpu --format=csv >>"$results/gpu.txt" 2>/dev/null
say "done after $(($(date +%s) - began)) s: $folder/table.txt and gpu-results.tar.gz"
pack
exit "$wrong"
