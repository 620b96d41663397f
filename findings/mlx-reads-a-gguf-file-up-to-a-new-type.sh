#!/usr/bin/env bash
# mlx 0.32.4: mx.load of a GGUF file ends at the first tensor of a newer type, and returns what came before.
#
# A GGUF file lists its tensors with a number for the type of each. Types with new numbers were added over the years:
# ternary ones, MXFP4 of gpt-oss, NVFP4, and one of 1 bit. `mx.load` does not know these, and takes such a tensor for
# the end of the list. The tensors behind it are missing too, also those in F32. If it is first, the result is an empty
# dict. Nothing is raised or warned, and the metadata is complete. A type whose number is known, and whose blocks mlx
# cannot turn into float16, raises a RuntimeError instead, as Q5_0 does. So `load_weights` with strict=False fills a
# part of a model, and the rest stays random. A loader that takes a model without output.weight for a tied one computes
# with the embedding. The docstring of load warns of a cast to float16 alone. No public issue was found. Seen with mlx
# 0.32.4 and gguf 0.19.0, which lists all names of each file. A file holds token_embd.weight, experts,
# output_norm.weight and output.weight, in this order:
#   experts in F32, F16, BF16, Q4_0, Q8_0, Q6_K: 4 of 4 names
#   experts in Q5_0, Q5_K, IQ4_XS: RuntimeError
#   experts in TQ1_0, TQ2_0, MXFP4, NVFP4, Q1_0: 1 of 4 names
#   MXFP4 experts first: 0 of 4 names
# So compare the names with those that GGUFReader of gguf lists.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check "mlx[cpu]==0.32.4" gguf==0.19.0 numpy 2>/dev/null
"$work/venv/bin/python" - "$work/model.gguf" <<'PY' 2>/dev/null
import sys

import gguf
import mlx.core as mx
import numpy as np

matrix = np.ones((8, 512), dtype=np.float32)
names = ["token_embd.weight", "experts", "output_norm.weight", "output.weight"]
groups = ("F32 F16 BF16 Q4_0 Q8_0 Q6_K", "Q5_0 Q5_K IQ4_XS", "TQ1_0 TQ2_0 MXFP4 NVFP4 Q1_0")


def outcome(name, order):
    """What mx.load makes of a file whose experts have the type ``name``, and the names that gguf reads."""
    kind = gguf.GGMLQuantizationType[name]
    values, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = np.zeros((8, 512 // values * size), dtype=np.uint8)
    writer = gguf.GGUFWriter(sys.argv[1], "llama")
    for tensor in order:
        if tensor == "experts":
            writer.add_tensor(tensor, blocks, raw_dtype=kind)
        else:
            writer.add_tensor(tensor, matrix)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    listed = [tensor.name for tensor in gguf.GGUFReader(sys.argv[1]).tensors]
    assert listed == order
    try:
        loaded = mx.load(sys.argv[1])
    except RuntimeError:
        return "RuntimeError"
    return f"{len(set(order) & set(loaded))} of 4 names"


seen = []
for group in groups:
    outcomes = {outcome(name, names) for name in group.split()}
    seen.append(" or ".join(sorted(outcomes)))
    print(f"experts in {group.replace(' ', ', ')}: {seen[-1]}")
seen.append(outcome("MXFP4", [names[1], names[0], *names[2:]]))
print(f"MXFP4 experts first: {seen[-1]}")
sys.exit(seen != ["4 of 4 names", "RuntimeError", "1 of 4 names", "0 of 4 names"])
PY
