"""`tieconv push` on a terminal: it asks, and only a yes pushes."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import children
from tests.hub.conftest import TOKEN
from tests.hub.stub import Hub
from tests.patience import HANGS

Typed = Callable[..., tuple[int, str]]


@pytest.fixture
def typed(hub: Hub, environment: dict[str, str], models: Path, tmp_path: Path) -> Typed:
    """``tieconv push`` of another model on a terminal of its own, with these bytes typed at the question."""
    hub.add("org/m", models / "llama-tied")

    def call(answer: bytes, *words: str, question: bytes = b"push this? [y/N]:") -> tuple[int, str]:
        master, slave = pty.openpty()
        process = children.start(
            [sys.executable, "-P", "-m", "tieconv", "push", models / "llama-untied", "hf://org/m", *words],
            env={**environment, "HF_TOKEN": TOKEN, "TERM": "xterm"},
            cwd=tmp_path,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            prepare=_control,
        )
        os.close(slave)
        shown = b""
        try:
            again = b""
            while block := _read(master, again):
                shown += block
                if answer and question in shown:
                    os.write(master, answer)
                    # Python misses a signal between its prompt and its read; whoever types ^C types it again.
                    answer, again = b"", answer if answer == b"\x03" else b""
            return process.wait(HANGS), shown.decode()
        finally:
            process.kill()
            process.wait()
            os.close(master)

    return call


def _control() -> None:
    """Make stdin the controlling terminal, so that ^C is a signal, which a background job would ignore."""
    children.heed_signals()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _read(master: int, again: bytes) -> bytes:
    """What is said next; ``again`` is typed once a second until then."""
    for _ in range(int(HANGS)):
        if select.select([master], [], [], 1)[0]:
            break
        if again:
            os.write(master, again)
    else:
        raise AssertionError("nothing was said")
    try:
        return os.read(master, 4096)
    except OSError:  # the other side is closed
        return b""


def test_yes(typed: Typed, hub: Hub) -> None:
    """The plan comes before the question, and a yes opens the pull request."""
    code, shown = typed(b"y\n")
    assert code == 0 and len(hub.commits) == 1
    assert shown.index("lm_head.weight") < shown.index("push this?") < shown.index("/org/m/discussions/7")
    assert TOKEN not in shown


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("answer", "code", "says"),
    [
        (b"n\n", 2, "error: nothing was pushed"),
        (b"\n", 2, "error: nothing was pushed"),
        (b"\x04", 2, "error: nothing was pushed"),
        (b"\x03", 130, "interrupted"),
    ],
    ids=["no", "enter", "end of input", "interrupt"],
)
def test_no(answer: bytes, code: int, says: str, typed: Typed, hub: Hub) -> None:
    """A no, no answer, the end of input and an interrupt push nothing, and the exit code says so."""
    found, shown = typed(answer)
    assert (found, shown.strip().splitlines()[-1].startswith("hint") or code == 130) == (code, True), shown
    assert says in shown and "Aborted" not in shown and "Traceback" not in shown
    assert hub.commits == [] and hub.uploads == {}
    assert {one.method for one in hub.requests} == {"GET"}


def test_unclear(typed: Typed, hub: Hub) -> None:
    """What is neither yes nor no is asked again."""
    code, shown = typed(b"perhaps\nn\n")
    assert code == 2 and shown.count("push this?") == 2 and hub.commits == []


def test_yes_beforehand(typed: Typed, hub: Hub) -> None:
    """With --yes nothing is asked."""
    code, shown = typed(b"", "--yes")
    assert code == 0 and "push this?" not in shown and len(hub.commits) == 1
