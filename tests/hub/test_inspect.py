"""Models on the Hub, inspected and planned by ranges: what is said, and what that costs."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.children import sound
from tests.hub.conftest import TOKEN, Run
from tests.hub.models import (
    CONFIG,
    EMBEDDING,
    HEAD,
    ROWS,
    WIDTH,
    inspected,
    local,
    noise,
    same_head,
    sharded,
    states,
    verdict,
    write_shard,
)
from tests.hub.stub import Fault, Hub
from tests.patience import HANGS, received
from tieconv.install import install_command

SIZE = ROWS * WIDTH * 2
NAMES = sorted(path.name for path in (Path(__file__).parents[2] / "fixtures" / "models").iterdir())


@pytest.mark.sampled(8)
@pytest.mark.parametrize("depth", ["header", "full"])
@pytest.mark.parametrize("name", NAMES)
def test_verdict_is_that_of_the_local_model(name: str, depth: str, hub: Hub, tieconv: Run, models: Path) -> None:
    """Where nothing or everything is compared, a model on the Hub is judged as its directory is."""
    repo = hub.add(f"org/{name}", models / name)
    far = inspected(tieconv("inspect", f"hf://org/{name}", "--depth", depth, "--json"))
    near = local(models / name, depth=depth)
    assert verdict(far) == verdict(near)
    assert far["model"]["revision"] == repo.commit  # type: ignore[index]


@pytest.mark.parametrize("name", NAMES)
def test_samples_never_contradict_the_whole(name: str, hub: Hub, tieconv: Run, models: Path) -> None:
    """By samples a tied name is what it is by every byte, or `unread`; `distinct` may be nearer by figures."""
    hub.add(f"org/{name}", models / name)
    far = states(inspected(tieconv("inspect", f"hf://org/{name}", "--json")))
    near = states(local(models / name))
    unequal = {"distinct", "near", "scaled"}
    for member, (state, _) in far.items():
        whole = near[member][0]
        assert state in (whole, "unread") or (state == "distinct" and whole in unequal)
        assert state != "identical"


def test_cost_of_a_sharded_model(hub: Hub, tieconv: Run, python: Run, tmp_path: Path) -> None:
    """An inspection asks for the listing, config, index, one head a shard and two samples, and for no whole shard."""
    hub.add("org/m", sharded(tmp_path / "m"))
    document = inspected(tieconv("inspect", "hf://org/m", "--json"))
    files = [one for one in hub.requests if "/resolve/" in one.path and one.server == "hub"]
    assert len(files) == 2 + 9 + 2
    assert [one.range for one in hub.of("config.json")] == [None]
    brought = hub.sent
    assert brought < 9 * 65536 + 2 * 4096 + 8192
    told = document["model"]["fetched"]  # type: ignore[index]
    sent = sum(one.sent for one in hub.requests if "/api/" not in one.path)
    assert told == {"requests": 1 + 13 + 11, "bytes": sent}
    hub.requests.clear()
    theirs = python(
        "from huggingface_hub import HfApi; m = HfApi().get_safetensors_metadata('org/m'); print(len(m.files_metadata))"
    )
    assert theirs.stdout.strip() == "9", theirs.stderr
    assert brought < hub.sent
    total = sum(path.stat().st_size for path in (tmp_path / "m").iterdir())
    assert brought * 7 < total


def test_question_about_ties_alone(hub: Hub, tieconv: Run, tmp_path: Path) -> None:
    """--ties-only reads config, index, the two headers concerned and one range of each copy; the ties are the same."""
    hub.add("org/m", sharded(tmp_path / "m"))
    whole = inspected(tieconv("inspect", "hf://org/m", "--json"))
    hub.requests.clear()
    document = inspected(tieconv("inspect", "hf://org/m", "--ties-only", "--json"))
    assert (document["ties"], document["head"]) == (whole["ties"], whole["head"])
    files = [one for one in hub.requests if "/resolve/" in one.path and one.server == "hub"]
    assert len(files) == 2 + 2 + 2
    assert len(document["model"]["unread"]) == 7  # type: ignore[index]
    shards = {one.path.partition("?")[0].rpartition("/")[2] for one in files if ".safetensors" in one.path}
    assert shards - {"model.safetensors.index.json"} == {f"model-0000{n}-of-00009.safetensors" for n in (1, 9)}
    assert "7 shards without a tied name not read" in tieconv("inspect", "hf://org/m", "--ties-only").stdout
    assert tieconv("inspect", "hf://org/m", "--ties-only", "--consumers").returncode == 2


@pytest.mark.parametrize("name", NAMES)
def test_ties_alone_are_the_same(name: str, models: Path) -> None:
    """What --ties-only says of ties and head is what the whole model says, of a local one as well."""
    few, whole = local(models / name, ties_only=True), local(models / name)
    assert (few["ties"], few["head"], few["config"]) == (whole["ties"], whole["head"], whole["config"])


def test_distinct_with_its_proof(hub: Hub, tieconv: Run, tmp_path: Path) -> None:
    """`distinct` by a sample names the bytes that differ."""
    hub.add("org/m", sharded(tmp_path / "m"))
    state, detail = states(inspected(tieconv("inspect", "hf://org/m", "--json")))[HEAD]
    assert state == "distinct" and detail["sampled"] is True
    [[start, end]] = detail["ranges_differing"]  # type: ignore[misc]
    assert 0 <= start < end <= SIZE and end - start <= 4096
    text = tieconv("inspect", "hf://org/m")
    assert f"its bytes {start:,} to {end:,} differ" in " ".join(text.stdout.split()) and "fetched" in text.stderr


def test_equal_samples_prove_nothing(hub: Hub, tieconv: Run, tmp_path: Path) -> None:
    """A copy is `unread` until every byte was compared; the hint says how, and then it is `identical`."""
    hub.add("org/m", sharded(tmp_path / "m", head=same_head(), tied=True))
    first = inspected(tieconv("inspect", "hf://org/m", "--json"))
    state, detail = states(first)[HEAD]
    assert state == "unread" and "--depth full" in str(detail["reason"])
    assert first["ties"][0]["consistent"] is None  # type: ignore[index]
    assert "--depth full" in tieconv("inspect", "hf://org/m").stdout
    assert states(inspected(tieconv("inspect", "hf://org/m", "--depth", "full", "--json")))[HEAD][0] == "identical"


def test_one_byte(hub: Hub, tieconv: Run, tmp_path: Path) -> None:
    """The whole comparison finds the one byte that samples miss."""
    head = bytearray(same_head())
    head[7] ^= 1
    hub.add("org/m", sharded(tmp_path / "m", head=bytes(head), tied=True))
    assert states(inspected(tieconv("inspect", "hf://org/m", "--json")))[HEAD][0] == "unread"
    state, detail = states(inspected(tieconv("inspect", "hf://org/m", "--depth", "full", "--json")))[HEAD]
    assert state == "near" and detail["rows_differing"] == 1


def test_each_byte_once(hub: Hub, tieconv: Run, tmp_path: Path) -> None:
    """A proof streams both tensors once: no file is fetched twice over, and none lands on disk."""
    hub.add("org/m", sharded(tmp_path / "m", head=same_head()))
    tieconv("inspect", "hf://org/m", "--depth", "full")
    assert hub.sent < 2 * SIZE + 9 * (65536 + 3 * 4096 + 64) + 65536
    assert not (tmp_path / "hf-home" / "hub").exists()


def layered(path: Path, layers: int = 24) -> Path:
    """A model of three shards: in each layer a matrix and two norms beside it, all of one shape each."""
    path.mkdir()
    weight_map = {}
    for shard in range(3):
        name = f"model-0000{shard + 1}-of-00003.safetensors"
        tensors = {EMBEDDING: ((ROWS, WIDTH), same_head())} if not shard else {}
        tensors |= {HEAD: ((ROWS, WIDTH), same_head())} if shard == 2 else {}
        for layer in range(shard * layers // 3, (shard + 1) * layers // 3):
            start = f"model.layers.{layer}"
            tensors[f"{start}.mlp.up_proj.weight"] = ((WIDTH, WIDTH), noise(WIDTH * WIDTH * 2, layer))
            for norm in ("input_layernorm", "post_attention_layernorm"):
                tensors[f"{start}.{norm}.weight"] = ((WIDTH,), noise(WIDTH * 2, 7))
        write_shard(path / name, tensors)
        weight_map |= dict.fromkeys(tensors, name)
    (path / "config.json").write_text(json.dumps(CONFIG))
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return path


def test_small_reads_travel_together(hub: Hub, tieconv: Run, tmp_path: Path) -> None:
    """At full depth samples come eight at a time and neighbours in one request; the verdict is that of all bytes."""
    hub.add("org/m", layered(tmp_path / "m"))
    hub.together = 4
    far = inspected(tieconv("inspect", "hf://org/m", "--depth", "full", "--json"))
    assert verdict(far) == verdict(local(tmp_path / "m", depth="full"))
    [norms] = [found for found in far["duplicates"] if "norm" in found["tensors"][0]]  # type: ignore[attr-defined]
    assert len(norms["tensors"]) == 48
    asked = [one for one in hub.requests if one.server == "storage"]
    ranges = [(one.path, one.range) for one in asked]
    assert len(ranges) == len(set(ranges))
    # Three headers; a sample, the ends and the norms behind each of 24 matrices; six samples and two streams.
    assert len(asked) <= 3 + 24 + 25 + 24 + 6 + 4
    assert 4 <= hub.most < 2 * 8  # eight at a time; the stub may still count some that the client has read


def test_equal_hashes_of_files(hub: Hub, tieconv: Run, tmp_path: Path) -> None:
    """Files of one hash are equal: a diff of two repositories fetches no tensor of them."""
    sharded(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / "README.md").write_text("a card")
    (tmp_path / "b" / "empty.txt").touch()
    hub.add("org/a", tmp_path / "a")
    hub.add("org/b", tmp_path / "b")
    result = sound(tieconv("diff", "hf://org/a", "hf://org/b"))
    assert "README.md" in result.stdout and "empty.txt" in result.stdout
    assert hub.sent < 2 * (9 * 65536 + 2 * 4096 + 16384)


def test_diff_with_a_directory(hub: Hub, tieconv: Run, tmp_path: Path) -> None:
    """A local model is compared with one on the Hub; other files by their hashes."""
    sharded(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    hub.add("org/a", tmp_path / "a")
    assert tieconv("diff", "hf://org/a", tmp_path / "b").returncode == 0
    assert hub.sent < 9 * 65536 + 16384  # every shard has the hash of its neighbour on disk
    (tmp_path / "b" / "config.json").write_text((tmp_path / "b" / "config.json").read_text() + "\n")
    (tmp_path / "a" / "notes.txt").write_text("one")
    (tmp_path / "b" / "notes.txt").write_text("two")
    result = tieconv("diff", "hf://org/a", tmp_path / "b")
    assert result.returncode == 0 and "notes.txt" in result.stdout


def test_torch_file(hub: Hub, tieconv: Run, tmp_path: Path) -> None:
    """A `.bin` is read from its directory: the tensors stay where they are."""
    import torch

    (tmp_path / "m").mkdir()
    embedding = torch.randn(ROWS, WIDTH)
    other = torch.randn(64 * 1024, 16)
    stored = {EMBEDDING: embedding, "model.x": other, HEAD: embedding.clone()}
    torch.save(stored, tmp_path / "m" / "pytorch_model.bin")
    config = '{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": true}'
    (tmp_path / "m" / "config.json").write_text(config)
    hub.add("org/m", tmp_path / "m")
    far = inspected(tieconv("inspect", "hf://org/m", "--json"))
    near = inspected(tieconv("inspect", tmp_path / "m", "--json"))
    assert far["storage"] == near["storage"] and far["head"] == near["head"]
    assert states(far)[HEAD][0] == "unread"
    assert hub.sent < 3 * 65536


def test_torch_storages_without_their_local_headers(tmp_path: Path) -> None:
    """Where a storage lies is derived from the directory as the local header says it, or not at all."""
    import torch

    from tieconv.formats.torch.archive import read_archive

    for number, sizes in enumerate([(1, 3, 700), (4096, 64, 16, 48), (100_000, 1, 2)]):
        path = tmp_path / f"{number}.bin"
        torch.save({f"t{place}": torch.randn(size) for place, size in enumerate(sizes)}, path)
        data = path.read_bytes()
        asked: list[int] = []

        def pread(size: int, offset: int, data: bytes = data, asked: list[int] = asked) -> bytes:
            asked.append(offset)
            return data[offset : offset + size]

        assert read_archive(pread, len(data), sparse=True) == read_archive(pread, len(data))


def peak(depth: str, environment: dict[str, str]) -> tuple[str, int]:
    """What `inspect` prints at a depth, and the most KiB that its process held."""
    program = (
        "import sys; from tieconv.cli import main\n"
        f"main(['inspect', 'hf://org/m', '--depth', '{depth}', '--json'], standalone_mode=False)\n"
        "print([line for line in open('/proc/self/status') if 'VmHWM' in line][0].split()[1], file=sys.stderr)"
    )
    words = [sys.executable, "-c", program]
    result = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=HANGS)
    return result.stdout, int(result.stderr.split()[-1])


@pytest.mark.parametrize("state", ["identical", pytest.param("near", marks=pytest.mark.slow)])
def test_cost_of_a_proof(state: str, hub: Hub, environment: dict[str, str], tmp_path: Path) -> None:
    """A proof over two tensors of 96 MB takes less than 16 MiB of memory, reads each once and as a stream."""
    from tieconv.formats.safetensors import encode_header

    size = 96 << 20
    (tmp_path / "m").mkdir()
    shape = (size // 2048, 1024)
    weight_map = {name: f"model-0000{i}-of-00002.safetensors" for i, name in ((1, EMBEDDING), (2, HEAD))}
    for name, file in weight_map.items():
        header = encode_header([(name, "BF16", shape, size)], None)
        (tmp_path / "m" / file).write_bytes(header)
        os.truncate(tmp_path / "m" / file, len(header) + size)
    (tmp_path / "m" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (tmp_path / "m" / "config.json").write_text(json.dumps(CONFIG))
    if state == "near":
        with (tmp_path / "m" / weight_map[HEAD]).open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\x01")
    hub.add("org/m", tmp_path / "m")
    (_, least), (printed, most) = (peak(depth, environment) for depth in ("header", "full"))
    assert states(json.loads(printed))[HEAD][0] == state, printed
    assert most - least < 16 * 1024
    assert hub.sent < 2 * size + (1 << 20)
    assert len([one for one in hub.requests if one.server == "storage"]) < 110


def test_progress(hub: Hub, environment: dict[str, str], tieconv: Run, tmp_path: Path) -> None:
    """Headers that arrive are counted on stderr where that is a terminal; stdout has the result alone."""
    hub.add("org/m", sharded(tmp_path / "m"))
    piped = tieconv("inspect", "hf://org/m")
    assert "headers" not in piped.stderr
    master, slave = pty.openpty()
    # The bar waits for half a second of work, which a fast machine does not need.
    bar = "from tieconv.cli import main, screen; screen.PATIENCE = -1; main(prog_name='tieconv')"
    words = [sys.executable, "-P", "-c", bar, "inspect", "hf://org/m"]
    environment = {**environment, "TERM": "xterm"}
    done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, stderr=slave, timeout=HANGS)
    os.close(slave)
    said = received(master).decode()
    assert done.stdout.decode() == piped.stdout
    assert "headers" in said and "9/9" in said and "fetched" in said


def test_through_a_proxy(hub: Hub, tieconv: Run, models: Path) -> None:
    """The proxy of the environment is used, as huggingface_hub uses it; a host that only it knows is found."""
    hub.add("org/m", models / "llama-tied")
    given = {"HF_ENDPOINT": "http://hub.invalid", "HTTP_PROXY": hub.url, "http_proxy": hub.url}
    assert tieconv("inspect", "hf://org/m", **given).returncode == 0
    assert all(one.path.startswith("http://hub.invalid/") for one in hub.requests if one.server == "hub")


@pytest.mark.parametrize("revision", ["main", "commit"])
def test_revision(revision: str, hub: Hub, tieconv: Run, models: Path) -> None:
    """A branch and a commit name a model; both print the commit."""
    repo = hub.add("org/m", models / "llama-tied")
    result = tieconv("inspect", f"hf://org/m@{repo.commit if revision == 'commit' else revision}")
    assert result.returncode == 0 and repo.commit in result.stdout


def test_token_stays_at_the_hub(hub: Hub, hasty: Run, models: Path) -> None:
    """The login goes to the endpoint and to no storage behind it, and is never printed."""
    hub.add("org/m", models / "llama-tied", gated=True)
    hub.faults["config.json"] = Fault("status", value="500")
    for words in (("inspect", "hf://org/m", "--json"), ("inspect", "hf://org/m", "--traceback")):
        result = hasty(*words, HF_TOKEN=TOKEN)
        assert TOKEN not in result.stdout + result.stderr
        assert "signed-secret" not in result.stdout + result.stderr
    asked = {one.authorization for one in hub.requests if one.server == "hub" and "/resolve/" in one.path}
    assert asked == {f"Bearer {TOKEN}"}
    assert {one.authorization for one in hub.requests if one.server == "storage"} == {None}


def test_token_stays_out_of_the_log(hub: Hub, tieconv: Run, models: Path) -> None:
    """HF_DEBUG makes huggingface_hub write its requests to stderr: addresses, and never the login."""
    hub.add("org/m", models / "llama-tied", gated=True)
    logged = ""
    for words in (
        ("inspect", "hf://org/m", "--depth", "full"),
        ("untie", "hf://org/m", "-o", "out"),
        ("push", "out", "hf://org/m", "--yes"),
        ("inspect", "hf://org/absent"),
        ("inspect", "hf://org/absent", "--traceback"),
    ):
        result = tieconv(*words, HF_TOKEN=TOKEN, HF_DEBUG="1")
        assert (result.returncode == 0) is ("absent" not in words[1]), result.stderr
        assert TOKEN not in result.stdout + result.stderr
        logged += result.stderr
    assert "authorization: <TOKEN>" in logged
    assert f"Bearer {TOKEN}" in {one.authorization for one in hub.requests}


def test_no_network_unasked(hub: Hub, tieconv: Run, models: Path) -> None:
    """Without an hf:// argument no request is made and huggingface_hub is not imported."""
    result = tieconv("check", models / "llama-tied", models / "llama-duplicated")
    assert result.returncode in (0, 1)
    assert hub.requests == []


def test_without_huggingface_hub(hub: Hub, tieconv: Run, tmp_path: Path) -> None:
    """Without the package one sentence says how to get it."""
    (tmp_path / "blocked").mkdir()
    (tmp_path / "blocked" / "huggingface_hub.py").write_text("raise ImportError('no', name='huggingface_hub')")
    root = Path(__file__).parents[2]
    result = tieconv("inspect", "hf://org/m", PYTHONPATH=f"{tmp_path / 'blocked'}:{root}")
    assert result.returncode == 2
    assert f"hint: {install_command('hub')}" in result.stderr.splitlines()


def test_names_that_the_hub_takes(hub: Hub, tieconv: Run, models: Path) -> None:
    """A name may begin and end with an underscore; who pastes the address of a page is told how to write it."""
    hub.add("_org/_m_", models / "llama-tied")
    assert tieconv("inspect", "hf://_org/_m_", "--depth", "header").returncode == 0
    hub.requests.clear()
    for page in ("https://huggingface.co/org/m", "https://huggingface.co/org/m/tree/main?x=1", "https://hf.co/org/m"):
        assert tieconv("inspect", page).stderr.endswith("hint: for the model on the Hub write hf://org/m\n")
    assert hub.requests == []


@pytest.mark.parametrize(
    "name",
    ["hf://", "hf://org", "hf://org/", "hf://datasets/org/name", "hf://org/..", "hf://org/a--b", "hf://o/n@", "hf://o/n@../x",
     "hf://o/n@a b", "hf://o/n@\x1b[2J", "hf://o/n.git", "hf:///n", "hf://org/na me"],
)  # fmt: skip
def test_no_name(name: str, hub: Hub, tieconv: Run) -> None:
    """What is no repository is refused before any request."""
    result = tieconv("inspect", name)
    assert result.returncode == 2 and result.stderr.isprintable() is False
    assert [line.split(":")[0] for line in result.stderr.splitlines()] == ["error", "hint"]
    assert "\x1b" not in result.stderr and hub.requests == []


VERBS = [
    ("untie", "--keep-flag"), ("retie",), ("set-tie", "false"), ("dedup",), ("bias", "zero"), ("bias", "resize"),
    ("bias", "unify"), ("convert", "--to", "torch"), ("reindex",), ("reindex", "--add-format"),
]  # fmt: skip
CASES = [
    *((words, model) for words in VERBS for model in ("llama-duplicated", "bert-mlm")),
    (("untie",), "llama-tied-sharded"), (("reindex",), "llama-tied-sharded"),
    (("reindex", "--add-format"), "llama-tied-sharded"), (("untie",), "gpt2-unprefixed"),
]  # fmt: skip


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("words", "model"), CASES, ids=str)
def test_plan_is_that_of_the_local_model(
    words: tuple[str, ...], model: str, hub: Hub, tieconv: Run, models: Path, tmp_path: Path
) -> None:
    """Without -o a plan, or a refusal, is what it is for the directory, and the cache stays empty."""
    hub.add("org/m", models / model)
    far, near = tieconv(*words, "hf://org/m", "--json"), tieconv(*words, models / model, "--json")
    assert far.returncode == near.returncode, far.stderr + near.stderr
    if near.returncode == 0:
        told, known = json.loads(far.stdout), json.loads(near.stdout)
        assert (told.pop("source"), told) == ("hf://org/m", {k: v for k, v in known.items() if k != "source"})
        assert "fetched" in far.stderr
    else:
        assert far.stderr == near.stderr.replace(str(models / model), "hf://org/m")
    assert not (tmp_path / "hf-home" / "hub").exists()


@pytest.mark.parametrize("shards", [1, 3])
def test_a_format_is_added_on_the_way(shards: int, hub: Hub, tieconv: Run, tmp_path: Path) -> None:
    """Files without metadata on the Hub name a format in OUT, in one file and in shards; nothing else is new there."""
    hub.add("org/m", sharded(tmp_path / "m", shards=shards, head=same_head()))
    source = tmp_path / "m"
    if shards == 1:
        (source / "model.safetensors.index.json").unlink()
        next(source.glob("*.safetensors")).rename(source / "model.safetensors")
    sound(tieconv("reindex", "hf://org/m", "--add-format", "-o", "out"))
    for path in source.iterdir():
        written = (tmp_path / "out" / path.name).read_bytes()
        if path.suffix != ".safetensors":
            assert written == path.read_bytes()
            continue
        head = int.from_bytes(written[:8], "little")
        assert json.loads(written[8 : 8 + head])["__metadata__"] == {"format": "pt"}
        old = path.read_bytes()
        assert written[8 + head :] == old[8 + int.from_bytes(old[:8], "little") :]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "words", [("set-tie", "true"), ("bias", "zero"), ("convert", "--to", "torch"), ("untie",)], ids=" ".join
)
def test_cost_of_a_plan(words: tuple[str, ...], hub: Hub, tieconv: Run, tmp_path: Path) -> None:
    """A plan that has nothing to prove reads the headers: of a tied model no tensor at all."""
    sound(tieconv("retie", sharded(tmp_path / "m", shards=3), "--from", "embed", "--force", "-o", "tied"))
    hub.add("org/m", tmp_path / "tied")
    sound(tieconv(*words, "hf://org/m"))
    assert hub.sent < 3 * 65536 + 16384


def test_a_proof_streams_the_pair(hub: Hub, tieconv: Run, tmp_path: Path) -> None:
    """To plan a re-tie of two copies both are compared, each byte once, and no other tensor is read."""
    hub.add("org/m", sharded(tmp_path / "m", head=same_head()))
    result = sound(tieconv("retie", "hf://org/m", "--dry-run", "-o", "out"))
    assert "drop" in result.stdout and not (tmp_path / "out").exists()
    assert 2 * SIZE - 2 * 65536 < hub.sent < 2 * SIZE + 9 * 65536 + 7 * 8192 + 65536
    (tmp_path / "out").mkdir()
    assert "exists" in tieconv("untie", "hf://org/m", "--dry-run", "-o", "out").stderr


def test_plan_carried_out_later(hub: Hub, tieconv: Run, python: Run, models: Path, tmp_path: Path) -> None:
    """`execute` fetches and writes what the command writes; a branch that moved on meanwhile stops it."""
    hub.add("org/m", models / "llama-duplicated")
    program = """
import os, sys, tieconv
plan = tieconv.plan_retie("hf://org/m")
assert not os.path.exists(os.environ["HF_HOME"] + "/hub")
print(plan.execute("far").output)
"""
    sound(python(program))
    assert tieconv("retie", models / "llama-duplicated", "-o", "near").returncode == 0
    for path in (tmp_path / "near").iterdir():
        assert path.read_bytes() == (tmp_path / "far" / path.name).read_bytes()
    moved = python(
        "import tieconv, dataclasses\n"
        "plan = tieconv.plan_retie('hf://org/m')\n"
        "old = dataclasses.replace(plan.plan.checkpoint, revision='f' * 40)\n"
        "plan = dataclasses.replace(plan, plan=dataclasses.replace(plan.plan, checkpoint=old))\n"
        "try: plan.execute('again')\n"
        "except tieconv.TieconvError as error: print(error.code)"
    )
    assert moved.stdout.strip() == "plan.stale", moved.stderr
    assert not (tmp_path / "again").exists()
