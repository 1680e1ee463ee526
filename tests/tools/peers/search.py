#!/usr/bin/env python3
"""Times the search of Calculon and that of `trainwright plan` for the same question, in turn on the same machine.

    python3 tests/tools/peers/search.py --checkout calculon --trainwright target/release/trainwright --runs 3

The question: GPT-3 175B with sequences of 2,048 tokens on A100s in nodes of 8, one sequence for each GPU and step.
Calculon's enumeration is that of its command `llm-optimal-execution` at 1886c88, repeated here to count and to cap it: every
division into tensor, pipeline and data ranks, stages of a rank, recompute, optimizer sharding, tensor communication and its
overlap, network of an axis, for every microbatch; without offload, since its A100 file has no second memory. With --cap it runs
about that number of executions, evenly spaced among all, and the times of all are projected from theirs. Calculon runs on one
core, `trainwright plan` on all: the processor time of both is printed beside the wall time.

The steps that the two find are not compared: the costs differ, and so do the spaces.
"""

import argparse
import itertools
import json
import logging
import os
import platform
import resource
import statistics
import subprocess
import sys
import time

import by_calculon

SEQUENCE = 2048
GPT3_175B = {
    "hidden": 12288,
    "feedforward": 49152,
    "seq_size": SEQUENCE,
    "attn_heads": 96,
    "attn_size": 128,
    "num_blocks": 96,
}
SYSTEM = "systems/a100_80g.json"
GPUS_OF_A_NODE = 8


def divisors(number):
    return [factor for factor in range(1, number + 1) if number % factor == 0]


def executions(gpus, batch, networks):
    """Calculon's executions of the question, in its order. A batch that data ranks do not divide is rounded down, as there."""
    heads, width, blocks = GPT3_175B["attn_heads"], GPT3_175B["hidden"], GPT3_175B["num_blocks"]
    for tensor in (t for t in divisors(gpus) if heads % t == 0 and width % t == 0):
        most = min(gpus // tensor, blocks)
        for pipeline in (p for p in divisors(most) if gpus % (tensor * p) == blocks % p == 0):
            data = gpus // tensor // pipeline
            local = batch // data
            if not local:
                continue
            stages = divisors(blocks // pipeline) if pipeline > 1 else [1]
            for interleaving, recompute, shard, communication in itertools.product(
                stages,
                ["full", "attn_only", "none"],
                [True, False] if data > 1 else [False],
                ["ar", "p2p_rs_ag", "rs_ag"],
            ):
                redo = [True, False] if communication == "rs_ag" and recompute != "full" else [False]
                for again, data_overlap, tensor_overlap, micro in itertools.product(
                    redo,
                    [True, False] if data > 1 else [False],
                    ["none", "ring", "pipe"] if tensor > 1 else ["none"],
                    divisors(local),
                ):
                    for nets in itertools.product(
                        *(range(networks) if ranks > 1 else [0] for ranks in (tensor, pipeline, data))
                    ):
                        yield {
                            "num_procs": gpus,
                            "tensor_par": tensor,
                            "pipeline_par": pipeline,
                            "data_par": data,
                            "tensor_par_net": nets[0],
                            "pipeline_par_net": nets[1],
                            "data_par_net": nets[2],
                            "batch_size": local * data,
                            "microbatch_size": micro,
                            "datatype": "float16",
                            "fused_activation": True,
                            "attention_type": "multihead",
                            "activation_recompute": recompute,
                            "pipeline_interleaving": interleaving,
                            "optimizer_sharding": shard,
                            "tensor_par_comm_type": communication,
                            "tensor_par_overlap": tensor_overlap,
                            "seq_par_ag_redo": again,
                            "data_par_overlap": data_overlap,
                            "weight_offload": False,
                            "activations_offload": False,
                            "optimizer_offload": False,
                            "training": True,
                        }


def search_of_calculon(checkout, gpus, batch, cap):
    """Seconds of processor and wall for all executions, how many there are, how many ran and how many of those fit."""
    sys.path.insert(0, checkout)
    from calculon.llm.llm import Llm
    from calculon.system import System

    with open(os.path.join(checkout, SYSTEM), encoding="utf-8") as file:
        system = System(json.load(file))
    application, log = Llm.Application(GPT3_175B), logging.getLogger("calculon")
    total = sum(1 for _ in executions(gpus, batch, system.num_networks))
    step = max(1, total // cap) if cap else 1
    ran = fits = 0
    wall, processor = time.perf_counter(), time.process_time()
    for execution in itertools.islice(executions(gpus, batch, system.num_networks), 0, None, step):
        ran += 1
        model = Llm(application, log)
        try:
            model.compile(system, Llm.Execution.from_json(execution))
            model.run(system)
            model.get_total_time()
            fits += 1
        except (Llm.Error, AssertionError):
            pass
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    return {"wall": wall * total / ran, "processor": processor * total / ran, "total": total, "ran": ran, "fits": fits}


def search_of_trainwright(command, gpus, batch, space):
    """Seconds of processor and wall of `trainwright plan`, start and output included."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    cluster = f"dgx-a100:{gpus // GPUS_OF_A_NODE}"
    arguments = ["plan", "--model", "gpt3-175b", "--cluster", cluster, "--seq", str(SEQUENCE)]
    arguments += ["--global-batch", str(batch), "--space", space, "--top", "1", "--quiet", "--json"]
    subprocess.run([command, *arguments], stdout=subprocess.DEVNULL, check=True)
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"wall": wall, "processor": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}


def processor_name():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
        return f"{names[0]}, {len(names)} cores"
    except (OSError, IndexError):
        return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", required=True, help="folder of Calculon")
    parser.add_argument("--version", help="its version, if the folder does not know it")
    parser.add_argument("--trainwright", required=True, help="the program")
    parser.add_argument("--gpus", type=int, nargs="+", default=[512, 4096])
    parser.add_argument("--cap", type=int, default=100_000, help="executions of Calculon to run of a question; 0: all")
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    version = arguments.version or by_calculon.version(arguments.checkout)
    print(f"Calculon {version}, Python {platform.python_version()}; {processor_name()}; medians of {arguments.runs}\n")
    print("| GPUs | search | plans | wall | processor | over `core`, wall | processor |")
    print("| --: | --- | --: | --: | --: | --: | --: |")
    for gpus in arguments.gpus:
        spaces = ["core", "auto", "whole"]
        runs = {name: [] for name in ["calculon", *spaces]}
        for _ in range(arguments.runs):
            runs["calculon"].append(search_of_calculon(arguments.checkout, gpus, gpus, arguments.cap))
            for space in spaces:
                runs[space].append(search_of_trainwright(arguments.trainwright, gpus, gpus, space))
        median = lambda of, key: statistics.median(run[key] for run in of)
        medians = {name: [median(of, "wall"), median(of, "processor")] for name, of in runs.items()}
        searched = runs["calculon"][0]
        capped = "" if searched["ran"] == searched["total"] else f" from {searched['ran']:,}"
        names = {"calculon": f"Calculon{capped}", **{space: f"`plan --space {space}`" for space in spaces}}
        for name, (wall, processor) in medians.items():
            plans = f"{searched['total']:,}" if name == "calculon" else ""
            ratios = [f"{value / of_core:.1f}" for value, of_core in zip((wall, processor), medians["core"])]
            print(f"| {gpus:,} | {names[name]} | {plans} | {wall:.2f} s | {processor:.2f} s | {' | '.join(ratios)} |")


if __name__ == "__main__":
    try:
        main()
    except (OSError, ImportError, KeyError, ValueError, subprocess.CalledProcessError) as error:
        print(f"search.py: {type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(2)
