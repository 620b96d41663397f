"""One function a use case: paths in, frozen evidence or an executable plan out."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from tieconv.checkpoint.inspection import Depth, Inspection
from tieconv.checks import run_checks
from tieconv.errors import UnreadableError
from tieconv.formats import read_checkpoint
from tieconv.inspection import inspect_checkpoint
from tieconv.sources.local import locate, open_files

if TYPE_CHECKING:
    from pathlib import Path

    from tieconv.checkpoint.comparison import Comparison
    from tieconv.checkpoint.parity import Parity
    from tieconv.checkpoint.records import TensorRecord
    from tieconv.planned import PlannedWrite


def inspect(
    path: str | Path = ".",
    *,
    depth: Depth | str = Depth.CANDIDATES,
    embed: str | None = None,
    head: str | None = None,
) -> Inspection:
    """What MODEL stores, what ties, what the config declares, and findings with the next command.

    ``embed`` and ``head`` name the input and the output embedding of an unknown architecture. Raises
    `UnreadableError` for input that is missing or malformed.
    """
    listing = locate(str(path))
    with open_files(listing.root) as files:
        checkpoint = read_checkpoint(listing, files)
        evidence = inspect_checkpoint(checkpoint, files, Depth(depth), embed=embed, head=head)
    evidence = _with_base(evidence)
    return replace(evidence, findings=run_checks(evidence))


def _with_base(evidence: Inspection) -> Inspection:
    """The evidence about an adapter, with that about its base model where a directory of that name is here."""
    adapter = evidence.checkpoint.adapter
    # Only a model's directory is entered: any other path of the file's choosing could be a whole disk.
    if adapter is None or not adapter.base or not os.path.isfile(os.path.join(adapter.base, "config.json")):
        return evidence
    try:
        listing = locate(adapter.base)
        with open_files(listing.root) as files:
            base = inspect_checkpoint(read_checkpoint(listing, files), files, Depth.HEADER)
    except UnreadableError:
        return evidence
    return replace(evidence, base=base)


def plan_retie(
    path: str | Path = ".",
    *,
    bias: str = "keep",
    survivor: str | None = None,
    force: bool = False,
    embed: str | None = None,
    head: str | None = None,
) -> PlannedWrite:
    """The plan that drops the redundant copies of tied tensors and sets the config to tied.

    ``bias`` is ``keep``, ``zero`` or ``strip``; ``survivor`` (``embed`` or ``head``) with ``force`` ties tensors
    that are not bit-equal. Raises `RefusedError` where the function would change.
    """
    from tieconv.planned import PlannedWrite
    from tieconv.plans import BiasChoice, Survivor
    from tieconv.plans import plan_retie as make

    plan = make(
        inspect(path, embed=embed, head=head),
        bias=BiasChoice(bias),
        survivor=Survivor(survivor) if survivor else None,
        force=force,
    )
    return PlannedWrite(plan, lambda out: inspect(out, embed=embed, head=head))


def plan_untie(
    path: str | Path = ".",
    *,
    bias: str = "keep",
    keep_flag: bool = False,
    embed: str | None = None,
    head: str | None = None,
) -> PlannedWrite:
    """The plan that stores the head, and every other tied name, as a tensor of its own.

    ``keep_flag`` leaves the config tied. Raises `RefusedError` where the function would change.
    """
    from tieconv.planned import PlannedWrite
    from tieconv.plans import BiasChoice
    from tieconv.plans import plan_untie as make

    plan = make(
        inspect(path, embed=embed, head=head),
        bias=BiasChoice(bias),
        keep_flag=keep_flag,
    )
    return PlannedWrite(plan, lambda out: inspect(out, embed=embed, head=head))


def plan_bias(
    action: str,
    path: str | Path = ".",
    *,
    survivor: str | None = None,
    rows: int | None = None,
    embed: str | None = None,
    head: str | None = None,
) -> PlannedWrite:
    """The plan that changes the head bias and leaves the tie as it is.

    ``action`` is ``zero`` (add an all-zero one), ``strip`` (remove an all-zero one), ``unify`` (make two copies one;
    ``survivor``, ``bias`` or ``decoder``, where they differ) or ``resize`` (to ``rows`` entries, else to those of the
    head). Raises `RefusedError` where trained values would be lost.
    """
    from tieconv.checkpoint.inspection import BiasState
    from tieconv.inspection.values import bias_summary
    from tieconv.planned import PlannedWrite
    from tieconv.plans import bias_verbs

    evidence = inspect(path, embed=embed, head=head)

    def is_zero(record: TensorRecord) -> bool:
        with open_files(evidence.checkpoint.root) as files:
            return bias_summary(files, record)[0] is BiasState.ZERO

    match action:
        case "zero":
            plan = bias_verbs.plan_bias_zero(evidence)
        case "strip":
            plan = bias_verbs.plan_bias_strip(evidence)
        case "unify":
            plan = bias_verbs.plan_bias_unify(evidence, bias_verbs.BiasSurvivor(survivor) if survivor else None)
        case "resize":
            plan = bias_verbs.plan_bias_resize(evidence, rows, is_zero)
        case _:
            raise ValueError(f"{action!r} is not one of zero, strip, unify, resize")
    return PlannedWrite(plan, lambda out: inspect(out, embed=embed, head=head))


def plan_set_tie(
    flag: str,
    path: str | Path = ".",
    *,
    force: bool = False,
    embed: str | None = None,
    head: str | None = None,
) -> PlannedWrite:
    """The plan that writes ``tie_word_embeddings`` at every level of the config and touches no tensor.

    ``flag`` is ``true``, ``false`` or ``auto`` (what the tensors say). Raises `RefusedError` where a stored tensor
    would be discarded or an absent one start random, unless ``force``, and where the flag changes the forward pass.
    """
    from tieconv.planned import PlannedWrite
    from tieconv.plans.set_tie import Flag
    from tieconv.plans.set_tie import plan_set_tie as make

    plan = make(inspect(path, embed=embed, head=head), Flag(flag), force=force)
    return PlannedWrite(plan, lambda out: inspect(out, embed=embed, head=head))


def plan_dedup(path: str | Path = ".", *, embed: str | None = None, head: str | None = None) -> PlannedWrite:
    """The plan that stores every byte-identical group once, as far as loaders restore what is dropped.

    Raises `RefusedError` for a model of which nobody can say what it is.
    """
    from tieconv.planned import PlannedWrite
    from tieconv.plans.dedup import plan_dedup as make

    plan = make(inspect(path, depth=Depth.FULL, embed=embed, head=head))
    return PlannedWrite(plan, lambda out: inspect(out, embed=embed, head=head))


def plan_convert(
    to: str,
    path: str | Path = ".",
    *,
    max_shard_size: int | str = "5GB",
    embed: str | None = None,
    head: str | None = None,
) -> PlannedWrite:
    """The plan that stores the model as ``to`` (``safetensors`` or ``torch``) in shards of at most that size.

    Raises `RefusedError` where a file of the directory has the name of one to write, `ValueError` for a size that
    is none.
    """
    from tieconv.planned import PlannedWrite
    from tieconv.plans.convert import Format
    from tieconv.plans.convert import plan_convert as make
    from tieconv.text import parse_size

    limit = max_shard_size if isinstance(max_shard_size, int) else parse_size(max_shard_size)
    plan = make(inspect(path, embed=embed, head=head), Format(to), limit)
    return PlannedWrite(plan, lambda out: inspect(out, embed=embed, head=head))


def plan_reindex(path: str | Path = ".", *, prune: bool = False) -> PlannedWrite:
    """The plan that rebuilds the shard index from the headers of the shards; ``prune`` leaves other weights out.

    Raises `RefusedError` for a model of one file, where a shard is missing, and where one tensor stands in two
    shards with different bytes.
    """
    from tieconv.formats.shards import read_shards
    from tieconv.inspection.equality import equal
    from tieconv.planned import PlannedWrite
    from tieconv.plans.reindex import plan_reindex as make

    listing = locate(str(path))
    with open_files(listing.root) as files:
        plan = make(read_shards(listing, files), lambda a, b: equal(files, a.range, b.range), prune=prune)
    return PlannedWrite(plan, _indexed)


def _indexed(out: Path) -> Inspection:
    """The evidence about a model whose index was written; `UnreadableError` where it still is not right."""
    evidence = inspect(out, depth=Depth.HEADER)
    faults = ("index.absent", "index.absent-tensor", "index.extra-tensor")
    fault = next((caution for caution in evidence.checkpoint.cautions if caution.code in faults), None)
    if fault is not None:
        raise UnreadableError(fault.message, "", fault.code)
    return evidence


def diff(a: str | Path, b: str | Path, *, embed: str | None = None, head: str | None = None) -> Comparison:
    """What differs between two models, ties, names and layout seen through.

    ``same_function`` is proved over all bytes. Raises `UnreadableError` where one of them cannot be read.
    """
    from tieconv.comparison import compare

    one, two = (inspect(path, embed=embed, head=head) for path in (a, b))
    for evidence in (one, two):
        if evidence.checkpoint.headers_only:
            raise UnreadableError(
                f"{evidence.checkpoint.source}: tensor bytes of this format are not read, so nothing can be compared",
                "convert it to safetensors first",
                "diff.headers-only",
            )
    with open_files(one.checkpoint.root) as files_a, open_files(two.checkpoint.root) as files_b:
        return compare(one, two, files_a, files_b)


def parity(onnx: str | Path, model: str | Path = ".", *, provider: str = "auto", reference: str = "auto") -> Parity:
    """How far the graph ``onnx`` agrees with the checkpoint ``model``: weights, structure, logits, cached steps.

    ``provider`` is ``auto``, ``cpu`` or ``cuda``; ``reference`` is the precision of the torch reference, ``float64``,
    ``float32`` or ``auto`` (float64 where it fits into memory). A missing provider gives the verdict ``not_run``.
    Raises `UnreadableError` where the graph or the model cannot be read, `MissingPackageError` without onnxruntime,
    onnx, torch or transformers.
    """
    for name, value, choices in (
        ("provider", provider, ("auto", "cpu", "cuda")),
        ("reference", reference, ("auto", "float64", "float32")),
    ):
        if value not in choices:
            raise ValueError(f"{name} {value!r} is not one of {', '.join(choices)}")
    from tieconv.reference.packages import require

    require("measuring parity", "onnx", "torch", "transformers", "onnx", "onnx_ir", "onnxruntime")
    from tieconv.onnx.parity.run import run_parity

    evidence = inspect(model, depth=Depth.HEADER)

    return run_parity(str(onnx), evidence, provider, reference)
