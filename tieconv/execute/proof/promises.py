"""Compare the plan's promises with a fresh inspection of the written model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.quantised_matrix import QuantisedTables
from tieconv.checkpoint.tie_group import Tie
from tieconv.checkpoint.write_plan.plan import Promises, TiePromise
from tieconv.errors import TieconvError, VerificationError
from tieconv.text import shown

_HINT = "tieconv changed nothing; please report this"


def check_promises(promises: Promises, staged: Path, reinspect: Callable[[Path], Inspection]) -> None:
    """Inspect what was written; raise `VerificationError` if it breaks a promise."""
    try:
        inspection = reinspect(staged)
    except TieconvError as error:
        raise VerificationError(
            f"tieconv cannot inspect the written model: {error.message}", _HINT, "verify.inspection"
        ) from error
    effective = inspection.config.effective
    if promises.effective is not None and effective != promises.effective:
        _fail(f"the written config means tied = {effective}, but the plan promised {promises.effective}")
    if promises.quantised:
        _check_quantised(promises.quantised, inspection.quantised)
    ties = {tie.canonical: tie for tie in inspection.ties}
    for promise in promises.ties:
        _check_tie(promise, ties.get(promise.canonical))


def _check_quantised(roles: tuple[str, ...], tables: QuantisedTables | None) -> None:
    matrices = tables.matrices if tables else ()
    if sorted(matrix.role for matrix in matrices) != sorted(roles):
        _fail(f"the written model does not hold exactly these quantised matrices: {', '.join(roles)}")
    for matrix in matrices:
        if matrix.faults:
            _fail(f"the quantised {shown(matrix.name)} is broken: {matrix.faults[0].reason}")


def _check_tie(promise: TiePromise, tie: Tie | None) -> None:
    if tie is None:
        _fail(f"the written model has no tied group with {shown(promise.canonical)}")
    if promise.declared is not None and tie.declared != promise.declared:
        _fail(f"the written config declares tied = {tie.declared} for the group of {shown(promise.canonical)}")
    stored = {member.name for member in tie.members if member.stored}
    if tie.canonical_stored:
        stored.add(tie.canonical)
    for name in promise.stored:
        if name not in stored:
            _fail(f"the written model lacks the promised tensor {shown(name)}")
    for name in promise.absent:
        if name in stored:
            _fail(f"the written model still holds tensor {shown(name)}")


def _fail(why: str) -> NoReturn:
    raise VerificationError(why, _HINT, "verify.promise")
