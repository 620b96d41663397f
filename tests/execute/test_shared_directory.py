"""Directories that everybody may write to: another user races each write, and never gets a byte into what it publishes.

Root starts a victim and an attacker under two other user ids; the attacker acts as fast as it can while the victim
writes. An exit without an error must have published the victim's own model, whole.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tieconv.errors import TieconvError
from tieconv.execute.carry_out import execute
from tieconv.execute.target import Target, staging_path

from . import models

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="processes of two other users take root")
VICTIM, ATTACKER = 54321, 54322
Act = Callable[[Path, Path], None]


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory like /tmp, with a model of the victim and files of the attacker."""
    root = Path(tempfile.mkdtemp(prefix="tieconv-shared-"))
    os.chmod(root, 0o755)
    (root / "tmp").mkdir()
    os.chmod(root / "tmp", 0o1777)
    for name, user in (("victim", VICTIM), ("attacker", ATTACKER)):
        (root / name).mkdir()
        models.single(root / name / "model", rows=64 if user == VICTIM else 16)
        (root / name / "model" / "tokenizer.json").write_text(name)
        for path in (root / name, *(root / name).rglob("*")):
            os.chown(path, user, user)
    yield root
    shutil.rmtree(root)


def as_user(user: int, act: Callable[[], int]) -> int:
    """Run ``act`` in a process of that user; its number."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
        os.umask(0)
        code = act()
    finally:
        os._exit(code)


REFUSALS = (
    "out.staging",
    "out.busy",
    "out.replaced",
    "out.exists",
    "out.link",
    "out.not-a-model",
    "out.more-files",
    "out.read-only",
    "write.failed",
)


def write(source: Path, out: Path, overwrite: bool) -> int:
    try:
        execute(models.retie(source), Target(out, overwrite=overwrite), reinspect=models.inspect)
    except TieconvError as error:
        return 10 + REFUSALS.index(error.code)  # any other one ends this process with 70
    return 0


def prepare(staging: Path, model: Path) -> None:
    """A directory of the attacker under the staging directory's name, open to everybody, with a model to publish."""
    with suppress(OSError):
        os.mkdir(staging)
        os.chmod(staging, 0o777)
        shutil.copytree(model, staging / "new")


def swap_new(staging: Path, model: Path) -> None:
    """Put a model in the place of the one that is built."""
    prepare(staging, model)
    with suppress(OSError):
        os.rename(staging / "new", staging / "away")
    with suppress(OSError):
        os.rename(staging / "away" / "new", staging / "new")
    with suppress(OSError):
        shutil.copytree(model, staging / "new")


def take_the_name(staging: Path, model: Path) -> None:
    """Rename the staging directory away and stand another in its place."""
    aside = staging.with_name(f"aside-{os.getpid()}")
    with suppress(OSError):
        os.rename(staging, aside)
        prepare(staging, model)
    with suppress(OSError):
        os.rmdir(staging)


def stand_a_link(staging: Path, model: Path) -> None:
    """A symlink to a directory of the attacker comes and goes."""
    with suppress(OSError):
        os.symlink(model.parent, staging)
    with suppress(OSError):
        os.unlink(staging)


def come_and_go(staging: Path, _model: Path) -> None:
    """An empty directory comes and goes, at times open to everybody."""
    with suppress(OSError):
        os.mkdir(staging, 0o777)
    with suppress(OSError):
        (staging / "owner").touch()
    with suppress(OSError):
        os.unlink(staging / "owner")
    with suppress(OSError):
        os.rmdir(staging)


ACTS = (swap_new, take_the_name, stand_a_link, come_and_go)


def race(shared: Path, act: Act, user: int, overwrite: bool = False) -> str:
    """One write with the attacker at work; what came of it."""
    out, source = shared / "tmp" / "out", shared / "victim" / "model"
    planted = shared / "attacker" / "model"
    staging = staging_path(out)

    def attack() -> int:
        while True:
            act(out if overwrite else staging, planted)

    attacker = as_user(ATTACKER, attack)
    try:
        time.sleep(0.005)
        _, status = os.waitpid(as_user(user, lambda: write(source, out, overwrite)), 0)
    finally:
        os.kill(attacker, signal.SIGKILL)
        os.waitpid(attacker, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code == 0 or 10 <= code < 10 + len(REFUSALS), code
    return "published" if code == 0 else REFUSALS[code - 10]


def clean(directory: Path) -> None:
    for path in directory.iterdir():
        if path.is_symlink() or not path.is_dir():
            path.unlink()
        else:
            shutil.rmtree(path)


def many(shared: Path, act: Act, times: int) -> Counter[str]:
    source = shared / "victim" / "model"
    before = models.digest(source)
    execute(models.retie(source), Target(shared / "expected"), reinspect=models.inspect)
    expected, found = models.digest(shared / "expected"), Counter[str]()
    for _ in range(times):
        kind = race(shared, act, VICTIM)
        out = shared / "tmp" / "out"
        if kind == "published":
            assert models.digest(out) == expected, "not the model that was proved"
            assert {path.lstat().st_uid for path in (out, *out.rglob("*"))} == {VICTIM}
        else:
            assert not os.path.lexists(out), kind
        assert models.digest(source) == before
        found[kind] += 1
        clean(shared / "tmp")
    return found


@pytest.mark.sampled(1)
@pytest.mark.parametrize("act", ACTS)
def test_hijack(shared: Path, act: Act) -> None:
    """A few races; the slow test runs many."""
    assert many(shared, act, 5).total() == 5


def test_another_user_is_writing(shared: Path) -> None:
    """What they have closed to everybody is refused by its name, and stays."""
    staging = staging_path(shared / "tmp" / "out")
    staging.mkdir(0o700)
    (staging / "owner").touch()
    for path in (staging, staging / "owner"):
        os.chown(path, ATTACKER, ATTACKER)
    out = shared / "tmp" / "out"
    _, status = os.waitpid(as_user(VICTIM, lambda: write(shared / "victim" / "model", out, False)), 0)
    assert REFUSALS[os.waitstatus_to_exitcode(status) - 10] == "out.staging"
    assert os.listdir(staging) == ["owner"]


@pytest.mark.slow
@pytest.mark.parametrize("act", ACTS)
def test_many_hijacks(shared: Path, act: Act) -> None:
    print(f"\n{act.__name__}: {dict(many(shared, act, 100))}")


def exchange_parts(out: Path, model: Path) -> None:
    """Parts of the attacker's own OUT become links to what only root may change, and directories again."""
    precious = model.parents[1] / "precious"
    for name in ("original", "new"):
        with suppress(OSError):
            os.rename(out / name, out / "aside")
            os.symlink(precious, out / name)
            os.unlink(out / name)
            os.rename(out / "aside", out / name)
    with suppress(OSError):
        os.rename(out, out.with_name("out-aside"))
        os.symlink(precious, out)
        os.unlink(out)
        os.rename(out.with_name("out-aside"), out)


def replace_by_root(shared: Path, times: int) -> Counter[str]:
    precious = models.single(shared / "precious", rows=16)
    (precious / "original" / "precious.txt").write_text("mine")
    before, found = models.digest(precious), Counter[str]()
    for _ in range(times):
        clean(shared / "tmp")
        out = Path(shutil.copytree(shared / "attacker" / "model", shared / "tmp" / "out"))
        for path in (out, *out.rglob("*")):
            os.chown(path, ATTACKER, ATTACKER)
        found[race(shared, exchange_parts, 0, overwrite=True)] += 1
        assert models.digest(precious) == before
        assert {path.lstat().st_uid for path in (precious, *precious.rglob("*"))} == {0}
    return found


def test_root_replaces_a_directory_of_another_user(shared: Path) -> None:
    """What root removes of it is that directory alone: links that its owner swaps in lead root nowhere."""
    assert replace_by_root(shared, 5).total() == 5


@pytest.mark.slow
def test_root_replaces_many(shared: Path) -> None:
    print(f"\n--overwrite by root: {dict(replace_by_root(shared, 100))}")
