"""Load GGUF files without a layer, a matrix or the embedding: ``python -m tests.oracles.gguf_faults PYTHON CLASS ...``.

PYTHON is the interpreter of the environment `llama.cpp` of `tests.oracles.environments`. It converts a small model of
each class, writes the faulty files, and loads each with libllama. This prints the row of tieconv and the error that was
seen. It exits with 1 if an error was predicted and not seen.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Tensors = dict[str, Any]
Fault = tuple[str, int, Callable[[Tensors], object]]
"""A title, the number of layers in the metadata, and what happens to the tensors of a model with two layers."""


def faults(names: list[str]) -> Iterator[Fault]:
    """Yield the faults of a file with these tensors. Layer 1 becomes layer 2 where more than two are compared."""
    starts = ["enc.blk.", "dec.blk."] if "enc.blk.0.attn_norm.weight" in names else ["blk."]

    def repeat(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.startswith(f"{starts[0]}1.")]:
            tensors[name.replace("blk.1.", "blk.2.", 1)] = tensors[name]

    def drop(tensors: Tensors, ends: tuple[str, ...], *, first: bool = False) -> None:
        for name in [name for name in names if name.startswith(ends)][: 1 if first else None]:
            del tensors[name]

    def toggle_bias(tensors: Tensors) -> None:
        if tensors.pop("output.bias", None) is None:
            tensors["output.bias"] = tensors["token_embd.weight"][:, 0].copy()

    yield "whole", 2, lambda tensors: None
    yield "surplus", 2, repeat
    yield "another bias", 2, toggle_bias
    yield "no embedding", 2, lambda tensors: tensors.pop("token_embd.weight")
    for start in starts:
        yield f"no {start}1", 2, lambda tensors, start=start: drop(tensors, (f"{start}1.",))
    if starts == ["blk."]:
        yield "three", 3, repeat
        matrices = tuple(f"blk.1.{name}" for name in ("attn_output", "attn_q.w", "attn_qkv.w", "ssm_in"))
        yield "no matrix", 3, lambda tensors: (repeat(tensors), drop(tensors, matrices, first=True))


def write(source: Path, folder: Path) -> None:
    """Convert the model in ``source``, write each faulty file to ``folder``, and print what libllama says of it."""
    sys.path.insert(0, str(Path(__file__).parent))
    import numpy as np
    import run_llama_cpp

    converter, library = run_llama_cpp.Converter(), run_llama_cpp.Library()
    import gguf

    whole = folder / "converted.gguf"
    converter.convert(converter.prepared(source, folder / "copy"), whole)
    reader = gguf.GGUFReader(whole)
    architecture = reader.fields["general.architecture"].contents()
    for title, blocks, change in faults([tensor.name for tensor in reader.tensors]):
        path = folder / f"{title}.gguf"
        writer = gguf.GGUFWriter(path, architecture)
        for name, field in reader.fields.items():
            value = blocks if name == f"{architecture}.block_count" else field.contents()
            subtype = field.types[-1] if isinstance(value, list) else None
            if isinstance(value, list) and len(value) == 2:  # a number for each layer
                value = [*value, *value[-1:] * (blocks - 2)]
            if not name.startswith("GGUF.") and name != "general.architecture":
                writer.add_key_value(name, value, field.types[0], sub_type=subtype)
        tensors = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
        change(tensors)
        for name, tensor in tensors.items():
            writer.add_tensor(name, tensor)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        try:
            library.logits(path, [1, 2, 3])
            print(f"{title}|", flush=True)
        except RuntimeError as error:
            print(f"{title}|{error}", flush=True)


def main(python: str, *classes: str) -> int:
    """Print each file, and return how many predicted errors were not seen, at most 1."""
    from tests.oracles import checkpoints
    from tieconv import inspect

    wrong = 0
    for kind in classes:
        with tempfile.TemporaryDirectory() as name:
            made = checkpoints.base(kind, Path(name) / "base")
            cell = checkpoints.Cell(kind, (True,) * checkpoints.levels(made.family), "equal")
            model = checkpoints.write(cell, made, Path(name) / "model")
            command = [python, __file__, "--write", str(model), name]
            for line in subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines():
                title, _, seen = line.partition("|")
                row = inspect(Path(name) / f"{title}.gguf", consumers="llama.cpp").consumers[-1]
                print(f"{kind}, {title}: predicted {row.outcome}, saw {seen or 'logits'}"[:200], flush=True)
                wrong += row.outcome == "error" and not seen
    return min(wrong, 1)


if __name__ == "__main__":
    if sys.argv[1] == "--write":
        write(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        sys.exit(main(*sys.argv[1:]))
