"""Upload a model that tieconv wrote and verified in a temporary directory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.write_plan.plan import Plan
from tieconv.checkpoint.write_plan.remote_transfer import RemoteTransfer
from tieconv.execute.publish.interrupts import interrupts
from tieconv.execute.remote.new_prefix import NewPrefix, differs, documents, names_of, waiting
from tieconv.execute.remote.remote_files import published

if TYPE_CHECKING:
    from tieconv.sources.objects.object_writer import ObjectWriter

_BLOCK = 16 << 20
Progress = Callable[[int, int], None]


def upload(
    plan: Plan,
    writer: ObjectWriter,
    local: Path,
    reinspect: Callable[[Path], Inspection],
    *,
    full: bool,
    why: str,
    read: int = 0,
    progress: Progress | None = None,
) -> RemoteTransfer:
    """Upload the directory ``local``, the documents that make the model visible last; return the moved bytes.

    With ``full``, each file is read back and compared. After any error the prefix is empty again.
    """
    files = {str(path.relative_to(local)): path for path in sorted(local.rglob("*")) if path.is_file()}
    with interrupts() as signals:
        prefix = NewPrefix(writer, plan)
        done, total = 0, sum(path.stat().st_size for path in files.values())
        try:
            prefix.claim()
            sizes = names_of(((name, path.stat().st_size) for name, path in files.items()), plan)
            for name, size in sizes.items():
                prefix.written.add(name)
                waiting([partial(writer.upload, name, files[name])])
                done += size
                if progress is not None:
                    progress(done, total)
            stored = prefix.listed(sizes)
            for name in sizes if full else ():
                with files[name].open("rb") as file:
                    for start in range(0, sizes[name], _BLOCK):
                        block = file.read(_BLOCK)
                        if writer.fetch(name, stored[name], start, start + len(block)) != block:
                            raise differs(writer.label(name))
            closing = documents(plan, lambda name: (local / name).read_bytes())
            prefix.inspect(stored, closing, reinspect)
            with signals.shielded():
                prefix.publish(stored, closing, writer.create)
        except BaseException:
            with signals.shielded():
                prefix.discard()
            raise
    sent = sum(sizes.values()) + sum(len(closing[name]) for name in published(plan))
    return RemoteTransfer("upload", read + writer.bytes, sent, 0, why)
