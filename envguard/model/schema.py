"""The JSON Schema of each answer, made from its type."""

from __future__ import annotations

import difflib
from typing import Any

import msgspec

from envguard.errors import UsageError
from envguard.model import action, drift, event, fingerprint

KINDS: dict[str, type[msgspec.Struct]] = {
    "fingerprint": fingerprint.Fingerprint,
    "diff": drift.DiffReport,
    "verify": drift.VerifyReport,
    "timeline": event.TimelineReport,
    "collect": action.CollectReport,
    "restore": action.RestoreReport,
    "launch": action.LaunchReport,
    "log": action.LogReport,
    "vault": action.VaultReport,
    "waivers": action.WaiversReport,
    "demo": action.DemoReport,
    "error": action.ErrorReport,
}


def schema(kind: str) -> dict[str, Any]:
    """The schema of one kind; every key is required, since every key is always there. Raises `UsageError`."""
    if kind not in KINDS:
        close = difflib.get_close_matches(kind, KINDS, n=1)
        hint = f"did you mean `{close[0]}`?" if close else f"the kinds are: {', '.join(KINDS)}"
        raise UsageError(f"no schema of kind {kind!r}", hint)
    made = msgspec.json.schema(KINDS[kind])
    for definition in made.get("$defs", {}).values():
        if "properties" in definition:
            definition["required"] = list(definition["properties"])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}


def schema_text(kind: str) -> str:
    """The schema as it is printed and shipped."""
    return msgspec.json.format(msgspec.json.encode(schema(kind)), indent=2).decode() + "\n"
