"""tieconv obeys the variables of the AWS, Google and Azure tools, and says in one sentence what is missing."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from tests.children import sound
from tests.objects.conftest import MODELS, SECRETS, Run
from tests.objects.stub import Store
from tests.refusals import failure_of
from tieconv import MissingPackageError, UnreadableError, inspect
from tieconv.sources.objects.store_settings import allowed_hosts, store_settings


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, store: Store) -> pytest.MonkeyPatch:
    """An environment with an endpoint and no credentials."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "GOOGLE_BASE_URL", "GOOGLE_SKIP_SIGNATURE"):
        monkeypatch.delenv(name)
    return monkeypatch


def test_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence and the pip command."""
    monkeypatch.setitem(sys.modules, "obstore", None)
    error = failure_of(inspect, MissingPackageError, "s3://bucket/m")
    assert error.message == "models in object stores need the package obstore, which is not installed"
    assert "pip install" in error.command_hint and "objects" in error.command_hint


def test_local_models_need_no_obstore(tieconv: Run) -> None:
    """Nothing imports it unless an address is given."""
    assert "obstore" not in sound(tieconv("inspect", MODELS / "t5", PYTHONPROFILEIMPORTTIME="1")).stderr


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"])
def test_an_endpoint_with_http_is_obeyed(store: Store, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """As by the AWS tools, in each of the variables."""
    store.add("m", MODELS / "t5")
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.setenv(name, store.url)
    assert len(inspect("s3://bucket/m").checkpoint.tensors) > 1


@pytest.mark.parametrize(
    ("name", "scheme"),
    [("AWS_SKIP_SIGNATURE", "s3"), ("AWS_EC2_METADATA_DISABLED", "s3"), ("STORAGE_EMULATOR_HOST", "gs")],
)
def test_nothing_is_signed(store: Store, bare: pytest.MonkeyPatch, name: str, scheme: str) -> None:
    """A public bucket, a machine without metadata, as for the AWS tools, and the emulator of Google's tools."""
    store.add("m", MODELS / "t5")
    bare.setenv(name, store.url.removeprefix("http://") if scheme == "gs" else "true")
    inspect(f"{scheme}://bucket/m")
    assert {request.authorization for request in store.requests} == {None}


def test_a_profile_without_boto3(bare: pytest.MonkeyPatch) -> None:
    """A profile that was asked for is not ignored."""
    bare.setenv("AWS_PROFILE", "lab")
    bare.setitem(sys.modules, "boto3", None)
    error = failure_of(inspect, UnreadableError, "s3://bucket/m")
    assert (error.code, error.command_hint) == ("objects.boto3", "pip install boto3")


class _Session:
    """What tieconv needs of botocore's session."""

    def get_scoped_config(self) -> dict[str, str]:
        return {"endpoint_url": "http://127.0.0.1:9"}


def _boto3(monkeypatch: pytest.MonkeyPatch, provider: Any) -> None:
    """Replace boto3 and botocore, which the tests do not install, by modules with the used names."""
    names = {
        "boto3": {"Session": lambda botocore_session: botocore_session},
        "botocore": {},
        "botocore.exceptions": {"BotoCoreError": type("BotoCoreError", (Exception,), {})},
        "botocore.session": {"get_session": _Session},
        "obstore.auth.boto3": {"Boto3CredentialProvider": provider},
    }
    for name, values in names.items():
        module = types.ModuleType(name)
        module.__dict__.update(values)
        monkeypatch.setitem(sys.modules, name, module)
        parent, _, child = name.rpartition(".")
        if parent in names:
            setattr(sys.modules[parent], child, module)


def test_a_profile(store: Store, bare: pytest.MonkeyPatch) -> None:
    """boto3 provides its credentials and its endpoint; a variable for the endpoint has precedence."""
    _boto3(bare, lambda session: ("credentials of", type(session).__name__))
    bare.setenv("AWS_PROFILE", "lab")
    settings, client = store_settings("s3")
    assert settings == {"credential_provider": ("credentials of", "_Session")} and client["allow_http"]
    bare.delenv("AWS_ENDPOINT_URL")
    settings, client = store_settings("s3")
    assert settings["endpoint"] == "http://127.0.0.1:9" and client["allow_http"]


@pytest.mark.parametrize("asked", [True, False])
def test_a_profile_without_credentials(store: Store, bare: pytest.MonkeyPatch, tmp_path: Path, asked: bool) -> None:
    """An error for a profile that was asked for; a config file alone is not a wish."""

    def fail(session: object) -> None:
        raise ValueError("Received None from session.get_credentials")

    _boto3(bare, fail)
    if asked:
        bare.setenv("AWS_PROFILE", "la\x1bb")
        error = failure_of(store_settings, UnreadableError, "s3")
        assert error.code == "objects.profile" and "\x1b" not in error.message
        return
    (tmp_path / "no-config").write_text("[default]\n")
    assert store_settings("s3")[0] == {}


def test_a_certificate(store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """AWS_CA_BUNDLE is trusted too, and must exist."""
    bundle = tmp_path / "ca.pem"
    bundle.write_bytes(b"PEM")
    monkeypatch.setenv("AWS_CA_BUNDLE", str(bundle))
    assert store_settings("s3")[1]["root_certificate"] == b"PEM"
    bundle.unlink()
    with pytest.raises(UnreadableError, match="cannot be read"):
        store_settings("s3")


def test_the_variables_of_azure(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the Azure CLI and a connection string, beside those that obstore reads itself."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "lab")
    monkeypatch.setenv("AZURE_STORAGE_KEY", "key")
    assert store_settings("az")[0] == {"account_name": "lab", "account_key": "key"}
    monkeypatch.setenv(
        "AZURE_STORAGE_CONNECTION_STRING",
        "DefaultEndpointsProtocol=http;AccountName=dev;AccountKey=abc==;BlobEndpoint=http://127.0.0.1:10000/dev;",
    )
    settings, client = store_settings("az")
    assert settings == {"account_name": "dev", "account_key": "abc==", "endpoint": "http://127.0.0.1:10000/dev"}
    assert client["allow_http"]


def test_hosts_of_the_cloud() -> None:
    """Without an endpoint, HTTPS alone reaches them."""
    allowed = allowed_hosts("s3", "bucket", "", "")
    assert [allowed("bucket.s3.eu-west-1.amazonaws.com", port) for port in (443, 444, 80)] == [True, False, False]


def test_an_account_that_is_missing(store: Store, tieconv: Run) -> None:
    """One sentence for settings that do not suffice."""
    result = tieconv("inspect", "az://models/m")
    assert result.returncode == 2
    assert result.stderr.splitlines()[0] == (
        "error: az://models/m cannot be opened with the settings of this object store"
    )
    for secret in SECRETS:
        assert secret not in result.stderr


@pytest.mark.parametrize(
    ("variables", "region", "endpoint"),
    [
        ({}, "us-east-1", "https://s3.amazonaws.com"),
        ({"AWS_PROFILE": "lab"}, "eu-north-1", "http://store.example"),
        ({"AWS_PROFILE": "lab", "AWS_DEFAULT_REGION": "eu-west-3"}, "eu-west-3", "http://store.example"),
        ({"AWS_PROFILE": "lab", "AWS_REGION": "eu-west-3"}, "eu-west-3", "http://store.example"),
        ({"AWS_PROFILE": "lab", "AWS_ENDPOINT_URL": "http://near.example"}, "eu-north-1", "http://near.example"),
    ],
)
def test_copies_use_the_profile(
    bare: pytest.MonkeyPatch, tmp_path: Path, variables: dict[str, str], region: str, endpoint: str
) -> None:
    """Its region and endpoint, unless a variable has others, as when it is read."""
    pytest.importorskip("boto3", reason="S3 copies with boto3")
    from tieconv.sources.objects.s3_copy import S3Copier

    config = tmp_path / "config"
    config.write_text("[profile lab]\nregion = eu-north-1\nendpoint_url = http://store.example\n")
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_PROFILE"):
        bare.delenv(name, raising=False)
    bare.setenv("AWS_CONFIG_FILE", str(config))
    for name, value in variables.items():
        bare.setenv(name, value)
    meta = S3Copier("bucket")._client.meta
    assert (meta.region_name, meta.endpoint_url) == (region, endpoint)
    assert ("addressing_style" in (meta.config.s3 or {})) is ("amazonaws" not in endpoint)
