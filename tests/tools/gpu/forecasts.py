"""What the ops of the measured shapes take, and forecasts from that beside runs."""

import json
import math
import pathlib
import tempfile

from gpu import plans
from gpu.work import Failed, Stopped, Table, call

HEAD = ["model", "sequences", "result", "forecast s", "measured s", "error", "forecast bytes", "measured bytes", "error of memory",
        "words"]
# What `calibrate` leaves in the folder of results.
PROFILE = "measured"


def calibrate(args, clock):
    """One calibration of the machine and of all shapes. How much is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        command = [args.trainwright, "calibrate", "--device", args.device, "--out", args.folder / PROFILE]
        try:
            for name, config, batch, sequence in plans.measured(args.device):
                own = pathlib.Path(folder) / name
                command += ["--plan", plans.make(args.trainwright, own, config, plans.MEASURED, sequence, batch, batch, clock)]
            print(call(command, clock), flush=True)
        except Stopped as stopped:
            print(f"calibrate: stopped: {stopped}", flush=True)
        except Failed as failed:
            print(f"calibrate: WRONG: {failed}", flush=True)
            return 1
    return 0


def part(args, clock):
    """Every shape; how many fail. Where nothing was calibrated each measures its own ops first."""
    wrong, table = 0, Table(args.folder / "validation.csv", HEAD)
    measured = args.folder / PROFILE
    profile = ["--profile", measured] if (measured / "kernels.csv").exists() else []
    shapes = plans.measured(args.device)
    with tempfile.TemporaryDirectory() as folder:
        for index, (name, config, batch, sequence) in enumerate(shapes):
            own = clock.within(clock.left() / (len(shapes) - index))
            try:
                path = plans.make(args.trainwright, pathlib.Path(folder) / name, config, plans.MEASURED, sequence, batch, batch, own)
                found = json.loads(call([args.trainwright, "validate", path, "--device", args.device, *profile,
                                         "--steps", args.steps, "--json"], own))
            except (Stopped, Failed, ValueError) as error:
                result = "stopped" if isinstance(error, Stopped) else "WRONG"
                wrong += result == "WRONG"
                table.add([name, batch, result, "", "", "", "", "", "", error], f"{name:12} {result}: {error}")
                continue
            step, memory = found["step_time_s"], found["peak_memory_bytes"]
            errors = [pair["forecast"] / pair["measured"] - 1 if pair["measured"] else math.nan for pair in (step, memory)]
            table.add([name, batch, "measured", step["forecast"], step["measured"], f"{errors[0]:.4f}", memory["forecast"],
                       memory["measured"], f"{errors[1]:.4f}", ""],
                      f"{name:12} {batch} x {sequence} tokens: {1e3 * step['forecast']:.2f} ms forecast, {1e3 * step['measured']:.2f} ms "
                      f"measured: {100 * errors[0]:+.1f} %, memory {100 * errors[1]:+.1f} %")
    return wrong
