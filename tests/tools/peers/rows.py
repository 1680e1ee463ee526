"""Rows of the table of runs as the peers need them: sizes, ranks, batch and recompute, with the defaults of
traces/published/README.md where a cell is blank."""

import csv
import math
from dataclasses import dataclass


class NotExpressible(Exception):
    """The peer has no input for a property of the row, which the message names."""


@dataclass
class Row:
    """A run: sizes in elements, batches in sequences, `seconds` the measured time of a step, `network` a GPU's bandwidth to
    other nodes in GB/s in one direction, None if not stated."""

    id: str
    quality: str
    gpu: str
    gpus: int
    gpus_per_node: int
    network: float | None
    precision: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    gated: bool
    vocab: int
    sequence: int
    tp: int
    pp: int
    dp: int
    vp: int
    micro_batch: int
    global_batch: int
    recompute: str
    sharding: str
    sequence_parallel: bool
    fused_attention: bool
    seconds: float


def read(path):
    """The rows with a measured step time, as (id, Row or the NotExpressible that holds for every peer)."""
    with open(path, newline="") as table:
        for cells in csv.DictReader(table):
            seconds = measured(cells)
            if seconds:
                try:
                    yield cells["id"], row(cells, seconds)
                except NotExpressible as reason:
                    yield cells["id"], reason


def measured(cells):
    """Time of a step in seconds, as printed or from the tokens per second; None if not measured."""
    if cells["measured_step_time_s"]:
        return float(cells["measured_step_time_s"])
    rate = cells["measured_tokens_per_s_per_gpu"]
    if rate and cells["global_batch"]:
        tokens = float(cells["global_batch"]) * float(cells["seq_len"])
        return tokens / float(rate) / float(cells["gpus"])
    return None


def sequence_parallel_since(date):
    """Megatron has it since Korthikanti et al. (May 2022)."""
    return "yes" if date >= "2022-05" else "no"


def row(cells, seconds):
    def count(name, blank=None):
        if cells[name] == "" and blank is None:
            raise NotExpressible(f"`{name}` is blank")
        return int(float(cells[name])) if cells[name] else blank

    if cells["num_experts"]:
        raise NotExpressible("mixture of experts")
    if count("cp", 1) > 1:
        raise NotExpressible("context parallel")
    noted = [note.split()[1].lower() for note in cells["notes"].split(";") if note.strip().startswith("schedule ")]
    if any(not name.startswith("1f1b") for name in noted):
        raise NotExpressible("another schedule than 1F1B")
    gated = cells["gated_mlp"] == "yes"
    hidden, tp, pp, gpus = count("hidden"), count("tp", 1), count("pp", 1), count("gpus")
    dp, remainder = divmod(gpus, tp * pp)
    if remainder or dp != count("dp", dp):
        raise NotExpressible("ranks are not tp x pp x dp")
    heads, batch, micro = count("heads"), count("global_batch"), count("micro_batch", 1)
    if batch % (micro * dp):
        raise NotExpressible("batch is no multiple of microbatch x dp")
    stated = cells["node_network_gbps"]
    usual = 256 * math.ceil(8 * hidden / 3 / 256) if gated else 4 * hidden
    return Row(
        id=cells["id"],
        quality=cells["quality"],
        gpu=cells["gpu"],
        gpus=gpus,
        gpus_per_node=count("gpus_per_node"),
        network=float(stated) / 8 / count("gpus_per_node") if stated else None,
        precision=cells["precision"] or "bf16",
        layers=count("layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=count("kv_heads", heads),
        ffn=count("ffn_hidden", usual),
        gated=gated,
        vocab=count("vocab", 32000 if gated else 50257),
        sequence=count("seq_len"),
        tp=tp,
        pp=pp,
        dp=dp,
        vp=count("vp", 1),
        micro_batch=micro,
        global_batch=batch,
        recompute=cells["recompute"] or "none",
        sharding=cells["data_sharding"] or "ddp",
        sequence_parallel=tp > 1 and (cells["sequence_parallel"] or sequence_parallel_since(cells["date"])) == "yes",
        fused_attention=cells["attention_kernel"].startswith("flash"),
        seconds=seconds,
    )
