"""Turns to rows: examples of every rule, and arbitrary turns against the loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import as_inputs, merge_options, name_turns, trajectories
from turns import check_plan, last_steps, origins_of, runs_of, turns

import fastcollate as fc
from fastcollate.planning import Merge
from fastcollate.testing.reference import merge_turns_loops

# Turns of one trajectory; the rows they make, as (last turn, tokens, pieces) with pieces as
# (turn, from, start, len); and the breaks, as (turn, position, expected, found, kind, realigned).
EXACT = {
    "turns that continue": (
        ["a>b", "abx>c", "abxcyz>de"],
        [(2, "a>bxcyzde", [(0, 0, 0, 1), (1, 0, 2, 1), (2, 0, 5, 2)])],
        [],
    ),
    "no observation": (
        ["a>b", "ab>c"],
        [(1, "a>bc", [(0, 0, 0, 1), (1, 0, 1, 1)])],
        [],
    ),
    "another prompt": (
        ["ab>c", "xbc>d"],
        [(0, "ab>c", [(0, 0, 0, 1)]), (1, "xbc>d", [(1, 0, 0, 1)])],
        [(1, 0, "a", "x", "diverged", False)],
    ),
    "a closed group stays closed": (
        ["a>b", "x>y", "xyz>w", "abq>r"],
        [
            (0, "a>b", [(0, 0, 0, 1)]),
            (2, "x>yzw", [(1, 0, 0, 1), (2, 0, 2, 1)]),
            (3, "abq>r", [(3, 0, 0, 1)]),
        ],
        [(1, 0, "a", "x", "diverged", False), (3, 0, "x", "a", "diverged", False)],
    ),
    "a shorter prompt": (
        ["abc>d", "ab>e"],
        [(0, "abc>d", [(0, 0, 0, 1)]), (1, "ab>e", [(1, 0, 0, 1)])],
        [(1, 2, "c", None, "shorter", False)],
    ),
    "the same prompt again": (
        ["ab>c", "ab>d"],
        [(0, "ab>c", [(0, 0, 0, 1)]), (1, "ab>d", [(1, 0, 0, 1)])],
        [(1, 2, "c", None, "shorter", False)],
    ),
    "another response at its first token": (
        ["ab>cd", "abxd>e"],
        [(0, "ab>cd", [(0, 0, 0, 2)]), (1, "abxd>e", [(1, 0, 0, 1)])],
        [(1, 2, "c", "x", "drift", False)],
    ),
    "another response at its last token": (
        ["ab>cd", "abcxy>e"],
        [(0, "ab>cd", [(0, 0, 0, 2)]), (1, "abcxy>e", [(1, 0, 0, 1)])],
        [(1, 3, "d", "x", "drift", False)],
    ),
    "another observation": (
        ["a>b", "abo>c", "abpc>d"],
        [(1, "a>boc", [(0, 0, 0, 1), (1, 0, 2, 1)]), (2, "abpc>d", [(2, 0, 0, 1)])],
        [(2, 2, "o", "p", "diverged", False)],
    ),
    "another response than the last": (
        ["a>b", "abo>c", "axoc>d"],
        [(1, "a>boc", [(0, 0, 0, 1), (1, 0, 2, 1)]), (2, "axoc>d", [(2, 0, 0, 1)])],
        [(2, 1, "b", "x", "diverged", False)],
    ),
    "one turn": (["ab>c"], [(0, "ab>c", [(0, 0, 0, 1)])], []),
    "nothing": ([">"], [(0, ">", [])], []),
    "nothing is a prefix of all": ([">", "a>b"], [(1, ">ab", [(1, 0, 1, 1)])], []),
    "no response first": (["a>", "ab>c"], [(1, "a>bc", [(1, 0, 1, 1)])], []),
    "no response last": (["a>b", "abc>"], [(1, "a>bc", [(0, 0, 0, 1)])], []),
    "no prompts": (
        [">a", ">b"],
        [(0, ">a", [(0, 0, 0, 1)]), (1, ">b", [(1, 0, 0, 1)])],
        [(1, 0, "a", None, "shorter", False)],
    ),
}

BRANCH = {
    "turns that continue": EXACT["turns that continue"],
    "no response last": EXACT["no response last"],
    "branches in turns": (
        ["a>b", "x>y", "abc>d", "xyz>w"],
        [
            (2, "a>bcd", [(0, 0, 0, 1), (2, 0, 2, 1)]),
            (3, "x>yzw", [(1, 0, 0, 1), (3, 0, 2, 1)]),
        ],
        [(1, 0, "a", "x", "diverged", False)],
    ),
    "a retry goes on": (
        ["a>b", "a>c", "acd>e"],
        [(0, "a>b", [(0, 0, 0, 1)]), (2, "a>cde", [(1, 0, 0, 1), (2, 0, 2, 1)])],
        [(1, 1, "b", None, "shorter", False)],
    ),
    "rows are ordered by their last turn": (
        ["a>b", "a>c", "abd>e"],
        [(1, "a>c", [(1, 0, 0, 1)]), (2, "a>bde", [(0, 0, 0, 1), (2, 0, 2, 1)])],
        [(1, 1, "b", None, "shorter", False)],
    ),
    "what two groups share trains once": (
        ["a>b", "abc>d", "abx>y"],
        [(1, "a>bcd", [(0, 0, 0, 1), (1, 0, 2, 1)]), (2, "abx>y", [(2, 0, 0, 1)])],
        [(2, 2, "c", "x", "diverged", False)],
    ),
    "the longest prefix, opened later": (
        ["a>b", "a>bcd", "abcde>f"],
        [(0, "a>b", [(0, 0, 0, 1)]), (2, "a>bcdef", [(1, 0, 0, 3), (2, 0, 4, 1)])],
        [(1, 1, "b", None, "shorter", False)],
    ),
    "the longest prefix, opened first": (
        ["a>bcd", "a>b", "abcde>f"],
        [(1, "a>b", [(1, 0, 0, 1)]), (2, "a>bcdef", [(0, 0, 0, 3), (2, 0, 4, 1)])],
        [(1, 1, "b", None, "shorter", False)],
    ),
    "of equal groups the first": (
        ["a>b", "a>b", "abc>d"],
        [(1, "a>b", [(1, 0, 0, 1)]), (2, "a>bcd", [(0, 0, 0, 1), (2, 0, 2, 1)])],
        [(1, 1, "b", None, "shorter", False)],
    ),
    "a break is told from the turn before": (
        ["a>b", "x>y", "abc>d", "aq>r"],
        [
            (1, "x>y", [(1, 0, 0, 1)]),
            (2, "a>bcd", [(0, 0, 0, 1), (2, 0, 2, 1)]),
            (3, "aq>r", [(3, 0, 0, 1)]),
        ],
        [(1, 0, "a", "x", "diverged", False), (3, 1, "b", "q", "diverged", False)],
    ),
    "drift opens a group": (
        ["a>bc", "abx>d", "abce>f"],
        [(1, "abx>d", [(1, 0, 0, 1)]), (2, "a>bcef", [(0, 0, 0, 2), (2, 0, 3, 1)])],
        [(1, 2, "c", "x", "drift", False)],
    ),
}

TAIL = {
    "turns that continue": EXACT["turns that continue"],
    "another prompt": EXACT["another prompt"],
    "another observation": EXACT["another observation"],
    "a prompt that is shorter than the first": EXACT["a shorter prompt"],
    "other tokens in the response": (
        ["ab>cde", "abcxe>f"],
        [(1, "ab>cxef", [(0, 0, 0, 1), (1, 0, 3, 1)])],
        [(1, 3, "d", "x", "drift", True)],
    ),
    "other tokens from the start of the response on": (
        ["ab>cd", "abxd>e"],
        [(1, "ab>xde", [(1, 0, 2, 1)])],
        [(1, 2, "c", "x", "drift", True)],
    ),
    "a prompt that ends in the response": (
        ["ab>cd", "abc>e"],
        [(1, "ab>ce", [(0, 0, 0, 1), (1, 0, 1, 1)])],
        [(1, 3, "d", None, "shorter", True)],
    ),
    "a prompt that ends where the response starts": (
        ["ab>cd", "ab>e"],
        [(1, "ab>e", [(1, 0, 0, 1)])],
        [(1, 2, "c", None, "shorter", True)],
    ),
    "the next turn's tokens are the truth": (
        ["a>bc", "axd>e", "axdef>g"],
        [(2, "a>xdefg", [(1, 0, 2, 1), (2, 0, 4, 1)])],
        [(1, 1, "b", "x", "drift", True)],
    ),
    "drift twice": (
        ["a>bc", "abd>ef", "abdeg>h"],
        [(2, "a>bdegh", [(0, 0, 0, 1), (1, 0, 2, 1), (2, 0, 4, 1)])],
        [(1, 2, "c", "d", "drift", True), (2, 4, "f", "g", "drift", True)],
    ),
    "a response of which nothing stands is the last": (
        ["a>b", "a>"],
        [(1, "a>", [])],
        [(1, 1, "b", None, "shorter", True)],
    ),
}

RESPONSE = {
    "turns that continue": EXACT["turns that continue"],
    "other tokens in the response": (
        ["ab>cde", "abcxe>f"],
        [(1, "ab>cxef", [(1, 0, 3, 1)])],
        [(1, 3, "d", "x", "drift", True)],
    ),
    "a prompt that ends in the response": (
        ["ab>cd", "abc>e"],
        [(1, "ab>ce", [(1, 0, 1, 1)])],
        [(1, 3, "d", None, "shorter", True)],
    ),
    "earlier responses stay": (
        ["a>b", "abo>cd", "aboce>f"],
        [(2, "a>bocef", [(0, 0, 0, 1), (2, 0, 4, 1)])],
        [(2, 4, "d", "e", "drift", True)],
    ),
}

SPAN = {
    "turns that continue": EXACT["turns that continue"],
    "the end of the response stands elsewhere": (
        ["ab>cdefg", "abcXfgo>h"],
        [(1, "ab>cXfgoh", [(0, 0, 0, 1), (0, 3, 2, 2), (1, 0, 5, 1)])],
        [(1, 3, "d", "X", "drift", True)],
    ),
    "its first occurrence": (
        ["a>bcd", "axdyd>e"],
        [(1, "a>xdyde", [(0, 2, 1, 1), (1, 0, 4, 1)])],
        [(1, 1, "b", "x", "drift", True)],
    ),
    "a token in front of all": (
        ["a>bc", "axbc>d"],
        [(1, "a>xbcd", [(0, 0, 1, 2), (1, 0, 3, 1)])],
        [(1, 1, "b", "x", "drift", True)],
    ),
    "a token less": (
        ["a>bcd", "abd>e"],
        [(1, "a>bde", [(0, 0, 0, 1), (0, 2, 1, 1), (1, 0, 2, 1)])],
        [(1, 2, "c", "d", "drift", True)],
    ),
    "no end that stands": (
        ["a>bc", "axby>d"],
        [(1, "a>xbyd", [(1, 0, 3, 1)])],
        [(1, 1, "b", "x", "drift", True)],
    ),
    "a prompt that ends in the response": (
        ["ab>cd", "abc>e"],
        [(1, "ab>ce", [(0, 0, 0, 1), (1, 0, 1, 1)])],
        [(1, 3, "d", None, "shorter", True)],
    ),
}

# With max_drift_tokens=3.
NEAR_TAIL = {
    "an observation near the end": (
        ["a>b", "abo>cd", "abpcd>e"],
        [(2, "a>bpcde", [(0, 0, 0, 1), (2, 0, 4, 1)])],
        [(2, 2, "o", "p", "drift", True)],
    ),
    "an observation that is not": (
        ["a>b", "abo>cde", "abpcde>f"],
        [(1, "a>bocde", [(0, 0, 0, 1), (1, 0, 2, 3)]), (2, "abpcde>f", [(2, 0, 0, 1)])],
        [(2, 2, "o", "p", "diverged", False)],
    ),
    "never the first prompt": (
        ["ab>c", "axc>d"],
        [(0, "ab>c", [(0, 0, 0, 1)]), (1, "axc>d", [(1, 0, 0, 1)])],
        [(1, 1, "b", "x", "diverged", False)],
    ),
    "an earlier response": (
        ["a>bc", "abc>de", "abxde>f"],
        [(2, "a>bxdef", [(0, 0, 0, 1), (2, 0, 4, 1)])],
        [(2, 2, "c", "x", "drift", True)],
    ),
}
NEAR_RESPONSE = {
    "an earlier response": (
        ["a>bc", "abc>de", "abxde>f"],
        [(2, "a>bxdef", [(2, 0, 4, 1)])],
        [(2, 2, "c", "x", "drift", True)],
    ),
    "an observation": (
        ["a>b", "aboo>c", "abopc>d"],
        [(2, "a>bopcd", [(0, 0, 0, 1), (2, 0, 4, 1)])],
        [(2, 3, "o", "p", "drift", True)],
    ),
}
NEAR_SPAN = {
    "an earlier response": (
        ["a>bc", "abc>de", "abxcd>f"],
        [(2, "a>bxcdf", [(0, 0, 0, 1), (0, 1, 2, 1), (2, 0, 4, 1)])],
        [(2, 2, "c", "x", "drift", True)],
    ),
    "in what was moved": (
        ["a>bcdef", "abXefo>g", "abXeYo>h"],
        [(2, "a>bXeYoh", [(0, 0, 0, 1), (0, 3, 2, 1), (2, 0, 5, 1)])],
        [(1, 2, "c", "X", "drift", True), (2, 4, "f", "Y", "drift", True)],
    ),
    "what was masked comes back": (
        ["a>bcd", "abX>e", "aYcd>f"],
        [(2, "a>Ycdf", [(0, 1, 1, 2), (2, 0, 3, 1)])],
        [(1, 2, "c", "X", "drift", True), (2, 1, "b", "Y", "drift", True)],
    ),
}

LONG = ["ab>cde", "abcxe>fg"]
FORKS = {
    "a long response forks": (
        LONG,
        [(0, "ab>cde", [(0, 0, 0, 3)]), (1, "abcxe>fg", [(1, 0, 0, 2)])],
        [(1, 3, "d", "x", "drift", False)],
    ),
    "a short one does not": RESPONSE["other tokens in the response"],
}

POLICIES = [
    ({"policy": "exact"}, EXACT),
    ({"policy": "branch"}, BRANCH),
    ({"policy": Merge("realign", mask_drift="tail")}, TAIL),
    ({"policy": Merge("realign", mask_drift="response")}, RESPONSE),
    ({"policy": Merge("realign", mask_drift="span")}, SPAN),
    ({"policy": Merge("realign", max_drift_tokens=3)}, NEAR_TAIL),
    (
        {"policy": Merge("realign", mask_drift="response", max_drift_tokens=3)},
        NEAR_RESPONSE,
    ),
    ({"policy": Merge("realign", mask_drift="span", max_drift_tokens=3)}, NEAR_SPAN),
    ({"policy": Merge("realign", mask_drift="response", fork_threshold=2)}, FORKS),
]
EXAMPLES = [
    pytest.param(*example, options, id=f"{'-'.join(map(str, options.values()))}-{name}")
    for options, examples in POLICIES
    for name, example in examples.items()
]


def letters(breaks):
    """Write breaks as in the examples."""
    as_letter = {None: None, **{code: chr(code) for code in range(128)}}
    return [
        (it.turn, it.position, as_letter[it.expected], as_letter[it.found], it.kind, it.realigned)
        for it in breaks
    ]


@pytest.mark.parametrize(("texts", "rows", "breaks", "options"), EXAMPLES)
def test_written_out(texts, rows, breaks, options):
    plan = fc.merge_turns(**turns(*texts), is_last_step=last_steps(len(texts)), **options)
    tokens = [text.replace(">", "") for text in texts]
    found = []
    for source, prompt_len, response_len, origins in zip(
        plan.sources.tolist(),
        plan.prompt_lens.tolist(),
        plan.response_lens.tolist(),
        origins_of(plan),
        strict=True,
    ):
        assert prompt_len + response_len == len(tokens[source])
        text = f"{tokens[source][:prompt_len]}>{tokens[source][prompt_len:]}"
        found.append((source, text, runs_of(origins)))
    assert found == rows
    assert letters(plan.report.breaks) == breaks


def with_masks_only(turns):
    """Return turns without the columns that merging does not read."""
    return turns._replace(rewards=None, logprobs=None, advantages=None)


@pytest.mark.parametrize("policy", ["exact", "branch", "realign"])
@given(drawn=st.data())
def test_any_turns(policy, drawn):
    data = drawn.draw(trajectories())
    options = {**drawn.draw(merge_options(policy)), **drawn.draw(name_turns(data))}
    inputs = drawn.draw(as_inputs(with_masks_only(data.turns)))
    loss_mask = inputs.pop("loss_mask", None)
    if drawn.draw(st.booleans()):
        options["drop_untrainable"] = True
        merged = merge_turns_loops(
            data.turns.prompts, data.turns.responses, loss_mask=data.turns.loss_mask, **options
        )
        options["loss_mask"] = loss_mask
        if not merged.rows:
            with pytest.raises(ValueError, match="drop_untrainable"):
                fc.merge_turns(**inputs, **options)
            return
    else:
        merged = merge_turns_loops(data.turns.prompts, data.turns.responses, **options)
    check_plan(fc.merge_turns(**inputs, **options), merged)


@pytest.mark.parametrize("policy", ["exact", "branch", "realign"])
@given(drawn=st.data())
def test_long_turns(policy, drawn):
    """Comparing goes block by block, and what differs may be anywhere in one."""
    data = drawn.draw(trajectories(max_trajectories=2, max_len=40, max_long_len=3000))
    options = {**drawn.draw(merge_options(policy)), **drawn.draw(name_turns(data))}
    inputs = drawn.draw(as_inputs(with_masks_only(data.turns)._replace(loss_mask=None)))
    merged = merge_turns_loops(data.turns.prompts, data.turns.responses, **options)
    check_plan(fc.merge_turns(**inputs, **options), merged)


def test_trajectories_are_apart():
    """Also where the first turn of one would continue the last of another."""
    both = turns("a>b", "abc>d", "abcde>f")
    plan = fc.merge_turns(**both, trajectory_ids=["s", "s", "t"])
    assert plan.sources.tolist() == [1, 2]
    assert plan.trajectories.tolist() == [0, 1]
    assert plan.report.breaks == []


@pytest.mark.parametrize("policy", ["exact", "branch", "realign"])
def test_many_branches(policy):
    """Twenty branches that share a long prompt and take turns."""
    rng = np.random.default_rng(0)
    shared = rng.integers(0, 100, 500).tolist()
    texts = [[*shared, 1000 + branch] for branch in range(20)]
    prompts, responses = [], []
    for _ in range(10):
        for branch in rng.permutation(20).tolist():
            prompts.append([*texts[branch], *rng.integers(0, 100, 3).tolist()])
            responses.append(rng.integers(0, 100, 4).tolist())
            texts[branch] = [*prompts[-1], *responses[-1]]
    options = {"is_last_step": last_steps(200), "policy": policy}
    plan = fc.merge_turns(prompts, responses, **options)
    check_plan(plan, merge_turns_loops(prompts, responses, **options))
    assert policy != "branch" or plan.num_rows == 20


@pytest.mark.parametrize("drift", [1, 5, 1023, 1024])
def test_a_long_drift_opens_a_row(drift):
    """As TRL's rollout worker, whose threshold is 1,024 tokens; a bound of None is none."""
    turns = {"prompts": [[1], [1, 2, 3]], "responses": [[2] * (drift + 1), [4]]}
    turns["is_last_step"] = [False, True]
    assert fc.merge_turns(**turns, policy="realign").num_rows == 1 + (drift >= 1024)
    for threshold, rows in ((None, 1), (drift + 1, 1), (drift, 2), (0, 2)):
        policy = Merge("realign", fork_threshold=threshold)
        plan = fc.merge_turns(**turns, policy=policy)
        assert plan.num_rows == rows
        assert plan.report.breaks[0].realigned == (rows == 1)
    for threshold, rows in ((None, 1), (2, 1), (1, 2)):  # of the turn's own response
        policy = Merge("realign", mask_drift="response", fork_threshold=threshold)
        plan = fc.merge_turns(**turns, policy=policy)
        assert plan.num_rows == rows


@pytest.mark.parametrize(
    "options", [{"policy": "exact"}, {"policy": "realign", "mask_drift": "span"}]
)
@pytest.mark.parametrize("threshold", [None, 5])
def test_no_bound_without_realigning(options, threshold):
    with pytest.raises(
        ValueError, match=f"fork_threshold is {threshold}, .*; pass policy='realign'"
    ):
        Merge(fork_threshold=threshold, **options)
