"""Models in object stores, and their addresses: ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``az://container/prefix``."""

from __future__ import annotations

import re

from tieconv.checkpoint.value_type import record
from tieconv.errors import UnreadableError
from tieconv.sources import is_inside
from tieconv.text import shown

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,253}[A-Za-z0-9]")


@record
class ObjectPath:
    """A bucket (a container in Azure), and a key or prefix in it without a slash at either end."""

    scheme: str
    bucket: str
    path: str = ""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}{f'/{self.path}' if self.path else ''}"

    def key(self, name: str) -> str:
        """Return the key of the file ``name`` below the prefix."""
        return f"{self.path}/{name}" if self.path else name


def parse(source: str) -> ObjectPath:
    """Parse an address. One slash at its end is ignored. Raises `UnreadableError` for other text."""
    scheme, _, rest = source.partition("://")
    bucket, _, path = rest.partition("/")
    path = path.removesuffix("/")
    if not _BUCKET.fullmatch(bucket):
        problem = f"{shown(source)} has no valid bucket name"
        raise UnreadableError(problem, f"write {scheme}://BUCKET/PREFIX", "objects.bucket")
    if path and not is_inside(path):
        problem = f"{shown(source)} has an empty name, . or .. in its path"
        raise UnreadableError(problem, f"write {scheme}://BUCKET/PREFIX", "objects.path")
    return ObjectPath(scheme, bucket, path)
