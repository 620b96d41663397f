#!/usr/bin/env bash
# tinygrad 0.14.0: torch_load reads a slice of a matrix from a torch file as other numbers.
#
# A torch file stores the memory of a tensor, and its shape, offset and strides. `torch.save` of a slice keeps the strides,
# as for the parts that `chunk(3, dim=1)` makes of a fused GPT-2 matrix, or for the first columns of a head. `torch_load`
# uses the strides of transposed tensors alone, and takes all others for contiguous. So a slice of columns, or every second
# row, comes back with numbers of its neighbours. The shape is right and nothing is raised. `load_state_dict` then puts
# them into the model. A slice of rows and a transposed matrix are right. A slice of a transposed matrix fails an
# assertion, "nonpermutable strides". Both formats of torch files are read so. The docstring of torch_load mentions no
# limits, and no public issue was found. Seen with tinygrad 0.14.0 and torch 2.13.0:
#   zip: matrix True, rows True, transposed True, columns False, middle third False, every second row False
#   older format: matrix True, rows True, transposed True, columns False, middle third False, every second row False
#   loaded into a model by tinygrad: columns as saved False; by torch: True
# So call contiguous() on each tensor before torch.save. tinygrad needs clang; zig's, from its Python package, stands in.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy tinygrad==0.14.0 ziglang==0.17.1 2>/dev/null
cat > "$work/clang" <<SH
#!/bin/sh
for word; do shift; case \$word in --target=*) word=--target=x86_64-linux-musl;; esac; set -- "\$@" "\$word"; done
exec "$work/venv/bin/python" -m ziglang cc -g0 -fno-asynchronous-unwind-tables -fno-sanitize=all -fno-stack-protector "\$@"
SH
chmod +x "$work/clang"
CC="$work/clang" CACHELEVEL=0 ZIG_GLOBAL_CACHE_DIR="$work/zig" "$work/venv/bin/python" - "$work" <<'PY' 2>/dev/null
import sys

import numpy as np
import tinygrad
import torch
from tinygrad.nn.state import load_state_dict, torch_load

matrix = torch.arange(48.0).reshape(6, 8).clone()
tensors = {
    "matrix": matrix,
    "rows": matrix[1:3],
    "transposed": matrix.T,
    "columns": matrix[:, :4],
    "middle third": torch.arange(90.0).reshape(6, 15).chunk(3, dim=1)[1],
    "every second row": matrix[::2],
}
seen = []
for label, zipped in (("zip", True), ("older format", False)):
    right = []
    for name, tensor in tensors.items():
        path = f"{sys.argv[1]}/{zipped} {name}.pt"  # a new file each: tinygrad keeps them open
        torch.save({name: tensor}, path, _use_new_zipfile_serialization=zipped)
        assert torch.load(path)[name].equal(tensor)
        right.append(np.array_equal(np.array(torch_load(path)[name].tolist()), tensor.numpy()))
    print(f"{label}: " + ", ".join(f"{name} {value}" for name, value in zip(tensors, right)))
    seen.append(right)


class Model:
    def __init__(self):
        self.head = tinygrad.nn.Linear(4, 6, bias=False)


path = f"{sys.argv[1]}/model.pt"
torch.save({"head.weight": tensors["columns"]}, path)
model, other = Model(), torch.nn.ModuleDict({"head": torch.nn.Linear(4, 6, bias=False)})
load_state_dict(model, torch_load(path), verbose=False)
other.load_state_dict(torch.load(path))
loaded = np.array_equal(model.head.weight.numpy(), tensors["columns"].numpy()), other["head"].weight.equal(tensors["columns"])
print(f"loaded into a model by tinygrad: columns as saved {loaded[0]}; by torch: {loaded[1]}")
sys.exit((seen, loaded) != ([[True] * 3 + [False] * 3] * 2, (False, True)))
PY
