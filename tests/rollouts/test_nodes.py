"""Rows of trees of messages and calls, compared with walks over paths and with merged turns."""

import json

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import fastcollate as fc
from fastcollate.rollouts import SOURCES, Schema, parse, read

pa = pytest.importorskip("pyarrow")


@st.composite
def trees(draw):
    """Draw messages in order of their turns: parents, tokens, and which of them are sampled.

    A message's first token is its own, so that only paths with common messages share tokens.
    """
    nodes = []
    for number in range(draw(st.integers(1, 9))):
        parent = draw(st.none() | st.integers(0, number - 1)) if number else None
        is_sampled = draw(st.booleans()) and parent is not None
        tokens = [100 + number, *draw(st.lists(st.integers(0, 9), max_size=3))]
        context = draw(st.integers(0, len(tokens) - 1)) if is_sampled else len(tokens)
        mask = [0] * context + [1] * (len(tokens) - context)
        logprobs = [-0.5 * (number + 1)] * sum(mask)
        nodes.append({"parent": parent, "token_ids": tokens, "mask": mask, "logprobs": logprobs})
    return nodes


def path_to(nodes, leaf):
    """Return the numbers of nodes from the root to a leaf."""
    path = []
    while leaf is not None:
        path.append(leaf)
        leaf = nodes[leaf]["parent"]
    return path[::-1]


def rows_by_walking(nodes):
    """Return the rows of leaves: tokens, mask and log-probabilities."""
    rows, trained = [], set()
    parents = {node["parent"] for node in nodes}
    for leaf in range(len(nodes)):
        if leaf in parents:
            continue
        tokens, mask, logprobs = [], [], []
        for number in path_to(nodes, leaf):
            node = nodes[number]
            values = iter(node["logprobs"])
            trains = number not in trained
            tokens += node["token_ids"]
            mask += [one * trains for one in node["mask"]]
            logprobs += [next(values) * trains if one else 0.0 for one in node["mask"]]
            trained.add(number)
        if any(mask):
            rows.append((tokens, mask, logprobs))
    return rows


def rows_of(calls):
    """Return the rows of calls: tokens of prompt and response, mask and log-probabilities."""
    rows = []
    for row in range(len(calls)):
        prompt = calls.prompts[row].tolist()
        zeros = [0] * len(prompt)
        mask, logprobs = calls.loss_mask[row].tolist(), calls.logprobs[row].tolist()
        rows.append((prompt + calls.responses[row].tolist(), zeros + mask, zeros + logprobs))
    return rows


FORMS = [
    lambda body, schema, **options: parse([json.dumps(body).encode()], schema, **options),
    lambda body, schema, **options: read([body], schema, **options),
]


SHARED = [
    {"parent": None, "token_ids": [1], "mask": [0], "logprobs": []},
    {"parent": 0, "token_ids": [2], "mask": [1], "logprobs": [-1.0]},
    {"parent": 1, "token_ids": [3], "mask": [1], "logprobs": [-2.0]},
    {"parent": 1, "token_ids": [4, 5], "mask": [0, 1], "logprobs": [-3.0]},
]


@given(trees())
@example(SHARED)
def test_messages_equal_a_walk(nodes):
    for form in FORMS:
        calls = form({"nodes": nodes}, "verifiers")
        expected = rows_by_walking(nodes)
        assert len(calls) == len(expected)
        if expected:
            assert rows_of(calls) == expected
        for row in range(len(calls)):  # a response begins with the first sampled token of its path
            prompt = len(calls.prompts[row])
            assert prompt > 0


def turns_of(nodes):
    """Return the calls that messages stand for: (prompt, response), and which node is each."""
    turns = []
    for number, node in enumerate(nodes):
        if not sum(node["mask"]):
            continue
        path = path_to(nodes, number)
        before = [token for one in path[:-1] for token in nodes[one]["token_ids"]]
        context = len(node["mask"]) - sum(node["mask"])
        turns.append((before + node["token_ids"][:context], node["token_ids"][context:], number))
    return turns


@given(trees(), st.randoms(use_true_random=False))
def test_messages_and_calls_equal_merged_turns(nodes, random):
    """As merge="branch" of the turns, by messages, and by calls in any order."""
    turns = turns_of(nodes)
    if not turns:
        return
    merged = fc.build_batch(
        [prompt for prompt, *_ in turns],
        [response for _, response, _ in turns],
        logprobs=[nodes[number]["logprobs"] for *_, number in turns],
        trajectory_ids=[0] * len(turns),
        is_last_step=[False] * (len(turns) - 1) + [True],
        merge="branch",
        pad_token_id=0,
        array_type="numpy",
        layout="jagged",
    )
    expected = sorted(rows_of_batch(merged))

    def end(number):
        """Return the node up to which a path has sampled tokens."""
        while number is not None and not sum(nodes[number]["mask"]):
            number = nodes[number]["parent"]
        return number

    calls = [
        {
            "node_id": str(number),
            "parent_id": None if (last := end(nodes[number]["parent"])) is None else str(last),
            "prompt_ids": prompt,
            "sampled_ids": response,
            "sampled_logprobs": nodes[number]["logprobs"],
        }
        for prompt, response, number in turns
    ]
    random.shuffle(calls)
    for form in FORMS:
        of_calls = form({"nodes": calls}, "openenv.nodes")
        assert sorted(trained(rows_of(of_calls))) == sorted(trained(expected))
        assert sorted(row[0] for row in rows_of(of_calls)) == sorted(row[0] for row in expected)
        of_messages = form({"nodes": nodes}, "verifiers")
        assert sorted(trained(rows_of(of_messages))) == sorted(trained(expected))


def trained(rows):
    """Return what trains, each with the tokens before it and its log-probability."""
    return [
        (tokens[: at + 1], logprobs[at])
        for tokens, mask, logprobs in rows
        for at, one in enumerate(mask)
        if one
    ]


def rows_of_batch(batch):
    """Return the rows of a jagged batch: tokens, mask and log-probabilities."""
    rows = []
    for row in range(len(batch.offsets) - 1):
        tokens = batch.input_ids[batch.offsets[row] : batch.offsets[row + 1]].tolist()
        span = slice(batch.response_offsets[row], batch.response_offsets[row + 1])
        mask, logprobs = batch.loss_mask[span].tolist(), batch.logprobs[span].tolist()
        zeros = [0] * (len(tokens) - len(mask))
        rows.append((tokens, zeros + mask, zeros + logprobs))
    return rows


def nodes_with(**changes):
    """Return two messages, the second changed."""
    return [
        {"parent": None, "token_ids": [1], "mask": [0], "logprobs": []},
        {"parent": 0, "token_ids": [2, 3], "mask": [0, 1], "logprobs": [-1.0]} | changes,
    ]


@pytest.mark.parametrize(
    ("schema", "nodes", "message"),
    [
        (
            "verifiers",
            nodes_with(parent=1),
            "its parents form a cycle; correct it, or pass a schema",
        ),
        ("verifiers", nodes_with(parent=5), "node 1 has the parent 5, which is not there"),
        ("verifiers", nodes_with(parent="x"), "node 1 has the parent 'x', which is not there"),
        ("verifiers", nodes_with(mask=[1]), "call 1 has a loss mask of 1 item, but its response"),
        ("verifiers", nodes_with(logprobs=[-1.0] * 3), "call 1 has 3 log-probabilities, but its"),
        ("verifiers", nodes_with(mask=[1, 1]), "call 1 has 1 log-probabilities, but its response"),
        (
            "verifiers",
            nodes_with(logprobs=[None]),
            "the row of node 1 has the invalid log-probability NaN at response token 0",
        ),
        (
            "openenv.nodes",
            [
                {"node_id": "a", "prompt_ids": [1], "sampled_ids": [2], "parent_id": None},
                {"node_id": "b", "prompt_ids": [1, 3, 4], "sampled_ids": [5], "parent_id": "a"},
            ],
            "node 1 has a prompt that does not begin with its parent's tokens",
        ),
        (  # it ends before them
            "openenv.nodes",
            [
                {"node_id": "a", "prompt_ids": [1], "sampled_ids": [2], "parent_id": None},
                {"node_id": "b", "prompt_ids": [1], "sampled_ids": [5], "parent_id": "a"},
            ],
            "node 1 has a prompt that does not begin with its parent's tokens",
        ),
        (
            "openenv.nodes",
            [
                {"node_id": "a", "prompt_ids": [1], "sampled_ids": [2], "parent_id": "b"},
                {"node_id": "b", "prompt_ids": [1, 2], "sampled_ids": [3], "parent_id": "a"},
            ],
            "node 0 has no root: its parents form a cycle",
        ),
        (
            "openenv.nodes",
            [{"node_id": "a", "prompt_ids": [1], "sampled_ids": [2]}] * 2,
            "nodes 0 and 1 have the id 'a'",
        ),
    ],
)
def test_bad_nodes(schema, nodes, message):
    good = {"nodes": nodes_with()} if schema == "verifiers" else {"nodes": nodes[:1]}
    good["nodes"][0] = good["nodes"][0] | {"parent_id": None}
    for form, place in zip(FORMS, ("bodies", "outputs"), strict=True):
        with pytest.raises(ValueError, match=message) as caught:
            form({"nodes": nodes}, schema)
        assert str(caught.value).startswith(f"{place}[0]: ")
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=message) as caught:
        parse([json.dumps(one).encode() for one in (good, {"nodes": nodes})], schema)
    assert str(caught.value).startswith("bodies[1]: ")


def test_bad_log_probabilities_of_nodes_are_masked():
    calls = parse([json.dumps({"nodes": nodes_with(logprobs=[None])}).encode()], "verifiers",
                  bad_logprobs="mask")  # fmt: skip
    assert rows_of(calls) == [([1, 2, 3], [0, 0, 0], [0, 0, 0])]
    assert calls.report["logprobs_nan"] == 1


def test_attempts_at_a_compaction():
    """One that no message continues from does not train, and neither does what it alone shares."""
    link = {"node": 1, "type": "compaction_attempt"}
    nodes = [
        {"parent": None, "token_ids": [1], "mask": [0]},
        {"parent": 0, "token_ids": [2], "mask": [1], "logprobs": [-1.0]},
        {
            "parent": 1,
            "token_ids": [3],
            "mask": [1],
            "logprobs": [-2.0],
            "semantic_parents": [link],
        },
        {"parent": None, "token_ids": [4], "mask": [0]},
        {"parent": 3, "token_ids": [5], "mask": [1], "logprobs": [-3.0]},
    ]
    for form in FORMS:
        calls = form({"nodes": nodes}, "verifiers")
        assert rows_of(calls) == [([4, 5], [0, 1], [0, -3])]
        accepted = [
            *nodes[:4],
            nodes[4] | {"semantic_parents": [{"node": 2, "type": "compaction"}]},
        ]
        calls = form({"nodes": accepted}, "verifiers")
        assert rows_of(calls) == [([1, 2, 3], [0, 1, 1], [0, -1, -2]), ([4, 5], [0, 1], [0, -3])]


def test_chains_of_messages():
    """Without parents, a node continues the one before; it trains if it has log-probabilities."""
    log = [
        {"role": "user", "token_ids": [1]},
        {"role": "assistant", "token_ids": [2], "generation_logprobs": []},  # of the history
        {"role": "assistant", "token_ids": [3, 4], "generation_logprobs": [-1.0, -2.0]},
    ]
    schema = Schema(
        nodes="log[]", responses=".token_ids", logprobs=".generation_logprobs", note="n"
    )
    for form in FORMS:
        calls = form({"log": log, "n": "x"}, schema)
        assert rows_of(calls) == [([1, 2, 3, 4], [0, 0, 1, 1], [0, 0, -1, -2])]
        assert calls.note == ["x"]
        assert len(form({"message_log": log, "loss_multiplier": 0.0}, "nemo-rl")) == 0


def test_long_chains_and_many_bodies():
    count = 20_000
    nodes = [
        {"parent": one - 1 if one else None, "token_ids": [one], "mask": [one % 2],
         "logprobs": [-1.0] * (one % 2)}
        for one in range(count)
    ]  # fmt: skip
    calls = parse([json.dumps({"nodes": nodes}).encode()], "verifiers")
    assert calls.loss_mask.values.sum() == count // 2
    lines = b"\n".join(
        json.dumps({"nodes": nodes[:4], "id": str(one)}).encode() for one in range(50)
    )
    whole = b"[" + lines.replace(b"\n", b",") + b"]"  # trees of one body are not joined
    assert parse([whole], "verifiers").responses == parse(lines).responses
    calls = parse(lines)
    assert calls.trace_ids == [str(one) for one in range(50)]
    assert np.array_equal(calls.responses.lengths, [3] * 50)
    assert SOURCES["verifiers"].are_nodes


def test_all_nodes_may_be_roots():
    nodes = [{"parent": None, "token_ids": [token], "mask": [1]} for token in (1, 2)]
    calls = fc.rollouts.parse([json.dumps({"nodes": nodes}).encode()], "verifiers")
    assert calls.responses.to_list() == [[1], [2]]


@given(st.lists(st.lists(trees(), max_size=3), min_size=1, max_size=3))
def test_nodes_of_nested_arrays_are_trees_of_their_own(groups):
    """Without parents, and by their positions in the array."""
    for columns in ({}, {"parents": ".parent"}):
        schema = Schema(
            nodes="groups[].nodes[]",
            responses=".token_ids",
            loss_mask=".mask",
            logprobs=".logprobs",
            **columns,
        )
        expected = []
        for of_body in groups:
            for nodes in of_body:
                chain = [
                    node | {"parent": index - 1 if index else None}
                    for index, node in enumerate(nodes)
                ]
                expected += rows_by_walking(nodes if columns else chain)
        bodies = [{"groups": [{"nodes": nodes} for nodes in one]} for one in groups]
        if not all(groups):
            continue  # a body without nodes is an error
        found = [
            parse([json.dumps(body).encode() for body in bodies], schema),
            read(bodies, schema),
            read(pa.Table.from_pylist(bodies), schema),
        ]
        for calls in found:
            assert len(calls) == len(expected)
            if expected:
                assert rows_of(calls) == expected


def test_nodes_without_the_key_of_parents_are_roots():
    nodes = [{"token_ids": [1, 2], "mask": [0, 1], "logprobs": [-1.0]}] * 2
    for form in FORMS:
        calls = form({"nodes": nodes}, "verifiers")
        assert calls.responses.to_list() == [[2], [2]]
    for parent in ([0], {"a": 1}, True, 0.0):
        nodes[1] = nodes[0] | {"parent": parent}
        for form in FORMS:
            with pytest.raises(ValueError, match=r"node 1 has the parent .*, which is not there"):
                form({"nodes": nodes}, "verifiers")
