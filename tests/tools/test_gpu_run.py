"""Whether gpu_run.py says of programs what they did; they are made up here, and nothing needs a GPU.

    python3 -m unittest discover tests/tools
"""

import contextlib
import csv
import io
import math
import pathlib
import subprocess
import sys
import tempfile
import time
import types
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from gpu import determinism, drift, first, forecasts, parity, plans, speed, training, work

# What takes the place of trainwright and of PyTorch's side.
FAKE = """#!{python}
import json, os, sys, time
words = sys.argv[1:]
def after(name, otherwise=None):
    return words[words.index(name) + 1] if name in words else otherwise
if words == ["run", "--help"]:
    print("{help}")
elif words[0] == "plan":
    if "{refused}" and "{refused}" in words:
        sys.exit("error: no such plan")
    open(after("--out"), "w").write(after("--precision"))
elif words[0] == "simulate":
    print(json.dumps(dict(forecast=dict(model_flops_causal_attention=8e12, step_time_s=0.02, mfu_causal_attention=0.4))))
elif words[0] == "run":
    is_cpu = after("--device") == "cpu"
    if not is_cpu:
        time.sleep({sleep})
    count = int(after("--steps"))
    # fp32's drift on the CPU is 1e-4 of the others', that of the second seed is 1e-2.
    loss = 2.0 * (1 + 1e-4 * (open(words[1]).read() == "fp32")) * (1 + 1e-2 * (after("--seed") == "1"))
    if not is_cpu:
        loss *= 1 + {error}
    # With a graph from step 5 on; the last step is recorded op by op.
    seconds = [1.0 if step < 6 or step == count else 0.01 for step in range(1, count + 1)]
    if "--trace" in words:
        spans = [("block 0 qkv", "forward", 1000), ("block 1 qkv", "forward", 500), ("logits", "", 700)]
        events = [dict(ph="X", name=name, dur=dur, args={{"pass": pass_}} if pass_ else {{}}) for name, pass_, dur in spans]
        open(after("--trace"), "w").write(json.dumps(dict(traceEvents=[dict(ph="M")] + events)))
    if "--json" in words:
        steps = [dict(step=step + 1, loss=loss + {noise} * time.time(), seconds=took) for step, took in enumerate(seconds)]
        print(json.dumps(dict(steps=steps, communication=dict(data="{way}"), attention="own")))
    else:
        for step, took in enumerate(seconds):
            print(f"step {{step + 1:5}}  loss {{loss:8.4f}}  norm   1.000  {{32 / took:9,.0f}} tokens/s", flush=True)
        print("graph: from step 5")
        print("attention: own")
        print("memory of rank 0's GPU: 77 MiB at most")
elif words[0] == "calibrate":
    os.makedirs(after("--out"))
    open(after("--out") + "/kernels.csv", "w").write("measured")
    print("calibrated", words.count("--plan"))
elif words[0] == "validate":
    forecast = 0.8 if "--profile" in words else 0.9
    print(json.dumps(dict(step_time_s=dict(forecast=forecast, measured=1.0), peak_memory_bytes=dict(forecast=1.0, measured=0))))
"""
TORCH = """import json, sys, time
print("attention alone", flush=True)
if sys.argv[sys.argv.index("--compile") + 1] in {stuck}:
    time.sleep(60)
for name, took in [("default", 0.02), ("cudnn", 0.008)]:
    print(json.dumps(dict(attention=name, compile_s=3.0, seconds=[took] * 5, memory=5)), flush=True)
    if "{last}" == name:
        time.sleep(60)
"""


class Parts(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = pathlib.Path(self.temporary.name)

    def fake(self, refused="", sleep=0, error=0, noise=0, way="on the GPU", help="--deterministic"):
        path = self.folder / "fake"
        path.write_text(FAKE.format(python=sys.executable, refused=refused, sleep=sleep, error=error, noise=noise, way=way, help=help))
        path.chmod(0o755)
        return types.SimpleNamespace(trainwright=str(path), device="emulated", steps=10, folder=self.folder, plans=2)

    def part(self, part, args, seconds=30.0):
        """What a part answers and prints."""
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            answer = part(args, work.Clock(seconds))
        return answer, printed.getvalue()

    def rows(self, name):
        with open(self.folder / name, newline="") as file:
            return list(csv.DictReader(file))

    def parity(self, args, seconds=30.0):
        answer, _ = self.part(parity.part, args, seconds)
        return answer, sorted(row["result"] for row in self.rows("parity.csv"))

    def test_fp32_has_a_tolerance_and_bf16_a_drift_beside_the_cpus(self):
        self.assertEqual(self.parity(self.fake(error=0)), (0, ["reported"] * 2 + ["right"] * 2))
        # fp32 allows 1e-4. bf16 is wrong from 1e-2 on, which is what another seed makes of the losses.
        self.assertEqual(self.parity(self.fake(error=2e-4)), (2, ["WRONG"] * 2 + ["reported"] * 2))
        self.assertEqual(self.parity(self.fake(error=8e-3)), (2, ["WRONG"] * 2 + ["reported"] * 2))
        reported = [row for row in self.rows("parity.csv") if row["result"] == "reported"][0]
        drifts = [reported[f"drift from {what}"] for what in ("the CPU", "fp32 on the CPU", "another seed on the CPU")]
        self.assertEqual(drifts, ["8.000e-03", "9.999e-05", "9.901e-03"])
        self.assertEqual(self.parity(self.fake(error=2e-2)), (4, ["WRONG"] * 4))
        self.assertEqual(self.parity(self.fake(error=math.inf)), (4, ["WRONG"] * 4))
        self.assertEqual(self.parity(self.fake(way="through the host")), (4, ["WRONG"] * 4))

    def test_a_plan_that_is_refused_is_a_row_and_the_others_follow(self):
        self.assertEqual(self.parity(self.fake(refused="bf16")), (2, ["WRONG"] * 2 + ["right"] * 2))

    def test_what_is_not_done_in_time_is_neither_right_nor_wrong(self):
        before, parity.AT_A_TIME = time.monotonic(), 4
        self.assertEqual(self.parity(self.fake(sleep=60), 3), (0, ["stopped"] * 4))
        self.assertLess(time.monotonic() - before, 20)
        self.assertEqual(self.parity(self.fake(), 0), (0, ["not begun"] * 4))

    def test_rows_are_there_before_the_part_ends(self):
        args = self.fake(sleep=1)
        command = [sys.executable, pathlib.Path(__file__).parent / "gpu_run.py", "parity", self.folder, "--device", "emulated",
                   "--trainwright", args.trainwright, "--plans", "20"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as ran:
            table, end = self.folder / "parity.csv", time.monotonic() + 30
            while time.monotonic() < end and (not table.exists() or len(table.read_text().splitlines()) < 2):
                time.sleep(0.1)
            ran.terminate()
        self.assertIn(",right,", table.read_text())

    def test_ranks_share_a_gpu_by_nccl_only_from_the_version_on_that_can(self):
        for version, may, reason in [((2, 30, 0), True, ""), ((2, 29, 7), False, "NCCL is 2.29.7"), (None, False, "NCCL is not there")]:
            with unittest.mock.patch.object(parity, "nccl_version", lambda: version):
                self.assertEqual(self.part(lambda *_: parity.may_share_by_nccl("cuda"), None)[0], may)
                self.assertIn(reason, self.part(lambda *_: parity.may_share_by_nccl("cuda"), None)[1])
        pair = plans.PROCESSES[0]
        by_nccl = [place for place in parity.places_of(pair, False, True) if place.nccl]
        self.assertEqual([place.environment()[parity.NCCL_VARIABLE] for place in by_nccl], ["1"])
        self.assertFalse([place for place in parity.places_of(pair, False, False) if place.nccl])
        for ways, well in [({"data": "by NCCL"}, True), ({"data": "through the host"}, False), ({}, False)]:
            self.assertEqual(parity.communicates_well(pair, False, by_nccl[0], ways), well)

    def test_the_first_part_puts_losses_beside_the_cpus_and_times_each_run(self):
        answer, printed = self.part(first.part, self.fake(error=1e-3))
        self.assertEqual(answer, 0)
        losses = self.rows("first-losses.csv")
        # 2 of the CPU, 1e-3 more of the GPU, four digits as the run prints them.
        self.assertEqual((len(losses), losses[0]["loss"], losses[0]["loss on the CPU"]), (30, "2.002", "2.0"))
        self.assertIn("step 1: loss 2.0020, on the CPU 2.0000\n", printed)
        self.assertIn("reported: losses drift by 1.0e-03 in 10 steps; 1.0e-04 from fp32 and 9.9e-03 from another seed", printed)
        self.assertIn("last step, op by op: qkv forward 1.50 ms, logits 0.70 ms\n", printed)
        rows = self.rows("first.csv")
        self.assertEqual([row["run"] for row in rows], [name for name, _ in first.RUNS])
        # 32 tokens in 10 ms; 8e12 FLOP in that of a peak of 8e12 / 0.02 / 0.4.
        self.assertEqual([float(rows[0][key]) for key in ("seconds", "spread", "tokens/s", "MFU")], [0.01, 0.0, 3200.0, 0.8])
        self.assertEqual([rows[0]["memory"], rows[0]["graph"]], ["77 MiB at most", "from step 5"])
        self.assertEqual(self.part(first.part, self.fake(error=2e-2))[0], len(first.RUNS))

    def test_the_first_fact_is_printed_while_the_run_goes_on(self):
        program = self.folder / "slow"
        program.write_text(f"#!{sys.executable}\nimport time\nprint('step     1  loss   4.1640  81 tokens/s', flush=True)\ntime.sleep(60)\n")
        program.chmod(0o755)
        heard = []
        with self.assertRaises(work.Stopped) as stopped:
            args = types.SimpleNamespace(trainwright=program, device="emulated")
            training.train(args, "plan", 32, 10, work.Clock(3), hear_first=heard.append)
        self.assertEqual((heard, stopped.exception.printed.splitlines()[0].split()[3]), ([4.164], "4.1640"))

    def test_the_cpus_losses_that_are_kept_are_those_of_the_first_part(self):
        bf16, seed, in_fp32 = first.expected_losses(types.SimpleNamespace(device="cuda", steps=24), None)
        self.assertEqual([len(each) for each in (bf16, seed, in_fp32)], [24] * 3)
        # Weights begin so small that every token is as likely: the loss is the logarithm of their number, and falls.
        tokens = plans.compared("cuda").config["vocab_size"]
        self.assertLess(abs(in_fp32[0] / math.log(tokens) - 1), 0.02)
        self.assertLess(in_fp32[-1], in_fp32[0])
        scale = drift.Scale.of(bf16, in_fp32, seed)
        self.assertTrue(0 < scale.rounding < scale.seed / 3, scale)

    def speed(self, stuck=(), last="", seconds=30.0, **fake):
        program = self.folder / "torch.py"
        program.write_text(TORCH.format(stuck=list(stuck), last=last))
        args = self.fake(**fake)
        with unittest.mock.patch.multiple(speed, PROGRAM=program, is_missing=lambda: False):
            _, printed = self.part(speed.part, args, seconds)
        return [row for row in self.rows("torch.csv") if row["model"] == "gpt stand-in"], printed

    def test_steps_before_a_graph_and_the_last_one_are_not_timed(self):
        steps = "".join(f"step {step:5}  loss   1.0000  {step:,} tokens/s\n" for step in range(1, 8))
        for graph, expected in [("graph: from step 5\n", [6]), ("graph: no, because ranks share a GPU\n", [4, 5, 6]), ("", [4, 5, 6])]:
            self.assertEqual(training.Run(steps + graph, 420).timed(), [420 / step for step in expected])
        with self.assertRaises(ValueError):
            training.Run("graph: from step 5\n", 420)

    def test_pytorch_stands_beside_our_fastest_run(self):
        self.part(first.part, self.fake())
        slow = work.Table(self.folder / "large.csv", training.HEAD)
        slow.add(["gpt stand-in", 2, 16, "slow", "measured", 0.32, 0, 100, 0.1, "", "", "", 8e12, 1e15, ""])
        (default, cudnn), printed = self.speed()
        over = "trainwright's tokens/s over these"
        self.assertEqual([default["attention"], default[over], cudnn["attention"], cudnn[over]], ["default", "2.000", "cudnn", "0.800"])
        self.assertEqual([default["MFU"], cudnn["MFU"]], ["0.4000", "1.0000"])
        self.assertIn("are 0.800 of PyTorch's best", printed)
        self.assertIn("PyTorch: attention alone\n", printed)

    def test_pytorch_is_measured_without_runs_of_ours(self):
        (default, _), _ = self.speed()
        self.assertEqual([default["seconds"], default["MFU"], default["trainwright's tokens/s over these"]], ["0.02", "", ""])

    def test_blocks_are_compiled_where_the_whole_is_not_in_time(self):
        caches = self.folder / speed.CACHES
        caches.write_text("model,compiled,result,seconds\ngpt stand-in,whole,done,1.5\n")
        (whole, blocks, _), _ = self.speed(stuck=["whole"], seconds=12.0)
        self.assertEqual([whole["result"], whole["how"], blocks["result"]], ["stopped", "whole compiled", "measured"])
        self.assertTrue(blocks["how"].startswith("blocks compiled in 3 s"), blocks)
        # What took longer with empty caches than there is now is not tried.
        caches.write_text("model,compiled,result,seconds\ngpt stand-in,whole,done,15\n")
        self.assertEqual([row["how"] for row in self.speed(seconds=12.0)[0]], ["blocks compiled in 3 s"] * 2)

    def test_what_pytorch_said_before_it_was_stopped_counts(self):
        (default,), _ = self.speed(last="default", seconds=10.0)
        self.assertEqual([default["result"], default["seconds"]], ["measured", "0.02"])

    def test_pytorch_is_left_out_in_one_line_where_it_is_not_there(self):
        with unittest.mock.patch.object(speed.importlib.util, "find_spec", lambda _: None):
            for part in (speed.part, speed.warm):
                self.assertEqual(self.part(part, self.fake()), (0, "PyTorch is left out: Python finds no package `torch`\n"))

    def test_forecasts_come_first_from_a_models_own_ops_and_then_from_the_calibration(self):
        answer, printed = self.part(forecasts.part, self.fake())
        rows = self.rows("forecasts.csv")
        self.assertEqual((answer, [(row["times from"], row["error"]) for row in rows]),
                         (0, [("its own ops", "-0.1000"), ("calibrate", "-0.2000")]))
        self.assertIn("calibrated 1\n", printed)

    def test_deterministic_attention_is_timed_if_run_has_the_option_and_must_give_the_same_losses(self):
        answer, printed = self.part(determinism.part, self.fake())
        self.assertEqual(answer, 0)
        self.assertIn("trains at 1.000 of the speed", printed)
        self.assertIn("the losses of 10 steps are the same\n", printed)
        answer, printed = self.part(determinism.part, self.fake(noise=1))
        self.assertTrue(answer == 1 and "differ: WRONG" in printed, printed)
        answer, printed = self.part(determinism.part, self.fake(help="--graph"))
        self.assertEqual((answer, printed), (0, "--deterministic: left out: `run` has no such option\n"))

    def test_programs_that_fail_tell_their_last_error(self):
        for said, expected in [("a\nValueError: b\nc\n", "ValueError: b"), ("x\n\ny\n", "y"), ("", ""), ("error: no GPU\n", "error: no GPU")]:
            self.assertEqual(work.last_words(said), expected)
        failing = [sys.executable, "-c", "print('step', flush=True); raise ValueError('b')"]
        for run in (work.call, lambda *each: work.follow(*each, lambda _: None)):
            with self.assertRaises(work.Failed) as failed:
                run(failing, work.Clock(30))
            self.assertEqual((str(failed.exception), failed.exception.printed), ("ValueError: b", "step\n"))


class Drift(unittest.TestCase):
    def test_the_largest_relative_difference_counts_and_no_number_is_infinite(self):
        self.assertAlmostEqual(drift.drift([2.0, 3.03], [2.0, 3.0]), 0.01)
        self.assertEqual([drift.drift(*each) for each in ([[math.nan], [1.0]], [[1.0], [math.inf]], [[], []])], [math.inf] * 3)
        scale = drift.Scale(1e-4, 1e-2)
        for precision, found, expected in [("fp32", 9e-5, "right"), ("fp32", 2e-4, "WRONG"), ("bf16", 9e-3, "reported"),
                                           ("fp8", 2e-2, "WRONG"), ("bf16", math.inf, "WRONG")]:
            self.assertEqual(drift.result(precision, found, scale), expected)


class Plans(unittest.TestCase):
    def test_every_plan_of_the_grid_is_another_and_has_a_cluster(self):
        names = [str(shape) for shape in plans.GRID]
        self.assertEqual(len(names), len(set(names)))
        self.assertTrue(all(shape.ranks() in [1, *plans.CLUSTERS] for shape in plans.GRID))
        self.assertTrue(all(shape in plans.GRID[:5] for shape in plans.PROCESSES))
        early = plans.GRID[:6]
        self.assertTrue(any(shape.precision == "fp8" for shape in early) and any(shape.offload == "optimizer" for shape in early))


if __name__ == "__main__":
    unittest.main()
