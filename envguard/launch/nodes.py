"""Many nodes: before anything starts, all hold their fingerprints against each other, and refuse together or go.

Each node decides for itself first, then tells the others its fingerprint and its verdict, and computes from what all
have told the same answer as every other node. The texts go through torch.distributed's own store, opened by a small
program that the environment's interpreter runs: envguard speaks no protocol of its own and imports no torch.
"""

from __future__ import annotations

import importlib.resources
import json
import platform
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from envguard import clock
from envguard.config import PolicyRule
from envguard.fingerprint.diff import compare
from envguard.launch.gate import GO, REFUSED, TRY_AGAIN, UNDETERMINED, Verdict, decide
from envguard.launch.rendezvous import Rendezvous
from envguard.launch.session import Gate
from envguard.launch.waivers import Waiver
from envguard.model.action import Check
from envguard.model.drift import Drift
from envguard.model.evidence import Unknown
from envguard.model.fingerprint import Fingerprint

TIMEOUT_S = 300.0
_IMPORTING_S = 120.0
# What is each node's own affair: a cold cache on one of them costs its first minutes and no more.
_OWN_AFFAIR = frozenset({"compile_cache"})


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What a node tells the others."""

    host: str
    code: int
    because: tuple[str, ...]
    waivers: tuple[Waiver, ...]
    reference: str | None
    """Id of the fingerprint that the node is held against; None at a first start."""
    fingerprint: Fingerprint


@dataclass(frozen=True)
class Node:
    """One node's word, with its rank."""

    rank: int
    told: Told

    def __str__(self) -> str:
        return f"node {self.rank} ({self.told.host})"


@dataclass(frozen=True)
class Council:
    """What all nodes told, or why not all did; `rank` is ours."""

    rank: int | None
    nodes: tuple[Node, ...]
    why: str | None = None


def told(verdict: Verdict, live: Fingerprint, waivers: Sequence[Waiver], reference: str | None) -> Told:
    """This node's word. Waivers too: what one answers for, all let pass, or some would start and some would not."""
    because = [
        f"{drift.facet} {drift.subject} {drift.a or 'absent'} → {drift.b or 'absent'}" for drift in verdict.drifts
    ]
    because += [f"{check.check}: {check.detail}" for check in verdict.checks]
    because += [f"{unknown.what} is not known: {unknown.why}" for unknown in verdict.unknown]
    return Told(
        host=platform.node(),
        code=verdict.code,
        because=tuple(because[:4]),
        waivers=tuple(waivers),
        reference=reference,
        fingerprint=live,
    )


def exchange(python: str | None, at: Rendezvous, word: Told, timeout: float = TIMEOUT_S) -> Council:
    """Meets the other nodes and returns what all told. What keeps them from meeting is the answer, never an error."""
    if python is None:
        return Council(at.rank, (), "the environment has no interpreter that could be run")
    asked = {
        "host": at.host, "port": at.port, "nodes": at.nodes, "rank": at.rank, "key": at.key, "timeout": timeout,
        "payload": msgspec.json.encode(word).decode(),
    }  # fmt: skip
    program = importlib.resources.files("envguard.launch").joinpath("meet_program.py").read_text(encoding="utf-8")
    try:
        done = subprocess.run(
            [python, "-B", "-P", "-c", program],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            timeout=timeout + _IMPORTING_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Council(at.rank, (), f"{python}: {error}")
    return _understood(at, done)


def _understood(at: Rendezvous, done: subprocess.CompletedProcess[str]) -> Council:
    where = f"{at.host}:{at.port}"
    try:
        answer = json.loads(done.stdout.rpartition("\n{")[2] if "\n{" in done.stdout else done.stdout)
        if "error" in answer:
            absent = ", ".join(f"node {rank}" for rank in answer["missing"])
            return Council(at.rank, (), f"{answer['error']} at {where}{f': {absent} missing' if absent else ''}")
        words = [msgspec.json.decode(text, type=Told) for text in answer["payloads"]]
    except (ValueError, KeyError, TypeError) as error:
        last = (done.stderr.strip().splitlines() or [str(error)])[-1]
        return Council(at.rank, (), f"the nodes could not meet at {where}: {last}")
    return Council(answer["rank"], tuple(Node(rank, word) for rank, word in enumerate(words)))


def odd_ones(nodes: Sequence[Node]) -> tuple[Node, tuple[Node, ...]]:
    """(the node that stands for most, all others). Where two are as many, one that has a reference's id stands, else
    the first. Nothing but the nodes' words decides, so that every node comes to the same."""
    counts = Counter(node.told.fingerprint.id for node in nodes)
    wanted = {node.told.reference for node in nodes} - {None}

    def weight(node: Node) -> tuple[int, bool, int]:
        identity = node.told.fingerprint.id
        return counts[identity], identity in wanted, -node.rank

    first = max(nodes, key=weight)
    return first, tuple(node for node in nodes if node is not first)


def disagreements(
    nodes: Sequence[Node], policy: Sequence[PolicyRule]
) -> tuple[tuple[Drift, ...], tuple[Unknown, ...]]:
    """What the nodes differ in, the odd node named; the same on every node, made from the same words."""
    first, others = odd_ones(nodes)
    drifts: list[Drift] = []
    unknown: list[Unknown] = []
    for node in others:
        report = compare(first.told.fingerprint, node.told.fingerprint, policy, str(first), str(node))
        drifts += [
            msgspec.structs.replace(drift, why=f"{node} differs from {first}: {drift.why}")
            for drift in report.drifts
            if drift.severity != "info" and drift.facet not in _OWN_AFFAIR
        ]
        unknown += [msgspec.structs.replace(item, why=f"{node}: {item.why}") for item in report.unknown]
    return tuple(drifts), tuple(dict.fromkeys(unknown))


def together(gated: Gate, council: Council, policy: Sequence[PolicyRule], refuse: Literal["warn", "block"]) -> Gate:
    """The gate of all nodes: a node that does not go keeps every node, and so does what they differ in."""
    verdict = gated.verdict
    if council.why is not None:
        check = Check(check="nodes", ok=None, detail=council.why, facet="unknown")
        code = verdict.code if verdict.code == REFUSED else UNDETERMINED
        verdict = replace(verdict, code=code, checks=(*verdict.checks, check))
        return replace(gated, verdict=verdict, checks=(*gated.checks, check))
    drifts, unknown = disagreements(council.nodes, policy)
    waivers = tuple(dict.fromkeys(waiver for node in council.nodes for waiver in node.told.waivers))
    between = decide(drifts, unknown, (), waivers, refuse, clock.now())
    # What another node refuses for is no facet of this one: it is waived there or nowhere.
    checks = tuple(_check(node) for node in council.nodes if node.rank != council.rank)
    codes = {verdict.code, between.code, *(node.told.code for node in council.nodes)}
    verdict = replace(
        verdict,
        code=next(code for code in (REFUSED, UNDETERMINED, TRY_AGAIN, GO) if code in codes),
        drifts=(*verdict.drifts, *between.drifts),
        unknown=tuple(dict.fromkeys((*verdict.unknown, *between.unknown))),
        checks=(*verdict.checks, *(check for check in checks if check.ok is not True)),
        waived=(*verdict.waived, *between.waived),
        unused=tuple(waiver for waiver in verdict.unused if waiver in between.unused),
    )
    diff = msgspec.structs.replace(
        gated.diff,
        drifts=(*gated.diff.drifts, *drifts),
        unknown=tuple(dict.fromkeys((*gated.diff.unknown, *unknown))),
    )
    return replace(gated, verdict=verdict, diff=diff, checks=(*gated.checks, *checks))


def _check(node: Node) -> Check:
    code = node.told.code
    if code == GO:
        return Check(check=str(node), ok=True, detail=f"goes, {node.told.fingerprint.id}")
    why = "; ".join(node.told.because)
    ok = None if code == UNDETERMINED else False
    return Check(check=str(node), ok=ok, detail=f"does not go: {why}", passing=code == TRY_AGAIN)
