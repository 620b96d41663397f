"""Rules about tied groups: the flag that declares them, and the copies that the file stores."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.architectures import loads_both, unexplained
from tieconv.architectures.effective_flag import DERIVED_KEY, FLAG, reading_v4, scales_v5
from tieconv.checkpoint.family import Role, Tying
from tieconv.checkpoint.finding import Finding, Level, Remedy
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.relation.proved import OtherShape
from tieconv.checkpoint.tie_group import Member, Tie
from tieconv.checkpoint.weight_file import KEY, marked
from tieconv.checks import evidence, remedies
from tieconv.checks.evidence import rule
from tieconv.text import shown, size


@rule("TIE007", "version-decides", Level.ERROR)
def version_decides(inspection: Inspection) -> Iterator[Finding]:
    """The config does not set the flag that one major version of transformers reads.

    ## What it does
    Reports a config without the tie flag that transformers 4 or 5 reads. The two then tie differently. It is an error if
    one version ignores the head or fills it with random values. It is a warning if only transformers 5 prints a warning,
    else a note. If another level has the flag and transformers 5 loads the tensors right, it is a note too.

    ## Why it matters
    The same files give a tied model in one version and an untied model in the other. The defaults of eight classes differ.
    Those of `deepseek_vl`, `deepseek_vl_hybrid`, `granite_speech`, `internvl`, `janus`, `mistral3` and `ovis2` became tied
    in transformers 5. That of `fsmt` became untied. If only one of two nested configs has the flag, transformers 4 and 5
    may read different levels.

    ## Example
    An InternVL without the flag and without a head. It is tied by default in transformers 5, and untied in 4:

        error TIE007: The config does not set tie_word_embeddings, and the defaults
        of transformers 4 and 5 differ. transformers 5 ties
        InternVLForConditionalGeneration, but transformers 4 does not.
        language_model.lm_head.weight is missing, so transformers 4 fills it with
        random values.

    ## How to fix
    `tieconv retie` or `tieconv untie` writes the flag at every level that a loader reads. The remedy is the command that
    keeps the stored tensors.
    """
    head_tie = evidence.head_tie(inspection)
    if head_tie is None or not evidence.versions_differ(inspection) or evidence.unclear_flags(inspection):
        return
    head = head_tie[1]
    tied, untied = (5, 4) if inspection.config.effective else (4, 5)
    level, outcome, remedy = _judge(inspection, head, tied, untied)
    if evidence.levels(inspection):
        # transformers 5 reads the declared flag. Other rules report a wrong one.
        tied_in_v5 = inspection.config.effective
        if not evidence.fits_reader(inspection, head, tied_in_v5) or evidence.fits_reader(
            inspection, head, not tied_in_v5
        ):
            return
        level = Level.NOTE
    yield version_decides.finding(
        f"{_cause(inspection)}. transformers {tied} ties {evidence.label(inspection)}, but transformers {untied} does "
        f"not. {outcome}.",
        (head.name,),
        level=level,
        remedy=remedy,
    )


def _cause(inspection: Inspection) -> str:
    levels, level = evidence.levels(inspection), inspection.family.level_v4 or ""
    if not levels:
        return f"The config does not set {evidence.FLAG}, and the defaults of transformers 4 and 5 differ"
    path = f"{level}.{evidence.FLAG}".lstrip(".")
    if level in levels:
        return f"transformers 4 reads {path}, but transformers 5 reads a level without this flag"
    declared = ", ".join(f"{declaring_level}.{evidence.FLAG}".lstrip(".") for declaring_level in levels)
    return f"transformers 5 reads {declared}. transformers 4 reads {path}, which the config does not set"


def _judge(inspection: Inspection, head: Member, tied: int, untied: int) -> tuple[Level, str, Remedy | None]:
    name = evidence.listed([head.name])
    if evidence.is_missing(inspection, head):
        remedy = remedies.retie(inspection, safe=tied == 5)
        return Level.ERROR, f"{name} is missing, so transformers {untied} fills it with random values", remedy
    if evidence.is_unequal(head):
        remedy = remedies.untie(inspection, safe=True)
        if tied == 4:
            return Level.ERROR, f"{name} differs from the embedding, and transformers 4 ignores it", remedy
        return Level.WARNING, f"{name} differs from the embedding, and transformers 5 uses it with a warning", remedy
    return (Level.NOTE, f"{name} is right for both versions", remedies.retie(inspection, safe=True))


@rule("TIE008", "levels-disagree", Level.ERROR)
def levels_disagree(inspection: Inspection) -> Iterator[Finding]:
    """Two levels of the config set different tie flags.

    ## What it does
    Reports top-level and nested tie flags that differ, if loaders read both. It is an error if transformers 5 loads the
    stored tensors wrongly. Then the head is missing although transformers 5 reads false, or it differs although
    transformers 5 reads true. Else it is a note: eight classes of transformers 5 write such configs by default.

    ## Why it matters
    transformers 4 reads the nested flag. transformers 5 reads the top one for most classes, and either for some. vLLM and
    mlx-lm read one of the two. Over six families, 21 of 54 combinations tie differently in 4.57 and 5.23.

    ## Example
    A Gemma 3 with false at the top level, true in `text_config`, and no head:

        error TIE008: tie_word_embeddings is false at the top level of the config
        but true in text_config. The loader decides which one it reads.
        language_model.lm_head.weight is missing, so a loader that reads false fills
        it with random values.

    ## How to fix
    `tieconv retie` and `tieconv untie` write one value at every level. The remedy is the command that keeps the stored
    tensors. If the head is missing and transformers 5 reads the model as untied, check first that it should be tied.
    """
    head_tie = evidence.head_tie(inspection)
    if head_tie is None or not evidence.levels_disagree(inspection):
        return
    head = head_tie[1]
    level, outcome, remedy = _judge_levels(inspection, head)
    values = " but ".join(
        f"{str(value).lower()} {f'in {shown(level)}' if level else 'at the top level of the config'}"
        for level, value in evidence.levels(inspection).items()
    )
    problem = f"{evidence.FLAG} is {values}. The loader decides which one it reads. {outcome}."
    yield levels_disagree.finding(problem, (head.name,), level=level, remedy=remedy)


def _judge_levels(inspection: Inspection, head: Member) -> tuple[Level, str, Remedy | None]:
    name, tied = evidence.listed([head.name]), inspection.config.effective
    level = Level.NOTE if evidence.fits_reader(inspection, head, tied) else Level.ERROR
    if evidence.is_missing(inspection, head):
        outcome = f"{name} is missing, so a loader that reads false fills it with random values"
        return level, outcome, remedies.retie(inspection, safe=tied)
    if evidence.is_unequal(head):
        outcome = f"{name} differs from the embedding, and a loader that reads true may ignore it"
        return level, outcome, remedies.untie(inspection, safe=True)
    return level, f"{name} is right for both values", remedies.retie(inspection, safe=True)


@rule("TIE013", "flag-type", Level.ERROR)
def flag_type(inspection: Inspection) -> Iterator[Finding]:
    """The tie flag is not true or false.

    ## What it does
    Reports a `tie_word_embeddings`, at any level, that is a string, a number or null. It also says if the head is missing.

    ## Why it matters
    transformers 5 refuses to load such a config (measured with 5.23: "expected bool, got str"). transformers 4 uses the truth
    value (4.57): null, 0 and `""` are false, and other texts true, even `"False"`. Other loaders compare it with a boolean.

    ## Example

        error TIE013: tie_word_embeddings is 'true', which is not a JSON boolean.
        transformers 5 refuses to load the config. transformers 4 takes it as true,
        like any text. Other loaders may not. lm_head.weight is missing, so a loader
        that reads false fills it with random values.

    ## How to fix
    `tieconv retie` or `tieconv untie` writes a boolean. The remedy is the command that keeps the stored tensors. If the head
    is missing and the value reads like false, review it first. If the flag should have the opposite value, edit the config.
    """
    # Yield one finding for each level whose value is not a boolean.
    head_tie = evidence.head_tie(inspection)
    missing = "" if head_tie is None or not evidence.is_missing(inspection, head_tie[1]) else head_tie[1].name
    for entry in evidence.unclear_flags(inspection):
        value = "null" if entry.value is None else repr(entry.value)
        text = ", like any text" if entry.value and isinstance(entry.value, str) else ""
        sentences = [
            f"{shown(entry.path)} is {shown(value)}, which is not a JSON boolean.",
            "transformers 5 refuses to load the config.",
            f"transformers 4 takes it as {'true' if entry.value else 'false'}{text}. Other loaders may not.",
        ]
        if missing:
            sentences.append(f"{shown(missing)} is missing, so a loader that reads false fills it with random values.")
        yield flag_type.finding(" ".join(sentences), remedy=_remedy(inspection, is_missing=bool(missing)))


def _remedy(inspection: Inspection, *, is_missing: bool) -> Remedy | None:
    head_tie = evidence.head_tie(inspection)
    texts = [entry.value.lower() for entry in evidence.unclear_flags(inspection) if isinstance(entry.value, str)]
    if is_missing and not (inspection.config.effective and "false" not in texts):
        return remedies.retie(inspection, safe=False)
    if head_tie is None or not head_tie[0].consistent or not head_tie[0].canonical_stored:
        return None
    verb = remedies.retie if inspection.config.effective else remedies.untie
    return verb(inspection, safe=True)


@rule("TIE014", "logit-scale", Level.WARNING)
def logit_scale(inspection: Inspection) -> Iterator[Finding]:
    """The config gives the logits of T5 another scale in transformers 5 than in transformers 4.

    ## What it does
    Compares `scale_decoder_outputs` with the tie flag, for T5, LongT5 and Pop2Piano. It reports a config without the flag too.

    ## Why it matters
    These classes multiply the logits by `d_model**-0.5`. transformers 4 does so if the flag is true, transformers 5 if this
    key is true. The order of the tokens stays the same. Probabilities, loss and sampling change. transformers 5.23 writes
    such a config for `T5Config(tie_word_embeddings=False)`.

    ## Example

        warning TIE014: scale_decoder_outputs is false, but the config says tied.
        transformers 4 multiplies the logits by d_model**-0.5, transformers 5 does
        not. If transformers 5 is right, run untie. If transformers 4 is right, set
        scale_decoder_outputs to true in config.json.

    ## How to fix
    Find out with which release the model was trained: flag and key must agree with it. If it was transformers 5 and the key
    is true, `tieconv set-tie true` sets the flag. If the key is false, `tieconv untie` stores the head and sets the flag:
    transformers 4 then needs both. Else edit config.json: the finding names key and value.
    """
    scaled, tied = scales_v5(inspection), reading_v4(inspection)
    if scaled is None or not inspection.config.known or tied in (None, scaled):
        return
    first, second = (5, 4) if scaled else (4, 5)
    by_five, by_four = str(scaled).lower(), str(tied).lower()
    level = f"{shown(inspection.family.text_level)}." if inspection.family.text_level else ""
    remedy = remedies.set_scaled(inspection) if scaled else remedies.untie(inspection, safe=False)
    head = inspection.head.output_head
    flag = f"set {level}{FLAG} to {by_five} in config.json"
    right = f"If transformers 5 is right, {flag}"
    # transformers 4 ignores such a head of a tied model. It ties Pop2Piano, which transformers 5 never does.
    if scaled and (remedies.unequal(inspection) or (head and head.stored and inspection.family.tying is Tying.NEVER)):
        right = "No tie flag makes transformers 4 compute what transformers 5 does"
    elif not scaled and remedy:
        right = "If transformers 5 is right, run untie"
    elif not scaled and head and not head.stored:
        right = f"If transformers 5 is right, store {shown(head.name)} and {flag}"
    yield logit_scale.finding(
        f"{DERIVED_KEY} is {by_five}, but the config says {'tied' if tied else 'untied'}. transformers {first} "
        f"multiplies the logits by d_model**-0.5, transformers {second} does not. {right}. If transformers 4 is right, "
        f"set {level}{DERIVED_KEY} to {by_four} in config.json.",
        remedy=remedy,
    )


@rule("TIE001", "different-values", Level.ERROR)
def different_values(inspection: Inspection) -> Iterator[Finding]:
    """A tied model stores tensors that differ.

    ## What it does
    Reports a name of a tied group whose stored values differ from those of the canonical name. Rows may differ, or the
    tensor is a multiple, the transpose, or another matrix. It is a warning if the copy has another dtype and is equal only
    after rounding. It is also one if transformers 4 reads an untied config. It is a note if only the sign of zeros differs.

    ## Why it matters
    transformers up to 4.57 overwrites the head with the embedding and prints nothing. A save then loses the head.
    transformers 5 keeps both and prints a warning. Early releases of vLLM and mlx-lm drop the head.

    A fine-tune that changed only new tokens gives such a model, which repeats one token after a reload. If the copy has
    another dtype, the dtype at loading decides whether the two are tied. A constant factor means that a tool folded an
    embedding scale into the head.

    ## Example
    `"tie_word_embeddings": true`, and only row 7 of the head was trained:

        error TIE001: lm_head.weight differs from model.embed_tokens.weight (in row
        7 of 8, by at most 0.5), but the config says tied. transformers 4.57 ignores
        lm_head.weight. transformers 5 uses it.

    ## How to fix
    `tieconv set-tie false` sets the flag to false at every level and does not change the tensors. Then every loader reads
    what transformers 5 reads today. If the untied model needs other names too, `tieconv untie` does the same and stores
    them. For T5 and its relatives, it needs `--force`: the logits lose a factor (review first: changes the model's
    outputs). If one of the two is stale, `tieconv retie --from embed --force` or `--from head --force` keeps the other (review
    first: changes the model's outputs).
    """
    # Yield one finding for each tied group that stores different values.
    scaled = not remedies.flag_is_storage(inspection)
    for tie in evidence.declared_tied(inspection):
        differing = [member for member in tie.members if _differs(inspection, tie, member)]
        if differing:
            canonical = evidence.reference(tie)
            names = [member.name for member in differing]
            figures = ". ".join(evidence.difference(member, canonical) for member in differing)
            cause = evidence.says(inspection, True) if tie.gated else f"{evidence.label(inspection)} always ties them"
            but = ", but" if len(names) == 1 else ". However,"
            outcome, level = _outcome(inspection, differing), _level(differing)
            if tie.gated and level is Level.ERROR and evidence.reading_v4(inspection) is False:
                cause, level = "transformers 5 reads a tied config", Level.WARNING
                outcome = f"It uses {evidence.listed(names)} with a warning. transformers 4 reads an untied config."
            elif tie.gated and evidence.unclear_flags(inspection):  # TIE013 says that transformers 5 refuses the config
                cause = "some loaders tie them"
                outcome = f"They ignore {evidence.listed(names)}."
            yield different_values.finding(
                f"{figures}{but} {cause}. {outcome}",
                (canonical, *names),
                level=evidence.certain(inspection, level),
                remedy=remedies.set_untied(inspection, safe=True) if tie.gated or scaled else None,
            )


def _differs(inspection: Inspection, tie: Tie, member: Member) -> bool:
    empty = evidence.is_empty(inspection, member.name) or evidence.is_empty(inspection, evidence.reference(tie))
    if evidence.in_parts(inspection, tie, member) or tie.role is Role.OUTPUT_BIAS or empty:
        return False
    if evidence.shapes_differ(inspection, tie, member):
        return False
    disputed = evidence.disputed(inspection) and evidence.head_member(inspection, tie) is member
    return evidence.is_unequal(member) and not disputed


def _is_new(inspection: Inspection) -> bool:
    """Return whether transformers 4 has no such class. A class that tieconv guesses may be in any release."""
    return inspection.family.trusted and evidence.reading_v4(inspection) is None


def _outcome(inspection: Inspection, differing: list[Member]) -> str:
    has_class_in_4 = not _is_new(inspection)
    if all(member.state is State.CAST and not member.relation.holds_nan for member in differing):
        return "Whether transformers ties them depends on the dtype that it loads them in."
    if all(member.relation.sign_of_zero_only for member in differing):
        ties = "transformers 4.57 and 5.23 tie" if has_class_in_4 else "transformers 5.23 ties"
        return f"transformers 5.0 keeps both. {ties} them."
    names = evidence.listed(member.name for member in differing)
    pronoun = "it" if len(differing) == 1 else "them"
    used = f"transformers 5 uses {pronoun if has_class_in_4 else names}."
    return f"transformers 4.57 ignores {names}. {used}" if has_class_in_4 else used


def _level(differing: list[Member]) -> Level:
    if all(member.relation.sign_of_zero_only for member in differing):
        return Level.NOTE
    rounded = all(member.state is State.CAST and not member.relation.holds_nan for member in differing)
    return Level.WARNING if rounded else Level.ERROR


@rule("TIE002", "redundant-copy", Level.WARNING)
def redundant_copy(inspection: Inspection) -> Iterator[Finding]:
    """A tied tensor is stored twice.

    ## What it does
    Reports byte-identical copies of the canonical tensor in a tied group, with the wasted bytes. It also reports a head or
    embedding with the same values in another dtype. The rule does not report one storage under two names, which wastes
    nothing, or the two names of a bias.

    ## Why it matters
    Every loader that ties the pair ignores the copy. The copy costs up to a gigabyte on disk and in transfer. A trainer
    that gathers a sharded state dict typically writes it. Some loaders refuse the extra name for some classes.
    `tieconv inspect --consumers` lists them with their versions, and `tieconv check --for LOADER` reports them as CON003.

    ## Example
    `"tie_word_embeddings": true`, both names stored:

        warning TIE002: lm_head.weight is a byte-identical copy of
        model.embed_tokens.weight. The model is tied, so the copy wastes 128 B.

    ## How to fix
    `tieconv retie` drops the copy, keeps the canonical name and updates the index. It drops the same values in another
    dtype only with `--from embed --force`.

    A copy that is wanted is a note, and no command is given. A copy is wanted if a loader of `--for` needs it. It is also
    wanted if the metadata entry `tieconv.keep` of its safetensors file lists it. `tieconv untie --keep-flag` writes that
    entry. Files without metadata need an `ignore` with its reason in `tieconv.toml`. state-spaces' Mamba loads strictly,
    so the copy of its head is wanted too.
    """
    # Yield one finding for each tied group with identical copies. NUM001 reports those with a NaN.
    wanted = marked(inspection.checkpoint.files)
    for tie in evidence.declared_tied(inspection):
        copies = [member.name for member in tie.members if _is_copy(inspection, tie, member)]
        recast = [member.name for member in tie.members if member.relation.is_lossless_cast]
        if copies and tie.role is not Role.OUTPUT_BIAS:
            are = evidence.are_copies(copies, evidence.reference(tie))
            yield _report_copies(inspection, tie, copies, are, is_wanted=wanted.issuperset(copies))
        if recast and tie.role is Role.WORD_EMBEDDING:
            have = (
                f"{evidence.clause(recast, 'has', 'have')} the values of {evidence.listed([evidence.reference(tie)])}"
            )
            are = f"{have} in another dtype"
            yield _report_copies(inspection, tie, recast, are, is_wanted=wanted.issuperset(recast))


def _is_copy(inspection: Inspection, tie: Tie, member: Member) -> bool:
    """Return whether transformers ties the copy. STO002 reports empty tensors, NUM001 copies with a NaN."""
    equal = member.state is State.IDENTICAL and not evidence.is_empty(inspection, member.name)
    return equal and not member.relation.holds_nan and not evidence.in_parts(inspection, tie, member)


def _report_copies(inspection: Inspection, tie: Tie, copies: list[str], are_copies: str, *, is_wanted: bool) -> Finding:
    canonical = evidence.reference(tie)
    wasted = size(sum(inspection.checkpoint.tensors[name].nbytes for name in copies))
    is_single = len(copies) == 1
    the, verb = ("copy", "wastes") if is_single else ("copies", "waste")
    are = "is" if is_single else "are"
    if loads_both(inspection.checkpoint.config_values):
        is_wanted = True
        why = f"The loader that reads this config needs both names, so the {the} of {wasted} {are} wanted."
    elif is_wanted:
        why = f"The metadata entry {KEY} says that the {the} of {wasted} {are} wanted."
    else:
        why = f"The model is tied, so the {the} {verb} {wasted}."
    remedy = None if is_wanted else remedies.merge(inspection, tie)
    problem = f"{are_copies}. {why}"
    return redundant_copy.finding(problem, (canonical, *copies), level=Level.NOTE if is_wanted else None, remedy=remedy)


@rule("TIE004", "could-be-tied", Level.NOTE)
def could_be_tied(inspection: Inspection) -> Iterator[Finding]:
    """An untied model stores a head that equals the embedding.

    ## What it does
    Notes an untied group whose names are all stored and byte-identical.

    ## Why it matters
    Nothing is wrong: every loader gives the same outputs. But the bytes exist twice, on disk and in memory, and the next
    fine-tune makes the two different. Perhaps someone untied the model on purpose, for a merge or for a loader that needs
    the head.

    ## Example
    `"tie_word_embeddings": false`, head and embedding equal:

        note TIE004: lm_head.weight is a byte-identical copy of
        model.embed_tokens.weight. The model is untied; a tied model would be 128 B
        smaller.

    ## How to fix
    Nothing needs a fix. `tieconv retie` stores one of the two and sets the flag to true.
    """
    # Yield at most one finding, if `tieconv retie` accepts the model.
    for tie in evidence.declared_untied(inspection):
        empty = evidence.is_empty(inspection, evidence.reference(tie))  # STO002 reports this tensor
        unclear = evidence.disputed(inspection) or evidence.unclear_flags(inspection)
        states = {member.state for member in tie.members}
        repeated = State.IDENTICAL in states and states <= evidence.EQUAL - {State.ABSENT}
        if tie.role is Role.WORD_EMBEDDING and repeated and not empty and not unclear:
            remedy = remedies.retie(inspection, safe=True)
            if remedy:
                copies = [member.name for member in tie.members if member.state is State.IDENTICAL]
                wasted = sum(inspection.checkpoint.tensors[name].nbytes for name in copies)
                yield could_be_tied.finding(
                    f"{evidence.are_copies(copies, evidence.reference(tie))}. "
                    f"The model is untied; a tied model would be {size(wasted)} smaller.",
                    tuple(member.name for member in tie.members),
                    remedy=remedy,
                )


@rule("TIE005", "inverted-tie", Level.ERROR)
def inverted_tie(inspection: Inspection) -> Iterator[Finding]:
    """A tied tensor is stored under the wrong one of its names.

    ## What it does
    Reports a tied group that lacks its canonical name, the one that `save_pretrained` keeps. The file stores the head
    without the embedding, for example, or only the second name of a head bias.

    ## Why it matters
    transformers 5 reads either name, but transformers 4.57 reads only the canonical one. It leaves the parameter without
    values and reports nothing until the first forward pass fails. transformers 4.48 fills such a bias with zeros.
    llama.cpp, vLLM and mlx-lm do not find the embedding. `safetensors.torch.save_model` and
    `huggingface_hub.save_torch_model` write such files, because they keep the first name in the alphabet.

    It is a warning if transformers 4.57 reads the stored embedding of the encoder or the decoder. It does so for T5, Marian
    and Pegasus, and for the decoder of BART. bart-large-cnn is published in this form.

    ## Example
    `"tie_word_embeddings": true`, only the head stored:

        error TIE005: model.embed_tokens.weight is missing, but a tied model stores
        this name. The file has only lm_head.weight. transformers 4.57 leaves the
        parameter without values. Other loaders need model.embed_tokens.weight.

    ## How to fix
    `tieconv retie` stores the tensor under its canonical name. The bytes stay the same.
    """
    # Yield one finding for each tied group whose canonical name is missing.
    for tie in inspection.ties if not unexplained(inspection) else ():
        if tie.declared and not tie.canonical_stored and not evidence.is_quantised(inspection, tie.canonical):
            stored = [member.name for member in tie.stored_members]
            from tieconv.loaders.load import TRANSFORMERS_4, load  # few models have such a tie

            loaded_by_v4 = load(inspection, TRANSFORMERS_4)
            read = tie.role is Role.WORD_EMBEDDING and loaded_by_v4.source(tie.canonical) is not None
            read |= _is_new(inspection)
            name = evidence.listed([tie.canonical])
            outcome = (
                "transformers loads either name" if read else "transformers 4.57 leaves the parameter without values"
            )
            yield inverted_tie.finding(
                f"{name} is missing, but a tied model stores this name. The file has only {evidence.listed(stored)}. "
                f"{outcome}. Other loaders need {name}.",
                (tie.canonical, *stored),
                level=evidence.certain(inspection, Level.WARNING if read and len(stored) == 1 else Level.ERROR),
                remedy=_retie_remedy(inspection, tie),
            )


def _retie_remedy(inspection: Inspection, tie: Tie) -> Remedy | None:
    if not remedies.is_merged(tie):
        return None
    # `untie` stores every name of a group only if the flag decides about it.
    return remedies.merge(inspection, tie) or (remedies.untie(inspection, safe=False) if tie.gated else None)


@rule("TIE010", "shapes-differ", Level.ERROR)
def shapes_differ(inspection: Inspection) -> Iterator[Finding]:
    """Tied tensors have different shapes.

    ## What it does
    Reports a stored tensor of a tied group whose shape differs from the canonical tensor. It has more or fewer rows, or
    rows and columns are swapped. In an untied model the rule reports only a head that is the transpose of the embedding.

    ## Why it matters
    Loaders fail with a size mismatch. Rows differ if a tool padded one of the two for tensor parallelism, or resized one
    for new tokens. Rows and columns are swapped by frameworks that store linear weights as `[in, out]`.

    ## Example
    `"tie_word_embeddings": true`, and one row more in the head:

        error TIE010: lm_head.weight has the shape [9, 4], but
        model.embed_tokens.weight has [8, 4] (the first 8 rows are equal). The class
        needs one shape for both, so loaders refuse the model.

    ## How to fix
    If the head equals the first rows of the embedding, `tieconv retie --from embed --force` drops it. No value is lost.
    Else use the tool that wrote the tensors. `tieconv resize` gives both one number of rows, but new rows are not trained
    and the values still differ (TIE001). No command of tieconv transposes a swapped tensor.
    """
    # Yield one finding for each stored name with another shape.
    tied = list(evidence.declared_tied(inspection))
    for tie in inspection.ties:
        for member in tie.members:
            wrong = tie in tied or member.state is State.TRANSPOSED
            wrong = wrong and not evidence.in_parts(inspection, tie, member)
            if wrong and tie.role is not Role.OUTPUT_BIAS and evidence.shapes_differ(inspection, tie, member):
                canonical = evidence.reference(tie)
                tensors = inspection.checkpoint.tensors
                known = "The class needs one shape for both, so loaders refuse the model."
                yield shapes_differ.finding(
                    f"{evidence.listed([member.name])} has the shape {list(tensors[member.name].shape)}, but "
                    f"{evidence.listed([canonical])} has {list(tensors[canonical].shape)}{_rest(member)}. "
                    + (known if inspection.family.trusted else "A tie needs one shape for both."),
                    (member.name, canonical),
                    level=evidence.certain(inspection, Level.ERROR),
                    remedy=remedies.retie(inspection, safe=False) if member.relation.is_row_prefix else None,
                )


def _rest(member: Member) -> str:
    if member.state is State.TRANSPOSED:
        return " (its transpose)"
    equal = member.relation.rows_equal if isinstance(member.relation, OtherShape) else None
    if not equal:
        return ""
    return " (the first row is equal)" if equal == 1 else f" (the first {equal:,} rows are equal)"


@rule("NUM001", "nan-in-tie", Level.ERROR)
def nan_in_tie(inspection: Inspection) -> Iterator[Finding]:
    """Equal copies of a tied tensor hold a NaN, or a tensor is unusable.

    ## What it does
    Reports two copies of a tied tensor that are byte-identical and contain at least one NaN. It also reports an embedding
    or a head of zeros alone, +0 or -0. It reports a matrix of a type such as `BOOL`, in which no known quantiser stores one.
    It reports a NaN, and in a tensor whose name ends in `weight` an infinity too. The default depth reads a few bytes of
    each table, and all norms and biases. With `--depth full` the rule reads every tensor of the types F16, BF16, F32 and
    F64. Of a remote model it looks at types alone. It reads safetensors, torch and GGUF files, in GGUF the unquantised.

    ## Why it matters
    transformers 5 compares values before it ties. A NaN equals nothing, not even itself. So transformers 5 prints a warning
    and leaves the two untied, but transformers 4 ties them. If training or a resize follows, the model has two tensors
    instead of one. A NaN is also a sign of a broken run, which often made all weights NaN. Then a norm shows it, and it is
    small. A model with a table of zeros cannot distinguish tokens. None of 377 measured classes of transformers starts with
    one.

    ## Example
    `"tie_word_embeddings": true`, both names stored, one NaN in each:

        error NUM001: lm_head.weight is a byte-identical copy of
        model.embed_tokens.weight, and both hold a NaN. transformers 5 treats them
        as different and does not tie them.

    ## How to fix
    `tieconv retie` stores one copy, which every version ties. Then find the cause of the NaN: the row belongs to a token
    that no input may contain. `tieconv analyze` counts the rows with a NaN, and those of zeros. Save a table of zeros again
    from the run that trained it.
    """
    # Yield one finding for each tied group of equal copies with a NaN, and for each other table.
    with_nan = set[str]()
    for tie in inspection.ties:
        equal = [member for member in tie.members if member.state is not State.CAST]
        copies = [member.name for member in equal if member.relation.holds_nan]
        if copies:
            canonical = evidence.reference(tie)
            with_nan |= {canonical, *copies}
            yield nan_in_tie.finding(
                f"{evidence.are_copies(copies, canonical)}, and {evidence.verb(copies, 'both', 'all')} hold a NaN. "
                "transformers 5 treats them as different and does not tie them.",
                (canonical, *copies),
                level=evidence.certain(inspection, Level.ERROR),
                remedy=remedies.merge(inspection, tie),
            )
    level = evidence.certain(inspection, Level.ERROR)
    by_fault: dict[str, list[str]] = {}
    for name, fault in inspection.unusable.items():
        if name not in with_nan:
            by_fault.setdefault(fault, []).append(name)
    for fault, names in by_fault.items():
        if fault == "zeros":
            text = f"{evidence.clause(names, 'is', 'are')} all zero. The model cannot distinguish tokens."
        elif fault.startswith("a NaN"):
            holds, them = evidence.clause(names, "holds", "hold"), evidence.verb(names, "it", "them")
            text = f"{holds} {fault}. Values that depend on {them} are not finite."
        else:
            has = evidence.clause(names, "has", "have")
            text = f"{has} the type {fault}. tieconv knows no quantiser that stores a matrix so."
        yield nan_in_tie.finding(text, names, level=level)
