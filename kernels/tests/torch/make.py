"""Makes the fixtures beside this file with PyTorch: python3 make.py (pip install torch numpy).

Each file holds inputs, outputs and gradients of one op, small enough to read."""

import json
import pathlib

import torch
import torch.nn.functional as F

HERE = pathlib.Path(__file__).parent
torch.manual_seed(1)


def flat(tensor):
    return [float(x) for x in tensor.detach().reshape(-1)]


def write(name, **values):
    values = {key: flat(value) if torch.is_tensor(value) else value for key, value in values.items()}
    (HERE / f"{name}.json").write_text(json.dumps({"torch": torch.__version__, **values}) + "\n")


def leaf(*shape, scale=1.0):
    return (torch.randn(*shape) * scale).requires_grad_()


def norms():
    for name, width in [("layer_norm", 24), ("rms_norm", 24)]:
        x, gain, bias, g = leaf(5, width), leaf(width), leaf(width), torch.randn(5, width)
        if name == "layer_norm":
            y = F.layer_norm(x, (width,), gain, bias, 1e-5)
        else:
            y = F.rms_norm(x, (width,), gain, 1e-5)
        y.backward(g)
        bias_grad = bias.grad if bias.grad is not None else torch.zeros(width)
        write(name, x=x, gain=gain, bias=bias, g=g, y=y, dx=x.grad, dgain=gain.grad, dbias=bias_grad, width=width)


def activations():
    x, g = leaf(4, 10, scale=2.0), torch.randn(4, 10)
    y = F.gelu(x, approximate="tanh")
    y.backward(g)
    write("gelu", x=x, g=g, y=y, dx=x.grad, width=10)
    x, g = leaf(4, 20, scale=2.0), torch.randn(4, 10)
    y = F.silu(x[:, :10]) * x[:, 10:]
    y.backward(g)
    write("swiglu", x=x, g=g, y=y, dx=x.grad, width=10)


def attention():
    batch, positions, heads, kv_heads, d = 2, 9, 4, 2, 8
    row = (heads + 2 * kv_heads) * d
    # Rows: position * batch + sequence.
    qkv, g = leaf(positions, batch, row), torch.randn(positions, batch, heads * d)
    q, k, v = qkv.split([heads * d, kv_heads * d, kv_heads * d], dim=2)
    q, k, v = (t.reshape(positions, batch, -1, d).permute(1, 2, 0, 3) for t in (q, k, v))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    y = y.permute(2, 0, 1, 3).reshape(positions, batch, heads * d)
    y.backward(g)
    write("attention", qkv=qkv, g=g, y=y, dqkv=qkv.grad, batch=batch, heads=heads, kv_heads=kv_heads, d=d)


def cross_entropy():
    logits, targets = leaf(6, 11, scale=3.0), torch.randint(0, 11, (6,))
    loss = F.cross_entropy(logits, targets)
    loss.backward()
    write("cross_entropy", logits=logits, targets=targets.float(), loss=loss.item(), dlogits=logits.grad, width=11)


def optimizers():
    start, grads = torch.randn(12), torch.randn(3, 12)
    for name in ["adamw", "momentum"]:
        weight = start.clone().requires_grad_()
        if name == "adamw":
            optimizer = torch.optim.AdamW([weight], lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
        else:
            optimizer = torch.optim.SGD([weight], lr=0.01, momentum=0.9, weight_decay=0.1)
        for grad in grads:
            weight.grad = grad.clone()
            optimizer.step()
        write(name, start=start, grads=grads, end=weight, count=12)


def products():
    """Y = X W^T + b, the look-up of rows, and the sum with what goes past."""
    x, weight, bias, g = leaf(5, 8), leaf(6, 8), leaf(6), torch.randn(5, 6)
    y = F.linear(x, weight, bias)
    y.backward(g)
    write("linear", x=x, weight=weight, bias=bias, g=g, y=y, dx=x.grad, dweight=weight.grad, dbias=bias.grad,
          inputs=8, outputs=6)
    table, entries, g = leaf(7, 4), torch.tensor([3, 0, 3, 6, 1]), torch.randn(5, 4)
    y = F.embedding(entries, table)
    y.backward(g)
    write("embedding", table=table, entries=entries.tolist(), g=g, y=y, dtable=table.grad, width=4)


def rotary():
    """Rows: positions; the halves' order of Hugging Face's LLaMA."""
    positions, heads, d = 6, 3, 8
    x, g = leaf(positions, heads, d), torch.randn(positions, heads, d)
    angles = torch.outer(torch.arange(positions).double(), 10000.0 ** (-torch.arange(0, d, 2).double() / d))
    cos, sin = (torch.cat([t, t], dim=1).float()[:, None, :] for t in (angles.cos(), angles.sin()))
    y = x * cos + torch.cat([-x[..., d // 2:], x[..., :d // 2]], dim=-1) * sin
    y.backward(g)
    write("rotary", x=x, g=g, y=y, dx=x.grad, heads=heads, d=d)


norms()
activations()
attention()
cross_entropy()
optimizers()
products()
rotary()
