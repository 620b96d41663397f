"""`check` takes prefixes and patterns of an object store, lists of models, and filters by name and age."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta

import pytest

from fixtures.gguf_bytes import F32, gguf
from tests.children import sound
from tests.objects.conftest import MODELS, Run
from tests.objects.stub import LIST, Store
from tests.refusals import failure_of
from tieconv import SettingsError, UnreadableError
from tieconv.api.check import expand

ROOT = "s3://bucket/models"


@pytest.fixture(autouse=True)
def bucket(store: Store) -> None:
    """Models at several depths, a hidden directory, and a directory without weights."""
    for prefix in ("models/llama-a", "models/llama-b", "models/deep/t5", "models/.trash/old"):
        store.add(prefix, MODELS / "t5")
    store.add("models/llama-a/onnx", MODELS / "llama-tied")
    store.objects["models/docs/readme.md"] = b"no weights"


@pytest.mark.parametrize(
    ("source", "options", "expected"),
    [
        ("/", {}, ["deep/t5", "llama-a", "llama-a/onnx", "llama-b"]),
        ("/llama-*", {}, ["llama-a", "llama-a/onnx", "llama-b"]),
        ("/*/t5", {}, ["deep/t5"]),
        ("/llama-[b]", {}, ["llama-b"]),
        ("/llama-a/", {}, ["llama-a"]),
        ("/llama-a/", {"recursive": True}, ["llama-a", "llama-a/onnx"]),
        ("/llama-a", {"recursive": True}, ["llama-a", "llama-a/onnx"]),
        ("/llama-a", {}, ["llama-a"]),
        ("/", {"limit": 2}, ["deep/t5", "llama-a"]),
        ("/", {"include": ["llama-*"]}, ["llama-a", "llama-b"]),
        ("/", {"exclude": ["s3://bucket/models/llama-*"]}, ["deep/t5"]),
        ("/", {"include": ["llama-*", "onnx"], "exclude": ["*-b"], "limit": 1}, ["llama-a"]),
    ],
)
def test_the_models_of_an_address(store: Store, source: str, options: dict[str, object], expected: list[str]) -> None:
    """From one listing; an address without a slash at its end is one model, and needs none."""
    assert expand([ROOT + source], **options) == tuple(f"{ROOT}/{name}" for name in expected)  # type: ignore[arg-type]
    single = source == "/llama-a" and not options
    assert [request.key for request in store.requests] == ([] if single else [LIST])


@pytest.mark.parametrize("source", ["s3://bucket/models/docs/", "s3://bucket/none/", "s3://bucket/models/none-*"])
def test_a_prefix_without_models(source: str) -> None:
    """Is an error, because a mistyped prefix must not pass a gate."""
    assert failure_of(expand, UnreadableError, [source]).code == "objects.no-models"


def test_models_that_changed_lately(store: Store) -> None:
    """The newest file of a model decides, from the same listing."""
    now = datetime.now(UTC)
    for key in store.objects:
        store.modified[key] = (now - timedelta(days=30)).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    store.modified["models/llama-b/config.json"] = (now - timedelta(hours=5)).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    assert expand([f"{ROOT}/"], newer_than="1d") == (f"{ROOT}/llama-b",)
    assert len(store.requests) == 1
    assert expand([f"{ROOT}/"], newer_than="4h") == ()
    assert len(expand([f"{ROOT}/"], newer_than="8w")) == 4
    assert expand([f"{ROOT}/llama-a", f"{ROOT}/llama-b"], newer_than="12h") == (f"{ROOT}/llama-b",)


def test_the_age_of_a_model_that_cannot_be_read(store: Store) -> None:
    """Is unknown, so it is checked, and the check says why."""
    assert expand(["s3://bucket/none"], newer_than="1d") == ("s3://bucket/none",)


def test_a_directory_of_several_gguf_files(store: Store, tieconv: Run) -> None:
    """The error about a release in a store names each file by its address, and the hint's commands work."""
    data = gguf([("token_embd.weight", (8, 32), F32, bytes(1024))])
    for name in ("m-Q4_K_M", "m-Q8_0", "mmproj-m"):
        store.objects[f"rel/{name}.gguf"] = data
    paths = ["s3://bucket/rel/m-Q4_K_M.gguf", "s3://bucket/rel/m-Q8_0.gguf"]
    result = tieconv("inspect", "s3://bucket/rel")
    assert (result.returncode, result.stdout) == (2, ""), result.stderr
    error, hint = result.stderr.splitlines()
    assert error == "error: s3://bucket/rel holds 2 GGUF models: m-Q4_K_M.gguf, m-Q8_0.gguf"
    assert hint.endswith(f"give the path of one of them: {paths[0]}; or check each: tieconv check {' '.join(paths)}")
    answer = json.loads(tieconv("check", "--json", *paths).stdout)
    assert [(model["source"], model["failure"]) for model in answer["models"]] == [(path, None) for path in paths]


def test_a_list_on_stdin(tieconv: Run) -> None:
    """One address a line; local models, patterns and prefixes may stand beside each other."""
    listing = f"# models\n\ns3://bucket/models/llama-b\n  {MODELS / 't5'}\ns3://bucket/models/deep/\n"
    result = sound(tieconv("check", "-", stdin=listing))
    rows = ["model", "s3://bucket/models/llama-b", str(MODELS / "t5"), "s3://bucket/models/deep/t5"]
    assert [line.split()[0] for line in result.stdout.rpartition("\n\n")[2].splitlines()] == rows


def test_the_processes_of_a_prefix(tieconv: Run) -> None:
    """obstore does not survive a fork: the processes start without the connections of the listing."""
    single, parallel = (tieconv("check", f"{ROOT}/", "-j", jobs) for jobs in ("1", "3"))
    assert single.returncode == parallel.returncode == 0, parallel.stderr
    assert single.stdout == parallel.stdout


def test_no_model_passes_the_filters(tieconv: Run) -> None:
    """A nightly run without new models passes."""
    result = tieconv("check", f"{ROOT}/", "--newer-than", "2999-01-01")
    assert result.returncode == 0
    assert result.stderr.endswith("0 models: none changed since --newer-than. The check passed.\n")


def test_options_that_need_a_pattern(tieconv: Run) -> None:
    for option, value in (("--task", "text-generation"), ("--limit", "3")):
        result = tieconv("check", MODELS / "t5", option, value)
        assert result.returncode == 2 and f"{option} needs a pattern" in result.stderr


@pytest.mark.parametrize("text", ["yesterday", "7", "7y", "-1d", "2026-13-01", "\x1b[31m"])
def test_an_age_that_is_none(text: str) -> None:
    assert "\x1b" not in failure_of(expand, SettingsError, [os.curdir], newer_than=text).message
