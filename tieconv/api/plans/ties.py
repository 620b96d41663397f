"""Plan to tie the embedding and the head, to untie them, or to set the tie flag."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from tieconv import plans
from tieconv.api.plans.planning import planned_write
from tieconv.checkpoint.inspection import Depth, Inspection
from tieconv.checkpoint.model_files import ByteReader
from tieconv.checkpoint.write_plan import Digest, digest
from tieconv.errors import RefusedError
from tieconv.inspection.view_reader import readable, stream
from tieconv.plans import BiasChoice, Survivor
from tieconv.plans.verbs import set_tie
from tieconv.sources.local.files import open_files
from tieconv.sources.user_files import read_text
from tieconv.text import shown

if TYPE_CHECKING:
    from pathlib import Path

    from tieconv.checkpoint.write_plan import Plan
    from tieconv.planned import PlannedWrite


def plan_retie(
    path: str | Path = ".",
    *,
    bias: str = "keep",
    survivor: str | None = None,
    force: bool = False,
    max_kl: float | None = None,
    text: str | Path | None = None,
    fold_norm: bool = False,
    embed: str | None = None,
    head: str | None = None,
    drop_other_formats: bool = False,
    fetch: bool = False,
) -> PlannedWrite:
    """Plan to drop the redundant copies of tied tensors and to set the config to tied.

    ``bias`` is ``keep``, ``zero`` or ``strip``. ``survivor`` is ``embed``, ``head`` or their ``mean``. ``force``
    ties tensors that are not bit-equal. ``max_kl`` does so only if the change of the probabilities is at most
    that many nats a token. A proof shows the limit, or a measurement on a file of ``text``. ``fold_norm`` moves the
    factors of a folded norm from the head back into the norm, if that is exact. Raises `RefusedError` if the function
    would change.
    """
    choice, chosen_survivor = BiasChoice(bias), Survivor(survivor) if survivor else None
    maker = partial(plans.plan_retie, bias=choice, survivor=chosen_survivor, force=force)
    if max_kl is not None:
        if chosen_survivor is None:
            raise ValueError("max_kl needs a survivor")
        if not 0 <= max_kl < inf:
            raise ValueError("max_kl must be a number of nats, 0 or more")
        words = None if text is None else read_text(str(text))
        maker = partial(_within, partial(maker, force=True), str(chosen_survivor), max_kl, words)
        fetch = True  # the cost needs every number of both tables
    if fold_norm:
        if chosen_survivor is not None:
            raise ValueError("fold_norm keeps the embedding: it takes no survivor")
        maker, fetch = partial(_unfolded, maker), True
    return planned_write(maker, path, Depth.CANDIDATES, embed, head, drop_other_formats, fetch)


def _unfolded(make: Callable[..., Plan], evidence: Inspection) -> Plan:
    """Make a plan that moves a folded norm out of the head. One table, or codes, get the ordinary plan."""
    if evidence.quantised is not None:
        return make(evidence, fold=None)
    from tieconv.analysis.norm_fold import unfold
    from tieconv.analysis.subject import open_subject

    with open_files(evidence.checkpoint.root) as files:
        files.expect(evidence.checkpoint.files)
        subject = open_subject(evidence, files)
        if not subject.head:
            return make(evidence, fold=None)
        proofs = _digests(evidence, files)
        plan = make(evidence, fold=unfold(subject))
        return replace(plan, proofs=(*plan.proofs, *proofs))


def _digests(evidence: Inspection, files: ByteReader) -> tuple[Digest, ...]:
    """Return digests of both tables, so that the write can detect a change of the source."""
    ends = {end.name for end in (evidence.head.input_embedding, evidence.head.output_head) if end}
    tables = [record for name, record in evidence.checkpoint.tensors.items() if name in ends]
    reader, dense = readable(files, tables)
    return tuple(
        Digest(table, digest(stream(reader, table_record.range)))
        for table, table_record in zip(tables, dense, strict=True)
    )


def _within(
    make: Callable[[Inspection], Plan], survivor: str, max_kl: float, text: str | None, evidence: Inspection
) -> Plan:
    """Make the plan if its cost is at most ``max_kl``. Raises `RefusedError` otherwise."""
    from tieconv.analysis import check_kl_budget

    if evidence.quantised is not None:
        raise RefusedError(
            f"{shown(evidence.checkpoint.source)} has a quantised embedding or head, and --max-kl compares floats",
            "leave out --max-kl: tieconv retie ties quantised tables that are equal",
            "tie.quantised",
        )
    plan = make(evidence)  # raises first for models that no budget allows
    with open_files(evidence.checkpoint.root) as files:
        files.expect(evidence.checkpoint.files)
        proofs = _digests(evidence, files)
        note = check_kl_budget(evidence, files, plans.forecast_retie(evidence), survivor, max_kl, text)
    return replace(plan, notes=(*plan.notes, note), proofs=(*plan.proofs, *proofs))


def plan_untie(
    path: str | Path = ".",
    *,
    bias: str = "keep",
    keep_flag: bool = False,
    embed: str | None = None,
    head: str | None = None,
    drop_other_formats: bool = False,
    fetch: bool = False,
) -> PlannedWrite:
    """Plan to store the head, and every other tied name, as a separate tensor.

    ``keep_flag`` leaves the config tied. Raises `RefusedError` if the function would change.
    """
    maker = partial(plans.plan_untie, bias=BiasChoice(bias), keep_flag=keep_flag)
    return planned_write(maker, path, Depth.CANDIDATES, embed, head, drop_other_formats, fetch)


def plan_set_tie(
    flag: str,
    path: str | Path = ".",
    *,
    force: bool = False,
    embed: str | None = None,
    head: str | None = None,
    drop_other_formats: bool = False,
    fetch: bool = False,
) -> PlannedWrite:
    """Plan to write ``tie_word_embeddings`` at every level of the config, and to change no tensor.

    ``flag`` is ``true``, ``false`` or ``auto`` (from the stored tensors). Raises `RefusedError` if the flag changes the
    forward pass. Without ``force``, also raises it if a loader would discard a stored tensor or start one at random.
    """
    maker = partial(set_tie.plan_set_tie, flag=set_tie.Flag(flag), force=force)
    return planned_write(maker, path, Depth.CANDIDATES, embed, head, drop_other_formats, fetch)
