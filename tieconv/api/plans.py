"""Plan the commands that write a model."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from tieconv.api.evidence import inspect, refuse_graphs
from tieconv.checkpoint.inspection import Depth, Inspection
from tieconv.checkpoint.value_type import check_choice, record
from tieconv.checkpoint.write_plan import Digest, NormFold, Plan, digest
from tieconv.errors import RefusedError, UnreadableError
from tieconv.inspection.view_reader import readable, stream
from tieconv.opened import fetched_so_far, on_disk, opened, proved, reading, with_tokenizer
from tieconv.plans.biases import BiasChoice
from tieconv.plans.build import alone, dropping, plan_add_format
from tieconv.plans.guards import guard_many
from tieconv.plans.verbs import retie, untie
from tieconv.sources import is_remote
from tieconv.sources.local import FileSet, open_files
from tieconv.text import Hint, call, option, parse_size, shown

if TYPE_CHECKING:
    from pathlib import Path

    from tieconv.checkpoint.model_files import ByteReader, Checkpoint, Listing
    from tieconv.checkpoint.weight_file import TensorRecord
    from tieconv.planned import PlannedWrite
    from tieconv.sources.ranged import RangedFiles

Make = Callable[[Inspection], "Plan"]
Here = Callable[[], "PlannedWrite"]


@record
class Source:
    """MODEL, and the options of every planner that say how it is read."""

    path: str | Path
    embed: str | None
    head: str | None
    drop_other_formats: bool
    fetch: bool

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | os.PathLike):
            kind = type(self.path).__name__
            raise ValueError(f"path: a model on disk, and not a {kind}; save a model that is in memory first")

    def plan(self, make: Make, depth: Depth = Depth.CANDIDATES, *, bare: bool = False) -> PlannedWrite:
        """Return the plan that ``make`` makes of the evidence, with everything that `execute` needs.

        With ``bare`` the tensors of a local training checkpoint have the names of the model.
        """
        from tieconv.planned import PlannedWrite

        own = bare and not is_remote(str(self.path))

        def planned(path: str | Path, here: Here | None) -> PlannedWrite:
            if here:
                evidence = proved(os.fspath(path), depth, self.embed, self.head)
            else:
                evidence = inspect(path, depth=depth, embed=self.embed, head=self.head, bare=own, accept=guard_many)
            if self.drop_other_formats:
                plan = dropping(make(replace(evidence, checkpoint=alone(evidence.checkpoint))))
            else:
                plan = make(evidence)
            # The chunks of a training checkpoint become tensors with the model's names, which need no option.
            named = (None, None) if evidence.checkpoint.table else (self.embed, self.head)
            reinspect = partial(inspect, embed=named[0], head=named[1])
            return PlannedWrite(plan, reinspect, here, evidence.fetched)

        refuse_graphs(self.path)
        return self.near_or_far(planned)

    def near_or_far(
        self, planned: Callable[[str | Path, Here | None], PlannedWrite], *, refuses: bool = True
    ) -> PlannedWrite:
        """Plan a local model. Of a remote one, plan from what a proof needs, or with ``fetch`` a copy on this machine.

        ``planned(path, here)`` gets the function that copies a remote model to this machine and plans there. For
        ``refuses`` see `on_disk`.
        """
        if not is_remote(str(self.path)):
            return planned(self.path, None)

        def here() -> PlannedWrite:
            return planned(on_disk(self.path, self.drop_other_formats, refuses=refuses), None)

        return here() if self.fetch else planned(self.path, here)


# Tie the embedding and the head, untie them, or set the tie flag.


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
    choice, chosen = BiasChoice(bias), retie.Survivor(survivor) if survivor else None
    words = None
    if max_kl is not None:
        if chosen is None:
            raise ValueError("max_kl needs a survivor")
        if not 0 <= max_kl < inf:
            raise ValueError("max_kl must be a number of nats, 0 or more")
        if text is not None:
            from tieconv.sources.user_files import read_text

            words = read_text(str(text))
    if fold_norm and chosen is not None:
        raise ValueError("fold_norm keeps the embedding: it takes no survivor")

    def make(evidence: Inspection, fold: NormFold | None = None) -> Plan:
        forced = force or max_kl is not None
        return retie.plan_retie(evidence, bias=choice, survivor=chosen, force=forced, fold=fold)

    def measured(evidence: Inspection) -> Plan:
        if max_kl is not None:
            if evidence.quantised is not None:
                source = shown(evidence.checkpoint.source)
                raise RefusedError(
                    f"{source} has a quantised embedding or head, and --max-kl compares floats",
                    Hint("leave out ", option("max_kl"), ": ", call("retie"), " ties quantised tables that are equal"),
                    "tie.quantised",
                )
            from tieconv.analysis import check_kl_budget

            plan = make(evidence)
            with open_files(evidence.checkpoint.root) as files:
                files.expect(evidence.checkpoint.files)
                proofs = _digests(evidence, files)
                note = check_kl_budget(evidence, files, retie.forecast_retie(evidence), str(chosen), max_kl, words)
            return replace(plan, notes=(*plan.notes, note), proofs=(*plan.proofs, *proofs))
        return _unfolded(evidence, make) if fold_norm else make(evidence)

    # What is measured needs every number of both tables.
    fetch = fetch or fold_norm or max_kl is not None
    return Source(path, embed, head, drop_other_formats, fetch).plan(measured)


def _unfolded(evidence: Inspection, make: Callable[[Inspection, NormFold | None], Plan]) -> Plan:
    """Make a plan that moves a folded norm out of the head. One table, or codes, get the ordinary plan."""
    if evidence.quantised is not None:
        return make(evidence, None)
    from tieconv.analysis.norm_fold import unfold
    from tieconv.analysis.subject import open_subject

    with open_files(evidence.checkpoint.root) as files:
        files.expect(evidence.checkpoint.files)
        subject = open_subject(evidence, files)
        if not subject.head:
            return make(evidence, None)
        proofs = _digests(evidence, files)
        plan = make(evidence, unfold(subject))
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
    make = partial(untie.plan_untie, bias=BiasChoice(bias), keep_flag=keep_flag)
    return Source(path, embed, head, drop_other_formats, fetch).plan(make)


def plan_set_tie(
    flag: str | bool,
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
    from tieconv.plans.verbs import set_tie

    make = partial(set_tie.plan_set_tie, flag=set_tie.Flag(str(flag).lower()), force=force)
    return Source(path, embed, head, drop_other_formats, fetch).plan(make)


# Change the head bias, or the vocabulary size.


def plan_bias(
    action: str,
    path: str | Path = ".",
    *,
    survivor: str | None = None,
    rows: int | None = None,
    embed: str | None = None,
    head: str | None = None,
    drop_other_formats: bool = False,
    fetch: bool = False,
) -> PlannedWrite:
    """Plan a change of the head bias that keeps the tie.

    ``action`` is one of four. ``zero`` adds an all-zero bias. ``strip`` removes an all-zero bias. ``unify`` makes two
    copies one; if they differ, ``survivor`` is ``bias`` or ``decoder``. ``resize`` changes the number of entries to
    ``rows``, by default to the rows of the head. Raises `RefusedError` if trained values would be lost.
    """
    from tieconv.checkpoint.tie_group import BiasState
    from tieconv.inspection.equality import bias_summary
    from tieconv.plans.verbs import bias_verbs

    chosen = bias_verbs.BiasSurvivor(survivor) if survivor else None

    def resize(evidence: Inspection) -> Plan:
        def is_zero(record: TensorRecord) -> bool:
            with reading(evidence.checkpoint) as files:
                return bias_summary(files, record)[0] is BiasState.ZERO

        return bias_verbs.plan_bias_resize(evidence, rows, is_zero)

    makers: dict[str, Make] = {
        "zero": bias_verbs.plan_bias_zero,
        "strip": bias_verbs.plan_bias_strip,
        "unify": partial(bias_verbs.plan_bias_unify, survivor=chosen),
        "resize": resize,
    }
    check_choice("action", action, makers)
    return Source(path, embed, head, drop_other_formats, fetch).plan(makers[action])


def plan_resize(
    path: str | Path = ".",
    *,
    to: str | int,
    fill: str = "zeros",
    embed: str | None = None,
    head: str | None = None,
    drop_other_formats: bool = False,
    fetch: bool = False,
) -> PlannedWrite:
    """Plan the same number of rows for config, embedding, head and head bias.

    ``to`` is ``"rows"`` (`vocab_size` follows the embedding), ``"config"`` (the tensors follow `vocab_size`) or a
    number for both. ``fill`` sets the new rows: ``"zeros"``, or the ``"mean"`` of the existing rows. Raises
    `RefusedError` if it would remove the row of a token, or of an id in config.json or generation_config.json. Without
    a tokenizer, it removes no row. Also raises it if another tensor has an axis of the old vocabulary.
    """
    if not isinstance(to, int) and to not in ("rows", "config") and not to.isdecimal():
        raise ValueError(f"to={to!r} is not rows, config or a number")
    from tieconv.formats.directory import read_generation
    from tieconv.plans.verbs import resize

    chosen = resize.Fill(fill)

    def make(evidence: Inspection) -> Plan:
        mean_row = partial(_mean_row, evidence.checkpoint)
        with opened(evidence.checkpoint.root) as (_, files, _):
            evidence = with_tokenizer(evidence, files)
            generation = read_generation(files, evidence.checkpoint.companions)
        return resize.plan_resize(evidence, str(to), chosen, mean_row, generation)

    return Source(path, embed, head, drop_other_formats, fetch).plan(make)


_ROWS = 4096
"""Number of rows of a matrix that are summed at once."""


def _mean_row(checkpoint: Checkpoint, record: TensorRecord) -> bytes:
    """Return the mean row of a matrix as bytes, summed in float64 and rounded once."""
    import numpy as np

    from tieconv.execute.arithmetic import floats, rounded

    rows, width = record.shape
    line = record.nbytes // rows
    total = np.zeros(width)
    with reading(checkpoint) as files:
        for first in range(0, rows, _ROWS):
            block = bytearray(min(_ROWS, rows - first) * line)
            files.read_into(record.range, first * line, memoryview(block))
            total += floats(block, record.dtype).reshape(-1, width).sum(axis=0)
    return rounded(total / rows, record.dtype)


# Store the same tensors once, in another format, or with another index.


def plan_dedup(
    path: str | Path = ".",
    *,
    embed: str | None = None,
    head: str | None = None,
    drop_other_formats: bool = False,
    fetch: bool = False,
) -> PlannedWrite:
    """Plan to store each group of byte-identical tensors once. Copies that a loader needs stay.

    Raises `RefusedError` if tieconv cannot tell which files are the model.
    """
    from tieconv.plans.verbs import dedup

    return Source(path, embed, head, drop_other_formats, fetch).plan(dedup.plan_dedup, Depth.FULL)


def plan_convert(
    to: str,
    path: str | Path = ".",
    *,
    max_shard_size: int | str = "5GB",
    embed: str | None = None,
    head: str | None = None,
    drop_other_formats: bool = False,
    fetch: bool = False,
) -> PlannedWrite:
    """Plan to store the model as ``to`` (``safetensors`` or ``torch``) in shards of at most ``max_shard_size``.

    The size is a number of bytes or a text such as ``5GB``. Raises `ValueError` for an invalid size. Raises
    `RefusedError` if a file in the directory has the name of a file to write.
    """
    from tieconv.plans.verbs import convert

    make = partial(convert.plan_convert, to=convert.Format(to), max_shard_size=parse_size(str(max_shard_size)))
    return Source(path, embed, head, drop_other_formats, fetch).plan(make, bare=True)


def plan_reindex(
    path: str | Path = ".",
    *,
    prune: bool = False,
    add_format: bool = False,
    strip_prefix: bool = False,
    drop_other_formats: bool = False,
    fetch: bool = False,
) -> PlannedWrite:
    """Plan to rebuild the shard index of safetensors or torch files from the headers of the shards.

    ``prune`` leaves out weight files that the index does not list. ``add_format`` writes the ``format`` entry of
    safetensors metadata, if it is missing or loaders refuse it. It also works for a model of one file without an index.

    ``strip_prefix`` removes the prefix of a training wrapper (`module.`, `_orig_mod.`) from every tensor name instead.

    Raises `RefusedError` for any other model of one file, and if two shards store one tensor with different bytes.
    Raises `UnreadableError` if a shard is missing.
    """
    from tieconv.formats.shards import is_one_file, read_shards
    from tieconv.inspection.equality import equal
    from tieconv.planned import PlannedWrite
    from tieconv.plans.verbs import reindex

    refuse_graphs(path)
    source = Source(path, None, None, drop_other_formats, fetch)
    if strip_prefix:
        return source.plan(reindex.plan_strip_prefix, Depth.HEADER)
    if add_format:
        with opened(os.fspath(path)) as (listing, files, _):
            alone_in_file = is_one_file(listing, files)
        if alone_in_file:
            return source.plan(plan_add_format, Depth.HEADER)

    def planned(path: str | Path, here: Here | None) -> PlannedWrite:
        with opened(os.fspath(path)) as (listing, files, commit):

            def same(a: TensorRecord, b: TensorRecord) -> bool:
                reader, (left, right) = readable(files, (a, b))
                return equal(reader, left.range, right.range)

            checkpoint = replace(read_shards(listing, files), revision=commit)
            checkpoint = alone(checkpoint) if drop_other_formats else checkpoint
            evidence = _of_shards(checkpoint, listing, files)
            plan = reindex.plan_reindex(checkpoint, same, evidence, prune=prune, add_format=add_format)
            fetched = fetched_so_far(files)
        return PlannedWrite(dropping(plan) if drop_other_formats else plan, _indexed, here, fetched)

    return source.near_or_far(planned, refuses=False)


def _of_shards(checkpoint: Checkpoint, listing: Listing, files: RangedFiles | FileSet) -> Inspection | None:
    """Return the evidence from the headers of the shards and the config; ``None`` without a valid config."""
    from tieconv.formats.directory import CONFIG, read_config
    from tieconv.inspection import inspect_checkpoint

    if CONFIG not in listing.top:
        return None
    try:
        config, _ = read_config(files)
    except UnreadableError:
        return None
    return inspect_checkpoint(replace(checkpoint, config=config), files, Depth.HEADER)


def _indexed(out: Path, depth: Depth = Depth.HEADER) -> Inspection:
    """Return the evidence about a model with a new index. Raises `UnreadableError` if the index is wrong."""
    evidence = inspect(out, depth=depth)
    faults = ("index.absent", "index.absent-tensor", "index.extra-tensor")
    fault = next((caution for caution in evidence.checkpoint.cautions if caution.code in faults), None)
    if fault is not None:
        raise UnreadableError(fault.message, "", fault.code)
    return evidence
