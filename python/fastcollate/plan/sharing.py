"""Sharing: which tokens rows have in common, so that a model computes each of them once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastcollate import _fastcollate
from fastcollate._fastcollate import SHARES
from fastcollate.arguments import check_choice, suggests_names
from fastcollate.arrays import describe
from fastcollate.ingest.fields import Rows
from fastcollate.ingest.tokens import checked_tokens
from fastcollate.plan.grouping import group_numbers
from fastcollate.plan.layouts import Share
from fastcollate.plan.merging import MergePlan
from fastcollate.plan.tree_plan import TreePlan


@suggests_names
def prefix_tree(
    prompts: Rows | None = None,
    responses: Rows | None = None,
    *,
    sequences: Rows | None = None,
    prompt_lens: Any | None = None,
    merge: MergePlan | None = None,
    share: Share = "all",
    uids: Sequence[Any] | None = None,
    same_inputs: Sequence[Any] | None = None,
) -> TreePlan:
    """Find the tokens that rows begin with in common.

    Laid out as a tree, a token that several rows begin with is computed once, and losses and
    gradients stay as they are. Samples of a prompt share the prompt, branches of a trajectory all
    turns before the fork. Tokens are compared where they lie, each shared one about once, and none
    is copied.

    Parameters
    ----------
    prompts, responses, sequences, prompt_lens
        One row of token ids per row, in either form that ``build_batch`` takes.
    merge
        A plan of :func:`fastcollate.merge_turns` for these turns: its rows are compared, not turns.
    share
        Which tokens rows share. ``"all"``: all that they begin with in common. ``"group"``: the
        same, but only with rows of the same uid. ``"prompts"``: their prompts, if all of the tokens
        of these are equal; no response token then.
    uids
        With ``share="group"``, what names each row's group: any objects that can be compared.
    same_inputs
        What names the other inputs that the model gets for each row, such as images. Rows with
        different ids share nothing. Without ids, all rows are taken to have the same inputs; rows
        that must not share get ids of their own. With `merge`, ids and uids are those of turns, of
        which a row's last one counts.

    Returns
    -------
    TreePlan
        Rows are sorted by their tokens, numerically and lexicographically, and equal ones by their
        numbers, whatever they were given as. Groups (of uids or `same_inputs`) are in the order of
        their first rows; with ``share="prompts"`` so are prompts, and the rows of each in theirs.

    Raises
    ------
    ValueError
        Different numbers of rows; a merge plan for other turns; ``share="group"`` without uids,
        or uids without it; token ids that fit no int64.
    TypeError
        An object that is no row, token id, plan or option.

    Notes
    -----
    Equality of losses presumes that a token's result depends on the tokens before it alone: no
    dropout, and no loss that balances the load of experts. A model with a recurrent state (Mamba,
    linear attention) cannot use trees.

    Examples
    --------
    >>> tree = fc.planning.prefix_tree([[1, 2, 3], [1, 2, 3], [1, 2]], [[4, 5], [4, 6], [7]])
    >>> tree
    TreePlan: 13 tokens of 3 rows in 7, 1.9x fewer
    >>> tree.order, tree.shared
    (array([0, 1, 2]), array([0, 4, 2]))
    """
    check_choice("share", share, SHARES)
    if merge is not None and not isinstance(merge, MergePlan):
        raise TypeError(f"merge is {describe(merge)}; pass a plan of fc.merge_turns, or None")
    if (uids is None) == (share == "group"):
        found = "None; pass one per row" if uids is None else "given; pass share='group'"
        advice = "another share" if uids is None else "leave uids out"
        raise ValueError(f"share is {share!r}, but uids is {found}, or {advice}")
    order, shared, prompt_lens, response_lens = _fastcollate.share_prefixes(
        checked_tokens(prompts, responses, sequences, prompt_lens),
        None if merge is None else merge._merge,
        share,
        None if uids is None else group_numbers("uids", uids),
        None if same_inputs is None else group_numbers("same_inputs", same_inputs),
    )
    return TreePlan._trusted(
        order=order, shared=shared, prompt_lens=prompt_lens, response_lens=response_lens
    )
