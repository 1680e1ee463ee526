"""Calculon (github.com/calculon-ai/calculon), from a checkout: its classes `Llm` and `System`, as `calculon llm` uses them.

Its own system files `systems/a100_80g.json` and `systems/h100_80g_nvl8.json` describe the GPUs, with two changes in the
peer's favour: the network between nodes has the row's bandwidth, and memory has no end, since a run that Calculon would
refuse for memory did run. Other choices are as in its validation files (`validation/seqsel/tab5`): GeLU is not fused and
sequence parallelism repeats its all-gathers. Gradients are reduced during the backward pass, which brings it nearer to the
measured times. Groups are on the node's network if they fit there in Megatron's order.

A gated feed-forward part becomes two matrices with as many weights. Keys and values are of all heads or of one, whichever
is nearer. Calculon has no embedding, no head, no fused attention, no ZeRO-2 or ZeRO-3, no launches and no host; training
in 8 bits would have every tensor in 8 bits, and is left out.
"""

import json
import logging
import os
import subprocess
import sys

from rows import NotExpressible

SYSTEMS = {"a100-80gb-sxm": "a100_80g.json", "h100-80gb-sxm": "h100_80g_nvl8.json"}
RECOMPUTE = {"none": "none", "selective": "attn_only", "full": "full"}
SHARDING = {"ddp": False, "zero1": True}
NO_LIMIT_GIB = 1e9
IN_NODE, BETWEEN_NODES = 0, 1


def version(checkout):
    """The commit of the checkout; "unknown" if the folder is none."""
    described = subprocess.run(
        ["git", "-C", checkout, "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return described.stdout.strip() or "unknown"


def forecaster(checkout):
    """A function from a row to seconds of a step."""
    if not checkout:
        raise ValueError("--checkout is missing: the folder of Calculon")
    sys.path.insert(0, checkout)
    from calculon.llm.llm import Llm
    from calculon.system import System

    systems = {}
    for gpu, name in SYSTEMS.items():
        with open(os.path.join(checkout, "systems", name), encoding="utf-8") as file:
            systems[gpu] = json.load(file)

    def seconds(row):
        execution = Llm.Execution.from_json(translated(row))
        application = Llm.Application(
            {
                "hidden": row.hidden,
                "feedforward": row.ffn * 3 // 2 if row.gated else row.ffn,
                "seq_size": row.sequence,
                "attn_heads": row.heads,
                "attn_size": row.hidden // row.heads,
                "num_blocks": row.layers,
            }
        )
        system = json.loads(json.dumps(systems[row.gpu]))
        system["mem1"]["GiB"] = NO_LIMIT_GIB
        if row.network:
            system["networks"][BETWEEN_NODES]["bandwidth"] = row.network
        model = Llm(application, logging.getLogger("calculon"))
        try:
            system = System(system)
            model.compile(system, execution)
            model.run(system)
        except (AssertionError, Llm.Error) as refusal:
            raise NotExpressible(f"Calculon refuses it: {refusal}") from refusal
        return model.get_total_time()

    return seconds


def translated(row):
    """Calculon's execution of a row."""
    if row.gpu not in SYSTEMS:
        raise NotExpressible(f"no system file for {row.gpu}")
    if row.precision not in ("bf16", "fp16"):
        raise NotExpressible(f"training in {row.precision}")
    if row.recompute not in RECOMPUTE:
        raise NotExpressible(f"recompute `{row.recompute}`")
    if row.sharding not in SHARDING:
        raise NotExpressible(f"sharding `{row.sharding}`")
    if row.hidden % row.heads:
        raise NotExpressible("hidden is no multiple of heads")
    if row.vp > 1 and row.pp == 1:
        raise NotExpressible("stages of a rank without a pipeline")

    def place(ranks):
        """The network of a group whose ranks are among so many neighbours: tensor ranks first, then data, then pipeline."""
        return IN_NODE if ranks <= row.gpus_per_node and 8 % ranks == 0 else BETWEEN_NODES

    sequence_parallel = row.sequence_parallel and row.micro_batch * row.sequence % row.tp == 0
    return {
        "num_procs": row.gpus,
        "tensor_par": row.tp,
        "pipeline_par": row.pp,
        "data_par": row.dp,
        "tensor_par_net": place(row.tp),
        "data_par_net": place(row.tp * row.dp),
        "pipeline_par_net": place(row.tp * row.dp * row.pp),
        "batch_size": row.global_batch,
        "microbatch_size": row.micro_batch,
        "datatype": "float16",
        "fused_activation": False,
        "attention_type": "multihead" if 2 * row.kv_heads > row.heads + 1 else "multiquery",
        "activation_recompute": RECOMPUTE[row.recompute],
        "pipeline_interleaving": row.vp,
        "optimizer_sharding": SHARDING[row.sharding] and row.dp > 1,
        "tensor_par_comm_type": "rs_ag" if sequence_parallel else "ar",
        "tensor_par_overlap": "none",
        "seq_par_ag_redo": sequence_parallel and row.recompute != "full",
        "data_par_overlap": row.dp > 1,
        "weight_offload": False,
        "activations_offload": False,
        "optimizer_offload": False,
        "training": True,
    }
