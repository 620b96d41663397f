"""Watch the ties of a module: names of one parameter at the start must stay one parameter, also in files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Depth, Inspection, LiveModel, State
from tieconv.checkpoint.value_type import record
from tieconv.checks.evidence import declared_tied, disputed, listed
from tieconv.live import is_peft, unwrapped
from tieconv.live.live_tensors import LiveTensor, capture, elements, equal_values, grouped
from tieconv.live.module_inspection import base_tensors, inspect_module
from tieconv.opened import inspected, opened
from tieconv.text import shown

WATCHED = ("TIE001", "TIE002", "TIE003", "TIE005", "TIE006", "TIE010", "TIE011", "BIA002", "BIA003", "HED002", "PEF001")
"""Rules about a tie that is broken. The others are about files, or about a config that loaders read differently."""


@record
class TieFault:
    """A broken tie. ``rule`` is the code of the rule, empty if no rule is about it. ``hint`` is the next step."""

    message: str
    hint: str
    rule: str = ""
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}" if self.rule else self.message


class TieWatch:
    """The names of a module that are one parameter when the watch begins.

    A check compares identities; it reads values only of tied names that are two parameters. On sharded tensors it reads
    the local shards, and never gathers.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        tensors = [tensor for tensor in watched_tensors(model) if 0 not in tensor.shape or tensor.unread]
        self._groups = grouped((elements(tensor), tensor.name) for tensor in tensors)

    def faults(self) -> tuple[TieFault, ...]:
        """Return what is wrong with the model in memory now."""
        lost = tuple(self.lost())
        reported = {name for fault in lost for name in fault.names}
        evidence = inspect_module(self.model, Depth.HEADER)
        base = evidence.base or evidence
        separate = [fault for fault in _separate(base, watched_tensors(self.model)) if reported.isdisjoint(fault.names)]
        findings = [finding for finding in (*evidence.findings, *base.findings) if _counts(finding)]
        broken = (_fault(finding) for finding in findings if reported.isdisjoint(finding.tensors))
        quoted = any(finding.rule == "HED002" for finding in findings)
        shared = _several(evidence.live, quoted) if evidence.live is not None else ()
        return (*lost, *separate, *dict.fromkeys(broken), *shared)

    def lost(self) -> Iterator[TieFault]:
        """Yield the groups that are no longer one parameter. Compares identities only, unless a tie was lost."""
        now = {tensor.name: tensor for tensor in watched_tensors(self.model)}
        for names in self._groups:
            members = [now[name] for name in sorted(names) if name in now]
            if len({elements(tensor) for tensor in members}) > 1:
                start = f"{listed([tensor.name for tensor in members])} were one parameter."
                yield _with_values(f"{start} They are {len(members)} parameters now.", members, _RETIE)

    def saved_faults(self, directory: str | os.PathLike[str]) -> tuple[TieFault, ...]:
        """Return what is wrong with the files in ``directory``, by themselves and beside the model in memory.

        Raises `UnreadableError` if the directory holds no model that tieconv can read.
        """
        path = os.fspath(directory)
        with opened(path) as opened_model:
            saved = inspected(opened_model, Depth.HEADER, None, None)
            if any(tie.declared and tie.consistent is None for tie in saved.ties):
                saved = inspected(opened_model, Depth.CANDIDATES, None, None)
        if saved.checkpoint.adapter is not None:
            return ()
        missing = tuple(_left_out(saved, watched_tensors(self.model), path))
        reported = {name for fault in missing for name in fault.names}
        findings = [entry for entry in saved.findings if _counts(entry) and not reported & {*entry.tensors}]
        faults = map(_fault, findings)
        return (*missing, *(replace(fault, message=f"{shown(path)}: {fault.message}") for fault in faults))


def watched_tensors(model: Any) -> tuple[LiveTensor, ...]:
    """Return the tensors of the model, those of PEFT's base model under their own names."""
    inner = unwrapped(model)
    return base_tensors(inner) if is_peft(inner) else capture(inner)


def _counts(finding: Finding) -> bool:
    return finding.rule in WATCHED and finding.level is not Level.NOTE


def _fault(finding: Finding) -> TieFault:
    hint = finding.remedy.command if finding.remedy else f"tieconv explain {finding.rule}"
    return TieFault(finding.message, hint, finding.rule, finding.tensors)


def _with_values(start: str, members: list[LiveTensor], hint: str) -> TieFault:
    """Return the fault of names that are several parameters. Equal values: training has not changed them yet."""
    same = _same_values(members)
    names = tuple(member.name for member in members)
    if same is False:
        untied = f"{hint}, or set model.config.tie_word_embeddings = False"
        return TieFault(f"{start} Their values differ.", untied, "TIE001", names)
    values = "Their values are still equal." if same else "tieconv did not read all their values."
    return TieFault(f"{start} {values}", hint, "TIE002", names)


_TIE = "call model.tie_weights() before the model is trained, sharded or quantised"
_RETIE = "call model.tie_weights() after the step that replaced one of them"


def _same_values(members: list[LiveTensor]) -> bool | None:
    first, *rest = ((entry.shard if entry.shard is not None else entry.bytes_of) for entry in members)
    if first is None or any(entry is None for entry in rest):
        return None
    if not all(equal_values(first, entry) for entry in rest):
        return False
    return None if any(entry.unread for entry in members) else True


def _separate(evidence: Inspection, tensors: Iterable[LiveTensor]) -> Iterator[TieFault]:
    """Yield the declared ties that are several parameters in memory.

    Leaves out those on the meta device: accelerate moves the values of one parameter there under two identities.
    """
    by_name = {tensor.name: tensor for tensor in tensors}
    for tie in () if disputed(evidence) else declared_tied(evidence):
        stored = [member.name for member in tie.members if member.state in (State.CANONICAL, State.UNREAD)]
        live = (_live_name(name, evidence, by_name) for name in stored)
        members = [by_name[name] for name in live if name in by_name]
        if len({elements(member) for member in members}) > 1 and not any(member.on_meta for member in members):
            names = tuple(member.name for member in members)
            start = f"{listed(names)} are {len(names)} parameters, but the config says tied."
            yield _with_values(start, members, _TIE)


def _several(live: LiveModel, refusal_is_quoted: bool) -> Iterator[TieFault]:
    for names in live.one_storage:
        yield TieFault(
            f"{listed(names)} share their values, but they are {len(names)} parameters. "
            "An optimizer updates each of them.",
            "call model.tie_weights(), or assign one parameter to both modules",
            "",
            names,
        )
    if live.refusal and not refusal_is_quoted:
        yield TieFault(f"save_pretrained fails: {live.refusal}", "list the names in _tied_weights_keys")


def _left_out(saved: Inspection, tensors: Iterable[LiveTensor], path: str) -> Iterator[TieFault]:
    """Yield the tied names that the files lack although the model in memory has them as separate parameters."""
    by_name = {tensor.name: tensor for tensor in tensors}
    for tie in saved.ties:
        stored = next((member.name for member in tie.members if member.state is State.CANONICAL), "")
        reference = by_name.get(_live_name(stored, saved, by_name))
        for member in tie.members:
            live = by_name.get(member.loads_as or member.name)
            if member.stored or live is None or reference is None or elements(live) == elements(reference):
                continue
            if _same_values([reference, live]) and tie.declared:
                continue  # a loader ties them again: nothing is lost
            yield TieFault(
                f"{shown(path)} lacks {shown(member.name)}, which is a separate parameter of the model in memory. "
                "Its values are not saved.",
                "save it again with model.save_pretrained(DIR) before the process ends",
                "TIE003",
                (member.name,),
            )


def _live_name(stored: str, saved: Inspection, by_name: dict[str, LiveTensor]) -> str:
    renamed = dict(saved.family.renames).get(stored, stored)
    return stored if stored in by_name else renamed
