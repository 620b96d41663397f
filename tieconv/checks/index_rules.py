"""Rules about the files of a model: its index and layout, and what readers refuse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tieconv.architectures.lookup import is_draft
from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.model_files import (
    REFUSED_BY_READER,
    VARIANT,
    WEIGHTS_KEY,
    Checkpoint,
    Layout,
    outside_index,
    unlisted_parts,
    weight_map,
)
from tieconv.checks import evidence, remedies
from tieconv.checks.evidence import rule
from tieconv.loaders.transformers_files import opened, stops_at_index
from tieconv.text import count, shown


@rule("IDX001", "absent-tensor", Level.ERROR)
def absent_tensor(inspection: Inspection) -> Iterator[Finding]:
    """The index lists tensors that the shards do not hold.

    ## What it does
    Reports names in the `weight_map` of the index whose shard exists but does not hold them. It is a warning if other shards
    of the index hold them.

    ## Why it matters
    A loader opens the shard for that name. Then it fails or fills the parameter with random values. Usually a tool dropped
    the head from its shard but not from the index. Some loaders read every shard of the index: transformers 4.57 and 5.23,
    accelerate 1.15 and mlx-lm 0.32. They find a tensor that another shard holds.

    ## Example
    An index that still lists `lm_head.weight`:

        error IDX001: The index lists lm_head.weight in
        model-00001-of-00002.safetensors, which does not hold it. A loader that
        looks for it there fails. The model is tied and does not need it.

    ## How to fix
    If no file holds the tensor, save or download the model again. No command is given then, since `tieconv reindex` would
    remove the only sign of the loss. Is the tensor in another shard, listed or not, or does the tied
    model not need it? Then `tieconv reindex` rebuilds the index from the shard headers. Until then, other commands that
    write refuse the model.
    """
    lost = evidence.lost_tensors(inspection)
    shards, stored = weight_map(inspection.checkpoint.index), inspection.checkpoint.tensors
    unlisted = outside_index(inspection.checkpoint)
    for caution in evidence.cautions(inspection, "index.absent-tensor"):
        wrong = [*dict.fromkeys(shards[name] for name in caution.tensors)]
        them, do = evidence.verb(caution.tensors, "it", "them"), evidence.verb(wrong, "does", "do")
        listed = {name: stored[name].range.file for name in caution.tensors if name in stored}
        outside = {name: unlisted[name] for name in caution.tensors if name in unlisted}
        fate = "" if listed or outside or lost else f" The model is tied and does not need {them}."
        for homes, relation in ((listed, ""), (outside, ", which the index does not list")):
            subject = evidence.clause([*homes], "is", "are") if len(homes) < len(caution.tensors) else ""
            subject = subject or evidence.verb([*homes], "It is", "They are")
            fate += f" {subject} in {evidence.listed(dict.fromkeys(homes.values()))}{relation}." if homes else ""
        elsewhere = len(listed) == len(caution.tensors) and {*listed.values()} <= {*shards.values()}
        if elsewhere:
            fate += f" transformers 4.57 and 5.23 read all shards of the index, so they find {them}."
        if lost:
            fate += _lost(inspection.checkpoint, lost, them if len(lost) == len(caution.tensors) else "")
        yield absent_tensor.finding(
            f"The index lists {evidence.listed(caution.tensors)} in {evidence.listed(wrong)}, which {do} not hold {them}."
            f" A loader that looks for {them} there fails.{fate}",
            caution.tensors,
            level=Level.WARNING if elsewhere else Level.ERROR,
            remedy=remedies.reindex(inspection, safe=True),
        )


def _lost(checkpoint: Checkpoint, names: Sequence[str], pronoun: str) -> str:
    """Return which file to get for tensors that no shard holds."""
    them, others = pronoun or evidence.listed(names), (*checkpoint.orphans, *checkpoint.twins)
    holders = [file.name for file in others if not {*names}.isdisjoint(tensor.name for tensor in file.tensors)]
    if holders:
        does = evidence.clause(holders, "does", "do")
        return f" No shard holds {them}, but {does}. Save the model again, with all tensors in its shards."
    files = {name for name in checkpoint.companions if "/" not in name and name.endswith(".safetensors")}
    # Files that tieconv could not read are not among the orphans.
    if torn := sorted(files.union(unlisted_parts(checkpoint)) - {file.name for file in others}):
        may = f"tieconv cannot read {evidence.listed(torn)}, which may hold {them}."
        return f" {may} Download {evidence.verb(torn, 'this file', 'these files')} again."
    return f" No file in this directory holds {them}. Download the shard that does."


@rule("IDX002", "unindexed-tensor", Level.WARNING)
def unindexed_tensor(inspection: Inspection) -> Iterator[Finding]:
    """The shards hold tensors that the index does not list.

    ## What it does
    Reports tensors in the headers of the shards that are missing from the `weight_map` of the index. It is an error if the
    index lists no tensor of a file that is named like its shards.

    ## Why it matters
    Loaders that use the index do not load these tensors, but loaders that read whole shards do. So one directory gives two
    models. If a head is in a shard but not in the index, transformers fills it with random values.

    ## Example
    A head that was added to a shard:

        warning IDX002: lm_head.weight is stored, but the index does not list it.
        Only loaders that read whole shards load it.

    ## How to fix
    `tieconv reindex` rebuilds the index from the shard headers. Until then, other commands that write refuse the model.
    """
    for caution in evidence.cautions(inspection, "index.extra-tensor"):
        yield unindexed_tensor.finding(
            f"{evidence.clause(caution.tensors, 'is', 'are')} stored, but the index does not list "
            f"{evidence.verb(caution.tensors, 'it', 'them')}. Only loaders that read whole shards load "
            f"{evidence.verb(caution.tensors, 'it', 'them')}.",
            caution.tensors,
            remedy=remedies.reindex(inspection, safe=False),
        )
    if parts := unlisted_parts(inspection.checkpoint):
        names = tuple(name for tensors in parts.values() for name in tensors)
        torn = [part for part, tensors in parts.items() if not tensors]
        unread = f" tieconv cannot read {evidence.listed(torn)}." if torn else ""
        yield unindexed_tensor.finding(
            f"{evidence.clause([*parts], 'is named like a shard', 'are named like shards')} of the model, but the index "
            f"does not list {evidence.verb([*parts], 'its', 'their')} {count(len(names), 'tensor') if names else 'tensors'}. "
            f"transformers does not read the {evidence.verb([*parts], 'file', 'files')}.{unread}",
            names,
            level=Level.ERROR,
            remedy=remedies.reindex(inspection, safe=False),
        )


@rule("IDX003", "repeated-tensor", Level.ERROR)
def repeated_tensor(inspection: Inspection) -> Iterator[Finding]:
    """A tensor is stored in more than one shard.

    ## What it does
    Reports names that are in the headers of two or more shards.

    ## Why it matters
    The index lists one of the copies. Loaders that read every shard use the last one that they open. If the copies differ,
    the directory holds two models.

    ## Example
    A second shard with the embedding again:

        error IDX003: model.embed_tokens.weight is stored in more than one shard.
        Loaders may load different copies.

    ## How to fix
    Remove the wrong copy, which is usually a shard of an earlier save. Until then, commands that write refuse the model.
    """
    for caution in evidence.cautions(inspection, "index.repeated"):
        yield repeated_tensor.finding(
            f"{evidence.clause(caution.tensors, 'is', 'are')} stored in more than one shard. "
            "Loaders may load different copies.",
            caution.tensors,
        )


@rule("IDX004", "total-size", Level.WARNING)
def total_size(inspection: Inspection) -> Iterator[Finding]:
    """The index declares another total size than the shards have.

    ## What it does
    Compares `metadata.total_size` of the index with the bytes of all tensors in the shards.

    ## Why it matters
    Model pages compute the parameter count from it, and some loaders compute the memory that they need. It is the first
    number that becomes wrong after a tool drops or adds a head.

    ## Example

        warning IDX004: The index declares total_size 128, the shards hold 256.
        Parameter counts computed from it are wrong.

    ## How to fix
    `tieconv reindex` writes the right number. So do the commands that change a shard.
    """
    for caution in evidence.cautions(inspection, "index.total-size"):
        yield total_size.finding(
            f"{evidence.capital(caution.message)}. Parameter counts computed from it are wrong.",
            caution.tensors,
            remedy=remedies.reindex(inspection, safe=True),
        )


@rule("IDX005", "orphan-file", Level.NOTE)
def orphan_file(inspection: Inspection) -> Iterator[Finding]:
    """The directory holds weight files that the model does not use.

    ## What it does
    Notes safetensors files that are neither in the index nor the single weight file. It is a warning if such a file stores
    a name of the model with another shape or type. For the tied tensors the rule also compares the bytes, and with
    `--depth full` for all tensors. A variant (`model.fp32.safetensors`) is meant to differ, so it stays a note.

    ## Why it matters
    Loaders that take every `*.safetensors` file read these files too, and copies of the model include them. Often they are
    there on purpose: an adapter, an original format, a draft model.

    ## Example

        note IDX005: The model does not use 1 weight file: adapter_model.safetensors

    ## How to fix
    Move the file into a subdirectory. Delete it only if you know that it is left from an earlier save.
    """
    for caution in evidence.cautions(inspection, "index.orphan"):
        orphans = {file.name for file in inspection.checkpoint.orphans}
        parts = unlisted_parts(inspection.checkpoint)
        if parts and orphans <= parts.keys():
            continue  # IDX002
        if orphans == {"adapter_model.safetensors"} and evidence.adapter_beside(inspection):
            continue  # loaders use it: PEF006
        files = {file.name for file in inspection.checkpoint.orphans if not VARIANT.fullmatch(file.name)}
        shadows = (shadow for shadow in inspection.shadows if shadow.differs and shadow.file in files)
        different = tuple(dict.fromkeys(shadow.name for shadow in shadows))
        message = evidence.capital(caution.message)
        if different:
            has = evidence.clause(different, "has", "have")
            message = f"{message}. {has} other values there."
        yield orphan_file.finding(message, different, level=Level.WARNING if different else None)


@rule("IDX006", "no-index", Level.ERROR)
def no_index(inspection: Inspection) -> Iterator[Finding]:
    """Numbered shards have no index.

    ## What it does
    Reports a directory of files named `…-00001-of-00002.safetensors` without `model.safetensors.index.json`.

    ## Why it matters
    transformers finds no weights in the directory. Other loaders that need the index do not find them either.

    ## Example

        error IDX006: The directory holds 2 shards but no
        model.safetensors.index.json, which loaders need to find the weights

    ## How to fix
    `tieconv reindex` writes the index from the shard headers. Until then, other commands that write refuse the model.
    """
    for caution in evidence.cautions(inspection, "index.absent"):
        yield no_index.finding(
            f"{evidence.capital(caution.message)} to find the weights",
            caution.tensors,
            remedy=remedies.reindex(inspection, safe=True),
        )


@rule("IDX007", "two-layouts", Level.WARNING)
def two_layouts(inspection: Inspection) -> Iterator[Finding]:
    """The directory holds a single weight file and an index.

    ## What it does
    Reports a directory that holds both `model.safetensors` and `model.safetensors.index.json`.

    ## Why it matters
    transformers reads the single file, and other loaders read the shards. mlx-lm 0.32.2 reads all in the order of the
    directory. One of them may be left from an earlier save. tieconv's findings are about the single file.

    ## Example

        warning IDX007: The directory holds both model.safetensors and
        model.safetensors.index.json: transformers reads the single file, mlx-lm
        all files, others the shards

    ## How to fix
    Remove the one that does not belong to the model. Until then, commands that write refuse the model.
    """
    for caution in evidence.cautions(inspection, "layout.ambiguous"):
        yield two_layouts.finding(evidence.capital(caution.message), caution.tensors)


@rule("IDX008", "one-shard", Level.NOTE)
def one_shard(inspection: Inspection) -> Iterator[Finding]:
    """The given file is only one shard of a model.

    ## What it does
    Notes that the file is one of several numbered shards. So tieconv does not use the config beside it.

    ## Why it matters
    The config describes the whole model. In one shard, every tensor of the other shards would be missing.

    ## Example

        note IDX008: model-00002-of-00002.safetensors is one shard of a model;
        inspect its directory

    ## How to fix
    Give the directory instead of the file.
    """
    for caution in evidence.cautions(inspection, "layout.one-shard"):
        yield one_shard.finding(caution.message, caution.tensors)


@rule("IDX009", "two-formats", Level.WARNING)
def two_formats(inspection: Inspection) -> Iterator[Finding]:
    """The directory holds weights in two formats.

    ## What it does
    Reports a directory that holds weights in more than one format, for example `model.safetensors` and `pytorch_model.bin`.

    ## Why it matters
    transformers reads safetensors if it can choose, but other loaders read the other file. If one of them is older, they
    are two different models. The findings of tieconv are about the format that the message gives first. transformers loads
    that one.

    It is a note if torch files exist beside safetensors and tieconv finds no difference. tieconv compares names, shapes,
    types and the bytes of the tied tensors, and with `--depth full` all bytes. It is also a note for a GGUF file, because
    no loader chooses it from a directory.

    ## Example

        warning IDX009: The directory holds weights as safetensors and as torch:
        transformers loads safetensors. Other loaders may load torch, which may be a
        different model.

    ## How to fix
    Commands that write refuse the model, because the other format would stay as it was. With `--drop-other-formats` they
    change the first format and leave out the files of the other one. The plan lists each file with its bytes.
    `tieconv dedup --drop-other-formats` leaves them out and changes nothing else that a loader sees. Compare the two weight
    files first: `tieconv diff`.

    `tieconv reindex` changes no tensor, so it needs no option. If other loaders need the other format, write it again from
    OUT with `tieconv convert`.
    """
    for caution in evidence.cautions(inspection, "layout.two-formats"):
        level, outcome = _compared(inspection)
        message = f"{evidence.capital(caution.message)}.{outcome}"
        yield two_formats.finding(message, caution.tensors, level=level, remedy=remedies.dedup(inspection))


def _compared(inspection: Inspection) -> tuple[Level | None, str]:
    """Return the level and a sentence on the differences that tieconv found; both may be empty."""
    checkpoint = inspection.checkpoint
    if checkpoint.others and all(name.endswith(".gguf") for name in checkpoint.others):
        return Level.NOTE, ""
    twins = {file.name: file for file in checkpoint.twins}
    if not twins:
        return None, ""
    names = {tensor.name for file in twins.values() for tensor in file.tensors}
    different = [shadow.name for shadow in inspection.shadows if shadow.differs and shadow.file in twins]
    different += sorted(name for name in names ^ checkpoint.tensors.keys() if not _may_lack(inspection, name))
    if different:
        return None, f" {evidence.clause(different, 'differs', 'differ')}."
    return Level.NOTE, " All that tieconv compared is equal."


def _may_lack(inspection: Inspection, name: str) -> bool:
    """Return whether a model may leave out the name: it is tied, or loaders compute the buffer."""
    tied = {member.name for tie in inspection.ties if tie.declared for member in tie.members}
    # Early releases of transformers wrote these buffers.
    return name in tied or name.endswith(("position_ids", "inv_freq", "masked_bias", ".attn.bias"))


_OF_DIFFUSERS = "diffusion_pytorch_model"
"""The name that diffusers looks for, beside a config.json in its format."""


@rule("IDX010", "name-not-sought", Level.ERROR)
def name_not_sought(inspection: Inspection) -> Iterator[Finding]:
    """The weights have a name that loaders do not look for.

    ## What it does
    Reports a model directory whose only weights, or whose only index, have an unusual name. The usual names are
    `model.safetensors`, `model.safetensors.index.json`, `pytorch_model.bin` and `pytorch_model.bin.index.json`. The rule
    also reports a `transformers_weights` in the config that is not a safetensors file or index of the directory.

    ## Why it matters
    transformers looks only for these names, and fails with an `OSError` if it finds none of them. A browser that saved
    `model (1).safetensors` is enough. vLLM and others read any `*.safetensors`. mlx-lm and llama.cpp read any
    `model*.safetensors`. So one directory loads in one loader and not in another.

    ## Example

        error IDX010: transformers does not look for model (1).safetensors, so it
        finds no weights. Other loaders may find none either.

    ## How to fix
    `tieconv convert` writes the model under the usual names, in the same format. For a single file, you can also rename it.
    A file such as `model.fp16.safetensors` is a variant: load it with `variant="fp16"`. For numbered shards without an
    index see [IDX006](#idx006-no-index). Remove a wrong `transformers_weights` from the config.
    """
    checkpoint = inspection.checkpoint
    if checkpoint.layout is Layout.FILE or checkpoint.format not in ("safetensors", "torch") or not checkpoint.config:
        return
    config = inspection.config
    if not config.architectures and not config.model_type:
        return  # the config is not for transformers
    if is_draft(checkpoint.config_values, checkpoint.tensors):
        return  # other loaders read it, some under a special name
    named = checkpoint.config_values.get(WEIGHTS_KEY)
    if opened(checkpoint) is not None:
        return
    if named is not None:
        yield name_not_sought.finding(
            f"The config sets {WEIGHTS_KEY} to {shown(named)}, but the directory has no safetensors file or index "
            "with that name"
        )
    elif checkpoint.entry and not (bool(checkpoint.entry) and str(checkpoint.entry).startswith(_OF_DIFFUSERS)):
        yield name_not_sought.finding(
            f"transformers does not look for {shown(checkpoint.entry)}, so it finds no weights. Other loaders may "
            "find none either.",
            remedy=remedies.convert(inspection),
        )


@rule("IDX011", "no-metadata", Level.ERROR)
def no_metadata(inspection: Inspection) -> Iterator[Finding]:
    """The index has no metadata.

    ## What it does
    Reports an index without an object named `metadata` beside its `weight_map`.

    ## Why it matters
    transformers reads `metadata` from every index and fails with a `KeyError` if it is missing. Its content does not
    matter. Loaders that read only the map do not need it. Usually such an index was written by hand or by a script.

    ## Example

        error IDX011: model.safetensors.index.json has no metadata, so transformers
        cannot load the model

    ## How to fix
    `tieconv reindex` rebuilds the index from the shard headers, with its metadata.
    """
    index = inspection.checkpoint.index
    if index is not None and stops_at_index(inspection.checkpoint):
        yield no_metadata.finding(
            f"{shown(index.name)} has no metadata, so transformers cannot load the model",
            remedy=remedies.reindex(inspection, safe=True),
        )


@rule("IDX012", "no-format", Level.WARNING)
def no_format(inspection: Inspection) -> Iterator[Finding]:
    """The metadata of a safetensors file has no format that transformers 4 accepts.

    ## What it does
    Reports safetensors files whose metadata (`__metadata__`) has no `format`, or one that transformers 4 does not accept.
    It accepts `pt`, `tf`, `flax` and `mlx`, but not `np` or `PT`. A file without any metadata is valid.

    ## Why it matters
    transformers 4 refuses such a file: "Incompatible safetensors file". For a later shard it prints "does not contain the
    valid metadata". transformers 5 and other loaders do not check the entry. `save_file(tensors, path, {"note": "..."})` of
    safetensors writes such a file. So does its `save_model` if two names share a tensor.

    ## Example

        warning IDX012: The metadata of model-00002-of-00002.safetensors has no
        "format" entry. transformers 4 refuses the file.

    ## How to fix
    `tieconv reindex --add-format` writes `"format": "pt"`. Tensors and other metadata stay as they are. A file with one of
    the four formats keeps it. If the file has another format, first check that the tensors have the layout of torch.
    `check --fix` does not change such a file, because the entry makes a statement about the tensors.
    """
    # Yield at most one finding for each format.
    files_by_format = evidence.refused_formats(inspection) if inspection.checkpoint.config is not None else {}
    for named, files in files_by_format.items():
        refused = evidence.verb(files, "the file", "these files")
        stored_format = f"the format {shown(named)}" if named else 'no "format" entry'
        yield no_format.finding(
            f"The metadata of {evidence.listed(files)} has {stored_format}. transformers 4 refuses {refused}.",
            remedy=remedies.add_format(inspection, safe=not any(files_by_format)),
        )


@rule("FMT001", "reader-refuses", Level.ERROR)
def reader_refuses(inspection: Inspection) -> Iterator[Finding]:
    """The format's own reader refuses a file of the model.

    ## What it does
    Reports a file that tieconv can read, but that the reader of its format refuses. These readers are safetensors,
    `torch.load` with `weights_only=True`, `onnx.checker`, a session of ONNX Runtime, and the `gguf` package. Beside a local
    tokenizer, it reports documents that are empty or cut off. These are of the tokenizer, of generation and of processors.

    ## Why it matters
    The model does not load. If one tensor has a dtype that safetensors does not know, safetensors refuses the whole file.
    transformers loads torch files with `weights_only=True`. ONNX Runtime refuses a graph with a cycle. A tokenizer that is cut
    off does not load either. transformers 4.57, 5.23 and 5.24 ignore such a generation config.

    ## Example
    A tensor of the dtype `F3`:

        error FMT001: safetensors refuses model.safetensors: it does not know the
        dtype F3 of model.extra

    ## How to fix
    Save the file again with the tool that wrote it. For a training checkpoint, save only `model.state_dict()`. A newer
    release of the reader may know a newer dtype.
    """
    # Yield one finding for each reason of a refusal.
    for caution in evidence.cautions(inspection, REFUSED_BY_READER):
        yield reader_refuses.finding(caution.message, caution.tensors)


_MARK = "pyvenv.cfg"
"""The file that marks a Python virtual environment. Its symlinks to the interpreter are not part of the model."""


@rule("SEC001", "special-files", Level.WARNING)
def special_files(inspection: Inspection) -> Iterator[Finding]:
    """The model directory holds an entry that is not a regular file.

    ## What it does
    Reports FIFOs, devices, sockets, and symlinks that point outside the model directory.

    ## Why it matters
    A loader follows a symlink to its target, on every machine that reads the model. A copy of the model follows it too. A
    FIFO blocks its reader forever. None of them belongs in a checkpoint that you received from others.

    ## Example
    A directory with a symlink to a file above it:

        warning SEC001: tokenizer.json is not a regular file inside the model
        directory

    ## How to fix
    Remove the entry, or replace the symlink with its target. Until then, commands that write refuse the model.
    """
    companions = inspection.checkpoint.companions
    environments = tuple(name.removesuffix(_MARK) for name in companions if f"/{name}".endswith(f"/{_MARK}"))
    names = [name for name in inspection.checkpoint.special if not name.startswith(environments)]
    if names:
        yield special_files.finding(
            f"{evidence.clause(names, 'is not a regular file', 'are not regular files')} inside the model directory"
        )


@rule("SEC002", "repeated-key", Level.WARNING)
def repeated_key(inspection: Inspection) -> Iterator[Finding]:
    """The config holds a key twice.

    ## What it does
    Reports an object in `config.json` that holds the same key more than once.

    ## Why it matters
    JSON does not define which value counts. Python uses the last one, and other readers use the first one or fail. So a
    repeated flag has two meanings. tieconv refuses a weight header or an index with a repeated key.

    ## Example

        warning SEC002: config.json holds the key vocab_size twice; some readers use
        the last value, others the first

    ## How to fix
    Remove one of the two by hand. Commands that would change the flag refuse the model if the flag is the repeated key.
    """
    for caution in evidence.cautions(inspection, "config.repeated-key"):
        yield repeated_key.finding(f"{caution.message}, others the first", caution.tensors)
