"""The bytes that a write to an object store moves."""

from __future__ import annotations

from typing import Literal

from tieconv.checkpoint.value_type import record


@record
class RemoteTransfer:
    """How a model gets into an object store, and the bytes that are read, uploaded and copied by the server.

    ``method`` is ``server_copy``, or ``upload`` for a model that tieconv writes locally first. ``why`` is then the
    reason.
    """

    method: Literal["server_copy", "upload"]
    bytes_read: int
    bytes_uploaded: int
    bytes_copied: int
    why: str = ""
