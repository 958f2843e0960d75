"""Target: `merge_turns`."""

from __future__ import annotations

import pickle

from turns import check_plan

import fastcollate as fc
from calls import NAMED, TOKENS, Call, give_columns
from choices import Choices
from fastcollate.testing.reference import merge_turns_loops
from restoring import restore_merge
from spoiling import MERGING, spoil
from trajectories import draw_merge, draw_turns, some
from verdicts import Verdict, outcome


def merge_turns(choices: Choices) -> None:
    """Plan which turns are a row."""
    turns = draw_turns(choices)
    call = Call({}, {name: getattr(turns, name) for name in TOKENS})
    call.merge = draw_merge(choices)
    if choices.one_in(3):
        lens = call.response_lens
        call.plain["loss_mask"] = [some(choices, [0, 0, 1, 0.5], count) for count in lens]
        call.merge["drop_untrainable"] = True
    give_columns(choices, call)
    names = choices.pick([NAMED[:1], NAMED[1:], NAMED])
    more = call.merge | {name: getattr(turns, name) for name in names}
    call.arguments |= more
    verdict = spoil(choices, call, MERGING)
    expected = merge_turns_loops(**call.plain, **more)
    if verdict == Verdict.RIGHT and not expected.rows:
        verdict = Verdict.REFUSED  # nothing trains
    plan = outcome(fc.merge_turns, verdict, call)
    if verdict != Verdict.RIGHT:
        return
    check_plan(plan, expected)
    for again in (
        restore_merge(plan.to_dict()),
        pickle.loads(pickle.dumps(plan)),
    ):
        assert again == plan
