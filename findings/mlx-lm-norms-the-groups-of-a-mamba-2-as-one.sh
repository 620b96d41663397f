#!/usr/bin/env bash
# mlx-lm 0.32.2: a Mamba 2 with more than one group computes something else, and so does a Falcon-H1.
#
# A Mamba 2 shares two of its projections within groups of heads. n_groups in config.json says how many there are. The
# norm before the output of each layer works on one group at a time, so each group has a size of its own. mlx-lm reads
# n_groups, divides the heads by it, and then takes the norm over all groups at once. With one group, as in most
# published models, that is the same. Codestral Mamba has more than one. The weights load, and each layer scales its
# groups by a common factor instead of their own. The first token is wrong already. Nothing is raised or warned.
# Falcon-H1 with mamba_rms_norm does the same. Nemotron-H of mlx-lm, which has a norm of its own, is right. Pull request
# 40861 of transformers is about the same in its own Mamba 2, and names Codestral Mamba. The Mamba 2 of transformers
# 5.24.0 takes the norm by groups. Pull request 188 of vmlx-swift mentions the Falcon-H1 of mlx-lm. No public issue of
# mlx-lm about its Mamba 2 was found. Seen with mlx-lm 0.32.2, mlx 0.32.4, transformers 5.24.0 and torch 2.13.0; the
# figures are distances from the logits of transformers, by their norm:
#   Mamba 2, 1 group: first token 0.00, 24 tokens 0.00
#   Mamba 2, 2 groups: first token 0.18, 24 tokens 0.32
#   Mamba 2, 8 groups: first token 0.35, 24 tokens 0.64
#   Falcon-H1, 1 group: first token 0.00, 24 tokens 0.00
#   Falcon-H1, 2 groups: first token 0.16, 24 tokens 0.13
#   Nemotron-H, 2 groups: first token 0.00, 24 tokens 0.00
# So compare the logits of both before a model with n_groups above 1 is served.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.24.0 mlx-lm==0.32.2 \
  "mlx[cpu]==0.32.4" numpy 2>/dev/null
cd "$work"
HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error "$work/venv/bin/python" -W ignore - <<'PY' 2>/dev/null
import json
import logging
import pathlib
import sys

import mlx.core as mx
import numpy as np
import torch
import transformers
from mlx_lm.utils import load_model

logging.disable(logging.CRITICAL)
mx.set_default_device(mx.cpu)
ids = torch.arange(1, 25)[None]
sizes = {"vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 2, "initializer_range": 0.1, "pad_token_id": 0}
mamba = {**sizes, "intermediate_size": 128, "num_heads": 8, "head_dim": 16, "state_size": 8}
attention = {**sizes, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
falcon = {**attention, "mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8}
falcon["mamba_rms_norm"] = True
nemotron = {**attention, "mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 8}
nemotron |= {"num_hidden_layers": 4, "hybrid_override_pattern": "M*M-"}


@torch.no_grad()
def distances(name, options):
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**options)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.add_(0.2 * torch.randn_like(parameter))
    exact = model(ids).logits[0].float().numpy()
    folder = pathlib.Path("model")
    model.save_pretrained(folder)
    written = json.loads((folder / "config.json").read_text())
    rope = written.pop("rope_parameters", None) or {"rope_theta": 10000.0}
    written |= {"rope_theta": rope["rope_theta"], "rope_scaling": None}
    (folder / "config.json").write_text(json.dumps(written))
    loaded = np.array(load_model(folder)[0](mx.array(ids.numpy()))[0].astype(mx.float32))
    apart = np.linalg.norm(loaded - exact, axis=1) / np.linalg.norm(exact, axis=1)
    return apart[0], np.linalg.norm(loaded - exact) / np.linalg.norm(exact)


seen = []
for label, name, options in (
    ("Mamba 2, 1 group", "Mamba2", {**mamba, "n_groups": 1}),
    ("Mamba 2, 2 groups", "Mamba2", {**mamba, "n_groups": 2}),
    ("Mamba 2, 8 groups", "Mamba2", {**mamba, "n_groups": 8}),
    ("Falcon-H1, 1 group", "FalconH1", {**falcon, "mamba_n_groups": 1}),
    ("Falcon-H1, 2 groups", "FalconH1", {**falcon, "mamba_n_groups": 2}),
    ("Nemotron-H, 2 groups", "NemotronH", {**nemotron, "n_groups": 2}),
):
    first, whole = distances(name, options)
    print(f"{label}: first token {first:.2f}, 24 tokens {whole:.2f}")
    seen.append(float(whole))
wrong = [figure > 0.05 for figure in seen]
exact = max(figure for figure, differs in zip(seen, wrong) if not differs)
sys.exit(wrong != [False, True, True, False, True, False] or exact > 0.005)
PY
