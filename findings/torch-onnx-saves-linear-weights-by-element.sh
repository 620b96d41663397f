#!/usr/bin/env bash
# torch 2.13.0 with onnx-ir 1.1.0: `torch.onnx.export` saves the weight of a linear layer element by element.
#
# The exporter folds the transpose of the weight, and keeps the result as a transposed NumPy view. onnx-ir hands such a
# view to `numpy.ndarray.tofile`, which copies single elements into a buffer of 4 KiB. The same layer without the
# transpose is one write. The bytes are right. For a language model these are almost all weights, and no signal handler
# runs within such a call. A matrix of 268 MB took 1.9 s of processor time; to copy and write it in order takes 0.3 s.
# Seen with torch 2.13.0, onnx-ir 1.1.0, onnxscript 0.7.2 and numpy 2.4.6, for a matrix of 16.8 MB:
#   linear layer: 4097 writes, embedding of the same shape: 2 writes
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 onnx-ir==1.1.0 onnxscript==0.7.2 onnx==1.23.2 \
  numpy==2.4.6 2>/dev/null
"$work/venv/bin/python" -W ignore - "$work/graph.onnx" 2>/dev/null <<'PY'
import sys
from pathlib import Path

import torch


def writes():
    return int(Path("/proc/self/io").read_text().split("syscw:")[1].split()[0])


counts = {}
hidden, ids = torch.ones(2, 3, 2048), torch.ones(2, 3, dtype=torch.long)
for name, layer, given in (
    ("linear layer", torch.nn.Linear(2048, 2048, bias=False), hidden),
    ("embedding of the same shape", torch.nn.Embedding(2048, 2048), ids),
):
    program = torch.onnx.export(layer.eval(), (given,), dynamo=True, verbose=False)
    before = writes()
    program.save(sys.argv[1], external_data=True)
    counts[name] = writes() - before
print(", ".join(f"{name}: {count} writes" for name, count in counts.items()))
few, many = sorted(counts.values())
sys.exit(not (few < 100 < 4000 < many == counts["linear layer"]))
PY
