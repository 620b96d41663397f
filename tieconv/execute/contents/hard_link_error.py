"""Explain why a file system does not hard-link a file."""

from __future__ import annotations

import errno

from tieconv.errors import RefusedError, TieconvError
from tieconv.text import shown

_NO_LINKS = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.EACCES, errno.ENOSYS})


def not_linkable(name: str, error: TieconvError) -> TieconvError:
    """Return the refusal if the file system has no hard links, else ``error``."""
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.errno in _NO_LINKS:
        reason = (cause.strerror or "").lower()
        return RefusedError(f"tieconv cannot hard-link {shown(name)}: {reason}", "leave out --hardlink", "out.hardlink")
    return error
