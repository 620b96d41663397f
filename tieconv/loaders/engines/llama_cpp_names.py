"""Say which names and shapes of a checkpoint llama.cpp's converter and libllama refuse."""

from __future__ import annotations

from collections.abc import Mapping

from tieconv.architectures.effective_flag import text_config
from tieconv.checkpoint.inspection import Inspection
from tieconv.loaders import release_tables
from tieconv.loaders.evidence.head_pair import Pair, in_file, listed, stored_bias
from tieconv.loaders.evidence.table_rows import row_count, wrong_rows
from tieconv.loaders.evidence.without_tensors import without_tensors
from tieconv.loaders.loaded import Cause, Refusal
from tieconv.text import shown

Treatment = frozenset[str]
"""What the converter and libllama do with the tables of a class. Its entries are the parts of a kind in the data."""

_RELEASE = "llama.cpp"


def converted_class(inspection: Inspection) -> str:
    """Return the class by which the converter chooses: that of the text config, if it names one."""
    name, nested = inspection.family.architecture, inspection.checkpoint.config_values.get("text_config")
    if name in release_tables.by_type(_RELEASE, "classes")["top level"] or not isinstance(nested, Mapping):
        return name
    classes = nested.get("architectures")
    return str(classes[0]) if isinstance(classes, list) and classes else name


def embeddings_in_file(inspection: Inspection, pair: Pair) -> tuple[str, ...]:
    """Return the stored tensors that the converter knows as the embedding. It writes the first and skips the others."""
    more = release_tables.by_type(_RELEASE, "embedding names").get(converted_class(inspection), ())
    names = {pair.embedding, *(in_file(inspection, name) for name in more)}
    return tuple(name for name in inspection.checkpoint.tensors if name in names)


def names_refused(
    inspection: Inspection, treatment: Treatment, pair: Pair, *, stored: bool, dropped: bool
) -> Refusal | None:
    """Return the refusal of a name. An embedding is ``stored``, or not; the converter has ``dropped`` a stored head."""
    bias, head = stored_bias(inspection), shown(pair.head)
    needs_prefix = release_tables.by_type(_RELEASE, "classes")["needs prefix"]
    shortened = stored and pair.embedding != inspection.family.input_embedding
    if "converter refuses both" in treatment or (shortened and converted_class(inspection) in needs_prefix):
        sentence = f"llama.cpp's converter does not know {shown(pair.embedding)} in a model of this class"
        return Refusal(Cause.NAMES, sentence, (pair.embedding,))
    if not stored:
        sentence = f"{shown(pair.embedding)} is not stored, and the architecture needs a token_embd.weight"
        return Refusal(Cause.NAMES, sentence, (pair.embedding,))
    if bias and treatment.isdisjoint({"bias", "needs bias", "ignores bias"}):
        return Refusal(Cause.NAMES, f"the architecture has no tensor for {listed(bias)}", bias)
    if "needs bias" in treatment and not bias:
        names = tuple(in_file(inspection, name) for name in inspection.family.output_biases)
        return Refusal(Cause.NAMES, f"{listed(names)} is not stored, and the architecture needs an output.bias", names)
    if "needs" in treatment and (dropped or not pair.has_head):
        start = f"the converter drops {head} from a tied model" if pair.has_head else f"{head} is not stored"
        return Refusal(Cause.NAMES, f"{start}, and the architecture needs an output.weight", (pair.head,))
    if pair.has_head and not dropped and not treatment.isdisjoint({"converter refuses", "embedding"}):
        return Refusal(Cause.NAMES, f"the architecture has no tensor for {head}", (pair.head,))
    return None


def rows_refused(inspection: Inspection, pair: Pair, embedding: str, *, dropped: bool) -> Refusal | None:
    """Return the refusal of a table in the GGUF without one row for each token. A head may be ``dropped``."""
    rows, head_rows = row_count(inspection, embedding), row_count(inspection, pair.head) if pair.has_head else 0
    if pair.has_head and not dropped and head_rows != rows:
        sentence = f"{shown(pair.head)} has {head_rows} rows, and {shown(embedding)} has {rows}"
        return Refusal(Cause.SHAPES, sentence, (pair.head, embedding))
    multiple = release_tables.by_type(_RELEASE, "vocabulary multiple").get(converted_class(inspection))
    if multiple is None:
        return wrong_rows(without_tensors(inspection, {pair.head} if dropped else ()))
    size = text_config(inspection).get("vocab_size")
    tokens = -(size // -multiple) * multiple if isinstance(size, int) else rows
    if tokens == rows:
        return None
    sentence = f"the converter rounds the vocabulary up to {tokens} tokens, and {shown(embedding)} has {rows} rows"
    return Refusal(Cause.SHAPES, sentence, (embedding,))
