"""Rules about PEFT adapters: what they add to a base model, replace in it, and need of it.

Source: peft 0.21.2 (`save_peft_model_state_dict`, `merge_and_unload`), run on tied and untied models.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tieconv.architectures.effective_flag import reading_v4
from tieconv.architectures.stored_names import ADAPTED
from tieconv.checkpoint.finding import Finding, Level, Remedy
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.model_files import Adapter
from tieconv.checkpoint.tie_group import Tie
from tieconv.checks import evidence, remedies
from tieconv.checks.evidence import rule
from tieconv.text import call, count, shown


@rule("PEF001", "adapter-targets-tie", Level.ERROR)
def targets_tie(inspection: Inspection) -> Iterator[Finding]:
    """An adapter changes one of two matrices that its base model ties.

    ## What it does
    Reports a PEFT adapter with low-rank parts for the tied embedding or head of a base model. It is a warning if tieconv
    cannot read the base model, which may be untied.

    ## Why it matters
    While the adapter is loaded, the head and the embedding have different parts. A merge adds both parts to the one matrix.
    The merged model generates garbage, and nothing can recover the training from the merged file. PEFT only prints a
    warning when it creates the adapter. With `ensure_weight_tying`, peft 0.21.2 adds the one change twice. On a base model
    in bfloat16 the two parts also differ (measured).

    ## Example
    An adapter that targets `lm_head` of a tied Llama:

        error PEF001: The adapter changes lm_head, but its base model ties
        lm_head.weight to model.embed_tokens.weight. A merge adds the change to the
        matrix that both use. Merge the adapter into the untied model instead.

    ## How to fix
    Untie the base model first. Then load and merge the adapter there: `PeftModel.from_pretrained(untied, ADAPTER)`. The
    config of the adapter still contains the tied model, so the finding stays. The logits stay the same except for rounding
    (measured with peft 0.21: a difference of at most 5e-7). With `ensure_weight_tying`, PEFT stores the embedding alone in
    `target_modules` of `adapter_config.json`. Add the head there, or PEFT ignores its part on an untied model.
    """
    adapter = inspection.checkpoint.adapter
    modules = in_pair(changed(inspection), inspection.base) if adapter else ()
    if adapter is None or not modules:
        return
    start, tie = f"The adapter changes {evidence.listed(modules)}, but its base model", tied_pair(inspection.base)
    if tie is None or inspection.base is None:
        yield targets_tie.finding(f"{start} {_absent(adapter)}", level=Level.WARNING, remedy=_with_base(inspection))
        return
    others = evidence.listed(member.name for member in tie.members if member.name != tie.canonical)
    yield targets_tie.finding(
        f"{start} ties {others} to {evidence.listed([tie.canonical])}. A merge adds "
        f"{'each change' if adapter.tied else 'the change'} to the matrix that both use. "
        f"{'Add both to target_modules, and merge' if adapter.tied else 'Merge'} the adapter into the untied model instead.",
        remedy=remedies.untie(inspection.base, safe=True),
    )


def _with_base(inspection: Inspection) -> Remedy | None:
    """Return the command that reads the base model too; ``None`` if it was read. Only the user may point at it."""
    adapter = inspection.checkpoint.adapter
    if inspection.base is not None or adapter is None:
        return None
    base = adapter.base if adapter.base_exists or adapter.base.startswith("/") else "BASE"
    return Remedy(call("check", inspection.checkpoint.source, base=base), True)


def _absent(adapter: Adapter) -> str:
    where = f"{shown(adapter.base)} was not read" if adapter.base else "is unknown"
    kind = f" (its class is {shown(adapter.base_class)})" if adapter.base_class else ""
    both = "add both to target_modules and " * adapter.tied
    return f"{where}{kind}. If the base model is tied, {both}untie it before the merge."


@rule("PEF002", "adapter-replaces-tied", Level.NOTE)
def replaces_tied(inspection: Inspection) -> Iterator[Finding]:
    """An adapter stores a whole copy of one of two matrices that its base model ties.

    ## What it does
    Notes a PEFT adapter whose `modules_to_save` contain the embedding or the head of a base model. The base model ties
    them, or tieconv cannot read it. PEFT's `save_embedding_layers` stores copies that stay one parameter: no note.

    ## Why it matters
    The copy was trained separately, so the merged model is untied. peft 0.21 sets the flag to false when it merges. Another
    tool may leave the flag true. Then the model loses one of the two on reload and repeats one token.

    ## Example
    An adapter of a tied Llama with `"modules_to_save": ["lm_head"]`:

        note PEF002: The adapter stores a whole lm_head, but its base model ties it.
        The merged model must store both matrices, and its config must say untied.

    ## How to fix
    After the merge, run `tieconv inspect` on the result. If the flag is still true, it reports TIE001, and
    `tieconv set-tie false` corrects the flag.
    """
    adapter = inspection.checkpoint.adapter
    if adapter is None or adapter.tied:
        return
    saved = {_leaf(module) for module in adapter.saved}
    modules = [module for module in in_pair(replaced(inspection), inspection.base) if _leaf(module) in saved]
    if modules:
        which = "its base model ties it" if inspection.base else "its base model, which was not read, may tie it"
        which = which if len(modules) == 1 else f"{which.removesuffix('it')}them"
        yield replaces_tied.finding(
            f"The adapter stores a whole {evidence.listed(modules)}, but {which}. The merged model must store both "
            "matrices, and its config must say untied.",
            remedy=_with_base(inspection),
        )


@rule("PEF003", "unmerged-adapter", Level.ERROR)
def unmerged(inspection: Inspection) -> Iterator[Finding]:
    """A model's weights still hold the parts of an adapter.

    ## What it does
    Reports names of PEFT, such as `lora_A` and `base_layer`, in a checkpoint that is not an adapter.

    ## Why it matters
    The file was saved from a wrapped model, and the parts were never added to the weights. Loaders report them as
    unexpected and ignore them, so the fine-tune is lost without an error. Loaders do not find names that start with
    `base_model.model.`.

    ## Example
    A Llama saved with its adapter inside:

        error PEF003: model.layers.0.q_proj.lora_A.weight and
        model.layers.0.q_proj.lora_B.weight are parts of an adapter that was not
        merged. Loaders ignore them.

    The rule skips parts with the name of an adapter in the config, which belong to the architecture. It then
    skips `base_layer` too. For example, Phi-4-multimodal stores `lora_A.vision`, and its config has `vision_lora`.
    AdapterHub's library lists its adapters.

    ## How to fix
    Load the wrapped model again and save the result of `merge_and_unload()`, or save only the adapter.
    """
    if inspection.checkpoint.adapter is not None:
        return
    config = inspection.checkpoint.config_values
    own = {key.removesuffix("_lora") for key, value in config.items() if key.endswith("_lora") and value}
    hub = config.get("adapters")
    named = hub.get("adapters") if isinstance(hub, dict) else None
    own |= {*named} if isinstance(named, dict) else set()
    names = ((name, {*name.split(".")}) for name in inspection.checkpoint.tensors)
    left = _LORA_PARTS if own else _LORA_PARTS | ADAPTED
    parts = [name for name, words in names if words & left and not words & own]
    if parts:
        yield unmerged.finding(
            f"{evidence.clause(parts, 'is part', 'are parts')} of an adapter that was not merged. Loaders "
            f"ignore {evidence.verb(parts, 'it', 'them')}.",
            parts,
        )


_LORA_PARTS = frozenset({"lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B", "lora_magnitude_vector"})


@rule("PEF004", "adapter-rows", Level.ERROR)
def rows_differ(inspection: Inspection) -> Iterator[Finding]:
    """The adapter was trained with another vocabulary size than its base model has.

    ## What it does
    Compares the rows of an adapter's embedding and head with those of its base model. It also compares the rows that
    `trainable_token_indices` lists. It skips an adapter whose base model tieconv cannot read.

    ## Why it matters
    Tokens were added before the training, and the base model was not saved with them. peft fails to load the adapter: "size
    mismatch". Tools that skip the check give the new tokens other rows.

    ## Example
    An adapter with a whole `lm_head` of 10 rows, and a base model of 8:

        error PEF004: The adapter stores lm_head for 10 rows, and the base model has
        8. peft fails to load the adapter: size mismatch. Resize the base model
        first.

    ## How to fix
    Run `tieconv resize BASE --to N` with the rows of the adapter, and load the adapter on the result. The new rows of the
    base model are zeros. A whole copy in the adapter replaces them.
    """
    # Yield at most one finding: the vocabulary of the adapter beside that of its base model.
    base = inspection.base
    embedding = base.head.input_embedding if base is not None else None
    if base is None or embedding is None or len(embedding.shape) != 2:
        return
    rows = {
        module: stored
        for module, stored in vocabulary_rows(inspection).items()
        if in_vocabulary(module, base) and stored != embedding.shape[0]
    }
    adapter = inspection.checkpoint.adapter
    listed = adapter.token_rows if adapter is not None and not rows else ()
    highest_row = max((max(ids) for module, ids in listed if in_vocabulary(module or embedding.name, base)), default=-1)
    if highest_row >= embedding.shape[0]:
        yield rows_differ.finding(
            f"The adapter replaces row {highest_row}, and the base model has {count(embedding.shape[0], 'row')}. peft fails to "
            "load the adapter: index out of bounds. Resize the base model first.",
            remedy=remedies.resize(base, to=highest_row + 1, safe=False),
        )
    if not rows:
        return
    stored = next(iter(rows.values()))
    yield rows_differ.finding(
        f"The adapter stores {evidence.listed(rows)} for {count(stored, 'row')}, and the base model has "
        f"{embedding.shape[0]}. peft fails to load the adapter: size mismatch. Resize the base model first.",
        remedy=remedies.resize(base, to=stored, safe=False) if len({*rows.values()}) == 1 else None,
    )


def vocabulary_rows(inspection: Inspection) -> dict[str, int]:
    """Return the rows that an adapter's tensors imply for each module, if the module were an embedding or a head.

    A whole copy is (rows, width), `lora_embedding_A` (rank, rows) and `lora_B` of a linear module (rows, rank).
    """
    rows: dict[str, int] = {}
    for name, tensor in inspection.checkpoint.tensors.items():
        module, leaf = part_of(name), name.removesuffix(".weight").rpartition(".")[2]
        if len(tensor.shape) != 2:
            continue
        if module is None and name.endswith(".weight"):
            rows.setdefault(_module(name), tensor.shape[0])
        elif module and leaf == "lora_embedding_A":
            rows.setdefault(module, tensor.shape[1])
        elif module and leaf == "lora_B":
            rows.setdefault(module, tensor.shape[0])
    return rows


def in_vocabulary(module: str, base: Inspection) -> bool:
    """Return whether a module of the adapter is the input embedding or the output head of the base model."""
    head, module = base.head.output_head, module.removesuffix(".weight")
    names = [base.head.input_embedding.name if base.head.input_embedding else "", head.name if head else ""]
    names += [member.name for tie in base.ties if tie is base.word_tie for member in tie.members]
    return _leaf(module) in {_leaf(name.removesuffix(".weight")) for name in names if name}


@rule("PEF005", "adapter-token-rows", Level.NOTE)
def replaced_tokens(inspection: Inspection) -> Iterator[Finding]:
    """An adapter replaces rows of the embedding.

    ## What it does
    Lists the rows of an adapter with `trainable_token_indices`. Rows of a tied head alone are an error.

    ## Why it matters
    A merge writes the rows into the embedding. In a tied model the head gets them too, with and without
    `ensure_weight_tying` (measured with peft 0.21.2). Rows that were trained in the head alone also get into the embedding
    of a tied model. The merged model then computes something else than the trained one. vLLM loads only low-rank parts.
    It refuses the adapter because of the name `trainable_tokens_delta`.

    ## Example
    An adapter that trains three tokens of a tied Llama:

        note PEF005: The adapter replaces rows: 3 of embed_tokens (3-5). The base
        model is tied, so a merge changes the same rows of the head. vLLM refuses
        the adapter.

    ## How to fix
    Nothing is wrong. For vLLM, merge the adapter with `merge_and_unload()`, and run `tieconv check` on the merged model.
    """
    # Yield at most one finding: the rows of an embedding that an adapter replaces.
    adapter = inspection.checkpoint.adapter
    if adapter is None or not any(_ROWS_PART in name for name in inspection.checkpoint.tensors):
        return
    rows = "; ".join(
        f"{len(ids)} of {shown(module, 60) if module else 'the embedding'} ({_ranges(ids)})"
        for module, ids in adapter.token_rows
    )
    level, head = None, inspection.base.head.output_head if inspection.base else None
    # PEFT keeps both sides equal with `ensure_weight_tying`, and if both have the rows.
    leaf = _leaf(head.name.removesuffix(".weight")) if head and not adapter.tied else None
    trained = {_leaf(module): {*ids} for module, ids in adapter.token_rows}
    rows_of_others = [ids for module, ids in trained.items() if module != leaf]
    if tied_pair(inspection.base) is not None and leaf in trained and trained[leaf].difference(*rows_of_others):
        effect, level = (
            "The base model is tied, so a merge changes the rows of the head in the embedding too.",
            Level.ERROR,
        )
    elif tied_pair(inspection.base) is not None:
        effect = "The base model is tied, so a merge changes the same rows of the head."
    elif inspection.base is not None and inspection.base.config.known and not _is_unread(inspection.base):
        effect = f"The base model is untied, so a merge {'changes these rows alone' if leaf in trained else 'leaves the head as it is'}."
    else:
        effect = "If the base model is tied, a merge changes the same rows of the head."
    yield replaced_tokens.finding(
        f"The adapter replaces rows: {rows or 'its config does not say which'}. {effect} vLLM refuses the adapter.",
        level=level,
        remedy=_with_base(inspection),
    )


@rule("PEF006", "adapter-beside-weights", Level.WARNING)
def beside_weights(inspection: Inspection) -> Iterator[Finding]:
    """An adapter lies beside the weights of a whole model.

    ## What it does
    Reports a model directory with `adapter_config.json`. It skips a config with `has_lora_adapter` (Granite Speech).

    ## Why it matters
    Loaders disagree, and none warns. If the adapter was merged before, it counts twice in transformers 5.24 with PEFT.
    transformers 4.57 with PEFT loads the base model that the adapter's config contains. (Measured with LoRA, peft 0.21.2 and
    transformers 4.57.6, 5.23.0, 5.24.0; not measured with others.)

    ## Example
        warning PEF006: adapter_config.json lies beside the weights. With PEFT,
        transformers 5.24 adds the adapter to the weights, and transformers 4.57
        ignores the weights. Without PEFT, both load the weights alone.

    ## How to fix
    Delete the adapter's two files if it is merged. Otherwise move them into a separate directory.
    """
    if not evidence.adapter_beside(inspection):
        return
    stored = [name for name in inspection.checkpoint.companions if name.startswith("adapter_model.")]
    effect = "adds the adapter to the weights" if "adapter_model.safetensors" in stored else "fails to load the model"
    legacy = "ignores the weights" if stored else "fails too"
    yield beside_weights.finding(
        f"adapter_config.json lies beside the weights. With PEFT, transformers 5.24 {effect}, and transformers 4.57 {legacy}. "
        "Without PEFT, both load the weights alone."
    )


def _ranges(ids: Iterable[int]) -> str:
    spans: list[list[int]] = []
    for number in sorted({*ids}):
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    words = [f"{start}-{stop}" if stop > start else f"{start}" for start, stop in spans[:_SPANS]]
    return ", ".join(words) + (", …" if len(spans) > _SPANS else "")


_ROWS_PART = "trainable_tokens_delta"
_SPANS = 6


WRAPPER = "base_model.model."
_PARTS = ("lora_", "hada_", "lokr_", "ia3_", "oft_", "boft_", "vera_", "randlora_", "fourierft_", "vblora_", "waveft_")
_USUAL = frozenset(
    ("lm_head", "embed_tokens", "wte", "word_embeddings", "shared", "embed_in", "embed_out", "tok_embeddings")
)
"""Usual names of embeddings and heads, for a base model that tieconv cannot read."""


def part_of(name: str) -> str | None:
    """Return the module that a tensor such as ``q_proj.lora_A.weight`` changes; ``None`` for an ordinary parameter."""
    segments = name.removeprefix(WRAPPER).split(".")
    first_part = next((i for i, segment in enumerate(segments) if segment.startswith(_PARTS)), 0)
    return ".".join(segments[:first_part]) or None


def changed(inspection: Inspection) -> tuple[str, ...]:
    """Return the modules that the adapter adds parts to."""
    modules = (part_of(name) for name in inspection.checkpoint.tensors)
    return tuple(dict.fromkeys(module for module in modules if module))


def replaced(inspection: Inspection) -> tuple[str, ...]:
    """Return the modules that the adapter stores as a whole copy and does not change otherwise."""
    plain = (name for name in inspection.checkpoint.tensors if not part_of(name) and name.endswith(".weight"))
    parts = set(changed(inspection))
    return tuple(module for module in dict.fromkeys(map(_module, plain)) if module not in parts)


def tied_pair(base: Inspection | None) -> Tie | None:
    """Return the group of the base model's embedding and head, if its config ties them."""
    tie = base.word_tie if base is not None else None
    if base is None or tie is None or not tie.declared:
        return None
    # transformers 5 declares T5 tied with any flag, and loads a different head under a false one as it is.
    apart = {member.name for member in tie.members if member.state in (State.NEAR, State.DISTINCT, State.UNREAD)}
    head = base.head.output_head
    return None if head and head.name in apart and not reading_v4(base) else tie


def _is_unread(base: Inspection) -> bool:
    return any(member.state is State.UNREAD for member in (base.word_tie.members if base.word_tie else ()))


def in_pair(modules: Iterable[str], base: Inspection | None) -> tuple[str, ...]:
    """Return the modules that the base model ties. Without a base model, compare them with usual names."""
    if base is None:
        leaves = _USUAL
    else:
        tie = tied_pair(base)
        names = [name for member in tie.members for name in (member.name, member.loads_as)] if tie else []
        leaves = frozenset(_leaf(name.removesuffix(".weight")) for name in names if name)
    return tuple(module for module in modules if _leaf(module) in leaves)


def _leaf(module: str) -> str:
    return module.rpartition(".")[2]


def _module(name: str) -> str:
    """Return the module of a parameter that an adapter stores whole. peft may save it under its wrapper's names too."""
    module = name.removeprefix(WRAPPER).removesuffix(".weight")
    for wrapped in (".base_layer", ".modules_to_save", ".original_module"):
        module = module.removesuffix(wrapped)
    return module
