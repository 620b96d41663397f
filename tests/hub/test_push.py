"""`tieconv push`: exactly the changed files, a pull request unless told otherwise, and nothing unasked."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import pty
import random
import select
import shutil
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import children
from tests.children import sound
from tests.cli.stored import configure
from tests.hub.conftest import ROOT, TOKEN, Run
from tests.hub.models import HEAD, same_head, sharded
from tests.hub.stub import Fault, Hub
from tests.patience import HANGS
from tests.python.test_reference import EXAMPLES, PAGE


def operations(hub: Hub) -> dict[str, str]:
    """Each file of the one commit, and what becomes of it."""
    [commit] = hub.commits
    kinds = {"file": "regular", "lfsFile": "lfs", "deletedFile": "delete"}
    return {line["value"]["path"]: kinds[line["key"]] for line in commit["lines"] if line["key"] != "header"}


@pytest.fixture
def changed(hub: Hub, tieconv: Run, models: Path, tmp_path: Path) -> Path:
    """A model of the Hub, untied into a directory."""
    hub.add("org/m", models / "llama-tied")
    sound(tieconv("untie", "hf://org/m", "-o", tmp_path / "out"))
    hub.requests.clear()
    return tmp_path / "out"


def test_changed_files_alone(changed: Path, hub: Hub, tieconv: Run) -> None:
    """A pull request holds the files that differ, and the plan as its description."""
    result = sound(tieconv("push", changed, "hf://org/m", "--create-pr", "--yes", HF_TOKEN=TOKEN))
    assert operations(hub) == {"config.json": "regular", "model.safetensors": "lfs"}
    [commit] = hub.commits
    assert commit["query"]["create_pr"] == ["1"]
    header = commit["lines"][0]["value"]
    assert header["parentCommit"] == hub.repos["org/m"].commit
    assert "lm_head.weight" in header["description"] and "model.safetensors" in header["description"]
    assert header["description"].splitlines()[0] in result.stdout
    assert f"{hub.url}/org/m/discussions/7" in result.stderr
    assert hub.uploads == {hub.sha256(changed / "model.safetensors"): (changed / "model.safetensors").read_bytes()}
    config = next(line for line in commit["lines"] if line["key"] == "file")["value"]["content"]
    assert base64.b64decode(config) == (changed / "config.json").read_bytes()
    assert TOKEN not in result.stdout + result.stderr


def test_asks_first(changed: Path, hub: Hub, tieconv: Run) -> None:
    """Without a terminal to ask on and without --yes the plan is printed and nothing is sent."""
    result = tieconv("push", changed, "hf://org/m", stdin="y\n", HF_TOKEN=TOKEN)
    assert result.returncode == 2 and "--yes" in result.stderr and "model.safetensors" in result.stdout
    dry = tieconv("push", changed, "hf://org/m", "--dry-run", "--json")
    assert dry.returncode == 0 and json.loads(dry.stdout)["executed"] is False
    assert hub.commits == [] and hub.uploads == {}
    assert {one.method for one in hub.requests} == {"GET"}


def test_to_main_only_when_told(changed: Path, hub: Hub, tieconv: Run) -> None:
    """--no-pr is what it takes to change main, and the title is the user's."""
    result = sound(tieconv("push", changed, "hf://org/m", "--no-pr", "--yes", "-m", "untie", "--json", HF_TOKEN=TOKEN))
    [commit] = hub.commits
    assert "create_pr" not in commit["query"] and commit["revision"] == "main"
    assert commit["lines"][0]["value"]["summary"] == "untie"
    assert json.loads(result.stdout)["url"].endswith("c" * 40)
    branch = tieconv("push", changed, "hf://org/m@dev", "--yes")
    assert branch.returncode == 2 and "--no-pr" in branch.stderr


def test_nothing_differs(hub: Hub, tieconv: Run, models: Path, tmp_path: Path) -> None:
    """A model that is there already is not pushed."""
    hub.add("org/m", models / "llama-tied")
    shutil.copytree(models / "llama-tied", tmp_path / "same")
    result = tieconv("push", tmp_path / "same", "hf://org/m", "--yes")
    assert result.returncode == 0 and "no file differs" in result.stderr
    assert hub.commits == []


def test_shard_that_is_gone(hub: Hub, tieconv: Run, tmp_path: Path) -> None:
    """A shard that the model no longer has is deleted; a file that the directory merely lacks stays."""
    near = sharded(tmp_path / "m", shards=3)
    far = Path(shutil.copytree(near, tmp_path / "far"))
    (far / "notes.txt").write_text("kept")
    hub.add("org/m", far)
    entries = json.loads((near / "model.safetensors.index.json").read_text())["weight_map"]
    gone = "model-00002-of-00003.safetensors"
    (near / gone).unlink()
    left = {name: shard for name, shard in entries.items() if shard != gone}
    (near / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": left}))
    sound(tieconv("push", near, "hf://org/m", "--yes", HF_TOKEN=TOKEN))
    assert operations(hub) == {"model.safetensors.index.json": "regular", gone: "delete"}


def test_refused_by_the_hub(hub: Hub, tieconv: Run, models: Path, tmp_path: Path) -> None:
    """A login that no write access is told so."""
    repo = hub.add("org/m", models / "llama-tied")
    shutil.copytree(models / "llama-untied", tmp_path / "new")
    hub.read_only = True
    result = tieconv("push", tmp_path / "new", "hf://org/m", "--yes", HF_TOKEN="hf_reader")
    assert result.returncode == 2 and "no write access" in result.stderr
    assert "hf_reader" not in result.stderr and "secret words" not in result.stderr
    assert repo.commit in result.stdout


KINDS = {"DropTensor": "drop", "CopyTensor": "add", "FillTensor": "add", "ScaleTensor": "add", "ResizeTensor": "change"}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("words", "model"),
    [
        (("untie",), "llama-tied"),
        (("untie", "--bias", "zero"), "llama-tied-sharded"),
        (("untie",), "t5"),
        (("retie",), "llama-duplicated"),
        (("set-tie", "false"), "llama-duplicated"),
        (("dedup",), "llama-duplicated"),
        (("bias", "zero"), "llama-untied-sharded"),
        (("convert", "--to", "torch"), "llama-tied"),
    ],
    ids=str,
)
def test_description_is_the_plan(words: tuple[str, ...], model: str, hub: Hub, tieconv: Run, models: Path) -> None:
    """The operations of the verb's own plan are those of the pull request, each proved by the bytes."""
    hub.add("org/m", models / model)
    written = sound(tieconv(*words, "hf://org/m", "-o", "out", "--json"))
    plan = json.loads(written.stdout)["operations"]
    result = tieconv("push", "out", "hf://org/m", "--dry-run", "--json")
    push = json.loads(result.stdout)
    assert "config.json" not in result.stderr  # the plan is the document alone
    told = {(one["kind"], one["name"]) for one in push["effects"] if one["kind"] in ("drop", "add", "change")}
    assert told == {(KINDS[one["op"]], one["name"]) for one in plan if one["op"] in KINDS}
    config = {one["name"]: one["note"].split(" becomes ")[1] for one in push["effects"] if one["kind"] == "config"}
    assert config == {one["path"]: json.dumps(one["value"]) for one in plan if one["op"] == "SetConfig"}
    formats = [(one["name"], one["note"]) for one in push["effects"] if one["kind"] == "format"]
    assert formats == [("weights", "safetensors becomes torch")] * (words[0] == "convert")
    kept = [one for one in push["effects"] if one["kind"] == "keep"]
    count = len([one for one in plan if one["op"] == "KeepTensor"])
    assert [(one["name"].split()[0], one["note"]) for one in kept] == [(f"{count}", "byte for byte")]
    copies = {one["name"]: one["source"] for one in plan if one["op"] == "CopyTensor"}
    notes = {one["name"]: one["note"] for one in push["effects"]}
    assert all(notes[name].endswith(f"the bytes of {source}") for name, source in copies.items())
    zeros = [one["name"] for one in plan if one["op"] == "FillTensor"]
    assert all(notes[name].endswith("all zero") for name in zeros)
    assert all(code(one["name"]) in push["description"] for one in push["effects"] if one["kind"] != "keep")


def code(name: str) -> str:
    return name if name == "weights" else f"`{name}`"


def test_description_of_other_values(hub: Hub, tieconv: Run, models: Path) -> None:
    """What a change does to values is told as it is: another head is no re-tie."""
    hub.add("org/m", models / "llama-duplicated")
    assert tieconv("inspect", "hf://org/m", "--depth", "full").returncode == 0
    sound(tieconv("set-tie", "false", "hf://org/m", "-o", "kept"))
    push = json.loads(tieconv("push", models / "llama-diverged", "hf://org/m", "--dry-run", "--json").stdout)
    [change] = [one for one in push["effects"] if one["kind"] == "change"]
    assert change["name"] == "lm_head.weight" and change["note"].startswith("other values: ")


def test_description_without_the_bytes(hub: Hub, tieconv: Run, tmp_path: Path) -> None:
    """What the cache does not hold is not fetched for the description: it says that it was not compared."""
    far = sharded(tmp_path / "far", shards=3, tied=True, head=same_head())
    hub.add("org/m", far)
    sound(tieconv("retie", far, "-o", tmp_path / "out"))
    push = json.loads(tieconv("push", "out", "hf://org/m", "--dry-run", "--json").stdout)
    notes = {(one["kind"], one["name"]): one["note"] for one in push["effects"]}
    assert notes["drop", HEAD] == "[2048, 128] BF16, 524 kB"
    assert notes["keep", "3 tensors"] == "byte for byte"  # in files whose hashes are equal
    assert notes["keep", "1 tensor"] == "by name, type and shape; their bytes were not compared"
    assert hub.sent < 3 * 65536 + 16384


def test_words_from_files_are_no_markup(hub: Hub, tieconv: Run, models: Path, tmp_path: Path) -> None:
    """A config of somebody's choosing cannot write into the description but as text."""
    from markdown_it import MarkdownIt

    hub.add("org/m", models / "llama-tied")
    out = Path(shutil.copytree(models / "llama-tied", tmp_path / "out"))
    configure(out, **{"x|`[a](http://b)": "<img src=x> | [a](http://b) ` **b**\n# head"})
    push = json.loads(tieconv("push", "out", "hf://org/m", "--dry-run", "--json").stdout)
    page = MarkdownIt("commonmark", {"html": True}).enable("table").render(push["description"])
    assert page.count("<table>") == 3
    assert not any(mark in page for mark in ("<img", "<a ", "<strong", "<h1"))


def stored_chunks(xorb: bytes) -> bytes:
    """The chunks of a xorb that are stored as they are: each has eight bytes of version, sizes and compression."""
    found, at = b"", 0
    while at + 8 <= len(xorb) and xorb[at : at + 1] == b"\0":
        size = int.from_bytes(xorb[at + 1 : at + 4], "little")
        assert xorb[at + 4] == 0, "noise cannot be compressed"
        found += xorb[at + 8 : at + 8 + size]
        at += 8 + size
    return found


@pytest.fixture
def noisy(hub: Hub, tmp_path: Path) -> Path:
    """A directory that adds a weight file of noise to its repository."""
    from tieconv.formats.safetensors import encode_header

    for name, seed in (("far", 1), ("near", 2)):
        (tmp_path / name).mkdir()
        data = random.Random(seed).randbytes(40_000)
        path = tmp_path / name / "model.safetensors"
        path.write_bytes(encode_header([("x", "U8", (40_000,), 40_000)], None) + data)
    hub.add("org/m", tmp_path / "far")
    return tmp_path / "near"


def test_by_xet(noisy: Path, hub: Hub, tieconv: Run) -> None:
    """Where hf_xet is installed huggingface_hub uploads chunks, and the commit names the file by its hash."""
    pytest.importorskip("hf_xet")
    sound(tieconv("push", noisy, "hf://org/m", "--yes", HF_TOKEN=TOKEN, HF_HUB_DISABLE_XET="0"))
    data = (noisy / "model.safetensors").read_bytes()
    assert b"".join(stored_chunks(xorb) for xorb in hub.xorbs.values()) == data
    assert len(hub.shards) == 1 and hub.uploads == {}
    [line] = [line["value"] for line in hub.commits[0]["lines"] if line["key"] == "lfsFile"]
    assert (line["oid"], line["size"]) == (hub.sha256(noisy / "model.safetensors"), len(data))


@pytest.mark.parametrize(
    ("xet", "status", "says"), [("0", "403", ""), ("1", "403", "no write access"), ("1", "400", "HTTP")]
)
def test_upload_that_fails(xet: str, status: str, says: str, noisy: Path, hub: Hub, tieconv: Run) -> None:
    """What goes wrong below huggingface_hub is one sentence without the server's words, and nothing is committed."""
    hub.faults["upload"] = Fault("status", value=status)
    result = tieconv("push", noisy, "hf://org/m", "--yes", HF_TOKEN=TOKEN, HF_HUB_DISABLE_XET=xet)
    assert result.returncode == 2 and hub.commits == []
    lines = [line for line in result.stderr.splitlines() if line]
    assert [line.split(":")[0] for line in lines] == ["error", "hint"], result.stderr
    assert says in lines[0] and "bug in tieconv" not in lines[1]
    for secret in (TOKEN, "xet-secret", "secret words", hub.storage):
        assert secret not in result.stdout + result.stderr


def test_upload_error_of_no_known_kind() -> None:
    """An exception that nobody documents is a failed upload, and none of its words are repeated."""
    from tieconv.sources.hub.push import _cause, _untaken

    told = _untaken(_cause(RuntimeError("https://x?Signature=abc")), "hf://org/m")
    assert told.code == "hub.upload" and "HF_HUB_DISABLE_XET=1" in told.hint
    assert "Signature" not in told.message + told.hint


def test_dot_files_stay_here(changed: Path, hub: Hub, tieconv: Run) -> None:
    """Secrets, keys and caches are not pushed by a yes to the model, and are listed; naming one pushes it."""
    private = (".env", ".cache/huggingface/download/a.lock", ".cache/b", "sub/.netrc", "server.key", ".gitattributes")
    for name in (*private, "README.md"):
        (changed / name).parent.mkdir(parents=True, exist_ok=True)
        (changed / name).write_text(f"HF_TOKEN={name}")
    (changed / ".git").mkdir()
    (changed / ".git" / "config").write_text("token")
    (changed / ".link").symlink_to("/etc/hostname")
    plan = tieconv("push", changed, "hf://org/m", "--dry-run")
    listed = plan.stdout.partition("not pushed (--include NAME adds a file):\n")[2].partition("\n\n")[0].split("\n")
    wanted = [".cache/ (2 files)", ".env", ".git/", ".gitattributes", ".link", "server.key", "sub/.netrc"]
    assert [line.strip() for line in listed] == wanted
    told = tieconv("push", changed, "hf://org/m", "--yes", "--json", HF_TOKEN=TOKEN)
    assert json.loads(told.stdout)["left_out"] == wanted
    assert set(operations(hub)) == {"config.json", "model.safetensors", "README.md"}
    sent = "".join(str(commit) for commit in hub.commits) + str(hub.uploads)
    assert not any(base64.b64encode(f"HF_TOKEN={name}".encode()).decode() in sent for name in private)
    hub.commits.clear()
    words = ("--yes", "--include", ".gitattributes", "--include", "sub")
    assert tieconv("push", changed, "hf://org/m", *words, HF_TOKEN=TOKEN).returncode == 0
    also = {".gitattributes", "sub/.netrc"}
    assert set(operations(hub)) == {"config.json", "model.safetensors", "README.md", *also}
    for name, says in (
        (".envrc", "--include .envrc matches no file"),
        (".cache/b", "the Hub refuses files of a .git or .cache"),
    ):
        refused = tieconv("push", changed, "hf://org/m", "--yes", "--include", name)
        assert refused.returncode == 2 and says in refused.stderr


def test_secrets_stay_here_in_any_case(tmp_path: Path) -> None:
    """Names of keys and tokens are private, and those of a tokenizer are not."""
    from tieconv.sources.hub.push import is_private

    secrets = (
        "ID_RSA", "id_rsa.bak", "id_ecdsa", "server.PEM", "key.p12", "TOKEN", "hf_token", "hf_token.txt", "token.txt",
        "Credentials.json", "aws_credentials", "my.credentials", "secrets.json", "service-account.json", "kubeconfig",
        "access_token", "sub/Secrets.yaml",
    )  # fmt: skip
    models = (
        "tokenizer.json", "tokenizer.model", "token_map", "special_tokens_map.json", "added_tokens.json",
        "hf_tokenizer.json", "tokenizer_config.json", "model.safetensors", "keys.safetensors", "README.md",
    )  # fmt: skip
    assert [name for name in secrets if not is_private(name)] == []
    assert [name for name in models if is_private(name)] == []


CHANGES = """
import os, sys, tieconv
from huggingface_hub import HfApi
planned = tieconv.plan_push(sys.argv[1], "hf://org/m")
commit = HfApi.create_commit

def change():
    path = os.path.join(sys.argv[1], sys.argv[3])
    data = open(path, "rb").read()
    open(path, "wb").write(data[:-1] + bytes([data[-1] ^ 1]))

def committed(*words, **options):
    done = commit(*words, **options)
    change()
    return done

if sys.argv[2] == "before":
    change()
elif sys.argv[2] == "gone":
    os.unlink(os.path.join(sys.argv[1], sys.argv[3]))
else:
    HfApi.create_commit = committed
try:
    tieconv.push(planned)
except tieconv.TieconvError as error:
    print(error.code, error.message)
"""


@pytest.mark.parametrize(
    ("name", "when"), [("model.safetensors", "before"), ("README.md", "gone"), ("config.json", "after")]
)
def test_only_planned_bytes_are_pushed(name: str, when: str, changed: Path, hub: Hub, python: Run) -> None:
    """A file that changes after the plan, as at the question, is not uploaded, or the commit is named."""
    (changed / "README.md").write_text("planned")
    printed = sound(python(CHANGES, changed, when, name, HF_TOKEN=TOKEN)).stdout
    if when == "after":
        assert printed.startswith(f"push.changed {name} changed during the upload, so its description"), printed
        assert "/org/m/discussions/" in printed and len(hub.commits) == 1
    else:
        assert printed == f"plan.stale {name} changed after the plan was made, so nothing was pushed\n"
        assert hub.commits == []


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("/etc/hostname", "extra.bin is a symlink that points outside the model directory, to /etc/hostname"),
        ("sub", "extra.bin is a symlink to a directory"),
        ("absent", "extra.bin is a symlink to a missing file"),
    ],
)
def test_symlink_is_named(target: str, says: str, changed: Path, hub: Hub, tieconv: Run) -> None:
    """A link is not followed out of the directory; the refusal says which one."""
    (changed / "sub").mkdir()
    (changed / "extra.bin").symlink_to(target)
    result = tieconv("push", changed, "hf://org/m", "--yes", HF_TOKEN=TOKEN)
    assert result.returncode == 2 and says in result.stderr and hub.commits == []


Typed = Callable[..., tuple[int, str]]


@pytest.fixture
def typed(hub: Hub, environment: dict[str, str], models: Path, tmp_path: Path) -> Typed:
    """``tieconv push`` of another model on a terminal of its own, with these bytes typed at the question."""
    hub.add("org/m", models / "llama-tied")

    def call(answer: bytes, *words: str, question: bytes = b"push this? [y/N]:") -> tuple[int, str]:
        master, slave = pty.openpty()
        process = children.start(
            [sys.executable, "-P", "-m", "tieconv", "push", models / "llama-untied", "hf://org/m", *words],
            env={**environment, "HF_TOKEN": TOKEN, "TERM": "xterm"},
            cwd=tmp_path,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            prepare=_control,
        )
        os.close(slave)
        shown = b""
        try:
            again = b""
            while block := _read(master, again):
                shown += block
                if answer and question in shown:
                    os.write(master, answer)
                    # Python misses a signal between its prompt and its read; whoever types ^C types it again.
                    answer, again = b"", answer if answer == b"\x03" else b""
            return process.wait(HANGS), shown.decode()
        finally:
            process.kill()
            process.wait()
            os.close(master)

    return call


def _control() -> None:
    """Make stdin the controlling terminal, so that ^C is a signal, which a background job would ignore."""
    children.heed_signals()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _read(master: int, again: bytes) -> bytes:
    """What is said next; ``again`` is typed once a second until then."""
    for _ in range(int(HANGS)):
        if select.select([master], [], [], 1)[0]:
            break
        if again:
            os.write(master, again)
    else:
        raise AssertionError("nothing was said")
    try:
        return os.read(master, 4096)
    except OSError:  # the other side is closed
        return b""


def test_yes(typed: Typed, hub: Hub) -> None:
    """The plan comes before the question, and a yes opens the pull request."""
    code, shown = typed(b"y\n")
    assert code == 0 and len(hub.commits) == 1
    assert shown.index("lm_head.weight") < shown.index("push this?") < shown.index("/org/m/discussions/7")
    assert TOKEN not in shown


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("answer", "code", "says"),
    [
        (b"n\n", 2, "error: nothing was pushed"),
        (b"\n", 2, "error: nothing was pushed"),
        (b"perhaps\n", 2, "error: nothing was pushed"),
        (b"\x04", 2, "error: nothing was pushed"),
        (b"\x03", 130, "interrupted"),
    ],
    ids=["no", "enter", "neither", "end of input", "interrupt"],
)
def test_no(answer: bytes, code: int, says: str, typed: Typed, hub: Hub) -> None:
    """A no, no answer, the end of input and an interrupt push nothing, and the exit code says so."""
    found, shown = typed(answer)
    assert (found, shown.strip().splitlines()[-1].startswith("hint") or code == 130) == (code, True), shown
    assert says in shown and "Aborted" not in shown and "Traceback" not in shown
    assert hub.commits == [] and hub.uploads == {}
    assert {one.method for one in hub.requests} == {"GET"}


def test_yes_beforehand(typed: Typed, hub: Hub) -> None:
    """With --yes nothing is asked."""
    code, shown = typed(b"", "--yes")
    assert code == 0 and "push this?" not in shown and len(hub.commits) == 1


PROGRAM = """\
import doctest, sys, tieconv
session = doctest.DocTestParser().get_doctest(sys.argv[1], {"tieconv": tieconv}, "example", None, 0)
sys.exit(doctest.DocTestRunner().run(session).failed)
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", PAGE["ON_THE_HUB"])
def test_an_example_gives_what_it_shows(name: str, hub: Hub, tieconv: Run, python: Run, tmp_path: Path) -> None:
    """`out` is the untied model of `org/name`."""
    hub.add("org/name", ROOT / "fixtures" / "models" / "llama-tied")
    assert tieconv("untie", "hf://org/name", "-o", tmp_path / "out").returncode == 0
    result = python(PROGRAM, EXAMPLES[name], HF_TOKEN=TOKEN)
    assert result.returncode == 0, result.stdout + result.stderr
    assert len(hub.commits) == (name == "push")
