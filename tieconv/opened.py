"""Open MODEL on disk, on the Hub or in an object store, and collect the evidence about it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from tieconv.architectures.effective_flag import generation_ids, predicted_tokens, sizes_disagree, vocabulary_rows
from tieconv.checkpoint.inspection import Depth, Fetched, Inspection
from tieconv.checkpoint.model_files import REFUSED_BY_READER, Caution
from tieconv.checks import is_plain
from tieconv.errors import RefusedError, UnreadableError
from tieconv.formats import read_checkpoint
from tieconv.formats.directory import GENERATION, read_generation
from tieconv.inspection import inspect_checkpoint
from tieconv.inspection.ties import bare_name, narrow, with_bare_names
from tieconv.sources import is_hub, is_object, is_remote
from tieconv.sources.local import FileSet, locate, open_files
from tieconv.text import shell_word, shown

if TYPE_CHECKING:
    from pathlib import Path

    from tieconv.checkpoint.finding import Finding
    from tieconv.checkpoint.model_files import ByteReader, Checkpoint, Files, Listing
    from tieconv.loaders.interface import Consumer
    from tieconv.sources.objects.client import ObjectFiles
    from tieconv.sources.ranged import RangedFiles, Tick

Model = tuple["Listing", "RangedFiles | FileSet", str]
"""The listing of MODEL, its reader, and its revision: a commit on the Hub, or the fingerprint of a listing."""


@contextmanager
def opened(source: str, tick: Tick | None = None, *, proving: bool = False) -> Iterator[Model]:
    """Yield MODEL, open for reading. With ``proving``, all bytes of a remote model are compared, not samples."""
    if is_hub(source):
        from tieconv.sources.hub.source import open_model

        with open_model(source, tick, proving=proving) as model:
            yield model
        return
    if is_object(source):
        from tieconv.sources.objects.source import open_model as open_object

        with open_object(source, tick, proving=proving) as model:
            yield model
        return
    listing = locate(source)
    if any(name.endswith("/.metadata") for name in listing.entries):
        from tieconv.formats.format_choice import model_below  # few models are distributed checkpoints

        folder = model_below(listing)
        listing = listing if folder is None else locate(os.path.join(source, folder))
    with open_files(listing.root) as files:
        yield listing, files, ""


def inspected(
    model: Model,
    depth: Depth,
    embed: str | None,
    head: str | None,
    chosen: tuple[Consumer, ...] = (),
    *,
    bare: bool = False,
    base: str | None = None,
    accept: Callable[[Checkpoint], None] | None = None,
) -> Inspection:
    """Return the evidence about an open model, with findings and predictions for the ``chosen`` loaders.

    With ``bare``, the tensors of a training checkpoint get the names of the model. ``base`` is the base model of an
    adapter. A planner gives ``accept``, which may refuse the model before a tensor is compared. It gets no findings.
    """
    listing, files, revision = model
    checkpoint = read_checkpoint(listing, files)
    if accept is not None:
        accept(checkpoint)
    if bare and checkpoint.table:
        checkpoint = with_bare_names(checkpoint, embed)
        embed, head = bare_name(checkpoint, embed), bare_name(checkpoint, head)
    if revision:
        checkpoint = replace(checkpoint, revision=revision)
    evidence = _with_base(
        inspect_checkpoint(checkpoint, tensor_reader(checkpoint, files), depth, embed=embed, head=head), base
    )
    refused = False
    if checkpoint.format == "gguf":
        from tieconv.loaders import llama_cpp  # few models are GGUF files
        from tieconv.loaders.loaded import Cause

        refusal = llama_cpp.refusal_of_gguf(evidence)
        if refusal is not None:
            refused = refusal.cause is not Cause.UNKNOWN
            why = f"{'Not loaded' if refused else 'Unknown'}: {refusal.sentence}."
            evidence = replace(evidence, config=replace(evidence.config, why=why, effect=why))
    # These files are small enough for each inspection; a remote one costs a request.
    local = not hasattr(files, "client")
    beside = local and any("token" in name or "vocab" in name for name in checkpoint.companions)
    if sizes_disagree(evidence) or predicted_tokens(evidence):
        evidence = with_tokenizer(evidence, files)
    elif beside:
        from tieconv.inspection.token_ids import needed_rows  # not every directory has a tokenizer

        rows = max(vocabulary_rows(evidence).values(), default=0)
        evidence = replace(evidence, listed_rows=needed_rows(files, checkpoint.companions, rows))
    if local and GENERATION in checkpoint.companions:
        document, unread = read_generation(files, checkpoint.companions)
        evidence = replace(evidence, generation_ids=None if unread else generation_ids(document))
    if beside:
        evidence = _with_cut_documents(evidence, files)
    if chosen and not checkpoint.graphs:
        from tieconv.loaders import predict

        evidence = replace(evidence, consumers=predict(evidence, chosen))
    if accept is not None:
        return replace(evidence, fetched=fetched_so_far(files))
    plain, embedding = not evidence.consumers and is_plain(evidence), evidence.head.input_embedding
    findings: tuple[Finding, ...] = ()
    if not plain:
        from tieconv.checks.registry import run_all  # forty modules

        findings = run_all(evidence)
    # For such a model, transformers 5 knows the names that are spelled as in the table.
    if not chosen and not (plain and embedding and embedding.name == evidence.family.input_embedding):
        from tieconv.loaders import transformers5

        refused = refused or transformers5.has_unreported_fault(evidence)
    if (evidence.consumers and findings) or (refused and not chosen):
        from tieconv.loader_remedies import helpful, with_refusal  # imports the planners

        findings = helpful(evidence, chosen, findings) if chosen else with_refusal(evidence, findings)
    if any(finding.action and finding.action.conditional for finding in findings):
        from tieconv.loader_remedies import accepted  # imports the planners

        findings = accepted(evidence, findings)
    return replace(evidence, fetched=fetched_so_far(files), findings=findings)


def fetched_so_far(files: object) -> Fetched | None:
    """Return what was downloaded so far; ``None`` for local files."""
    client = getattr(files, "client", None)
    return None if client is None else Fetched(client.requests, client.bytes)


def tensor_reader(checkpoint: Checkpoint, files: RangedFiles | FileSet) -> ByteReader:
    """Return the reader of tensor bytes. A graph may store small tensors as numbers, a training run chunks."""
    if checkpoint.table:
        from tieconv.inspection.chunk_reader import ChunkReader  # most models have whole tensors

        return ChunkReader(files, checkpoint.tensors.values(), checkpoint.table)
    if not checkpoint.graphs:
        return files
    from tieconv.formats.onnx.tensor import SpeltReader

    return SpeltReader(files, files)


def narrowly(model: Model, depth: Depth, embed: str | None, head: str | None) -> Inspection:
    """Return the evidence about ties only, from the shards with tied tensors."""
    narrowed = narrow(model[0], model[1], embed, head)
    if narrowed is None:
        return inspected(model, depth, embed, head)
    evidence = inspected((narrowed[0], cast("RangedFiles", narrowed[1]), model[2]), depth, embed, head)
    return replace(
        evidence,
        checkpoint=replace(evidence.checkpoint, unread=narrowed[2]),
        findings=tuple(finding for finding in evidence.findings if finding.rule.startswith(("TIE", "BIA"))),
    )


def with_tokenizer(evidence: Inspection, files: Files) -> Inspection:
    """Return the evidence with the number of rows that the tokenizer's ids need, if its files say so."""
    from tieconv.inspection.token_ids import read_files, token_ids, too_large

    checkpoint = evidence.checkpoint
    tokenizer_files = read_files(files, checkpoint.companions)
    ids = token_ids(tokenizer_files, checkpoint.config_values)
    if tokenizer_files.too_large:
        return replace(evidence, tokenizer_unread=next(too_large(tokenizer_files)))
    if ids.undecided or not ids.listed:
        return evidence
    listed = max(ids.listed) + 1
    return replace(evidence, tokenizer_rows=max([listed, *(span.stop for span in ids.spans)]), listed_rows=listed)


def _with_cut_documents(evidence: Inspection, files: Files) -> Inspection:
    """Return the evidence with a caution for each document of a tokenizer or of generation that no reader can parse."""
    from tieconv.inspection.token_ids import cut_off

    checkpoint, cut = evidence.checkpoint, [*cut_off(files, evidence.checkpoint.companions)]
    if not cut:
        return evidence  # another checkpoint would have to find its tensors again
    cautions = [Caution(REFUSED_BY_READER, f"{shown(name)} is cut off: it has no closing bracket") for name in cut]
    return replace(evidence, checkpoint=replace(checkpoint, cautions=(*checkpoint.cautions, *cautions)))


def _with_base(evidence: Inspection, base: str | None) -> Inspection:
    """Return the evidence about an adapter, with that of its base model: ``base``, or a directory inside MODEL.

    The path in the adapter's config is not followed out of the model directory. It could name any other model.
    """
    adapter = evidence.checkpoint.adapter
    if adapter is None:
        if base is not None:
            raise RefusedError(f"{shown(evidence.checkpoint.source)} is not an adapter, so it has no base model", "")
        return evidence
    adapter = replace(adapter, base_exists=os.path.isdir(adapter.base))
    evidence = replace(evidence, checkpoint=replace(evidence.checkpoint, adapter=adapter))
    root = os.path.realpath(evidence.checkpoint.root)
    named = base or adapter.base
    if base is None and (not named or not os.path.realpath(named).startswith(f"{root}{os.sep}")):
        return evidence
    # Only a model directory is opened, not a whole disk.
    if base is None and not os.path.isfile(os.path.join(named, "config.json")):
        return evidence
    try:
        listing = locate(named)
        with open_files(listing.root) as files:
            read = read_checkpoint(listing, files)
            evidence_of_base = inspect_checkpoint(read, tensor_reader(read, files), evidence.depth)
    except UnreadableError:
        if base is not None:
            raise
        return evidence
    return replace(evidence, base=evidence_of_base)


def on_disk(path: str | Path, drop_other_formats: bool = False, *, refuses: bool = True) -> str | Path:
    """Return the local path of a model; copy a remote model to the disk if needed.

    The Hub's models go into the local cache, and those of object stores into a temporary directory. Raises the refusals
    for the layout before the download, unless ``refuses`` is false. Does not download files of a format that the plan
    drops.
    """
    source = str(path)
    if not is_remote(source):
        return path
    from tieconv.formats.shards import read_shards
    from tieconv.plans.build import alone
    from tieconv.plans.guards import guard_layout

    with opened(source) as (listing, files, _):
        checkpoint = read_checkpoint(listing, files) if refuses else read_shards(listing, files)
        refuse_far_graphs(checkpoint)
        if drop_other_formats:
            checkpoint = alone(checkpoint)
        if refuses:
            guard_layout(inspect_checkpoint(checkpoint, files, Depth.HEADER))
    names = (*checkpoint.states, *checkpoint.companions)
    if is_object(listing.source):
        from tieconv.sources.objects.client import fetch as copy

        return copy(listing, cast("ObjectFiles", files), names)
    from tieconv.sources.hub.source import fetch

    return fetch(listing, files, names)


def refuse_far_graphs(checkpoint: Checkpoint) -> None:
    """Raise `RefusedError` for remote graphs, where only `inspect` works."""
    if not checkpoint.graphs or not is_remote(checkpoint.source):
        return
    if is_object(checkpoint.source):
        problem = f"{shown(checkpoint.source)} has ONNX graphs, and in an object store tieconv can only inspect graphs"
        raise RefusedError(problem, "copy the graphs to a local directory, then give the directory", "objects.graphs")
    repository = "/".join(checkpoint.source.removeprefix("hf://").partition("@")[0].split("/")[:2])
    problem = f"{shown(checkpoint.source)} has ONNX graphs, and on the Hub tieconv can only inspect graphs"
    hint = f"download the graphs, then give the directory: hf download {shell_word(repository)} --local-dir DIR"
    raise RefusedError(problem, hint, "hub.graphs")


def proved(source: str, depth: Depth, embed: str | None, head: str | None) -> Inspection:
    """Return the evidence about a remote model for a plan, with all bytes compared instead of samples."""
    with opened(source, proving=True) as model:
        evidence = inspected(model, depth, embed, head)
    refuse_far_graphs(evidence.checkpoint)
    return evidence


@contextmanager
def reading(checkpoint: Checkpoint) -> Iterator[ByteReader]:
    """Yield a reader of a checkpoint that was read before; of a remote model, of the same revision.

    Raises `StalePlanError` if a file in an object store has changed since.
    """
    if not checkpoint.revision or not is_remote(checkpoint.root):
        with open_files(checkpoint.root) as files:
            files.expect(checkpoint.files)
            yield tensor_reader(checkpoint, files)
        return
    with opened(checkpoint.root) as model:
        if model[2] != checkpoint.revision:
            from tieconv.execute.target import stale  # imports the writing code

            raise stale(checkpoint.source)
        yield model[1]
