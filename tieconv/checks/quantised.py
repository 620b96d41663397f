"""Rules about quantised embeddings and heads: their parts, their config entries, and what loaders make of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tieconv.checkpoint.family import Tying
from tieconv.checkpoint.finding import Finding, Level, Outcome, Prediction, Remedy
from tieconv.checkpoint.inspection import Inspection, lists_float_head
from tieconv.checkpoint.quantised_matrix import (
    EMBEDDING,
    FP8_DEFAULT,
    HEAD,
    LISTING_METHODS,
    FaultKind,
    MatrixFault,
    PairState,
    QuantisedMatrix,
    QuantisedTables,
    Verdict,
    parametrised_parts,
    quantised_twin,
)
from tieconv.checkpoint.weight_file import FLOATS
from tieconv.checks import evidence, remedies
from tieconv.checks.evidence import Rule, rule
from tieconv.loaders.evidence import without_tensors
from tieconv.loaders.release_tables import MLX, TRANSFORMERS
from tieconv.text import shown, size


def first_faults(inspection: Inspection, kind: FaultKind) -> Iterator[tuple[QuantisedMatrix, MatrixFault]]:
    """Yield each quantised matrix with a fault of this kind, and the first such fault."""
    for matrix in inspection.quantised.matrices if inspection.quantised else ():
        fault = next((fault for fault in matrix.faults if fault.kind is kind), None)
        if fault is not None:
            yield matrix, fault


def noun(matrix: QuantisedMatrix) -> str:
    """Return the role of a matrix in words."""
    return "input embedding" if matrix.role == EMBEDDING else "output head"


def faulty(broken: Rule, inspection: Inspection, kind: FaultKind, follows: str) -> Iterator[Finding]:
    """Yield a finding for each quantised matrix with a fault of this kind; ``follows`` has a place for its role."""
    for matrix, fault in first_faults(inspection, kind):
        message = f"{fault.reason}. {follows.format(noun(matrix))}"
        yield broken.finding(message, fault.tensors, level=evidence.certain(inspection, Level.ERROR))


LOADED_UNTIED = ("compressed-tensors pack-quantized", "MLX", "bitsandbytes")
"""Starts of the schemes that no loader loads worse with the flag false than with the flag true."""


def tables_of(inspection: Inspection) -> QuantisedTables | None:
    """Return the quantised tables of a checkpoint of a class that can tie, ``None`` for any other model."""
    ties = inspection.family.tying is Tying.CAN
    return inspection.quantised if ties and inspection.checkpoint.format in ("safetensors", "torch") else None


def names_of(inspection: Inspection) -> tuple[str, str]:
    """Return the names of the embedding and the head."""
    pair = tables_of(inspection)
    matrices = {matrix.role: matrix.name for matrix in pair.matrices} if pair else {}
    family = inspection.family
    embedding = matrices.get(EMBEDDING) or family.input_embedding or ""
    return embedding, matrices.get(HEAD) or family.output_head or ""


def remedy(inspection: Inspection, verb: str, *schemes: str) -> Remedy | None:
    """Return the command for matrices of one of the ``schemes``, for which no loader gets worse; else ``None``."""
    pair = tables_of(inspection)
    known = pair is not None and all(matrix.scheme.startswith(schemes) for matrix in pair.matrices)
    return remedies.of_parts(inspection, verb) if known else None


@rule("QNT001", "quantised-head", Level.WARNING)
def quantised_head(inspection: Inspection) -> Iterator[Finding]:
    """A tied model stores its head as quantised codes.

    ## What it does
    Reports a tied model with a head of codes and scales, but with a float embedding. If more than quantisation separates
    the two matrices, QNT006 reports them.

    ## Why it matters
    The same matrix then has two encodings, and the loader decides which one gives the logits. Loaders that tie use the
    embedding and drop the codes. Loaders that read the codes use them. Some leave the head without values and generate
    "!!!!".

    ## Example
    `"tie_word_embeddings": true`, and a head that was quantised separately:

        warning QNT001: lm_head.weight is stored as quantised codes
        (lm_head.qweight), but the config says tied. The loader decides whether the
        codes or model.embed_tokens.weight give the logits.

    ## How to fix
    `tieconv set-tie false` keeps both matrices and makes the config say untied. Or quantise again, and leave the head out
    (`lm_head: false`, or the list of modules to ignore). `tieconv inspect` says whether the codes are a quantised copy of
    the embedding. No command drops the codes.
    """
    head_tie, embedding = evidence.head_tie(inspection), inspection.head.input_embedding
    if head_tie is None or embedding is None or embedding.dtype not in FLOATS or not head_tie[0].declared:
        return
    tensors = inspection.checkpoint.tensors
    codes = quantised_twin(head_tie[1].name, tensors)
    if codes is None or quantised_twin(embedding.name, tensors) or _is_reported(inspection):
        return
    yield quantised_head.finding(
        f"{evidence.listed([head_tie[1].name])} is stored as quantised codes ({evidence.listed([codes])}), but "
        f"{evidence.says(inspection, True)}. The loader decides whether the codes or "
        f"{evidence.listed([embedding.name])} give the logits.",
        (head_tie[1].name, codes, embedding.name),
        level=evidence.certain(inspection, Level.WARNING),
        remedy=remedy(inspection, "set-tie false", *LOADED_UNTIED),
    )


def _is_reported(inspection: Inspection) -> bool:
    """Return whether QNT003 (only scales are stored), QNT006 (another matrix) or HED002 reports the head."""
    tables = inspection.quantised
    if tables is None:
        return False
    differs = tables.relation is not None and tables.relation.state is PairState.DIFFERENT
    return (
        any(map(parametrised_parts, tables.matrices))
        or any(tables.faults(FaultKind.NO_CODES))
        or (differs and tables_of(inspection) is not None)
    )


@rule("QNT002", "codes-without-scales", Level.ERROR)
def codes_without_scales(inspection: Inspection) -> Iterator[Finding]:
    """A quantised embedding or head has codes without scales.

    ## What it does
    Lists every scale that the scheme of the codes needs, and reports codes without one. It knows the schemes of
    compressed-tensors, GPTQ, AWQ, bitsandbytes, FP8, torchao, quanto, HQQ and MLX.

    ## Why it matters
    A code counts steps, and the scale is the size of a step. Loaders fail without it, or they fill the scales with ones or
    with random numbers. The logits are then noise.

    ## Example
    A head of GPTQ codes whose scales were lost in a merge of shards:

        error QNT002: lm_head.qweight has no scales. Without the scales the output
        head has no values.

    ## How to fix
    Restore the scales from the original files, or quantise again. tieconv cannot compute the scales.
    """
    return faulty(codes_without_scales, inspection, FaultKind.NO_SCALES, "Without the scales the {} has no values.")


@rule("QNT003", "scales-without-codes", Level.ERROR)
def scales_without_codes(inspection: Inspection) -> Iterator[Finding]:
    """A quantised embedding or head has scales without codes.

    ## What it does
    Looks for scales and zero points under the names of the embedding and the head. They need codes beside them.

    ## Why it matters
    The matrix is missing, although some of its parts are there. Loaders fail, or they fill the matrix with random values.
    One cause is a tool that dropped the codes of a tied head but kept its scales.

    ## Example
    A head whose codes were dropped to tie it again:

        error QNT003: lm_head.weight_scale is stored without codes. The output head
        has no values.

    ## How to fix
    If the model is tied, remove the scales too. Else restore the codes from the original files, or quantise again.
    """
    # Yield a finding for each matrix that has only scales.
    for matrix, fault in first_faults(inspection, FaultKind.NO_CODES):
        names = fault.tensors
        yield scales_without_codes.finding(
            f"{evidence.clause(names, 'is', 'are')} stored without codes. The {noun(matrix)} has no values.",
            names,
            level=evidence.certain(inspection, Level.ERROR),
        )


@rule("QNT004", "part-shapes", Level.ERROR)
def part_shapes(inspection: Inspection) -> Iterator[Finding]:
    """The parts of a quantised embedding or head do not fit together.

    ## What it does
    Computes the shape of each part from the others: codes, scales, zero points, indexes of groups. It also compares the
    unpacked matrix with the vocabulary and the hidden size in the config.

    ## Why it matters
    Loaders refuse parts that do not fit. Some broadcast them or read beyond a group, and the logits are then noise. One
    cause is a config from a run with another group size. Another is a vocabulary that was resized without its scales.

    ## Example
    A head of GPTQ codes whose scales are of two groups:

        error QNT004: lm_head.scales is 2×8, but 8×4 codes in groups of 4 need 1×8.
        Loaders refuse the output head or read wrong values.

    ## How to fix
    Take the parts and the config from one run of the quantiser, or quantise again.
    """
    return faulty(part_shapes, inspection, FaultKind.SHAPE, "Loaders refuse the {} or read wrong values.")


@rule("QNT005", "missing-zero-points", Level.ERROR)
def missing_zero_points(inspection: Inspection) -> Iterator[Finding]:
    """A quantised embedding or head lacks the zero points that its config declares.

    ## What it does
    Reports codes without zero points if the config says asymmetric (`"symmetric": false`, `"sym": false`,
    `"zero_point": true`). For MLX, it reports codes without `biases` if the mode is affine.

    ## Why it matters
    The zero point says which code means 0. Loaders fail without it, or they take the middle of the codes. Every value is
    then moved by some steps.

    ## Example
    A head of GPTQ codes with `"sym": false` and without `qzeros`:

        error QNT005: lm_head.qweight has no qzeros, but the config says
        asymmetric. The values of the output head are unknown.

    ## How to fix
    Restore the zero points from the original files, or quantise again. If the codes are symmetric, correct the config.
    """
    return faulty(missing_zero_points, inspection, FaultKind.NO_ZERO_POINTS, "The values of the {} are unknown.")


_WORDS = {
    PairState.EQUAL_VALUES: "only the dequantised values are equal",
    PairState.COPY: "one is a quantised copy of the other",
    PairState.CALIBRATED_COPY: "one is close to a quantised copy of the other",
    PairState.DIFFERENT: "the dequantised values differ",
}


@rule("QNT006", "quantised-tables-differ", Level.ERROR)
def quantised_tables_differ(inspection: Inspection) -> Iterator[Finding]:
    """A tied model has a quantised matrix and a different second one.

    ## What it does
    Reports a tied model whose embedding is quantised, if a part of the stored head differs. The head may be float, may have
    other codes, or may only round to the same values. It also reports a quantised head beside a float embedding, if more
    than quantisation separates the two.

    ## Why it matters
    One parameter cannot have two values. Loaders fail, or they silently drop the head or the codes. Each loader then
    computes different logits from the same files.

    ## Example
    `"tie_word_embeddings": true`, and two separately quantised matrices:

        error QNT006: the quantised lm_head.weight differs from
        model.embed_tokens.weight (the dequantised values differ), but the config
        says tied. Loaders fail, or they lose a matrix.

    ## How to fix
    If a loader reads both matrices, the finding names `tieconv set-tie false`, which makes the config say untied. `tieconv
    retie` refuses, because it would lose the values of the head. transformers reads GPTQ and AWQ codes only inside the
    blocks, and `set-tie false` refuses such a head. Then quantise the model again, without the head or from an untied model.
    """
    # Yield at most one finding. QNT001 reports a quantised head that is a copy of a float embedding.
    tables = tables_of(inspection)
    relation = tables.relation if tables is not None else None
    if relation is None or tables is None or relation.state not in _WORDS or not inspection.config.effective:
        return
    if tables.of(EMBEDDING) is None and relation.state is not PairState.DIFFERENT:
        return
    embedding, head = names_of(inspection)
    kind = "quantised" if tables.of(HEAD) else "float"
    command = remedy(inspection, "set-tie false", *LOADED_UNTIED)
    advice = "" if command else " Quantise the model again, without the head or from an untied model."
    yield quantised_tables_differ.finding(
        f"the {kind} {evidence.listed([head])} differs from {evidence.listed([embedding])} "
        f"({_WORDS[relation.state]}), but {evidence.says(inspection, True)}. Loaders fail, or they lose a matrix.{advice}",
        (embedding, head),
        level=evidence.certain(inspection, Level.ERROR),
        remedy=command,
    )


@rule("QNT007", "quantised-copy", Level.WARNING)
def quantised_copy(inspection: Inspection) -> Iterator[Finding]:
    """A quantised head repeats the quantised embedding, part by part.

    ## What it does
    Reports a quantised head if its scheme and every byte of its parts equal the embedding's. It counts the wasted bytes.
    In an untied model this is a note, because nothing is wrong.

    ## Why it matters
    The second copy costs up to half a gigabyte on disk. In a tied model it can also stop a loader. mlx-lm fails, because
    a tied model has no parameters for the codes of the head.

    ## Example
    `"tie_word_embeddings": true`, and the same codes and scales under both names:

        warning QNT007: every part of the quantised lm_head.weight equals that of
        model.embed_tokens.weight. The copy wastes 1.15 kB.

    ## How to fix
    `tieconv retie` drops every part of the head, and edits the flag and the quantisation config together. It prints which
    loaders load the result, and refuses if transformers 5 would load it wrongly.
    """
    # The proved relation of the head to a quantised embedding.
    pair = tables_of(inspection)
    relation = pair.relation if pair is not None and pair.of(EMBEDDING) is not None else None
    if relation is None or relation.state is not PairState.EQUAL or not relation.bytes_wasted:
        return
    embedding, head = names_of(inspection)
    tied = inspection.config.effective
    untied = "" if tied else f" {evidence.capital(evidence.says(inspection, False))}, so nothing is wrong."
    needed = _mlx_needs_head(inspection)
    needs = " mlx-lm needs the copy." if needed else ""
    yield quantised_copy.finding(
        f"every part of the quantised {evidence.listed([head])} equals that of {evidence.listed([embedding])}. "
        f"The copy wastes {size(relation.bytes_wasted)}.{untied}{needs}",
        (embedding, head),
        level=None if tied and not needed else Level.NOTE,
        remedy=None if needed else remedy(inspection, "retie", "MLX"),
    )


def _prediction(loader: tuple[str, str], inspection: Inspection) -> Prediction:
    from tieconv.loaders.registry import consumer  # few models are quantised

    return consumer(*loader).predict(inspection)


def _mlx_needs_head(inspection: Inspection) -> bool:
    """Return whether mlx-lm loads the model, and refuses the tied model without the head, as for Helium."""
    pair = tables_of(inspection)
    head, embedding = (pair.of(HEAD), pair.of(EMBEDDING)) if pair else (None, None)
    if pair is None or head is None or embedding is None or not head.scheme.startswith("MLX"):
        return False
    names = {part.name for part in head.parts}
    alone = replace(without_tensors(inspection, names), quantised=replace(pair, matrices=(embedding,), relation=None))
    if (config := alone.checkpoint.config) is not None:
        config = replace(config, value={**config.value, evidence.FLAG: True})
        alone = replace(alone, checkpoint=replace(alone.checkpoint, config=config))
    was, comes = (_prediction(MLX, model).outcome for model in (inspection, alone))
    return comes is Outcome.ERROR and was is not Outcome.ERROR


@rule("QNT008", "codes-left-out", Level.ERROR)
def codes_left_out(inspection: Inspection) -> Iterator[Finding]:
    """The config leaves the output head out of the quantisation, but the file stores codes for it.

    ## What it does
    Reports a quantised head that the quantisation config does not include. The entry may be `ignore`,
    `modules_to_not_convert`, `llm_int8_skip_modules`, a false `lm_head`, or the absence of a target.

    ## Why it matters
    A loader builds an ordinary matrix there and finds no tensor for it. It fails, or it fills the matrix with random
    numbers or with uninitialised memory.

    ## Example
    A head that compressed-tensors packed, and a config whose `ignore` lists `lm_head`:

        error QNT008: lm_head.weight is stored as quantised codes, but the
        quantisation config leaves it out (ignore: lm_head). Loaders find no float
        matrix there.

    ## How to fix
    `tieconv set-tie auto` corrects the entry, so that the config lists what the file stores. It does so for
    compressed-tensors, GPTQ, AWQ, bitsandbytes, and FP8 whose list has other modules. Or restore the float matrix from the
    model that was quantised.
    """
    pair = tables_of(inspection)
    head = pair.of(HEAD) if pair else None
    if head is not None and head.config.verdict is Verdict.LEFT_OUT and not head.faults:
        entry = f" ({shown(head.config.entry)})" if head.config.entry else ""
        edits = inspection.quantisation is not None and inspection.quantisation.method in LISTING_METHODS
        edits = edits and head.config.entry != FP8_DEFAULT
        yield codes_left_out.finding(
            f"{evidence.listed([head.name])} is stored as quantised codes, but the quantisation config leaves it out"
            f"{entry}. Loaders find no float matrix there.",
            (head.name,),
            level=evidence.certain(inspection, Level.ERROR),
            remedy=remedies.of_parts(inspection, "set-tie auto") if edits else None,
        )


_FAULTS = (Outcome.ERROR, Outcome.RANDOM, Outcome.DISCARDED)


@rule("QNT009", "float-head-listed", Level.ERROR)
def float_head_listed(inspection: Inspection) -> Iterator[Finding]:
    """The config says that the output head is quantised, but the file stores no codes for it.

    ## What it does
    Reports a head that the quantisation config includes, although it is float or tied to floats. The entry may be a
    target of compressed-tensors, or a true `lm_head`. A list of modules to skip may lack the head.

    ## Why it matters
    Loaders follow the config and build a quantised head. It has no codes then. transformers 5 fails, or computes the logits
    from uninitialised memory. Some loaders of GPTQ and AWQ look for stored codes, and load the floats.

    ## Example
    A tied model quantised by bitsandbytes, with `"llm_int8_skip_modules": ["none"]`:

        error QNT009: the quantisation config includes lm_head.weight
        (llm_int8_skip_modules: none), but no codes are stored for it.
        transformers builds a quantised head and finds no codes: it fails.

    ## How to fix
    `tieconv set-tie auto` lists the head among the modules that are not quantised. It keeps every tensor.
    """
    # Yield at most one finding. TIE003 reports an untied head that is not stored.
    declared, head = inspection.quantisation, inspection.family.output_head
    view = inspection.head.output_head
    absent = view is None or not view.stored
    if declared is None or head is None or inspection.family.tying is not Tying.CAN or not lists_float_head(inspection):
        return
    if absent and not inspection.config.effective:
        return
    entry = f" ({shown(declared.head.entry)})" if declared.head.entry else ""
    answer = _prediction(TRANSFORMERS, inspection)
    fails = answer.outcome in _FAULTS and answer.detail.startswith("transformers")
    follows = f"{evidence.capital(answer.detail)}." if fails else "Some loaders build a quantised head there."
    yield float_head_listed.finding(
        f"the quantisation config includes {evidence.listed([head])}{entry}, but no codes are stored for it. {follows}",
        (head,),
        level=evidence.certain(inspection, Level.ERROR if fails else Level.WARNING),
        remedy=remedies.of_parts(inspection, "set-tie auto") if declared.method in LISTING_METHODS else None,
    )


@rule("QNT010", "codes-not-loaded", Level.WARNING)
def codes_not_loaded(inspection: Inspection) -> Iterator[Finding]:
    """A loader does not load a quantised model, although its files are whole.

    ## What it does
    Asks the measured answers of transformers 5, or of mlx-lm for files of MLX. Reports a tied model with a quantised
    embedding and no head, if the loader does not tie them. Reports an untied model with a quantised head, if the loader
    loses the head without an error.

    ## Why it matters
    A tie names one tensor, and a quantised matrix has several. transformers 5.23 ties the codes of an FP8 embedding, but
    not its scales, and the logits are noise. It fails at the packed embeddings of compressed-tensors. It does not read a
    head of GPTQ codes, and starts it with random numbers.

    ## Example
    A tied model whose embedding is packed by compressed-tensors:

        warning QNT010: transformers 5 does not load lm_head.weight of this
        quantised model. transformers fails to load it: it looks for a tensor named
        .weight in a quantised embedding.

    ## How to fix
    For compressed-tensors, load with `CompressedTensorsConfig(dequantize=True)`. `tieconv untie` stores a second copy of
    the parts. `tieconv inspect --consumers` says what every loader does.
    """
    # Yield at most one finding: an error for a tied model that the loader loads wrongly without a message.
    tables = tables_of(inspection)
    if tables is None or not _is_subject(inspection, tables):
        return
    for matrix in tables.matrices:  # other rules report one that is not read, or that the config leaves out
        if matrix.faults or not matrix.scheme or (matrix.role == HEAD and matrix.config.verdict is Verdict.LEFT_OUT):
            return
    is_mlx = tables.matrices[0].scheme.startswith("MLX")
    loader, label = (MLX, "mlx-lm 0.32") if is_mlx else (TRANSFORMERS, "transformers 5")
    answer = _prediction(loader, inspection)
    silent = answer.outcome in (Outcome.RANDOM, Outcome.DISCARDED)
    if not silent and answer.outcome is not Outcome.ERROR:
        return
    tied = inspection.config.effective
    if not silent and not tied:
        return
    names = names_of(inspection)
    level = evidence.certain(inspection, Level.ERROR if silent and tied else Level.WARNING)
    problem = f"{label} does not load {evidence.listed([names[1]])} of this quantised model"
    yield codes_not_loaded.finding(f"{problem}. {evidence.capital(answer.detail)}.", (names[1],), level=level)


@rule("QNT011", "floats-without-codes", Level.ERROR)
def floats_without_codes(inspection: Inspection) -> Iterator[Finding]:
    """The config says that the layers are quantised, but the files store floats alone.

    ## What it does
    Reports a config of GPTQ, AWQ, bitsandbytes or compressed-tensors beside files without codes and scales. It says nothing
    if the config leaves out other modules than the head, and nothing about other methods.

    ## Why it matters
    Somebody dequantised or merged the model, and the config kept its entry. transformers 5.24 then builds quantised layers.
    They get no values, or no scales. The load ends without an error. The first text then fails, or gives NaN.

    ## Example
    A merged model whose config still has `"quant_method": "gptq"`:

        error QNT011: quantization_config says that gptq quantised the layers, but
        the files store model.layers.0.mlp.up_proj.weight and all other tensors as
        floats. transformers 5.24 builds quantised layers all the same, and then
        fails or computes noise. If the floats are right, remove
        quantization_config.

    ## How to fix
    Remove `quantization_config` from config.json if the floats are the model. Else get the quantised files.
    """
    # Yield at most one finding.
    declared = inspection.quantisation
    if declared is not None and declared.floats:
        finding = floats_without_codes.finding(
            f"{shown(declared.path)} says that {shown(declared.method)} quantised the layers, but the files store "
            f"{shown(declared.floats)} and all other tensors as floats. transformers 5.24 builds quantised layers all "
            f"the same, and then fails or computes noise. If the floats are right, remove {shown(declared.path)}.",
            (declared.floats,),
        )
        config = inspection.checkpoint.config
        yield replace(finding, file=config.name if config else "")


def _is_subject(inspection: Inspection, tables: QuantisedTables) -> bool:
    """Return whether the model is tied without a head, or untied with a quantised head."""
    head = inspection.head.output_head
    if inspection.config.effective:
        return tables.of(EMBEDDING) is not None and tables.of(HEAD) is None and (head is None or not head.stored)
    return tables.of(HEAD) is not None
