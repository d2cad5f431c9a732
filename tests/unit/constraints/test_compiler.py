from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from batchwright.constraints import compiler as module
from batchwright.constraints.compiler import Compiler, RowConstraints
from batchwright.core.errors import RowError
from batchwright.core.structured import Constraint

# Stands for the compilers, of which no constraint is known that crashes them for sure.
CHILD = """
import os, sys, time
from multiprocessing.connection import Connection
pipe = Connection(int(sys.argv[1]))
pipe.send(True)
while True:
    constraint, limit_s = pipe.recv()
    with open({log!r}, "a") as log:
        log.write(f"{{os.getpid()}} {{constraint.value}}\\n")
    if constraint.value == "crash":
        os.abort()
    if constraint.value == "explode":
        time.sleep(60)
    pipe.send("bad" if constraint.value == "bad" else None)
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def compiler(log: Path) -> Iterator[Compiler]:
    made = Compiler("guidance", limit_s=0.5, child=CHILD.format(log=str(log)))
    yield made
    made.close()


def regex(pattern: str) -> Constraint:
    return Constraint("regex", pattern)


def compiled(log: Path) -> list[list[str]]:
    return [line.split() for line in log.read_text().splitlines()]


def test_each_constraint_is_compiled_once(compiler: Compiler, log: Path) -> None:
    for _ in range(3):
        assert compiler.problem(regex("good")) is None
        assert compiler.problem(regex("bad")) == "bad"
    assert [value for _, value in compiled(log)] == ["good", "bad"]


def test_a_crash_and_an_explosion_cost_one_constraint_each(compiler: Compiler, log: Path) -> None:
    assert "crashes the compiler" in str(compiler.problem(regex("crash")))
    started = time.monotonic()
    assert "takes longer than 0.5 s" in str(compiler.problem(regex("explode")))
    assert time.monotonic() - started < 30
    assert compiler.problem(regex("good")) is None
    assert compiler.problem(regex("crash")) is not None
    pids = [pid for pid, _ in compiled(log)]
    assert len(pids) == len(set(pids)) == 3, "a new process after each, and none for a known one"
    assert not psutil.pid_exists(int(pids[1])), "the one that exploded is gone"


def test_the_cache_has_a_bound(
    compiler: Compiler, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CACHE_SIZE", 2)
    for pattern in ("a", "b", "c", "a"):
        compiler.problem(regex(pattern))
    assert [value for _, value in compiled(log)] == ["a", "b", "c", "a"]


def test_the_process_ends_with_its_owner(log: Path) -> None:
    made = Compiler("guidance", child=CHILD.format(log=str(log)))
    assert made.problem(regex("good")) is None
    pid = int(compiled(log)[0][0])
    del made
    gc.collect()
    assert not psutil.pid_exists(pid)


@pytest.mark.parametrize("child", ["import no_such_module", "print('dies')"])
def test_without_a_compiler_the_plain_checks_hold(child: str) -> None:
    made = Compiler("guidance", child=child)
    assert "unterminated" in str(made.problem(regex("[a-z")))
    assert made.problem(regex("[a-z]+")) is None
    assert "$.type" in str(made.problem(Constraint("json", '{"type":"obj"}')))
    assert "leads to no place" in str(made.problem(Constraint("json", '{"$ref":"#/$defs/a"}')))
    assert made.problem(Constraint("json", '{"$ref":"#/$defs/a","$defs":{"a":{}}}')) is None
    assert "no JSON" in str(made.problem(Constraint("structural_tag", "{")))
    deep = '{"items":' * 100 + "{}" + "}" * 100
    assert "nested deeper" in str(made.problem(Constraint("json", deep)))
    assert "NUL" in str(made.problem(regex("a\0")))


def test_nothing_is_fetched_for_a_reference() -> None:
    found = Compiler("outlines").problem(Constraint("json", '{"$ref":"http://127.0.0.1:9/a"}'))
    assert "leads to no place" in str(found)


GOOD = [
    Constraint("json", '{"type":"object","properties":{"a":{"type":"integer"}}}'),
    Constraint("regex", "[a-z]{3}"),
    Constraint("choice", ['a"b', "ü\n", "\\"]),
    Constraint("grammar", 'root ::= "a" | "b"'),
    Constraint("json_object", True),
    Constraint(
        "structural_tag",
        '{"structures":[{"begin":"<a>","schema":{"type":"object"},"end":"</a>"}],"triggers":["<a"]}',
    ),
]
BAD = [
    (Constraint("json", '{"type":"obj"}'), "obj"),
    (Constraint("json", '{"type":"object","properties":[]}'), "properties must be an object"),
    (Constraint("json", '{"$ref":"#/nope"}'), "nope"),
    (Constraint("regex", "[a-z]+("), "paren|group"),
    (Constraint("grammar", 'root ::= "a'), "GBNF|EBNF"),
    (Constraint("structural_tag", "{}"), "structures|format"),
]


@pytest.mark.vllm
@pytest.mark.parametrize("backend", ["guidance", "xgrammar"])
def test_the_real_compilers_agree_on_good_and_bad(backend: str) -> None:
    made = Compiler(backend)
    assert [made.problem(one) for one in GOOD] == [None] * len(GOOD)
    for constraint, words in BAD:
        problem = made.problem(constraint)
        assert problem is not None
        assert problem.startswith(backend), "in the compiler's own words"
        assert any(word in problem for word in words.split("|")), problem
    made.close()


@pytest.mark.vllm
def test_a_real_schema_that_explodes_is_stopped() -> None:
    made = Compiler("guidance", limit_s=1.0)
    huge = Constraint("json", '{"type":"array","minItems":2000000000,"items":{"type":"integer"}}')
    assert made.problem(Constraint("regex", "a")) is None
    problem = made.problem(huge)
    assert problem is not None
    assert "takes longer" in problem or "crashes" in problem
    assert made.problem(Constraint("regex", "b")) is None
    made.close()


def test_rows_are_rejected_for_constraints_of_their_own_only(compiler: Compiler, log: Path) -> None:
    default = '{"structured_outputs":{"regex":"good"},"temperature":0.0}'
    rows = RowConstraints(compiler, default)
    for sampling in (
        default,
        '{"temperature":0.0}',
        '{"seed":3,"structured_outputs":{"regex":"good"},"temperature":0.0}',
        '{"stop":["\\"structured_outputs\\""]}',
    ):
        rows.check(sampling)
    assert not log.exists(), "no process is started for these"
    with pytest.raises(RowError, match=r"bad_schema: structured_outputs\.regex: bad"):
        rows.check('{"structured_outputs":{"regex":"bad"}}')
