"""A browser by its debugging protocol, and the servers that it is pointed at."""

from __future__ import annotations

import base64
import functools
import json
import os
import select
import shutil
import signal
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.children import heed_signals
from tests.hub.stub import Hub, handler
from tests.patience import HANGS

_QUIET = (
    "--headless=new --no-first-run --no-default-browser-check --disable-background-networking --disable-sync "
    "--disable-component-update --disable-default-apps --disable-extensions --disable-domain-reliability "
    "--disable-client-side-phishing-detection --metrics-recording-only --no-pings --disable-gpu --no-sandbox "
    "--disable-dev-shm-usage --ignore-certificate-errors "
    "--disable-features=OptimizationHints,MediaRouter,Translate,AutofillServerCommunication"
)
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def chromium() -> str | None:
    """Return the path of an installed Chromium, or ``None``."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Chromium:
    """A browser with a fresh profile. Its requests to all origins but ``home`` go to ``proxy``."""

    def __init__(self, profile: Path, proxy: str, home: str) -> None:
        from_us, self._to = os.pipe()
        self._from, to_us = os.pipe()

        def wire() -> None:
            heed_signals()
            os.dup2(from_us, 103), os.dup2(to_us, 104)
            os.dup2(103, 3), os.dup2(104, 4)

        words = [str(chromium()), *_QUIET.split(), "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        words += [f"--proxy-server={proxy}", f"--proxy-bypass-list=<-loopback>;{home}", "about:blank"]
        with (profile / "log").open("wb") as log:
            self.process = subprocess.Popen(  # `children.start` would end it with the first test that uses it
                words, preexec_fn=wire, pass_fds=(3, 4, from_us, to_us), stdout=log, stderr=log, start_new_session=True
            )
        os.close(from_us), os.close(to_us)
        self._unread = b""
        self._last = 0
        self.events: list[dict[str, Any]] = []

    def close(self) -> None:
        """End the browser with all its processes."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._to)
        os.close(self._from)

    def _send(self, method: str, parameters: dict[str, Any], session: str | None) -> int:
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        os.write(self._to, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        return self._last

    def call(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        """Send a command and return its result. Raises ``RuntimeError`` for an error of the browser."""
        number = self._send(method, parameters, session)
        until = time.monotonic() + HANGS
        while time.monotonic() < until:
            messages = self._messages()
            self.events += [message for message in messages if "id" not in message]
            for answer in (message for message in messages if message.get("id") == number):
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
        raise RuntimeError(f"{method}: no answer after {HANGS:.0f} s")

    def _messages(self) -> list[dict[str, Any]]:
        if select.select([self._from], [], [], 0.2)[0]:
            self._unread += os.read(self._from, 1 << 20)
        *complete, self._unread = self._unread.split(b"\0")
        return [json.loads(text) for text in complete]

    def open(self, address: str) -> Tab:
        """Open ``address`` in a new tab."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = Tab(self, session)
        for domain in ("Page", "Runtime", "DOM", "Log"):
            self.call(f"{domain}.enable", session)
        self.call("Target.setAutoAttach", session, autoAttach=True, waitForDebuggerOnStart=False, flatten=True)
        self.call("Page.navigate", session, url=address)
        return tab


class Tab:
    """A page of the browser."""

    def __init__(self, browser: Chromium, session: str) -> None:
        self.browser, self.session = browser, session

    def call(self, method: str, **parameters: Any) -> Any:
        return self.browser.call(method, self.session, **parameters)

    def evaluate(self, expression: str, session: str | None = None) -> Any:
        """Return the value of JavaScript; a promise is awaited."""
        answer = self.browser.call(
            "Runtime.evaluate", session or self.session, expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def until(self, expression: str, limit: float = HANGS) -> float:
        """Wait until JavaScript is true, and return the seconds that passed."""
        began = time.monotonic()
        while not self.evaluate(expression):
            assert time.monotonic() - began < limit, f"{expression}: {self.evaluate('document.body.innerText')}"
            time.sleep(0.02)
        return time.monotonic() - began

    def click(self, selector: str) -> None:
        """Press the left button of the mouse in the middle of an element that can be seen there."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center'}})")
        # The mouse hits what was painted last.
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        x, y = self.evaluate(
            f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])"
            f"(document.querySelector({json.dumps(selector)}).getBoundingClientRect())"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def key(self, key: str, text: str = "") -> None:
        """Press and release a key."""
        code = {"Tab": 9, "Enter": 13}.get(key, 0)
        for kind in ("keyDown", "keyUp"):
            extra = {"text": text} if kind == "keyDown" and text else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **extra)

    def choose(self, selector: str, *paths: Path) -> None:
        """Choose files, or one directory, in a file input."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(path) for path in paths])

    def worker(self) -> str:
        """Return the session of the page's newest worker."""
        attached = [
            event["params"] for event in self.browser.events if event.get("method") == "Target.attachedToTarget"
        ]
        return [entry["sessionId"] for entry in attached if entry["targetInfo"]["type"] == "worker"][-1]

    def screenshot(self, path: Path) -> None:
        """Write a picture of the whole page."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))


HOSTS = {"huggingface.co:443": "hub", "cas-bridge.xethub.hf.co:443": "storage"}
EXPOSED = "X-Repo-Commit, X-Error-Code, ETag, X-Linked-Etag, Content-Range"


class _Site(SimpleHTTPRequestHandler):
    extensions_map = SimpleHTTPRequestHandler.extensions_map | {".wasm": "application/wasm", ".mjs": "text/javascript"}

    def log_message(self, *_: Any) -> None:
        self.server.asked.append((self.command, self.path))


class _Proxy(BaseHTTPRequestHandler):
    def handle_one_request(self) -> None:
        server: Any = self.server
        line = self.rfile.readline(4096).decode(errors="replace").strip()
        server.asked.append(line)
        self.close_connection = True
        host = HOSTS.get(line.removeprefix("CONNECT ").split(" ")[0])
        if host is None:
            return
        while self.rfile.readline(4096).strip():
            continue
        self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
        with server.tls.wrap_socket(self.request, server_side=True) as connection:
            _cross_origin(server.hub, host)(connection, self.client_address, server)


def _cross_origin(hub: Hub, name: str) -> type[BaseHTTPRequestHandler]:
    """The stub, whose answers a page of another origin may read. The storage hides the range of its answers."""

    class Handler(handler(hub, name)):  # type: ignore[misc]
        def end_headers(self) -> None:
            self.send_header("Access-Control-Allow-Origin", "*")
            if name == "hub":
                self.send_header("Access-Control-Expose-Headers", EXPOSED)
            super().end_headers()

    return Handler


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield the address of a server of ``folder`` and the list of its requests."""
    with _running(functools.partial(_Site, directory=str(folder))) as server:
        yield f"127.0.0.1:{server.server_port}", server.asked


@contextmanager
def proxy(scratch: Path) -> Iterator[tuple[str, list[str], Hub]]:
    """Yield the address of a proxy, the list of its requests, and the Hub that it answers for."""
    certificate = scratch / "certificate.pem"
    call = ["openssl", "req", "-x509", "-nodes", "-newkey", "rsa:2048", "-days", "2", "-subj", "/CN=huggingface.co"]
    subprocess.run([*call, "-keyout", certificate, "-out", scratch / "public.pem"], check=True, capture_output=True)
    with certificate.open("a") as file:
        file.write((scratch / "public.pem").read_text())
    with _running(_Proxy) as server:
        server.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.tls.load_cert_chain(certificate)
        server.hub = Hub(storage="https://cas-bridge.xethub.hf.co")
        yield f"127.0.0.1:{server.server_port}", server.asked, server.hub


@contextmanager
def _running(handler: Any) -> Iterator[Any]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.asked = []
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
