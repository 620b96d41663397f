"""How MODEL is opened, on disk, in the local cache or by ranges, and the evidence about it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from tieconv.architectures.vocabulary import sizes_disagree
from tieconv.checkpoint.inspection import Depth, Fetched, Inspection
from tieconv.checks import run_checks
from tieconv.errors import RefusedError, UnreadableError
from tieconv.formats import read_checkpoint
from tieconv.inspection import inspect_checkpoint
from tieconv.sources import is_hub
from tieconv.sources.local.files import locate, open_files
from tieconv.text import shell_word, shown

if TYPE_CHECKING:
    from pathlib import Path

    from tieconv.checkpoint.files.interface import ByteReader, Files
    from tieconv.checkpoint.files.model_files import Checkpoint, Listing
    from tieconv.loaders.interface import Consumer
    from tieconv.sources.hub.files import HubFiles, Tick
    from tieconv.sources.local.files import FileSet

Model = tuple["Listing", "HubFiles | FileSet", str]
"""What MODEL names, its reader, and its commit on the Hub."""


@contextmanager
def opened(source: str, tick: Tick | None = None, *, proving: bool = False) -> Iterator[Model]:
    """MODEL, open for reading; with ``proving`` one on the Hub is compared where `inspect` takes samples."""
    if is_hub(source):
        from tieconv.sources.hub.source import open_model

        with open_model(source, tick, proving=proving) as model:
            yield model
        return
    listing = locate(source)
    with open_files(listing.root) as files:
        yield listing, files, ""


def inspected(
    model: Model, depth: Depth, embed: str | None, head: str | None, chosen: tuple[Consumer, ...] = ()
) -> Inspection:
    """The evidence about an open model, with findings and what the ``chosen`` loaders will do with it."""
    listing, files, commit = model
    checkpoint = read_checkpoint(listing, files)
    if commit:
        checkpoint = replace(checkpoint, revision=commit)
    evidence = _with_base(inspect_checkpoint(checkpoint, _reader(checkpoint, files), depth, embed=embed, head=head))
    if sizes_disagree(evidence):
        evidence = with_tokenizer(evidence, files)
    if chosen and not checkpoint.graphs:
        from tieconv.loaders import predict

        evidence = replace(evidence, consumers=predict(evidence, chosen))
    findings = run_checks(evidence)
    if evidence.consumers:
        from tieconv.loaders.remedies import loadable

        findings = loadable(evidence, chosen, findings)
    return replace(evidence, fetched=fetched_so_far(files), findings=findings)


def fetched_so_far(files: object) -> Fetched | None:
    """What came over the network so far; ``None`` for local files."""
    client = getattr(files, "client", None)
    return None if client is None else Fetched(client.requests, client.bytes)


def _reader(checkpoint: Checkpoint, files: HubFiles | FileSet) -> ByteReader:
    """What reads tensor bytes; a graph can spell small tensors out as numbers."""
    if not checkpoint.graphs:
        return files
    from tieconv.formats.onnx.tensor import SpeltReader

    return SpeltReader(files, files)


def narrowly(model: Model, depth: Depth, embed: str | None, head: str | None) -> Inspection:
    """Evidence about the ties alone, from the shards that they concern."""
    from tieconv.inspection.narrow import narrow

    narrowed = narrow(model[0], model[1], embed, head)
    if narrowed is None:
        return inspected(model, depth, embed, head)
    evidence = inspected((narrowed[0], cast("HubFiles", narrowed[1]), model[2]), depth, embed, head)
    return replace(
        evidence,
        checkpoint=replace(evidence.checkpoint, unread=narrowed[2]),
        findings=tuple(finding for finding in evidence.findings if finding.rule.startswith(("TIE", "BIA"))),
    )


def with_tokenizer(evidence: Inspection, files: Files) -> Inspection:
    """Return the evidence with the number of rows that the tokenizer's ids need, where its files tell."""
    from tieconv.analysis.certificate.token_ids import token_ids, too_large
    from tieconv.analysis.certificate.tokenizer_files import read_files

    checkpoint = evidence.checkpoint
    tokenizer_files = read_files(files, checkpoint.companions)
    ids = token_ids(tokenizer_files, checkpoint.config_values)
    if tokenizer_files.too_large:
        return replace(evidence, tokenizer_unread=next(too_large(tokenizer_files)))
    if ids.undecided or not ids.listed:
        return evidence
    stops = [max(ids.listed) + 1, *(span.stop for span in ids.spans)]
    return replace(evidence, tokenizer_rows=max(stops))


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


def on_disk(path: str | Path, drop_other_formats: bool = False, *, refuses: bool = True) -> str | Path:
    """The model on the Hub in the local cache, fetched where it is not there; any other path as it is.

    What the plan would refuse for its layout is refused before anything is fetched, unless ``refuses`` is false; the
    files of a format that is to be dropped are not fetched.
    """
    source = str(path)
    if not is_hub(source):
        return path
    from tieconv.formats.shards import read_shards
    from tieconv.plans.guards import guard_layout
    from tieconv.plans.other_formats import alone
    from tieconv.sources.hub.source import fetch

    with opened(source) as (listing, files, _):
        checkpoint = read_checkpoint(listing, files) if refuses else read_shards(listing, files)
        refuse_far_graphs(checkpoint)
        if drop_other_formats:
            checkpoint = alone(checkpoint)
        if refuses:
            guard_layout(inspect_checkpoint(checkpoint, files, Depth.HEADER))
    return fetch(listing, files, (*checkpoint.states, *checkpoint.companions))


def refuse_far_graphs(checkpoint: Checkpoint) -> None:
    """Raise `RefusedError` for graphs on the Hub: they are inspected there, and that is all."""
    if not checkpoint.graphs or not is_hub(checkpoint.source):
        return
    repository = "/".join(checkpoint.source.removeprefix("hf://").partition("@")[0].split("/")[:2])
    raise RefusedError(
        f"{shown(checkpoint.source)} holds ONNX graphs, which are inspected on the Hub and nothing more",
        f"fetch them, then name the directory: hf download {shell_word(repository)} --local-dir DIR",
        "hub.graphs",
    )


def proved(source: str, depth: Depth, embed: str | None, head: str | None) -> Inspection:
    """Evidence about a model on the Hub as a plan needs it: compared where `inspect` takes samples."""
    with opened(source, proving=True) as model:
        evidence = inspected(model, depth, embed, head)
    refuse_far_graphs(evidence.checkpoint)
    return evidence


@contextmanager
def reading(checkpoint: Checkpoint) -> Iterator[ByteReader]:
    """A reader of a checkpoint that was read before, of the same commit where it is on the Hub."""
    if not checkpoint.revision or not is_hub(checkpoint.root):
        with open_files(checkpoint.root) as files:
            files.expect(checkpoint.files)
            yield files
        return
    with opened(checkpoint.root) as model:
        yield model[1]
