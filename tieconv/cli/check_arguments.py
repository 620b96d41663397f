"""The arguments of `tieconv check`, by the names of its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

import click

from tieconv.api import is_collection, is_list, is_pattern
from tieconv.checkpoint.value_type import record

T = TypeVar("T")


@record
class ModelArguments:
    """The models, and how to read them."""

    models: tuple[str, ...]
    embed: str | None
    head: str | None
    jobs: int
    engine: str
    address: str | None
    resume: str | None


@record
class ChoiceArguments:
    """Which models of patterns, prefixes, directories and lists to check."""

    recursive: bool
    task: str | None
    limit: int | None
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    newer_than: str | None


@record
class RuleArguments:
    """Which findings count."""

    select: tuple[str, ...]
    ignore: tuple[str, ...]
    fail_on: str | None
    consumers: str | None
    depth: str | None
    config: str | None
    no_config: bool
    baseline: str | None


@record
class ResultArguments:
    """What to print and write."""

    format: str
    output_file: str | None
    write_baseline: str | None
    fix: bool
    output: str | None
    in_place: bool

    @property
    def writes(self) -> bool:
        """Whether remedies are applied, not only shown."""
        return self.output is not None or self.in_place


@record
class Arguments:
    """The whole command line. Raises `click.UsageError` if options contradict each other."""

    model: ModelArguments
    choice: ChoiceArguments
    rule: RuleArguments
    result: ResultArguments

    def __post_init__(self) -> None:
        model, choice, rule, result = self.model, self.choice, self.rule, self.result
        if result.output is not None and result.in_place:
            raise click.UsageError("-o OUT and --in-place cannot be used together")
        if result.writes and not result.fix:
            raise click.UsageError("-o OUT and --in-place need --fix")
        if rule.config and rule.no_config:
            raise click.UsageError("--config and --no-config cannot be used together")
        if result.fix and result.write_baseline:
            raise click.UsageError(
                "--fix and --write-baseline cannot be used together; fix first, then write the baseline"
            )
        if choice.task and not any(is_pattern(source) or is_list(source) for source in model.models):
            raise click.UsageError("--task needs a pattern such as hf://org/*")
        if choice.limit and not any(map(is_collection, model.models)):
            raise click.UsageError("--limit needs a pattern such as hf://org/* or a prefix such as s3://bucket/models/")
        if model.resume and result.fix:
            raise click.UsageError("--resume and --fix cannot be used together; finish the run first, then fix")


def make_arguments(options: Mapping[str, Any]) -> Arguments:
    """Return the arguments of the options, by their names."""
    return Arguments(
        _taken(ModelArguments, options),
        _taken(ChoiceArguments, options),
        _taken(RuleArguments, options),
        _taken(ResultArguments, options),
    )


def _taken(kind: type[T], options: Mapping[str, Any]) -> T:
    return kind(**{field.name: options[field.name] for field in fields(kind)})  # type: ignore[arg-type]
