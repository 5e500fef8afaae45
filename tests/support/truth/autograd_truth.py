"""What dispatch-autograd reports of the twenty threads of tests/inferiors/autograd.py against what they wrote down."""

from __future__ import annotations

from typing import Any

from support.programs.harness import Inferior

POSITIONS = 20


def backwards(process: Inferior) -> dict[int, dict[str, Any]]:
    return {facts["tid"]: facts for role, facts in process.truth["threads"].items() if role.startswith("backward")}


def count(process: Inferior) -> tuple[int, int]:
    """In how many positions the running node is right, and in how many something of it is wrong."""
    report = process.dispatch("dispatch-autograd", debugger="none").document["autograd"]
    nodes = {thread["tid"]: thread["node"] for thread in report["threads"]}
    right = wrong = 0
    for tid, facts in backwards(process).items():
        node = nodes[tid] or {}
        pairs = [(node.get(name), facts[name]) for name in ("sequence_nr", "forward_op")]
        pairs.append((node.get("name"), facts["node"]))
        right += all(ours == theirs for ours, theirs in pairs)
        wrong += any(ours not in (None, theirs) for ours, theirs in pairs)
    return right, wrong
