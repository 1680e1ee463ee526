"""cuDNN's attention in the form that gives the same bits in every run, and in the one that need not: speed, and the losses' bits."""

import json
import pathlib
import tempfile

from gpu import plans, training
from gpu.work import NotDone, Stopped, Table, call

FLAG = "--deterministic"
CUDNN = ["--attention", "cudnn"]


def part(args, clock):
    """The small model both ways, and once more for the bits. How many runs are wrong."""
    case, table = plans.measured(args.device)[0], Table(args.folder / "deterministic.csv", training.HEAD)
    with tempfile.TemporaryDirectory() as folder:
        try:
            if FLAG not in call([args.trainwright, "run", "--help"], clock):
                print(f"{FLAG}: left out: `run` has no such option", flush=True)
                return 0
            path = case.make(args, pathlib.Path(folder), clock)
        except (NotDone, OSError) as error:
            print(f"{FLAG}: {error}", flush=True)
            return not isinstance(error, Stopped)
        wrong = training.measure(args, table, case, path, "not deterministic", clock, CUDNN)
        wrong += training.measure(args, table, case, path, "deterministic", clock, [*CUDNN, FLAG])
        rates = [float(row[training.HEAD.index("tokens/s")]) for row in table.rows if "measured" in row]
        if len(rates) == 2:
            print(f"{case}: deterministic attention trains at {rates[1] / rates[0]:.3f} of the speed", flush=True)
        return wrong + same_bits(args, path, clock)


def same_bits(args, path, clock):
    """Trains twice with the flag. Whether the losses differ in any bit."""
    command = training.command(args, path, args.steps, ["--device", args.device, "--json", *CUDNN, FLAG])
    try:
        losses = [[step["loss"] for step in json.loads(call(command, clock))["steps"]] for _ in range(2)]
    except (NotDone, ValueError, KeyError) as error:
        result = "stopped" if isinstance(error, Stopped) else "WRONG"
        print(f"{FLAG}, twice: {result}: {error}", flush=True)
        return result == "WRONG"
    print(f"{FLAG}, twice: the losses of {args.steps} steps {'are the same' if losses[0] == losses[1] else 'differ: WRONG'}", flush=True)
    return losses[0] != losses[1]
