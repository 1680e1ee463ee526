"""Makes the folder mixtral beside this file with Transformers: python3 make_mixtral.py (pip install torch transformers).

A tiny Mixtral with random weights and a sliding window of 6 tokens, as `save_pretrained` writes it, and tokens.json:
prompts, and the tokens that `generate` puts behind each greedily.
"""

import json
import pathlib

import torch
import transformers

FOLDER = pathlib.Path(__file__).parent / "mixtral"
PROMPTS = [[3, 60, 0, 17, 40, 5, 9, 33, 21], [1]]
COUNT = 20

torch.set_num_threads(1)
torch.manual_seed(5)
config = transformers.MixtralConfig(
    hidden_size=16, num_attention_heads=2, num_key_value_heads=1, num_hidden_layers=2, intermediate_size=12,
    vocab_size=61, num_local_experts=3, num_experts_per_tok=2, sliding_window=6, max_position_embeddings=64,
    initializer_range=0.3, rope_parameters={"rope_theta": 50000.0, "rope_type": "default"})
model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
model.save_pretrained(FOLDER)
made = []
for prompt in PROMPTS:
    with torch.no_grad():
        tokens = model.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long), do_sample=False,
            max_new_tokens=COUNT, min_new_tokens=COUNT, eos_token_id=None, pad_token_id=0)
    made.append({"prompt": prompt, "tokens": tokens[0, len(prompt):].tolist()})
(FOLDER / "tokens.json").write_text(json.dumps(made, indent=1) + "\n")
