"""Answers to questions of many kinds keep to the schemas, which were made from a few answers."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import trainwright as tw

MODELS = ("gpt2", "llama-3-8b", "mixtral-8x7b", "bert-large", "t5-large")
CLUSTERS = ("dgx-h100:2", "dgx-a100", "dgx-1v:4", "dgx-h100:1+dgx-a100:1")
COLLECTIVES = ("all_reduce", "all_gather", "all_to_all", "broadcast", "reduce_scatter")
KERNELS = (
    {"gemm": [64, 64, 64]},
    {"decode": [4, 32, 8, 128, 1000]},
    {"prefill": [4, 32, 8, 128, 1000]},
    {"mla_decode": [4, 128, 1000]},
    {"experts": [64, 4096, 1024, 64, 4]},
    {"all_reduce": [4, 10000]},
    {"exchange": [8, 100, 4096, 8]},
)
ASKED = ("gpus-needed", "strong-scaling", "compute-optimal")


def plans():
    for model in MODELS:
        yield {"model": model, "cluster": "dgx-a100", "seq": 512, "global_batch": 16, "space": "core", "top": 2}
    gpt2 = {"model": "gpt2", "cluster": "dgx-a100", "seq": 512, "global_batch": 16}
    yield {**gpt2, "space": "usual", "calibration": "none", "sensitivity": True}
    yield {**gpt2, "cluster": "dgx-h100:1+dgx-a100:1", "space": "core"}
    yield {**gpt2, "time_limit": 0}


def what_ifs():
    for asked in ASKED:
        yield {
            "asked": asked, "model": "gpt2", "cluster": "dgx-a100", "seq": 512, "global_batch": 16, "space": "core",
            "days": 10, "tokens": "1B", "up_to": 8,
        }


QUESTIONS = {
    "plan": plans(),
    "what-if": what_ifs(),
    "network": (
        {"cluster": cluster, "collective": collective, "bytes": "8..1M"}
        for cluster in CLUSTERS
        for collective in COLLECTIVES
    ),
    "kernel": ({"cluster": "dgx-h100", "dtype": dtype, **call} for call in KERNELS for dtype in ("bf16", "fp8")),
    "serve": (
        {"model": model, "cluster": "dgx-h100", "tensor": 4, "input": 100, "output": 20, **load}
        for model in ("gpt2", "llama-3-8b", "mixtral-8x7b")
        for load in ({"clients": 4, "requests": 4}, {"rate": 2, "requests": 10}, {"batch": 2})
    ),
    "serve-plan": (
        {"model": model, "cluster": cluster, "rate": 5, "weights": "fp8"}
        for model in ("llama-3-8b", "mixtral-8x7b")
        for cluster in ("dgx-h100", ["dgx-h100", "dgx-a100"])
    ),
}


@pytest.mark.parametrize("command", QUESTIONS)
def test_answers_keep_to_their_schema(command):
    jsonschema = pytest.importorskip("jsonschema")
    with ThreadPoolExecutor(2) as threads:
        answers = tw.sweep(QUESTIONS[command], threads, command=command, return_exceptions=True)
    validator = jsonschema.Draft202012Validator(tw.schema(command))
    answered = [answer for answer in answers if not isinstance(answer, Exception)]
    # A few of the questions have no answer, such as a kernel that nobody measured.
    assert len(answered) > 0.7 * len(answers), [str(answer) for answer in answers if isinstance(answer, Exception)]
    for answer in answered:
        validator.validate(json.loads(answer.json))
