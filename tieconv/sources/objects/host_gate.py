"""Let a library reach only the hosts of one server, and receive no more bytes than were asked for.

obstore follows redirects, sends `x-amz-security-token` along, and reads each page of a listing whole. It has no option
against either. So its requests pass a proxy in this process, on the loopback interface. Whatever a server answers, no
connection to another host is opened. HTTPS stays encrypted from end to end.
"""

from __future__ import annotations

import base64
import re
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address, ip_network
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

_HEAD = 64 << 10
_BLOCK = 256 << 10
_CONNECT = 10.0
_IDLE = 600.0
_LINE = re.compile(rb"([A-Z]+) (\S+) (HTTP/1\.[01])\r\n")


class HostGate:
    """A proxy that connects only to hosts that ``allowed(host, port)`` accepts. ``url`` is its address.

    ``refused`` is the last host that was not accepted, which a server may have named. ``limit`` is the most bytes that
    may arrive, as counted by ``received``. If more arrive, every connection is closed and ``too_long`` is true.
    """

    def __init__(self, allowed: Callable[[str, int], bool]) -> None:
        self.refused = ""
        self.too_long = self.closed = False
        self.received = 0
        self.limit: int | None = None
        self._allowed = allowed
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._server = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, name="tieconv-gate", daemon=True).start()

    def allow(self, size: int) -> None:
        """Let at most ``size`` more bytes arrive."""
        with self._lock:
            self.limit = self.received + size

    def cut(self) -> None:
        """Close every connection and open no other, which ends what the library still does."""
        with self._lock:
            self.closed = True
            sockets = tuple(self._open)
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                client = self._server.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), name="tieconv-gate", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        upstream = None
        try:
            client.settimeout(_IDLE)
            upstream = self._connected(client)
            if upstream is None:
                return
            with self._lock:
                self._open |= {client, upstream}
            up = threading.Thread(target=_pump, args=(client, upstream), name="tieconv-gate", daemon=True)
            up.start()
            _pump(upstream, client, self._arrived)
            up.join(_CONNECT)
        except OSError:
            return
        finally:
            with self._lock:
                self._open -= {client, *([upstream] if upstream else [])}
            for each in filter(None, (client, upstream)):
                with suppress(OSError):
                    each.close()

    def _connected(self, client: socket.socket) -> socket.socket | None:
        """Read the head of a request, and return a connection to its host that has got it. Refuse other hosts."""
        head = b""
        while b"\r\n\r\n" not in head:
            data = client.recv(_HEAD)
            if not data or len(head) > _HEAD:
                return None
            head += data
        line = _LINE.match(head)
        if line is None:
            return None
        method, target, version = line.groups()
        tunnel = method == b"CONNECT"
        address = urlsplit(f"//{target.decode()}" if tunnel else target.decode())
        host, port = address.hostname or "", address.port or (443 if tunnel else 80)
        if self.closed or not self._allowed(host, port):
            self.refused = "" if self.closed else host
            client.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            return None
        try:
            upstream, through = _dial(host, port, secure=tunnel)
        except (OSError, ValueError):
            client.sendall(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            return None
        rest = head[line.end() :]
        if tunnel and not through:
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        elif tunnel:
            upstream.sendall(line.group() + through + rest)
        else:
            # One request for each connection, because only its head is read here.
            query = f"?{address.query}" if address.query else ""
            path = target if through else f"{address.path or '/'}{query}".encode()
            upstream.sendall(b"%s %s %s\r\nConnection: close\r\n%s%s" % (method, path, version, through, rest))
        return upstream

    def _arrived(self, size: int) -> None:
        with self._lock:
            self.received += size
            if self.limit is None or self.received <= self.limit:
                return
            self.too_long = True
        self.cut()
        raise ConnectionAbortedError


def _pump(source: socket.socket, target: socket.socket, count: Callable[[int], object] = bool) -> None:
    block = memoryview(bytearray(_BLOCK))
    with suppress(OSError):
        while size := source.recv_into(block):
            count(size)
            target.sendall(block[:size])
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def relays() -> bool:
    """Return whether the gate can pass the proxies of the environment. It speaks neither TLS nor SOCKS to a proxy."""
    named = (value for name, value in getproxies().items() if name in ("http", "https", "all"))
    return all("://" not in value or value.lower().startswith("http://") for value in named)


def _proxy(host: str, port: int, *, secure: bool) -> str:
    """Return the proxy of the environment for a host, or an empty string, as obstore itself does.

    obstore accepts networks such as ``10.0.0.0/8`` in ``NO_PROXY``, and urllib does not.
    """
    proxies = getproxies()
    if proxy_bypass(f"{host}:{port}"):
        return ""
    for excluded in proxies.get("no", "").split(","):
        with suppress(ValueError):
            if ip_address(host) in ip_network(excluded.strip(), strict=False):
                return ""
    return proxies.get("https" if secure else "http") or proxies.get("all", "")


def _dial(host: str, port: int, *, secure: bool) -> tuple[socket.socket, bytes]:
    """Return a connection to a host, or to the proxy of the environment with the header that the proxy wants."""
    proxy = _proxy(host, port, secure=secure)
    if not proxy:
        return _opened(host, port), b""
    parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    secret = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    login = b"Proxy-Authorization: Basic " + base64.b64encode(secret.encode()) + b"\r\n" if parts.username else b""
    return _opened(parts.hostname or "", parts.port or 80), login or b"Via: 1.1 tieconv\r\n"


def _opened(host: str, port: int) -> socket.socket:
    connection = socket.create_connection((host, port), timeout=_CONNECT)
    connection.settimeout(_IDLE)
    return connection
