"""Lines of jsonl to token ids and labels, or to a reason why not."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from trainer.errors import ConfigError
from trainer.tokenizer import Message, TextError, Tokenizer

_GROUP = 256  # lines that are tokenised at once, on all cores
_ROLES = {"human": "user", "gpt": "assistant"}  # the names of the ShareGPT format


@dataclass(frozen=True)
class Document:
    """Token ids, and True for each token that is a label."""

    tokens: list[int]
    supervised: list[bool]


@dataclass(frozen=True)
class Written:
    """The very tokens of a chat, for a response whose text reads back as other tokens."""

    tokenizer: str  # its digest
    prompt: int  # tokens before the last response
    tokens: list[int]


@dataclass(frozen=True)
class Chat:
    """Messages; ``cut`` where the last one is a response that was broken off (``"finish": "length"``)."""

    messages: list[Message]
    cut: bool = False
    written: Written | None = None


@dataclass(frozen=True)
class BadLine:
    """A line that gives no document, and why."""

    file: str
    line: int  # from 1
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}"


def read_documents(paths: Sequence[Path], tokenizer: Tokenizer) -> Iterator[Document | BadLine]:
    """One value a line, in order; ConfigError where a file cannot be read."""
    for path in paths:
        lines = numbered_lines(path)
        while group := list(itertools.islice(lines, _GROUP)):
            parsed = [_parsed(line) for _, line in group]
            for (number, _), found in zip(group, encode(parsed, tokenizer), strict=True):
                yield BadLine(str(path), number, str(found)) if isinstance(found, TextError) else found


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file with their numbers from 1; ConfigError where it cannot be read."""
    try:
        with path.open("rb") as file:
            yield from enumerate(file, start=1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error


def parse(line: bytes) -> str | Chat:
    """A text, or a chat with roles and contents as strings; TextError says what is wrong."""
    if not line.strip():
        raise TextError("an empty line")
    try:
        value = json.loads(line.decode("utf-8-sig"))  # given bytes, it would guess at UTF-16 where it sees a NUL
    except UnicodeDecodeError as error:
        raise TextError("not UTF-8") from error
    except json.JSONDecodeError as error:
        raise TextError(f"not JSON: {error.msg} at column {error.colno}") from error
    except ValueError as error:  # a number of thousands of digits
        raise TextError(f"not JSON that can be read: {error}") from error
    except RecursionError as error:
        raise TextError("JSON nested too deep") from error
    if not isinstance(value, dict):
        raise TextError(f"a {type(value).__name__}, not an object")
    for key in ("messages", "conversations"):
        if key in value:
            messages = _messages(value[key], key)
            cut = value.get("finish") == "length" and messages[-1]["role"] == "assistant"
            return Chat(messages, cut, _written(value["written"]) if "written" in value else None)
    if "text" not in value:
        raise TextError("none of the keys messages, conversations, text")
    return _string(value["text"], "text")


def _parsed(line: bytes) -> str | Chat | TextError:
    try:
        return parse(line)
    except TextError as error:
        return error


def encode(contents: Sequence[str | Chat | TextError], tokenizer: Tokenizer) -> list[Document | TextError]:
    """All of a text is labels; of a chat, the responses are. An error stays in its place."""
    chats = [one for one in contents if isinstance(one, Chat) and one.written is None]
    encoded = iter(tokenizer.encode_chats((chat.messages, chat.cut) for chat in chats))
    out: list[Document | TextError] = []
    for content in contents:
        if isinstance(content, TextError):
            out.append(content)
        elif isinstance(content, str):
            tokens = tokenizer.encode_text(content)
            out.append(Document(tokens, [True] * len(tokens)))
        elif content.written is not None:
            out.append(_as_written(content.written, tokenizer))
        else:
            found = next(encoded)
            out.append(found if isinstance(found, TextError) else Document(*found))
    return out


def _as_written(written: Written, tokenizer: Tokenizer) -> Document | TextError:
    if written.tokenizer != tokenizer.digest:
        return TextError("its tokens were written with another tokenizer")
    tokens, prompt = written.tokens, written.prompt
    if not 0 < prompt < len(tokens) or not all(0 <= token < tokenizer.size for token in tokens):
        return TextError("written: not a prompt and a response in the tokenizer's ids")
    return Document(tokens, [index >= prompt for index in range(len(tokens))])


def _written(value: Any) -> Written:
    try:
        return msgspec.convert(value, Written)
    except msgspec.ValidationError as error:
        raise TextError(f"written: {error}") from error


def _messages(value: Any, key: str) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise TextError(f"{key} is not a list of messages")
    messages: list[Message] = []
    for number, item in enumerate(value):
        if not isinstance(item, dict):
            raise TextError(f"{key}[{number}] is not an object")
        role = item.get("role", item.get("from"))
        if not isinstance(role, str):
            raise TextError(f"{key}[{number}] has no role")
        content = item.get("content", item.get("value"))
        if isinstance(content, list):
            content = "".join(_part(part, f"{key}[{number}]") for part in content)
        messages.append({"role": _ROLES.get(role, role), "content": _string(content, f"{key}[{number}].content")})
    return messages


def _part(value: Any, where: str) -> str:
    if not isinstance(value, dict) or value.get("type") != "text":
        raise TextError(f"{where} holds something other than text")
    return _string(value.get("text"), f"{where}.text")


def _string(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise TextError(f"{where} is not a string")
    if not value.strip():
        raise TextError(f"{where} is empty")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise TextError(f"{where} holds half a surrogate pair") from error
    return value
