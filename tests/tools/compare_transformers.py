"""Tokens and logits of `trainwright generate` beside Hugging Face Transformers, the same folder and prompts, greedily.

    pip install torch transformers
    cargo build
    python3 tests/tools/compare_transformers.py                       # exit code 1 if a token differs
    python3 tests/tools/compare_transformers.py --trainwright target/release/trainwright --tokens 40

Makes a folder for each family with small random weights, as `save_pretrained` writes it: GPT-2, LLaMA with grouped
keys, Mistral with a sliding window shorter than the sequences, Mixtral. Both generate behind the same prompts in f32.
The last column is the largest difference of a logit, by the largest logit of the same token; the margin is the
smallest difference of the two highest logits, likewise: where it is not larger, tokens may differ.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers

HERE = pathlib.Path(__file__)
VOCABULARY, POSITIONS = 211, 96
LLAMA = {
    "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3,
    "intermediate_size": 96, "vocab_size": VOCABULARY, "max_position_embeddings": POSITIONS,
    "tie_word_embeddings": False, "initializer_range": 0.15,
}
# θ other than the usual one: a file says it in its own place, by the version that wrote it.
ROTARY = {"rope_theta": 50000.0, "rope_type": "default"}
MODELS = {
    "gpt2": lambda: transformers.GPT2Config(
        n_embd=64, n_head=4, n_layer=3, n_positions=POSITIONS, vocab_size=VOCABULARY, initializer_range=0.15),
    "llama": lambda: transformers.LlamaConfig(**LLAMA, rope_parameters=ROTARY),
    "mistral, window 8": lambda: transformers.MistralConfig(**LLAMA, sliding_window=8),
    "mixtral": lambda: transformers.MixtralConfig(
        **LLAMA, sliding_window=None, num_local_experts=4, num_experts_per_tok=2),
}
PROMPTS = [[3, 66, 0, 17, 40], [1], [9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 200, 100, 50, 25, 12]]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trainwright", default=str(HERE.parents[2] / "target/debug/trainwright"))
    parser.add_argument("--tokens", type=int, default=40, help="behind each prompt")
    parser.add_argument("--seed", type=int, default=7, help="of the weights")
    parser.add_argument("--tolerance", type=float, default=1e-4, help="the largest difference of logits")
    return parser.parse_args()


def theirs(model, prompt, count):
    """Tokens and their logits, by Transformers."""
    with torch.no_grad():
        made = model.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long), do_sample=False,
            max_new_tokens=count, min_new_tokens=count, eos_token_id=None, pad_token_id=0,
            output_logits=True, return_dict_in_generate=True)
    return made.sequences[0, len(prompt):].tolist(), torch.stack([logits[0] for logits in made.logits])


def ours(args, folder):
    """The same of every prompt, by trainwright."""
    prompts = [part for prompt in PROMPTS for part in ("--prompt-tokens", ",".join(map(str, prompt)))]
    command = [args.trainwright, "--quiet", "generate", "--checkpoint", str(folder), "--tokens", str(args.tokens),
               "--threads", "1", "--json", "--logits", *prompts]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        sys.exit(f"{' '.join(command)}: {ran.stderr}")
    return [(made["tokens"], torch.tensor(made["logits"])) for made in json.loads(ran.stdout)["completions"]]


def compared(args, name, folder):
    """Equal tokens, all tokens, the smallest margin and the largest difference of logits."""
    torch.manual_seed(args.seed)
    config = MODELS[name]()
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    model.save_pretrained(folder)
    equal, margin, difference = 0, float("inf"), 0.0
    for prompt, (tokens, logits) in zip(PROMPTS, ours(args, folder)):
        expected, expected_logits = theirs(model, prompt, args.tokens)
        for place, (token, other) in enumerate(zip(tokens, expected)):
            if token != other:
                break
            equal += 1
            largest = expected_logits[place].abs().max().item()
            difference = max(difference, (logits[place] - expected_logits[place]).abs().max().item() / largest)
            first, second = expected_logits[place].topk(2).values.tolist()
            margin = min(margin, (first - second) / largest)
    return equal, len(PROMPTS) * args.tokens, margin, difference


def main():
    args = arguments()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    print(f"{'model':<18}{'equal tokens':>14}{'margin':>12}{'difference':>12}")
    good = True
    for name in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            equal, count, margin, difference = compared(args, name, folder)
        print(f"{name:<18}{f'{equal} of {count}':>14}{margin:>12.1e}{difference:>12.1e}", flush=True)
        good &= equal == count and difference <= args.tolerance
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
