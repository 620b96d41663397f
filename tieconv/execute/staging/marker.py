"""Record in a marker file which process owns a staging directory."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict

from tieconv.checkpoint.value_type import record
from tieconv.text import shown

SIZE = 512
"""Bytes of a marker: one sector, so that a power cut leaves the old or the new one."""
_PROGRAM = "tieconv"
_START = json.dumps({"program": _PROGRAM})[:-1].encode()


@record
class Owner:
    """A process. ``boot`` identifies the boot of its kernel, ``ticks`` is its start.

    Both are empty if the system has none. ``old`` is the inode of the directory that the process set aside. ``data`` is
    the inode of the data file that gets its name before its graph. Both are 0 for none.
    """

    pid: int
    host: str
    boot: str = ""
    ticks: int = 0
    old: int = 0
    data: int = 0

    @classmethod
    def current(cls) -> Owner:
        """Return this process."""
        pid = os.getpid()
        return cls(pid, socket.gethostname()[:64], _boot(), _ticks(pid))

    def encode(self) -> bytes:
        """Return the content of the marker, always `SIZE` bytes."""
        return json.dumps({"program": _PROGRAM, **asdict(self)}).encode().ljust(SIZE)

    @property
    def is_gone(self) -> bool:
        """Whether the process has certainly ended; the caller holds the lock that the process would hold."""
        if not self.is_of_this_boot:
            here = self.host == socket.gethostname()[:64]
            return here and (bool(self.boot and _boot()) or _is_free(self.pid))
        return self.pid == os.getpid() or _ticks(self.pid) != self.ticks

    @property
    def is_of_this_boot(self) -> bool:
        """Whether a process of this boot certainly wrote the marker: no other machine knows the boot's name."""
        return bool(self.boot) and self.boot == _boot()

    def __str__(self) -> str:
        return f"process {self.pid} on {shown(self.host)}"


def parse(content: bytes) -> Owner | None:
    """Return the owner in a marker, ``None`` for any other content."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or value.get("program") != _PROGRAM:
        return None
    host, boot = value.get("host"), value.get("boot", "")
    if not (isinstance(host, str) and isinstance(boot, str)):
        return None
    pid, ticks, old, data = numbers = [value.get(key, 0) for key in ("pid", "ticks", "old", "data")]
    if not all(type(number) is int and 0 <= number < 1 << 64 for number in numbers):
        return None
    return Owner(pid, host, boot, ticks, old, data)


def is_cut(data: bytes) -> bool:
    """Return whether a kill or a power cut left the marker ``data`` unfinished: empty, zeros, or its beginning."""
    return not data.strip(b"\0") or _START.startswith(data) or (data.startswith(_START) and parse(data) is None)


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read(64).strip()
    except OSError:
        return ""


def _ticks(pid: int) -> int:
    """Return when the process ``pid`` started, in ticks of its kernel; 0 if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read(4096).rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def _is_free(pid: int) -> bool:
    """Return whether no other process has the number ``pid``."""
    if pid in (0, os.getpid()):
        return pid != 0
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:
        return False
    return False
