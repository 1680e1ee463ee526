"""Runs of `trainwright run` in a process, followed step by step, and the table of those that are timed."""

import collections
import json
import re
import statistics

from gpu.work import NotDone, Stopped, call, follow

HEAD = ["model", "sequences", "length", "run", "result", "seconds", "spread", "tokens/s", "MFU", "memory", "attention", "graph",
        "flops", "peak", "words"]
# Large enough to learn in some steps, small enough for large models without a warm-up.
LEARNING_RATE = 1e-4
# Seconds without any event on a rank. The weights of a large model are made before the first op.
PATIENCE = 120
# Steps before a CUDA graph replays them; all steps of a run without one.
WARM_UP = 3
# Ops of the last step that are printed, those that took longest.
LONGEST = 6

STEP = re.compile(r"step +(\d+)  loss +(\S+)(?:  norm +\S+)? +([\d,]+) tokens/s")


class Run:
    """What a run printed."""

    def __init__(self, printed, tokens):
        """`tokens` are those of a step. Raises ValueError if there is no step."""
        steps = [STEP.match(line) for line in printed.splitlines()]
        steps = [step for step in steps if step]
        if not steps:
            raise ValueError("the run printed no step")
        self.losses = [float(step[2]) for step in steps]
        # A step of many seconds may have less than one token in each.
        self.seconds = [tokens / max(1, int(step[3].replace(",", ""))) for step in steps]
        self.attention = field(printed, "attention")
        self.graph = field(printed, "graph")
        self.memory = field(printed, "memory of rank 0's GPU")

    def timed(self):
        """Seconds of the steps that are replayed by a graph, or of those behind the first ones if there is none.

        The last step is left out: its ops are timed one by one.
        """
        graph = re.match(r"from step (\d+)", self.graph)
        first = int(graph[1]) if graph else WARM_UP
        return self.seconds[first:-1] or self.seconds[-1:]


def field(printed, name):
    """The text behind `name: ` at the beginning of a line; empty if there is none."""
    found = re.search(rf"^{re.escape(name)}: (.*)$", printed, re.MULTILINE)
    return found[1] if found else ""


def command(args, path, steps, options=()):
    rate = [] if "--learning-rate" in options else ["--learning-rate", LEARNING_RATE]
    return [args.trainwright, "run", path, "--steps", steps, "--patience", PATIENCE, *rate, *options]


def losses(args, path, steps, clock, options=()):
    """The losses of a run on the CPU, with all their digits."""
    ran = json.loads(call(command(args, path, steps, ["--device", "cpu", "--json", *options]), clock))
    return [step["loss"] for step in ran["steps"]]


def train(args, path, tokens, steps, clock, options=(), hear_first=lambda loss: None):
    """A run on the device. `hear_first` gets the first step's loss as soon as it is printed. Raises Failed or Stopped."""
    def on_line(line):
        step = STEP.match(line)
        if step and step[1] == "1":
            hear_first(float(step[2]))

    return Run(follow(command(args, path, steps, ["--device", args.device, *options]), clock, on_line), tokens)


def spread(seconds):
    """The middle half of the steps lies within this share of the median."""
    ordered = sorted(seconds)
    return (ordered[3 * len(ordered) // 4] - ordered[len(ordered) // 4]) / statistics.median(ordered)


def longest_ops(trace):
    """The ops of a trace that took longest, summed over blocks, each pass apart: `qkv backward 1.23 ms, logits forward 0.9 ms`."""
    seconds = collections.Counter()
    for event in json.loads(trace.read_text())["traceEvents"]:
        if event.get("ph") == "X":
            name = re.sub(r"^block \d+ ", "", event["name"])
            seconds[f"{name} {event['args'].get('pass', '')}".strip()] += event["dur"]
    return ", ".join(f"{name} {dur / 1e3:.2f} ms" for name, dur in seconds.most_common(LONGEST))


def peak_and_flops(args, path, clock):
    """Model FLOP of a step, with attention's halved by the mask, and the dense peak in FLOP/s that the forecast divides by."""
    forecast = json.loads(call([args.trainwright, "simulate", path, "--json"], clock))["forecast"]
    flops = forecast["model_flops_causal_attention"]
    return flops, flops / forecast["step_time_s"] / forecast["mfu_causal_attention"]


def measure(args, table, case, path, name, clock, options=()):
    """Trains a case and adds a row to `table`, prints its speed and the ops of its last step. Whether the run failed."""
    trace = args.folder / "traces" / (re.sub(r"\W+", "-", f"{case.name} {name}") + ".json")
    trace.parent.mkdir(exist_ok=True)

    def first(loss):
        print(f"{case}, {name}: step 1: loss {loss:.4f}", flush=True)

    try:
        ran = train(args, path, case.tokens(), args.steps, clock, [*options, "--trace", trace], first)
        flops, peak = peak_and_flops(args, path, clock)
        ops = longest_ops(trace)
    except (NotDone, ValueError, KeyError, OSError) as error:
        result = "stopped" if isinstance(error, Stopped) else "WRONG"
        table.add([case.name, case.sequences, case.length, name, result, *[""] * (len(HEAD) - 6), error],
                  f"{case}, {name}: {result}: {error}")
        return result == "WRONG"
    seconds = ran.timed()
    median = statistics.median(seconds)
    mfu = flops / median / peak
    table.add([case.name, case.sequences, case.length, name, "measured", f"{median:.6g}", f"{spread(seconds):.4f}",
               f"{case.tokens() / median:.1f}", f"{mfu:.4f}", ran.memory, ran.attention, ran.graph, f"{flops:.6g}", f"{peak:.6g}", ""],
              f"{case}, {name}: {case.tokens() / median:,.0f} tokens/s, {1e3 * median:.2f} ms, MFU {100 * mfu:.1f} %\n"
              f"    attention: {ran.attention}; graph: {ran.graph}; memory: {ran.memory}\n"
              f"    last step, op by op: {ops}")
    return False


