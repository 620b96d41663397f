"""Read the variables of the AWS, Google and Azure tools that obstore does not read itself."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from tieconv.errors import SettingsError, UnreadableError
from tieconv.sources.user_files import read_bytes
from tieconv.text import shown

_S3_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_AWS_FILES = (("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"), ("AWS_CONFIG_FILE", "~/.aws/config"))
_CONNECTION = {
    "AccountName": "account_name",
    "AccountKey": "account_key",
    "SharedAccessSignature": "sas_key",
    "BlobEndpoint": "endpoint",
}


def store_settings(scheme: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of obstore's store that it does not read from the environment, and those of its client.

    ``_endpoint`` of the latter is the endpoint, or empty. An endpoint with ``http://`` allows HTTP. Raises
    `UnreadableError` for a variable or an AWS profile that cannot be used.
    """
    # Refuse characters that no HTTP header holds, such as a newline at the end. obstore panics on them.
    for name, value in os.environ.items():
        if (
            name.startswith(_PREFIXES[scheme])
            and not name.endswith(_FREE)
            and not (value.isascii() and value.isprintable())
        ):
            problem = f"{shown(name)} holds a line break or another character that a request cannot hold"
            raise UnreadableError(problem, "set the variable again without it", "objects.settings")
    settings: dict[str, Any] = dict({"s3": _s3, "gs": _gcs, "az": _azure}[scheme]())
    endpoint = settings.pop("_endpoint", "")
    if endpoint and not (re.match("https?://", endpoint) and _location(endpoint)):
        problem = f"the endpoint of {scheme}:// in the environment is not an http:// or https:// address"
        hint = "write it with its scheme, such as https://storage.example.com"
        raise UnreadableError(problem, hint, "objects.settings")
    client: dict[str, Any] = {"allow_http": endpoint.startswith("http://"), "_endpoint": endpoint}
    if (bundle := os.environ.get("AWS_CA_BUNDLE")) and scheme == "s3":
        client["root_certificate"] = _read(bundle)
    return settings, client


_PREFIXES = {"s3": ("AWS_",), "gs": ("GOOGLE_", "STORAGE_EMULATOR_HOST"), "az": ("AZURE_",)}


_FREE = ("_KEY", "_FILE", "_CREDENTIALS", "_PROFILE", "_BUNDLE")
"""Ends of variables that may hold any text: paths, and a key as JSON. They reach no header."""


_HOSTS = {
    "s3": r"([^/]+\.)?s3(express)?([.-][a-z0-9.-]+)?\.amazonaws\.com(\.cn)?|sts(\.[a-z0-9-]+)?\.amazonaws\.com(\.cn)?",
    "gs": r"(storage|oauth2|sts|iamcredentials|www)\.googleapis\.com|accounts\.google\.com|metadata\.google\.internal",
    "az": r"login\.(microsoftonline\.(com|us)|partner\.microsoftonline\.cn|chinacloudapi\.cn)",
}
"""Hosts of the service itself and of its credentials."""
_METADATA = ("169.254.169.254", "169.254.170.2", "169.254.170.23")
_CREDENTIALS = (
    "AWS_ENDPOINT_URL_STS", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_EC2_METADATA_SERVICE_ENDPOINT",
    "AWS_METADATA_ENDPOINT", "IDENTITY_ENDPOINT", "MSI_ENDPOINT", "AZURE_AUTHORITY_HOST",
)  # fmt: skip
"""Variables that name the servers of credentials."""


def allowed_hosts(scheme: str, bucket: str, endpoint: str, account: str) -> Callable[[str, int], bool]:
    """Return the function that accepts the hosts of this account: its endpoint, and the servers of its credentials.

    A redirect to any other host is refused. With an endpoint in the variables, that includes the cloud's hosts.
    """
    exact = {pair for value in (endpoint, *map(os.environ.get, _CREDENTIALS)) if value and (pair := _location(value))}
    if endpoint:
        exact |= {(f"{bucket.lower()}.{host}", port) for host, port in exact}
    account = (account or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME", "")).lower()
    clouds = r"[a-z0-9.-]*(windows\.net|chinacloudapi\.cn|usgovcloudapi\.net|microsoft\.com)"
    own = rf"{re.escape(account)}\.(blob|dfs)\.{clouds}"
    pattern = re.compile("|".join((_HOSTS[scheme], *([own] if scheme == "az" and account else []))))

    def allowed(host: str, port: int) -> bool:
        host = host.lower()
        if (host, port) in exact or host in _METADATA:
            return True
        return not endpoint and port == 443 and pattern.fullmatch(host) is not None

    return allowed


def _location(address: str) -> tuple[str, int] | None:
    try:
        parts = urlsplit(address)
        port = parts.port or (80 if parts.scheme == "http" else 443)
    except ValueError:
        return None
    host = parts.hostname or ""
    return (host, port) if host and host.isascii() and not re.search(r"[\s%<>^|`{}\\\"]", address) else None


def _read(path: str) -> bytes:
    try:
        return read_bytes(path, 16 << 20)
    except SettingsError as error:
        problem = f"AWS_CA_BUNDLE: {shown(path)} cannot be read"
        raise UnreadableError(problem, "check the variable", "objects.settings") from error


def s3_endpoint() -> str:
    """Return the endpoint of S3 in the variables, or an empty string."""
    return _first(*_S3_ENDPOINTS)


def _s3() -> Iterator[tuple[str, Any]]:
    endpoint = s3_endpoint()
    profile = os.environ.get("AWS_PROFILE")
    files = (os.environ.get(name, path) for name, path in _AWS_FILES)
    if profile or (
        not os.environ.get("AWS_ACCESS_KEY_ID") and any(map(os.path.isfile, map(os.path.expanduser, files)))
    ):
        provider, configured = _profile(profile)
        if provider is not None:
            yield "credential_provider", provider
        if configured and not endpoint:
            endpoint = configured
            yield "endpoint", endpoint
    elif not os.environ.get("AWS_ACCESS_KEY_ID") and os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        yield "skip_signature", True
    yield "_endpoint", endpoint


def _first(*names: str) -> str:
    return next((value for name in names if (value := os.environ.get(name))), "")


def _profile(profile: str | None) -> tuple[Any, str]:
    """Return boto3's credentials of an AWS profile as a provider, and the profile's endpoint (or an empty string).

    Without boto3, ``None`` if no profile was asked for.
    """
    try:
        import boto3
        import botocore.exceptions
        import botocore.session
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        if not profile:
            return None, ""
        problem = "AWS_PROFILE is set, and tieconv reads profiles with the package boto3, which is not installed"
        raise UnreadableError(problem, "pip install boto3", "objects.boto3") from None
    try:
        core = botocore.session.get_session()
        endpoint = str(core.get_scoped_config().get("endpoint_url", ""))
        provider = Boto3CredentialProvider(boto3.Session(botocore_session=core))
    except (botocore.exceptions.BotoCoreError, ValueError):
        if not profile:
            return None, ""
        problem = f"the AWS profile {shown(profile)} has no credentials that can be used"
        raise UnreadableError(problem, "check AWS_PROFILE, or log in: aws sso login", "objects.profile") from None
    return provider, endpoint


def _gcs() -> Iterator[tuple[str, Any]]:
    endpoint = os.environ.get("GOOGLE_BASE_URL", "")
    if not endpoint and (emulator := os.environ.get("STORAGE_EMULATOR_HOST")):
        endpoint = emulator if "://" in emulator else f"http://{emulator}"
        yield "base_url", endpoint
        yield "skip_signature", True
    yield "_endpoint", endpoint


def _azure() -> Iterator[tuple[str, Any]]:
    endpoint = _first("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
    settings = {"account_name": "AZURE_STORAGE_ACCOUNT", "account_key": "AZURE_STORAGE_KEY"}
    for key, name in settings.items():
        if value := os.environ.get(name):
            yield key, value
    for part in os.environ.get("AZURE_STORAGE_CONNECTION_STRING", "").split(";"):
        name, _, value = part.partition("=")
        if name in _CONNECTION and value:
            yield _CONNECTION[name], value
            endpoint = value if name == "BlobEndpoint" else endpoint
    yield "_endpoint", endpoint
