"""Tables of each loader release, measured or read from its source: one JSON file for each release in ``data/``.

``release`` and ``measured`` say with which release and how. ``about`` explains each entry of ``tables``. An entry lists
classes or model types, or maps model types to names. `fixtures/loaders.py` writes the files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from tieconv.checkpoint.finding import Outcome
from tieconv.checkpoint.value_type import record
from tieconv.package_data import data_text


@cache
def _tables(release: str) -> Mapping[str, Any]:
    tables: Mapping[str, Any] = json.loads(data_text(__name__, f"{release}.json"))["tables"]
    return tables


@cache
def names(release: str, table: str) -> frozenset[str]:
    """Return the classes or model types in one table; the empty set if the release has no such table."""
    return frozenset(_tables(release).get(table, ()))


def by_type(release: str, table: str) -> Mapping[str, Any]:
    """Return the values of one table by model type."""
    entries: Mapping[str, Any] = _tables(release)[table]
    return entries


def kind(release: str, name: str) -> str | None:
    """Return the name of the table that lists a class, or ``None`` if no table does."""
    lists = ((table, entry) for table, entry in _tables(release).items() if isinstance(entry, list))
    return next((table for table, entry in lists if name in entry), None)


# What each loader was seen to do with a quantised embedding or head, by scheme, flag and the two tables.
#
# `data/quantised/cells.json` says with which releases and models each cell was run. A combination without a cell is
# unknown. The first cell that fits is the answer. A pair without codes is one whose head the config lists as quantised.
FLOAT, QUANTISED, ABSENT = "float", "quantised", "absent"

Tables = tuple[str, str]
"""The embedding and the head, each `FLOAT`, `QUANTISED` or `ABSENT`."""


@record
class Cell:
    """One measured combination. ``None`` fits every value.

    ``named`` says whether the config lists the head by its own name, not by a class such as Linear. ``head_listed``
    says whether it lists the head at all, also if no codes are stored for it. ``classes`` are the architectures that
    were run; an empty tuple fits every class. The ``outcome`` `None` is that of the same model without quantisation.
    """

    loader: tuple[str, str]
    schemes: tuple[str, ...]
    outcome: Outcome | None
    says: str
    tied: bool | None = None
    tables: tuple[Tables, ...] = ()
    named: bool | None = None
    head_listed: bool | None = None
    left_out: bool | None = None
    symmetric: bool | None = None
    bits: tuple[int, ...] = ()
    classes: tuple[str, ...] = ()


TRANSFORMERS, VLLM_028, VLLM = ("transformers", "5.x"), ("vllm", "<0.29"), ("vllm", ">=0.29")
LLAMA_CPP, MLX = ("llama.cpp", "2026"), ("mlx-lm", "0.32")
GENAI = ("onnxruntime-genai", "0.18")


def _cell(loader: tuple[str, str], row: dict[str, Any]) -> Cell:
    outcome, pairs = row.pop("outcome"), (pair.split() for pair in row.pop("tables", ()))
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
    tables = tuple((embedding, head) for embedding, head in pairs)
    return Cell(loader=loader, outcome=Outcome(outcome) if outcome else None, tables=tables, **values)


@cache
def quantised_cells() -> Mapping[tuple[str, str], tuple[Cell, ...]]:
    """Return the cells of each loader, by name and version."""
    every = json.loads(data_text(__name__, "quantised/cells.json"))["cells"]
    loaders = {name: (name.partition(" ")[0], name.partition(" ")[2]) for name in every}
    return {loaders[name]: tuple(_cell(loaders[name], row) for row in rows) for name, rows in every.items()}
