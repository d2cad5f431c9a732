"""The compiler's process: takes constraints, compiles each as the engine would, says what is wrong."""

from __future__ import annotations

import importlib.util
import json
import re
import resource
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import orjson

from batchwright.constraints.backends import beyond_xgrammar
from batchwright.core.structured import Constraint

# What the compilers raise for a bad constraint. Anything else ends this process, which the other
# side takes for a crash on this constraint.
_REFUSALS = (RuntimeError, ValueError, TypeError, KeyError, AttributeError)

# A pattern that explodes must not take the machine's memory.
MAX_MEMORY_BYTES = 4 << 30

Check = Callable[[Constraint], str | None]


def main() -> None:
    """Entry point, with two arguments: the pipe's file descriptor and the backend."""
    connection = Connection(int(sys.argv[1]))
    try:
        serve(connection, sys.argv[2])
    except (EOFError, ConnectionError):
        return
    finally:
        connection.close()


def serve(connection: Connection, backend: str) -> None:
    """Say whether there is a compiler, then answer one constraint after the other."""
    check = make_check(backend)
    connection.send(check is not None)
    if check is None:
        return
    _limit_memory()
    while True:
        constraint, limit_s = connection.recv()
        # The kernel ends a compile that nobody waits for any more, whatever code it is in.
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        problem = check(constraint)
        signal.setitimer(signal.ITIMER_REAL, 0)
        connection.send(problem)


def _limit_memory() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = MAX_MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(hard, MAX_MEMORY_BYTES)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def make_check(backend: str) -> Check | None:
    """The check of a backend of vLLM, its library loaded; None if it is not installed."""
    if backend == "auto":
        checks = [one for name in MAKERS if (one := make_check(name)) is not None]
        return (lambda constraint: _either(checks, constraint)) if checks else None
    if backend not in MAKERS or importlib.util.find_spec(_LIBRARIES[backend]) is None:
        return None
    return MAKERS[backend]()


def _either(checks: list[Check], constraint: Constraint) -> str | None:
    """VLLM's `auto` goes on to the next backend when one refuses."""
    problems = []
    for check in checks:
        problem = check(constraint)
        if problem is None:
            return None
        problems.append(problem)
    return "; ".join(problems)


def _guarded(name: str, compile_it: Callable[[Constraint], str | None]) -> Check:
    """The check with the compiler's own words for what it raises."""

    def check(constraint: Constraint) -> str | None:
        try:
            problem = compile_it(constraint)
        except _REFUSALS as error:
            # xgrammar puts the time and a place in its own source ahead.
            problem = re.sub(r"^\[[\d:]+\] \S+: ", "", str(error).strip()) or type(error).__name__
        return None if not problem else f"{name}: {problem.strip()}"

    return check


def xgrammar_check() -> Check:
    """Compile with xgrammar, over a vocabulary of bytes: what is wrong does not depend on it."""
    import xgrammar

    info = xgrammar.TokenizerInfo(
        [bytes([value]) for value in range(256)] + [b"</s>"],
        vocab_type=xgrammar.VocabType.RAW,
        stop_token_ids=[256],
    )
    compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def compile_it(constraint: Constraint) -> str | None:
        kind, value = constraint
        if kind == "json":
            unknown = beyond_xgrammar(orjson.loads(value))
            if unknown is not None:
                return f"it cannot enforce {unknown}; the backend guidance knows more keywords"
            compiler.compile_json_schema(value, any_whitespace=False)
        elif kind == "regex":
            compiler.compile_regex(value)
        elif kind == "choice":
            texts = " | ".join(json.dumps(one) for one in value)
            compiler.compile_grammar(f"root ::= {texts}")
        elif kind == "grammar":
            ebnf = "::=" in value
            (compiler.compile_grammar if ebnf else compiler.compile_lark)(value)
        elif kind == "structural_tag":
            _compile_tag(xgrammar, compiler, value)
        return None

    return _guarded("xgrammar", compile_it)


def _compile_tag(xgrammar: Any, compiler: Any, text: str) -> None:
    tag = orjson.loads(text)
    if "structures" not in tag:
        compiler.compile_structural_tag(text)
        return
    items = [
        xgrammar.StructuralTagItem(
            begin=one["begin"], schema=json.dumps(one["schema"]), end=one["end"]
        )
        for one in tag["structures"]
    ]
    compiler.compile_structural_tag(items, tag["triggers"])


def guidance_check() -> Check:
    """Parse with llguidance, which compiles the rest while it generates."""
    import llguidance

    def compile_it(constraint: Constraint) -> str | None:
        kind, value = constraint
        if kind == "structural_tag" and "structures" not in orjson.loads(value):
            return "it takes structural tags with `structures` and `triggers` only"
        if kind == "json":
            grammar = _guided_schema(value)
        elif kind == "structural_tag":
            grammar = _guided_tags(orjson.loads(value))
        elif kind == "json_object":
            grammar = _guided_schema('{"type": "object"}')
        else:
            text = json.dumps(value) if kind == "choice" else value
            grammar = llguidance.grammar_from(_GRAMMARS[kind], text)
        return str(llguidance.LLMatcher.validate_grammar(grammar, None))

    return _guarded("guidance", compile_it)


def _guided_schema(schema: str) -> Any:
    import llguidance

    defaults: Any = {"whitespace_flexible": False}
    return llguidance.LLMatcher.grammar_from_json_schema(schema, defaults=defaults)


def _guided_tags(tag: dict[str, Any]) -> Any:
    import llguidance

    tags = []
    for one in tag["structures"]:
        begin = one["begin"]
        trigger = next((text for text in tag["triggers"] if begin.startswith(text)), None)
        if trigger is None:
            raise ValueError(f"the tag {begin} begins with none of the triggers")
        grammar = _guided_schema(json.dumps(one["schema"]))
        tags.append(
            llguidance.StructTag(trigger=trigger, begin=begin, grammar=grammar, end=one["end"])
        )
    return llguidance.StructTag.to_grammar(tags)


_GRAMMARS: dict[str, Any] = {"regex": "regex", "choice": "choice", "grammar": "grammar"}
_LIBRARIES = {"xgrammar": "xgrammar", "guidance": "llguidance"}
MAKERS: dict[str, Callable[[], Check]] = {"xgrammar": xgrammar_check, "guidance": guidance_check}
