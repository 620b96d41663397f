"""One function a use case: paths in, frozen evidence or an executable plan out.

A planner reads of a model on the Hub its headers and what a proof needs; ``execute`` then fetches it into the local
cache, which ``fetch`` does at once.
Where a directory holds the model in two formats, a planner raises `RefusedError`; with ``drop_other_formats`` it plans
for the one that loaders prefer, which is the one that `inspect` reads, and leaves the files of the other out.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from tieconv.checkpoint.inspection import Depth, Inspection
from tieconv.errors import RefusedError, UnreadableError
from tieconv.formats import holds_graphs, read_checkpoint
from tieconv.inspection import inspect_checkpoint
from tieconv.opened import fetched_so_far, inspected, narrowly, on_disk, opened, proved, reading, refuse_far_graphs
from tieconv.sources import is_hub
from tieconv.sources.local import locate, open_files
from tieconv.text import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from tieconv.checkpoint.analysis import Analysis
    from tieconv.checkpoint.checked import CheckedModel, CheckReport
    from tieconv.checkpoint.comparison import Comparison
    from tieconv.checkpoint.exported import ExportOutcome
    from tieconv.checkpoint.graph import GraphOutcome
    from tieconv.checkpoint.inspection import Action
    from tieconv.checkpoint.parity import Parity
    from tieconv.checkpoint.plan import Outcome, Plan
    from tieconv.checkpoint.push import Push
    from tieconv.checkpoint.records import TensorRecord
    from tieconv.consumers.interface import Consumer
    from tieconv.gate.policy import Policy
    from tieconv.onnx.export import PlannedExport
    from tieconv.onnx.graph_planned import PlannedGraphs
    from tieconv.planned import PlannedWrite
    from tieconv.sources.hub_files import Tick


def inspect(
    path: str | Path = ".",
    *,
    depth: Depth | str = Depth.CANDIDATES,
    embed: str | None = None,
    head: str | None = None,
    consumers: str | None = None,
    tick: Tick | None = None,
    ties_only: bool = False,
) -> Inspection:
    """What MODEL stores, what ties, what the config declares, and findings with the next command.

    Of a model on the Hub (``hf://org/name@revision``) headers and samples are fetched, and with ``full`` every byte
    that a proof needs; ``tick(done, total)`` is told of headers that arrive. With ``ties_only`` shards that hold no
    tied name are left out: counts are then of the others, and of the findings those about ties and biases are given.

    ``embed`` and ``head`` name the input and the output embedding of an unknown architecture. ``consumers`` names the
    loaders to predict, such as ``vllm,transformers>=4.57`` or ``all``. Raises `UnreadableError` for input that is
    missing or malformed, `UnknownConsumerError` for a loader that is not known.
    """
    chosen = _consumers(consumers)
    with opened(str(path), tick) as model:
        if ties_only:
            return narrowly(model, Depth(depth), embed, head)
        return inspected(model, Depth(depth), embed, head, chosen)


def _consumers(spec: str | None) -> tuple[Consumer, ...]:
    if spec is None:
        return ()
    from tieconv.consumers.selection import select

    return select(spec)


def _planned(
    make: Callable[[Inspection], Plan],
    path: str | Path,
    depth: Depth,
    embed: str | None,
    head: str | None,
    drop_other_formats: bool,
    fetch: bool,
) -> PlannedWrite:
    """The plan that ``make`` makes of the evidence, and what it takes to carry it out.

    Of a model on the Hub headers are read, and what a proof needs; it is fetched at once with ``fetch``, else when the
    plan is carried out.
    """
    from tieconv.planned import PlannedWrite
    from tieconv.plans.other_formats import alone, dropping

    def near() -> PlannedWrite:
        return _planned(make, on_disk(path, drop_other_formats), depth, embed, head, drop_other_formats, False)

    refuse_graphs(path)
    far = is_hub(str(path))
    if far and fetch:
        return near()
    evidence = proved(str(path), depth, embed, head) if far else inspect(path, depth=depth, embed=embed, head=head)
    if drop_other_formats:
        plan = dropping(make(replace(evidence, checkpoint=alone(evidence.checkpoint))))
    else:
        plan = make(evidence)
    reinspect = partial(inspect, embed=embed, head=head)
    return PlannedWrite(plan, reinspect, near if far else None, evidence.fetched)


def plan_retie(
    path: str | Path = ".",
    *,
    bias: str = "keep",
    survivor: str | None = None,
    force: bool = False,
    max_kl: float | None = None,
    text: str | Path | None = None,
    fold_norm: bool = False,
    embed: str | None = None,
    head: str | None = None,
    drop_other_formats: bool = False,
    fetch: bool = False,
) -> PlannedWrite:
    """The plan that drops the redundant copies of tied tensors and sets the config to tied.

    ``bias`` is ``keep``, ``zero`` or ``strip``; ``survivor`` (``embed``, ``head`` or their ``mean``) with ``force``
    ties tensors that are not bit-equal, with ``max_kl`` where that is proved to move the probabilities by no
    more nats a token, or measured to on a file of ``text``. ``fold_norm`` puts the factors of a head that holds a
    folded norm back into the norm, where that is exact. Raises `RefusedError` where the function would change.
    """
    from tieconv.plans import BiasChoice, Survivor
    from tieconv.plans import plan_retie as make

    choice, kept = BiasChoice(bias), Survivor(survivor) if survivor else None
    maker = partial(make, bias=choice, survivor=kept, force=force)
    if max_kl is not None:
        if kept is None:
            raise ValueError("max_kl needs a survivor")
        if not 0 <= max_kl < inf:
            raise ValueError("max_kl is a number of nats, 0 or more")
        maker = partial(_within, partial(maker, force=True), str(kept), max_kl, _words(text))
        fetch = True  # what it costs is computed from every number of both tables
    if fold_norm:
        if kept is not None:
            raise ValueError("a fold keeps the embedding and the norm: no survivor is chosen")
        maker, fetch = partial(_unfolded, maker), True
    return _planned(maker, path, Depth.CANDIDATES, embed, head, drop_other_formats, fetch)


def _unfolded(make: Callable[..., Plan], evidence: Inspection) -> Plan:
    """The plan that ``make`` makes of the norm that was folded into the head; a plain one where there is one table."""
    from tieconv.analysis.fold import unfold
    from tieconv.analysis.subject import open_subject

    with open_files(evidence.checkpoint.root) as files:
        subject = open_subject(evidence, files)
        return make(evidence, fold=unfold(subject) if subject.head else None)


def _within(
    make: Callable[[Inspection], Plan], survivor: str, max_kl: float, text: str | None, evidence: Inspection
) -> Plan:
    """The plan that ``make`` makes, where what it loses is within ``max_kl``."""
    from tieconv.analysis.permit import permit

    plan = make(evidence)  # refuses at once what no budget allows
    with open_files(evidence.checkpoint.root) as files:
        told = permit(evidence, files, survivor, max_kl, text)
    return replace(plan, notes=(*plan.notes, told))


def plan_untie(
    path: str | Path = ".",
    *,
    bias: str = "keep",
    keep_flag: bool = False,
    embed: str | None = None,
    head: str | None = None,
    drop_other_formats: bool = False,
    fetch: bool = False,
) -> PlannedWrite:
    """The plan that stores the head, and every other tied name, as a tensor of its own.

    ``keep_flag`` leaves the config tied. Raises `RefusedError` where the function would change.
    """
    from tieconv.plans import BiasChoice
    from tieconv.plans import plan_untie as make

    maker = partial(make, bias=BiasChoice(bias), keep_flag=keep_flag)
    return _planned(maker, path, Depth.CANDIDATES, embed, head, drop_other_formats, fetch)


def plan_bias(
    action: str,
    path: str | Path = ".",
    *,
    survivor: str | None = None,
    rows: int | None = None,
    embed: str | None = None,
    head: str | None = None,
    drop_other_formats: bool = False,
    fetch: bool = False,
) -> PlannedWrite:
    """The plan that changes the head bias and leaves the tie as it is.

    ``action`` is ``zero`` (add an all-zero one), ``strip`` (remove an all-zero one), ``unify`` (make two copies one;
    ``survivor``, ``bias`` or ``decoder``, where they differ) or ``resize`` (to ``rows`` entries, else to those of the
    head). Raises `RefusedError` where trained values would be lost.
    """
    from tieconv.checkpoint.inspection import BiasState
    from tieconv.inspection.values import bias_summary
    from tieconv.plans import bias_verbs

    def resize(evidence: Inspection) -> Plan:
        def is_zero(record: TensorRecord) -> bool:
            with reading(evidence.checkpoint) as files:
                return bias_summary(files, record)[0] is BiasState.ZERO

        return bias_verbs.plan_bias_resize(evidence, rows, is_zero)

    makers: dict[str, Callable[[Inspection], Plan]] = {
        "zero": bias_verbs.plan_bias_zero,
        "strip": bias_verbs.plan_bias_strip,
        "unify": partial(bias_verbs.plan_bias_unify, survivor=bias_verbs.BiasSurvivor(survivor) if survivor else None),
        "resize": resize,
    }
    if action not in makers:
        raise ValueError(f"{action!r} is not one of {', '.join(makers)}")
    return _planned(makers[action], path, Depth.CANDIDATES, embed, head, drop_other_formats, fetch)


def plan_set_tie(
    flag: str,
    path: str | Path = ".",
    *,
    force: bool = False,
    embed: str | None = None,
    head: str | None = None,
    drop_other_formats: bool = False,
    fetch: bool = False,
) -> PlannedWrite:
    """The plan that writes ``tie_word_embeddings`` at every level of the config and touches no tensor.

    ``flag`` is ``true``, ``false`` or ``auto`` (what the tensors say). Raises `RefusedError` where a stored tensor
    would be discarded or an absent one start random, unless ``force``, and where the flag changes the forward pass.
    """
    from tieconv.plans.set_tie import Flag
    from tieconv.plans.set_tie import plan_set_tie as make

    maker = partial(make, flag=Flag(flag), force=force)
    return _planned(maker, path, Depth.CANDIDATES, embed, head, drop_other_formats, fetch)


def plan_dedup(
    path: str | Path = ".",
    *,
    embed: str | None = None,
    head: str | None = None,
    drop_other_formats: bool = False,
    fetch: bool = False,
) -> PlannedWrite:
    """The plan that stores every byte-identical group once, as far as loaders restore what is dropped.

    Raises `RefusedError` for a model of which nobody can say what it is.
    """
    from tieconv.plans.dedup import plan_dedup as make

    return _planned(make, path, Depth.FULL, embed, head, drop_other_formats, fetch)


def is_graph(path: str | Path = ".") -> bool:
    """Whether MODEL is an ONNX graph or a directory of graphs, for which there are functions of their own.

    Of the Hub only checkpoints are read.
    """
    return not is_hub(str(path)) and holds_graphs(locate(str(path)))


def plan_graph_dedup(path: str | Path = ".", *, head_form: str = "gemm") -> PlannedGraphs:
    """The plan that stores each matrix of ONNX graphs once, found by content.

    ``head_form`` is ``gemm``, ``fused`` or ``transpose``. Raises `UnsafePathError` for external data outside the
    graph's directory or linked, `RefusedError` where the packages that read graphs are missing.
    """
    from tieconv.checkpoint.graph import HeadForm
    from tieconv.onnx.graph_packages import require_graph_packages

    require_graph_packages()
    from tieconv.onnx.graph_dedup import plan_graph_dedup as make

    return make(locate(str(path)), HeadForm(head_form))


def plan_graph_untie(path: str | Path = ".") -> PlannedGraphs:
    """The plan that gives each head of ONNX graphs which reads the embedding's matrix one of its own.

    Raises as `plan_graph_dedup` does.
    """
    from tieconv.onnx.graph_packages import require_graph_packages

    require_graph_packages()
    from tieconv.onnx.graph_untie import plan_graph_untie as make

    return make(locate(str(path)))


def plan_convert(
    to: str,
    path: str | Path = ".",
    *,
    max_shard_size: int | str = "5GB",
    embed: str | None = None,
    head: str | None = None,
    drop_other_formats: bool = False,
    fetch: bool = False,
) -> PlannedWrite:
    """The plan that stores the model as ``to`` (``safetensors`` or ``torch``) in shards of at most that size.

    Raises `RefusedError` where a file of the directory has the name of one to write, `ValueError` for a size that
    is none.
    """
    from tieconv.plans.convert import Format
    from tieconv.plans.convert import plan_convert as make
    from tieconv.text import parse_size

    limit = max_shard_size if isinstance(max_shard_size, int) else parse_size(max_shard_size)
    maker = partial(make, to=Format(to), max_shard_size=limit)
    return _planned(maker, path, Depth.CANDIDATES, embed, head, drop_other_formats, fetch)


def plan_reindex(
    path: str | Path = ".", *, prune: bool = False, drop_other_formats: bool = False, fetch: bool = False
) -> PlannedWrite:
    """The plan that rebuilds the shard index, of safetensors or torch files, from the headers of the shards.

    ``prune`` leaves the weight files outside the index out.

    Raises `RefusedError` for a model of one file and where one tensor stands in two shards with different bytes,
    `UnreadableError` where a shard is missing.
    """
    from tieconv.formats.shards import read_shards
    from tieconv.inspection.equality import equal
    from tieconv.inspection.views import readable
    from tieconv.planned import PlannedWrite
    from tieconv.plans.other_formats import alone, dropping
    from tieconv.plans.reindex import plan_reindex as make

    def near() -> PlannedWrite:
        there = on_disk(path, drop_other_formats, refuses=False)
        return plan_reindex(there, prune=prune, drop_other_formats=drop_other_formats)

    refuse_graphs(path)
    far = is_hub(str(path))
    if far and fetch:
        return near()
    with opened(str(path)) as (listing, files, commit):

        def same(a: TensorRecord, b: TensorRecord) -> bool:
            reader, (one, two) = readable(files, (a, b))
            return equal(reader, one.range, two.range)

        checkpoint = replace(read_shards(listing, files), revision=commit)
        plan = make(alone(checkpoint) if drop_other_formats else checkpoint, same, prune=prune)
        fetched = fetched_so_far(files)
    return PlannedWrite(dropping(plan) if drop_other_formats else plan, _indexed, near if far else None, fetched)


def _indexed(out: Path) -> Inspection:
    """The evidence about a model whose index was written; `UnreadableError` where it still is not right."""
    evidence = inspect(out, depth=Depth.HEADER)
    faults = ("index.absent", "index.absent-tensor", "index.extra-tensor")
    fault = next((caution for caution in evidence.checkpoint.cautions if caution.code in faults), None)
    if fault is not None:
        raise UnreadableError(fault.message, "", fault.code)
    return evidence


def diff(a: str | Path, b: str | Path, *, embed: str | None = None, head: str | None = None) -> Comparison:
    """What differs between two models, ties, names and layout seen through.

    ``same_function`` is proved over all bytes. Raises `UnreadableError` where one of them cannot be read.
    """
    from tieconv.comparison import compare

    refuse_graphs(a, b)
    with opened(str(a)) as model_a, opened(str(b)) as model_b:
        one, two = (inspected(model, Depth.CANDIDATES, embed, head) for model in (model_a, model_b))
        for evidence in (one, two):
            refuse_far_graphs(evidence.checkpoint)
            if evidence.checkpoint.headers_only:
                raise UnreadableError(
                    f"{evidence.checkpoint.source}: tensor bytes of this format are not read, so nothing can be "
                    "compared",
                    "convert it to safetensors first",
                    "diff.headers-only",
                )
        return compare(one, two, model_a[1], model_b[1])


def refuse_graphs(*paths: str | Path) -> None:
    """Raise `UnreadableError` where a path is an ONNX graph or a directory of graphs: the command takes none."""
    for path in paths:
        if is_graph(path):
            raise UnreadableError(
                f"{shown(os.path.basename(os.path.abspath(path)))} is an ONNX graph, which this command does not take",
                "tieconv inspect, check, dedup and untie take graphs",
                "format.unsupported",
            )


def analyze(
    path: str | Path = ".",
    *,
    text: str | Path | None = None,
    against: str | Path | None = None,
    second: str | Path | None = None,
    maps: bool = False,
    embed: str | None = None,
    head: str | None = None,
) -> Analysis:
    """What embedding and head are to each other, whether they may be tied, and which rows are unused.

    ``against``, an untied model, adds which of its two tables the tied one is like, and ``second``, an untied model of
    another seed, the ceilings of that; ``maps`` adds where the tokens lie in each table.

    Needs numpy alone, and memory is bounded whatever the vocabulary, unless a file of ``text`` is given: then
    transformers runs the model on it. Raises `UnreadableError` where there is no input table of floats, or the model or
    its tokenizer cannot be loaded; `RefusedError` where a text says nothing about the class, and where an alignment
    has no meaning.
    """
    from tieconv.analysis import find, report

    words = _words(text)
    refuse_graphs(path)
    listing = locate(str(on_disk(path, True)))
    against, second = (None if other is None else on_disk(other, True) for other in (against, second))
    with open_files(listing.root) as files:
        checkpoint = read_checkpoint(listing, files)
        evidence = inspect_checkpoint(checkpoint, files, Depth.HEADER, embed=embed, head=head)
        found = find(evidence, files, words)
        if against is None and second is None and not maps:
            return report(found)
        from tieconv.analysis.alignment_models import extended

        return extended(report(found), found, against, second, maps=maps)


def _words(text: str | Path | None) -> str | None:
    from tieconv.sources.texts import read_text

    return None if text is None else read_text(str(text))


def check(
    models: str | Path | Iterable[str | Path] = ".",
    *,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    fail_on: str | None = None,
    consumers: str | None = None,
    depth: Depth | str | None = None,
    embed: str | None = None,
    head: str | None = None,
    settings: str | Path | None = None,
    baseline: str | Path | None = None,
    jobs: int = 1,
) -> CheckReport:
    """The findings of one or several models, those that do not count with their waivers.

    ``select`` and ``ignore`` are rules and prefixes, ``fail_on`` is ``error``, ``warning`` (the default) or
    ``note``; ``settings`` names a `tieconv.toml` or `pyproject.toml`, and none is looked for. With ``jobs`` above 1
    processes share the models. A model that cannot be read is a row with its failure; raises `SettingsError` for a
    rule, a settings file or a baseline that is none.
    """
    from tieconv.gate.assemble import load_settings, make_policy
    from tieconv.gate.settings import Settings

    policy = make_policy(
        load_settings(str(settings)) if settings else Settings(),
        select=select,
        ignore=ignore,
        fail_on=fail_on,
        depth=depth,
        consumers=consumers,
        baseline=str(baseline) if baseline else None,
    )
    several = [models] if isinstance(models, str) or hasattr(models, "__fspath__") else list(models)
    return run_gate(policy, [str(model) for model in several], embed=embed, head=head, jobs=jobs)[0]


def run_gate(
    policy: Policy,
    models: Sequence[str],
    *,
    embed: str | None = None,
    head: str | None = None,
    jobs: int = 1,
    tick: Callable[[CheckedModel], object] = lambda _: None,
    resume: str | None = None,
) -> tuple[CheckReport, dict[str, CheckedModel]]:
    """As `check`, by a policy that is made; also the models by their absolute paths. ``tick`` is told each one.

    ``resume`` names the file of a run: models that it holds are not read again, the others are added.
    """
    from tieconv.gate.run import check_models
    from tieconv.gate.runs import RunFile

    asked = {"depth": str(policy.depth), "for": policy.consumers, "embed": embed, "head": head}
    record = RunFile(resume, asked) if resume else None
    return check_models(_inspecting(policy, embed, head), policy, models, jobs, tick, record)


def expand(models: Iterable[str], *, task: str | None = None, limit: int | None = None) -> tuple[str, ...]:
    """The models, with those that ``hf://org/*`` stands for: of one task, and at most so many, where that is asked."""
    from tieconv.sources.hub_names import is_pattern

    found: list[str] = []
    for model in models:
        if is_pattern(model):
            from tieconv.sources.hub_models import expand as ask

            found += ask(model, task, limit)
        else:
            found.append(model)
    return tuple(dict.fromkeys(found))


def preview_fixes(report: CheckReport) -> tuple[CheckReport, tuple[Outcome | GraphOutcome, ...]]:
    """The plans of the safe remedies of the findings that count; nothing is written."""
    from tieconv.gate.fixes import preview

    previews = [preview(model, report.counts, plan_action) for model in report.models]
    outcomes = tuple(outcome for _, outcomes in previews for outcome in outcomes)
    return replace(report, models=tuple(model for model, _ in previews)), outcomes


def fix(
    policy: Policy,
    report: CheckReport,
    models: dict[str, CheckedModel],
    out: str | None,
    *,
    embed: str | None = None,
    head: str | None = None,
) -> CheckReport:
    """Apply the safe remedies of the findings that count: to ``out`` (OUT/NAME for several models), or in place.

    The report is that of the models as they then are. A write that fails is its model's failure.
    """
    from functools import partial

    from tieconv.gate.fixes import Fixer
    from tieconv.gate.run import examine, outputs

    places = {place: model.source for place, model in models.items()}
    outs = dict(zip(places, outputs(places, out), strict=True)) if out is not None else {}
    if len(outs) > 1:
        os.makedirs(out or "", exist_ok=True)
    look = partial(examine, _inspecting(policy, embed, head))
    fixed = tuple(
        Fixer(
            lambda path, place=place: policy.judge(look(path), place),  # type: ignore[misc]
            report.counts,
            plan_action,
            outs.get(place),
        ).run(model)
        for place, model in models.items()
    )
    return replace(report, models=fixed)


def _inspecting(policy: Policy, embed: str | None, head: str | None) -> Callable[[str], Inspection]:
    from functools import partial

    return partial(inspect, depth=policy.depth, embed=embed, head=head, consumers=policy.consumers)


def plan_action(action: Action) -> PlannedWrite | PlannedGraphs:
    """The plan of a remedy. Raises `RefusedError` as the verb does."""
    if action.verb == "dedup" and is_graph(action.source):
        return _plan_graph_remedy(action.source)
    names = {"--from": "survivor"}
    options: dict[str, Any] = {
        names.get(flag, flag.lstrip("-").replace("-", "_")): value or True for flag, value in action.options
    }
    match action.verb.split():
        case ["retie"]:
            return plan_retie(action.source, **options)
        case ["untie"]:
            return plan_untie(action.source, **options)
        case ["dedup"]:
            return plan_dedup(action.source, **options)
        case ["reindex"]:
            return plan_reindex(action.source, **options)
        case ["convert"]:
            return plan_convert(path=action.source, **options)
        case ["set-tie", flag]:
            return plan_set_tie(flag, action.source, **options)
        case ["bias", verb]:
            return plan_bias(verb, action.source, **options)
    raise ValueError(f"{action.verb!r} is no command with a plan")


def _plan_graph_remedy(source: str) -> PlannedGraphs:
    """The plan of `dedup`, where it changes something and every bit that a session computes stays as it is."""
    planned = plan_graph_dedup(source)
    rounded = next((matrix.rounded for matrix in planned.matrices if matrix.rounded), "")
    if rounded:
        from tieconv.onnx.graph_dedup import fused

        raise RefusedError(f"last bits of F16 may differ on the CPU ({shown(rounded)}); the same bits: {fused(source)}")
    if not any(matrix.done for matrix in planned.matrices):
        left = next((matrix.left for matrix in planned.matrices if matrix.left), "nothing can be stored once")
        raise RefusedError(f"it stays as it is: {shown(left)}")
    return planned


def plan_push(directory: str | Path, target: str, *, message: str | None = None, pull_request: bool = True) -> Push:
    """What of a local model differs from ``target`` (``hf://org/name``), as a pull request with its description.

    The description is the plan as it follows from the two models: what becomes of each tensor and config value, and of
    the files. Bytes are compared where the local cache holds the commit, as it does after a verb on ``hf://``.
    Weight and index files that the repository's model uses and the directory lacks are to be deleted. Raises
    `RefusedError` for what cannot be pushed, `UnreadableError` where either cannot be read.
    """
    from tieconv.checkpoint.push import Push
    from tieconv.comparison.effects import effects
    from tieconv.reporters.push_text import description, title
    from tieconv.sources.hub import guard_push, require
    from tieconv.sources.hub_names import parse

    place = parse(target)
    require()
    from tieconv.sources.hub_files import HubFiles
    from tieconv.sources.hub_push import changes

    guard_push(str(directory), place, pull_request)
    with opened(target) as far, opened(str(directory)) as near:
        if not isinstance(far[1], HubFiles):
            raise UnreadableError(
                "a push needs the network, and HF_HUB_OFFLINE forbids it", "unset HF_HUB_OFFLINE", "hub.offline"
            )
        if near[0].named or near[0].special:
            raise RefusedError(
                f"{shown(directory)} is no directory of regular files", "give the model's directory", "push.directory"
            )
        # What the local cache holds of the commit is compared; what would have to be fetched is not.
        compares = not far[1].costly
        before = inspected(far, Depth.CANDIDATES if compares else Depth.HEADER, None, None)
        after = inspected(near, Depth.CANDIDATES, None, None)
        used = [name for name in (*before.checkpoint.states, *before.checkpoint.others) if name != "config.json"]
        found = changes(far[1].found, near[0], near[1], used)  # type: ignore[arg-type]
        same = set(near[0].entries) - {change.name for change in found}
        told = effects(before, after, (far[1], near[1]), same, compares=compares)
    return Push(
        directory=str(directory),
        repo=place.repo,
        revision=place.revision,
        commit=far[2],
        pull_request=pull_request,
        title=message or title(found),
        description=description(told, found, before, after),
        effects=told,
        changes=found,
    )


def push(planned: Push) -> Push:
    """Upload what `plan_push` planned: a pull request, or a commit. Raises `TieconvError` where the Hub refuses."""
    from tieconv.sources.hub_push import upload

    if not planned.changes:
        return planned
    return replace(planned, executed=True, url=upload(planned, os.path.abspath(planned.directory)))


def parity(onnx: str | Path, model: str | Path = ".", *, provider: str = "auto", reference: str = "auto") -> Parity:
    """How far the graph ``onnx`` agrees with the checkpoint ``model``: weights, structure, logits, cached steps.

    ``provider`` is ``auto``, ``cpu`` or ``cuda``; ``reference`` is the precision of the torch reference, ``float64``,
    ``float32`` or ``auto`` (float64 where it fits into memory). A missing provider gives the verdict ``not_run``.
    Raises `UnreadableError` where the graph or the model cannot be read, `MissingPackageError` without onnxruntime,
    onnx, torch or transformers.
    """
    _check_choice("provider", provider, ("auto", "cpu", "cuda"))
    _check_choice("reference", reference, ("auto", "float64", "float32"))
    from tieconv.reference.packages import require

    require("measuring parity", "onnx,torch", "torch", "transformers", "onnx", "onnx_ir", "onnxruntime")
    from tieconv.onnx.parity.run import run_parity

    refuse_graphs(model)
    evidence = inspect(on_disk(model), depth=Depth.HEADER)

    return run_parity(str(onnx), evidence, provider, reference)


def plan_export(
    path: str | Path = ".",
    *,
    precision: str = "fp32",
    head_form: str = "gemm",
    opset: int | None = None,
    provider: str = "auto",
    parity: bool = True,
) -> PlannedExport:
    """The plan that exports MODEL as an ONNX graph with every tied matrix stored once, on disk and in a session.

    ``precision`` is ``fp32``, ``fp16`` or ``bf16``, ``head_form`` as for `plan_graph_dedup`, ``provider`` where parity
    is measured. Raises `RefusedError` for a model with a finding of level error, `UnreadableError` for what
    transformers does not load, `MissingPackageError` without the packages.
    """
    from tieconv.checkpoint.exported import PRECISIONS
    from tieconv.checkpoint.graph import HeadForm

    _check_choice("precision", precision, tuple(PRECISIONS))
    _check_choice("provider", provider, ("auto", "cpu", "cuda"))
    from tieconv.reference.packages import require

    modules = ("torch", "transformers", "onnx", "onnx_ir", "onnxscript", "onnxruntime")
    require("exporting", "onnx,torch", *modules)
    from tieconv.onnx.export import plan_export as make

    return make(inspect(on_disk(path)), precision, HeadForm(head_form), opset, provider, parity=parity)


def export(
    path: str | Path,
    out: str | Path,
    *,
    precision: str = "fp32",
    head_form: str = "gemm",
    opset: int | None = None,
    provider: str = "auto",
    parity: bool = True,
    overwrite: bool = False,
) -> ExportOutcome:
    """Export MODEL to the directory ``out``, as `plan_export` says, and measure it.

    Where parity failed or was not run, nothing is written: ``executed`` is false and ``parity`` holds the report.
    Raises as `plan_export` does, and a `TieconvError` where the export is not what it has to be.
    """
    planned = plan_export(path, precision=precision, head_form=head_form, opset=opset, provider=provider, parity=parity)
    return planned.execute(out, overwrite=overwrite)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} {value!r} is not one of {', '.join(choices)}")
