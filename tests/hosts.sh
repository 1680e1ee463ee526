#!/bin/bash
# Validates plans over emulated hosts: network namespaces whose links let a given rate through. Needs root, ip and tc.
#
#   tests/hosts.sh TRAINWRIGHT FOLDER          prints the page of each plan and rate
#
# Two hosts a rack, the racks joined by a trunk; with one rack the trunk is not used.
set -u
program=$(realpath "$1") folder=$(realpath -m "$2")
here=$(dirname "$(realpath "$0")")/../examples/validation
mkdir -p "$folder"

skip() { echo "skipped: $1"; down; exit 0; }

down() {
  for host in 1 2 3 4; do ip netns del "tw$host" 2>/dev/null; done
  # Their links go with the namespaces, but not at once.
  for link in twv1 twv2 twv3 twv4 twt1 twa twb; do ip link del "$link" 2>/dev/null; done
  sleep 0.5
}

# up HOSTS RATE BURST TRUNK: as many hosts with links of that rate; the last two behind a trunk, if one is given.
up() {
  local hosts=$1 rate=$2 burst=$3 trunk=$4
  down
  ip link add twa type bridge && ip link set twa up || skip "this kernel makes no bridges for us"
  if [ -n "$trunk" ]; then
    ip link add twb type bridge && ip link set twb up
    ip link add twt1 type veth peer name twt2 && ip link set twt1 master twa up && ip link set twt2 master twb up
    tc qdisc add dev twt1 root tbf rate "$trunk" burst "$burst" latency 50ms || skip "this kernel has no tbf"
    tc qdisc add dev twt2 root tbf rate "$trunk" burst "$burst" latency 50ms
  fi
  for host in $(seq "$hosts"); do
    local bridge=twa
    if [ -n "$trunk" ] && [ "$host" -gt $((hosts / 2)) ]; then bridge=twb; fi
    ip netns add "tw$host" || skip "this kernel makes no network namespaces for us"
    ip link add "twv$host" type veth peer name eth0 netns "tw$host" || skip "this kernel makes no veth pairs for us"
    ip link set "twv$host" master "$bridge" up
    ip -n "tw$host" addr add "10.77.0.$host/24" dev eth0
    ip -n "tw$host" link set eth0 up
    ip -n "tw$host" link set lo up
    tc -n "tw$host" qdisc add dev eth0 root tbf rate "$rate" burst "$burst" latency 50ms || skip "this kernel has no tbf"
    tc qdisc add dev "twv$host" root tbf rate "$rate" burst "$burst" latency 50ms
  done
}

# check PLAN HOSTS CLUSTER: a rank on each host.
check() {
  local plan=$1 hosts=$2 cluster=$3 started=()
  echo "== $(basename "$plan" .toml) on $(basename "$cluster" .toml)"
  for host in $(seq "$hosts" -1 1); do
    RANK=$((host - 1)) WORLD_SIZE=$hosts LOCAL_WORLD_SIZE=$hosts MASTER_ADDR=10.77.0.1 MASTER_PORT=29511 \
      ip netns exec "tw$host" timeout 300 "$program" validate "$plan" --transport tcp --emulated --cluster "$cluster" \
      --rounds "${ROUNDS:-3}" --steps "${STEPS:-5}" &
    started+=($!)
  done
  wait "${started[@]}"
}

trap down EXIT
for rate in 100mbit:16kb 1gbit:128kb; do
  up 2 "${rate%:*}" "${rate#*:}" ""
  for plan in data tensor pipeline; do check "$here/hosts/$plan-2.toml" 2 "$here/hosts/two-${rate%:*}.toml"; done | tee -a "$folder/hosts.txt"
  up 4 "${rate%:*}" "${rate#*:}" ""
  for plan in data pipeline; do check "$here/hosts/$plan-4.toml" 4 "$here/hosts/four-${rate%:*}.toml"; done | tee -a "$folder/hosts.txt"
done
up 4 1gbit 128kb 200mbit
check "$here/hosts/data-4.toml" 4 "$here/hosts/trunk.toml" | tee -a "$folder/hosts.txt"
