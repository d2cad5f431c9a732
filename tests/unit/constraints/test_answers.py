from __future__ import annotations

import json
import time
from typing import Any

import pytest

from batchwright.constraints.answers import Verdict, check_answer, compact, read_strict
from batchwright.core.structured import Constraint


def check(schema: Any, text: str) -> Verdict:
    return check_answer(Constraint("json", json.dumps(schema)), text, cut=False)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "JSON"),
        ("{'a': 1}", "JSON"),
        ('{"a": 1} and more', "after document"),
        ('{"a": NaN}', "JSON"),
        ('{"a": 1e999}', "infinity"),
        ('{"a": "\x15"}', "control character"),
        ('{"a": "\\ud800"}', "surrogate"),
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "'c' stands twice"),
        ("[" * 900 + "]" * 900, "is not of type 'object'"),
        ("[" * 100_000, "JSON"),
    ],
)
def test_what_is_no_strict_json_is_refused(text: str, problem: str) -> None:
    found = check({"type": "object"}, text)
    assert found.parsed is None
    assert problem in str(found.problem)


def test_a_problem_names_its_place() -> None:
    schema = {"properties": {"items": {"items": {"properties": {"n": {"maximum": 3}}}}}}
    found = check(schema, '{"items":[{"n":1},{"n":9}]}')
    assert found.problem == "$.items[1].n: 9 is greater than the maximum of 3"


def test_a_long_problem_is_cut() -> None:
    assert len(str(check({"type": "integer"}, json.dumps("x" * 10_000)).problem)) < 400


def test_numbers_stay_as_they_are_spelled() -> None:
    text = ' { "big" : 123456789012345678901234567890 ,\n "f": 1.10, "s": "a \\" b , c" } '
    parsed = check({"type": "object"}, text).parsed
    assert parsed == '{"big":123456789012345678901234567890,"f":1.10,"s":"a \\" b , c"}'


@pytest.mark.parametrize(("value", "fits"), [("0.3", True), ("0.35", False), ("7", True)])
def test_multiples_are_exact(value: str, *, fits: bool) -> None:
    assert (check({"multipleOf": 0.1}, value).problem is None) == fits


def test_formats_are_notes() -> None:
    assert check({"type": "string", "format": "email"}, '"nobody"').problem is None


def test_a_schema_is_read_by_its_own_draft() -> None:
    old = {"$schema": "http://json-schema.org/draft-04/schema#", "maximum": 3,
           "exclusiveMaximum": True}  # fmt: skip
    assert check(old, "3").problem is not None
    assert check(old, "2").problem is None


def test_an_object_is_asked_for_where_json_object_is() -> None:
    constraint = Constraint("json_object", True)
    assert check_answer(constraint, '{"a": [1]}', cut=False).parsed == '{"a":[1]}'
    assert "object" in str(check_answer(constraint, "[1]", cut=False).problem)


def test_choices_and_patterns_have_no_json() -> None:
    assert check_answer(Constraint("choice", ["yes", "no"]), "no", cut=False) == Verdict()
    assert check_answer(Constraint("regex", "[a-c]+"), "abc", cut=False) == Verdict()


def test_a_pattern_fits_the_whole_answer() -> None:
    pattern = Constraint("regex", "a|ab")
    assert check_answer(pattern, "ab", cut=False).problem is None
    assert check_answer(pattern, "abc", cut=False).problem is not None
    assert check_answer(pattern, "ab\n", cut=False).problem is not None
    assert check_answer(Constraint("choice", ["a"]), "a ", cut=False).problem is not None


def test_a_pattern_that_explodes_ends_and_is_not_tried_again() -> None:
    started = time.monotonic()
    evil = Constraint("regex", "(a|aa)+(b|bb)*(a|aa)+c")
    found = check_answer(evil, "a" * 200, cut=False)
    assert found.hopeless
    assert "took longer" in str(found.problem)
    schema = {"type": "string", "pattern": "^(a|aa)+(b|bb)*(a|aa)+c$"}
    assert check(schema, json.dumps("a" * 200)).hopeless
    assert time.monotonic() - started < 30


def test_what_only_the_engines_dialect_knows_is_not_checked() -> None:
    assert check_answer(Constraint("regex", "a{1,2}{3}(?<n"), "zzz", cut=False).problem is None


def test_only_a_cut_answer_of_a_grammar_is_wrong_for_sure() -> None:
    grammar = Constraint("grammar", 'root ::= "a"')
    assert check_answer(grammar, "b", cut=False).problem is None
    assert check_answer(grammar, "a", cut=True).problem is not None
    tag = Constraint("structural_tag", "{}")
    assert check_answer(tag, "anything", cut=True).problem is None


def test_a_schema_that_refers_to_itself_ends() -> None:
    loop = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
    assert "itself" in str(check(loop, "1").problem)


def test_white_space_inside_of_texts_stays() -> None:
    assert compact('[ "a  b\\\\" , 1 ]') == '["a  b\\\\",1]'
    assert read_strict(compact('{ "k" : [ ] }')) == {"k": []}
