"""Say when tieconv makes no claim about transformers 4."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.architectures.effective_flag import cannot_build, reading_v4
from tieconv.checkpoint.family import Family, Role, Tying
from tieconv.checkpoint.inspection import Inspection
from tieconv.loaders import release_tables
from tieconv.loaders.evidence.head_pair import head_pair, stored_bias
from tieconv.loaders.evidence.tie_groups import groups, two_vocabularies
from tieconv.loaders.evidence.unclear import SAFETENSORS, of_type
from tieconv.loaders.loaded import Cause, Refusal, unknown
from tieconv.text import shown


def unmeasured_448(family: Family) -> bool:
    """Return whether a class was not measured with transformers 4.48, although that release may have its type."""
    return family.unlisted or (family.part is not None and not family.part.usual)


def has_class_448(family: Family) -> bool:
    """Return whether transformers 4.48 has the class and the class was measured."""
    return not unmeasured_448(family) and family.model_type in release_tables.names("transformers-4.48", "types")


def ties_alone(inspection: Inspection, version: str) -> bool:
    """Return whether the flag ties the head in this release and not in transformers 5."""
    listed = inspection.family.text_class in release_tables.names(f"transformers-{version}", "head tied here alone")
    return listed and bool(reading_v4(inspection))


def unclear_model(inspection: Inspection, version: str) -> Iterator[Refusal]:
    """Yield why tieconv cannot tell how the release loads such a model, whatever its names are."""
    family = inspection.family
    for file in inspection.checkpoint.files if inspection.checkpoint.format == SAFETENSORS else ():
        framework = (file.metadata or {}).get("format")
        if framework in ("tf", "flax"):
            yield unknown(
                f"{shown(file.name)} was written by {framework}, and transformers 4 needs {framework} to read it"
            )
    if reading_v4(inspection) is None or (version == "4.48" and not has_class_448(family)):
        yield _without_class(inspection, version)
    if head_pair(inspection) is None:
        yield unknown("the architecture table does not name both the embedding and the head")
    if _listed(family.model_type, version, "not understood"):
        yield unknown(f"tieconv cannot explain how transformers {version} loads {shown(family.architecture)}")


def unclear_vocabularies(inspection: Inspection) -> Iterator[Refusal]:
    """Yield a refusal for tied tables of two vocabularies, which were not measured."""
    if reading_v4(inspection) and two_vocabularies(inspection):
        yield unknown("encoder and decoder have separate vocabularies, and tieconv has no measurement of tying them")


def unclear_tables(inspection: Inspection, version: str) -> Iterator[Refusal]:
    """Yield why the answer depends on tensors that were not compared, or on a case that was not measured."""
    if ties_alone(inspection, version) or (reading_v4(inspection) and cannot_build(inspection)):
        yield unknown("only transformers 4 ties the head, and tieconv did not compare it with the embedding")
    if version == "4.48" and _lacks_tables(inspection):
        yield unknown("tieconv cannot explain how transformers 4.48 loads these tables if one is missing")


def _without_class(inspection: Inspection, version: str) -> Refusal:
    """Return the refusal of a class that the release lacks, or that was not measured with it."""
    family = inspection.family
    if version == "4.48" and unmeasured_448(family):
        part = f" with a text part of type {shown(family.part.model_type)}" if family.part is not None else ""
        return unknown(f"tieconv has no measurement of transformers 4.48 for {shown(family.architecture)}{part}")
    sentence = f"transformers {version} has no model {of_type(family.model_type)}"
    if "auto_map" in inspection.checkpoint.config_values:
        return unknown(f"{sentence}, and the model has code that tieconv does not run")
    return Refusal(Cause.CLASS, sentence)


def _lacks_tables(inspection: Inspection) -> bool:
    """Return whether some of the tables are missing that BART-like classes share on construction."""
    pair = head_pair(inspection)
    tied = bool(reading_v4(inspection)) and inspection.family.tying is not Tying.NEVER
    tables = [group.members for group in groups(inspection) if group.role is Role.WORD_EMBEDDING]
    if not tied and _listed(inspection.family.text_type, "4.48", "not understood untied"):
        return any(not members[0].stored for members in tables)
    if not inspection.family.bias_is_row or pair is None:
        return False
    if tied:
        return not pair.has_embedding and bool(stored_bias(inspection))
    return pair.has_head and not all(member.stored for members in tables for member in members)


def _listed(name: str, version: str, table: str) -> bool:
    return name in release_tables.names(f"transformers-{version}", table)
