"""Forecasts of the measured models beside what they take, and the calibration of the machine for later forecasts."""

import json
import math
import pathlib
import tempfile

from gpu import plans
from gpu.work import Failed, Stopped, Table, call

HEAD = ["model", "sequences", "times from", "result", "forecast s", "measured s", "error", "forecast bytes", "measured bytes",
        "error of memory", "words"]
# What `calibrate` leaves in the folder of results.
PROFILE = "measured"
# Parts of the seconds: for the forecasts by times measured just before, and for the calibration.
VALIDATE, CALIBRATE = 0.45, 0.8


def part(args, clock):
    """Each model's forecast, from its own ops measured just before; then a calibration, and the small model's forecast from that.

    How many programs fail.
    """
    wrong, table, cases = 0, Table(args.folder / "forecasts.csv", HEAD), plans.measured(args.device)
    if args.device != "cuda":
        cases = cases[:1]
    with tempfile.TemporaryDirectory() as folder:
        try:
            paths = [case.make(args, pathlib.Path(folder) / case.name, clock) for case in cases]
        except (Stopped, Failed, OSError) as error:
            print(f"forecasts: no plan: {error}", flush=True)
            return not isinstance(error, Stopped)
        early = clock.within(VALIDATE * clock.left())
        for index, (case, path) in enumerate(zip(cases, paths)):
            wrong += validate(args, table, case, path, [], early.within(early.left() / (len(cases) - index)))
        wrong += calibrate(args, paths, clock.within(CALIBRATE * clock.left()))
        if (args.folder / PROFILE / "kernels.csv").exists():
            wrong += validate(args, table, cases[0], paths[0], ["--profile", args.folder / PROFILE], clock)
    return wrong


def calibrate(args, paths, clock):
    """One calibration of the machine and of the ops of all plans. Whether it failed."""
    command = [args.trainwright, "calibrate", "--device", args.device, "--out", args.folder / PROFILE]
    for path in paths:
        command += ["--plan", path]
    try:
        print(call(command, clock).rstrip(), flush=True)
    except Stopped as stopped:
        print(f"calibrate: stopped: {stopped}", flush=True)
    except Failed as failed:
        print(f"calibrate: WRONG: {failed}", flush=True)
        return True
    return False


def validate(args, table, case, path, profile, clock):
    """One forecast beside a run. Whether the program failed."""
    source = "calibrate" if profile else "its own ops"
    try:
        found = json.loads(call([args.trainwright, "validate", path, "--device", args.device, *profile, "--steps", args.steps, "--json"],
                                clock))
        step, memory = found["step_time_s"], found["peak_memory_bytes"]
    except (Stopped, Failed, ValueError, KeyError) as error:
        result = "stopped" if isinstance(error, Stopped) else "WRONG"
        table.add([case.name, case.sequences, source, result, *[""] * 6, error], f"{case}: forecast from {source}: {result}: {error}")
        return result == "WRONG"
    errors = [pair["forecast"] / pair["measured"] - 1 if pair["measured"] else math.nan for pair in (step, memory)]
    table.add([case.name, case.sequences, source, "measured", step["forecast"], step["measured"], f"{errors[0]:.4f}", memory["forecast"],
               memory["measured"], f"{errors[1]:.4f}", ""],
              f"{case}: {1e3 * step['forecast']:.2f} ms forecast from {source}, {1e3 * step['measured']:.2f} ms measured: "
              f"{100 * errors[0]:+.1f} %, memory {100 * errors[1]:+.1f} %")
    return False
