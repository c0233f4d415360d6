"""Text and command lines without the secrets in them."""

from __future__ import annotations

import re
from collections.abc import Sequence

SECRET_NAME = re.compile(
    r"(?i)(^|_)(?:API|ACCESS|AUTH|SECRET|PRIVATE|SESSION|CLIENT)*"
    r"(KEYS?|TOKENS?|SECRETS?|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|AUTH|COOKIE|PAT|BEARER|SIGNATURE)(_|$)"
)
# The last word of an option's or setting's name decides: `--hf-token` is a secret, `--tokenizer` and `--token-budget`
# are what a training command line is made of.
SECRET_LAST_WORD = (
    r"(?:[\w.-]*(?:[-_.]|api|access|account|auth|client|private|secret|session|shared))?"
    r"(?:key|token|secret|password|passwd|passphrase|credentials?|auth|cookie|bearer|signature)|-*(?:pass|pwd|pat|sig)"
)
SECRET_OPTION = re.compile(r"(?i)(?<![\w.-])(?:%s)$" % SECRET_LAST_WORD)
# A value ends at its closing quote, else at a blank: what else may be part of a password cannot be known.
_VALUE = r"(?:\\*\"[^\"]*\"?|\\*'[^']*'?|\S+)"
# `name=value` anywhere in a word (`a=1&token=x`), `name: value` of YAML and prose, `"name": "value"` of JSON. A colon
# alone is none: it parts the folders of a search path. `key: ` is how people announce a key of a dictionary.
ASSIGNMENT = re.compile(
    r"(?i)(?<![\w.-])(?!key[ \t]*:)((?:%s)(?:\\*[\"']?[ \t]*=[ \t]*|\\*[\"'][ \t]*:[ \t]*|:[ \t]+))%s"
    % (SECRET_LAST_WORD, _VALUE)
)
OPTION = re.compile(r"(?i)(?<!\S)((?=-)(?:%s)[ \t]+)(?!-)%s" % (SECRET_LAST_WORD, _VALUE))
HEADER = re.compile(
    r"(?i)((?<![\w.-])(?:(?:proxy-)?authorization|(?:set-)?cookie|x-[\w-]*(?:key|token|secret|auth|signature))\\*[\"']?"
    r"\s*:\s*\\*[\"']?|(?<!\w)bearer[ \t]+(?=[\w.~+/=-]{8}))[^\r\n\"']+"
)
# Up to the last `@` before a slash: a password may hold one too.
USER_INFO = re.compile(r"(?<=://)[^/?#\s\"'\\]+@")
SECRET_VALUE = re.compile(
    r"(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|AKIA[0-9A-Z]{16}|xox[abprs]-[\w-]{10,}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*|wandb_[A-Za-z0-9]{16,}|AIza[\w-]{30,}"
    r"|pypi-[\w-]{20,}|-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*)"
)
REDACTED = "[redacted]"


def redact(text: str) -> str:
    """Strips user info from URLs, values of secret-looking settings and options, and strings shaped like tokens."""
    text = USER_INFO.sub("", text)
    text = HEADER.sub(_keep_name, text)
    text = ASSIGNMENT.sub(_keep_name, text)
    text = OPTION.sub(_keep_name, text)
    return SECRET_VALUE.sub(REDACTED, text)


def _keep_name(match: re.Match[str]) -> str:
    return str(match.group(1)) + REDACTED


def redact_argv(argv: Sequence[str]) -> list[str]:
    """A command line without secrets: `--token X`, `--token=X`, `-u name:X`, `https://user:pw@host`, token shapes."""
    out, last = [], ""
    for word in argv:
        name, colon, rest = word.partition(":")
        if word.startswith("-"):
            # Such an option's own value is all of the word: a password may hold blanks and quotes.
            option, equals, _ = word.partition("=")
            out.append(option + "=" + REDACTED if equals and SECRET_OPTION.search(option) else redact(word))
        elif last == "login" or (last.startswith("-") and SECRET_OPTION.search(last)):
            out.append(REDACTED)
        elif last in ("-u", "--user", "--proxy-user") and colon and name and rest and not rest.isdigit():
            out.append(name + ":" + REDACTED)
        else:
            out.append(redact(word))
        last = word
    return out
