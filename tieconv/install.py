"""Write the command that installs an extra, for README, docs and error hints."""

from __future__ import annotations

import json
import os
from functools import cache
from typing import Any

from tieconv.text import shell_word
from tieconv.version import PUBLISHED, REPOSITORY, VERSION

_PLACEHOLDER = "/OWNER/"


def documented_requirement(*extras: str) -> str:
    """Return the pip requirement for the docs: a release, the repository, or a clone of it."""
    name = f"tieconv{_brackets(extras)}"
    if PUBLISHED:
        return name
    return f".{_brackets(extras)}" if _PLACEHOLDER in REPOSITORY else f"{name} @ git+{REPOSITORY}"


def documentation(page: str) -> str:
    """Return where to read a page of the docs: its address, or its path in a clone."""
    return (
        f"docs/{page} in a clone of tieconv"
        if _PLACEHOLDER in REPOSITORY
        else f"{REPOSITORY}/blob/v{VERSION}/docs/{page}"
    )


def install_command(*extras: str, upgrade: bool = False) -> str:
    """Return the pip command that adds ``extras`` to this installation, from the same origin."""
    editable, requirement = _origin(extras)
    words = ["pip", "install", *["--upgrade"] * upgrade, *["-e"] * editable]
    return f"{' '.join(words)} {shell_word(requirement)}"


def _origin(extras: tuple[str, ...]) -> tuple[bool, str]:
    """Return whether the installation is editable, and its requirement, from pip's record (PEP 610)."""
    record = _direct_url()
    if record is None:
        return False, documented_requirement(*extras)
    address = str(record.get("url", ""))
    if not address:
        return False, f"tieconv{_brackets(extras)}"
    from urllib.parse import unquote, urlsplit  # only some messages name the origin

    parts = urlsplit(address)
    if parts.scheme == "file":
        path = unquote(parts.path)
        if not os.path.exists(path):
            return False, documented_requirement(*extras)
        return bool(record.get("dir_info", {}).get("editable")), f"{path}{_brackets(extras)}"
    version = record.get("vcs_info")
    source = f"{version['vcs']}+{address}@{version['commit_id']}" if version else address
    return False, f"tieconv{_brackets(extras)} @ {source}"


@cache
def _direct_url() -> dict[str, Any] | None:
    """Return pip's record of the origin, empty for a package index; ``None`` if tieconv is not installed."""
    from importlib.metadata import PackageNotFoundError, distribution  # a fifth of the time of `check`

    try:
        record = json.loads(distribution("tieconv").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        return None
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def _brackets(extras: tuple[str, ...]) -> str:
    return f"[{','.join(extras)}]" if extras else ""
