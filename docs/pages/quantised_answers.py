"""The section of `consumers.md` about quantised tables, from the cells that predictions read."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Outcome
from tieconv.loaders.release_tables import Cell, quantised_cells

_SHORT = {"float": "float", "quantised": "codes", "absent": "–"}
_CALM = (Outcome.TIED, Outcome.UNTIED)

INTRO = """\
## Quantised tables

The answer for a [quantised](quantised.md) embedding or head is what a run of the loader with a tiny Llama gave.
*Tables* are embedding + head. A combination that is not in the list is `unknown`, and so is a matrix with a missing
part. *As floats* means that the outcome is that of the model without quantisation.

transformers had compressed-tensors 0.20, bitsandbytes 0.50.2 and GPTQModel 7.7. On a CPU, vLLM runs neither FP8 nor
lookups of packed codes. For FP8 with `weight_scale_inv`, transformers dequantises all codes without a GPU, so
tieconv has no answer there.

`python -m tests.oracles.quantised LOADER PYTHON` runs these combinations again. No answer was wrong. There were 112 for
transformers 5.23.0, and 128 each for vLLM 0.32.0 and 0.28.0. mlx-lm 0.32.2 had 96, llama.cpp 30, and
onnxruntime-genai 0.18.0 had 288.
"""


def quantised_answers() -> Iterator[str]:
    """Yield the lines of the section: a table for the loaders that have the same rows."""
    yield INTRO
    loaders: dict[str, list[str]] = {}
    for (name, version), cells in quantised_cells().items():
        for cell in cells:
            words = str(cell.outcome or "as floats")
            outcome = words if cell.outcome in (None, *_CALM) else f"**{words}**"
            row = " | ".join((_schemes(cell), _config(cell), _tables(cell), outcome, cell.says))
            loaders.setdefault(row, []).append(f"{name} {version}")
    tables: dict[str, list[str]] = {}
    for row, names in loaders.items():
        tables.setdefault(" and ".join(dict.fromkeys(names)), []).append(row)
    for names, rows in tables.items():
        yield f"### {names}\n"
        yield "| scheme | config | tables | outcome | why |"
        yield "|---|---|---|---|---|"
        yield from (f"| {row} |" for row in rows)
        yield ""


def _schemes(cell: Cell) -> str:
    names = ", ".join(cell.schemes).replace("compressed-tensors ", "")
    return f"{names}, {cell.bits[0]} bit" if cell.bits else names


def _config(cell: Cell) -> str:
    facts = {
        cell.tied: {True: "tied", False: "untied"},
        ("named", cell.named): {("named", True): "names the head", ("named", False): "does not name the head"},
        ("listed", cell.head_listed): {("listed", True): "lists the head", ("listed", False): "does not list the head"},
        ("out", cell.left_out): {("out", True): "skips the head", ("out", False): "does not skip the head"},
        ("symmetric", cell.symmetric): {("symmetric", True): "symmetric", ("symmetric", False): "asymmetric"},
    }
    conditions = [words[key] for key, words in facts.items() if key in words]
    classes = [name.removesuffix("ForCausalLM") for name in cell.classes]
    return "; ".join([*conditions, *([" and ".join(classes)] if classes else [])]) or "any"


def _tables(cell: Cell) -> str:
    return ", ".join(" + ".join(_SHORT[form] for form in pair) for pair in cell.tables) or "any"
