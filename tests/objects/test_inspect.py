"""A model in an object store is the same model as on the disk; prefixes, patterns, lists and filters of models."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fixtures.gguf_bytes import F32, gguf
from tests.hub.models import local, same_head, sharded, states, verdict
from tests.objects.conftest import SECRETS, Run
from tests.objects.stub import LIST, Store
from tieconv import SettingsError, UnreadableError, check, diff, inspect
from tieconv.api.check import expand

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "fixtures" / "models"
NAMES = sorted(path.name for path in MODELS.iterdir() if path.is_dir())
SINGLE = [name for name in NAMES if "sharded" not in name]


def remote(source: str, **options: object) -> dict[str, object]:
    """What `inspect --json` says of a model in the store."""
    return dict(json.loads(str(inspect(source, **options))))  # type: ignore[arg-type]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_the_evidence_is_that_of_the_disk(store: Store, name: str, scheme: str) -> None:
    """With every byte read, nothing of the report depends on where the model is."""
    store.add(f"models/{name}", MODELS / name)
    assert verdict(remote(f"{scheme}://bucket/models/{name}", depth="full")) == verdict(
        local(MODELS / name, depth="full")
    )


@pytest.mark.slow
def test_300_models_have_the_findings_of_the_disk(store: Store, tmp_path: Path) -> None:
    """At most four requests and 100 kB each, and one listing of a thousand keys a page for all of them."""
    copies = [f"{number:03d}-{SINGLE[number % len(SINGLE)]}" for number in range(300)]
    for copy in copies:
        store.add(f"models/{copy}", MODELS / copy[4:])
    expanded = expand(["s3://bucket/models/"])
    assert expanded == tuple(f"s3://bucket/models/{copy}" for copy in copies)
    assert len(store.requests) == len(store.objects) // 1000 + 1
    store.requests.clear()
    report = check(expanded)
    expected = {name: _findings(check(MODELS / name)) for name in SINGLE}
    for model, copy in zip(report.models, copies, strict=True):
        assert [(entry.finding.rule, entry.finding.message) for entry in model.findings] == expected[copy[4:]]
        prefix = f"models/{copy}"
        of_model = [
            request
            for request in store.requests
            if request.key.startswith(f"{prefix}/") or request.query.get("prefix") == [f"{prefix}/"]
        ]
        assert len(of_model) <= 4, copy
        assert sum(request.sent for request in of_model) <= 100_000
    assert len(store.requests) <= 4 * 300


def _findings(report: object) -> list[tuple[str, str]]:
    [model] = report.models  # type: ignore[attr-defined]
    return [(entry.finding.rule, entry.finding.message) for entry in model.findings]


def test_samples_of_a_large_model(store: Store, tmp_path: Path) -> None:
    """One listing, the index, the config, a header of each shard and two samples; the shards are not read."""
    store.add("m", sharded(tmp_path / "m", 4, head=same_head(), tied=True))
    document = remote("s3://bucket/m")
    assert states(document)["lm_head.weight"][0] == "unread"
    assert len(store.requests) == 1 + 2 + 4 + 2
    assert store.sent < 4 * 65_536 + 30_000
    store.requests.clear()
    assert states(remote("s3://bucket/m", depth="full"))["lm_head.weight"][0] == "identical"


def test_every_request_is_signed_and_for_the_listed_etag(store: Store) -> None:
    """A listing is the only request without a condition. Signatures use the key of the environment."""
    store.add("m", MODELS / "t5")
    inspect("s3://bucket/m")
    assert store.requests[0].key == LIST
    for request in store.requests:
        assert "AKIAKEYID" in (request.authorization or "")
        assert request.key == LIST or request.if_match == store.etag(request.key)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_file_is_named(store: Store, name: str) -> None:
    """A file is listed with its directory, without the directories below."""
    store.add("m", MODELS / "t5")
    store.objects["m/deep/model.safetensors"] = b"no weights"
    if name.endswith("json"):
        with pytest.raises(UnreadableError):
            inspect(f"s3://bucket/m/{name}")
        return
    document = inspect(f"s3://bucket/m/{name}")
    assert document.checkpoint.source == "s3://bucket/m/model.safetensors"
    assert [request.query.get("delimiter") for request in store.requests if request.key == LIST] == [["/"]]


def test_an_index_is_named(store: Store, tmp_path: Path) -> None:
    """An index means its directory."""
    store.add("m", MODELS / "llama-tied-sharded")
    document = inspect("s3://bucket/m/model.safetensors.index.json")
    assert len(document.checkpoint.files) == 3


def test_a_bucket_can_be_a_model(store: Store) -> None:
    """The files of a model may lie at the top of a bucket."""
    for path in (MODELS / "t5").iterdir():
        store.objects[path.name] = path.read_bytes()
    assert inspect("s3://bucket").checkpoint.files[0].name == "model.safetensors"


def test_objects_that_mark_directories_are_no_files(store: Store) -> None:
    """The consoles of the clouds write an empty object for each directory."""
    store.add("m", MODELS / "t5")
    store.objects |= {"m/": b"", "m/sub/": b"", "m/sub/notes.txt": b"notes"}
    assert set(inspect("s3://bucket/m/").checkpoint.companions) == {"generation_config.json", "sub/notes.txt"}


def test_the_command_counts_what_it_fetched(store: Store, tieconv: Run) -> None:
    """On stderr and in JSON; the revision is a hash of the listing."""
    store.add("m", MODELS / "llama-untied")
    result = tieconv("inspect", "s3://bucket/m")
    assert result.returncode == 0
    assert result.stderr == "fetched 58.5 kB in 3 requests\n"
    assert "listing" in result.stdout
    model = json.loads(tieconv("inspect", "--json", "s3://bucket/m").stdout)["model"]
    assert model["fetched"] == {"requests": 3, "bytes": store.sent_of_files} and len(model["revision"]) == 64
    for secret in SECRETS[:2]:
        assert secret not in result.stdout + result.stderr


def test_a_diff_with_the_disk(store: Store) -> None:
    """Both ways, and files beside the weights are compared by their bytes."""
    store.add("m", MODELS / "llama-untied")
    store.objects["m/config.json"] += b" "
    store.objects["m/notes.txt"] = b"notes"
    first = diff("s3://bucket/m", MODELS / "llama-untied")
    assert first.same_function
    assert [(entry.name, str(entry.contrast)) for entry in first.files] == [("notes.txt", "only_a")]
    store.add("n", MODELS / "llama-duplicated")
    assert not diff("s3://bucket/m", "gs://bucket/n").same_function


SOURCES = Path(__file__).parents[2] / "fixtures" / "models"
PREFIX = "s3://bucket/models"


@pytest.fixture(autouse=True)
def bucket(store: Store) -> None:
    """Models at several depths, a hidden directory, and a directory without weights."""
    for prefix in ("models/llama-a", "models/llama-b", "models/deep/t5", "models/.trash/old"):
        store.add(prefix, SOURCES / "t5")
    store.add("models/llama-a/onnx", SOURCES / "llama-tied")
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
    assert expand([PREFIX + source], **options) == tuple(f"{PREFIX}/{name}" for name in expected)  # type: ignore[arg-type]
    single = source == "/llama-a" and not options
    assert [request.key for request in store.requests] == ([] if single else [LIST])


@pytest.mark.parametrize("source", ["s3://bucket/models/docs/", "s3://bucket/none/", "s3://bucket/models/none-*"])
def test_a_prefix_without_models(source: str) -> None:
    """Is an error, because a mistyped prefix must not pass a gate."""
    with pytest.raises(UnreadableError) as raised:
        expand([source])
    assert raised.value.code == "objects.no-models"


def test_models_that_changed_lately(store: Store) -> None:
    """The newest file of a model decides, from the same listing."""
    now = datetime.now(UTC)
    for key in store.objects:
        store.modified[key] = (now - timedelta(days=30)).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    store.modified["models/llama-b/config.json"] = (now - timedelta(hours=5)).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    assert expand([f"{PREFIX}/"], newer_than="1d") == (f"{PREFIX}/llama-b",)
    assert len(store.requests) == 1
    assert expand([f"{PREFIX}/"], newer_than="4h") == ()
    assert len(expand([f"{PREFIX}/"], newer_than="8w")) == 4
    assert expand([f"{PREFIX}/llama-a", f"{PREFIX}/llama-b"], newer_than="12h") == (f"{PREFIX}/llama-b",)


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
    listing = f"# models\n\ns3://bucket/models/llama-b\n  {SOURCES / 't5'}\ns3://bucket/models/deep/\n"
    result = tieconv("check", "-", stdin=listing)
    assert result.returncode == 0, result.stderr
    assert [line.split()[0] for line in result.stdout.rpartition("\n\n")[2].splitlines()] == [
        "model",
        "s3://bucket/models/llama-b",
        str(SOURCES / "t5"),
        "s3://bucket/models/deep/t5",
    ]


def test_the_processes_of_a_prefix(tieconv: Run) -> None:
    """obstore does not survive a fork: the processes start without the connections of the listing."""
    single, parallel = (tieconv("check", f"{PREFIX}/", "-j", jobs) for jobs in ("1", "3"))
    assert single.returncode == parallel.returncode == 0, parallel.stderr
    assert single.stdout == parallel.stdout


def test_no_model_passes_the_filters(tieconv: Run) -> None:
    """A nightly run without new models passes."""
    result = tieconv("check", f"{PREFIX}/", "--include", "gpt*")
    assert (result.returncode, result.stdout) == (0, "\n") or result.returncode == 0
    assert result.stderr.endswith("0 models: no finding. The check passed.\n")


def test_options_that_need_a_pattern(tieconv: Run) -> None:
    for option, value in (("--task", "text-generation"), ("--limit", "3")):
        result = tieconv("check", SOURCES / "t5", option, value)
        assert result.returncode == 2 and f"{option} needs a pattern" in result.stderr


@pytest.mark.parametrize("text", ["yesterday", "7", "7y", "-1d", "2026-13-01", "\x1b[31m"])
def test_an_age_that_is_none(text: str) -> None:
    with pytest.raises(SettingsError) as raised:
        expand([os.curdir], newer_than=text)
    assert "\x1b" not in raised.value.message
