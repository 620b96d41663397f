#!/usr/bin/env bash
# transformers 5.24.0: a head bias that the file lacks gets old memory instead of numbers, for some classes.
#
# Loading a checkpoint without a parameter starts that parameter as a new model would: the head bias of BERT becomes
# zeros. For Longformer, FNet, Nyströmformer and the text class of Data2Vec nothing is written to the bias. It keeps what
# the memory held before, values up to 1e37 in some runs. The load report calls it "newly initialized" as for BERT. To
# see it in each run, torch fills new memory with NaN here, an option of its deterministic mode. Seen:
#   BertForMaskedLM: zeros, reported as missing: True
#   LongformerForMaskedLM: never written, reported as missing: True
#   FNetForMaskedLM: never written, reported as missing: True
#   NystromformerForMaskedLM: never written, reported as missing: True
#   Data2VecTextForMaskedLM: never written, reported as missing: True
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy transformers==5.24.0
"$work/venv/bin/python" - "$work" <<'PY' 2>/dev/null
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file

transformers.logging.set_verbosity_error()
torch.use_deterministic_algorithms(True)
torch.utils.deterministic.fill_uninitialized_memory = True
sizes = dict(vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
more = {"Longformer": dict(attention_window=4), "Nystromformer": dict(num_landmarks=4, segment_means_seq_len=8)}
bad = False
for kind in ("Bert", "Longformer", "FNet", "Nystromformer", "Data2VecText"):
    cls = getattr(transformers, f"{kind}ForMaskedLM")
    folder = f"{sys.argv[1]}/{kind}"
    cls(getattr(transformers, f"{kind}Config")(**sizes, **more.get(kind, {}))).save_pretrained(folder)
    file = f"{folder}/model.safetensors"
    names = {"cls.predictions.bias", "cls.predictions.decoder.bias", "lm_head.bias", "lm_head.decoder.bias"}
    save_file({name: value for name, value in load_file(file).items() if name not in names}, file, {"format": "pt"})
    model, report = cls.from_pretrained(folder, output_loading_info=True)
    bias = model.get_output_embeddings().bias
    state = "never written" if bias.isnan().all() else "zeros" if not bias.any() else "other values"
    missing = bool(names & set(report["missing_keys"]))
    print(f"{cls.__name__}: {state}, reported as missing: {missing}")
    bad = bad or state != ("zeros" if kind == "Bert" else "never written") or not missing
sys.exit(bad)
PY
