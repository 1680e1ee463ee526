#!/usr/bin/env bash
# Asks two builds of the program the questions of tests/same_bytes/questions.txt and compares what they print and write.
#
# usage: tests/same_bytes.sh PROGRAM [PROGRAM]
# With one program, the second answers are its own where the C library uses no instructions beyond x86-64-v2. Exits with 1 where
# bytes differ. Keeps both answers of such a question in a folder that it names.
set -euo pipefail
first=$(realpath "$1")
second=$(realpath "${2:-$1}")
sources=$(dirname "$(realpath "$0")")
folder=$(mktemp -d)
cd "$folder"
answer() { # the program's number, the question's number, the question
    local program=$first tunables=
    if [ "$1" = 2 ]; then program=$second; fi
    # The C library takes other functions for exp, log, pow, sin and cos where these instructions are missing.
    if [ "$1" = 2 ] && [ "$first" = "$second" ]; then tunables=glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4,-AVX512F; fi
    # Arguments have no spaces.
    # shellcheck disable=SC2086
    GLIBC_TUNABLES=$tunables "$program" ${3//OUT/file} >"$2-$1.out" 2>"$2-$1.err" </dev/null && code=0 || code=$?
    echo "exit code $code" >>"$2-$1.out"
    if [ -e file ]; then mv file "$2-$1.file"; fi
    # 0 and 3 are answers.
    if [ "$code" != 0 ] && [ "$code" != 3 ]; then cat "$2-$1.err" && exit 1; fi
}

cp "$sources/same_bytes/jobs.toml" .
awk 'NR == 1 || NR % 300 == 2' "$sources/../traces/published/training.csv" | head -n 13 >runs.csv
"$first" plan --model gpt2 --cluster dgx-a100:1 --seq 256 --global-batch 16 --pin tensor=2 --pin pipeline=2 --out plan.toml \
    >plan.txt

number=0 different=0
while read -r question; do
    number=$((number + 1))
    for program in 1 2; do answer $program $number "$question"; done
    same=yes
    for kind in out err file; do
        if [ -e "$number-1.$kind" ] || [ -e "$number-2.$kind" ]; then
            cmp -s "$number-1.$kind" "$number-2.$kind" || same="no, see $folder/$number-1.$kind and $folder/$number-2.$kind"
        fi
    done
    echo "$same: $question"
    if [ "$same" != yes ]; then different=$((different + 1)); fi
done <"$sources/same_bytes/questions.txt"
echo "$different of $number answers differ"
if [ $different != 0 ]; then exit 1; fi
rm -r "$folder"
