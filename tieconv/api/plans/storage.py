"""Plan to store the same tensors once, or in another format."""

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
    """Plan to store each group of byte-identical tensors once, only where every loader restores the dropped names.

    Raises `RefusedError` if tieconv cannot tell which files are the model.
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
    """Plan to store the model as ``to`` (``safetensors`` or ``torch``) in shards of at most ``max_shard_size``.

    The size is a number of bytes or a text such as ``5GB``. Raises `ValueError` for an invalid size. Raises
    `RefusedError` if a file in the directory has the name of a file to write.
    """
    limit = max_shard_size if isinstance(max_shard_size, int) else parse_size(max_shard_size)
    maker = partial(convert.plan_convert, to=convert.Format(to), max_shard_size=limit)
    return planned_write(maker, path, Depth.CANDIDATES, embed, head, drop_other_formats, fetch, bare=True)
