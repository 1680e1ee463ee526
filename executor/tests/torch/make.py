"""Makes the fixtures beside this file with PyTorch: python3 make.py (pip install torch).

For a tiny GPT-2 and a tiny LLaMA: a folder as Hugging Face has it with the initial weights (config.json,
model.safetensors), and curve.json with loss and gradient norm of 20 steps of AdamW on text.txt, byte by byte, on the
sequences that the executor's loader draws from the seed.
"""

import json
import math
import pathlib
import struct

import torch
import torch.nn.functional as F

HERE = pathlib.Path(__file__).parent
torch.set_num_threads(1)
SEQUENCE, BATCH, STEPS, SEED = 32, 4, 20, 7
RATE, DECAY = 0.005, 0.1
WIDTH, HEADS, LAYERS, VOCABULARY = 32, 4, 2, 256
MASK = (1 << 64) - 1

GPT2 = {
    "model_type": "gpt2", "n_embd": WIDTH, "n_head": HEADS, "n_layer": LAYERS, "n_positions": SEQUENCE,
    "vocab_size": VOCABULARY, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}
LLAMA = {
    "model_type": "llama", "hidden_size": WIDTH, "num_attention_heads": HEADS, "num_key_value_heads": 2,
    "num_hidden_layers": LAYERS, "intermediate_size": 48, "vocab_size": VOCABULARY, "hidden_act": "silu",
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False, "max_position_embeddings": 64,
}


def mix(state):
    """The output function of SplitMix64."""
    z = (state + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def order(epoch, count):
    """The sequences of an epoch, shuffled after Fisher and Yates."""
    stream = mix(mix(SEED) ^ ((1 << 62) + 1 + epoch))
    numbers = list(range(count))
    for last in range(count - 1, 0, -1):
        other = (mix(stream ^ mix(last)) * (last + 1)) >> 64
        numbers[last], numbers[other] = numbers[other], numbers[last]
    return numbers


def batches(text):
    count = (len(text) - 1) // SEQUENCE
    for step in range(STEPS):
        starts = []
        for number in range(step * BATCH, (step + 1) * BATCH):
            starts.append(order(number // count, count)[number % count] * SEQUENCE)
        rows = torch.tensor([list(text[start:start + SEQUENCE + 1]) for start in starts])
        yield rows[:, :-1], rows[:, 1:]


def gpt2_weights():
    shapes = {"transformer.wte.weight": (VOCABULARY, WIDTH), "transformer.wpe.weight": (SEQUENCE, WIDTH)}
    for layer in range(LAYERS):
        at = f"transformer.h.{layer}."
        for name, shape in [("attn.c_attn", (WIDTH, 3 * WIDTH)), ("attn.c_proj", (WIDTH, WIDTH)),
                            ("mlp.c_fc", (WIDTH, 4 * WIDTH)), ("mlp.c_proj", (4 * WIDTH, WIDTH))]:
            shapes[f"{at}{name}.weight"], shapes[f"{at}{name}.bias"] = shape, shape[1:]
        for name in ["ln_1", "ln_2"]:
            shapes[f"{at}{name}.weight"], shapes[f"{at}{name}.bias"] = (WIDTH,), (WIDTH,)
    shapes["transformer.ln_f.weight"], shapes["transformer.ln_f.bias"] = (WIDTH,), (WIDTH,)
    return shapes


def gpt2(weights, tokens):
    def conv1d(x, name):
        return x @ weights[name + ".weight"] + weights[name + ".bias"]

    def norm(x, name):
        return F.layer_norm(x, (WIDTH,), weights[name + ".weight"], weights[name + ".bias"], 1e-5)

    x = weights["transformer.wte.weight"][tokens] + weights["transformer.wpe.weight"][:tokens.shape[1]]
    for layer in range(LAYERS):
        at = f"transformer.h.{layer}."
        q, k, v = conv1d(norm(x, at + "ln_1"), at + "attn.c_attn").split(WIDTH, dim=2)
        x = x + conv1d(attention(q, k, v, HEADS), at + "attn.c_proj")
        x = x + conv1d(F.gelu(conv1d(norm(x, at + "ln_2"), at + "mlp.c_fc"), approximate="tanh"), at + "mlp.c_proj")
    return norm(x, "transformer.ln_f") @ weights["transformer.wte.weight"].T


def llama_weights():
    shapes = {"model.embed_tokens.weight": (VOCABULARY, WIDTH)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for name, shape in [("self_attn.q_proj", (WIDTH, WIDTH)), ("self_attn.k_proj", (WIDTH // 2, WIDTH)),
                            ("self_attn.v_proj", (WIDTH // 2, WIDTH)), ("self_attn.o_proj", (WIDTH, WIDTH)),
                            ("mlp.gate_proj", (48, WIDTH)), ("mlp.up_proj", (48, WIDTH)),
                            ("mlp.down_proj", (WIDTH, 48)), ("input_layernorm", (WIDTH,)),
                            ("post_attention_layernorm", (WIDTH,))]:
            shapes[f"{at}{name}.weight"] = shape
    shapes["model.norm.weight"], shapes["lm_head.weight"] = (WIDTH,), (VOCABULARY, WIDTH)
    return shapes


def rotate(x):
    """Hugging Face's order: column i turns with column i + d/2."""
    d = x.shape[-1]
    angles = torch.outer(torch.arange(x.shape[2]).float(), 10000.0 ** (-torch.arange(0, d, 2).float() / d))
    cos, sin = torch.cat([angles.cos()] * 2, dim=1), torch.cat([angles.sin()] * 2, dim=1)
    return x * cos + torch.cat([-x[..., d // 2:], x[..., :d // 2]], dim=-1) * sin


def attention(q, k, v, kv_heads, turn=lambda x: x):
    batch, sequence, _ = q.shape
    d = WIDTH // HEADS
    q, k, v = (t.view(batch, sequence, -1, d).transpose(1, 2) for t in (q, k, v))
    y = F.scaled_dot_product_attention(turn(q), turn(k), v, is_causal=True, enable_gqa=kv_heads < HEADS)
    return y.transpose(1, 2).reshape(batch, sequence, WIDTH)


def llama(weights, tokens):
    def linear(x, name):
        return x @ weights[name + ".weight"].T

    def norm(x, name):
        return F.rms_norm(x, (WIDTH,), weights[name + ".weight"], 1e-5)

    x = weights["model.embed_tokens.weight"][tokens]
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        h = norm(x, at + "input_layernorm")
        q, k, v = (linear(h, f"{at}self_attn.{name}_proj") for name in "qkv")
        x = x + linear(attention(q, k, v, 2, rotate), at + "self_attn.o_proj")
        h = norm(x, at + "post_attention_layernorm")
        h = F.silu(linear(h, at + "mlp.gate_proj")) * linear(h, at + "mlp.up_proj")
        x = x + linear(h, at + "mlp.down_proj")
    return linear(norm(x, "model.norm"), "lm_head")


def start(shapes):
    weights = {}
    for name, shape in shapes.items():
        # Away from ones and zeros, so that no gain and no bias can be mistaken.
        scale = 0.02 if len(shape) == 2 else 0.1
        centre = 1.0 if "norm" in name or "ln_" in name and name.endswith("weight") else 0.0
        weights[name] = (centre + scale * torch.randn(shape)).requires_grad_()
    return weights


def write_safetensors(path, weights):
    header, at = {}, 0
    for name, weight in weights.items():
        header[name] = {"dtype": "F32", "shape": list(weight.shape), "data_offsets": [at, at + 4 * weight.numel()]}
        at += 4 * weight.numel()
    header = json.dumps(header).encode()
    data = b"".join(weight.detach().numpy().tobytes() for weight in weights.values())
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)


def train(name, config, shapes, forward):
    torch.manual_seed(3)
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    weights = start(shapes)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    write_safetensors(folder / "model.safetensors", weights)
    decays = [weight for weight in weights.values() if weight.dim() > 1]
    others = [weight for weight in weights.values() if weight.dim() == 1]
    groups = [{"params": decays, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95), eps=1e-8)
    losses, norms = [], []
    for inputs, targets in batches((HERE / "text.txt").read_bytes()):
        loss = F.cross_entropy(forward(weights, inputs).reshape(-1, VOCABULARY), targets.reshape(-1))
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(list(weights.values()), 1.0)))
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    ends = {key: math.sqrt(float((weight.detach().double() ** 2).sum())) for key, weight in weights.items()}
    curve = {"torch": torch.__version__, "rate": RATE, "decay": DECAY, "seed": SEED, "sequence": SEQUENCE,
             "batch": BATCH, "losses": losses, "norms": norms, "ends": ends}
    (folder / "curve.json").write_text(json.dumps(curve) + "\n")


train("gpt2", GPT2, gpt2_weights(), gpt2)
train("llama", LLAMA, llama_weights(), llama)
