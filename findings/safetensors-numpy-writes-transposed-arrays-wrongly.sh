#!/usr/bin/env bash
# safetensors 0.8.0: save_file of NumPy arrays writes the values of a transposed array in the wrong order.
#
# The shape in the file is right, and so are the dtype and the number of bytes. The values are those of the memory as it
# lies, read in C order. So a head that was made with `matrix.T`, or any array in Fortran order such as scikit-learn
# returns, comes back as another matrix of the same numbers. A slice comes back with numbers that are not in it. Nothing
# is raised. safetensors 0.7.0 writes all of them rightly. `safetensors.torch` refuses a tensor that is not contiguous. The
# docstring of the NumPy function asks for contiguous arrays in both releases. Issue 825 of safetensors reports it, open
# when this was written. Seen with numpy 2.3.5:
#   0.7.0: C order True, transposed True, Fortran order True, columns True, every second row True
#   0.8.0: C order True, transposed False, Fortran order False, columns False, every second row False
# So call numpy.ascontiguousarray on each array, or stay with 0.7.0.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
for release in 0.7.0 0.8.0; do
  "$work/venv/bin/pip" install -q --disable-pip-version-check "safetensors==$release" numpy==2.3.5 2>/dev/null
  "$work/venv/bin/python" - "$work/file.safetensors" "$release" <<'PY'
import sys

import numpy as np
from safetensors.numpy import load_file, save_file

path, release = sys.argv[1:]
matrix = np.arange(48, dtype=np.float32).reshape(6, 8)
arrays = {
    "C order": matrix,
    "transposed": matrix.T,
    "Fortran order": np.asfortranarray(matrix),
    "columns": matrix[:, :4],
    "every second row": matrix[::2],
}
save_file(arrays, path)
same = {name: np.array_equal(array, arrays[name]) for name, array in load_file(path).items()}
print(f"{release}:", ", ".join(f"{name} {same[name]}" for name in arrays))
sys.exit([same[name] for name in arrays] != [True] + [release == "0.7.0"] * 4)
PY
done
