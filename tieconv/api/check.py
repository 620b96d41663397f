"""Run the rules over many models, and decide which findings count."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, BinaryIO

from tieconv.api.evidence import inspect, inspect_in_memory
from tieconv.checkpoint.value_type import strings
from tieconv.gate.settings import (
    ALL,
    Selection,
    Settings,
    cases_by_words as cases_by_words,
    find_cases as find_cases,
    find_rule as find_rule,
    rules as rules,
    selectors,
    without_ellipsis as without_ellipsis,
)
from tieconv.live import is_module

if TYPE_CHECKING:
    from concurrent.futures import Executor
    from pathlib import Path

    from torch.nn import Module

    from tieconv.checkpoint.inspection import Depth, Inspection
    from tieconv.checkpoint.results.checked import CheckedModel, CheckReport
    from tieconv.checks.evidence import Rule
    from tieconv.gate.policy import Policy
    from tieconv.gate.ray_executor import RayExecutor


def explain(message: str) -> dict[str, Mapping[str, Any]]:
    """Return the cases that a message of another program, or a symptom, may have; empty if none is known.

    Each has the keys ``symptom``, ``messages``, ``rules``, ``fix`` and ``guide``, a page of the documentation. Keys are
    the names of docs/cases.md, such as ``C01``. Of several cases, `inspect` shows which one it is.
    """
    return find_cases(message) or cases_by_words(message)


def check(
    models: str | Path | Module | Iterable[str | Path | Module] = ".",
    *,
    select: str | Sequence[str] = (),
    ignore: str | Sequence[str] = (),
    fail_on: str | None = None,
    consumers: str | Sequence[str] | None = None,
    depth: Depth | str | None = None,
    embed: str | None = None,
    head: str | None = None,
    settings: str | Path | None = None,
    baseline: str | Path | None = None,
    jobs: int = 1,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    newer_than: str | None = None,
    executor: Executor | None = None,
    base: str | Path | None = None,
) -> CheckReport:
    """Check one or several models, and return their findings with the waivers.

    ``select`` and ``ignore`` are rules and prefixes. ``fail_on`` is ``error``, ``warning`` (the default) or ``note``.
    ``consumers`` are loaders as `inspect` takes them. ``settings`` is the path of a `tieconv.toml` or `pyproject.toml`;
    without it, no settings file is read. ``jobs`` is the number of processes. For a model that cannot be read, the row
    has the failure. Raises `SettingsError` for an unknown rule, and for an invalid settings file or baseline. Raises
    `ValueError` for no model.

    A model may also be a pattern (``hf://org/*``), or a prefix of an object store (``s3://bucket/models/``).
    ``include``, ``exclude`` and ``newer_than`` filter the models: two lists of patterns, and an age such as ``7d``.

    An ``executor`` of `concurrent.futures` replaces the processes, and keeps ``jobs`` workers busy. Dask's
    ``client.get_executor()`` is one. Its workers need tieconv, and paths that they can read.

    A model may also be a `torch.nn.Module`, which is checked in this process. ``base`` is the base model of adapters.
    """
    policy = find_policy(
        (),
        config=str(settings) if settings else None,
        no_config=not settings,
        select=selectors(select, "select"),
        ignore=selectors(ignore, "ignore"),
        fail_on=fail_on,
        depth=depth,
        consumers=None if consumers is None else ",".join(strings("consumers", consumers)),
        baseline=str(baseline) if baseline else None,
    )
    single = isinstance(models, str) or is_module(models) or not isinstance(models, Iterable)
    several = [models] if single else list(models)  # type: ignore[arg-type]  # an iterable if none of the three
    if not several:
        raise ValueError("models: give at least one model, since a check of none would pass")
    modules = [model for model in several if is_module(model)]
    stored = [os.fspath(model) for model in several if not is_module(model)]  # type: ignore[arg-type]  # no iterable
    paths = expand(stored, include=include, exclude=exclude, newer_than=newer_than)
    named = None if base is None else str(base)
    report = run_gate(policy, paths, embed=embed, head=head, base=named, jobs=jobs, executor=executor)[0]
    if not modules:
        return report
    from tieconv.gate.examine import in_memory_too

    evidence = [inspect_in_memory(model, policy.depth, embed, head, policy.consumers) for model in modules]
    return in_memory_too(report, policy, evidence)


def find_policy(models: Iterable[str], *, config: str | None = None, no_config: bool = False, **choices: Any) -> Policy:
    """Return the policy for ``models`` with the ``choices`` of `make_policy`.

    The settings are those of ``config``; none with ``no_config``. By default they are those in the working directory
    or the closest parent directory in the repository. Those inside a model do not count.
    """
    from tieconv.gate.policy import find_settings, load_settings, make_policy

    settings = load_settings(config) if config else Settings() if no_config else find_settings(models)
    return make_policy(settings, **choices)


def ray_cluster(address: str | None = None) -> RayExecutor:
    """Return an executor on the cluster of Ray at ``address``, for `check`. Leave it with a ``with`` statement.

    The default is that of ``RAY_ADDRESS``, or a new one on this machine. Raises `MissingPackageError` without the
    package ray, and `SettingsError` if the cluster cannot be used.
    """
    from tieconv.gate.ray_executor import RayExecutor

    return RayExecutor(address)


def run_gate(
    policy: Policy,
    models: Sequence[str],
    *,
    embed: str | None = None,
    head: str | None = None,
    base: str | None = None,
    jobs: int = 1,
    tick: Callable[[CheckedModel], object] = lambda _: None,
    resume: str | None = None,
    executor: Executor | None = None,
) -> tuple[CheckReport, dict[str, CheckedModel]]:
    """Check models with a ready policy; also return them by absolute path. Calls ``tick`` with each model.

    ``resume`` is the path of a run file. Models in the file are not read again; the others are added.
    """
    from tieconv.gate.examine import RunFile, check_models

    asked = {"depth": str(policy.depth), "for": policy.consumers, "embed": embed, "head": head}
    asked |= {"base": base} if base else {}
    record = RunFile(resume, asked) if resume else None
    return check_models(inspecting(policy, embed, head, base), policy, models, jobs, tick, record, executor)


def inspecting(
    policy: Policy, embed: str | None, head: str | None, base: str | None = None
) -> Callable[[str], Inspection]:
    """Return the function that collects the evidence for the policy."""
    return partial(_inspect_and_open, depth=policy.depth, embed=embed, head=head, base=base, consumers=policy.consumers)


def _inspect_and_open(path: str, **options: Any) -> Inspection:
    """Return the evidence about a model. Opens each graph in a session: a gate passes none that no session opens."""
    evidence = inspect(path, **options)
    if not evidence.checkpoint.graphs or find_spec("onnxruntime") is None:
        return evidence
    from tieconv.onnx.child import session_findings

    return replace(evidence, findings=(*session_findings(evidence.checkpoint), *evidence.findings))


def read_lists(models: Iterable[str], stdin: BinaryIO) -> tuple[str, ...]:
    """Return the arguments with the models of each list in its place: ``@FILE``, or ``-`` for ``stdin``.

    A list has one model or pattern in a line; lines that start with ``#`` are comments. Raises `UnreadableError` or
    `SettingsError` for a file that cannot be read.
    """
    from tieconv.gate.model_sources import is_list, listed, read_list
    from tieconv.sources.user_files import read_stream

    listed_models: list[str] = []
    for model in models:
        if model == "-":
            listed_models += listed(read_stream(stdin, "the list on standard input"), "the list on standard input")
        elif is_list(model):
            listed_models += read_list(model)
        else:
            listed_models.append(model)
    return tuple(listed_models)


def expand(
    models: Iterable[str],
    *,
    task: str | None = None,
    limit: int | None = None,
    recursive: bool = False,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    newer_than: str | None = None,
) -> tuple[str, ...]:
    """Expand patterns, prefixes and directories to models, each once.

    ``hf://org/*`` expands to the models of an owner; ``task`` and ``limit`` restrict them. ``s3://bucket/models/`` and
    ``s3://bucket/models/llama-*`` expand to models in an object store. A local pattern expands to its matches, and a
    directory without weights to the models below it. With ``recursive`` a directory that is a model also expands to the
    models below it.

    ``include`` and ``exclude`` are patterns for the models. ``newer_than`` is an age (``12h``, ``7d``, ``2w``) or a
    date: only models with a file that was written since then are returned.
    """
    from tieconv.gate.model_sources import Choice, chosen_models, parse_age

    since = None if newer_than is None else parse_age(newer_than)
    return chosen_models(models, Choice(task, limit, recursive, tuple(include), tuple(exclude), since))


def select_rules(words: Sequence[str], select: Sequence[str] = ()) -> tuple[Rule, ...]:
    """Return the rules that codes or code prefixes select; without any, all rules. Raises `SettingsError`."""
    selection = Selection((*selectors(words, "RULES"), *selectors(select, "--select")) or (ALL,))
    return tuple(rule for rule in rules() if selection.runs(rule.code))


def write_baseline(path: str, policy: Policy, report: CheckReport, models: dict[str, CheckedModel]) -> int:
    """Write the gate's findings to the baseline at ``path`` and return the number of its entries.

    A model that could not be read keeps its entries. Raises `SettingsError` if no model could be read.
    """
    from tieconv.errors import SettingsError
    from tieconv.gate.policy import load_baseline
    from tieconv.sources.user_files import write_text
    from tieconv.text import shown

    read = {location: model for location, model in models.items() if model.failure is None}
    failed = next((model for model in report.models if model.failure is not None), None)
    if failed is not None and failed.failure is not None and not read:
        message, source = failed.failure.message, shown(failed.source)
        problem = f"{shown(path)} was not written: {message if source in message else f'{source}: {message}'}"
        hint = "a baseline needs a model that can be read: repair this one, or name others"
        raise SettingsError(problem, hint, "baseline.unreadable-model")
    old = load_baseline(path) if os.path.lexists(path) and os.path.getsize(path) else None
    write_text(path, policy.debt(read, path, old))
    return len(load_baseline(path).entries)
