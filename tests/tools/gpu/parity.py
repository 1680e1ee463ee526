"""Losses of plans on a GPU beside those of the CPU, several plans at a time: nothing here is timed.

In fp32 a tolerance says what is right. In bf16 and fp8 the drift from the CPU stands beside the CPU's own: from fp32, and from another
seed (drift.py).
"""

import concurrent.futures
import ctypes
import glob
import json
import os
import pathlib
import socket
import sys
import tempfile
import typing

from gpu import plans
from gpu.drift import FP32_TOLERANCE, Scale, drift, result
from gpu.work import Failed, Stopped, Table, call

AT_A_TIME = min(4, os.cpu_count() or 1)
LEARNING_RATE = 0.003
# Seconds without anything happening after which a run gives up, so that one that hangs is WRONG instead of stopped.
PATIENCE = 60
# The first version that lets ranks share a GPU, if this variable tells it to.
NCCL_SHARES, NCCL_VARIABLE = (2, 30, 0), "NCCL_MULTI_RANK_GPU_ENABLE"
HEAD = ["plan", "result", "steps", "drift from the CPU", "tolerance", "drift from fp32 on the CPU", "drift from another seed on the CPU",
        "last loss", "last loss on the CPU", "communication", "attention", "words"]


class Place(typing.NamedTuple):
    """Where the ranks of a run are."""
    one_gpu: bool = False
    processes: int = 1
    # Whether NCCL is told to let ranks share a GPU.
    nccl: bool = False

    def environment(self):
        visible = {"CUDA_VISIBLE_DEVICES": "0"} if self.one_gpu else {}
        return {**os.environ, **visible, NCCL_VARIABLE: "1" if self.nccl else "0"}

    def __str__(self):
        own = [(self.one_gpu, "one GPU"), (self.processes > 1, "processes"), (self.nccl, "NCCL")]
        return "".join(f", {name}" for is_so, name in own if is_so)


def run(args, path, device, clock, place=Place(), seed=0):
    """What a run says of itself, as JSON. Raises Failed with the program's words, or Stopped."""
    command = [args.trainwright, "run", path, "--device", device, "--steps", args.steps, "--json", "--seed", seed,
               "--learning-rate", LEARNING_RATE, "--patience", PATIENCE]
    if device == "cpu":
        command += ["--threads", max(1, (os.cpu_count() or 1) // AT_A_TIME)]
    environment = place.environment()
    if place.processes == 1:
        return json.loads(call(command, clock, environment))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment |= {"WORLD_SIZE": str(place.processes), "LOCAL_WORLD_SIZE": str(place.processes), "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port)}
    command += ["--transport", "tcp"]
    with concurrent.futures.ThreadPoolExecutor(place.processes) as pool:
        ranks = [pool.submit(call, command, clock, {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)})
                 for rank in range(place.processes)]
    # What stopped the others is said by the one that failed.
    for rank in ranks:
        if isinstance(rank.exception(), Failed):
            raise rank.exception()
    return json.loads(ranks[0].result())


def losses(ran):
    return [step["loss"] for step in ran["steps"]]


def communicates_well(shape, several, place, ways):
    """Whether ranks communicated as they should where they are."""
    if place.nccl:
        return bool(ways) and all("NCCL" in way for way in ways.values())
    # Ranks of one process on one GPU have no need of the host, except for what modules send step by step.
    stepwise = shape.context > 1 or shape.expert > 1 or shape.tensor_scheme != "1d"
    if (place.one_gpu or not several) and place.processes == 1 and not stepwise:
        return "through the host" not in ways.values()
    return True


def places_of(shape, several, nccl):
    """Where a plan runs: each rank with a GPU of its own if there are several, all on the first GPU, and as processes."""
    places = [Place()]
    if several and shape.ranks() > 1:
        places.append(Place(one_gpu=True))
    if shape in plans.PROCESSES:
        places.append(Place(processes=shape.ranks()))
        if nccl:
            places.append(Place(one_gpu=True, processes=shape.ranks(), nccl=True))
    return places


def on_cpu(args, folder, shape, name, clock):
    """The plan's path, the CPU's run of it, and the drifts on the CPU beside which that of a GPU stands; None in fp32."""
    # A grid of tensor ranks divides the sequences of a microbatch.
    micro_batch = 2 if shape.tensor_scheme == "2d" else 1
    sequence, batch = (64, 8) if args.device == "cuda" else (16, max(2, shape.data))

    def make(precision):
        own = shape._replace(precision=precision)
        return plans.make(args.trainwright, folder / precision, plans.toys(args.device)[name], own, sequence, batch, micro_batch, clock)

    path = make(shape.precision)
    expected = run(args, path, "cpu", clock)
    if shape.precision == "fp32":
        return path, expected, None
    others = [run(args, make("fp32"), "cpu", clock), run(args, path, "cpu", clock, seed=1)]
    return path, expected, Scale.of(losses(expected), *map(losses, others))


def case(args, clock, table, several, nccl, shape, name):
    """One plan, everywhere it runs. How many of its rows are wrong."""
    places = places_of(shape, several, nccl)
    labels = [f"{name}: {shape}{place}" for place in places]

    if clock.left() <= 0:
        for label in labels:
            table.add([label, "not begun", *[""] * (len(HEAD) - 2)])
        return 0

    def note(label, outcome, words="", numbers=("",) * (len(HEAD) - 3), line=None):
        table.add([label, outcome, *numbers, words], f"{label:68} {line or f'{outcome}: {words}'}")
        return outcome == "WRONG"

    with tempfile.TemporaryDirectory() as folder:
        try:
            path, expected, scale = on_cpu(args, pathlib.Path(folder), shape, name, clock)
        except Stopped as stopped:
            return sum(note(label, "stopped", stopped) for label in labels)
        except (Failed, ValueError) as failed:
            return sum(note(label, "WRONG", f"no plan, or none for the CPU: {failed}") for label in labels)
        wrong = 0
        for label, place in zip(labels, places):
            try:
                own = run(args, path, args.device, clock, place)
                found, ways = drift(losses(own), losses(expected)), own.get("communication", {})
            except Stopped as stopped:
                note(label, "stopped", stopped)
                continue
            except (Failed, ValueError, KeyError) as failed:
                wrong += note(label, "WRONG", failed)
                continue
            outcome = result(shape.precision, found, scale) if communicates_well(shape, several, place, ways) else "WRONG"
            said = ", ".join(f"{axis} {way}" for axis, way in ways.items())
            numbers = [args.steps, f"{found:.3e}", "" if scale else FP32_TOLERANCE, *(f"{each:.3e}" for each in scale or ()),
                       *([] if scale else ["", ""]), losses(own)[-1], losses(expected)[-1], said, own.get("attention", "")]
            line = f"{found:.1e} {outcome} {f'({scale})' if scale else ''} {said}"
            wrong += note(label, outcome, "", numbers, line.rstrip())
        return wrong


def nccl_version():
    """NCCL's version as three numbers, or None if no library of it is found."""
    packages = [path for place in sys.path for path in glob.glob(f"{place}/nvidia/*/lib/libnccl.so.2")]
    for name in ["libnccl.so.2", *packages]:
        try:
            library, number = ctypes.CDLL(name), ctypes.c_int()
        except OSError:
            continue
        if library.ncclGetVersion(ctypes.byref(number)) == 0:
            # From 2.9 on: 23007 is 2.30.7.
            return number.value // 10000, number.value % 10000 // 100, number.value % 100
    return None


def may_share_by_nccl(device):
    """Whether two processes on one GPU can communicate by NCCL; one line why not."""
    version = nccl_version() if device == "cuda" else None
    if version and version >= NCCL_SHARES:
        return True
    reason = "it needs a GPU" if device != "cuda" else "NCCL is not there"
    if version:
        reason = f"NCCL is {'.'.join(map(str, version))}, which is before {'.'.join(map(str, NCCL_SHARES))}"
    print(f"two ranks on one GPU by NCCL: left out: {reason}", flush=True)
    return False


def part(args, clock):
    """The first plans of the grid; how many rows are wrong."""
    several = args.device == "cuda" and plans.gpus() > 1
    nccl = may_share_by_nccl(args.device)
    table = Table(args.folder / "parity.csv", HEAD)
    cases = []
    for shape in plans.GRID[:args.plans]:
        if shape.precision == "fp8" and args.device == "cuda" and not plans.multiplies_fp8():
            print(f"{shape}: left out, as not all GPUs multiply fp8", flush=True)
            continue
        cases += [(shape, name) for name in shape.models()]
    with concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as pool:
        wrong = sum(pool.map(lambda each: case(args, clock, table, several, nccl, *each), cases))
    print(table.counts("result"), flush=True)
    return wrong
