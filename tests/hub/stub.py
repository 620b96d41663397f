"""A hub on 127.0.0.1: what huggingface_hub's client needs of one, and every fault that a real one can have.

Repositories are directories. Weight files are LFS files, redirected to a second server as the Hub redirects to its
storage; other files are served by the first. `Hub.faults` maps a file name to what goes wrong with it.
"""

from __future__ import annotations

import email.utils
import gzip
import hashlib
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

LFS = (".safetensors", ".bin", ".pt", ".gguf", ".onnx", ".onnx_data", ".data", ".distcp", ".metadata")


@dataclass
class Repo:
    """One repository: its directory, and who may see it."""

    path: Path
    commit: str
    gated: bool = False
    task: str = "text-generation"

    def files(self) -> dict[str, Path]:
        found = sorted(path for path in self.path.rglob("*") if path.is_file())
        return {str(path.relative_to(self.path)): path for path in found}


@dataclass
class Request:
    """What a server was asked."""

    server: str
    method: str
    path: str
    range: str | None
    authorization: str | None
    encoding: str | None = None
    sent: int = 0
    at: float = field(default_factory=time.monotonic)


@dataclass
class Fault:
    """What goes wrong with a file: ``kind`` as in `Handler`, for the first ``times`` requests of it."""

    kind: str
    times: int = 1_000_000
    value: str = ""


@dataclass
class Hub:
    """The state of both servers. ``requests`` is everything that was asked, in order, ``most`` the most at a time.

    Until ``together`` requests were open at once, each answer of the storage waits for the others, two seconds at
    most. Files in ``swapped`` are served with the bytes of another, those in ``etags`` with another etag (none where
    it is empty), ``answers`` are what the API answers in place of the truth, and ``errors`` what is said of every
    error.
    """

    repos: dict[str, Repo] = field(default_factory=dict)
    branches: dict[tuple[str, str], Repo] = field(default_factory=dict)
    faults: dict[str, Fault] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    commits: list[dict[str, Any]] = field(default_factory=list)
    uploads: dict[str, bytes] = field(default_factory=dict)
    xorbs: dict[str, bytes] = field(default_factory=dict)
    shards: list[bytes] = field(default_factory=list)
    lies: dict[str, int] = field(default_factory=dict)
    etags: dict[str, str] = field(default_factory=dict)
    swapped: dict[str, Path] = field(default_factory=dict)
    answers: dict[str, str] = field(default_factory=dict)
    modified: dict[str, str] = field(default_factory=dict)
    errors: str | None = None
    read_only: bool = False
    together: int = 1
    open: int = 0
    most: int = 0
    lock: threading.Condition = field(default_factory=threading.Condition)
    digests: dict[tuple[str, int], str] = field(default_factory=dict)
    url: str = ""
    storage: str = ""

    def add(self, name: str, path: Path, **more: Any) -> Repo:
        commit = hashlib.sha1(name.encode()).hexdigest()
        self.repos[name] = Repo(Path(path), commit, **more)
        return self.repos[name]

    def add_branch(self, name: str, branch: str, path: Path) -> None:
        """Serve a directory as a branch of a repository. Its commit follows from its files."""
        states = [(str(file), file.stat().st_mtime_ns) for file in sorted(path.rglob("*"))]
        self.branches[name, branch] = Repo(path, hashlib.sha1(repr((name, branch, states)).encode()).hexdigest())

    def modified_at(self, name: str) -> str:
        return self.modified.get(name, "2026-11-01T10:00:00.000Z")

    def sha256(self, path: Path) -> str:
        key = str(path), path.stat().st_mtime_ns
        if key not in self.digests:
            digest = hashlib.sha256()
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
            self.digests[key] = digest.hexdigest()
        return self.digests[key]

    def blob(self, path: Path) -> str:
        data = path.read_bytes()
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

    def fault(self, name: str) -> Fault | None:
        """The fault of this request; it is used up."""
        with self.lock:
            fault = self.faults.get(name)
            if fault is None or fault.times < 1:
                return None
            fault.times -= 1
            return fault

    @property
    def sent(self) -> int:
        return sum(request.sent for request in self.requests)

    def of(self, name: str) -> list[Request]:
        """The requests for one file that brought bytes: not those that were redirected."""
        return [one for one in self.requests if urlsplit(one.path).path.endswith("/" + name) and one.sent]

    def counts(self) -> Counter[str]:
        return Counter(f"{one.server} {one.method}" for one in self.requests)


def handler(hub: Hub, server: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else a body waits 40 ms for the acknowledgement of its headers
        asked: Request

        def log_message(self, *_: object) -> None:
            return

        # -- dispatch

        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            self.answer()

        def do_POST(self) -> None:
            self.answer()

        def do_PUT(self) -> None:
            self.answer()

        def answer(self) -> None:
            given = map(self.headers.get, ("Range", "Authorization", "Accept-Encoding"))
            self.asked = Request(server, self.command, self.path, *given)
            with hub.lock:
                hub.requests.append(self.asked)
                hub.open += 1
                hub.most = max(hub.most, hub.open)
                hub.lock.notify_all()
                if server == "storage":
                    hub.lock.wait_for(lambda: hub.most >= hub.together, timeout=2)
            try:
                self.route()
            finally:
                with hub.lock:
                    hub.open -= 1

        def route(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            self.body = self.rfile.read(length) if length else b""
            if self.headers.get("Transfer-Encoding") == "chunked":
                self.body = self.read_chunks()
            path = unquote(urlsplit(self.path).path)
            for pattern, method in ROUTES[server]:
                match = re.fullmatch(pattern, path)
                if match:
                    getattr(self, method)(*match.groups())
                    return
            self.fail(404, "EntryNotFound")

        def read_chunks(self) -> bytes:
            data = b""
            while size := int(self.rfile.readline(), 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return data

        # -- what is said

        def fail(self, status: int, code: str = "", headers: dict[str, str] | None = None) -> None:
            words = f"secret words of the server {self.headers.get('Authorization')}"
            self.json({"error": words}, status, {**({"X-Error-Code": code} if code else {}), **(headers or {})})

        def json(self, value: object, status: int = 200, headers: dict[str, str] | None = None) -> None:
            data = json.dumps(value).encode() if status < 400 or hub.errors is None else hub.errors.encode()
            self.send_response(status)
            for key, text in {"Content-Type": "application/json", **(headers or {})}.items():
                self.send_header(key, text)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.write(data)

        def write(self, data: bytes) -> None:
            if self.command == "HEAD":
                return
            self.asked.sent += len(data)  # before the client has the bytes, for it may end the test
            try:
                self.wfile.write(data)
            except OSError:  # the client had enough
                self.asked.sent -= len(data)
                self.close_connection = True

        def repo(self, name: str, revision: str | None) -> Repo | None:
            for (owner, branch), on_branch in hub.branches.items():
                if owner == name and revision in (branch, on_branch.commit):
                    return on_branch
            repo = hub.repos.get(name)
            if repo is None:
                self.fail(404 if self.headers.get("Authorization") else 401, "RepoNotFound")
            elif repo.gated and self.headers.get("Authorization") != "Bearer hf_good":
                self.fail(403 if self.headers.get("Authorization") else 401, "GatedRepo")
            elif revision not in (None, "main", repo.commit):
                self.fail(404, "RevisionNotFound")
            else:
                return repo
            return None

        # -- the API

        def busy(self, name: str) -> bool:
            if name in hub.answers:
                self.raw(hub.answers[name].encode())
                return True
            fault = hub.fault(name)
            if fault is None:
                return False
            self.spoil(fault, b" " * 5000, Path(name), 0, 5000, None)
            return True

        def info(self, name: str, revision: str | None = None) -> None:
            if self.busy(f"api:{name}"):
                return
            repo = self.repo(name, revision)
            if repo is None:
                return
            siblings = [self.sibling(key, path) for key, path in repo.files().items()]
            row = {"id": name, "sha": repo.commit, "siblings": siblings, "pipeline_tag": repo.task}
            self.json({**row, "lastModified": hub.modified_at(name)})

        def sibling(self, name: str, path: Path) -> dict[str, Any]:
            size = hub.lies.get(name, path.stat().st_size)
            found: dict[str, Any] = {"rfilename": name, "size": size, "blobId": hub.blob(path)}
            if name.endswith(LFS):
                found["blobId"] = "0" * 40
                found["lfs"] = {"size": size, "sha256": hub.sha256(path), "pointerSize": 134}
            return found

        def raw(self, data: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.write(data)

        def tree(self, name: str, revision: str) -> None:
            if self.busy(f"tree:{name}"):
                return
            repo = self.repo(name, revision)
            if repo is None:
                return
            entries = []
            for key, path in repo.files().items():
                size = path.stat().st_size
                entry: dict[str, Any] = {"type": "file", "path": key, "size": size, "oid": hub.blob(path)}
                if key.endswith(LFS):
                    entry["lfs"] = {"oid": hub.sha256(path), "size": entry["size"], "pointerSize": 134}
                entries.append(entry)
            self.json(entries)

        def models(self) -> None:
            if self.busy("api:models"):
                return
            query = parse_qs(urlsplit(self.path).query)
            author = query.get("author", [""])[0]
            task = query.get("pipeline_tag", [""])[0]
            names = [n for n, repo in hub.repos.items() if n.startswith(f"{author}/") and task in ("", repo.task)]
            limit = int(query.get("limit", ["1000"])[0])
            rows = [{"id": name, "modelId": name, "sha": hub.repos[name].commit} for name in names[:limit]]
            if "lastModified" in query.get("expand", []):
                rows = [{**row, "lastModified": hub.modified_at(row["id"])} for row in rows]
            self.json(rows)

        # -- files

        def resolve(self, name: str, revision: str, file: str) -> None:
            repo = self.repo(name, revision)
            if repo is None:
                return
            path = repo.files().get(file)
            if path is None:
                self.fail(404, "EntryNotFound", {"X-Repo-Commit": repo.commit})
                return
            headers = {"X-Repo-Commit": repo.commit, "Accept-Ranges": "bytes"}
            if not file.endswith(LFS):
                digest = hub.etags.get(file, hub.blob(path))
                self.file(path, {**headers, **({"ETag": f'"{digest}"'} if digest else {})}, file)
                return
            digest = hub.etags.get(file, hub.sha256(path))
            self.send_response(302)
            for key, text in headers.items():
                self.send_header(key, text)
            if digest:
                self.send_header("X-Linked-Etag", f'"{digest}"')
            self.send_header("X-Linked-Size", str(path.stat().st_size))
            self.send_header("Location", f"{hub.storage}/lfs/{name}/{file}?Signature=signed-secret&at={repo.commit}")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def stored(self, owner: str, name: str, file: str) -> None:
            at = parse_qs(urlsplit(self.path).query).get("at")
            known = [*hub.branches.values(), *hub.repos.values()]
            on_branch = next((repo for repo in known if at == [repo.commit]), None)
            path = (on_branch or hub.repos[f"{owner}/{name}"]).path / file
            self.file(path, {"ETag": f'"{hub.sha256(path)}"', "Accept-Ranges": "bytes"}, file)

        def file(self, path: Path, headers: dict[str, str], name: str) -> None:
            path = hub.swapped.get(name, path)
            size = path.stat().st_size
            match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            start, end = 0, size
            if match:
                start, end = int(match[1]), min(int(match[2] or size - 1) + 1, size)
                headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
            fault = hub.fault(name) if self.command == "GET" else None
            if fault is not None:
                with path.open("rb") as file:
                    file.seek(start)
                    self.spoil(fault, file.read(min(end - start, 1 << 20)), path, start, size, headers)
                return
            self.send_response(206 if match else 200)
            for key, text in headers.items():
                self.send_header(key, text)
            self.send_header("Content-Length", str(end - start))
            self.end_headers()
            with path.open("rb") as file:
                file.seek(start)
                while start < end and not self.close_connection:
                    block = file.read(min(1 << 16, end - start))
                    start += len(block)
                    self.write(block)

        def spoil(
            self, fault: Fault, data: bytes, path: Path, start: int, size: int, headers: dict[str, str] | None
        ) -> None:
            """Answer as a broken server does."""
            headers = dict(headers or {})
            end = start + len(data)
            if fault.kind == "status":
                self.fail(int(fault.value), "", {"Retry-After": "0"} if fault.value in ("429", "503") else {})
                return
            if fault.kind == "retry-after":
                if (in_seconds := re.fullmatch(r"(\d+) in ([\d.]+)", fault.value)) is not None:
                    date = email.utils.formatdate(time.time() + float(in_seconds[2]), usegmt=True)
                    self.fail(int(in_seconds[1]), "", {"Retry-After": date})
                    return
                status, _, after = fault.value.rpartition(" ") if fault.value.isdigit() else fault.value.partition(" ")
                self.fail(int(status or 429), "", {"Retry-After": after})
                return
            if fault.kind == "ignore-range":
                headers.pop("Content-Range", None)
                data = path.read_bytes()
                self.whole(200, headers, data, len(data))
            elif fault.kind == "truncate":
                self.whole(206, headers, data[: len(data) // 2], len(data))
                self.close_connection = True
            elif fault.kind == "drip":
                self.whole(206 if "Content-Range" in headers else 200, headers, b"", len(data))
                self.drip(data, float(fault.value))
            elif fault.kind == "drip-headers":
                self.drip(b"HTTP/1.1 206 Partial Content\r\nX-Slow: " + b"x" * 5000, float(fault.value))
            elif fault.kind == "gzip":
                packed = gzip.compress(bytes(int(fault.value)))
                self.whole(200, {**headers, "Content-Encoding": "gzip"}, packed, len(packed))
            elif fault.kind == "stall":
                self.whole(206 if "Content-Range" in headers else 200, headers, data[: len(data) // 2], len(data))
                self.wfile.flush()
                time.sleep(float(fault.value))
                self.close_connection = True
            elif fault.kind == "other-range":
                headers["Content-Range"] = f"bytes {start + 1}-{end}/{size}"
                self.whole(206, headers, data, len(data))
            elif fault.kind == "other-size":
                headers["Content-Range"] = f"bytes {start}-{end - 1}/{size + 7}"
                self.whole(206, headers, data, len(data))
            elif fault.kind == "other-commit":
                headers["X-Repo-Commit"] = "f" * 40
                self.whole(206 if "Content-Range" in headers else 200, headers, data, len(data))
            elif fault.kind == "too-long":
                self.send_response(206 if "Content-Range" in headers else 200)
                for key, text in headers.items():
                    self.send_header(key, text)
                self.send_header("Connection", "close")
                self.end_headers()
                self.write(data + b"more than was asked for")
                self.close_connection = True
            elif fault.kind == "hang-up":
                self.close_connection = True
            else:
                raise AssertionError(fault.kind)

        def whole(self, status: int, headers: dict[str, str], data: bytes, length: int) -> None:
            self.send_response(status)
            for key, text in headers.items():
                self.send_header(key, text)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.write(data)

        def drip(self, data: bytes, pause: float) -> None:
            """A byte now and then, for a minute at most."""
            self.close_connection = True
            for byte in data[: int(60 / pause)]:
                try:
                    self.wfile.write(bytes((byte,)))
                    self.wfile.flush()
                except OSError:
                    return
                time.sleep(pause)

        # -- writing

        def preupload(self, name: str, revision: str) -> None:
            if hub.read_only:
                self.fail(403)
                return
            if self.repo(name, revision) is None:
                return
            files = json.loads(self.body)["files"]
            modes = {file["path"]: "lfs" if file["path"].endswith(LFS) else "regular" for file in files}
            told = [{"path": path, "uploadMode": mode, "shouldIgnore": False} for path, mode in modes.items()]
            self.json({"files": told})

        def batch(self, name: str) -> None:
            objects = []
            for wanted in json.loads(self.body)["objects"]:
                action = {"upload": {"href": f"{hub.storage}/upload/{wanted['oid']}", "header": {}}}
                objects.append({**wanted, "authenticated": True, "actions": action})
            self.json({"transfer": "basic", "objects": objects})

        def xet_token(self, name: str, revision: str) -> None:
            """Where chunks go, for the client of xet."""
            if self.repo(name, None) is None:
                return
            values = {"accessToken": "xet-secret", "exp": int(time.time()) + 3600, "casUrl": f"{hub.storage}/cas"}
            names = {"X-Xet-Access-Token": "accessToken", "X-Xet-Token-Expiration": "exp", "X-Xet-Cas-Url": "casUrl"}
            self.json(values, headers={header: str(values[key]) for header, key in names.items()})

        def xorb(self, digest: str) -> None:
            if fault := hub.fault("upload"):
                self.fail(int(fault.value))
                return
            hub.xorbs[digest] = self.body
            self.json({"was_inserted": True})

        def shard(self) -> None:
            hub.shards.append(self.body)
            self.json({"result": 1})

        def upload(self, oid: str) -> None:
            if fault := hub.fault("upload"):
                self.fail(int(fault.value))
                return
            hub.uploads[oid] = self.body
            self.json({})

        def commit(self, name: str, revision: str) -> None:
            if self.repo(name, revision) is None:
                return
            lines = [json.loads(line) for line in self.body.splitlines()]
            query = parse_qs(urlsplit(self.path).query)
            hub.commits.append({"repo": name, "revision": revision, "query": query, "lines": lines})
            answer = {"commitUrl": f"{hub.url}/{name}/commit/{'c' * 40}", "commitOid": "c" * 40}
            if query.get("create_pr"):
                answer["pullRequestUrl"] = f"{hub.url}/{name}/discussions/7"
            self.json(answer)

        def yaml(self) -> None:
            self.json({"errors": [], "warnings": []})

    return Handler


_REPO = r"([^/]+/[^/]+)"
ROUTES: dict[str, list[tuple[str, str]]] = {
    "hub": [
        (r"/api/models", "models"),
        (rf"/api/models/{_REPO}/revision/(.+)", "info"),
        (rf"/api/models/{_REPO}/tree/([^/]+)", "tree"),
        (rf"/api/models/{_REPO}/preupload/(.+)", "preupload"),
        (rf"/api/models/{_REPO}/commit/(.+)", "commit"),
        (rf"/api/models/{_REPO}/xet-write-token/(.+)", "xet_token"),
        (rf"/api/models/{_REPO}", "info"),
        (r"/api/validate-yaml", "yaml"),
        (rf"/{_REPO}\.git/info/lfs/objects/batch", "batch"),
        (rf"/{_REPO}/resolve/([^/]+)/(.+)", "resolve"),
    ],
    "storage": [
        (r"/lfs/([^/]+)/([^/]+)/(.+)", "stored"),
        (r"/upload/([0-9a-f]+)", "upload"),
        (r"/cas/v1/xorbs/default/([0-9a-f]{64})", "xorb"),
        (r"/cas/v1/shards", "shard"),
    ],
}


class Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is no fault of the test."""


def start() -> tuple[Hub, Callable[[], None]]:
    """A running hub, and what ends it."""
    hub = Hub()
    servers = [Quiet(("127.0.0.1", 0), handler(hub, name)) for name in ("hub", "storage")]
    hub.url, hub.storage = (f"http://127.0.0.1:{server.server_address[1]}" for server in servers)
    for server in servers:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def stop() -> None:
        for server in servers:
            server.shutdown()
            server.server_close()

    return hub, stop
