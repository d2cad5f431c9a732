"""Whether a cluster has room for what a run needs, and what to say if it has not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

# Fractions of a card add up to whole ones only almost.
_ROUNDING = 1e-6

# The nodes of a large cluster are not all named in a message.
_NODES_NAMED = 5


@dataclass(frozen=True, slots=True)
class Need:
    """Some processes of one kind, each of which must find all its resources on one node.

    Attributes:
        what: they are, for messages: `engines`.
        count: how many.
        each: resources of one of them, by Ray's names.
    """

    what: str
    count: int
    each: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a cluster and its resources, by Ray's names."""

    name: str
    has: Mapping[str, float] = field(default_factory=dict)


def missing(needs: Sequence[Need], nodes: Sequence[Node]) -> str | None:
    """What is asked for and what is there, if the one does not fit into the other.

    Each process goes to the first node that can still take it, needs in their order: those that
    are hardest to place should come first.
    """
    left = [dict(node.has) for node in nodes]
    short = []
    for need in needs:
        placed = sum(_place(need.each, left) for _ in range(need.count))
        if placed < need.count:
            short.append(
                f"{need.count} {need.what} with {listed(need.each)} each were asked for, and "
                f"there is room for {placed}"
            )
    if not short:
        return None
    return f"{'; '.join(short)}. The cluster has {_described(nodes)}"


def _place(each: Mapping[str, float], left: Sequence[dict[str, float]]) -> bool:
    for node in left:
        if all(node.get(name, 0.0) + _ROUNDING >= amount for name, amount in each.items()):
            for name, amount in each.items():
                node[name] = node.get(name, 0.0) - amount
            return True
    return False


def _described(nodes: Sequence[Node]) -> str:
    if not nodes:
        return "no node"
    wanted = ("GPU", "CPU")
    named = [
        f"{node.name}: "
        + listed({name: node.has.get(name, 0.0) for name in wanted} | _special(node.has))
        for node in nodes[:_NODES_NAMED]
    ]
    more = len(nodes) - len(named)
    ending = [f"and {more} more nodes"] if more > 0 else []
    return f"{len(nodes)} node{'s' if len(nodes) > 1 else ''} ({'; '.join([*named, *ending])})"


def _special(has: Mapping[str, float]) -> dict[str, float]:
    """Custom resources and kinds of cards; not memory and the names of nodes."""
    ours = ("GPU", "CPU", "memory", "object_store_memory")
    return {
        name: amount
        for name, amount in sorted(has.items())
        if name not in ours and not name.startswith("node:")
    }


def listed(amounts: Mapping[str, float]) -> str:
    """Resources for a message."""
    return ", ".join(f"{amount:g} {name}" for name, amount in amounts.items()) or "nothing"
