"""A package index on the loopback address: what makes uv's cache hold a real `.http` pointer with URL and hash."""

from __future__ import annotations

import contextlib
import hashlib
import html
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from packaging.utils import parse_wheel_filename


class _Handler(SimpleHTTPRequestHandler):
    """`/simple/` and `/simple/NAME/` (PEP 503) over a folder of wheels, which are served under `/files/`."""

    def do_GET(self) -> None:
        parts = [part for part in self.path.split("?")[0].split("/") if part]
        if parts[:1] == ["simple"]:
            self._page(parts[1] if len(parts) > 1 else None)
        elif parts[:1] == ["files"] and len(parts) == 2:
            self.path = f"/{parts[1]}"
            super().do_GET()
        else:
            self.send_error(404)

    def _page(self, project: str | None) -> None:
        wheels = sorted(Path(self.directory).glob("*.whl"))
        names = {wheel: str(parse_wheel_filename(wheel.name)[0]) for wheel in wheels}
        if project is None:
            links = [f'<a href="/simple/{name}/">{name}</a>' for name in sorted(set(names.values()))]
        else:
            links = [_link(wheel) for wheel in wheels if names[wheel] == project]
            if not links:
                self.send_error(404)
                return
        body = f"<!DOCTYPE html><html><body>{'<br>'.join(links)}</body></html>".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Silent: the story's screen shows envguard's output and uv's, not ours."""


def _link(wheel: Path) -> str:
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    name = html.escape(wheel.name)
    return f'<a href="/files/{name.replace("+", "%2B")}#sha256={digest}">{name}</a>'


@contextlib.contextmanager
def serve_index(wheels: Path) -> Iterator[str]:
    """Serves a folder of wheels until the block ends; yields the index URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, directory=str(wheels)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/simple/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
