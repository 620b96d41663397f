"""Print Tables 1 and 5 of Lopardo et al. 2026 (arXiv 2603.26663) with chance floors, from the published checkpoints.

python docs/reproduce.py                      # reads the models from the Hub
python docs/reproduce.py --models DIR         # reads DIR/allenai/OLMo-1B-hf and so on
python docs/reproduce.py --stand-ins DIR      # writes small random models of the same kinds to DIR, and reads them
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tieconv import Analysis, analyze

ROWS = {
    "OLMo": ("allenai/OLMo-1B-hf", "allenai/OLMo-1B-0724-hf"),
    "GPT-Neo and Pythia": ("EleutherAI/gpt-neo-2.7B", "EleutherAI/pythia-2.8b"),
    "Qwen3": ("Qwen/Qwen3-4B", "Qwen/Qwen3-8B"),
}
"""The tied and the untied model of each row."""

MAPS = ("identity", "procrustes", "least squares")
PAPER = {
    "OLMo": {
        "E→U": (0.012, 0.440, 0.574, 0.455),
        "U→T": (0.014, 0.669, 0.719, 0.733),
        "E→T": (0.001, 0.420, 0.525, 0.496),
    },
    "GPT-Neo and Pythia": {
        "E→U": (-0.001, 0.456, 0.518, 0.611),
        "U→T": (0.001, 0.507, 0.637, 0.408),
        "E→T": (0.000, 0.376, 0.507, 0.372),
    },
    "Qwen3": {"E→U": (None, None, None, 0.366), "U→T": (None, None, None, 0.710), "E→T": (None, None, None, 0.366)},
}
"""The paper's values of `MAPS` (Table 1) and of ``knn`` (Table 5), by row and pair."""


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--models", type=Path, help="directory of the models, in place of the Hub")
    source.add_argument("--stand-ins", type=Path, help="write random stand-ins to this directory and read them")
    parser.add_argument("--row", choices=ROWS, action="append", help="measure this row alone")
    parser.add_argument("--second", action="append", default=[], metavar="ROW=MODEL", help="second seed: the ceilings")
    parser.add_argument("--sampled", action="store_true", help="measure samples, with intervals in --json of analyze")
    chosen = parser.parse_args(words)
    second = dict(each.split("=", 1) for each in chosen.second)
    if chosen.stand_ins:
        second = dict(write_stand_ins(chosen.stand_ins)) | second
    root = chosen.stand_ins or chosen.models
    print("| row | measure | pair | value | chance | ceiling | n | paper |\n|---|---|---|---|---|---|---|---|")
    for row in chosen.row or ROWS:
        tied, untied = (str(root / name) if root else f"hf://{name}" for name in ROWS[row])
        print(f"{row}: {tied} and {untied}", file=sys.stderr)
        analysis = analyze(tied, against=untied, second=second.get(row), exact=not chosen.sampled)
        print("\n".join(lines(row, analysis)), flush=True)


def lines(row: str, analysis: Analysis) -> Iterator[str]:
    """Yield a line of the table for each measure and pair."""
    section = analysis.section("Alignment")
    assert section is not None
    measures = {measure.name: measure for measure in section.measures}
    for column, name in enumerate((*MAPS, "knn")):
        for pair, values in PAPER[row].items():
            measure, paper = measures[f"{name} {pair}"], values[column]
            figures = (measure.value, measure.floor, measure.ceiling)
            texts = ("" if value is None else f"{value:.3f}" for value in (*figures, paper))
            value, floor, ceiling, known = texts
            yield f"| {row} | {name} | {pair} | {value} | {floor} | {ceiling} | {measure.n:,} | {known} |"


# -- stand-ins: random models with the names, classes and proportions of the published ones

SCALE = 16
"""The stand-ins have this share fewer rows and columns."""
KINDS = {
    "allenai/OLMo-1B-hf": ("olmo", "OlmoForCausalLM", 50304, 2048, "model.embed_tokens.weight", None),
    "allenai/OLMo-1B-0724-hf": ("olmo", "OlmoForCausalLM", 50304, 2048, "model.embed_tokens.weight", "lm_head.weight"),
    "EleutherAI/gpt-neo-2.7B": ("gpt_neo", "GPTNeoForCausalLM", 50257, 2560, "transformer.wte.weight", None),
    "EleutherAI/pythia-2.8b": (
        "gpt_neox",
        "GPTNeoXForCausalLM",
        50304,
        2560,
        "gpt_neox.embed_in.weight",
        "embed_out.weight",
    ),
    "Qwen/Qwen3-4B": ("qwen3", "Qwen3ForCausalLM", 151936, 2560, "model.embed_tokens.weight", None),
    "Qwen/Qwen3-8B": ("qwen3", "Qwen3ForCausalLM", 151936, 4096, "model.embed_tokens.weight", "lm_head.weight"),
}
"""model_type, class, rows, columns, input embedding, and the head of an untied model."""


def write_stand_ins(directory: Path) -> Iterator[tuple[str, str]]:
    """Write all models, and a second untied one of each row. Yield the name of each row and its second model.

    Input tables of a row share a random part, and so do output tables. The tied table is an output table.
    """
    for number, (row, names) in enumerate(ROWS.items()):
        for seed, name in enumerate((*names, f"{names[1]}-second")):
            write_stand_in(directory / name, KINDS[name.removesuffix("-second")], 10 * number, seed)
        yield row, str(directory / f"{names[1]}-second")


def write_stand_in(path: Path, kind: tuple[str, str, int, int, str, str | None], group: int, seed: int) -> None:
    """Write one model. Models of one ``group`` share their random parts."""
    from safetensors.numpy import save_file

    model_type, architecture, rows, width, embedding, head = kind
    rows, width = rows // SCALE, width // SCALE

    def table(role: int) -> np.ndarray:
        shared, own, turn = (np.random.default_rng([group, role, part]) for part in (0, 1 + seed, 1000 + seed))
        common = shared.standard_normal((rows, 48)) @ turn.standard_normal((48, width)) / 48**0.5
        return (0.02 * (common + own.standard_normal((rows, width)))).astype(np.float32)

    path.mkdir(parents=True)
    tensors = {embedding: table(1 if head is None else 0)} | ({head: table(1)} if head else {})
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    config = {"model_type": model_type, "architectures": [architecture], "tie_word_embeddings": head is None}
    sizes = {"vocab_size": rows, "hidden_size": width}
    (path / "config.json").write_text(json.dumps(config | sizes), "utf-8")
    (path / "vocab.json").write_text(json.dumps({f"t{row}": row for row in range(rows)}), "utf-8")


if __name__ == "__main__":
    main()
