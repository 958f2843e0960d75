"""Turns to rows: examples of every rule, and arbitrary turns against the loops."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raising import raises
from strategies import as_inputs, merge_options, name_turns, trajectories
from turns import check_plan, last_steps, origins_of, runs_of, turns

import fastcollate as fc
from fastcollate.planning import Merge
from fastcollate.testing.reference import merge_turns_loops

# Turns of one trajectory; the rows that they make; and where turns leave the tokens before them.
# A row is its last turn, its prompt, and its response: sampled tokens with the number of their
# turn, observations without. A break is a turn, a position, the expected token and the one
# that was found, the kind (if none, the turn diverged), and a star where the turn still joins.
EXAMPLES = {
    "exact": """
turns that continue        | a>b abx>c abxcyz>de | 2: a>b0 x c1 yz de2              |
no observation             | a>b ab>c            | 1: a>b0 c1                       |
another prompt             | ab>c xbc>d          | 0: ab>c0, 1: xbc>d1              | 1@0 a/x
groups stay closed | a>b x>y xyz>w abq>r | 0: a>b0, 2: x>y1 z w2, 3: abq>r3 | 1@0 a/x, 3@0 x/a
a shorter prompt           | abc>d ab>e | 0: abc>d0, 1: ab>e1 | 1@2 c/- shorter
the same prompt again      | ab>c ab>d | 0: ab>c0, 1: ab>d1 | 1@2 c/- shorter
another first token        | ab>cd abxd>e        | 0: ab>cd0, 1: abxd>e1            | 1@2 c/x drift
another last token         | ab>cd abcxy>e       | 0: ab>cd0, 1: abcxy>e1           | 1@3 d/x drift
another observation        | a>b abo>c abpc>d    | 1: a>b0 o c1, 2: abpc>d2         | 2@2 o/p
an earlier response        | a>b abo>c axoc>d    | 1: a>b0 o c1, 2: axoc>d2         | 2@1 b/x
one turn                   | ab>c                | 0: ab>c0                         |
nothing                    | >                   | 0: >                             |
nothing is a prefix of all | > a>b               | 1: >a b1                         |
no response first          | a> ab>c             | 1: a>b c1                        |
no response last           | a>b abc>            | 1: a>b0 c                        |
no prompts                 | >a >b | 0: >a0, 1: >b1 | 1@0 a/- shorter
    """,
    "branch": """
turns that continue              | a>b abx>c abxcyz>de | 2: a>b0 x c1 yz de2             |
no response last                 | a>b abc>            | 1: a>b0 c                       |
branches in turns                | a>b x>y abc>d xyz>w | 2: a>b0 c d2, 3: x>y1 z w3      | 1@0 a/x
a retry goes on                  | a>b a>c acd>e | 0: a>b0, 2: a>c1 d e2 | 1@1 b/- shorter
ordered by last turns            | a>b a>c abd>e | 1: a>c1, 2: a>b0 d e2 | 1@1 b/- shorter
shared tokens train once         | a>b abc>d abx>y     | 1: a>b0 c d1, 2: abx>y2         | 2@2 c/x
the longest prefix, opened later | a>b a>bcd abcde>f | 0: a>b0, 2: a>bcd1 e f2 | 1@1 b/- shorter
the longest prefix, opened first | a>bcd a>b abcde>f | 1: a>b1, 2: a>bcd0 e f2 | 1@1 b/- shorter
of equal groups the first        | a>b a>b abc>d | 1: a>b1, 2: a>b0 c d2 | 1@1 b/- shorter
told from the turn before | a>b x>y abc>d aq>r | 1: x>y1, 2: a>b0 c d2, 3: aq>r3 | 1@0 a/x, 3@1 b/q
drift opens a group              | a>bc abx>d abce>f | 1: abx>d1, 2: a>bc0 e f2 | 1@2 c/x drift
    """,
    Merge("realign", mask_drift="tail"): """
turns that continue               | a>b abx>c abxcyz>de | 2: a>b0 x c1 yz de2      |
another prompt                    | ab>c xbc>d          | 0: ab>c0, 1: xbc>d1      | 1@0 a/x
another observation               | a>b abo>c abpc>d    | 1: a>b0 o c1, 2: abpc>d2 | 2@2 o/p
shorter than the first prompt     | abc>d ab>e          | 0: abc>d0, 1: ab>e1      | 1@2 c/- shorter
another token                     | ab>cde abcxe>f      | 1: ab>c0 xe f1           | 1@3 d/x drift*
from the start of the response on | ab>cd abxd>e        | 1: ab>xd e1              | 1@2 c/x drift*
ends in the response              | ab>cd abc>e | 1: ab>c0 e1 | 1@3 d/- shorter*
ends where the response starts    | ab>cd ab>e | 1: ab>e1 | 1@2 c/- shorter*
the next prompt is the truth      | a>bc axd>e axdef>g  | 2: a>xd e1 f g2          | 1@1 b/x drift*
drift twice | a>bc abd>ef abdeg>h | 2: a>b0 d e1 g h2 | 1@2 c/d drift*, 2@4 f/g drift*
nothing stands of the last        | a>b a> | 1: a> | 1@1 b/- shorter*
    """,
    Merge("realign", mask_drift="response"): """
turns that continue    | a>b abx>c abxcyz>de | 2: a>b0 x c1 yz de2 |
another token          | ab>cde abcxe>f      | 1: ab>cxe f1        | 1@3 d/x drift*
ends in the response   | ab>cd abc>e         | 1: ab>c e1          | 1@3 d/- shorter*
earlier responses stay | a>b abo>cd aboce>f  | 2: a>b0 oce f2      | 2@4 d/e drift*
    """,
    Merge("realign", mask_drift="span"): """
turns that continue      | a>b abx>c abxcyz>de | 2: a>b0 x c1 yz de2 |
its end stands elsewhere | ab>cdefg abcXfgo>h  | 1: ab>c0 X fg0 o h1 | 1@3 d/X drift*
its first occurrence     | a>bcd axdyd>e       | 1: a>x d0 yd e1     | 1@1 b/x drift*
a token in front of all  | a>bc axbc>d         | 1: a>x bc0 d1       | 1@1 b/x drift*
a token less             | a>bcd abd>e         | 1: a>b0 d0 e1       | 1@2 c/d drift*
no end that stands       | a>bc axby>d         | 1: a>xby d1         | 1@1 b/x drift*
ends in the response     | ab>cd abc>e         | 1: ab>c0 e1         | 1@3 d/- shorter*
    """,
    Merge("realign", max_drift_tokens=3): """
an observation near the end | a>b abo>cd abpcd>e   | 2: a>b0 pcd e2               | 2@2 o/p drift*
an observation that is not  | a>b abo>cde abpcde>f | 1: a>b0 o cde1, 2: abpcde>f2 | 2@2 o/p
never the first prompt      | ab>c axc>d           | 0: ab>c0, 1: axc>d1          | 1@1 b/x
an earlier response         | a>bc abc>de abxde>f  | 2: a>b0 xde f2               | 2@2 c/x drift*
    """,
    Merge("realign", mask_drift="response", max_drift_tokens=3): """
an earlier response | a>bc abc>de abxde>f | 2: a>bxde f2   | 2@2 c/x drift*
an observation      | a>b aboo>c abopc>d  | 2: a>b0 opc d2 | 2@3 o/p drift*
    """,
    Merge("realign", mask_drift="span", max_drift_tokens=3): """
an earlier response        | a>bc abc>de abxcd>f       | 2: a>b0 x c0 d f2  | 2@2 c/x drift*
in what was moved | a>bcdef abXefo>g abXeYo>h | 2: a>b0 X e0 Yo h2 | 1@2 c/X drift*, 2@4 f/Y drift*
what was masked comes back | a>bcd abX>e aYcd>f | 2: a>Y cd0 f2 | 1@2 c/X drift*, 2@1 b/Y drift*
    """,
    Merge("realign", mask_drift="response", fork_threshold=2): """
a long response forks | ab>cde abcxe>fg | 0: ab>cde0, 1: abcxe>fg1 | 1@3 d/x drift
a short one does not  | ab>cde abcxe>f  | 1: ab>cxe f1             | 1@3 d/x drift*
    """,
}


def shown(plan, texts):
    """Write the rows and breaks of a plan as in the examples."""
    rows = []
    for source, prompt_len, origins in zip(
        plan.sources.tolist(), plan.prompt_lens.tolist(), origins_of(plan), strict=True
    ):
        tokens = texts[source].replace(">", "")
        assert prompt_len + len(origins) == len(tokens)
        prompt, response = tokens[:prompt_len], tokens[prompt_len:]
        parts, end = [], 0
        for turn, first, start, count in runs_of(origins):
            sampled = texts[turn].partition(">")[2][first : first + count]
            parts += [response[end:start], f"{sampled}{turn}"]
            end = start + count
        rows.append(f"{source}: {prompt}>{' '.join(filter(None, [*parts, response[end:]]))}")
    breaks = [
        f"{it.turn}@{it.position} {chr(it.expected)}/{'-' if it.found is None else chr(it.found)}"
        f"{'' if it.kind == 'diverged' else f' {it.kind}'}{'*' if it.realigned else ''}"
        for it in plan.report.breaks
    ]
    return ", ".join(rows), ", ".join(breaks)


@pytest.mark.parametrize(
    ("policy", "example"),
    [
        pytest.param(policy, line, id=f"{policy}-{line.partition('|')[0].strip()}")
        for policy, lines in EXAMPLES.items()
        for line in lines.strip().splitlines()
    ],
)
def test_written_out(policy, example):
    _, texts, rows, breaks = (column.strip() for column in f"{example} |".split("|")[:4])
    texts = texts.split(" ")
    plan = fc.merge_turns(**turns(*texts), is_last_step=last_steps(len(texts)), policy=policy)
    assert shown(plan, texts) == (rows, breaks)


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
    with raises(f"fork_threshold is {threshold}, .*; pass policy='realign'"):
        Merge(fork_threshold=threshold, **options)
