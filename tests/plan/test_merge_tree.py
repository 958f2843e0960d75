"""Breaks as the tree of a trajectory, with hints where the difference is of a known kind."""

import pytest
from restored_plans import restore_merge

import fastcollate as fc
from fastcollate.plan import breaks


class Pieces:
    """Ids are the places of texts in a list."""

    def __init__(self):
        self.texts = []

    def decode(self, ids):
        return "".join(self.texts[i] for i in ids)

    def __call__(self, *texts):
        self.texts += [text for text in dict.fromkeys(texts) if text not in self.texts]
        return [self.texts.index(text) for text in texts]


def broken(first, response, second, tokenizer=None):
    """Return the one break of two turns of texts."""
    pieces = Pieces()
    prompts = [pieces(*first), pieces(*second)]
    plan = fc.merge_turns(
        prompts,
        [pieces(*response), pieces("b")],
        trajectory_ids=["a", "a"],
        tokenizer=pieces if tokenizer is None else None,
    )
    (found,) = plan.report.breaks
    return found


@pytest.mark.parametrize(
    ("response", "again", "hint"),
    [
        (["hel", "lo"], ["hello"], breaks.SAME_TEXT),
        (["hel", "lo"], ["he", "llo", " more"], breaks.SAME_TEXT),
        (["sure", " he", "llo"], ["sure", " hello", " and", " on"], breaks.SAME_TEXT),
        (["<think>", "hm", "</think>", "yes"], ["yes", "<end>"], breaks.REASONING),
        ([" yes", "."], ["yes", "."], breaks.SPACE),
        (["yes", "\n"], ["yes", "<end>", "next"], None),
        (["yes", "\n\n", "more", "."], ["yes", "\n", "more", "."], breaks.SPACE),
        (["yes", "."], ["no", "."], None),
        # All that was sampled is in common; what differs has no text.
        (["yes", ""], ["yes", "<end>"], None),
    ],
)
def test_hints(response, again, hint):
    found = broken(["ask:"], response, ["ask:", *again])
    assert found.hint == hint
    assert (f"hint      {hint}" in str(found)) == (hint is not None)


def test_hints_without_a_tokenizer():
    assert broken(["ask:"], ["hel", "lo"], ["ask:", "hello"], tokenizer=False).hint is None
    changed = broken(["on Monday", "ask:"], ["yes"], ["on Tuesday", "ask:", "yes"], tokenizer=False)
    assert changed.hint == breaks.FIRST_PROMPT


PROMPTS = [[1, 2], [1, 2, 3, 9], [1, 2, 3, 8], [1, 2, 3, 9, 4, 7], [1, 2, 3, 8, 5, 6], [5]]
RESPONSES = [[3], [4], [5], [1], [2], [9]]


def plan_of(policy):
    return fc.merge_turns(PROMPTS, RESPONSES, trajectory_ids=["a"] * 6, policy=policy)


def test_the_tree_of_a_trajectory():
    tree = plan_of("branch").report.tree(0)
    assert [branch.turns for branch in tree.branches] == [[0, 1, 3], [2, 4], [5]]
    assert [branch.parent for branch in tree.branches] == [None, 0, 1]
    assert [branch.tokens for branch in tree.branches] == [7, 7, 2]
    assert [branch.broken and branch.broken.turn for branch in tree.branches] == [None, 2, 5]
    assert repr(tree) == "TrajectoryTree of 'a': 6 turns in 3 rows"
    assert (
        str(tree)
        == """\
trajectory 'a': 6 turns in 3 rows
└─ row 0: turns 0 to 1, 3, 7 tokens
   └─ row 1: turns 2, 4, 7 tokens
      │    turn 2 leaves (diverged) at position 3 the prompt has 8 instead of 9
      │      expected  1 2 3 [9] 4
      │      found     1 2 3 [8]
      └─ row 2: turn 5, 2 tokens
              turn 5 leaves (diverged) at position 0 the prompt has 5 instead of 1
                expected  [1] 2 3 8 5 6
                found     [5]
                hint      the first prompt differs: a changed system prompt, or a sub-agent"""
    )


def test_trees_in_a_notebook():
    plan = plan_of("branch")
    html = plan.report.tree(0)._repr_html_()
    assert "row 1: turns 2, 4, 7 tokens" in html
    assert "└─" in html
    assert "report.tree() draws" in plan._repr_html_()


def test_turns_that_were_realigned_stay_in_their_row():
    prompts, responses = [[1], [1, 2, 9, 5]], [[2, 3, 4], [6]]
    report = fc.merge_turns(prompts, responses, trajectory_ids=["a", "a"], policy="realign").report
    (branch,) = report.tree().branches
    assert branch.turns == [0, 1]
    assert [found.position for found in branch.realigned] == [2]
    assert "turn 1 is realigned (drift) at position 2" in str(report.tree())


def test_trajectories():
    plan = fc.merge_turns(
        [[7], *PROMPTS, [8]],
        [[7], *RESPONSES, [8]],
        trajectory_ids=["x", *"aaaaaa", "z"],
        loss_mask=[[0], *([1] for _ in RESPONSES), [1]],
        drop_untrainable=True,
    )
    assert plan.report.tree().name == "'a'"  # that with the most breaks
    assert "dropped: turn 0" in str(plan.report.tree(0))
    assert [branch.turns for branch in plan.report.tree(2).branches] == [[7]]
    assert restore_merge(plan.to_dict()).report.tree(1).name == "1"
    for wrong in (3, -4):
        with pytest.raises(IndexError, match="trajectory"):
            plan.report.tree(wrong)


def test_a_trajectory_of_many_rows():
    turns = 3000
    report = fc.merge_turns(
        [[turn % 7 + 1] for turn in range(turns)], [[9]] * turns, trajectory_ids=[0] * turns
    ).report
    drawn = str(report.tree(0))
    assert drawn.count("└─") == turns
    assert max(map(len, drawn.splitlines())) < 120
