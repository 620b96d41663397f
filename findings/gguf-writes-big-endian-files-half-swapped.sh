#!/usr/bin/env bash
# gguf 0.19.0: a big-endian file gets its BF16 and quantized tensors in the other byte order, and reads back as right.
#
# A GGUF file has one byte order for everything in it, and big-endian machines such as s390x need files of theirs.
# `GGUFWriter(endianess=BIG)` swaps the bytes of F32 and F16 tensors. Data in BF16 and in the quantized types comes as an
# array of bytes, and swapping an array of bytes does nothing. So BF16 values and the scales of blocks stay
# little-endian, in a file that says big-endian. `gguf-convert-endian` of the same package swaps both. It makes a right
# file from a little-endian one, and turns the writer's file into a broken one. The reader does not see it:
# `GGUFReader` and `dequantize` ignore the byte order, so they read the scales of the wrong file as they were, and those
# of the right file as other numbers. With F32 and F16 too, `dequantize` returns other numbers. Nothing is raised or
# warned. `convert_hf_to_gguf.py --bigendian` uses this writer. Pull request 12851 of llama.cpp has a remark that the
# writer could swap quantized types. No page or issue was found that says that such files are wrong. Seen with
# gguf 0.19.0 on a little-endian machine:
#   writer: bytes as in the converted file: F32 True, F16 True, BF16 False, Q8_0 False, Q4_0 False
#   written, then converted to little: values right: F32 True, F16 True, BF16 False, Q8_0 False, Q4_0 False
#   read by the library, writer's file: values right: F32 False, F16 False, BF16 True, Q8_0 True, Q4_0 True
#   read by the library, converted file: values right: F32 False, F16 False, BF16 False, Q8_0 False, Q4_0 False
# So write little-endian files, and convert them with gguf-convert-endian.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check gguf==0.19.0 numpy 2>/dev/null
cd "$work"
"$work/venv/bin/python" -W ignore - <<'PY'
import shutil
import subprocess
import sys

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFEndian, GGUFReader, GGUFWriter
from gguf.quants import dequantize, quantize

matrix = np.random.default_rng(0).standard_normal((4, 256)).astype(np.float32)
exact = {Type.F32: matrix, Type.F16: matrix.astype(np.float16)}
exact |= {each: quantize(matrix, each) for each in (Type.BF16, Type.Q8_0, Type.Q4_0)}


def write(path, order):
    writer = GGUFWriter(path, "llama", endianess=order)
    for each, data in exact.items():
        writer.add_tensor(each.name, data, raw_dtype=each)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def converted(source, path, order):
    shutil.copy(source, path)
    command = [sys.executable, "-m", "gguf.scripts.gguf_convert_endian", path, order]
    subprocess.run(command, input="YES\n", text=True, capture_output=True, check=True)
    return path


def data(path):
    return {tensor.name: tensor.data for tensor in GGUFReader(path).tensors}


def right(path):
    read = {name: dequantize(array, Type[name]) for name, array in data(path).items()}
    return [bool(np.array_equal(read[each.name], dequantize(array, each))) for each, array in exact.items()]


write("little", GGUFEndian.LITTLE)
write("big", GGUFEndian.BIG)
assert right("little") == [True] * 5 and GGUFReader("big").endianess is GGUFEndian.BIG
good = converted("little", "good", "big")
assert right(converted("good", "again", "little")) == [True] * 5
ours, theirs = data("big"), data(good)
seen = {
    "writer: bytes as in the converted file": [ours[t.name].tobytes() == theirs[t.name].tobytes() for t in exact],
    "written, then converted to little: values right": right(converted("big", "back", "little")),
    "read by the library, writer's file: values right": right("big"),
    "read by the library, converted file: values right": right(good),
}
for line, answers in seen.items():
    print(f"{line}: " + ", ".join(f"{each.name} {answer}" for each, answer in zip(exact, answers)))
half = [True, True, False, False, False]
sys.exit(list(seen.values()) != [half, half, [not answer for answer in half], [False] * 5])
PY
