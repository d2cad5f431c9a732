"""The command line of vLLM, word by word: names as its engine has them, values with their types."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import util
from pathlib import Path
from typing import Any

from batchwright.core.errors import JobError

_SHORT = {
    "-tp": "tensor_parallel_size", "-pp": "pipeline_parallel_size", "-dp": "data_parallel_size",
    "-dcp": "decode_context_parallel_size", "-pcp": "prefill_context_parallel_size",
    "-ep": "enable_expert_parallel", "-q": "quantization", "-n": "nnodes", "-r": "node_rank",
    "-sc": "speculative_config", "-cc": "compilation_config", "-ac": "attention_config",
    "-O": "optimization_level", "-asc": "api_server_count",
}  # fmt: skip

# A number is a value, also a negative one.
_NUMBER = re.compile(r"^-?(\d+\.?\d*|\.\d+)(e-?\d+)?$", re.IGNORECASE)
_HUMAN = re.compile(r"^(\d+(?:\.\d+)?)([kKmMgGtT])$")
_FACTORS = {
    "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
    "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40,
}  # fmt: skip


@cache
def engine_fields() -> dict[str, str]:
    """The arguments of the installed vLLM's engine with their types as text; empty without vLLM.

    Read from its source: importing it takes seconds, and this runs before any work.
    """
    found = util.find_spec("vllm")
    places = found.submodule_search_locations if found is not None else None
    source = Path(next(iter(places or [""]))) / "engine" / "arg_utils.py"
    if not places or not source.is_file():
        return {}
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == "EngineArgs":
            return {
                item.target.id: ast.unparse(item.annotation)
                for item in node.body
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
            }
    return {}


def parse_words(words: Sequence[str], fields: Mapping[str, str]) -> dict[str, Any]:
    """Options in vLLM's spelling as its names and values.

    `--some-name VALUE`, `--some-name=VALUE`, `--flag`, `--no-flag`, several values, JSON, and
    `--config.key VALUE` for one key of an option that is an object.

    Args:
        words: of the command line.
        fields: type of each argument that the engine has, as text.

    Raises:
        JobError: a word is no option, or a value is broken JSON.
    """
    options: dict[str, Any] = {}
    place = 0
    while place < len(words):
        name, given = _name(words[place])
        place += 1
        values = [] if given is None else [given]
        while given is None and place < len(words) and not _is_option(words[place]):
            values.append(words[place])
            place += 1
        _put(options, name, values, fields)
    return options


def _is_option(word: str) -> bool:
    return len(word) > 1 and word.startswith("-") and not _NUMBER.match(word)


def _name(word: str) -> tuple[str, str | None]:
    """Name of an option, and its value where it is written into the same word."""
    if not _is_option(word):
        raise JobError(f"{word}: expected an option", "Every option begins with --.")
    head, sign, value = word.partition("=")
    if head.startswith("--"):
        name, dot, keys = head[2:].partition(".")
        return name.replace("-", "_") + dot + keys, value if sign else None
    short, dot, keys = head.partition(".")
    if short in _SHORT:
        return _SHORT[short] + dot + keys, value if sign else None
    if re.match(r"^-O\d$", head):
        return _SHORT["-O"], head[2:]
    raise JobError(f"{word}: no such option", "Write its long name: --some-name VALUE.")


def _put(
    options: dict[str, Any], name: str, values: Sequence[str], fields: Mapping[str, str]
) -> None:
    value: Any
    name, *keys = name.split(".")
    kind = "" if keys else fields.get(name, "")
    if not values:
        off = name.startswith("no_") and name not in fields
        name, value = (name[3:], False) if off else (name, True)
    else:
        typed = [_typed(name, text, kind) for text in values]
        many = len(typed) > 1 or ("list[" in kind and "str |" not in kind)
        value = typed if many and not isinstance(typed[0], list) else typed[0]
    if not keys:
        options[name] = value
        return
    inner = options.setdefault(name, {})
    for key in keys[:-1]:
        inner = inner.setdefault(key, {})
    inner[keys[-1]] = value


def _typed(name: str, text: str, kind: str) -> Any:
    """A value as the argument's type has it; as it looks where that is not known."""
    if text[:1] in ("{", "["):
        try:
            return json.loads(text)
        except ValueError as error:
            raise JobError(f"--{name.replace('_', '-')}: broken JSON: {error}") from None
    words = set(re.findall(r"\w+", kind))
    if text == "None" and (not kind or "None" in words):
        return None
    if text.lower() in ("true", "false") and (not kind or "bool" in words):
        return text.lower() == "true"
    if not kind or words & {"int", "float"}:
        return _number(text)
    return text


def _number(text: str) -> Any:
    human = _HUMAN.match(text)
    if human:
        return int(float(human[1]) * _FACTORS[human[2]])
    if not _NUMBER.match(text):
        return text
    return int(text) if re.match(r"^-?\d+$", text) else float(text)
