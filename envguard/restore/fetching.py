"""`--fetch`: the only part of envguard that touches a network, and only for wheels that are known by hash or build.

What is downloaded counts for nothing until it has the sha256 that a lock or a pointer names, or, for a stamp that
knows no wheel, until its RECORD has the wanted build identity.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from envguard import __version__
from envguard.acquire.packages.wheel_files import NotAWheel, read_wheel
from envguard.acquire.seam.address import Address
from envguard.acquire.seam.host import Host
from envguard.restore.candidate import Candidate, from_wheel
from envguard.restore.login import Logins, with_login
from envguard.restore.plan import same_version
from envguard.restore.progress import Progress
from envguard.restore.wanted import Wanted

TIMEOUT_S = 60
LOGIN = "a login is taken from the URL, from netrc, or from UV_INDEX_NAME_USERNAME and _PASSWORD"
CHUNK = 1 << 20
MOST_PAGE = 64 << 20
# `name=https://…` of UV_INDEX; a `=` further on belongs to the URL.
_NAMED_INDEX = re.compile(r"^[\w.-]+=(?=[a-z]+://)")


@dataclass(frozen=True)
class Offer:
    """A wheel that an index or a witness names."""

    url: Address
    filename: str
    sha256: str | None


class FetchFailed(Exception):
    """Why a package could not be downloaded."""


def fetch(
    wanted: Wanted, indexes: Iterable[Address], tags: frozenset[str], folder: Path, host: Host, progress: Progress
) -> Candidate:
    """Downloads one wheel of `wanted` into `folder`. Raises `FetchFailed`, and OSError where it cannot be written."""
    reasons: list[str] = []
    indexes = tuple(indexes)
    logins = Logins((*indexes, *wanted.urls), os.environ)
    indexes = tuple(map(logins.complete, indexes))
    for offer in _offers(wanted, indexes, tags, reasons):
        path = folder / offer.filename
        try:
            digest = _download(logins.complete(offer.url), path, progress)
            return _accepted(wanted, offer, path, digest, host)
        except (FetchFailed, NotAWheel) as error:
            path.unlink(missing_ok=True)
            reasons.append(f"{offer.url}: {error}")
    raise FetchFailed("; ".join(reasons) or "no witness names an index or a URL for it")


def _accepted(wanted: Wanted, offer: Offer, path: Path, digest: str, host: Host) -> Candidate:
    expected = wanted.sha256 or ((offer.sha256,) if offer.sha256 else ())
    if expected and digest not in expected:
        raise FetchFailed(f"its sha256 is {digest}, not {expected[0]}")
    wheel = read_wheel(host, str(path), "find-links")
    if wanted.build is not None and wheel.build != wanted.build:
        raise FetchFailed(f"it is build {wheel.build[:16]}, not {wanted.build[:16]}")
    if wanted.build is None and not wanted.sha256:
        raise FetchFailed("neither a hash nor a build says what it must be")
    return from_wheel(wheel, "fetched", (digest,))


def _offers(wanted: Wanted, indexes: Iterable[Address], tags: frozenset[str], reasons: list[str]) -> list[Offer]:
    """URLs that a witness names first, then what the indexes list, the fitting ones of the wanted version alone."""
    found = [_offer(url, None) for url in wanted.urls]
    for index in indexes:
        try:
            found += list_index(index, wanted.name)
        except FetchFailed as error:
            reasons.append(f"{index}: {error}")
    fitting = []
    for offer in found:
        if "/" in offer.filename or offer.filename.startswith("."):
            continue  # a name that leaves the folder it is written to
        try:
            _, version, _, offered = parse_wheel_filename(offer.filename)
        except InvalidWheelFilename:
            continue
        right = not wanted.sha256 or offer.sha256 is None or offer.sha256 in wanted.sha256
        if right and same_version(str(version), wanted.version) and tags & {str(tag) for tag in offered}:
            fitting.append(offer)
    return fitting


def index_urls(
    wanted: Wanted | None, environ: Mapping[str, str], configured: Iterable[tuple[str | None, str]] = ()
) -> tuple[Address, ...]:
    """Indexes that may have it: the lock's, those that uv's variables and configuration name, PyPI.

    For torch's builds also its own index, which the local version names (`+cu128`). A named index comes with the
    login that uv's variables give to it.
    """
    found = [wanted.index] if wanted is not None and wanted.index is not None else []
    local = ((wanted.shown if wanted is not None else None) or "").partition("+")[2]
    if re.fullmatch(r"cu\d+|cpu|rocm[\d.]+|xpu", local):
        found.append(Address(f"https://download.pytorch.org/whl/{local}"))
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL", "PIP_INDEX_URL"):
        found += [_named(part, environ) for part in environ.get(name, "").split()]
    found += [with_login(Address(url), name, environ) if name else Address(url) for name, url in configured]
    return tuple(dict.fromkeys([*found, Address("https://pypi.org/simple")]))


def _named(index: str, environ: Mapping[str, str]) -> Address:
    """An index as a variable of uv's gives it, `URL` or `NAME=URL`."""
    match = _NAMED_INDEX.match(index)
    address = Address(index[match.end() :] if match else index)
    return with_login(address, match.group()[:-1], environ) if match else address


def _offer(url: Address, sha256: str | None) -> Offer:
    match = re.search(r"sha256=([0-9a-f]{64})", url.fragment)
    return Offer(url, url.filename, sha256 or (match.group(1) if match else None))


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        target = dict(attributes).get("href")
        if tag == "a" and target:
            self.found.append(target)


def list_index(index: Address, name: str) -> list[Offer]:
    """What a simple index (PEP 503 or 691) offers of one project. Raises `FetchFailed`."""
    page = index.below(name)
    accept = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.5, text/html;q=0.1"
    with _open(page, accept) as answer:
        data = _read(answer, MOST_PAGE)
        kind = answer.headers.get_content_type()
        base = answer.url
    if kind.endswith("json"):
        try:
            files = msgspec.json.decode(data, type=dict[str, Any]).get("files", [])
        except msgspec.MsgspecError as error:
            raise FetchFailed(f"no page of an index: {error}") from error
        return [
            _offer(page.joined(entry["url"], base), (entry.get("hashes") or {}).get("sha256"))
            for entry in files
            if isinstance(entry, dict) and isinstance(entry.get("url"), str)
        ]
    links = _Links()
    links.feed(data.decode("utf-8", "replace"))
    return [_offer(page.joined(target, base), None) for target in links.found]


def _download(url: Address, path: Path, progress: Progress) -> str:
    hasher = hashlib.sha256()
    with _open(url, "*/*") as answer, path.open("wb") as stream:
        length = answer.headers.get("Content-Length")
        progress.begin(f"fetch {path.name[:40]}", int(length) if length and length.isdigit() else 0)
        while chunk := _read(answer, CHUNK):
            stream.write(chunk)
            hasher.update(chunk)
            progress.advance(len(chunk))
        stream.flush()
        os.fsync(stream.fileno())
    progress.end()
    return hasher.hexdigest()


class _SameOrigin(urllib.request.HTTPRedirectHandler):
    """Credentials follow a redirect within their origin and to no other."""

    def __init__(self, url: Address) -> None:
        self.url = url

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        made = super().redirect_request(req, fp, code, msg, headers, newurl)
        if made is not None:
            _authorize(made, self.url.joined(newurl))
        return made


def _authorize(request: urllib.request.Request, url: Address) -> None:
    if url.authorization is not None:
        request.add_unredirected_header("Authorization", url.authorization)


def _open(url: Address, accept: str) -> Any:
    """Raises `FetchFailed`, whose text holds no part of the URL."""
    if not url.is_web:
        raise FetchFailed("only http and https are fetched")
    headers = {"Accept": accept, "User-Agent": f"envguard/{__version__}", "Accept-Encoding": "identity"}
    try:
        request = urllib.request.Request(url.request_url, headers=headers)
        _authorize(request, url)
        return urllib.request.build_opener(_SameOrigin(url)).open(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        says = f"; {LOGIN}" if error.code in (401, 403) else ""
        raise FetchFailed(f"HTTP {error.code} {error.reason}{says}") from None
    except OSError as error:
        raise FetchFailed(str(getattr(error, "reason", None) or error.strerror or type(error).__name__)) from None
    except (http.client.HTTPException, ValueError) as error:
        # Their texts quote the URL: `nonnumeric port: 'password@host'`.
        raise FetchFailed(f"no answer that can be read ({type(error).__name__})") from None


def _read(answer: Any, most: int) -> bytes:
    try:
        data: bytes = answer.read(most)
    except (OSError, http.client.HTTPException) as error:
        raise FetchFailed(f"the transfer broke off ({type(error).__name__})") from None
    return data
