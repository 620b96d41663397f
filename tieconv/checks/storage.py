"""Rules about what the files store: duplicates, placeholders, slack, overlaps and missing layers."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.architectures.stored_names import (
    is_outside_layers,
    missing_layers,
    surplus_layers,
    unwrapping,
    wrappers_of,
)
from tieconv.checkpoint.family import Knowledge
from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.model_files import SEVERAL, TRAINING, unlisted_parts
from tieconv.checkpoint.tie_group import Duplicate, Tie
from tieconv.checkpoint.weight_file import Slack
from tieconv.checks import EMA, evidence, remedies
from tieconv.checks.evidence import rule
from tieconv.text import count, size

SMALLEST = 64 * 1024
TOGETHER = 1_000_000
_LISTED = 3
_WORDS = {State.IDENTICAL: "byte-identical", State.TRANSPOSED: "transposed copies", State.CAST: "equal after a cast"}


@rule("STO001", "duplicates", Level.NOTE)
def duplicates(inspection: Inspection) -> Iterator[Finding]:
    """Tensors outside the tied groups hold the same bytes.

    ## What it does
    Notes tensors that no tie connects and that hold the same values. They are byte-identical, transposed, or equal after a
    cast. It counts duplicates of 64 KiB or more. It reports them from 1 MB together, or from a tenth of the model. The
    largest come first. The default depth compares tensors with the shape of the embedding; `--depth full` compares all.

    ## Why it matters
    Equal bytes do not prove that a tensor may go, because the architecture may need both names. But they show what the file
    could save. Examples are an embedding that was exported twice, and copies in layers for multi-token prediction.

    ## Example
    A checkpoint with a copy of the embedding in an extra layer:

        note STO001: 1.05 MB is stored more than once outside the tied groups.
        model.embed_tokens.weight and model.layers.61.embed_tokens.weight are
        byte-identical (1.05 MB).

    ## How to fix
    Nothing needs a fix. The documentation of the loader may say whether it can work without the copies.
    """
    large = [duplicate for duplicate in inspection.duplicates if duplicate.bytes_wasted >= SMALLEST]
    wasted = sum(duplicate.bytes_wasted for duplicate in large)
    if wasted < min(TOGETHER, max(SMALLEST, inspection.bytes_stored // 10)):
        return
    large.sort(key=lambda duplicate: -duplicate.bytes_wasted)
    rest = len(large) - _LISTED
    more = f" This list leaves out {count(rest, 'group')}." if rest > 0 else ""
    yield duplicates.finding(
        f"{size(wasted)} {'is' if len(large) == 1 else 'are'} stored more than once outside the tied groups. "
        f"{' '.join(map(_phrase, large[:_LISTED]))}{more}",
        dict.fromkeys(name for duplicate in large for name in duplicate.tensors),
    )


def _phrase(duplicate: Duplicate) -> str:
    word = _WORDS.get(duplicate.kind, str(duplicate.kind))
    return f"{evidence.listed(duplicate.tensors)} are {word} ({size(duplicate.bytes_wasted)})."


@rule("STO002", "placeholder", Level.ERROR)
def placeholder(inspection: Inspection) -> Iterator[Finding]:
    """A tied name or a layer holds an empty tensor.

    ## What it does
    Reports a tied tensor or a head bias without elements, for example of shape `[0]`. If the class is in the table and the
    model is not quantised, it also reports the weights of layers.

    ## Why it matters
    A sharded trainer (ZeRO stage 3) writes such placeholders if it saves without gathering the weights. Loaders fail with a
    size mismatch, or treat the tensor as trained. In an untied model the head is lost.

    ## Example
    `"tie_word_embeddings": true` and a head of shape `[0]`:

        error STO002: lm_head.weight has no elements. A sharded save left this
        placeholder. Loaders refuse the model.

    ## How to fix
    `tieconv retie` drops the placeholder if the tied tensor is whole under another name. Otherwise gather the weights and
    save again: `stage3_gather_16bit_weights_on_model_save` of DeepSpeed, or its `zero_to_fp32.py`.
    """
    # Yield one finding for each group with empty tensors, and one for the layers.
    quantised = inspection.quantised is not None or inspection.quantisation is not None
    known = inspection.family.trusted and inspection.checkpoint.format in ("safetensors", "torch") and not quantised
    groups: list[tuple[Tie | None, list[str]]]
    groups = [(tie, [member.name for member in tie.stored_members]) for tie in inspection.ties]
    tied = {name for _, names in groups for name in names}
    weights = [
        name for name in inspection.checkpoint.tensors if known and name.endswith(".weight") and name not in tied
    ]
    for tie, names in (*groups, (None, weights)):
        empty = [name for name in names if evidence.is_empty(inspection, name) and (tie or not is_outside_layers(name))]
        if empty:
            yield placeholder.finding(
                f"{evidence.clause(empty, 'has', 'have')} no elements. A sharded save left "
                f"{evidence.verb(empty, 'this placeholder', 'these placeholders')}. Loaders refuse the model.",
                empty,
                remedy=remedies.merge(inspection, tie) if tie and tie.declared and len(empty) < len(names) else None,
            )


@rule("STO003", "storage-slack", Level.WARNING)
def storage_slack(inspection: Inspection) -> Iterator[Finding]:
    """A torch file stores bytes that no tensor uses.

    ## What it does
    Reports storages of a torch file that contain 1 MB or more of unused bytes in total. The largest are first. The number
    of unused bytes is a lower bound.

    ## Why it matters
    `torch.save` writes the whole storage of a tensor, even for a slice of a few bytes. So a file can be many times larger
    than its tensors. The memory that loading it needs grows too.

    ## Example
    A slice of a larger table, saved without `.clone()`:

        warning STO003: No tensor uses 3.2 MB of the stored 3.2 MB.
        model.embed_tokens.weight uses 128 B of 3.2 MB.

    ## How to fix
    `tieconv dedup` writes each storage from the first to the last byte that a tensor uses. Shared tensors stay shared.
    `tieconv convert --to safetensors` stores only the tensors.
    """
    storage = inspection.storage
    if storage is None or storage.unused < TOGETHER:
        return
    worst = sorted(storage.slack, key=lambda entry: -entry.unused)
    shown, rest = worst[:_LISTED], len(worst) - _LISTED
    more = f" This list leaves out {count(rest, 'storage')}." if rest > 0 else ""
    yield storage_slack.finding(
        f"No tensor uses {size(storage.unused)} of the stored {size(storage.stored)}. "
        f"{' '.join(map(_slack_phrase, shown))}{more}",
        [name for entry in worst for name in entry.tensors],
        remedy=remedies.dedup(inspection),
    )


def _slack_phrase(entry: Slack) -> str:
    verb = evidence.verb(entry.tensors, "uses", "use")
    return f"{evidence.listed(entry.tensors)} {verb} {size(entry.stored - entry.unused)} of {size(entry.stored)}."


@rule("STO004", "partial-overlap", Level.WARNING)
def partial_overlap(inspection: Inspection) -> Iterator[Finding]:
    """Tensors share a part of their bytes.

    ## What it does
    Reports tensors of a torch file that share a part of their bytes. One is a slice of the other, or their ranges overlap.
    Two names of one tensor, its transpose, and interleaved columns of one matrix do not count as an overlap.

    ## Why it matters
    safetensors refuses to save such tensors. Tools that look for shared tensors may keep the smaller one and drop the rest.
    Loaders that copy each tensor into a separate parameter end the sharing. A later change of one parameter then does not
    change the other.

    ## Example
    Two norms that are slices of one vector:

        warning STO004: model.layers.0.norm.weight and model.norm.weight share a
        part of their bytes

    ## How to fix
    No command of tieconv separates them, or loses one. To separate them, save copies: `state[name] = state[name].clone()`.
    """
    if inspection.storage is None:
        return
    groups = [overlap.tensors for overlap in inspection.storage.overlaps if overlap.kind in ("slice", "overlap")]
    if not groups:
        return
    rest = len(groups) - _LISTED
    more = f". This list leaves out {count(rest, 'group')}" if rest > 0 else ""
    listed = ". ".join(f"{evidence.listed(sorted(names))} share a part of their bytes" for names in groups[:_LISTED])
    yield partial_overlap.finding(
        f"{listed}{more}{'.' if len(groups) > 1 else ''}", [name for names in groups for name in sorted(names)]
    )


@rule("STO005", "not-only-weights", Level.NOTE)
def not_only_weights(inspection: Inspection) -> Iterator[Finding]:
    """A file holds more than the tensors of a model.

    ## What it does
    Notes unusual content of a file. It may be a training checkpoint, of which tieconv reads only the model. Some
    values may not be tensors, or a wrapper added a prefix to every name. Tensors may repeat stored values (stride 0), or no
    tensor of the model uses a storage. Tensors under `ema`, `model_ema` or `ema_model` are a second model.

    It is an error if a training checkpoint has the name `pytorch_model.bin` beside a config. transformers reads such a
    file and finds none of its parameters. It loads an untrained model, or fails (5.23 and 5.24, without a dtype).

    ## Why it matters
    Loaders of state dicts do not find tensors of a training checkpoint or names with a prefix. A new file would lose the
    other content, so most commands that write refuse the file.

    ## Example
    A state dict with a number:

        note STO005: tieconv ignores 1 value that is not a tensor: epoch

    ## How to fix
    `tieconv convert FILE --to safetensors -o OUT` writes the model of a training checkpoint. If several keys hold tensors,
    save the right one: `torch.save(torch.load(FILE, map_location="cpu")[KEY], OUT)`.
    """
    # Yield one finding for each kind of unusual content in each file.
    checkpoint = inspection.checkpoint
    starts = ("pytorch_model.bin", "pytorch_model-")
    read = checkpoint.config_values and any(file.name.startswith(starts) for file in checkpoint.files)
    for code in (TRAINING, SEVERAL, "torch.extra", "torch.prefix", "torch.expanded", "torch.unused"):
        for caution in evidence.cautions(inspection, code):
            text = evidence.capital(caution.message)
            if read and code in (TRAINING, SEVERAL):
                text += ". transformers finds no parameter there. It fails, or fills the model with untrained values."
                remedy = remedies.convert(inspection, "safetensors", safe=False)
                yield not_only_weights.finding(text, level=Level.ERROR, remedy=remedy)
            else:
                yield not_only_weights.finding(text)
    names, embedding = inspection.checkpoint.tensors, inspection.head.input_embedding
    averages = [name for name in names if name.startswith(EMA)]
    if averages and len(averages) < len(names):
        prefix = averages[0].partition(".")[0]
        tied = prefix if embedding is not None and embedding.name.startswith(EMA) else "the other tensors"
        second = f"{prefix} ({count(len(averages), 'tensor')}) is an average of weights (EMA)"
        ours = "" if embedding is None else f" The tie is that of {tied}."
        yield not_only_weights.finding(f"The file holds two models: {second}.{ours}", averages)


@rule("STO006", "missing-layer", Level.ERROR)
def missing_layer(inspection: Inspection) -> Iterator[Finding]:
    """The files lack a layer that the config counts, a tensor of one layer, or one outside the layers.

    ## What it does
    Compares the numbers in the tensor names with the number of layers in the config. It reports layers without any tensor.
    In files of 1 MiB or more, it also reports a missing layer list under any name. It also reports parameters
    that the class always has in each layer, alone or with others. Outside the layers it reports such parameters too:
    the last norm, a position table, a projector. If all layers of a class are equal, it reports the weights and biases
    that a single layer lacks. It reports biases that no layer has, although the config sets a key such as `attention_bias`.
    It reports experts without a router. It compares no values.

    The rule makes no claim if a fused matrix, or a module that the class lacks, may hold the parameter. The class must
    be in the table, or have a type of the table and no head. The stored layers must have its names. A file of less than
    1 MiB is an example of names if it lacks 10 % of the parameters. There, the layers must have at least four tensors,
    and half of the class's parameters. More than half of those outside the layers must be stored, or a list of layers
    beside them. In a quantised model, the rule looks for whole layers and for parameters outside them.

    It reports names with a segment of a wrapper too, such as `_checkpoint_wrapped_module`. No loader removes it.

    With `tie_encoder_decoder`, the layers of one part may be missing. transformers 4 shares them, transformers 5 does not.

    In a GGUF file it looks for whole layers by `block_count`. For architectures with equal layers it also reports the
    weights that a single layer lacks, except for those of experts.

    ## Why it matters
    transformers fills missing tensors with untrained values and only prints a load report. mlx-lm and llama.cpp fail. vLLM
    0.32 fails for a layer or a norm, and runs on uninitialised memory without a matrix. One cause is a save that lost a
    rank. Others are layers removed under an old config, and a merge of too few files.

    ## Example
    A Llama whose config says 4 layers:

        error STO006: model.layers.2 is not stored, but the config says 4 layers
        (num_hidden_layers). transformers fills it with untrained values.

    ## How to fix
    Only you know whether the config or the file is wrong. Save the model again from the run or checkpoint that has the
    layer. If the layers were removed on purpose, set the number in the config, and number the layers without a gap.
    """
    # Yield one finding for each list of layers. IDX002 reports layers that only a file outside the index holds.
    if unlisted_parts(inspection.checkpoint) or _is_unknown_gguf(inspection):
        return
    yield from _wrapped(inspection)
    for missing in missing_layers(inspection):
        names = missing.names
        outcome = f"transformers fills {evidence.verb(names, 'it', 'them')} with untrained values"
        if missing.experts:
            outcome = f"transformers 5 fails to load the model. {outcome.replace('transformers', 'transformers 4')}"
        if inspection.checkpoint.mlx:
            outcome = "mlx-lm fails to load the model"
        if inspection.checkpoint.format == "gguf":
            outcome = "llama.cpp fails to load the file"
        if missing.shared:
            outcome = f"transformers 4 shares the stored layers. {outcome.replace('transformers', 'transformers 5')}"
        fault = f"{evidence.clause(names, 'is', 'are')} not stored, but {missing.reason}"
        if missing.routers:
            fault = f"{evidence.clause(names, 'has', 'have')} no router"
            outcome = "transformers fills the router with untrained values"
        yield missing_layer.finding(f"{fault}. {outcome}.", names)


def _wrapped(inspection: Inspection) -> Iterator[Finding]:
    """Yield the finding for names that a wrapper of a part of the model changed. TIE006 reports those of the tables."""
    checkpoint = inspection.checkpoint
    trained = any(caution.code == TRAINING for caution in checkpoint.cautions)
    if checkpoint.format not in ("safetensors", "torch") or trained or inspection.wrapped_ties:
        return
    changed = unwrapping(checkpoint.tensors) if inspection.family.knowledge is Knowledge.TABLE else {}
    if changed:
        wrappers = wrappers_of(changed)
        names = f"{len(changed):,} of {count(len(checkpoint.tensors), 'tensor name')}"
        yield missing_layer.finding(
            f"{' and '.join(wrappers)} left {'its prefix' if len(wrappers) == 1 else 'their prefixes'} in {names}. "
            "transformers does not know these names, and fills the parameters with untrained values.",
            [*changed],
            remedy=remedies.strip_prefix(inspection),
        )


def _is_unknown_gguf(inspection: Inspection) -> bool:
    """Return whether llama.cpp may ask less of the layers: tieconv has not read its source for the architecture."""
    if inspection.checkpoint.format != "gguf":
        return False
    from tieconv.loaders.llama_cpp import head_rule  # most models are not GGUF files

    return head_rule(inspection.family.architecture) is None


@rule("STO007", "surplus-layer", Level.ERROR)
def surplus_layer(inspection: Inspection) -> Iterator[Finding]:
    """The files store a layer that the config does not count, or a parameter that its class does not have.

    ## What it does
    Compares the numbers in the tensor names with the number of layers in the config. It reports stored layers from that
    number on. A GGUF file has the number in its metadata. Layers for the prediction of several tokens (MTP) follow the last
    one, and are not reported.

    It also reports parameters of a layer that need a key which the config does not set. An example is `q_proj.bias` of a
    Llama without `attention_bias`. In files of 1 MiB or more, it reports those that only other classes have. No measured
    config of this class gives them to a layer. Examples are the norms of Qwen3's queries and keys beside the config of a
    Llama. Quantised models and adapters may store zeros there, so the rule leaves them out. It compares no values.

    ## Why it matters
    transformers leaves these tensors out and only prints a load report. If the model was trained with them, it then
    computes something else. mlx-lm, vLLM and llama.cpp fail to load a model whose layers are alike. One cause is the config
    of a smaller model, or of another class, beside the weights. Another is a number that somebody lowered for a test.

    ## Example
    A Llama with 5 layers whose config says 4:

        error STO007: model.layers.4 is stored, but the config says 4 layers
        (num_hidden_layers). transformers leaves it out.

    ## How to fix
    If the model has these layers or parameters, correct the config: the key, or `architectures` and `model_type`. If it
    does not, save it again from the loaded model.
    """
    for counted, names, alike in () if _is_unknown_gguf(inspection) else surplus_layers(inspection):
        outcome = f"transformers leaves {evidence.verb(names, 'it', 'them')} out"
        if inspection.checkpoint.mlx and alike:
            outcome = "mlx-lm fails to load the model"
        if inspection.checkpoint.format == "gguf":
            outcome = "llama.cpp fails to load the file"
        yield surplus_layer.finding(f"{evidence.clause(names, 'is', 'are')} stored, but {counted}. {outcome}.", names)
