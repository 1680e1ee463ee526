#!/bin/bash
# Trains plans with processes that MPI started and with threads, and looks what becomes of the others when one is killed or
# hangs. Needs mpirun and a program that was built with its feature `mpi`:
#
#   cargo build --features mpi && tests/mpi.sh target/debug/trainwright
#
# Exits with 1 where something is wrong; says so and exits with 0 where MPI is not there, unless TRAINWRIGHT_MPI=1. About a
# minute on two cores.
set -u
program=$(realpath "${1:-target/debug/trainwright}")
plans=$(dirname "$(realpath "$0")")/../examples/validation
folder=$(mktemp -d)
launcher=
# What was started ends with this script, however that ends.
trap '[ -n "$launcher" ] && kill "$launcher" 2>/dev/null; rm -rf "$folder"' EXIT
cd "$folder" || exit 1

wrong() { echo "wrong: $1"; exit 1; }
skip() {
  if [ "${TRAINWRIGHT_MPI:-0}" = 1 ]; then wrong "$1, though TRAINWRIGHT_MPI=1 insists on it"; fi
  echo "skipped: $1"
  exit 0
}

command -v mpirun >/dev/null || skip "there is no mpirun here"
mpi=(mpirun)
# Open MPI must be told that ranks may outnumber cores, and asked whether root may.
if mpirun --version | grep -q "Open MPI"; then mpi+=(--oversubscribe); fi
if [ ${#mpi[@]} = 2 ] && [ "$(id -u)" = 0 ]; then mpi+=(--allow-run-as-root); fi
said=$(RANK=0 WORLD_SIZE=2 "$program" run "$plans/03-data-2.toml" --transport mpi --steps 1 2>&1 </dev/null)
case $said in *"without its feature"*) skip "$program was built without its feature mpi" ;; esac

# More axes than the plans of the examples have.
cat > model.json <<'JSON'
{"model_type": "mixtral", "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 4,
 "intermediate_size": 24, "vocab_size": 256, "hidden_act": "silu", "tie_word_embeddings": false,
 "max_position_embeddings": 64, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": null}
JSON
"$program" plan --model ./model.json --cluster piz-daint-p100:4 --stack trainwright --seq 16 --global-batch 8 \
  --precision fp32 --tensor 1 --pipeline 1 --data 4 --micro-batch 1 --data-sharding none --recompute none \
  --schedule 1f1b --quiet --out data.toml >/dev/null || wrong "no plan was made"
sed 's/^data = 4/data = 4\nexpert = 4/' data.toml > expert.toml
sed 's/^data = 4/data = 1\ncontext = 4/' data.toml > context.toml

# Losses and norms of steps without times, as the numbers are.
steps() { grep -E '"(step|loss|gradient_norm)"' "$1"; }

# same PLAN RANKS SAVES: the same bits, those of the weights too where there is a checkpoint.
same() {
  local plan=$1 ranks=$2 saves=$3 name
  name=$(basename "$plan" .toml)
  local run=(run "$plan" --steps 3 --json)
  for kind in threads mpi; do
    local own=("${run[@]}")
    if [ "$saves" = saves ]; then own+=(--save "$kind-$name"); fi
    if [ $kind = threads ]; then
      "$program" "${own[@]}" --transport threads > "$kind.json" || wrong "$name with threads"
    else
      "${mpi[@]}" -n "$ranks" "$program" "${own[@]}" --transport mpi > "$kind.json" || wrong "$name with MPI"
    fi
  done
  steps threads.json > threads.steps; steps mpi.json > mpi.steps
  [ -s threads.steps ] && cmp -s threads.steps mpi.steps || wrong "$name: the losses differ: $(diff threads.steps mpi.steps)"
  if [ "$saves" = saves ]; then
    for file in model optimizer; do
      cmp "threads-$name/step-00000003/$file.safetensors" "mpi-$name/step-00000003/$file.safetensors" || wrong "$name: $file"
    done
  fi
  rm -rf "threads-$name" "mpi-$name"
  echo "same bits: $name, $ranks ranks"
}
same "$plans/03-data-2.toml" 2 saves
same "$plans/07-zero3.toml" 2 saves
same "$plans/10-tensor-4.toml" 4 saves
same "$plans/12-pipeline-4-1f1b.toml" 4 saves
same "$plans/14-pipeline-2-interleaved.toml" 2 saves
same "$plans/18-three-axes.toml" 8 saves
same context.toml 4 no
same expert.toml 4 no

# Forecast and measurement of processes, twice: they meet, part and meet again.
cat > host.toml <<'TOML'
nodes = 1
[node]
gpu = "rtx-4090"
gpus = 2
interconnect = "pcie4"
TOML
"${mpi[@]}" -n 2 "$program" validate "$plans/03-data-2.toml" --transport mpi --cluster host.toml --steps 2 --rounds 2 --json \
  > out 2> err || wrong "validate: $(cat err)"
[ "$(grep -c step_time_s out)" = 1 ] || wrong "one process alone prints: $(cat out)"
echo "validated: $(grep -A 3 step_time_s out | tr -d "\n")"

# after SIGNAL WITHIN EXPECTED: what becomes of three ranks when the fourth is sent the signal.
after() {
  local signal=$1 within=$2 expected=$3 ranks
  "${mpi[@]}" -n 4 "$program" run "$plans/12-pipeline-4-1f1b.toml" --transport mpi --steps 1000000 --patience 3 > out 2>&1 &
  launcher=$!
  for _ in $(seq 1200); do grep -q "^step" out && break; sleep 0.1; done
  sleep 1
  # Launchers say in the environment which rank a process is.
  ranks=()
  local pid rank
  for pid in $(pgrep -f "^$program run"); do
    rank=$(tr "\0" "\n" < "/proc/$pid/environ" | sed -nE "s/^(OMPI_COMM_WORLD_RANK|PMI_RANK)=//p")
    ranks[$rank]=$pid
  done
  [ ${#ranks[@]} = 4 ] || wrong "there are ${#ranks[@]} ranks: $(cat out)"
  local began; began=$(date +%s%N)
  kill "-$signal" "${ranks[2]}"
  wait $launcher && wrong "after $signal the launcher was content"
  launcher=
  local took=$((($(date +%s%N) - began) / 1000000))
  [ $took -lt $((within * 1000)) ] || wrong "after $signal it took $took ms"
  # Launchers break their lines.
  tr "\n" " " < out > line
  grep -qE "$expected" line || wrong "after $signal: $(cat out)"
  for _ in $(seq 20); do kill -0 "${ranks[@]}" 2>/dev/null || break; sleep 0.1; done
  for rank in "${ranks[@]}"; do kill -0 "$rank" 2>/dev/null && wrong "after $signal process $rank is left"; done
  echo "after $signal all had ended in $took ms: $(grep -oE "$expected" line)"
}
# As Open MPI and as MPICH say it.
after KILL 5 "rank 2 .*signal 9|Killed \(signal 9\)"
after STOP 8 "rank 2 stopped in step .* nothing has come from its process for 3 s"

"${mpi[@]}" -n 2 "$program" run "$plans/03-data-2.toml" --transport mpi --steps 3 --drill death:1:2:20 > out 2>&1 && wrong "a drill passed"
grep -q "rank 1 stopped in step 2 at" out || wrong "after a drill: $(cat out)"
"${mpi[@]}" -n 2 "$program" run "$plans/10-tensor-4.toml" --transport mpi --steps 3 > out 2>&1 && wrong "two ranks ran a plan of four"
grep -q "each runs one rank" out || wrong "with too few ranks: $(cat out)"
echo "all as it should be"
