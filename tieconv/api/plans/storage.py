"""Plans that store the same tensors otherwise: once, or in another format."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tieconv.api.plans.planning import planned_write
from tieconv.checkpoint.inspection import Depth
from tieconv.plans.verbs import convert, dedup
from tieconv.text import parse_size

if TYPE_CHECKING:
    from pathlib import Path

    from tieconv.planned import PlannedWrite


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
    return planned_write(dedup.plan_dedup, path, Depth.FULL, embed, head, drop_other_formats, fetch)


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
    limit = max_shard_size if isinstance(max_shard_size, int) else parse_size(max_shard_size)
    maker = partial(convert.plan_convert, to=convert.Format(to), max_shard_size=limit)
    return planned_write(maker, path, Depth.CANDIDATES, embed, head, drop_other_formats, fetch)
