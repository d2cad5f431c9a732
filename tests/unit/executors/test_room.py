from __future__ import annotations

from batchwright.executors.room import Need, Node, missing

ENGINE = {"GPU": 2.0, "CPU": 1.0}


def test_what_fits_is_not_missing() -> None:
    nodes = [Node("a", {"GPU": 4, "CPU": 8}), Node("b", {"CPU": 4})]
    assert missing([Need("engines", 2, ENGINE), Need("others", 9, {"CPU": 1})], nodes) is None


def test_an_engine_must_find_all_its_cards_on_one_node() -> None:
    nodes = [Node("a", {"GPU": 1, "CPU": 8}), Node("b", {"GPU": 1, "CPU": 8})]
    said = missing([Need("engines", 1, ENGINE)], nodes)
    assert said is not None
    assert "1 engines with 2 GPU, 1 CPU each were asked for, and there is room for 0" in said
    assert "2 nodes (a: 1 GPU, 8 CPU; b: 1 GPU, 8 CPU)" in said


def test_shares_of_a_card_add_up_to_it() -> None:
    third = {"GPU": 1 / 3, "CPU": 1.0}
    assert missing([Need("engines", 3, third)], [Node("a", {"GPU": 1, "CPU": 8})]) is None
    assert missing([Need("engines", 4, third)], [Node("a", {"GPU": 1, "CPU": 8})]) is not None


def test_earlier_needs_take_their_places_first() -> None:
    said = missing([Need("engines", 2, {"CPU": 1}), Need("preparing processes", 1, {"CPU": 1})],
                   [Node("a", {"CPU": 2})])  # fmt: skip
    assert said is not None
    assert "1 preparing processes with 1 CPU each were asked for, and there is room for 0" in said
    assert "engines with" not in said.split(". The cluster")[0]


def test_custom_resources_are_named_and_memory_is_not() -> None:
    has = {"CPU": 2, "memory": 1e9, "node:10.0.0.1": 1.0, "accelerator_type:H100": 1.0}
    said = missing([Need("engines", 1, {"CPU": 1, "spot": 1})], [Node("a", has)])
    assert said is not None
    assert "accelerator_type:H100" in said
    assert "memory" not in said
    assert "node:" not in said


def test_an_empty_cluster_has_no_node() -> None:
    said = missing([Need("engines", 1, ENGINE)], [])
    assert said is not None
    assert said.endswith("The cluster has no node")


def test_a_large_cluster_is_not_listed_in_full() -> None:
    said = missing([Need("engines", 1, ENGINE)], [Node(f"n{i}", {"CPU": 1}) for i in range(40)])
    assert said is not None
    assert "40 nodes" in said
    assert "and 35 more nodes" in said
