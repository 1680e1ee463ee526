"""Tokens per second of the measured shapes beside PyTorch's, one program after the other on the same GPU."""

import concurrent.futures
import csv
import json
import pathlib
import re
import statistics
import sys
import tempfile

from gpu import plans
from gpu.work import Clock, Failed, NotDone, Stopped, Table, call, foreign_environment

PROGRAM = pathlib.Path(__file__).resolve().parents[1] / "gpu_run.py"
HEAD = ["model", "sequences", "program", "result", "seconds", "spread", "tokens/s", "MFU", "memory bytes", "attention", "how",
        "trainwright's tokens/s over these", "words"]
# Parity's is too much for large models without a warm-up: it can end in numbers that are none.
LEARNING_RATE = 1e-4
# Weights of a large model are made before the first op.
PATIENCE = 120
# Before a graph tells the steps, or where none does.
WARM_UP = 3
# Seconds in which PyTorch surely compiles single blocks and trains some steps.
BLOCKS = 50
# Seconds within which the whole of a large model may be compiled without anything in the caches.
WHOLE = 100
# What fills PyTorch's caches, one list beside the other: the small model as a whole, the large ones first by their blocks.
WARM = [[("gpt-2 124M", "whole")],
        [("gpt-2 1.5B", "blocks"), ("llama 1B", "blocks"), ("llama 1B", "whole"), ("gpt-2 1.5B", "whole")]]
CACHES = "torch.csv"


def spread(seconds):
    """The middle half of the steps lies within this share of the median."""
    ordered = sorted(seconds)
    return (ordered[3 * len(ordered) // 4] - ordered[len(ordered) // 4]) / statistics.median(ordered)


def own_run(args, path, clock):
    """Seconds of our steps, and what a run says beside them."""
    ran = json.loads(call([args.trainwright, "run", path, "--device", args.device, "--steps", args.steps, "--json",
                           "--learning-rate", LEARNING_RATE, "--patience", PATIENCE], clock))
    graph = re.fullmatch(r"from step (\d+)", ran.get("graph", ""))
    first = int(graph[1]) if graph else WARM_UP
    # The last step is told op by op, which waits for each.
    ran["seconds"] = [step["seconds"] for step in ran["steps"] if first < step["step"] < args.steps]
    return ran


def rival(args, name, compiled, steps, clock):
    """What PyTorch says of each variant of attention that it has trained with; more than one, or Failed or Stopped."""
    # It begins no second variant when less is left than the first one took.
    command = [sys.executable, PROGRAM, "torch", args.folder, "--model", name, "--compile", compiled, "--steps", steps,
               "--device", args.device, "--seconds", clock.left()]
    try:
        printed = call(command, clock, foreign_environment())
    except NotDone as error:
        found = variants(error.printed)
        if not found:
            raise
        print(f"{name:12} PyTorch, {compiled}, no further choice of attention: {error}", flush=True)
        return found
    return variants(printed)


def variants(printed):
    """The lines of a rival that are whole."""
    found = []
    for line in printed.splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return [each for each in found if isinstance(each, dict)]


def warm(args, clock):
    """Fills PyTorch's caches of what it compiles, so that `part` waits less; says what was done in time."""
    table = Table(args.folder / CACHES, ["model", "compiled", "result", "seconds", "words"])

    def lane(each):
        for name, compiled in each:
            before = clock.left()
            try:
                rival(args, name, compiled, 2, clock)
                result, words = "done", ""
            except NotDone as error:
                result, words = type(error).__name__.lower(), str(error)
            took = before - clock.left()
            table.add([name, compiled, result, f"{took:.1f}", words],
                      f"PyTorch's caches: {name}, {compiled}: {result} in {took:.0f} s {words}")

    lanes = WARM if args.device == "cuda" else [[(name, "whole") for name, _, _, _ in plans.measured(args.device)]]
    with concurrent.futures.ThreadPoolExecutor(len(lanes)) as pool:
        list(pool.map(lane, lanes))
    return 0


def ways_to_compile(args, name, room):
    """Whole models where that has been done in less than the room there is, or may have time; blocks always have."""
    try:
        with open(args.folder / CACHES, newline="") as file:
            done = {(row["model"], row["compiled"]): float(row["seconds"]) for row in csv.DictReader(file) if row["result"] == "done"}
    except OSError:
        done = {}
    return ["whole", "blocks"] if done.get((name, "whole"), WHOLE + BLOCKS) <= room else ["blocks"]


def part(args, clock):
    """Each shape by both programs. How many of our runs fail."""
    wrong, table = 0, Table(args.folder / "speed.csv", HEAD)
    shapes = plans.measured(args.device)
    with tempfile.TemporaryDirectory() as folder:
        for index, shape in enumerate(shapes):
            share = clock.within(clock.left() / (len(shapes) - index))
            wrong += compare(args, pathlib.Path(folder), table, shape, share)
    return wrong


def compare(args, folder, table, shape, clock):
    """One shape. Whether our run failed."""
    name, config, batch, sequence = shape
    tokens, rate, wrong = batch * sequence, None, False

    def note(program, seconds, memory, attention, how):
        median = statistics.median(seconds)
        own = tokens / median
        over = f"{rate / own:.3f}" if rate and program != "trainwright" else ""
        mfu = f"{flops / median / peak:.4f}"
        table.add([name, batch, program, "measured", median, f"{spread(seconds):.4f}", f"{own:.1f}", mfu, memory, attention, how, over, ""],
                  f"{name:12} {batch} x {sequence} tokens: {program} {own:,.0f} tokens/s, {1e3 * median:.2f} ms, MFU {100 * float(mfu):.1f} % "
                  f"(attention: {attention}; {how})")
        return own

    def lack(program, how, error):
        result = "stopped" if isinstance(error, Stopped) else "failed"
        table.add([name, batch, program, result, *[""] * 6, how, "", error], f"{name:12} {program} {how}: {result}: {error}")

    try:
        path = plans.make(args.trainwright, folder / name, config, plans.MEASURED, sequence, batch, batch, clock)
        forecast = json.loads(call([args.trainwright, "simulate", path, "--json"], clock))["forecast"]
        # Model FLOP of a step with half of attention's under the mask, and the dense peak that this forecast divides by.
        flops = forecast["model_flops_causal_attention"]
        peak = flops / forecast["step_time_s"] / forecast["mfu_causal_attention"]
    except (NotDone, ValueError, KeyError) as error:
        lack("trainwright", "plan", error)
        return True
    try:
        ran = own_run(args, path, clock)
        rate = note("trainwright", ran["seconds"], ran.get("device_memory_bytes", ""), ran.get("attention", ""),
                    f"graph: {ran.get('graph', 'none')}")
    except (NotDone, ValueError, KeyError) as error:
        lack("trainwright", "run", error)
        wrong = not isinstance(error, Stopped)

    ways, found = ways_to_compile(args, name, clock.left()), []
    for at, compiled in enumerate(ways):
        room = clock.left()
        limit = room if at == len(ways) - 1 else max(room - BLOCKS, 0.75 * room)
        try:
            found = rival(args, name, compiled, args.steps, Clock(limit))
        except NotDone as error:
            lack("PyTorch", f"{compiled} compiled", error)
            continue
        best = max(note("PyTorch", each["seconds"], each["memory"], each["attention"],
                        f"{compiled} compiled in {each['compile_s']:.0f} s") for each in found)
        if rate:
            print(f"{name:12} trainwright's tokens/s are {rate / best:.3f} of PyTorch's best", flush=True)
        break
    return wrong
