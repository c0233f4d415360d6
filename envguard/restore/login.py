"""Logins that stand in no URL: a netrc file, and the variables that uv takes for an index with a name."""

from __future__ import annotations

import netrc
import os
import re
from collections.abc import Iterable, Mapping

from envguard.acquire.seam.address import Address


def with_login(address: Address, name: str, environ: Mapping[str, str]) -> Address:
    """The index `name` with the login that `UV_INDEX_NAME_USERNAME` and `_PASSWORD` give, if any."""
    variable = "UV_INDEX_" + re.sub(r"[^A-Z0-9]", "_", name.upper())
    user, password = environ.get(f"{variable}_USERNAME"), environ.get(f"{variable}_PASSWORD")
    return address if user is None and password is None else address.with_login(user or "", password or "")


class Logins:
    """The login of a server: from another URL of it among `addresses`, else from netrc."""

    def __init__(self, addresses: Iterable[Address], environ: Mapping[str, str]) -> None:
        self._known: dict[str, Address] = {}
        for address in addresses:
            if address.authorization is not None:
                self._known.setdefault(address.origin, address)
        self._netrc = _read_netrc(environ)

    def complete(self, address: Address) -> Address:
        """The address, with its server's login where it has none itself."""
        if address.authorization is not None:
            return address
        known = self._known.get(address.origin)
        if known is not None:
            return known.joined(address.request_url)
        found = self._netrc.authenticators(address.host) if self._netrc is not None else None
        return address.with_login(found[0] or "", found[2] or "") if found else address


def _read_netrc(environ: Mapping[str, str]) -> netrc.netrc | None:
    """`NETRC`, else `~/.netrc`; one that cannot be read gives no login."""
    path = environ.get("NETRC") or os.path.join(environ.get("HOME") or "/", ".netrc")
    try:
        return netrc.netrc(path)
    except (OSError, netrc.NetrcParseError, UnicodeDecodeError):
        return None
