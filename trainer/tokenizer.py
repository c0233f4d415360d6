"""Text to token ids: the target's own tokenizer and chat template, and which tokens are labels."""

from __future__ import annotations

import bisect
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.sandbox
import tokenizers

Message = Mapping[str, str]
Labelled = tuple[list[int], list[bool]]
"""Token ids, and True for each that is a label."""


class TextError(ValueError):
    """A document that cannot be encoded faithfully; the message says why."""


class Tokenizer:
    """A ``tokenizers`` backend with the target's chat template.

    Size and digest take tens of milliseconds with a large vocabulary, and are found once: the backend never changes.
    ``end_ids`` are the tokens that end a response; ``special`` maps control tokens to their ids.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        chat_template: str | None,
        end_ids: Iterable[int],
        named: Mapping[str, str] | None = None,
    ) -> None:
        """``named`` are the special tokens that templates call by name, such as ``bos_token``."""
        backend.no_truncation()  # a tokenizer.json may carry either, and would cut texts in silence
        backend.no_padding()
        self._backend = backend
        self._template_source = chat_template
        self._template = _environment().from_string(chat_template) if chat_template else None
        self._named = dict(named or {})
        self.end_ids = frozenset(end_ids)
        added = backend.get_added_tokens_decoder()
        self.special = {token.content: number for number, token in added.items() if token.special}

    @cached_property
    def size(self) -> int:
        """One more than the largest id; embeddings may have further, unused rows."""
        return max(self._backend.get_vocab(with_added_tokens=True).values()) + 1

    @property
    def used_ids(self) -> frozenset[int]:
        """Special ids that texts or chats do hold: ends, named ones, and those of the chat template."""
        source = self._template_source or ""
        in_use = {self.special[text] for text in self._named.values() if text in self.special}
        in_use |= {number for text, number in self.special.items() if text in source}
        return frozenset(in_use | self.end_ids)

    @cached_property
    def digest(self) -> str:
        """sha256 of everything that ids depend on."""
        parts = [
            self._backend.to_str(),
            self._template_source,
            sorted(self.end_ids),
            sorted(self._named.items()),
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def encode_text(self, text: str) -> list[int]:
        """Plain text, with whatever the tokenizer itself puts first; control tokens' names are mere text."""
        self._backend.encode_special_tokens = True
        return list(self._backend.encode(text).ids)

    def encode_prompt(self, messages: Sequence[Message]) -> list[int]:
        """A chat up to where the assistant's next response begins."""
        return self._encode_rendered(self._render(messages, generate=True)).ids

    def encode_chat(self, messages: Sequence[Message], *, cut: bool = False) -> tuple[list[int], list[bool]]:
        """A whole chat: its ids, and True for each token of a response, the token that ends it included.

        A token that straddles the start of a response belongs to the prompt: at inference the response
        begins after it. ``cut``: the last message is a response that was broken off; the ids end with it,
        since its writer did not end it there.
        """
        (found,) = self.encode_chats([(messages, cut)])
        if isinstance(found, TextError):
            raise found
        return found

    def encode_chats(self, chats: Iterable[tuple[Sequence[Message], bool]]) -> list[Labelled | TextError]:
        """What ``encode_chat`` gives or raises for each (messages, cut), on all cores."""
        plans: list[tuple[str, list[int], bool] | TextError] = []
        for messages, cut in chats:
            try:
                whole = self._render(messages, generate=False)
                plans.append((whole, self._response_starts(whole, messages), cut))
            except TextError as error:
                plans.append(error)
        self._backend.encode_special_tokens = False
        rendered = [plan[0] for plan in plans if not isinstance(plan, TextError)]
        encodings = iter(self._backend.encode_batch(rendered, add_special_tokens=False))
        return [plan if isinstance(plan, TextError) else self._labelled(next(encodings), *plan[1:]) for plan in plans]

    def decode(self, ids: Sequence[int], *, keep_special: bool = False) -> str:
        """Token ids to text."""
        return str(self._backend.decode(list(ids), skip_special_tokens=not keep_special))

    def _response_starts(self, whole: str, messages: Sequence[Message]) -> list[int]:
        """The offsets, in characters of the rendered chat ``whole``, at which the texts of responses begin."""
        starts = []
        for number, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            prompt = self._render(messages[:number], generate=True)
            if not whole.startswith(prompt):
                raise TextError(f"the chat template rewrites what precedes message {number}")
            starts.append(len(prompt))
        if not starts:
            raise TextError("no message of the assistant: nothing to learn from")
        return starts

    def _labelled(self, encoding: tokenizers.Encoding, starts: Sequence[int], cut: bool) -> Labelled | TextError:
        """The ids, and True from the first token of each response to the token that ends it."""
        ids = encoding.ids  # each access to it or to the offsets makes a new list of them all
        firsts = [first for first, _ in encoding.offsets]
        ends = [index for index, token in enumerate(ids) if token in self.end_ids]
        supervised = [False] * len(ids)
        length = len(ids)
        for start in starts:
            begin = bisect.bisect_left(firsts, start)
            after = bisect.bisect_left(ends, begin)
            if after == len(ends):
                return TextError("the chat template puts no end token after a response")
            end = ends[after]
            supervised[begin : end + 1] = [True] * (end + 1 - begin)
            if cut:
                length = end
        return ids[:length], supervised[:length]

    def _render(self, messages: Sequence[Message], *, generate: bool) -> str:
        if self._template is None:
            raise TextError("the target has no chat template: only texts can be encoded")
        for message in messages:
            # In a chat the template's control tokens are read as such; a user's words must never be.
            for text in self.special:
                if text in message["content"]:
                    raise TextError(f"a message holds the control token {text}")
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=generate,
                **self._named,
            )
        except jinja2.TemplateError as error:
            raise TextError(f"the chat template refuses it: {error}") from error

    def _encode_rendered(self, rendered: str) -> tokenizers.Encoding:
        self._backend.encode_special_tokens = False
        return self._backend.encode(rendered, add_special_tokens=False)


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    """Templates come with models: they run sandboxed. No clock is offered, so that ids are reproducible."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )

    def raise_exception(message: str) -> NoReturn:
        raise jinja2.TemplateError(message)

    def tojson(value: Any, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment.globals["raise_exception"] = raise_exception
    environment.filters["tojson"] = tojson
    return environment
