"""A URL of a lock, an index or a setting, and the credentials that may stand in it.

The one place that takes them apart. `str` is what is shown and stored: no user info, no query. A request alone reads
`request_url` and `authorization`, as uv and pip do with such a URL.
"""

from __future__ import annotations

import base64
import urllib.parse

from envguard.acquire.seam.collector.redaction import redact


class Address:
    """No string, so that no encoder and no template takes the credentials along unnoticed."""

    __slots__ = ("_query", "_rest", "_scheme", "_user")

    def __init__(self, text: str) -> None:
        scheme, found, rest = text.strip().partition("://")
        self._scheme, rest = (scheme + found, rest) if found else ("", text.strip())
        authority = rest.partition("/")[0].partition("?")[0].partition("#")[0]
        port = authority.rpartition("@")[2].partition("]")[2 if "]" in authority else 0].partition(":")[2]
        # A password with `/`, `?` or `#` in it that nobody escaped ends at the last `@`.
        unescaped = "@" not in authority and port != "" and not port.isdigit()
        end = rest.rfind("@") if unescaped else authority.rfind("@")
        self._user, rest = (rest[:end], rest[end + 1 :]) if found and end >= 0 else ("", rest)
        path, hashed, fragment = rest.partition("#")
        path, _, self._query = path.partition("?")
        self._rest = path + hashed + fragment

    def __str__(self) -> str:
        """Without user info and query; a token of a known shape in the path is redacted."""
        return redact(self._scheme + self._rest)

    def __repr__(self) -> str:
        return f"Address({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Address) and self._parts() == other._parts()

    def __hash__(self) -> int:
        return hash(self._parts())

    def _parts(self) -> tuple[str, str, str, str]:
        return self._scheme, self._user, self._rest, self._query

    @property
    def is_web(self) -> bool:
        """Whether it is http or https."""
        return self._scheme.lower() in ("http://", "https://")

    @property
    def filename(self) -> str:
        """The last part of the path, unquoted."""
        return urllib.parse.unquote(self._rest.partition("#")[0].rpartition("/")[2])

    @property
    def fragment(self) -> str:
        """What stands behind `#`: `sha256=…`, `egg=…`."""
        return self._rest.partition("#")[2]

    @property
    def request_url(self) -> str:
        """What is requested: with the query, without user info and fragment. It may hold a token: show `str`."""
        query = f"?{self._query}" if self._query else ""
        return self._scheme + self._rest.partition("#")[0] + query

    @property
    def authorization(self) -> str | None:
        """The header's value for the user info, None where there is none."""
        if not self._user:
            return None
        user, _, password = self._user.partition(":")
        pair = f"{urllib.parse.unquote(user)}:{urllib.parse.unquote(password)}"
        return "Basic " + base64.b64encode(pair.encode()).decode("ascii")

    @property
    def origin(self) -> str:
        """Scheme, host and port, in lower case."""
        return (self._scheme + self._rest.partition("/")[0].partition("#")[0]).lower()

    @property
    def host(self) -> str:
        """The server's name without its port, in lower case."""
        name = self.origin.removeprefix(self._scheme.lower())
        return name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]

    def with_login(self, user: str, password: str) -> Address:
        """The same address for a user, both as they are."""
        made = Address(self._scheme + self._rest)
        made._query = self._query
        made._user = f"{urllib.parse.quote(user, safe='')}:{urllib.parse.quote(password, safe='')}"
        return made

    def below(self, name: str) -> Address:
        """The page of a project in this index."""
        query = f"?{self._query}" if self._query else ""
        return self._with_user(f"{self._scheme}{self._rest.partition('#')[0].rstrip('/')}/{name}/{query}")

    def joined(self, target: str, base: str | None = None) -> Address:
        """What a link on this page leads to. The user info goes along to the same origin and to no other; `base` is
        the URL that answered in place of this one."""
        found = Address(urllib.parse.urljoin(base or self.request_url, target))
        return self._with_user(found) if not found._user and found.origin == self.origin else found

    def _with_user(self, text: str | Address) -> Address:
        made = text if isinstance(text, Address) else Address(text)
        made._user = self._user
        return made
