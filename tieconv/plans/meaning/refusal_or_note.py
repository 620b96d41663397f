"""Decide for each change of a plan whether tieconv refuses it, prints a note, or says nothing.

Each release of transformers loads the model before and after the plan. A difference is

* a note of the planner, if the user asked for it. The planner lists the tensors in a `Note`;
* a refusal, if a parameter loses its stored values in transformers 5, the newest release;
* a refusal, if transformers 5 refuses the result;
* a refusal, if any release does not restore a tensor that the plan drops only to save bytes;
* else a note. Only an older release loses values, or a parameter without values gets some.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from tieconv.architectures.flag_levels import reading_v4
from tieconv.checkpoint.finding import REVIEW_FIRST, Outcome
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.write_plan import Plan
from tieconv.inspection.declared import same_order, type_may_change
from tieconv.loaders.load import MLX_LM, TRANSFORMERS_5, load, releases
from tieconv.loaders.loaded import Absence, Loaded
from tieconv.plans.guards import again, refuse
from tieconv.plans.meaning import change_sentences
from tieconv.plans.meaning.changes import Change, changes
from tieconv.plans.meaning.grouping import grouped
from tieconv.plans.meaning.note import Note, Notes
from tieconv.plans.meaning.parameter_values import KnownValues


def judged(
    plan: Plan,
    before: Inspection,
    after: Inspection,
    notes: Notes,
    *,
    spared: Collection[str] = (),
    forced: bool = False,
) -> Plan:
    """Return the plan that turns the model ``before`` into ``after``, with ``notes`` and notes about its loaders.

    ``spared`` are the tensors that the plan drops only to save bytes. With ``forced`` the user accepts every change.
    Raises `RefusedError` if the plan loses values and the user did not ask for that.
    """
    texts = tuple(note if isinstance(note, str) else note.text for note in notes)
    if before.checkpoint.config is None or plan.changes_nothing:
        return replace(plan, notes=texts)
    asked = tuple(note for note in notes if isinstance(note, Note))
    seen = tuple(_views(before, after, plan, asked))
    if not forced:
        _refuse(before, seen, spared)
        _refuse_in_mlx(before, after)
    types = type_may_change(before.checkpoint, after.checkpoint)
    computed = (*_notes(seen), *((change_sentences.first_type(types),) if types else ()))
    return replace(plan, notes=(*texts, *(f"{sentence} {REVIEW_FIRST}" for sentence in computed)))


@record
class _View:
    """The differences in one release that the user did not ask for.

    ``swapped`` are embeddings that it may read in another order. ``refused`` is the reason why it refuses the result.
    """

    release: str
    changes: tuple[Change, ...]
    swapped: tuple[str, ...]
    refused: str


def _views(before: Inspection, after: Inspection, plan: Plan, asked: tuple[Note, ...]) -> Iterator[_View]:
    values = KnownValues(before, plan)
    for release in releases(before):
        was, comes = load(before, release), load(after, release)
        known = release == TRANSFORMERS_5 or reading_v4(before) is not None
        if not known or was.refused() is not None:
            continue
        refusal = comes.refused()
        swapped = () if same_order(before.checkpoint, after.checkpoint, was.in_order) else was.in_order
        unasked = () if refusal else tuple(_unasked(before, after, was, comes, values, asked, release))
        left = tuple(change for change in unasked if change.before.stored not in swapped)
        yield _View(release, left, swapped, refusal.sentence if refusal else "")


def _unasked(
    before: Inspection,
    after: Inspection,
    was: Loaded,
    comes: Loaded,
    values: KnownValues,
    asked: tuple[Note, ...],
    release: str,
) -> Iterator[Change]:
    for change in changes(before, after, was, comes, values):
        names = (change.name, *values.equal(change.before.stored or change.name))
        if not any(note.covers(release, names) for note in asked):
            yield change


def _refuse(before: Inspection, seen: tuple[_View, ...], spared: Collection[str]) -> None:
    hint = f"see what each loader makes of the model: {again(before, 'inspect', '--consumers')}"
    for view in seen:
        newest = view.release == TRANSFORMERS_5
        if newest and view.refused:
            refuse(change_sentences.refused(view.release, view.refused), hint, "meaning.refused")
        for change in view.changes:
            if change.loses and (newest or not {change.name, change.before.stored}.isdisjoint(spared)):
                sentence = change_sentences.lost(view.release, change.name, *change_sentences.ends(change))
                refuse(sentence, hint, "meaning.lost")


def _refuse_in_mlx(before: Inspection, after: Inspection) -> None:
    """Refuse a plan for files of MLX if mlx-lm loads the model, but would not load the result."""
    if not before.checkpoint.mlx or after.checkpoint.format != before.checkpoint.format:
        return  # another format was asked for, and mlx-lm reads safetensors alone
    from tieconv.loaders.registry import consumer  # few models are files of MLX

    release, name = MLX_LM
    was, comes = (consumer(name, release).predict(model) for model in (before, after))
    if comes.outcome in _FAULTS and was.outcome not in (*_FAULTS, Outcome.UNKNOWN):
        hint = f"see what each loader makes of the model: {again(before, 'inspect', '--consumers')}"
        refuse(f"{name} {release} would not load the result correctly: {comes.detail}", hint, "meaning.refused")


_FAULTS = (Outcome.ERROR, Outcome.RANDOM, Outcome.DISCARDED)


def _notes(seen: tuple[_View, ...]) -> Iterator[str]:
    changed: list[tuple[str, Change]] = []
    for view in reversed(seen):
        if view.refused:
            yield change_sentences.refused(view.release, view.refused)
        if view.swapped:
            yield change_sentences.swapped(view.release, view.swapped)
        unset = [change for change in view.changes if change.after.absence is Absence.UNSET]
        for source in dict.fromkeys(change.after.parameter for change in unset):
            yield change_sentences.unset(view.release, source)
        changed += [(view.release, change) for change in view.changes if change not in unset]
    yield from grouped(changed)
