"""Every architecture class, every layout, every verb: exact, or refused with its reason."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures import zoo
from tests.reload.layouts import LAYOUTS, Subject
from tests.reload.record import kind
from tests.reload.report import PROPERTY
from tests.reload.walk import Walk

CLASSES = zoo.built()


@pytest.mark.matrix
@pytest.mark.parametrize("name", CLASSES)
def test_every_class(name: str, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """What each verb writes loads as the same function, bit for bit; what it does not write, it refuses with a reason.

    The end of the run prints the counts, and records docs/measured/matrix.json when all classes were judged.
    """
    subject = Subject(name)
    verdicts = {}
    for layout in LAYOUTS:
        verdicts[layout] = Walk(subject, layout, tmp_path / layout).run()
        shutil.rmtree(tmp_path / layout)
    record_property(PROPERTY, {"class": name, "total": len(CLASSES), "layouts": verdicts})
    wrong = [
        f"{layout} {verb}: {verdict}"
        for layout, found in verdicts.items()
        for verb, verdict in found.items()
        if kind(verdict) == "wrong"
    ]
    assert not wrong
