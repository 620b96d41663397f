"""Replace the remedies of findings, which are commands on files, by statements about the model in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from tieconv.checkpoint.finding import Finding, Remedy
from tieconv.checkpoint.inspection import Inspection, State

_AFTER = 'model.save_pretrained("DIR"), then: '


def in_memory(findings: Iterable[Finding], evidence: Inspection) -> tuple[Finding, ...]:
    """Return the findings with remedies for a model in memory. ``evidence`` has the levels of the tie flag."""
    return tuple(replace(finding, remedy=_statement(finding, evidence)) for finding in findings)


def _statement(finding: Finding, evidence: Inspection) -> Remedy | None:
    remedy = finding.remedy
    if remedy is None:
        return None
    verb = remedy.action.verb if remedy.action is not None else ""
    if verb == "retie":
        return _retie(evidence, remedy)
    if verb.startswith("set-tie ") and verb.split()[1] in ("true", "false"):
        return Remedy("; ".join(_flags(evidence, verb.split()[1].title())), remedy.safe)
    return Remedy(f"{_AFTER}{remedy.command}", remedy.safe)


def _retie(evidence: Inspection, remedy: Remedy) -> Remedy:
    """Return the calls that tie the pair. `tie_weights` needs the flag; a shared parameter needs only the flag."""
    tie = evidence.word_tie
    shared = tie is not None and all(member.state in _SHARED for member in tie.members)
    flags = [] if tie is not None and tie.declared else [*_flags(evidence, "True")]
    calls = [] if shared else ["model.tie_weights()"]
    return Remedy("; ".join([*flags, *calls]), remedy.safe or shared)


_SHARED = (State.CANONICAL, State.ALIASED)


def _flags(evidence: Inspection, value: str) -> Iterator[str]:
    """Yield an assignment for each level of the config with the tie flag."""
    paths = [entry.path for entry in evidence.config.declared] or ["tie_word_embeddings"]
    return (f"model.config.{path} = {value}" for path in paths)
