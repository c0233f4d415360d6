"""Where a text holds a secret: one engine for all that is stored, sent and shown.

A secret has a form (a token of a known service, a private key, user info in a URL). Or it has a name before it
(`--api-key X`, `"apiKey": "X"`, `PGPASSWORD=X`, `?sig=X`). Or a command takes it (`mysql -pX`, `X | docker login`).
The engine works on bytes and gives spans, in time that is linear in the length of the text: each pattern is anchored
at a literal and bounded, and what a name means is decided by code on at most `MOST_NAME` bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

REDACTED = "[redacted]"
MOST_NAME = 80
MOST_VALUE = 1 << 16

PASSWORDS = {"password", "passwd", "passphrase", "pass", "pwd", "secret", "credential", "psk"}
"""Names whose value is a secret even where it is a number."""
KEYS = {"key", "token", "auth", "authorization", "cookie", "bearer", "signature", "sig", "pat"}
"""Names whose value may be a setting: numbers are none of theirs."""
# Words that may stand glued before a name: `hubpass` and `monkey` tell that not every end of a word is a name.
GLUED = {
    "key": ("api", "access", "account", "auth", "client", "private", "secret", "session", "shared", "storage",
            "license", "ssh", "encryption", "signing", "service", "x"),
    "pass": ("db", "user", "root", "admin", "sudo", "ssh", "ftp", "smtp", "hub", "pg", "my", "mysql", "redis"),
}  # fmt: skip
# What stands before the name where it is a term of the field and no secret.
BENIGN = {
    "token": {
        "pad", "bos", "eos", "unk", "sep", "cls", "mask", "image", "audio", "video", "vision", "special",
        "additional", "stop", "start", "end", "begin", "first", "last", "max", "min", "num", "per", "new", "total",
        "prompt", "decoder", "encoder", "forced", "text", "vocab", "tool", "by", "next", "each", "batch",
        "unexpected", "invalid",
    },
    "key": {
        "torch", "cache", "sort", "primary", "foreign", "public", "host", "dict", "state", "group", "lookup", "hot",
        "index", "map", "metric", "column", "field", "label", "input", "output", "partition", "object", "data",
        "text", "image", "missing", "unexpected", "query", "attention", "loss", "monitor", "prompt", "target", "by",
    },
    "pass": {"forward", "backward", "first", "second", "third", "two", "one", "multi", "single", "by", "last", "no"},
    "signature": {"function", "method", "type", "call", "wheel"},
    "pwd": {"old"},
    "auth": {"no", "google", "requests"},
}  # fmt: skip

_STEM = re.compile(  # on the bytes in lower case
    rb"(?:key|token|secret|passw(?:or)?d|passphrase|pass|pwd|credential|authorization|auth|cookie|bearer|signature"
    rb"|(?<![a-z])(?:sig|pat|psk))s?(?:[_-]?id)?(?:[_-]?[0-9]{1,3})?(?![\w-])"
)
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_NAME_BYTES = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")
# After a name: `=` (never `==`, which a requirement has), a colon after a quoted name, a colon and a blank. After an
# option: a blank, or the next item of a list, over a line's end too.
_EQUALS = re.compile(rb"\\{0,4}[\"']?[ \t]{0,8}=(?!=)[ \t]{0,8}")
_QUOTED_COLON = re.compile(rb"\\{0,4}[\"'][ \t]{0,8}:(?:[ \t]{0,64}\r?\n)?[ \t]{0,64}")
_COLON = re.compile(rb":[ \t]{1,64}")
_BARE_COLON = re.compile(rb":(?![/\\:])")
_BLANK = re.compile(rb"[ \t]{1,16}(?![-\s])")
_NEXT_ITEM = re.compile(rb"\\{0,4}[\"'][ \t]{0,8},(?:\s|\\[nrt]){0,64}(?=\\{0,4}[\"'])")
_QUOTE = re.compile(rb"\\{0,4}[\"']")
_WORD = re.compile(rb"[^\s\"'`\0]{1,%d}" % MOST_VALUE)
_PARAMETER = re.compile(rb"[^\s\"'`\0&]{1,%d}" % MOST_VALUE)
_LINE = re.compile(rb"[^\r\n\"'\0]{1,%d}" % MOST_VALUE)
_SETTING = re.compile(
    rb"(?i)(?:[-+0-9.e_]{1,40}[kmg]?|true|false|null|none|yes|no|on|off|nan)(?=[,;)\]}&\s\"'`\\]|$)"
)
_BLOCK = re.compile(rb"[|>][-+]?[ \t]{0,9}(?:\r?\n|\\n)[ \t]{0,64}")
_BLOCK_LINE = re.compile(rb"[^\r\n\\\"]{1,%d}" % MOST_VALUE)
_REFERENCE = re.compile(rb"\$\{?[A-Za-z_]|\$\(|%[A-Za-z_]+%|<[\w -]*>|\*{3,}|\[redacted\]|[)\]},;|&]")

_USER_INFO = re.compile(rb"://([^/?#\s\"'\\@]{0,512}(?:@[^/?#\s\"'\\@]{0,512}){0,8})@")
# A word begins after the escaped end of a line, too: in a string of JSON that is how lines are parted.
_START = rb"(?:(?<![\w-])|(?<=\\[nrt]))"
_SHAPED = re.compile(
    _START + rb"(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|[sr]k_(?:live|test)_\w{16,}|gh[pousr]_[A-Za-z0-9]{20,}"
    rb"|github_pat_\w{20,}|glpat-[\w-]{16,}|A[KS]IA[0-9A-Z]{16}|xox[abeprs]-[\w-]{10,}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*"
    rb"|wandb_[A-Za-z0-9]{16,}|AIza[\w-]{30,}|ya29\.[\w-]{20,}|pypi-[\w-]{20,}|npm_[A-Za-z0-9]{30,}|dckr_pat_[\w-]{20,}"
    rb"|nvapi-[\w-]{20,}|gsk_[A-Za-z0-9]{20,}|r8_[A-Za-z0-9]{30,}|SG\.[\w-]{16,}\.[\w-]{16,})"
)
_PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z ]{0,32}PRIVATE KEY(?: BLOCK)?-----[^-]*")
# Commands that take a secret without a name. Each is bounded to its line and to a few words.
_TAKES = tuple(
    re.compile(pattern)
    for pattern in (
        _START + rb"(?:mysql|mysqldump|mysqladmin|mariadb|mariadb-dump)(?:[ \t]{1,9}[^\s|;&]{1,200}){0,12}?"
        rb"[ \t]{1,9}-p(?=\S)(?P<value>\"[^\"\n]{1,500}|'[^'\n]{1,500}|[^\s|;&\"']{1,500})",
        _START + rb"sshpass[ \t]{1,9}-p[ \t]?(?P<value>\"[^\"\n]{1,500}|'[^'\n]{1,500}|[^\s|;&\"']{1,500})",
        _START
        + rb"redis-cli(?:[ \t]{1,9}[^\s|;&]{1,200}){0,12}?[ \t]{1,9}-a[ \t]{1,9}(?P<value>[^\s|;&\\\"']{1,500})",
        _START + rb"(?:docker|podman|helm|nerdctl|skopeo|oras)(?:[ \t]{1,9}[^\s|;&]{1,200}){0,6}?[ \t]{1,9}login"
        rb"(?:[ \t]{1,9}[^\s|;&]{1,200}){0,12}?[ \t]{1,9}-p[ \t]{1,9}(?P<value>[^\s|;&\\\"']{1,500})",
        _START + rb"(?:echo|printf)[ \t]{1,9}(?P<value>[^|\n]{1,500})\|[^|\n]{0,200}\blogin\b",
        rb"\blogin\b[^\n<]{0,200}<<<[ \t]{0,9}(?P<value>[^\s|;&\\\"']{1,500})",
        _START + rb"login[ \t]{1,9}(?!-)(?P<value>[^\s|;&\"'.:/\\-][^\s|;&\"'.:/\\]{7,500})(?=[\s|;&\"'\\]|$)",
        _START + rb"(?:-u|--user|--proxy-user)[ \t]{1,9}[^\s:]{1,100}:(?![0-9]{1,9}(?:\s|$))"
        rb"(?P<value>[^\s|;&\"']{1,500})",
        _START + rb"set(?:env)?[ \t]{1,9}(?:-\w{1,9}[ \t]{1,9}){0,3}\w{0,80}(?:TOKEN|KEY|SECRET|PASS|PASSWORD|PWD)"
        rb"[ \t]{1,9}(?P<value>[^\s|;&\\\"']{1,500})",
    )
)
_HINTS = (b"key", b"token", b"secret", b"pass", b"pwd", b"credential", b"auth", b"cookie", b"bearer", b"sig", b"pat",
          b"psk")  # fmt: skip
_SHAPES = (b"hf_", b"sk-", b"k_live", b"k_test", b"gh", b"glpat", b"kia", b"sia", b"xox", b"eyj", b"wandb_", b"aiza",
           b"ya29", b"pypi-", b"npm_", b"dckr", b"nvapi", b"gsk_", b"r8_", b"sg.")  # fmt: skip
_COMMANDS = (b"mysql", b"mariadb", b"sshpass", b"redis-cli", b"login", b"-u ", b"-user ", b"-u\t",
             b"set ", b"setenv")  # fmt: skip


def spans(data: bytes) -> list[tuple[int, int, bool]]:
    """Where `data` holds secrets: (start, end, is user info), in order, none within another."""
    found: list[tuple[int, int, bool]] = []
    lower = data.lower()
    if b"://" in data:
        found += [(*match.span(1), True) for match in _USER_INFO.finditer(data) if match.group(1)]
    if any(hint in lower for hint in _SHAPES):
        found += [(*match.span(), False) for match in _SHAPED.finditer(data)]
    if b"PRIVATE KEY" in data:
        found += [(*match.span(), False) for match in _PRIVATE_KEY.finditer(data)]
    if any(hint in lower for hint in _HINTS):
        found += _named(data, lower)
    if any(hint in lower for hint in _COMMANDS):
        for pattern in _TAKES:
            found += [(*match.span("value"), False) for match in pattern.finditer(data)]
    return _apart(found)


def _apart(found: Iterable[tuple[int, int, bool]]) -> list[tuple[int, int, bool]]:
    out: list[tuple[int, int, bool]] = []
    for start, end, is_user in sorted(found):
        if out and start < out[-1][1]:
            first, last, was_user = out[-1]
            out[-1] = (first, max(last, end), was_user and is_user)
        else:
            out.append((start, end, is_user))
    return out


def is_secret_name(name: str) -> bool:
    """Whether a value of that name is a secret: its last part decides (`hf_token`, `apiKey`; not `token_budget`)."""
    return _kind(name) != ""


def is_secret_variable(name: str) -> bool:
    """The same for an environment variable, where any part decides: a value that is not needed is not taken."""
    if name in ("PWD", "OLDPWD"):
        return False
    parts = [part.lower() for part in name.split("_") if part]
    return is_secret_name(name) or any(_singular(part) in PASSWORDS | KEYS for part in parts)


def _singular(word: str) -> str:
    return word[:-1] if word.endswith("s") and word not in ("pass",) else word


def _kind(name: str) -> str:
    """The secret word that ends a name, "" where none does or the field has another use for it."""
    parts = [part.lower() for part in _PARTS.findall(name)]
    while parts and (parts[-1].isdigit() or (parts[-1] == "id" and len(parts) > 1)):
        parts.pop()
    if not parts:
        return ""
    before = parts[-2] if len(parts) > 1 else ""
    last = _singular(parts[-1])
    word = last if last in PASSWORDS | KEYS else _glued(last)
    if not word or before in BENIGN.get(word, ()) or before + word in ("bypass",):
        return ""
    return word


def _glued(last: str) -> str:
    for word in sorted(PASSWORDS | KEYS, key=len, reverse=True):
        if last.endswith(word) and word not in ("sig", "pat", "psk", "pwd", "auth", "bearer", "signature"):
            front = last[: -len(word)]
            if word in GLUED:
                return word if front.endswith(GLUED[word]) else ""
            return "" if front in BENIGN.get(word, ()) else word
        if last.endswith(word) and word in ("auth", "signature", "pwd") and last != "oldpwd":
            return word
    return ""


def _named(data: bytes, lower: bytes) -> Iterator[tuple[int, int, bool]]:
    done = 0
    for match in _STEM.finditer(lower):
        start, end = match.span()
        # Within a value there is nothing more to hide, but a name that ends it has a value of its own: in a string
        # of JSON the end of a line is no end of a word.
        if end + 8 < done:
            continue
        first = start
        while first > 0 and start - first < MOST_NAME and data[first - 1] in _NAME_BYTES:
            first -= 1
        name = data[first:end].decode("latin-1")
        kind = _kind(name)
        if not kind:
            continue
        found = _value_after(data, end, name, kind)
        if found is not None:
            done = max(done, found[1])
            yield (*found, False)


def _value_after(data: bytes, end: int, name: str, kind: str) -> tuple[int, int] | None:
    """Where the value of a name that ends at `end` stands; None where none follows, or it is a setting."""
    if kind == "bearer":
        blank = _BLANK.match(data, end)
        word = _WORD.match(data, blank.end()) if blank is not None else None
        if word is not None and len(word.group()) >= 8:
            return word.span()
    option = name.startswith("-")
    # `key: ` is how people announce a key of a dictionary.
    lone_key = name.lower() in ("key", "keys")
    patterns = [_EQUALS]
    if not lone_key:
        patterns += [_QUOTED_COLON, _COLON]
        if kind in PASSWORDS or kind == "authorization" or name[:2] in ("x-", "X-"):
            patterns.append(_BARE_COLON)
    if option:
        patterns += [_BLANK, _NEXT_ITEM]
    for pattern in patterns:
        match = pattern.match(data, end)
        if match is not None:
            header = pattern in (_COLON, _BARE_COLON, _QUOTED_COLON) and kind in ("authorization", "cookie")
            end_of = _LINE if header else _PARAMETER if pattern is _EQUALS else _WORD
            return _value(data, match.end(), kind, end_of)
    return None


def _value(data: bytes, at: int, kind: str, plain: re.Pattern[bytes]) -> tuple[int, int] | None:
    quote = _QUOTE.match(data, at)
    start = quote.end() if quote is not None else at
    block = _BLOCK.match(data, at)
    if block is not None:  # of YAML: the secret stands in the line below
        line = _BLOCK_LINE.match(data, block.end())
        return line.span() if line is not None else None
    # These first, at the beginning of the value: a value that is none of ours must not be read to its end.
    if _REFERENCE.match(data, start) or (kind in ("pwd", "pass") and data[start : start + 1] == b"/"):
        return None  # a variable, or a folder: PWD=/home/ada, and the parts of a search path
    setting = _SETTING.match(data, start)
    if setting is not None and (kind not in PASSWORDS or data[start : start + 1].isalpha()):
        return None
    if quote is not None:
        stop = _closing(data, start, quote.group())
        return (start, stop) if stop > start else None
    word = plain.match(data, at)
    return word.span() if word is not None else None


def _closing(data: bytes, start: int, quote: bytes) -> int:
    """Where a quoted value ends: at the same quote, else at the end of the line."""
    limit = min(len(data), start + MOST_VALUE)
    line = data.find(b"\n", start, limit)
    limit = limit if line < 0 else line
    at = data.find(quote, start, limit)
    while at > 0 and len(quote) == 1 and data[at - 1 : at] == b"\\":
        at = data.find(quote, at + 1, limit)
    return at if at >= 0 else limit


def redact(text: str) -> str:
    """The text with `[redacted]` in place of each secret; user info of a URL goes without a trace."""
    data = text.encode("utf-8", "surrogatepass")
    found = spans(data)
    if not found:
        return text
    out, last = [], 0
    for start, end, is_user in found:
        out.append(data[last:start])
        if is_user:
            last = end + 1 if data[end : end + 1] == b"@" else end
        else:
            out.append(REDACTED.encode())
            last = end
    out.append(data[last:])
    return b"".join(out).decode("utf-8", "surrogatepass")


def masked(data: bytes) -> bytes:
    """The bytes with a star for each of a secret's, so that sizes and offsets stay; the same object without one."""
    found = spans(data)
    if not found:
        return data
    out = bytearray(data)
    for start, end, _ in found:
        out[start:end] = bytes(byte if byte in b"\r\n" else 42 for byte in data[start:end])
    return bytes(out)


_PASSWORD_OPTIONS = {"mysql": "-p", "mysqldump": "-p", "mysqladmin": "-p", "mariadb": "-p", "sshpass": "-p"}


def redact_argv(argv: Sequence[str]) -> list[str]:
    """A command line without secrets: `--token X`, `--token=X`, `-u name:X`, `https://user:pw@host`, token shapes."""
    out: list[str] = []
    last, glued = "", ""
    for word in argv:
        name, colon, rest = word.partition(":")
        glued = _PASSWORD_OPTIONS.get(word.rpartition("/")[2], glued)
        option, equals, value = word.partition("=")
        if last.startswith("-") and is_secret_name(last) and not (word.startswith("-") or _is_setting(last, word)):
            out.append(REDACTED)
        elif last == "login" and not word.startswith("-"):
            out.append(REDACTED)
        elif glued and last == glued and not word.startswith("-"):
            out.append(REDACTED)
        elif glued and word.startswith(glued) and word != glued:
            out.append(glued + REDACTED)
        elif word.startswith("-") and equals and is_secret_name(option) and not _is_setting(option, value):
            # Such an option's own value is all of the word: a password may hold blanks and quotes.
            out.append(option + "=" + REDACTED)
        elif last in ("-u", "--user", "--proxy-user") and colon and name and rest and not rest.isdigit():
            out.append(name + ":" + REDACTED)
        else:
            out.append(redact(word))
        last = word
    return out


def _is_setting(name: str, value: str) -> bool:
    """Whether the value of a secret-looking option is a number or a word such as `true`."""
    plain = _SETTING.fullmatch(value.encode("utf-8", "surrogateescape")) is not None
    return plain and (_kind(name) not in PASSWORDS or not value[:1].isdigit())
