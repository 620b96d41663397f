"""Local files: what is opened and listed, where links may lead, and which ranges share a request."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path
from threading import Event, current_thread
from types import SimpleNamespace
from typing import Any

import pytest

from tests.patience import prompt
from tests.refusals import failure_of
from tieconv.checkpoint.weight_file import ByteRange
from tieconv.errors import UnreadableError, UnsafePathError
from tieconv.sources import local
from tieconv.sources.local import AHEAD, FileSet, in_hub_cache, locate, open_files, open_regular
from tieconv.sources.objects import host_gate
from tieconv.sources.ranged import RangedFiles, concurrently, interruptible
from tieconv.sources.user_files import new_file

DIGEST = "0f" * 32


def code(error: pytest.ExceptionInfo[UnreadableError]) -> str:
    assert error.value.hint
    assert error.value.message.isprintable()
    return error.value.code


def opened(path: Path, root: Path) -> bytes:
    descriptor = open_regular(path, root)
    try:
        return os.pread(descriptor, 100, 0)
    finally:
        os.close(descriptor)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


# -- opening


def test_regular(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    assert opened(tmp_path / "a", tmp_path) == b"x"


def test_opened_for_reading_and_not_inherited(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    descriptor = open_regular(tmp_path / "a", tmp_path)
    try:
        assert not os.get_inheritable(descriptor)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(descriptor, b"y")
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("kind", ["fifo", "socket", "directory"])
def test_what_is_no_regular_file(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answered at once, without a descriptor left open."""
    monkeypatch.chdir(tmp_path)  # a socket's path may have 107 bytes
    if kind == "fifo":
        os.mkfifo("x")
    elif kind == "directory":
        os.mkdir("x")
    else:
        with socket.socket(socket.AF_UNIX) as unix:
            unix.bind("x")
    before = descriptors()
    with prompt(1), pytest.raises(UnsafePathError) as caught:
        open_regular(tmp_path / "x", tmp_path)
    assert code(caught) == "path.not-regular"
    assert descriptors() == before


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="no devices here")
def test_devices() -> None:
    assert failure_of(open_regular, UnsafePathError, Path("/dev/zero"), Path("/dev")).code == "path.not-regular"


@pytest.mark.parametrize(("target", "expected"), [
    ("../out", "path.escape"), ("/etc/passwd", "path.escape"), ("..", "path.escape"), ("sub/../../out", "path.escape"),
    ("gone", "path.unreadable"), ("link", "path.not-regular"), ("other", "path.not-regular"), ("hop", "path.escape"),
])  # fmt: skip
def test_links_that_are_not_followed(target: str, expected: str, tmp_path: Path) -> None:
    root = tmp_path / "model"
    (root / "sub").mkdir(parents=True)
    (tmp_path / "out").write_bytes(b"secret")
    (root / "other").symlink_to("link")  # a loop of two
    (root / "hop").symlink_to("../out")
    (root / "link").symlink_to(target)
    assert failure_of(open_regular, UnreadableError, root / "link", root).code == expected


def test_links_within(tmp_path: Path) -> None:
    root = tmp_path / "model"
    (root / "sub").mkdir(parents=True)
    (root / "sub" / "real").write_bytes(b"x")
    (root / "one").symlink_to("sub/real")
    (root / "two").symlink_to(root / "one")
    (tmp_path / "door").symlink_to("model")
    assert opened(root / "one", root) == opened(root / "two", root) == b"x"
    assert opened(tmp_path / "door" / "two", tmp_path / "door") == b"x"


def test_a_directory_whose_name_starts_alike_is_outside(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model-secret").write_bytes(b"x")
    (tmp_path / "model" / "a").symlink_to("../model-secret")
    with pytest.raises(UnsafePathError):
        open_regular(tmp_path / "model" / "a", tmp_path / "model")


# -- the hub cache


def snapshot(cache: Path, repository: str, blob: Path) -> Path:
    """A snapshot whose file ``a`` is a link to ``blob``."""
    root = cache / repository / "snapshots" / "abc"
    root.mkdir(parents=True)
    blob.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(b"x")
    (root / "a").symlink_to(os.path.relpath(blob, root))
    return root


@pytest.mark.parametrize(("blob", "allowed"), [
    (f"models--o--n/blobs/{DIGEST}", True), ("models--o--n/blobs/d670460b4b4aece5915caf5c68d12f560a9fe3e4", True),
    (f"blobs/0f/{DIGEST}", True), (f"blobs/{DIGEST}", False), (f"blobs/0f/{DIGEST}/x", False),
    (f"blobs/0F/{DIGEST}", False),
    (f"blobs/0f/{DIGEST}.json", False), ("blobs/token", False), ("token", False),
    (f"models--o--m/blobs/{DIGEST}", False),
    ("models--o--n/refs/main", False),
])  # fmt: skip
def test_blobs(blob: str, allowed: bool, tmp_path: Path) -> None:
    """Links lead into the repository's own blobs, or to a shared one by its full name; nowhere else in the cache."""
    root = snapshot(tmp_path, "models--o--n", tmp_path / blob)
    if allowed:
        assert in_hub_cache(root)
        assert opened(root / "a", root) == b"x"
        assert locate(str(root)).entries == {"a": 1}
    else:
        assert failure_of(open_regular, UnsafePathError, root / "a", root).code == "path.escape"
        assert locate(str(root)).special == ("a",)


def test_a_subfolder_of_a_snapshot(tmp_path: Path) -> None:
    root = snapshot(tmp_path, "models--o--n", tmp_path / "models--o--n" / "blobs" / DIGEST)
    (root / "onnx").mkdir()
    (root / "onnx" / "b").symlink_to(f"../../../blobs/{DIGEST}")
    assert opened(root / "onnx" / "b", root / "onnx") == b"x"
    assert in_hub_cache(root / "onnx")


def test_snapshots_elsewhere_are_no_cache(tmp_path: Path) -> None:
    root = snapshot(tmp_path, "backups", tmp_path / "backups" / "blobs" / DIGEST)
    assert not in_hub_cache(root)
    with pytest.raises(UnsafePathError):
        open_regular(root / "a", root)


# -- listing


def test_listing(tmp_path: Path) -> None:
    (tmp_path / "sub" / "deep").mkdir(parents=True)
    for name, content in {"b": "12", "a": "1", "sub/c": "", "sub/deep/d": "123", ".hidden": "1"}.items():
        (tmp_path / name).write_text(content)
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "x").write_text("1")
    os.mkfifo(tmp_path / "sub" / "pipe")
    (tmp_path / "away").symlink_to("/")
    (tmp_path / "inner").symlink_to("sub")
    listing = locate(str(tmp_path))
    assert list(listing.entries.items()) == [(".hidden", 1), ("a", 1), ("b", 2), ("sub/c", 0), ("sub/deep/d", 3)]
    assert listing.special == ("away", "inner", "sub/pipe")
    assert listing.top == (".hidden", "a", "b")
    assert listing.named is None


def test_a_file_lists_its_directory_alone(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "c").write_text("1")
    (tmp_path / "a.safetensors").write_text("1")
    listing = locate(str(tmp_path / "a.safetensors"))
    assert (listing.named, listing.root, dict(listing.entries)) == (
        "a.safetensors",
        str(tmp_path),
        {"a.safetensors": 1},
    )


def test_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_text("1")
    assert locate(".").entries == {"a": 1}
    assert locate("a").root == str(tmp_path)


@pytest.mark.parametrize(("source", "hint"), [
    ("org/name", "hf://org/name"), ("./name", "give a model"), ("name", "give a model"), ("a/b/c", "give a model"),
    ("/x/y", "give a model"), ("../x", "give a model"), ("org/", "give a model"), ("\x1b[2J/x", "give a model"),
])  # fmt: skip
def test_nothing_there(source: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnreadableError) as caught:
        locate(source)
    assert code(caught) == "path.absent"
    assert hint in caught.value.hint


def test_a_directory_of_everything_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "MAX_FILES", 20)
    for i in range(25):
        (tmp_path / str(i)).touch()
    assert failure_of(locate, UnreadableError, str(tmp_path)).code == "path.too-large"


def test_deep_directories_are_refused(tmp_path: Path) -> None:
    os.makedirs(tmp_path / "/".join(["d"] * 100))
    assert failure_of(locate, UnreadableError, str(tmp_path)).code == "path.too-large"


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads whatever the mode")
def test_unreadable(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    (tmp_path / "a").chmod(0)
    assert failure_of(open_regular, UnreadableError, tmp_path / "a", tmp_path).code == "path.unreadable"


# -- reading


def test_a_file_that_shrinks(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(100))
    with open_files(tmp_path) as files:
        files.state("a")
        os.truncate(tmp_path / "a", 50)
        with pytest.raises(UnreadableError) as caught:
            files.read_into(ByteRange("a", 10, 90), 0, memoryview(bytearray(80)))
    assert code(caught) == "path.shrank"


def test_read_into(tmp_path: Path) -> None:
    content = bytes(range(256))
    (tmp_path / "a").write_bytes(content)
    with open_files(tmp_path) as files:
        buffer = bytearray(20)
        files.read_into(ByteRange("a", 100, 200), 30, memoryview(buffer))
        assert bytes(buffer) == content[130:150]
        assert files.bytes_read == 20


def test_a_replaced_file_is_still_the_one_that_was_opened(tmp_path: Path) -> None:
    """Header and tensors come from the same inode, whatever is renamed over the name meanwhile."""
    (tmp_path / "a").write_bytes(b"old")
    with open_files(tmp_path) as files:
        state = files.state("a")
        (tmp_path / "b").write_bytes(b"new")
        os.rename(tmp_path / "b", tmp_path / "a")
        assert files.pread("a", 3, 0) == b"old"
        assert state.is_still(files.state("a"), {(state.device, state.inode)})  # losing its name changes the ctime


def test_files_are_closed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    before = descriptors()
    with pytest.raises(RuntimeError), open_files(tmp_path) as files:
        assert isinstance(files, FileSet)
        files.state("a")
        assert descriptors() == before + 1
        raise RuntimeError
    assert descriptors() == before


def test_a_directory_that_may_not_be_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies in it is not said to be absent, nor sought on the Hub (root may enter: planted)."""

    def closed(path: str, **_: object) -> os.stat_result:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(os, "lstat", closed)
    with pytest.raises(UnreadableError, match="cannot be opened: permission denied") as error:
        locate("closed/model.safetensors")
    assert code(error) == "path.unreadable" and "hf://" not in (error.value.hint or "")


def test_a_device_that_is_named_is_not_to_be_moved() -> None:
    """The hint is about MODEL, not about a directory that it would lie in."""
    with pytest.raises(UnsafePathError, match="is a character device") as error:
        locate("/dev/null")
    assert code(error) == "path.not-regular" and "model directory, a weight file" in (error.value.hint or "")


@pytest.mark.parametrize("name", ["models/*", "my models/one", "model/model.safetensors", "a/b/c", ".cache/x", "a/"])
def test_what_is_no_name_of_the_hub_is_not_sought_there(name: str, tmp_path: Path) -> None:
    """A pattern that the shell did not expand, a file, a path of another depth."""
    with pytest.raises(UnreadableError, match="no such file") as error:
        locate(name)
    assert "hf://" not in (error.value.hint or "")
    with pytest.raises(UnreadableError) as caught:
        locate("no-such-org/Name-1.5B")
    assert caught.value.hint == "for the model on the Hub write hf://no-such-org/Name-1.5B"


def test_a_typing_error_is_answered_with_what_is_there(tmp_path: Path) -> None:
    """The nearest name beside the missing one, as a shell takes it."""
    (tmp_path / "llama tied").mkdir()
    with pytest.raises(UnreadableError) as caught:
        locate(str(tmp_path / "llama tide"))
    assert caught.value.hint == f"did you mean '{tmp_path}/llama tied'?"


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="this system has no posix_fadvise")
def test_the_kernel_is_told_what_comes_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large reads of a tensor announce the next bytes of it, at most once for `AHEAD` bytes and not beyond its end."""
    announced: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _, start, size, advice: announced.append((start, size)))
    size, block = 4 * AHEAD + 5, 256 * 1024
    data = os.urandom(size)
    (tmp_path / "file").write_bytes(data)
    span = ByteRange("file", 0, size)
    with open_files(str(tmp_path)) as files:
        pieces = []
        for offset in range(0, size, block):
            buffer = bytearray(min(block, size - offset))
            files.read_into(span, offset, memoryview(buffer))
            pieces.append(bytes(buffer))
    assert b"".join(pieces) == data
    assert announced == [(number * AHEAD, min(2 * AHEAD, size - number * AHEAD)) for number in range(1, 5)]


def test_a_request_ends_with_the_process() -> None:
    """Its thread is a daemon, so an interrupt does not wait for the network."""
    assert interruptible(lambda: current_thread().daemon)


def test_which_proxies_the_gate_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that speaks HTTP. Without a scheme it does."""
    for proxy, passes in (("http://a:1", True), ("a:1", True), ("https://a:1", False), ("socks5://a:1", False)):
        monkeypatch.setattr(host_gate, "getproxies", lambda proxy=proxy: {"https": proxy, "no": "socks5://b"})
        assert host_gate.relays() is passes, proxy


def test_a_new_file_has_the_mode_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        new_file(tmp_path / "file").close()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o666


def test_ranges_are_announced_together() -> None:
    """Two ranges or more are asked for at once, and neighbours in one request."""
    for starts, requests in (((), 0), ((0,), 0), ((0, 1 << 20), 2), ((0, 100), 1), ((0, 100, 1 << 20), 2)):
        asked: list[tuple[str, int, int]] = []
        files: Any = SimpleNamespace(_travels=lambda _: True, _missing=lambda *span, asked=asked: asked.append(span))
        RangedFiles.announce(files, [ByteRange("a", start, start + 8) for start in starts])
        assert len(asked) == requests, starts


def test_a_failure_does_not_wait_for_requests_that_run() -> None:
    """The other request goes on, and nobody waits for its end."""
    ended, runs, may_end = [], Event(), Event()

    def work(number: int) -> None:
        if not number:
            runs.wait(1)
            raise KeyError
        runs.set()
        ended.append(may_end.wait(1))

    with pytest.raises(KeyError):
        list(concurrently(work, (0, 1), 2))
    assert ended == []
    may_end.set()
