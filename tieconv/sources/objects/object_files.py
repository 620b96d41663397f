"""Read the files of a model in an object store by ranges."""

from __future__ import annotations

from hashlib import sha256

from tieconv.checkpoint.model_files import FileState
from tieconv.sources.objects.object_client import ObjectClient, ObjectStream, RemoteObject
from tieconv.sources.objects.object_listing import ObjectListing
from tieconv.sources.ranged.ranged_files import DOCUMENT, READ_AHEAD, RangedFiles, Tick

_DOCUMENTS = (".json", ".txt", ".md", ".jinja", ".py", ".yaml", ".yml")


class ObjectFiles(RangedFiles):
    """The files of one listing. Each request is for the listed ETag, so a replaced file is refused.

    An ETag is not a hash of the content, so no file has a ``content_id``.
    """

    client: ObjectClient

    def __init__(
        self, client: ObjectClient, listed: ObjectListing, tick: Tick | None = None, *, proving: bool = False
    ) -> None:
        super().__init__(client, listed.listing, tick, proving=proving)
        self.listed = listed
        # A weight file that one request fetches is read as a whole, at no further cost.
        self.costly = any(size > READ_AHEAD for name, size in listed.listing.entries.items() if not _is_text(name))

    def state(self, name: str) -> FileState:
        """Return a state as for a local file. Two states are equal only for one key with one ETag."""
        stored = self.listed.file(name)
        identity = f"{self.listed.path}/{name} {stored.etag}"
        return FileState(
            -3,
            int(sha256(identity.encode("utf-8", "surrogatepass")).hexdigest(), 16),
            stored.size,
            int(stored.modified * 1e9),
        )

    def size(self, name: str) -> int:
        return self.listed.file(name).size

    def is_document(self, name: str) -> bool:
        """Return whether a file is a text beside the weights, by its name."""
        return _is_text(name) and self.size(name) <= DOCUMENT

    def fetch(self, name: str, start: int, end: int) -> bytes:
        """Fetch bytes of the listed ETag. Raises `UnreadableError` if the file was replaced."""
        return self.client.read(self.remote(name), start, end)

    def open(self, name: str, start: int, end: int) -> ObjectStream:
        return self.client.open(self.remote(name), start, end)

    def remote(self, name: str) -> RemoteObject:
        """Return the listed object of a file."""
        stored = self.listed.file(name)
        return RemoteObject(self.listed.key(name), self.listed.label(name), stored.size, stored.etag)


def _is_text(name: str) -> bool:
    return name.endswith(_DOCUMENTS)
