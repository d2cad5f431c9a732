"""What vLLM refuses: rules as data, each with the place in vLLM's source that it is from.

A rule is here only if that source raises an error for it. vLLM would say the same after minutes of
loading, or on a machine that is paid for by the hour; here it is said before anything starts.
Paths are within vLLM 0.32.0. A rule holds from version `since` on and before `until`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Version = tuple[int, int, int]

# The version that the rules were read in, and that is assumed where vLLM is not installed.
READ_IN: Version = (0, 32, 0)
# Lists of names grow with each version: what 0.32 does not know, a later one may.
NEXT: Version = (0, 33, 0)


@dataclass(frozen=True, slots=True)
class Situation:
    """All that the rules look at.

    Attributes:
        options: of the engine, by vLLM's names, the job's and ours.
        dtype: as asked for.
        quantization: the checkpoint's `quantization_config`; empty if it has none.
        capability: compute capability of the card, 89 for 8.9; None if there is no card.
        on_cpu: whether vLLM is the CPU build.
        sampling: the job's sampling fields that are set.
        adapter_ranks: rank of each LoRA adapter.
        head_dim: of the model; None if it is not known.
        plugins: whether vLLM has plugins, which may add quantisation methods.
        modules: names of Python packages that are installed, of those that rules ask for.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = "auto"
    quantization: Mapping[str, Any] = field(default_factory=dict)
    capability: int | None = None
    on_cpu: bool = False
    sampling: Mapping[str, Any] = field(default_factory=dict)
    adapter_ranks: tuple[int, ...] = ()
    head_dim: int | None = None
    plugins: bool = False
    modules: frozenset[str] = frozenset({"arctic_inference"})

    @property
    def method(self) -> str:
        """The quantisation method in force: the checkpoint's, else the one asked for."""
        found = self.quantization.get("quant_method") or self.options.get("quantization")
        return str(found or "")

    @property
    def draft(self) -> Mapping[str, Any]:
        """`speculative_config`; empty without one."""
        found = self.options.get("speculative_config")
        return found if isinstance(found, Mapping) else {}

    @property
    def cache_dtype(self) -> str:
        """`kv_cache_dtype`."""
        return str(self.options.get("kv_cache_dtype") or "auto")

    @property
    def attention(self) -> str:
        """The attention backend that was asked for, in capitals; empty if vLLM chooses."""
        within = self.options.get("attention_config")
        nested = within.get("backend") if isinstance(within, Mapping) else None
        return str(self.options.get("attention_backend") or nested or "").upper()


@dataclass(frozen=True, slots=True)
class Rule:
    """A combination that vLLM refuses.

    Attributes:
        name: of the rule, for tests.
        setting: where the user has set it, or what it is about.
        breaks: says what is wrong, or None where the rule does not apply.
        remedy: what to do.
        source: file of vLLM, and the place in it.
    """

    name: str
    setting: str
    breaks: Callable[[Situation], str | None]
    remedy: str
    source: str
    since: Version = READ_IN
    until: Version | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A rule that is broken, and how."""

    rule: Rule
    reason: str


def refusals(
    rules: tuple[Rule, ...], situation: Situation, version: Version | None
) -> Iterator[Refusal]:
    """The rules of this version that the situation breaks.

    Args:
        rules: to look at.
        situation: the job's.
        version: of vLLM; None where it is not installed.
    """
    found = READ_IN if version is None else version
    for rule in rules:
        if found < rule.since or (rule.until is not None and found >= rule.until):
            continue
        reason = rule.breaks(situation)
        if reason is not None:
            yield Refusal(rule, reason)


def parse_version(text: str) -> Version:
    """`0.32.0+cpu` to (0, 32, 0)."""
    numbers: list[int] = []
    for part in text.partition("+")[0].split(".")[:3]:
        digits = "".join(letter for letter in part if letter.isdigit())
        numbers.append(int(digits or 0))
    major, minor, patch = (*numbers, 0, 0, 0)[:3]
    return major, minor, patch
