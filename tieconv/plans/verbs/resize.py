"""Plan one vocabulary size for the config, the embedding, the head and the head bias."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from tieconv.architectures import locate
from tieconv.architectures.class_table import exceptions
from tieconv.architectures.effective_flag import vocabulary_rows, word_sizes
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.value_type import Choice
from tieconv.checkpoint.weight_file import BITS, FLOATS, TensorRecord
from tieconv.checkpoint.write_plan import OutputText, Plan, SetConfig
from tieconv.formats.json_text import set_values
from tieconv.inspection.token_ids import needed_ids
from tieconv.plans.build import build, kept_promises
from tieconv.plans.edits import Edits
from tieconv.plans.guards import again, guard_head, refuse
from tieconv.text import OUT, Hint, count, shown

MeanRow = Callable[[TensorRecord], bytes]
"""Return the mean of a matrix's rows, rounded to its dtype."""


_MOST_MEAN = 64 * 1024 * 1024
"""Limit in bytes for new rows with mean values, because tieconv holds them in memory."""


class Fill(Choice):
    """The values of new rows."""

    ZEROS = "zeros"
    MEAN = "mean"


def plan_resize(
    inspection: Inspection, to: str, fill: Fill, mean_row: MeanRow, generation: tuple[Mapping[str, object], str]
) -> Plan:
    """Return the plan that gives config and tensors one number of rows.

    ``to`` is ``rows`` (the config follows the embedding), ``config`` (the tensors follow the config) or a number.
    ``generation`` is the generation config, and why tieconv could not read it. Raises `RefusedError` if the plan would
    cut off a used row, or if the used rows are unknown. Also raises it if another tensor may follow the vocabulary.
    """
    guard_head(inspection, "resize")
    sizes, tables = word_sizes(inspection), vocabulary_rows(inspection)
    if not sizes or not tables or inspection.checkpoint.config is None:
        unclear = "tieconv cannot tell which config key counts the embedding's rows"
        packed = "the embedding or head is quantised, and resize changes only float tensors"
        absent = "there is no config.json to write the number of rows to"
        why = absent if inspection.checkpoint.config is None else packed if inspection.quantisation else unclear
        hint = Hint("look at the config: ", again(inspection, "inspect"))
        refuse(f"{shown(inspection.checkpoint.source)}: {why}", hint, "resize.unknown")
    target = _target(inspection, to, sizes, tables)
    edits = Edits(inspection.checkpoint)
    notes: list[str] = []
    records = _records(inspection, target)
    before = {*sizes.values(), *(record.shape[_axis(record)] for record in records)} - {target, 0}
    _guard_axes(inspection, records, before)
    for record in records:
        if target < record.shape[_axis(record)]:
            _guard_cut(inspection, record, target, generation)
        notes += _resize(edits, inspection, record, target, fill, mean_row)
    promises = kept_promises(inspection, inspection.ties, edits.after())
    options = {"to": to, "fill": str(fill)}
    document = inspection.checkpoint.config
    assert document is not None  # guarded
    changes = tuple(SetConfig(path, target, size, True) for path, size in sizes.items() if size != target)
    text = set_values(document.text, [(change.path.split("."), target) for change in changes])
    edited = (OutputText(document.name, text), changes) if changes else None
    return build("resize", inspection, edits, None, promises, options=options, notes=tuple(notes), document=edited)


def _target(inspection: Inspection, to: str, sizes: dict[str, int], tables: dict[str, int]) -> int:
    """Return the new number of rows."""
    if to.isdecimal():
        return int(to)
    rows_by_name = tables if to == "rows" else sizes
    different = sorted(set(rows_by_name.values()))
    if len(different) > 1:
        listed = ", ".join(f"{shown(name)} {rows:,}" for name, rows in list(rows_by_name.items())[:4])
        problem = f"{shown(inspection.checkpoint.source)}: the {to if to == 'config' else 'tables'} disagree: {listed}"
        hint = Hint("choose the number of rows: ", again(inspection, "resize", to=different[-1], fill="mean"))
        refuse(problem, hint, "resize.disagree")
    return different[0]


def _records(inspection: Inspection, rows: int) -> list[TensorRecord]:
    """Return every stored tensor with one row per token: the word embedding, the head and the head biases."""
    tensors, head = inspection.checkpoint.tensors, inspection.head
    names = {part.name for part in (head.input_embedding, head.output_head) if part and part.name in tensors}
    if inspection.word_tie:
        names |= {member.name for member in inspection.word_tie.stored_members}
        prefix = next((member for member in inspection.word_tie.members if member.relation.is_row_prefix), None)
        if prefix and inspection.word_tie.declared and tensors[prefix.name].shape[0] < rows:
            problem = (
                f"{shown(prefix.name)} equals the first rows of the embedding, and new rows would make them differ"
            )
            embedding = again(inspection, "retie", survivor="embed", force=True)
            hint = Hint("drop it first, which loses no value: ", embedding)
            refuse(problem, hint, "resize.tied")
        shared = next((member for member in inspection.word_tie.members if member.state is State.ALIASED), None)
        if shared and tensors[shared.name].shape[0] != rows:
            hint = Hint("store these tensors once first: ", again(inspection, "dedup", out=OUT))
            refuse(f"{shown(shared.name)} shares its storage with another name", hint, "resize.shared")
    family = inspection.family
    # A bias that the class lacks still belongs to the head, which a tied model does not store.
    modules = names | {part.name for part in (head.output_head,) if part}
    names |= {f"{name.removesuffix('weight')}bias" for name in modules} & tensors.keys()
    more = exceptions("vocabulary").get(family.architecture, {}).get("tensors", ())
    names |= {bias for member in (*family.output_biases, *more) if (bias := locate(family, member, tensors))}
    return [tensors[name] for name in sorted(names)]


def _axis(record: TensorRecord) -> int:
    """Return the axis with an entry for each token: a bias may be stored as one row."""
    return 1 if len(record.shape) == 2 and record.shape[0] == 1 else 0


def _guard_axes(inspection: Inspection, records: Collection[TensorRecord], before: set[int]) -> None:
    """Refuse if a tensor beside ``records`` has an axis of a size ``before``: it may follow the vocabulary."""
    known = {record.name for record in records}
    for name, record in inspection.checkpoint.tensors.items():
        if name not in known and any(size in before for size in record.shape):
            problem = (
                f"{shown(name)} has an axis of the old vocabulary, and tieconv does not know whether it follows it"
            )
            hint = "resize the model with resize_token_embeddings of transformers, and compare this tensor"
            refuse(problem, hint, "resize.axis", source=shown(inspection.checkpoint.source))


def _resize(
    edits: Edits, inspection: Inspection, record: TensorRecord, rows: int, fill: Fill, mean_row: MeanRow
) -> list[str]:
    axis = _axis(record)
    before = record.shape[axis]
    if before == rows:
        return []
    if record.dtype not in FLOATS or BITS[record.dtype] % 8 or record.stride is not None or len(record.shape) > 2:
        problem = f"{shown(record.name)} has dtype {shown(record.dtype)} and shape {list(record.shape)}"
        hint = "resize it with the program that wrote it"
        refuse(f"{problem}: tieconv cannot resize this layout", hint, "resize.layout")
    shape = (*record.shape[:axis], rows, *record.shape[axis + 1 :])
    averaged = rows > before and fill is Fill.MEAN and len(record.shape) == 2 and axis == 0
    if averaged and (rows - before) * (record.nbytes // before) > _MOST_MEAN:
        problem = f"{shown(record.name)} would get {count(rows - before, 'row')}, too many to fill with a mean"
        refuse(problem, Hint("fill them with zeros: ", again(inspection, "resize", to=rows)), "resize.mean")
    edits.resize(record, shape, mean_row(record) if averaged else None, zero_end=False)
    if rows < before:
        return []
    values = "the mean of its rows" if averaged else "zeros"
    return [f"{shown(record.name)}: {count(rows - before, 'new row')} of {values} are not trained"]


def _guard_cut(
    inspection: Inspection, record: TensorRecord, rows: int, generation: tuple[Mapping[str, object], str]
) -> None:
    """Refuse to cut off a row that a token of the tokenizer or an id of a config uses."""
    used, before, (document, unread) = inspection.tokenizer_rows, record.shape[_axis(record)], generation
    problem = f"{shown(record.name)} would lose {count(before - rows, 'row')}"
    unread = unread if used is not None else inspection.tokenizer_unread
    if used is None or unread:
        hint = Hint("keep the rows and change the config: ", again(inspection, "resize", to=before))
        unread = unread or "no tokenizer shows that the rows are unused"
        refuse(f"{problem}, and {unread}", hint, "resize.no-tokenizer")
    ids = {number: key for key, number in needed_ids(inspection.checkpoint.config_values, document)}
    highest = max((number for number in ids if rows <= number < before), default=-1)
    hint = Hint("keep them: ", again(inspection, "resize", to=max(used, highest + 1)))
    if used > rows:
        refuse(f"{problem}, and the tokenizer has tokens up to row {used - 1:,}", hint, "resize.used-rows")
    if highest >= 0:
        refuse(f"{problem}, and {ids[highest]} needs row {highest:,}", hint, "resize.used-rows")
