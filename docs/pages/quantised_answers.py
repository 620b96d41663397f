"""The section of `consumers.md` about quantised tables, from the cells that predictions read."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.prediction import Outcome
from tieconv.loaders.evidence.quantised_cells import CELLS, Cell

_SHORT = {"float": "float", "quantised": "codes", "absent": "–"}
_CALM = (Outcome.TIED, Outcome.UNTIED)

INTRO = """\
## Quantised tables

The answer for a [quantised](quantised.md) embedding or head is what a run of the loader with a tiny Llama gave.
*Tables* are embedding + head. A combination that is not in the list is `unknown`. So is a matrix with a missing part.

`python -m tests.oracles.quantised LOADER PYTHON` runs the combinations of packed, FP8 and GPTQ codes again. All 30
answers of llama.cpp and all 20 of transformers 5.23.0 were right. GPTQ did not run in transformers there, because it
needs GPTQModel.
"""


def quantised_answers() -> Iterator[str]:
    """Yield the lines of the section."""
    yield INTRO
    yield "| loader | scheme | config | tables | outcome | why |"
    yield "|---|---|---|---|---|---|"
    for (name, version), cells in CELLS.items():
        for cell in cells:
            outcome = str(cell.outcome) if cell.outcome in _CALM else f"**{cell.outcome}**"
            line = (f"{name} {version}", _schemes(cell), _config(cell), _tables(cell), outcome, cell.says)
            yield f"| {' | '.join(line)} |"
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
