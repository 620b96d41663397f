"""Rules about the head bias."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from tieconv.architectures.stored_names import spelled
from tieconv.checkpoint.family import Knowledge, Role
from tieconv.checkpoint.finding import Finding, Level, Remedy
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.tie_group import BiasState, Member, OutputBias
from tieconv.checks import evidence, remedies
from tieconv.checks.evidence import rule
from tieconv.text import count


@rule("BIA001", "unknown-bias", Level.ERROR)
def unknown_bias(inspection: Inspection) -> Iterator[Finding]:
    """A bias is stored for a head that has none.

    ## What it does
    Reports a bias for the head of a class that has no head bias. It is an error if the bias is not zero. It is a note if
    the bias is all zero or if tieconv did not read it.

    ## Why it matters
    transformers reports the tensor as unexpected and ignores it. So a trained bias is lost without an error, and the most
    likely token changes. vLLM, mlx-lm and the converter of llama.cpp refuse the extra name. An all-zero bias changes
    nothing, and some tools need one.

    ## Example
    A Llama with a trained `lm_head.bias`:

        error BIA001: lm_head.bias holds values up to 1.39, but LlamaForCausalLM has
        no head bias. transformers ignores the tensor. Other loaders may refuse it.

    ## How to fix
    `tieconv bias strip` removes an all-zero bias. A trained bias has two exits. Use a class that reads it, or train the
    model without a bias. No command of tieconv removes trained values. `tieconv analyze` shows the values.
    """
    bias = inspection.head.output_bias
    if bias is None or bias.state is BiasState.ABSENT:
        return
    if inspection.family.output_biases or inspection.family.knowledge is not Knowledge.TABLE:
        return
    yield unknown_bias.finding(
        f"{evidence.listed([bias.name])} {_content(bias)}, but {evidence.label(inspection)} has no head bias. "
        "transformers ignores the tensor. Other loaders may refuse it.",
        (bias.name,),
        level=Level.ERROR if bias.state is BiasState.NONZERO else Level.NOTE,
        remedy=remedies.bias(inspection, "strip", safe=True) if bias.state is BiasState.ZERO else None,
    )


def _content(bias: OutputBias) -> str:
    match bias.state:
        case BiasState.ZERO:
            return "is all zero"
        case BiasState.NONZERO if bias.max_abs is not None:
            return f"holds values up to {bias.max_abs:.3g}"
        case BiasState.NONZERO:
            return "holds values other than zero"
        case BiasState.UNREAD | BiasState.ABSENT:
            return "is stored"
        case _:
            assert_never(bias.state)


@rule("BIA002", "half-a-bias-pair", Level.ERROR)
def half_a_bias_pair(inspection: Inspection) -> Iterator[Finding]:
    """An untied model stores its head bias under one of two names.

    ## What it does
    Some classes have two names for the head bias: `cls.predictions.bias` and `cls.predictions.decoder.bias`, or
    `lm_head.bias` and `lm_head.decoder.bias`. The rule reports an untied model that stores only one of them. It is an error
    if the values are not zero, else a note.

    ## Why it matters
    The two names are one parameter only if the flag is true. In an untied model transformers 5 reads the inner name, and
    fills it with zeros if it is missing. transformers 4 writes the outer name, so its trained bias is lost. transformers 4
    needs the outer name. If the bias is all zero, nothing is lost, but transformers prints a warning.

    ## Example
    A BERT with `"tie_word_embeddings": false` that transformers 4 saved:

        error BIA002: cls.predictions.decoder.bias is missing, but the model is
        untied. The stored cls.predictions.bias is not zero. transformers 5 fills
        cls.predictions.decoder.bias with zeros.

    ## How to fix
    `tieconv bias unify` stores the bias under both names.
    """
    # Yield one finding for each bias pair with a missing name.
    for tie in evidence.declared_untied(inspection):
        absent = [member.name for member in tie.members if not member.stored]
        if tie.role is Role.OUTPUT_BIAS and absent:
            bias, stored = inspection.head.output_bias, evidence.reference(tie)
            trained = bias is not None and bias.state is BiasState.NONZERO
            state = (
                "is not zero" if trained else "is all zero" if bias and bias.state is BiasState.ZERO else "was not read"
            )
            word_tie = inspection.word_tie
            whole = word_tie is None or word_tie.consistent is True
            yield half_a_bias_pair.finding(
                f"{evidence.clause(absent, 'is', 'are')} missing, but the model is untied. The stored "
                f"{evidence.listed([stored])} {state}. {_outcome(inspection, absent, stored)}.",
                (*absent, stored),
                level=Level.ERROR if trained else Level.NOTE,
                remedy=remedies.bias(inspection, "unify", safe=not trained and whole),
            )


def _outcome(inspection: Inspection, absent: list[str], stored: str) -> str:
    from tieconv.loaders.load import head_bias  # few models have half a pair
    from tieconv.loaders.loaded import Absence

    names = evidence.listed(absent)
    says = {Absence.ZERO: f"fills {names} with zeros", Absence.UNSET: f"leaves {names} without values"}
    absences = {version: bias.absence for version, bias in head_bias(inspection).items() if bias.absence in says}
    if len(absences) > 1 and len(set(absences.values())) == 1:
        return f"transformers {says[next(iter(absences.values()))]}"
    clauses = [f"transformers {version} {says[absence]}" for version, absence in absences.items()]
    return ". ".join(clauses) or f"transformers reads {evidence.listed([stored])}"


@rule("BIA003", "bias-copies-differ", Level.ERROR)
def bias_copies_differ(inspection: Inspection) -> Iterator[Finding]:
    """The two names of a head bias hold different values.

    ## What it does
    Reports a head bias that is stored under both of its names, with different values. It is an error in a tied model. It is
    a note in an untied model, in which transformers 5 has two parameters and reads the inner one.

    ## Why it matters
    transformers 4 reads the outer name (`cls.predictions.bias`) and prints nothing. transformers 5 reads the inner name
    (`cls.predictions.decoder.bias`). So one file gives two different models.

    ## Example
    A BERT whose two biases differ in one value:

        error BIA003: cls.predictions.decoder.bias differs from cls.predictions.bias
        (in value 5 of 8, by at most 0.25). Both are the head bias. The version of
        transformers decides which one is loaded.

    ## How to fix
    Decide which of the two was trained. Usually it is the one that the training framework reads. Then overwrite the other
    one. `tieconv bias unify --from decoder` keeps the bias that transformers 5 reads, and `--from bias` keeps the one that
    transformers 4 reads. Either discards the other, so `check --fix` does not do it. The finding names `--from decoder`, or
    `--from bias` if the inner bias is all zero. In an untied model nothing needs a fix.
    """
    # Yield one finding for each stored bias that differs; BIA004 reports different lengths.
    for tie in inspection.ties:
        for member in tie.members if tie.role is Role.OUTPUT_BIAS else ():
            if evidence.is_unequal(member) and not evidence.shapes_differ(inspection, tie, member):
                first = evidence.reference(tie)
                harmless = not tie.declared or member.relation.sign_of_zero_only
                yield bias_copies_differ.finding(
                    f"{evidence.difference(member, first, 'values')}. Both are the head bias. {_read(inspection)}.",
                    (first, member.name),
                    level=Level.NOTE if harmless else Level.ERROR,
                    remedy=_unify(inspection, member) if tie.declared else None,
                )


def _unify(inspection: Inspection, member: Member) -> Remedy | None:
    """Return the command that keeps the inner bias, or the outer one if only the inner bias is all zero."""
    inner = inspection.head.output_bias
    is_zero = inner is not None and inner.state is BiasState.ZERO and not member.relation.sign_of_zero_only
    return remedies.bias(inspection, "unify", survivor="bias" if is_zero else "decoder", safe=False)


def _read(inspection: Inspection) -> str:
    from tieconv.loaders.load import head_bias  # few models have such a pair

    read = {bias.stored for bias in head_bias(inspection).values()}
    if len(read) > 1:
        return "The version of transformers decides which one is loaded"
    return f"transformers loads {evidence.listed(filter(None, read))}"


@rule("BIA004", "bias-length", Level.ERROR)
def bias_length(inspection: Inspection) -> Iterator[Finding]:
    """The head bias is longer or shorter than the head.

    ## What it does
    Reports a head bias that has more or fewer values than the output head has rows. If the head is tied, the rule compares
    the bias with the embedding.

    ## Why it matters
    transformers fails: "The size of tensor a (32003) must match the size of tensor b (32000)". The cause is a resize of the
    vocabulary that left the bias as it was.

    ## Example
    A BERT that got one more token:

        error BIA004: cls.predictions.bias has 7 values, but
        bert.embeddings.word_embeddings.weight has 8 rows. Loaders refuse the model.

    ## How to fix
    `tieconv bias resize` adds zeros, as `resize_token_embeddings` of transformers does, or removes zeros at the end. It
    does not shorten a bias whose last values are not zero. If the second name of the bias has the right length,
    `tieconv bias unify --from` stores its values. Review first: it may change the model's outputs.
    """
    # Yield one finding for each stored bias with a wrong length.
    tensors = inspection.checkpoint.tensors
    matrix = _matrix(inspection)
    if matrix is None or len(tensors[matrix].shape) != 2 or not tensors[matrix].elements:
        return
    rows = tensors[matrix].shape[0]
    pairs = (tie for tie in inspection.ties if tie.role is Role.OUTPUT_BIAS)
    names = [member.name for tie in pairs for member in tie.stored_members]
    bias = inspection.head.output_bias
    if bias and bias.name in inspection.checkpoint.tensors:
        names.append(bias.name)
    whole = next((name for name in names if tensors[name].elements == rows), None)
    for name in dict.fromkeys(names):
        length = tensors[name].elements
        if length == rows:
            continue
        remedy = remedies.bias(inspection, "resize", safe=False) if length < rows else None
        if whole is not None:  # the same bias under its second name
            survivor = "decoder" if whole.endswith("decoder.bias") else "bias"
            remedy = remedies.bias(inspection, "unify", survivor=survivor, safe=False)
        yield bias_length.finding(
            f"{evidence.listed([name])} has {count(length, 'value')}, but {evidence.listed([matrix])} has "
            f"{count(rows, 'row')}. Loaders refuse the model."
            f"{f' Its second name {evidence.listed([whole])} has {rows:,}.' if whole else ''}",
            (name, matrix),
            level=evidence.certain(inspection, Level.ERROR),
            remedy=remedy,
        )


@rule("BIA005", "missing-bias", Level.NOTE)
def missing_bias(inspection: Inspection) -> Iterator[Finding]:
    """The head of a class with a head bias is stored without it.

    ## What it does
    Notes a head that is stored without the bias that its class has. It is an error if some release of transformers leaves
    the bias without values. A `final_logits_bias` may be absent. The rule does not report it.

    ## Why it matters
    transformers fills the bias with zeros and only prints a load report. For some classes it leaves uninitialised memory in
    it, which gives other logits in each run. Examples are Longformer, FNet and Nyströmformer in 5.23 and 5.24. mlx-lm and
    llama.cpp fail. A tool that knows only heads without a bias loses the trained one.

    ## Example
    A GPT-J without its bias:

        note BIA005: lm_head.bias is missing, but GPTJForCausalLM has a head bias.
        transformers fills lm_head.bias with zeros.

    ## How to fix
    Copy the bias from the checkpoint that has it. If the model was trained without one, `tieconv bias zero` stores zeros.
    """
    family, bias = inspection.family, inspection.head.output_bias
    names = [spelled(family, name, inspection.checkpoint.tensors) for name in family.output_biases]
    stored = inspection.checkpoint.tensors
    if not family.trusted or bias is None or bias.state is not BiasState.ABSENT or inspection.checkpoint.graphs:
        return
    beside = {f"{name.partition('.')[0]}." for name in names if not name.endswith("final_logits_bias")}
    if not any(name.startswith(tuple(beside)) for name in stored):
        return
    outcome = _outcome(inspection, names[:1], names[0])
    yield missing_bias.finding(
        f"{evidence.clause(names, 'is', 'are')} missing, but {evidence.label(inspection)} has a head bias. {outcome}.",
        tuple(names),
        level=Level.ERROR if "without values" in outcome else None,
        remedy=remedies.bias(inspection, "zero", safe=False),
    )


def _matrix(inspection: Inspection) -> str | None:
    head = inspection.head.output_head
    if head is None or not inspection.family.output_biases:
        return None
    return head.name if head.stored else head.tied_to
