"""transformers 4: ties by the flag alone, under the embedding's name, whatever the file holds."""

from __future__ import annotations

from functools import partial

from tieconv.architectures.flag_levels import cannot_build, reading_v4
from tieconv.checkpoint.family import Family, Role, Tying
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.prediction import Outcome
from tieconv.loaders import questions as facts
from tieconv.loaders import release_tables
from tieconv.loaders import weight_files as files
from tieconv.loaders.as_read import as_read, without
from tieconv.loaders.interface import Consumer, Verdict, unknown
from tieconv.loaders.loaded import Cause, Loaded
from tieconv.loaders.questions import Pair
from tieconv.loaders.tie_groups import biases, groups, two_vocabularies
from tieconv.loaders.transformers.load4 import has_class_448, load, ties_alone, unmeasured_448
from tieconv.loaders.transformers.pair_verdict import refused, unset, weights, words
from tieconv.text import shown


def judge(inspection: Inspection, *, version: str) -> Verdict:
    """What transformers 4 makes of the head, the embedding and the names tied to them."""
    loaded = load(inspection, version)
    found = _judge(as_read(inspection, loaded.unread), version, loaded)
    return without(inspection, loaded.loader, found, loaded.unread)


def _judge(inspection: Inspection, version: str, loaded: Loaded) -> Verdict:
    found = files.by_name(inspection, configured=version != "4.48") or refused(loaded, Cause.METADATA)
    found = found or _other_framework(inspection)
    if found is not None:
        return found
    tied, pair = reading_v4(inspection), facts.pair(inspection)
    if tied is None or (version == "4.48" and not has_class_448(inspection.family)):
        return unknown(_not_known(inspection.family, version))
    if pair is None:
        return unknown("the table does not name both the embedding and the head")
    if _listed(inspection.family.model_type, version, "not understood"):
        return unknown(f"what transformers {version} does with {shown(inspection.family.architecture)} is not clear")
    found = refused(loaded, Cause.NAMES)
    if found is None and tied and two_vocabularies(inspection):
        found = unknown("encoder and decoder have vocabularies of their own, and tying them was not measured")
    found = found or refused(loaded, Cause.CONFIG, Cause.SHAPES) or _not_compared(inspection, version, loaded, pair)
    return found or _weights(inspection, loaded, pair)


def _weights(inspection: Inspection, loaded: Loaded, pair: Pair) -> Verdict:
    names, both = words(inspection), biases(inspection)
    half = both is not None and any(member.stored for member in both.members)
    paired = [member.name for member in both.members] if both is not None and half else []
    every = list(dict.fromkeys((*names, pair.embedding, pair.head)))
    found = unset(loaded, names) or weights(inspection, loaded, pair, every)
    return found if found.outcome is Outcome.ERROR else unset(loaded, paired) or found


def _listed(name: str, version: str, table: str) -> bool:
    return name in release_tables.names(f"transformers-{version}", table)


def _other_framework(inspection: Inspection) -> Verdict | None:
    """The verdict for safetensors files that say of themselves that they are of another framework."""
    for file in inspection.checkpoint.files if inspection.checkpoint.format == facts.SAFETENSORS else ():
        written = (file.metadata or {}).get("format")
        if written in ("tf", "flax"):
            return unknown(f"{shown(file.name)} was written by {written}, and transformers 4 needs that to read it")
    return None


def _not_known(family: Family, version: str) -> str:
    if version == "4.48" and unmeasured_448(family):
        part = f" on {shown(family.part.model_type)}" if family.part is not None else ""
        return f"what transformers 4.48 does with {shown(family.architecture)}{part} was not measured"
    return f"transformers {version} has no model of type {shown(family.model_type)}"


def _not_compared(inspection: Inspection, version: str, loaded: Loaded, pair: Pair) -> Verdict | None:
    """The verdict where the answer hangs on what was not compared, or was not measured."""
    if ties_alone(inspection, version) or (reading_v4(inspection) and cannot_build(inspection)):
        return unknown("its head is tied in transformers 4 and not in 5, and was not compared with the embedding")
    if version == "4.48" and _is_unclear(inspection, pair):
        return unknown("what transformers 4.48 does where one of these tables is missing was not understood")
    if loaded.undecided is not None:
        return unknown(f"{shown(loaded.undecided[1])} was not compared with the tensor that it is tied to")
    return None


def _is_unclear(inspection: Inspection, pair: Pair) -> bool:
    """Whether encoder and decoder tables that BART and its kin share on construction are partly missing."""
    tied = bool(reading_v4(inspection)) and inspection.family.tying is not Tying.NEVER
    members = [group.members for group in groups(inspection) if group.role is Role.WORD_EMBEDDING]
    if not tied and _listed(inspection.family.text_type, "4.48", "not understood untied"):
        return any(not found[0].stored for found in members)
    if not inspection.family.bias_is_row:
        return False
    if tied:
        return not pair.has_embedding and bool(facts.stored_bias(inspection))
    return pair.has_head and not all(member.stored for found in members for member in found)


CONSUMERS = (
    Consumer(
        "transformers",
        "4.48",
        since=(4, 45),
        before=(4, 49),
        measured=True,
        cited="transformers 4.48.3, src/transformers/modeling_utils.py, tie_weights and _load_pretrained_model",
        judge=partial(judge, version="4.48"),
    ),
    Consumer(
        "transformers",
        "4.57",
        since=(4, 49),
        before=(5, 0),
        measured=True,
        cited="transformers 4.57.6, src/transformers/modeling_utils.py, tie_weights and _load_pretrained_model",
        judge=partial(judge, version="4.57"),
    ),
)
