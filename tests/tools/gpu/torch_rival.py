"""PyTorch's side of the part `torch`: the same models in bf16 autocast with f32 weights, as its own users would train them.

Compiled (the whole model, or each block and both ends by themselves), with its fused attention, fused AdamW and the gradients'
norm clipped. The residual stream is bf16, as ours is. On the CPU (where GPUs are emulated) it only shows that it runs.
"""

import contextlib
import functools
import json
import statistics
import time

from gpu import plans

# Steps of a run that are not counted: they compile, and fill the caches of memory.
WARM_UP = 3


def shape(name, device):
    """Model, sequences and their length of the measured case of that name."""
    return next(case[1:] for case in plans.measured(device) if case.name == name)


def build(torch, config, sequence, device):
    """The model, with random weights where it computes."""
    import torch.nn.functional as F
    from torch import nn

    is_gpt = config["model_type"] == "gpt2"
    width, layers = (config["n_embd"], config["n_layer"]) if is_gpt else (config["hidden_size"], config["num_hidden_layers"])
    heads, kv_heads, head = attention_heads(config)
    inner = 4 * width if is_gpt else config["intermediate_size"]
    vocabulary = config["vocab_size"]
    tied = is_gpt or config["tie_word_embeddings"]
    norm = functools.partial(nn.LayerNorm if is_gpt else nn.RMSNorm, eps=1e-5)

    def turned(x, cosine, sine):
        low, high = x.chunk(2, -1)
        return torch.cat([low * cosine - high * sine, high * cosine + low * sine], -1).to(x.dtype)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = norm(width), norm(width)
            self.qkv = nn.Linear(width, (heads + 2 * kv_heads) * head, bias=is_gpt)
            self.projection = nn.Linear(width, width, bias=is_gpt)
            self.fc1 = nn.Linear(width, inner if is_gpt else 2 * inner, bias=is_gpt)
            self.fc2 = nn.Linear(inner, width, bias=is_gpt)

        def forward(self, x, cosine, sine):
            rows = self.qkv(self.first(x)).view(*x.shape[:2], -1, head).transpose(1, 2)
            q, k, v = rows.split([heads, kv_heads, kv_heads], 1)
            if not is_gpt:
                q, k = turned(q, cosine, sine), turned(k, cosine, sine)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=kv_heads != heads)
            x = x + self.projection(y.transpose(1, 2).reshape(x.shape))
            z = self.fc1(self.second(x))
            if is_gpt:
                return x + self.fc2(F.gelu(z, approximate="tanh"))
            gate, up = z.chunk(2, -1)
            return x + self.fc2(F.silu(gate) * up)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(vocabulary, width)
            self.positions = nn.Embedding(sequence, width) if is_gpt else None
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.last = norm(width)
            self.output = self.tokens if tied else nn.Linear(width, vocabulary, bias=False)
            angles = torch.outer(torch.arange(sequence).float(), 10000.0 ** (-torch.arange(0, head, 2).float() / head))
            self.register_buffer("cosine", angles.cos())
            self.register_buffer("sine", angles.sin())
            for parameter in self.parameters():
                if parameter.dim() > 1:
                    nn.init.normal_(parameter, std=0.02)

        def begin(self, tokens):
            x = self.tokens(tokens)
            if is_gpt:
                x = x + self.positions.weight[: tokens.shape[1]]
            return x.to(torch.bfloat16)

        def end(self, x, targets):
            logits = F.linear(self.last(x), self.output.weight)
            return F.cross_entropy(logits.view(-1, vocabulary), targets.reshape(-1))

        def forward(self, tokens, targets):
            x = self.begin(tokens)
            for block in self.blocks:
                x = block(x, self.cosine, self.sine)
            return self.end(x, targets)

    torch.manual_seed(0)
    with torch.device(device):
        return Model()


def attention_heads(config):
    """Heads, those of keys and values, and their width."""
    if config["model_type"] == "gpt2":
        heads, width = config["n_head"], config["n_embd"]
        return heads, heads, width // heads
    heads = config["num_attention_heads"]
    return heads, config["num_key_value_heads"], config["hidden_size"] // heads


def compile_model(torch, model, compiled):
    """What to call for the loss."""
    torch.compiler.reset()
    if compiled == "whole":
        return torch.compile(model)
    for block in model.blocks:
        block.compile()
    # The ends too: without it the loss would be computed op by op in f32.
    model.begin, model.end = torch.compile(type(model).begin.__get__(model)), torch.compile(type(model).end.__get__(model))
    return model


def attentions(torch, device):
    """PyTorch's own choice of a kernel, and cuDNN's before FlashAttention-2's, which is slower on Hopper; each a context."""
    both = {"default": contextlib.nullcontext}
    if device == "cuda":
        from torch.nn.attention import SDPBackend, sdpa_kernel

        order = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION]
        both["cudnn"] = lambda: sdpa_kernel(order, set_priority=True)
    return both


def kernels_of(torch, q, k, v, options):
    """Whose kernels PyTorch takes here; nothing where it does not tell."""
    try:
        return torch.nn.attention.SDPBackend(torch._fused_sdp_choice(q, k, v, **options)).name
    except (AttributeError, TypeError, ValueError):
        return ""


def kernels_alone(torch, config, batch, sequence, contexts):
    """Seconds of attention there and back with each choice, and whose kernels they are; in an order that begins with the fastest.

    A choice that takes the same kernels as one before is left out.
    """
    import torch.nn.functional as F

    heads, kv_heads, head = attention_heads(config)
    found = {}
    for name, context in contexts.items():
        rows = torch.randn(batch, sequence, (heads + 2 * kv_heads) * head, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        q, k, v = rows.view(batch, sequence, -1, head).transpose(1, 2).split([heads, kv_heads, kv_heads], 1)
        options = {"is_causal": True, "enable_gqa": kv_heads != heads}
        try:
            with context():
                kernels = kernels_of(torch, q, k, v, options) or name
                seconds = []
                for _ in range(10):
                    torch.cuda.synchronize()
                    began = time.perf_counter()
                    F.scaled_dot_product_attention(q, k, v, **options).sum().backward()
                    torch.cuda.synchronize()
                    seconds.append(time.perf_counter() - began)
        except RuntimeError as error:
            # Of a choice that has no kernel here; the model is not trained with it.
            kernels, seconds = str(error)[:100], [float("inf")]
        if kernels not in [other for other, _ in found.values()]:
            found[name] = (kernels, statistics.median(seconds))
    return dict(sorted(found.items(), key=lambda each: each[1][1]))


def train(args, clock):
    """Prints a line of JSON for each choice of attention: its kernels, seconds and memory; before it what attention takes alone."""
    import torch
    from torch import nn

    torch.set_float32_matmul_precision("high")
    device = "cuda" if args.device == "cuda" else "cpu"
    config, batch, sequence = shape(args.model, args.device)
    contexts = attentions(torch, device)
    kernels = {"default": ("", 0.0)}
    if device == "cuda":
        kernels = kernels_alone(torch, config, batch, sequence, contexts)
    alone = ", ".join(f"{name} {1e3 * seconds:.2f} ms alone" for name, (_, seconds) in kernels.items() if seconds)
    if alone:
        print(f"attention, forward and backward of a layer: {alone}", flush=True)
    model = build(torch, config, sequence, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=device == "cuda")
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    for at, (name, (own, seconds_alone)) in enumerate(kernels.items()):
        before = clock.left()
        if seconds_alone == float("inf"):
            continue
        compiled = compile_model(torch, model, args.compile)
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        seconds = []
        for _ in range(args.steps):
            tokens = torch.randint(config["vocab_size"], (batch, sequence + 1), device=device)
            wait()
            began = time.perf_counter()
            with contexts[name]():
                with torch.autocast(device, torch.bfloat16):
                    loss = compiled(tokens[:, :-1], tokens[:, 1:])
                loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            wait()
            seconds.append(time.perf_counter() - began)
        counted = seconds[WARM_UP:] or seconds[-1:]
        print(json.dumps({
            "attention": f"{name}: {own} ({alone})" if own else name,
            "compile_s": max(0.0, sum(seconds[:WARM_UP]) - WARM_UP * statistics.median(counted)),
            "seconds": counted,
            "memory": torch.cuda.max_memory_allocated() if device == "cuda" else 0,
        }), flush=True)
        # Another one takes as long again.
        if clock.left() < before - clock.left():
            return
