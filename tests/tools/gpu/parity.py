"""Losses of plans on a GPU beside those of the CPU, several plans at a time: nothing here is timed."""

import concurrent.futures
import json
import os
import pathlib
import socket
import tempfile

from gpu import plans
from gpu.work import Failed, Stopped, Table, call

AT_A_TIME = min(4, os.cpu_count() or 1)
# Relative, of each step's loss. f32: sums in another order. The CPU's bf16 differs from its fp32 by 2e-4 within 20 steps, its fp8 by
# 1e-3, an emulated GPU's from the CPU's by half of that: ten times as much.
TOLERANCE = {"fp32": 1e-4, "bf16": 3e-3, "fp8": 1e-2}
LEARNING_RATE = 0.003
# Seconds without anything happening after which a run gives up, so that one that hangs is WRONG instead of stopped.
PATIENCE = 60
HEAD = ["plan", "result", "steps", "largest relative difference of a loss", "tolerance", "last loss", "last loss on the cpu",
        "communication", "attention", "words"]


def run(args, path, device, clock, place="", processes=1):
    """What a run says of itself, as JSON. Raises Failed with the program's words, or Stopped."""
    command = [args.trainwright, "run", path, "--device", device, "--steps", args.steps, "--json",
               "--learning-rate", LEARNING_RATE, "--patience", PATIENCE]
    if device == "cpu":
        command += ["--threads", max(1, (os.cpu_count() or 1) // AT_A_TIME)]
    environment = {**os.environ, **({"CUDA_VISIBLE_DEVICES": place} if place else {})}
    if processes == 1:
        return json.loads(call(command, clock, environment))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment |= {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port)}
    command += ["--transport", "tcp"]
    with concurrent.futures.ThreadPoolExecutor(processes) as pool:
        ranks = [pool.submit(call, command, clock, {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)})
                 for rank in range(processes)]
    # What stopped the others is said by the one that failed.
    for rank in ranks:
        if isinstance(rank.exception(), Failed):
            raise rank.exception()
    return json.loads(ranks[0].result())


def judge(shape, several, place, processes, own, expected):
    """The largest relative difference of a loss, and whether that and the ways between ranks are as they should be."""
    losses = [[step["loss"] for step in steps] for steps in (own["steps"], expected["steps"])]
    error = max(abs(a / b - 1) for a, b in zip(*losses, strict=True))
    right = error <= TOLERANCE[shape.precision]
    # Ranks of one process on one GPU have no need of the host, but for what modules send step by step.
    stepwise = shape.context > 1 or shape.expert > 1 or shape.tensor_scheme != "1d"
    if (place or not several) and processes == 1 and not stepwise:
        right = right and "through the host" not in own.get("communication", {}).values()
    return error, right


def case(args, clock, table, several, shape, name):
    """One plan, everywhere it runs. How many of its rows are wrong."""
    # Where the ranks are: the GPUs they see, and how many processes they are in.
    places = [("", 1)] + ([("0", 1)] if several and shape.ranks() > 1 else [])
    if shape in plans.PROCESSES:
        places.append(("", shape.ranks()))
    labels = [f"{name}: {shape}{', one GPU' if place else ''}{', processes' if processes > 1 else ''}" for place, processes in places]

    if clock.left() <= 0:
        for label in labels:
            table.add([label, "not begun", *[""] * (len(HEAD) - 2)])
        return 0

    def note(label, result, words="", numbers=("", "", "", "", "", "", ""), line=None):
        table.add([label, result, *numbers, words], f"{label:76} {line or f'{result}: {words}'}")
        return result == "WRONG"

    with tempfile.TemporaryDirectory() as folder:
        try:
            # A grid of tensor ranks divides the sequences of a microbatch.
            micro_batch = 2 if shape.tensor_scheme == "2d" else 1
            path = plans.make(args.trainwright, pathlib.Path(folder), plans.TOYS[name], shape, 64, 8, micro_batch, clock)
            expected = run(args, path, "cpu", clock)
        except Stopped as stopped:
            return sum(note(label, "stopped", stopped) for label in labels)
        except (Failed, ValueError) as failed:
            return sum(note(label, "WRONG", f"no plan, or none for the CPU: {failed}") for label in labels)
        wrong = 0
        for label, (place, processes) in zip(labels, places):
            try:
                own = run(args, path, args.device, clock, place, processes)
                error, right = judge(shape, several, place, processes, own, expected)
            except Stopped as stopped:
                note(label, "stopped", stopped)
                continue
            except (Failed, ValueError, KeyError) as failed:
                wrong += note(label, "WRONG", failed)
                continue
            ways = ", ".join(f"{axis} {way}" for axis, way in own.get("communication", {}).items())
            numbers = [args.steps, f"{error:.3e}", TOLERANCE[shape.precision], own["steps"][-1]["loss"],
                       expected["steps"][-1]["loss"], ways, own.get("attention", "")]
            wrong += note(label, "right" if right else "WRONG", "", numbers, f"{error:9.2e} {'' if right else 'WRONG '}{ways}")
        return wrong


def part(args, clock):
    """All plans of the grid; how many rows are wrong."""
    several = args.device == "cuda" and plans.gpus() > 1
    table = Table(args.folder / "parity.csv", HEAD)
    cases = []
    for shape in plans.GRID[:args.plans]:
        if shape.precision == "fp8" and args.device == "cuda" and not plans.multiplies_eight():
            print(f"{shape}: left out, as not all GPUs have such products")
            continue
        cases += [(shape, name) for name in shape.models()]
    with concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as pool:
        wrong = sum(pool.map(lambda each: case(args, clock, table, several, *each), cases))
    print(table.counts("result"), flush=True)
    return wrong
