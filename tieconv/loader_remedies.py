"""Compute which command changes what the chosen loaders do: plan it, then predict the loaders of the planned model.

A command that its planner refuses is not offered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from tieconv.checkpoint.family import Role
from tieconv.checkpoint.finding import REVIEW_FIRST, Action, Finding, Level, Outcome, Prediction, Remedy
from tieconv.checkpoint.inspection import Depth, Inspection, State
from tieconv.checkpoint.relation.proved import Identical
from tieconv.checkpoint.tie_group import BiasState, Member
from tieconv.checkpoint.write_plan import Plan
from tieconv.checks import evidence, loader_rules, remedies
from tieconv.errors import RefusedError
from tieconv.inspection.ties import consistent
from tieconv.loaders import llama_cpp, predict, transformers5
from tieconv.loaders.evidence import without_tensors
from tieconv.loaders.interface import Consumer
from tieconv.loaders.loaded import Parameter
from tieconv.loaders.registry import CONSUMERS
from tieconv.plans.build import alone, plan_add_format
from tieconv.plans.meaning import KnownValues, described
from tieconv.plans.verbs.bias_verbs import plan_bias_unify
from tieconv.plans.verbs.convert import Format, plan_convert
from tieconv.plans.verbs.reindex import plan_strip_prefix
from tieconv.plans.verbs.resize import Fill, plan_resize
from tieconv.plans.verbs.retie import Survivor, plan_retie
from tieconv.plans.verbs.set_tie import Flag, plan_set_tie
from tieconv.plans.verbs.untie import plan_untie

_FAULTS = (Outcome.ERROR, Outcome.RANDOM, Outcome.DISCARDED)
_RELAYED = {"CON001": Outcome.RANDOM, "CON002": Outcome.DISCARDED, "CON003": Outcome.ERROR, "CON004": None}
"""The rules that relay predictions, with the outcome that they report; ``None``: a head bias that is not used."""
_OF_GGUF = frozenset({"TIE003", "TIE006", "STO006", "STO007"})
"""The rules that report a GGUF file that llama.cpp refuses."""


def helpful(inspection: Inspection, chosen: Iterable[Consumer], findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Return ``findings`` with the commands that help the ``chosen`` loaders, worst first.

    A finding about loaders gets the command that changes their predictions, or says that no command does. Another
    finding loses its command if a loader needs the copy that the command drops. Otherwise one command would drop the
    copy, and the next finding would recommend writing it again. Without a command it becomes a note, unless it is an
    error.
    """
    trial = _Trial(inspection, tuple(chosen), findings)
    needing = trial.needing()
    judged = (
        trial.relayed(finding)
        if finding.rule in _RELAYED and finding.level is not Level.NOTE
        else trial.useful(_spared(finding, needing))
        for finding in findings
    )
    return tuple(sorted(judged, key=lambda finding: list(Level).index(finding.level)))


def accepted(inspection: Inspection, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Return ``findings`` without the `conditional` commands that their planner refuses for this model."""
    trial = _Trial(inspection, (), findings)
    return tuple(
        replace(finding, remedy=None) if finding.action and trial.refuses(finding.action) else finding
        for finding in findings
    )


def with_refusal(inspection: Inspection, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Return ``findings`` with the fault of the first line's loader, if no rule reports it.

    llama.cpp reads a GGUF file. transformers 5 may not build the class, or not know a name.
    """
    if any(finding.rule in _OF_GGUF for finding in findings):
        return findings
    first = llama_cpp.load if inspection.checkpoint.format == "gguf" else transformers5.load
    chosen = tuple(each for each in CONSUMERS if each.load is first)
    asked = replace(inspection, consumers=predict(inspection, chosen))
    refused = (*loader_rules.loader_refuses.find(asked), *loader_rules.random_head.find(asked))
    return helpful(asked, chosen, (*findings, *refused)) if refused else findings


def _spared(finding: Finding, needing: list[Prediction]) -> Finding:
    """Return the finding without its command, as a note, if loaders need what it drops; an error stays an error."""
    action = finding.action
    if not needing or action is None or action.verb not in ("retie", "dedup"):
        return finding
    level = finding.level if finding.level is Level.ERROR else Level.NOTE
    verb = "needs" if len(needing) == 1 else "need"
    needs = f"{_names(needing)} {verb} the copy"
    return replace(finding, level=level, message=_with_sentence(finding, f"{needs}."), remedy=None)


class _Trial:
    """The predictions before and after each command that may help. A command is planned once."""

    def __init__(self, inspection: Inspection, chosen: tuple[Consumer, ...], findings: tuple[Finding, ...]) -> None:
        self.before = inspection.consumers
        predicted = {(entry.name, entry.version) for entry in self.before}
        self.chosen = tuple(each for each in chosen if (each.name, each.version) in predicted)
        depth = Depth.CANDIDATES if inspection.depth is Depth.HEADER else inspection.depth
        # The commands of a guessed pair name it, as a user would.
        self.inspection = replace(inspection, depth=depth, family=replace(inspection.family, named=True))
        self.others = [finding.action for finding in findings if finding.action]
        self.tried: dict[tuple[str, tuple[tuple[str, object], ...]], tuple[Plan, tuple[Prediction, ...]] | None] = {}

    def needing(self) -> list[Prediction]:
        """Return the loaders that load the model, and fail without the identical copies of embedding and head bias."""
        ties = (tie for tie in self.inspection.ties if tie.role in (Role.WORD_EMBEDDING, Role.OUTPUT_BIAS))
        copies = {member.name for tie in ties for member in tie.members if member.state is State.IDENTICAL}
        after = predict(without_tensors(self.inspection, copies), self.chosen) if copies else self.before
        return [self.before[number] for number in self._harmed(after)]

    def _harmed(self, after: tuple[Prediction, ...]) -> list[int]:
        """Return the numbers of the loaders that load the model now, and afterwards fail or do not use a bias."""

        def faults(entry: Prediction) -> int:
            return (entry.outcome in _FAULTS) + bool(entry.dropped)

        pairs = enumerate(zip(self.before, after, strict=True))
        return [number for number, (was, comes) in pairs if faults(comes) > faults(was)]

    def relayed(self, finding: Finding) -> Finding:
        """Return the finding with the command that helps most loaders. It helps more of them than it harms."""
        concerned = [number for number, entry in enumerate(self.before) if _is_about(finding, entry)]
        best, gain, failing, traded = None, 0, list[Prediction](), False
        for remedy in self._candidates(finding.rule):
            tried = self._after(remedy)
            if tried is None:
                continue
            plan, after = tried
            left = [number for number in concerned if _is_faulty(finding, after[number])]
            harmed = self._harmed(after)
            if len(left) == len(concerned):
                continue
            # Each command leaves fewer faults than before, so that no two commands are offered in turn.
            helps = len(concerned) - len(left) - len(harmed)
            traded |= helps <= 0
            if helps > gain:
                review = any(REVIEW_FIRST in note for note in plan.notes)
                best = replace(remedy, safe=remedy.safe and not review)
                gain, failing = helps, [self.before[number] for number in sorted({*left, *harmed})]
        if best is None:
            trade = "tieconv found no command that helps without a new fault in another loader."
            by_hand = "to config.json by hand" in finding.message
            says = "" if by_hand else trade if traded else self._no_help()
            return replace(finding, remedy=None, message=_with_sentence(finding, says))
        do = "does" if len(failing) == 1 else "do"
        says = f"After this command, {_names(failing)} {do} not load it correctly." if failing else ""
        # `check --fix` must not trade one failing loader for another.
        harms = any(entry.outcome not in _FAULTS for entry in failing)
        return replace(
            finding, remedy=replace(best, action=None) if harms else best, message=_with_sentence(finding, says)
        )

    def useful(self, finding: Finding) -> Finding:
        """Return the finding without its command if llama.cpp, the only loader of a GGUF file, fails after it too."""
        if self.inspection.checkpoint.format != "gguf" or finding.remedy is None or finding.action is None:
            return finding
        tried = self._after(finding.remedy)
        fails = tried is not None and all(entry.outcome is Outcome.ERROR for entry in tried[1])
        return replace(finding, remedy=None) if fails else finding

    def _candidates(self, rule: str) -> Iterator[Remedy]:
        inspection = self.inspection
        unify = remedies.bias(inspection, "unify", safe=False)
        ordered = (
            unify if rule == "CON004" else None,
            remedies.retie(inspection, safe=True),
            remedies.untie(inspection, keep_flag=True, safe=True),
            remedies.set_untied(inspection, safe=True),
            remedies.untie(inspection, safe=True),
            remedies.add_format(inspection, safe=True),
            remedies.convert(inspection, "safetensors"),
            unify,
        )
        yield from filter(None, ordered)

    def _no_help(self) -> str:
        """Return that none of the planned commands helps, if every command that a finding names was planned."""
        unread = any(member.state is State.UNREAD for tie in self.inspection.ties for member in tie.members)
        known = all((action.verb, action.options) in self.tried for action in self.others)
        read_only = self.inspection.checkpoint.read_only
        instead = f" {read_only[:1].upper()}{read_only[1:]}." if read_only else ""
        return f"tieconv found no command that helps.{instead}" if known and not unread else ""

    def refuses(self, action: Action) -> bool:
        """Return whether a `conditional` command is refused or changes nothing; one for another model is not tried."""
        # What was not read decides about each command but resize, which refuses the layout of a table.
        members = [member for tie in self.inspection.ties for member in tie.members]
        unread = action.verb != "resize" and any(member.state is State.UNREAD for member in members)
        if not action.conditional or action.source != self.inspection.checkpoint.source or unread:
            return False
        try:
            return _plan(action, self._read(action)).changes_nothing
        except RefusedError:
            return True

    def _after(self, remedy: Remedy) -> tuple[Plan, tuple[Prediction, ...]] | None:
        """Return the plan of a command and the predictions after it; ``None`` if it is refused or changes nothing."""
        action = remedy.action
        assert action is not None
        key = (action.verb, action.options)
        if key not in self.tried:
            inspection = self._read(action)
            try:
                plan = _plan(action, inspection)
            except RefusedError:
                self.tried[key] = None
            else:
                after = _compared(inspection, described(inspection, plan), plan)
                self.tried[key] = None if plan.changes_nothing else (plan, predict(after, self.chosen))
        return self.tried[key]

    def _read(self, action: Action) -> Inspection:
        """Return the evidence that the command uses: without a second format if it drops that."""
        if ("drop_other_formats", True) not in action.options:
            return self.inspection
        return replace(self.inspection, checkpoint=alone(self.inspection.checkpoint))


def _plan(action: Action, inspection: Inspection) -> Plan:
    match action.verb:
        case "resize":
            options = dict(action.options)
            fill = Fill(str(options.get("fill", Fill.ZEROS)))
            return plan_resize(inspection, str(options["to"]), fill, lambda record: b"", ({}, ""))
        case "reindex" if ("strip_prefix", True) in action.options:
            return plan_strip_prefix(inspection)
        case "retie":
            options = dict(action.options)
            survivor = Survivor.EMBED if "survivor" in options else None
            return plan_retie(inspection, survivor=survivor, force="force" in options)
        case "untie":
            return plan_untie(inspection, keep_flag=("keep_flag", True) in action.options)
        case "set-tie true" | "set-tie false" | "set-tie auto":
            flag = Flag(action.verb.rpartition(" ")[2])
            return plan_set_tie(inspection, flag, force="force" in dict(action.options))
        case "convert":
            return plan_convert(inspection, Format.SAFETENSORS)
        case "bias unify":
            return plan_bias_unify(inspection)
    return plan_add_format(inspection)


def _compared(before: Inspection, after: Inspection, plan: Plan) -> Inspection:
    """Return the model after a plan with the relations that are known: no byte of it can be compared yet."""
    values = KnownValues(before, plan)
    known = {
        (evidence.reference(tie), member.name): member.relation
        for tie in before.ties
        for member in tie.members
        if member.stored
    }

    def valued(name: str) -> Parameter:
        return Parameter(name, name)

    def compared(reference: str, member: Member) -> Member:
        if member.state not in (State.UNREAD, State.ALIASED):
            return member
        both = [values.after(valued(name)) for name in (reference, member.name)]
        if both[0] == both[1]:
            aliased = member.state is State.ALIASED and after.checkpoint.format == "torch"
            return member if aliased else replace(member, relation=Identical())
        earlier = known.get((reference, member.name))
        unchanged = earlier and both == [values.before(valued(name)) for name in (reference, member.name)]
        return replace(member, relation=earlier) if earlier and unchanged else member

    ties = []
    for tie in after.ties:
        members = tuple(compared(evidence.reference(tie), member) for member in tie.members)
        ties.append(replace(tie, members=members, consistent=consistent(members, tie.declared)))
    bias, was, head = after.head.output_bias, before.head.output_bias, after.head
    unread = bias is not None and was is not None and bias.state is BiasState.UNREAD
    if bias and was and unread and values.after(valued(bias.name)) == values.before(valued(was.name)):
        head = replace(head, output_bias=replace(bias, state=was.state, max_abs=was.max_abs))
    return replace(after, ties=tuple(ties), head=head)


def _is_about(finding: Finding, prediction: Prediction) -> bool:
    if finding.rule == "CON004":
        return prediction.dropped == finding.tensors
    return prediction.outcome is _RELAYED[finding.rule] and prediction.tensors == finding.tensors


def _is_faulty(finding: Finding, after: Prediction) -> bool:
    """Return whether the loader still fails; for an unused bias, whether it still does not use it."""
    unused = finding.rule == "CON004" and not set(after.dropped).isdisjoint(finding.tensors)
    return unused or after.outcome in (*_FAULTS, Outcome.UNKNOWN)


def _names(predictions: Iterable[Prediction]) -> str:
    return evidence.listed(f"{entry.name} {entry.version}" for entry in predictions)


def _with_sentence(finding: Finding, sentence: str) -> str:
    if not sentence:
        return finding.message
    return f"{finding.message}{'' if finding.message[-1:] == '.' else '.'} {sentence}"
