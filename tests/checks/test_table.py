"""The state × declared tables, cell by cell, on checkpoints made for the cell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import tieconv as api
from fixtures.states import DEFAULT_TIED, OUTPUT_BIAS, WORD_EMBEDDING, Column, Row, Table
from tests.checks.fixtures.model import (
    BERT,
    BERT_EMBED,
    BERT_HEAD,
    EMBED,
    GEMMA,
    HEAD,
    INNER_BIAS,
    LLAMA,
    OUTER_BIAS,
    Array,
    Config,
    flagged,
    matrix,
    save,
    vector,
)
from tests.checks.remedy import run
from tieconv.checkpoint.family import Role
from tieconv.checkpoint.inspection import Depth, Inspection, State
from tieconv.checkpoint.relation import Aliased
from tieconv.checks import run_checks


def _moved(tensor: Array) -> Array:
    changed = tensor.copy()
    changed[5] += 0.25
    return changed


#: What the second name holds, made from the first one's values; ``None`` where it is not stored.
SECOND: dict[State, Callable[[Array], Array | None]] = {
    State.CANONICAL: lambda tensor: tensor,
    State.ABSENT: lambda tensor: None,
    State.ALIASED: lambda tensor: tensor,
    State.IDENTICAL: lambda tensor: tensor,
    State.TRANSPOSED: lambda tensor: tensor.T,
    State.CAST: lambda tensor: tensor.astype("<f2"),
    State.SCALED: lambda tensor: tensor * 8,
    State.NEAR: _moved,
    State.DISTINCT: lambda tensor: tensor[::-1] * 3 + 1,
    State.UNREAD: lambda tensor: tensor,
}
CELLS = [
    pytest.param(table, row, column, id=f"{table.role}-{row.state}-{column.title.replace(' ', '_')}")
    for table in (WORD_EMBEDDING, OUTPUT_BIAS)
    for row in table.rows
    for column in table.columns
]


def config(table: Table, column: Column) -> Config:
    """A class whose default is what the column says, with the flag or without it."""
    if table.role is Role.OUTPUT_BIAS:
        return flagged(BERT, column.flag)
    return flagged(GEMMA if column is DEFAULT_TIED else LLAMA, column.flag)


def tensors(table: Table, row: Row, column: Column) -> dict[str, Array]:
    bias = table.role is Role.OUTPUT_BIAS
    first, second = (OUTER_BIAS, INNER_BIAS) if bias else (EMBED, HEAD)
    value = vector() if bias else matrix()
    pair = {first: value, second: SECOND[row.state](value)}
    if row.state is State.CANONICAL:
        del pair[first]
    stored = {name: tensor for name, tensor in pair.items() if tensor is not None}
    if not bias:
        return stored
    head = {} if column.tied else {BERT_HEAD: matrix(seed=1)}
    return {BERT_EMBED: matrix(), **head, **stored}


def inspect(folder: Path, table: Table, row: Row, column: Column) -> Inspection:
    path = save(folder / "model", config(table, column), tensors(table, row, column))
    depth = Depth.HEADER if row.state is State.UNREAD else Depth.CANDIDATES
    inspection = api.inspect(path, depth=depth)
    return _aliased(inspection, table) if row.state is State.ALIASED else inspection


def _aliased(inspection: Inspection, table: Table) -> Inspection:
    """The same evidence from a format in which two names can share a storage."""
    ties = tuple(
        replace(
            tie,
            members=tuple(
                replace(member, relation=Aliased()) if member.state is State.IDENTICAL else member
                for member in tie.members
            ),
        )
        if tie.role is table.role
        else tie
        for tie in inspection.ties
    )
    changed = replace(inspection, ties=ties)
    return replace(changed, findings=run_checks(changed))


@pytest.mark.parametrize(("table", "row", "column"), CELLS)
def test_cell(table: Table, row: Row, column: Column, tmp_path: Path) -> None:
    """A cell is consistent, and then nothing is found, or exactly its rule speaks."""
    inspection = inspect(tmp_path, table, row, column)
    tie = next(tie for tie in inspection.ties if tie.role is table.role)
    assert row.state in {member.state for member in tie.members[1:]}
    assert tie.declared is column.tied
    rule = row.rule(column)
    assert [finding.rule for finding in inspection.findings] == ([rule] if rule else [])


@pytest.mark.parametrize(("table", "row", "column"), CELLS)
def test_remedy_of_a_cell_works(table: Table, row: Row, column: Column, tmp_path: Path) -> None:
    """A remedy ends its finding and leaves nothing to report but an equal, untied head."""
    for finding in inspect(tmp_path, table, row, column).findings:
        if finding.remedy is not None and row.state is not State.ALIASED:
            run(finding.remedy.command, tmp_path / "out")
            left = {later.rule for later in api.inspect(tmp_path / "out").findings}
            assert finding.rule not in left
            assert left <= ({"TIE004"} if "untie" in finding.remedy.command else set())


def test_tables_have_every_state() -> None:
    """A new state needs a row; only vectors, which have no transpose, lack one."""
    assert [row.state for row in WORD_EMBEDDING.rows] == list(State)
    assert {row.state for row in OUTPUT_BIAS.rows} == set(State) - {State.TRANSPOSED}


def test_only_an_unread_copy_of_a_tied_model_is_undecided() -> None:
    """Headers decide every cell but one: whether a copy that a tied model stores is equal."""
    undecided = [
        (row.state, column.tied)
        for table in (WORD_EMBEDDING, OUTPUT_BIAS)
        for row in table.rows
        for column in table.columns
        if not row.decides(column)
    ]
    assert set(undecided) == {(State.UNREAD, True)}
