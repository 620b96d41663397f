"""Render an inspection as text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tieconv.checkpoint import quantised_matrix
from tieconv.checkpoint.family import Family, Knowledge
from tieconv.checkpoint.finding import Finding, Outcome, Prediction
from tieconv.checkpoint.inspection import Inspection, LiveModel, State
from tieconv.checkpoint.tie_group import BiasState, Member, Tie
from tieconv.reporters.text import LEVEL_STYLES, Paint, columns, finding_lines, plain, wrapped
from tieconv.text import count, json_value, listed, shown, size

_SHOWN_TIES = 8
_SHOWN_LEVELS = 16
_SHOWN_FINDINGS = 40
_UNVERIFIED = "unverified: the source was read, the loader was never run"


def render(inspection: Inspection, paint: Paint = plain, width: int | None = None) -> str:
    """Return the report without a newline at the end. Sentences are wrapped to ``width`` columns if it is given."""
    blocks = ["\n".join(answer(inspection, paint, width)), _title(inspection, paint, width)]
    blocks.append("\n".join(columns(_facts(inspection), width=width)))
    blocks.append("\n".join([paint("ties", "heading"), *_ties(inspection, width)]))
    if inspection.quantised is not None:
        rows = quantised_rows(inspection.quantised)
        blocks.append("\n".join([paint("quantised", "heading"), *columns(rows, width=width)]))
    if inspection.duplicates:
        blocks.append("\n".join([paint("duplicates", "heading"), *_duplicates(inspection, width)]))
    if inspection.consumers:
        blocks.append("\n".join([paint("consumers", "heading"), *_consumers(inspection, width)]))
    blocks.append("\n".join([paint("findings", "heading"), *_findings(inspection, paint, width)]))
    return "\n\n".join(blocks)


def _title(inspection: Inspection, paint: Paint, width: int | None) -> str:
    checkpoint, config = inspection.checkpoint, inspection.config
    named = listed(config.architectures, 3) or shown(config.model_type.strip())
    architecture = named or "no architecture declared"
    files = count(len(checkpoint.files), "weight file") if inspection.live is None else "not saved"
    title = f"{paint(shown(checkpoint.source), 'heading')}: {architecture}, {checkpoint.format}, {files}"
    first = "\n".join(wrapped(title, "", width))
    tensors = checkpoint.tensors
    numbers = f"{count(len(tensors), 'tensor')}, {count(checkpoint.parameters, 'parameter')}"
    amount = f"{numbers}, {size(inspection.bytes_stored)} stored"
    if checkpoint.unread:
        left = count(len(checkpoint.unread), "shard")
        return f"{first}\n{amount} in the shards that were read; {left} without a tied name not read"
    wasted = inspection.bytes_stored - inspection.bytes_unique
    alike = inspection.not_compared if inspection.live is None else None
    open_question = alike is not None and alike.counts
    if wasted:
        most = "at most " if open_question else ""
        amount += f", {most}{size(inspection.bytes_unique)} unique ({size(wasted)} stored twice)"
    lines = [*wrapped(amount, "", width)]
    if alike is not None and open_question:
        left = f"Only tied tensors were compared. --depth full compares the other {alike.tensors:,}."
        lines += wrapped(left, "", width)
    return "\n".join([first, *lines])


def _facts(inspection: Inspection) -> Iterator[tuple[str, ...]]:
    yield embedding_row(inspection)
    yield output_row(inspection)
    yield bias_row(inspection)
    declared = inspection.config.declared
    for entry in declared[:_SHOWN_LEVELS]:
        yield "config", shown(entry.path), json_value(entry.value) if entry.present else "absent"
    if len(declared) > _SHOWN_LEVELS:
        yield "config", f"… and {count(len(declared) - _SHOWN_LEVELS, 'more level')} (--json lists them)"
    if inspection.checkpoint.config is None and not inspection.checkpoint.read_only:
        yield "config", "no config.json"
    yield from _distributed(inspection)
    yield from _adapter(inspection)
    yield from _storage(inspection)
    if inspection.live is not None:
        # The groups of one parameter, of one storage, the unread values, and the prediction of a save.
        yield from _groups("one parameter", inspection.live.one_object)
        yield from _groups("one storage", inspection.live.one_storage, "several parameters")
        reasons: dict[str, list[str]] = {}
        for name, reason in inspection.live.unread:
            reasons.setdefault(reason, []).append(name)
        for reason, names in reasons.items():
            yield "not read", count(len(names), "tensor"), shown(reason)
        yield from _save(inspection.live)
    for graph in inspection.checkpoint.graphs[:_SHOWN_TIES]:
        extra = sum(latent.nbytes for latent in graph.latent if latent.extra)
        session = f"{size(graph.session_bytes)} in a session" + (
            f", {size(extra)} of it folded copies" if extra else ""
        )
        yield "graph", shown(graph.file), f"opset {graph.opset}, {count(graph.nodes, 'node')}, {session}"
    if inspection.checkpoint.revision:
        label = "commit" if inspection.checkpoint.source.startswith("hf://") else "listing"
        yield label, inspection.checkpoint.revision
    if inspection.family.knowledge is not Knowledge.TABLE and not inspection.checkpoint.graphs:
        yield "knowledge", _knowledge(inspection.family)


def _knowledge(family: Family) -> str:
    """Return whether tieconv knows the ties of the architecture or guesses them."""
    if family.knowledge is Knowledge.NONE:
        return "none: no tensor has the name of an embedding or a head"
    project = f" (as in {family.convention})" if family.convention else ""
    return f"pattern: tieconv guesses the ties from names{project} and shapes"


def _storage(inspection: Inspection) -> Iterator[tuple[str, ...]]:
    storage = inspection.storage
    if storage is None:
        return
    shared = sum(len(overlap.tensors) for overlap in storage.overlaps)
    parts = [f"{size(storage.stored)} in {count(storage.storages, 'storage')}"]
    if shared:
        parts.append(f"{count(shared, 'tensor')} share bytes")
    if storage.unused:
        parts.append(f"{size(storage.unused)} used by no tensor")
    yield "storage", ", ".join(parts)


def _distributed(inspection: Inspection) -> Iterator[tuple[str, ...]]:
    """Yield which config a training checkpoint was read with, and what it holds beside the model."""
    checkpoint = inspection.checkpoint
    if not checkpoint.table:
        return
    if checkpoint.config is None:
        yield (
            "config",
            "no config.json beside .metadata, or in huggingface/, hf_assets/ or .hf_metadata/: copy it there",
        )
    elif checkpoint.config.name != "config.json":
        yield "config file", shown(checkpoint.config.name)
    if checkpoint.table.training:
        yield "training", f"{count(len(checkpoint.table.training), 'tensor')} of training state, not part of the model"


def _adapter(inspection: Inspection) -> Iterator[tuple[str, ...]]:
    adapter = inspection.checkpoint.adapter
    if adapter is None:
        return
    base, named = inspection.base, shown(adapter.base or "no named base model")
    yield "adapter of", *((named, "not read") if base is None else (shown(base.checkpoint.source), base.config.verdict))
    if adapter.targets:
        yield "changes", listed(adapter.targets)
    if adapter.saved:
        yield "replaces", listed(adapter.saved)


def _ties(inspection: Inspection, width: int | None) -> list[str]:
    ties = inspection.ties or inspection.wrapped_ties
    if not ties:
        return [f"  {_no_ties(inspection)}"]
    rows: list[tuple[str, ...]] = []
    for tie in ties[:_SHOWN_TIES]:
        for index, member in enumerate(tie.members[:_SHOWN_LEVELS]):
            label = str(tie.role).replace("_", " ") if index == 0 else ""
            rows.append((label, shown(member.name), _member(tie, member)))
        if len(tie.members) > _SHOWN_LEVELS:
            rows.append(("", f"… and {count(len(tie.members) - _SHOWN_LEVELS, 'more name')} (--json lists them)"))
    lines = columns(rows, width=width)
    left = len(ties) - _SHOWN_TIES
    return [*lines, f"  … and {count(left, 'more group')} (--json lists them)"] if left > 0 else lines


def _no_ties(inspection: Inspection) -> str:
    """Return why no tied group is listed: the class has none, or the file stores none of its tensors."""
    if inspection.checkpoint.graphs:
        return "none found in the graph"
    names = [name for group in inspection.family.groups for name in (group.canonical, *group.members)]
    if not names:
        return "none: an adapter has none" if inspection.checkpoint.adapter else "none known for this architecture"
    codes = inspection.quantised is not None
    return f"{listed(names, 4)}: {'stored as quantised codes' if codes else 'not stored'}"


def _member(tie: Tie, member: Member) -> str:
    text = str(member.state)
    if member.state is State.ABSENT:
        shared = tie.declared and any(sibling.stored for sibling in tie.members)
        text = "absent, takes the tied values" if shared else "absent"
    elif member.state is State.CANONICAL and member.name != tie.canonical:
        text = "stored in place of the canonical name" if tie.declared else "stored, the others are compared with it"
    elif member.state is not State.CANONICAL:
        from tieconv.checkpoint.phrases import figures  # a tied model compares nothing

        text = ": ".join(part for part in (text, figures(member.relation)) if part)
    if member.loads_as:
        text += f" (loads as {shown(member.loads_as)})"
    return text


def _duplicates(inspection: Inspection, width: int | None) -> list[str]:
    rows = []
    for duplicate in inspection.duplicates[:_SHOWN_TIES]:
        names = ", ".join(shown(name) for name in duplicate.tensors[:3])
        more = f", … ({len(duplicate.tensors)} in all)" if len(duplicate.tensors) > 3 else ""
        rows.append((str(duplicate.kind), size(duplicate.bytes_wasted), names + more))
    left = len(inspection.duplicates) - _SHOWN_TIES
    lines = columns(rows, width=width)
    return [*lines, f"  … and {count(left, 'more group')} (--json lists them)"] if left > 0 else lines


def _consumers(inspection: Inspection, width: int | None) -> Iterator[str]:
    """Yield a line for each answer, with the loaders that give it, wrapped under its start if ``width`` is given."""
    answers: dict[tuple[str, str, str], list[Prediction]] = {}
    for entry in inspection.consumers:
        basis = re.sub(r"^ran [\d.]+$", "all were run", entry.basis) if entry.measured else _UNVERIFIED
        basis = "" if entry.outcome is Outcome.UNKNOWN else f" ({shown(basis)})"
        answers.setdefault((str(entry.outcome), entry.detail, basis), []).append(entry)
    longest = max(len(outcome) for outcome, *_ in answers)
    for (outcome, detail, basis), entries in answers.items():
        versions: dict[str, list[str]] = {}
        for entry in entries:
            versions.setdefault(entry.name, []).append(entry.version)
        names = "; ".join(f"{name} {', '.join(several)}" for name, several in versions.items())
        alone = f" ({shown(entries[0].basis)})" if basis == " (all were run)" and len(entries) == 1 else basis
        yield from wrapped(f"{names}: {detail}{alone}", f"  {outcome.ljust(longest)}  ", width)


def _findings(inspection: Inspection, paint: Paint, width: int | None) -> Iterator[str]:
    if not inspection.findings:
        yield f"  {paint('none', 'good')}"
    for finding in inspection.findings[:_SHOWN_FINDINGS]:
        yield from finding_lines(finding, finding.message, paint, width)
    left = len(inspection.findings) - _SHOWN_FINDINGS
    if left > 0:
        yield f"  … and {count(left, 'more finding')} (--json lists them)"


# The first three lines of an inspection: whether the head is tied, what is wrong, and what to run.
def answer(inspection: Inspection, paint: Paint, width: int | None) -> Iterator[str]:
    """Yield the three lines, wrapped to ``width``. A finding about the files comes before one about loaders."""
    yield from wrapped(inspection.headline, "", width)
    by_level: dict[str, list[Finding]] = {level: [] for level in LEVEL_STYLES}
    for finding in inspection.findings:
        by_level[finding.level].append(finding)
    present = {level: findings for level, findings in by_level.items() if findings}
    if not present:
        yield paint("No findings.", "good")
        yield "Nothing to repair."
        return
    counts = ", ".join(count(len(findings), level) for level, findings in present.items())
    level, worst = next(iter(present.items()))
    about_files = [finding for finding in worst if not finding.rule.startswith("CON")]
    first = ": " if len(inspection.findings) == 1 else "; first: "
    for line in wrapped(f"{counts}{first}{(about_files or worst)[0].message}", "", width):
        yield paint(line, LEVEL_STYLES[level])
    yield from _next(worst, about_files, inspection.findings)


def _next(worst: Sequence[Finding], about_files: Sequence[Finding], findings: Sequence[Finding]) -> Iterator[str]:
    """Yield the line with the first remedy of the worst findings, else the command that explains the first finding.

    If only predictions of loaders are that bad, no explanation helps: it yields the first remedy of any finding. Before
    a command that ties a model whose head is lost, it yields where the head may be.
    """
    repaired = next((finding for finding in (worst if about_files else findings) if finding.remedy), None)
    if repaired is not None and repaired.remedy and repaired.first_step:
        yield f"First: {repaired.first_step}, if the head was trained separately."
        yield f"If the model is tied, run: {repaired.remedy.advice}"
    elif repaired is not None:
        yield f"Run: {repaired.next_step}"
    elif not about_files and str(worst[0].level) == "error":
        if "found no command that helps" not in worst[0].message and " by hand" not in worst[0].message:
            yield "tieconv found no command that helps these loaders."
    else:
        yield f"Run: tieconv explain {(about_files or worst)[0].rule}"


# The rows of an inspection that name the input embedding, the output head and its bias.

Row = tuple[str, ...]


def embedding_row(inspection: Inspection) -> Row:
    """Return the row of the input embedding: its name and shape, or why there is none."""
    embedding = inspection.head.input_embedding
    if embedding:
        stored = f"{_shape(embedding.shape)} {shown(embedding.dtype)}{_operator(inspection, 'embedding')}"
        return "input embedding", shown(embedding.name), stored
    pieces = inspection.head.embedding_pieces
    if pieces:
        rows = sum(piece.shape[0] for piece in pieces)
        whole = f"{_shape((rows, *pieces[0].shape[1:]))} {shown(pieces[0].dtype)}"
        return "input embedding", " + ".join(shown(piece.name) for piece in pieces), f"{whole} in {len(pieces)} tensors"
    if inspection.family.input_embedding and _in_parts(inspection, "embedding"):
        return "input embedding", shown(inspection.family.input_embedding), _parts(inspection, "embedding")
    return ("input embedding", *(_quantised(inspection, "embedding") or (_no_embedding(inspection),)))


def output_row(inspection: Inspection) -> Row:
    """Return the row of the output head: stored, tied to another tensor, or why there is none."""
    output = inspection.head.output_head
    if output is None:
        known = inspection.family.knowledge is Knowledge.TABLE
        absent = ("none: this architecture has none" if known else "none found",)
        if inspection.checkpoint.adapter is not None or not inspection.checkpoint.tensors:
            absent = (_no_embedding(inspection),)
        return ("output head", *(_quantised(inspection, "head") or absent))
    if output.stored:
        stored = f"{_shape(output.shape or ())} {shown(output.dtype)}{_operator(inspection, 'head')}"
        return "output head", shown(output.name), stored
    if _in_parts(inspection, "head"):
        return "output head", shown(output.name), _parts(inspection, "head")
    if output.tied_to:
        return "output head", shown(output.name), f"not stored, tied to {shown(output.tied_to)}"
    tied = any(tie.declared and output.name in {member.name for member in tie.members} for tie in inspection.ties)
    if _in_parts(inspection, "embedding") and inspection.config.effective:
        return "output head", shown(output.name), "not stored; the config ties it to the quantised embedding"
    return "output head", shown(output.name), f"not stored{', nor any tensor tied to it' if tied else ''}"


def bias_row(inspection: Inspection) -> Row:
    """Return the row of the head bias and what it holds."""
    bias = inspection.head.output_bias
    if bias is None or (bias.state is BiasState.ABSENT and not inspection.family.output_biases):
        return "head bias", "none"
    words = {
        BiasState.ABSENT: "not stored",
        BiasState.ZERO: "all zero",
        BiasState.NONZERO: "not zero" + (f", largest magnitude {bias.max_abs:.4g}" if bias.max_abs else ""),
        BiasState.UNREAD: "not read",
    }
    return "head bias", shown(bias.name), words[bias.state]


def _no_embedding(inspection: Inspection) -> str:
    """Return why a report shows no embedding: ``not stored`` if its name is known, else ``none found``."""
    if inspection.checkpoint.adapter is not None:
        return "none: an adapter has none"
    if not inspection.checkpoint.tensors:
        return "none: the file holds no tensors"
    return "not stored" if inspection.family.input_embedding else "none found"


def _operator(inspection: Inspection, role: str) -> str:
    heads = [read for graph in inspection.checkpoint.graphs for read in graph.quantised if read.role == role]
    return f", quantised ({shown(heads[0].operator)})" if heads else ""


def _in_parts(inspection: Inspection, role: str) -> bool:
    """Return whether the matrix in ``role`` is quantised, so that a separate block describes it."""
    return inspection.quantised is not None and inspection.quantised.of(role) is not None


def _parts(inspection: Inspection, role: str) -> str:
    matrix = inspection.quantised.of(role) if inspection.quantised is not None else None
    kind = "parametrised" if matrix is not None and quantised_matrix.parametrised_parts(matrix) else "quantised"
    return f"{kind}, stored in parts"


def _quantised(inspection: Inspection, role: str) -> tuple[str, ...]:
    heads = [read for graph in inspection.checkpoint.graphs for read in graph.quantised if read.role == role]
    relation = inspection.quantised.relation if inspection.quantised else None
    compared = relation is not None and relation.state is not quantised_matrix.PairState.UNREAD
    return (
        (shown(heads[0].name), f"quantised ({shown(heads[0].operator)}){'' if compared else ', not compared'}")
        if heads
        else ()
    )


def _shape(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"


# The rows of an inspection about a module in memory: shared parameters, and what `save_pretrained` does.

_LISTED = 4


def _groups(label: str, groups: tuple[tuple[str, ...], ...], detail: str = "") -> Iterator[Row]:
    for names in groups[:_LISTED]:
        row = label, ", ".join(map(shown, names[:_LISTED])) + (", …" if len(names) > _LISTED else "")
        yield (*row, detail) if detail else row
    if len(groups) > _LISTED:
        yield label, f"… and {count(len(groups) - _LISTED, 'more group')} (JSON lists them)"


def _save(live: LiveModel) -> Iterator[Row]:
    if not live.saves:
        return
    if live.refusal:
        yield "save_pretrained", "fails", live.refusal
        return
    yield "save_pretrained", f"writes {count(len(live.written), 'tensor')}"
    for name, kept_name in live.left_out[:_LISTED]:
        yield "", f"leaves out {shown(name)}", f"one with {shown(kept_name)}" if kept_name else "never saved"
    if len(live.left_out) > _LISTED:
        names = listed([name for name, _ in live.left_out[_LISTED:]], 2)
        yield "", f"leaves out {names}"


# Render the quantised embedding and head of an inspection: each is one matrix in several parts.

_STATES = {
    quantised_matrix.PairState.EQUAL: "equal: the scheme and every byte of every part",
    quantised_matrix.PairState.EQUAL_VALUES: "equal after dequantising: the parts differ, every value is equal",
    quantised_matrix.PairState.COPY: "a quantised copy: every value rounds to its code",
    quantised_matrix.PairState.CALIBRATED_COPY: "a calibrated copy: the error is small, but more than rounding leaves",
    quantised_matrix.PairState.DIFFERENT: "different",
    quantised_matrix.PairState.UNREAD: "not compared",
}


def quantised_rows(tables: quantised_matrix.QuantisedTables) -> Iterator[Row]:
    """Yield the rows of both matrices, their parts, the config, and how the two relate."""
    for matrix in tables.matrices:
        label = "input embedding" if matrix.role == "embedding" else "output head"
        yield label, shown(matrix.name), _described(matrix)
        for part in matrix.parts:
            shape = ", ".join(map(str, part.shape))
            yield "", f"  {part.role.replace('_', ' ')}", f"{shown(part.name)} [{shape}] {shown(part.dtype)}"
        if matrix.config.verdict is not quantised_matrix.Verdict.UNDECIDED:
            verdict = str(matrix.config.verdict).replace("_", " ")
            entry = f" ({shown(matrix.config.entry)})" if matrix.config.entry else ""
            yield "", "  config", f"{verdict}{entry}"
        for fault in matrix.faults:
            yield "", "  broken", fault.reason
        if matrix.uncomputed:
            yield "", "  not read", matrix.uncomputed
    if tables.relation is not None:
        yield "head and embedding", related(tables.relation)


def _described(matrix: quantised_matrix.QuantisedMatrix) -> str:
    shape = f"[{matrix.shape[0]}, {matrix.shape[1]}] " if matrix.shape else ""
    bits = f", {matrix.bits} bits" if matrix.bits else ""
    return f"{shape}{matrix.scheme or 'unknown scheme'}{bits}{_grouped(matrix)}, {size(matrix.nbytes)}"


def _grouped(matrix: quantised_matrix.QuantisedMatrix) -> str:
    if matrix.block is None:
        return ""
    if matrix.shape is not None and matrix.block == matrix.shape:
        return ", one scale"
    if matrix.block[0] > 1:
        return f", blocks of {matrix.block[0]}×{matrix.block[1]}"
    rows = matrix.shape is not None and matrix.block[1] == matrix.shape[1]
    return ", one scale a row" if rows else f", groups of {matrix.block[1]}"


def related(relation: quantised_matrix.PairRelation) -> str:
    """Return the state of two matrices, the parts that differ, and the errors."""
    parts = [_STATES[relation.state]]
    if relation.reason:
        parts.append(relation.reason)
    if relation.differing:
        parts.append(f"differing parts: {listed(name.replace('_', ' ') for name in relation.differing)}")
    if relation.figures is not None and relation.state is not quantised_matrix.PairState.EQUAL_VALUES:
        words = []
        if relation.figures.largest is not None:
            words.append(f"largest error {relation.figures.largest:.3g}")
        if relation.figures.of_bound is not None:
            words.append(f"{relation.figures.of_bound:.3g} of what rounding to nearest allows")
        if relation.figures.rms_steps is not None:
            words.append(f"rms {relation.figures.rms_steps:.3g} steps")
        if relation.figures.relative_rms is not None:
            words.append(f"relative rms {relation.figures.relative_rms:.3g}")
        parts.append(", ".join(words))
    if relation.bytes_wasted:
        parts.append(f"{size(relation.bytes_wasted)} stored twice")
    return "; ".join(parts)
