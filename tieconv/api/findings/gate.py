"""The gate: rules over many models."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tieconv.api.evidence import inspect

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from tieconv.checkpoint.inspection import Depth, Inspection
    from tieconv.checkpoint.results.checked import CheckedModel, CheckReport
    from tieconv.gate.policy import Policy


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
    return run_gate(policy, expand(map(str, several)), embed=embed, head=head, jobs=jobs)[0]


def find_policy(
    models: Sequence[str],
    *,
    config: str | None = None,
    no_config: bool = False,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    fail_on: str | None = None,
    depth: str | None = None,
    consumers: str | None = None,
    baseline: str | None = None,
    without_baseline: bool = False,
) -> tuple[Policy, tuple[str, ...]]:
    """Return the policy for ``models`` and the settings files that were passed over because they lie in one of them.

    The settings are those of ``config``, none with ``no_config``, else the nearest at or above the working directory.
    """
    from tieconv.gate.assemble import find_settings, load_settings, make_policy
    from tieconv.gate.settings import Settings

    skipped: tuple[str, ...] = ()
    if config:
        settings = load_settings(config)
    elif no_config:
        settings = Settings()
    else:
        settings, skipped = find_settings(models)
    policy = make_policy(
        settings,
        select=select,
        ignore=ignore,
        fail_on=fail_on,
        depth=depth,
        consumers=consumers,
        baseline=baseline,
        without_baseline=without_baseline,
    )
    return policy, skipped


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
    from tieconv.gate.examine import check_models
    from tieconv.gate.run_file import RunFile

    asked = {"depth": str(policy.depth), "for": policy.consumers, "embed": embed, "head": head}
    record = RunFile(resume, asked) if resume else None
    return check_models(inspecting(policy, embed, head), policy, models, jobs, tick, record)


def inspecting(policy: Policy, embed: str | None, head: str | None) -> Callable[[str], Inspection]:
    """What gathers the evidence that the policy judges."""
    return partial(inspect, depth=policy.depth, embed=embed, head=head, consumers=policy.consumers)


def expand(
    models: Iterable[str], *, task: str | None = None, limit: int | None = None, recursive: bool = False
) -> tuple[str, ...]:
    """Return the models that ``models`` stand for, each once.

    ``hf://org/*`` stands for an owner's models: of one ``task``, at most ``limit``, where that is asked. A local
    pattern stands for what it matches, a directory without weights for the models below it; with ``recursive`` so does
    a directory that is a model itself.
    """
    from tieconv.gate.discover import models_of
    from tieconv.sources import is_hub
    from tieconv.sources.hub.repo_path import is_pattern

    expanded: list[str] = []
    for model in models:
        if is_pattern(model):
            from tieconv.sources.hub.owner_models import expand as ask

            expanded += ask(model, task, limit)
        elif is_hub(model):
            expanded.append(model)
        else:
            expanded += models_of(model, recursive=recursive)
    return tuple(dict.fromkeys(expanded))
