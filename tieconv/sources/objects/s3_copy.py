"""Let S3 copy objects and ranges of objects, with boto3. obstore cannot. Only this module writes with boto3."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.session import get_session

from tieconv.errors import DestinationError, TieconvError, UnreadableError, WriteFailedError
from tieconv.sources.objects.client import RemoteObject
from tieconv.sources.objects.source import CopyUnsupportedError
from tieconv.sources.objects.store_settings import s3_endpoint
from tieconv.sources.ranged import interruptible
from tieconv.text import ANOTHER_OUT

ATTEMPTS = 6
_DESCRIPTION = ("Metadata", "ContentType", "ContentEncoding", "ContentDisposition", "ContentLanguage", "CacheControl")
"""What only a multipart upload does not take over from its source."""
_STORAGE = ("StorageClass", "ServerSideEncryption", "SSEKMSKeyId", "BucketKeyEnabled")
"""What no copy takes over."""
_MISSING = frozenset({"NotImplemented", "MethodNotAllowed", "UnsupportedOperation", "501", "405"})
_FORBIDDEN = frozenset({"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "403", "401"})
_UNTAGGED = frozenset({"NoSuchTagSet", *_MISSING})


class S3Copier:
    """Copies ranges and writes parts in one bucket. ``tags_unread`` lists sources whose tags may not be read."""

    def __init__(self, bucket: str) -> None:
        core = get_session()
        endpoint = s3_endpoint() or str(core.get_scoped_config().get("endpoint_url", ""))
        session = boto3.Session(botocore_session=core)
        style = {"addressing_style": "path"} if endpoint else {}
        retries = {"max_attempts": ATTEMPTS, "mode": "standard"}
        self._bucket = bucket
        self._client: Any = session.client(
            "s3",
            endpoint_url=endpoint or None,
            region_name=os.environ.get("AWS_REGION") or session.region_name or "us-east-1",
            config=Config(retries=retries, connect_timeout=10, read_timeout=300, s3=style, max_pool_connections=16),
        )
        self.tags_unread: list[str] = []

    def attributes(self, bucket: str, source: RemoteObject) -> dict[str, Any]:
        """Return metadata, tags, encryption and storage class of an object, as arguments of a write."""
        head = self._ask(source.label, "head_object", Bucket=bucket, Key=source.key, **_if("IfMatch", source.etag))
        carried = {name: head[name] for name in (*_DESCRIPTION, *_STORAGE) if head.get(name)}
        try:
            answer = self._client_call("get_object_tagging", Bucket=bucket, Key=source.key)
        except ClientError as error:
            if _code(error) not in _UNTAGGED:
                self.tags_unread.append(source.label)
            return carried
        except BotoCoreError as error:
            raise _failed(error, source.label) from None
        from urllib.parse import urlencode

        tags = urlencode({tag["Key"]: tag["Value"] for tag in answer.get("TagSet", ())})
        return {**carried, "Tagging": tags} if tags else carried

    def start(self, key: str, label: str, attributes: dict[str, Any]) -> str:
        """Begin a multipart upload and return its id."""
        answer = self._ask(label, "create_multipart_upload", Key=key, **attributes)
        return str(answer["UploadId"])

    def upload_part(self, key: str, label: str, upload: str, number: int, data: bytes) -> str:
        """Upload a part and return its ETag."""
        answer = self._ask(label, "upload_part", Key=key, UploadId=upload, PartNumber=number, Body=data)
        return str(answer["ETag"])

    def copy_part(
        self, key: str, upload: str, number: int, bucket: str, source: RemoteObject, start: int, end: int
    ) -> str:
        """Let the server copy a range of the listed object as a part, and return the part's ETag.

        Raises `UnreadableError` if the source was replaced, and `CopyUnsupportedError` if the server has no such copy.
        """
        copied = {"CopySource": {"Bucket": bucket, "Key": source.key}, **_if("CopySourceIfMatch", source.etag)}
        part = {"UploadId": upload, "PartNumber": number, "CopySourceRange": f"bytes={start}-{end - 1}"}
        answer = self._ask(source.label, "upload_part_copy", Key=key, **part, **copied)
        return str(answer["CopyPartResult"]["ETag"])

    def complete(self, key: str, label: str, upload: str, etags: list[str]) -> None:
        """End a multipart upload: the object then exists."""
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, 1)]
        whole = {"Parts": parts}
        self._ask(label, "complete_multipart_upload", Key=key, UploadId=upload, MultipartUpload=whole)

    def abort(self, key: str, upload: str) -> None:
        """Discard the parts of a multipart upload."""
        self._ask(key, "abort_multipart_upload", Key=key, UploadId=upload)

    def unfinished(self, prefix: str, label: str) -> list[tuple[str, str]]:
        """Return key and id of the multipart uploads below a prefix."""
        answer = self._ask(label, "list_multipart_uploads", Prefix=prefix)
        return [(entry["Key"], entry["UploadId"]) for entry in answer.get("Uploads", ())]

    def copy(self, key: str, bucket: str, source: RemoteObject, attributes: dict[str, Any]) -> None:
        """Let the server copy a whole object. It takes over metadata and tags itself."""
        storage = {name: attributes[name] for name in _STORAGE if name in attributes}
        copied = {"CopySource": {"Bucket": bucket, "Key": source.key}, **_if("CopySourceIfMatch", source.etag)}
        self._ask(source.label, "copy_object", Key=key, **copied, **storage)

    def create(self, key: str, label: str, data: bytes, attributes: dict[str, Any]) -> None:
        """Write an object where none is. Raises `DestinationError` if there is one."""
        try:
            self._ask(label, "put_object", Key=key, Body=data, IfNoneMatch="*", **attributes)
        except UnreadableError:
            raise DestinationError(f"{label} exists", ANOTHER_OUT, "out.exists") from None

    def _client_call(self, operation: str, **arguments: Any) -> Any:
        ask: Callable[..., Any] = getattr(self._client, operation)
        return interruptible(lambda: ask(**arguments))

    def _ask(self, label: str, operation: str, **arguments: Any) -> Any:
        """Ask about an object of the copier's bucket, unless ``arguments`` say which bucket."""
        try:
            return self._client_call(operation, **{"Bucket": self._bucket, **arguments})
        except (ClientError, BotoCoreError) as error:
            raise _failed(error, label) from None  # the cause's text is the server's


def _if(name: str, etag: str | None) -> dict[str, str]:
    return {} if etag is None else {name: etag}


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _failed(error: ClientError | BotoCoreError, label: str) -> TieconvError | CopyUnsupportedError:
    """Return the error for the user, without the server's text."""
    if isinstance(error, BotoCoreError):
        hint = "check the credentials, the network and the endpoint variables"
        return WriteFailedError(f"{label}: the connection to the object store failed", hint, "write.network")
    code, status = _code(error), error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in frozenset({"PreconditionFailed", "412"}):
        problem = f"{label} was replaced while tieconv read it"
        return UnreadableError(problem, "run the command again", "objects.changed")
    if code in _MISSING or status in (405, 501):
        return CopyUnsupportedError()
    if code in _FORBIDDEN or status in (401, 403):
        hint = "check that they may read the source, and put, tag and delete objects below the new prefix"
        return WriteFailedError(f"{label}: these credentials may not do this", hint, "write.forbidden")
    return WriteFailedError(f"{label}: the object store returned HTTP {int(status)}", "try again later", "write.http")
