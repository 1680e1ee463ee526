"""Tokens per second of the large models, and PyTorch's of all measured models on the same GPU, one program after the other."""

import concurrent.futures
import csv
import importlib.util
import json
import pathlib
import statistics
import sys
import tempfile

from gpu import plans, training
from gpu.training import spread
from gpu.work import Clock, NotDone, Stopped, Table, follow, foreign_environment

PROGRAM = pathlib.Path(__file__).resolve().parents[1] / "gpu_run.py"
HEAD = ["model", "sequences", "result", "seconds", "spread", "tokens/s", "MFU", "memory bytes", "attention", "how",
        "trainwright's tokens/s over these", "words"]
# Seconds in which PyTorch surely compiles single blocks and trains some steps.
BLOCKS = 40
# Seconds within which the whole of a large model may be compiled with empty caches.
WHOLE = 100
# What fills PyTorch's caches, one list beside the other: the small model as a whole, the large ones first by their blocks.
WARM = [[("gpt-2 124M", "whole")],
        [("llama 1B", "blocks"), ("gpt-2 1.5B", "blocks"), ("llama 1B", "whole"), ("gpt-2 1.5B", "whole")]]
CACHES = "torch-caches.csv"
# The tables of our own runs, by `first` and `large`.
OURS = ["first.csv", "large.csv"]


def large(args, clock):
    """Our runs of the large models. How many are wrong."""
    wrong, table = 0, Table(args.folder / "large.csv", training.HEAD)
    # From the end: LLaMA 1B says something earlier than the largest one.
    cases = plans.measured(args.device)[:0:-1]
    with tempfile.TemporaryDirectory() as folder:
        for index, case in enumerate(cases):
            own = clock.within(clock.left() / (len(cases) - index))
            try:
                path = case.make(args, pathlib.Path(folder) / case.name, own)
            except (NotDone, OSError) as error:
                print(f"{case}: no plan: {error}", flush=True)
                wrong += not isinstance(error, Stopped)
                continue
            wrong += training.measure(args, table, case, path, "a graph", own)
    return wrong


def is_missing():
    """Whether PyTorch cannot be imported; says so."""
    missing = importlib.util.find_spec("torch") is None
    if missing:
        print("PyTorch is left out: Python finds no package `torch`", flush=True)
    return missing


def rival(args, name, compiled, steps, clock):
    """What PyTorch says of each variant of attention that it has trained with; at least one, or it raises Failed or Stopped."""
    # It begins no second variant when less is left than the first one took.
    command = [sys.executable, PROGRAM, "rival", args.folder, "--model", name, "--compile", compiled, "--steps", steps,
               "--device", args.device, "--seconds", clock.left()]
    def on_line(line):
        # What is no result yet.
        if line and not line.startswith("{"):
            print(f"{name:12} PyTorch: {line}", flush=True)

    try:
        printed = follow(command, clock, on_line, foreign_environment())
    except NotDone as error:
        found = variants(error.printed)
        if not found:
            raise
        print(f"{name:12} PyTorch, {compiled}, no further choice of attention: {error}", flush=True)
        return found
    return variants(printed)


def variants(printed):
    """The complete lines that a rival printed."""
    found = []
    for line in printed.splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return [each for each in found if isinstance(each, dict)]


def warm(args, clock):
    """Fills PyTorch's caches of compiled kernels, so that `part` waits less; says what was done in time."""
    if is_missing():
        return 0
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

    lanes = WARM if args.device == "cuda" else [[(case.name, "whole") for case in plans.measured(args.device)]]
    with concurrent.futures.ThreadPoolExecutor(len(lanes)) as pool:
        list(pool.map(lane, lanes))
    return 0


def ways_to_compile(args, name, room):
    """`whole` where that was done before in less than the seconds there are, or may have time; `blocks` always has."""
    done = {(row["model"], row["compiled"]): float(row["seconds"]) for row in rows(args.folder / CACHES) if row["result"] == "done"}
    return ["whole", "blocks"] if done.get((name, "whole"), WHOLE + BLOCKS) <= room else ["blocks"]


def rows(path):
    """The rows of a table; none if it is not there."""
    try:
        with open(path, newline="") as file:
            return list(csv.DictReader(file))
    except OSError:
        return []


def part(args, clock):
    """PyTorch's runs of every model beside ours, which were written before. Nothing of it makes our programs wrong."""
    if is_missing():
        return 0
    table = Table(args.folder / "torch.csv", HEAD)
    ours = [row for name in OURS for row in rows(args.folder / name) if row["result"] == "measured"]
    cases = plans.measured(args.device)
    for index, case in enumerate(cases):
        share = clock.within(clock.left() / (len(cases) - index))
        compare(args, table, case, [row for row in ours if row["model"] == case.name], share)
    return 0


def compare(args, table, case, ours, clock):
    """One model by PyTorch, beside our fastest run of it."""
    best = max(ours, key=lambda row: float(row["tokens/s"]), default=None)

    def note(each, how):
        median = statistics.median(each["seconds"])
        rate = case.tokens() / median
        mfu = f"{float(best['flops']) / median / float(best['peak']):.4f}" if best else ""
        over = f"{float(best['tokens/s']) / rate:.3f}" if best else ""
        table.add([case.name, case.sequences, "measured", f"{median:.6g}", f"{spread(each['seconds']):.4f}", f"{rate:.1f}", mfu,
                   each["memory"], each["attention"], how, over, ""],
                  f"{case}: PyTorch {rate:,.0f} tokens/s, {1e3 * median:.2f} ms, MFU {mfu}, {each['memory'] / 2**30:.2f} GiB "
                  f"(attention: {each['attention']}; {how})")
        return rate

    ways = ways_to_compile(args, case.name, clock.left())
    for at, compiled in enumerate(ways):
        room = clock.left()
        limit = room if at == len(ways) - 1 else max(room - BLOCKS, 0.75 * room)
        try:
            found = rival(args, case.name, compiled, args.steps, Clock(limit))
        except NotDone as error:
            result = "stopped" if isinstance(error, Stopped) else "failed"
            table.add([case.name, case.sequences, result, *[""] * 6, f"{compiled} compiled", "", error],
                      f"{case}: PyTorch, {compiled} compiled: {result}: {error}")
            continue
        rate = max(note(each, f"{compiled} compiled in {each['compile_s']:.0f} s") for each in found)
        if best:
            print(f"{case}: trainwright's tokens/s ({best['run']}) are {float(best['tokens/s']) / rate:.3f} of PyTorch's best", flush=True)
        return
