"""Whether gpu_run.py says of programs what they did; they are made up here, and nothing needs a GPU.

    python3 -m unittest discover tests/tools
"""

import contextlib
import csv
import io
import pathlib
import subprocess
import sys
import tempfile
import time
import types
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from gpu import parity, plans, speed, validation, work

# What takes the place of trainwright and of PyTorch's side.
FAKE = """#!{python}
import json, os, sys, time
words = sys.argv[1:]
def after(name):
    return words[words.index(name) + 1]
if words[0] == "plan":
    if "{refused}" and "{refused}" in words:
        sys.exit("error: no such plan")
    open(after("--out"), "w").write("plan")
elif words[0] == "simulate":
    print(json.dumps(dict(forecast=dict(model_flops_causal_attention=8e12, step_time_s=0.02, mfu_causal_attention=0.4))))
elif words[0] == "run":
    is_cpu = after("--device") == "cpu"
    if not is_cpu:
        time.sleep({sleep})
    count = int(after("--steps"))
    loss = 2.0 if is_cpu else 2.0 * (1 + {error})
    # A graph from step 6 on; the last step is told op by op.
    seconds = [1.0 if step < 6 or step == count else 0.01 for step in range(1, count + 1)]
    steps = [dict(step=step + 1, loss=loss, seconds=took) for step, took in enumerate(seconds)]
    print(json.dumps(dict(steps=steps, communication=dict(data="{way}"), attention="own", graph="from step 5", device_memory_bytes=77)))
elif words[0] == "calibrate":
    os.makedirs(after("--out"))
    open(after("--out") + "/kernels.csv", "w").write("measured")
    print("calibrated", words.count("--plan"))
elif words[0] == "validate":
    assert "--profile" in words
    print(json.dumps(dict(step_time_s=dict(forecast=0.9, measured=1.0), peak_memory_bytes=dict(forecast=1.0, measured=0))))
"""
TORCH = """import json, sys, time
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

    def fake(self, refused="", sleep=0, error=0, way="on the GPU"):
        path = self.folder / "fake"
        path.write_text(FAKE.format(python=sys.executable, refused=refused, sleep=sleep, error=error, way=way))
        path.chmod(0o755)
        return types.SimpleNamespace(trainwright=str(path), device="emulated", steps=10, folder=self.folder, plans=2)

    def rows(self, part, args, seconds, name):
        """What a part answers, and its table by the first column and those named."""
        with contextlib.redirect_stdout(io.StringIO()):
            answer = part(args, work.Clock(seconds))
        with open(self.folder / name, newline="") as file:
            return answer, list(csv.DictReader(file))

    def parity(self, args, seconds=30):
        answer, rows = self.rows(parity.part, args, seconds, "parity.csv")
        return answer, sorted(row["result"] for row in rows)

    def test_losses_within_the_tolerance_of_their_numbers_are_right(self):
        self.assertEqual(self.parity(self.fake(error=0)), (0, ["right"] * 4))
        # f32 allows 1e-4, bf16 3e-3: two models in each.
        self.assertEqual(self.parity(self.fake(error=1e-3)), (2, ["WRONG"] * 2 + ["right"] * 2))
        self.assertEqual(self.parity(self.fake(error=4e-3)), (4, ["WRONG"] * 4))
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

    def speed(self, stuck=(), last="", seconds=30.0, **fake):
        program = self.folder / "torch.py"
        program.write_text(TORCH.format(stuck=list(stuck), last=last))
        speed.PROGRAM = program
        _, rows = self.rows(speed.part, self.fake(**fake), seconds, "speed.csv")
        return [row for row in rows if row["model"] == "gpt toy"]

    def test_medians_of_the_steps_of_the_graph_and_the_better_attention_count(self):
        own, default, cudnn = self.speed()
        # 128 tokens in 10 ms; 8e12 FLOP in that of a peak of 8e12 / 0.02 / 0.4.
        self.assertEqual([float(own[key]) for key in ("seconds", "spread", "tokens/s", "MFU")], [0.01, 0.0, 12800.0, 0.8])
        self.assertEqual([own["memory bytes"], own["how"]], ["77", "graph: from step 5"])
        over = "trainwright's tokens/s over these"
        self.assertEqual([default["attention"], default[over], cudnn["attention"], cudnn[over]], ["default", "2.000", "cudnn", "0.800"])

    def test_blocks_are_compiled_where_the_whole_is_not_in_time(self):
        caches = self.folder / speed.CACHES
        caches.write_text("model,compiled,result,seconds\ngpt toy,whole,done,1.5\n")
        _, whole, blocks, _ = self.speed(stuck=["whole"], seconds=12.0)
        self.assertEqual([whole["result"], whole["how"], blocks["result"]], ["stopped", "whole compiled", "measured"])
        self.assertTrue(blocks["how"].startswith("blocks compiled in 3 s"), blocks)
        # What took longer with cold caches than there is now is not tried.
        caches.write_text("model,compiled,result,seconds\ngpt toy,whole,done,15\n")
        self.assertEqual([row["how"] for row in self.speed(seconds=12.0)][1:], ["blocks compiled in 3 s"] * 2)

    def test_what_pytorch_said_before_it_was_stopped_counts(self):
        own, default = self.speed(last="default", seconds=6.0)
        self.assertEqual([own["result"], default["result"], default["seconds"]], ["measured", "measured", "0.02"])

    def test_one_calibration_is_for_all_forecasts(self):
        args = self.fake()
        self.assertEqual(self.rows(validation.calibrate, args, 30, "measured/kernels.csv")[0], 0)
        answer, rows = self.rows(validation.part, args, 30, "validation.csv")
        self.assertEqual((answer, [row["error"] for row in rows]), (0, ["-0.1000"] * 2))

    def test_programs_that_fail_tell_their_last_error(self):
        for said, expected in [("a\nValueError: b\nc\n", "ValueError: b"), ("x\n\ny\n", "y"), ("", ""), ("error: no GPU\n", "error: no GPU")]:
            self.assertEqual(work.last_words(said), expected)


class Plans(unittest.TestCase):
    def test_every_plan_of_the_grid_is_another_and_has_a_cluster(self):
        names = [str(shape) for shape in plans.GRID]
        self.assertEqual(len(names), len(set(names)))
        self.assertTrue(all(shape.ranks() in [1, *plans.CLUSTERS] for shape in plans.GRID))
        self.assertTrue(all(shape in plans.GRID for shape in plans.PROCESSES))
        early = plans.GRID[:6]
        self.assertTrue(any(shape.precision == "fp8" for shape in early) and any(shape.offload == "optimizer" for shape in early))


if __name__ == "__main__":
    unittest.main()
