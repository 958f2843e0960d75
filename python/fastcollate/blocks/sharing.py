"""The tokens that the rows of a block share, described without tokens."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from fastcollate._fastcollate import hash_prompts
from fastcollate.common.arguments import check_choice, id_list, tally
from fastcollate.plan.sharing import prefix_tree
from fastcollate.rows.columns import Ragged
from fastcollate.rows.lengths import Integers
from fastcollate.rows.tokens import check_tokens

BlockShare: TypeAlias = Literal["group", "prompts"]
"""The rule by which rows of several processes share tokens."""


class Sharing(NamedTuple):
    """The tokens that the rows of a block share, or hashes of their prompts."""

    share: BlockShare
    """The rule."""
    order: Integers
    shared: Integers
    """For groups, the tables of a :class:`TreePlan`; else (0,)."""
    prompt_hashes: NDArray[np.uint64]
    """For prompts, a 128-bit hash per row, (rows, 2); else (0, 2)."""
    same_inputs: list[Any] | None
    """Ids of each row's inputs other than tokens, if given."""
    is_apart: bool
    """True if rows have such inputs without ids; they share nothing."""


def check_share(share: Any, same_inputs: Any) -> None:
    """Check the arguments ``share`` and ``same_inputs``."""
    if share == "all":
        raise ValueError(
            "share is 'all', but rows of different workers are matched by groups or whole prompts "
            "only; pass share='group' or share='prompts'"
        )
    check_choice("share", share, (*get_args(BlockShare), None))
    if same_inputs is not None and share is None:
        raise ValueError(
            "same_inputs is given, but share is None; pass share='group' or share='prompts', or "
            "leave same_inputs out"
        )


def sharing_of(
    share: BlockShare,
    tokens: Ragged,
    prompt_lens: Integers,
    uids: list[Any] | None,
    same_inputs: list[Any] | None,
    is_apart: bool,
) -> Sharing:
    """Find the shared tokens of a block's rows; each row of `tokens` starts with its prompt."""
    if share == "prompts":
        nothing = np.zeros(0, np.int64)
        hashes = hash_prompts(check_tokens(None, None, tokens, prompt_lens))
        return Sharing(share, nothing, nothing, hashes, same_inputs, is_apart)
    tree = prefix_tree(
        sequences=tokens,
        prompt_lens=prompt_lens,
        share=share,
        uids=uids,
        same_inputs=range(len(prompt_lens)) if is_apart else same_inputs,
    )
    no_hashes = np.zeros((0, 2), np.uint64)
    return Sharing(share, tree.order, tree.shared, no_hashes, same_inputs, is_apart)


def ids_of_rows(name: str, ids: Any, num_turns: int, sources: Integers) -> list[Any]:
    """Return the ids of rows from the ids of turns."""
    ids = id_list(name, ids)
    if len(ids) != num_turns:
        raise ValueError(
            f"{name} has {tally(len(ids), 'item')}, but there are {tally(num_turns, 'turn')}; "
            "pass one per turn"
        )
    return list(map(ids.__getitem__, sources.tolist()))
