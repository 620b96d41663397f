"""Write objects with obstore: below a new prefix, and only where no object is."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

from obstore import exceptions

from tieconv.errors import DestinationError, UnreadableError, WriteFailedError
from tieconv.sources.objects import ObjectPath
from tieconv.sources.objects.client import OBSTORE, ObjectClient, RemoteObject, StoredObject, call, stored_object
from tieconv.sources.ranged import interruptible
from tieconv.text import ANOTHER_OUT, shown


class ObjectWriter(ObjectClient):
    """Writes objects below ``path``."""

    def __init__(self, path: ObjectPath) -> None:
        super().__init__(path, shown(str(path)))
        self.path = path

    def label(self, name: str) -> str:
        """Return the name of a file in messages."""
        return f"{shown(str(self.path))}: {shown(name)}"

    def listed(self) -> dict[str, StoredObject]:
        """Return the objects below the prefix by their names."""
        below = self.path.key("")
        return {
            str(entry["path"]).removeprefix(below): stored_object(entry)
            for page in self.pages(shown(str(self.path)), below)
            for entry in page
        }

    def create(self, name: str, data: bytes) -> None:
        """Write a new object. Raises `DestinationError` if there is one."""
        try:
            self._send(name, partial(self._store.put, self.path.key(name), data, mode="create", use_multipart=False))
        except exceptions.AlreadyExistsError:
            raise DestinationError(f"{self.label(name)} exists", ANOTHER_OUT, "out.exists") from None

    def check_own(self, name: str, data: bytes) -> None:
        """Raise `DestinationError` if an existing object has other bytes.

        A repeated request finds the object of its first attempt if the response to that was lost.
        """
        stored = self.listed().get(name)
        if stored is None or stored.size != len(data) or self.fetch(name, stored, 0, stored.size) != data:
            problem = f"{self.label(name)} exists: another program writes to this prefix"
            raise DestinationError(problem, ANOTHER_OUT, "out.exists")

    def upload(self, name: str, path: Path) -> None:
        """Write a local file, in parts."""
        self._send(name, partial(self._store.put, self.path.key(name), path, chunk_size=32 << 20, max_concurrency=4))

    def fetch(self, name: str, stored: StoredObject, start: int, end: int) -> bytes:
        """Return bytes of a listed object. Raises `UnreadableError` if it was replaced."""
        return self.read(RemoteObject(self.path.key(name), self.label(name), stored.size, stored.etag), start, end)

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects of this write; a missing one is fine."""
        for name in names:
            try:
                call(self.label(name), partial(self._store.delete, self.path.key(name)))
            except UnreadableError as error:
                if error.code != "objects.absent":
                    raise

    def _send(self, name: str, put: partial[object]) -> None:
        self.count(requests=1)
        try:
            interruptible(put)
        except exceptions.AlreadyExistsError:
            raise
        except OBSTORE as error:
            raise failed(error, self.label(name)) from None  # the cause's text may hold a signed address


def failed(error: BaseException, label: str) -> WriteFailedError:
    """Return the error for a write that the server refused, without the server's text."""
    if isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError):
        hint = "check that they may put and delete objects below this prefix"
        return WriteFailedError(f"{label} may not be written with these credentials", hint, "write.forbidden")
    return WriteFailedError(f"{label} could not be written to the object store", "try again later", "write.failed")
