"""`serve-bench --validate` over ten traces and plans, as a page of Markdown.

    cargo build --release
    python3 tests/tools/validate_serving.py --trainwright target/release/trainwright > page.md

Each case serves one load with random weights on ranks of this machine, in rounds: steps of other sequences are
measured, the load is forecast from them, and then served. Nothing of a run goes into its own forecast. With
--processor-time the cases of one rank count the processor's time, which other programs change less than the wall's.
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__)
LLAMA = {
    "model_type": "llama", "hidden_size": 192, "num_attention_heads": 6, "num_key_value_heads": 2,
    "num_hidden_layers": 4, "intermediate_size": 512, "vocab_size": 2048, "hidden_act": "silu",
    "tie_word_embeddings": False, "max_position_embeddings": 1024,
}
MIXTRAL = LLAMA | {
    "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2,
    "intermediate_size": 256, "sliding_window": None,
}
GPT2 = {
    "model_type": "gpt2", "n_embd": 192, "n_head": 6, "n_layer": 4, "n_positions": 1024, "vocab_size": 2048,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}
MODELS = {"llama": LLAMA, "mixtral": MIXTRAL, "gpt2": GPT2}
# Model, ranks, engine, load.
CASES = [
    ("llama", "", "vllm-v1", "--clients 8 --requests 32 --input 100 --output 40 --max-tokens 128"),
    ("llama", "", "vllm-v1", "--trace mixed.csv --max-tokens 96"),
    ("llama", "", "vllm-v1", "--trace mixed.csv --max-tokens 96 --cache-tokens 800"),
    ("llama", "", "vllm-v0", "--trace mixed.csv --max-tokens 256"),
    ("llama", "", "tensorrt-llm", "--rate 8 --requests 30 --input 60 --output 30 --max-tokens 128"),
    ("llama", "", "fastertransformer", "--batch 12 --input 80 --output 50"),
    ("llama", "--tensor 2", "vllm-v1", "--clients 6 --requests 24 --input 80 --output 40 --max-tokens 96"),
    ("llama", "--pipeline 2", "vllm-v1", "--trace mixed.csv --max-tokens 96"),
    ("gpt2", "", "sglang", "--clients 4 --requests 20 --input 120 --output 30 --max-tokens 160"),
    ("mixtral", "", "vllm-v1", "--clients 6 --requests 24 --input 60 --output 40 --max-tokens 96"),
]
FIGURES = ["ttft_ms", "tpot_ms", "output_tokens_per_s"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trainwright", default=str(HERE.parents[2] / "target/debug/trainwright"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0, help="of each case; 0 for as many as it has ranks")
    parser.add_argument("--processor-time", action="store_true", help="of the cases of one rank")
    parser.add_argument("--cases", default="", help="numbers of cases, from 1, with commas")
    return parser.parse_args()


def mixed_trace(path):
    """30 requests in bursts, prompts of 5 to 200 tokens, answers of 2 to 60."""
    draw = random.Random(5)
    rows, arrival = [], 0.0
    for _ in range(30):
        arrival += draw.choice([0.0, 0.0, 0.05, 0.3])
        rows.append(f"{arrival:.2f},{draw.randint(5, 200)},{draw.randint(2, 60)}")
    path.write_text("arrival_s,input_tokens,output_tokens\n" + "\n".join(rows) + "\n")


def main():
    args = arguments()
    chosen = [int(number) for number in args.cases.split(",") if number] or range(1, len(CASES) + 1)
    columns = "model | ranks | engine | load | TTFT, ms | error | TPOT, ms | error | output tokens/s | error | steps"
    print(f"| | {columns} within |")
    print("| --- " * 12 + "|", flush=True)
    errors = {figure: [] for figure in FIGURES}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        mixed_trace(folder / "mixed.csv")
        for name, config in MODELS.items():
            (folder / f"{name}.json").write_text(json.dumps(config))
        for number in chosen:
            model, ranks, engine, load = CASES[number - 1]
            threads = args.threads or (2 if ranks else 1)
            command = [args.trainwright, "--quiet", "serve-bench", "--model", f"./{model}.json", "--engine", engine,
                       "--threads", str(threads), "--validate", "--rounds", str(args.rounds), "--json",
                       *ranks.split(), *load.split()]
            if args.processor_time and not ranks:
                command.append("--processor-time")
            ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
            if ran.returncode != 0:
                sys.exit(f"{' '.join(command)}: {ran.stderr}{ran.stdout}")
            answer = json.loads(ran.stdout)
            cells = []
            for figure in FIGURES:
                found = answer["validation"][figure]
                errors[figure].append(abs(found["error_percent"]))
                cells += [f"{found['measured']:.1f}", f"{found['error_percent']:+.1f} %"]
            within = f"{answer['median_step_error_percent']:.1f} %"
            row = [str(number), model, ranks.strip("-") or "one", engine, f"`{load}`", *cells, within]
            print(f"| {' | '.join(row)} |", flush=True)
    means = ", ".join(f"{figure} {sum(all_) / len(all_):.1f} %" for figure, all_ in errors.items())
    largest = ", ".join(f"{figure} {max(all_):.1f} %" for figure, all_ in errors.items())
    print(f"\nMean absolute error: {means}; the largest: {largest}.")


if __name__ == "__main__":
    main()
