"""Run the session of an embedding and that of a decoder as one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from tieconv.checkpoint.value_type import record
from tieconv.onnx.session.open_ import Session


@record
class Chained(Session):
    """A decoder's session, and the session that makes its input ``between`` from the input ``ids``."""

    first: Session
    ids: str
    between: str

    def run(self, feeds: Mapping[str, Any], outputs: Collection[str], host: str) -> dict[str, Any]:
        """Return the decoder's outputs. The embedding runs only if ``feeds`` has token ids."""
        values = dict(feeds)
        if self.ids in values:
            values |= self.first.run({self.ids: values.pop(self.ids)}, [self.between], "")
        return Session.run(self, values, outputs, host)
