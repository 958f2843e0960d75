"""Which tokens the rows of a block have in common, told without tokens."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from fastcollate._fastcollate import hash_prompts
from fastcollate.arguments import check_choice, counted, id_list
from fastcollate.ingest.columns import Ragged
from fastcollate.ingest.tokens import checked_tokens
from fastcollate.plan.lengths import Integers
from fastcollate.plan.sharing import prefix_tree

BlockShare: TypeAlias = Literal["group", "prompts"]
"""Which tokens rows share, where these lie in several processes."""


class Sharing(NamedTuple):
    """Which tokens the rows of a block share, or what their prompts are known by."""

    share: BlockShare
    """The rule."""
    order: Integers
    shared: Integers
    """Of groups, the tables of a :class:`TreePlan`; else (0,)."""
    prompt_hashes: NDArray[np.uint64]
    """Of prompts, 128 bits of each row's, (rows, 2); else (0, 2)."""
    same_inputs: list[Any] | None
    """What names the inputs of each row beside tokens, if ids were given."""
    is_apart: bool
    """Whether rows have such inputs without ids, and share nothing."""


def check_share(share: Any, same_inputs: Any) -> None:
    """Check what rows of blocks are to share."""
    if share == "all":
        raise ValueError(
            "share is 'all', but rows of different workers can be matched by groups or whole "
            "prompts alone; pass share='group' or share='prompts'"
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
    """Find what the rows of a block share: `tokens`, of which `prompt_lens` are prompts."""
    if share == "prompts":
        nothing = np.zeros(0, np.int64)
        hashes = hash_prompts(checked_tokens(None, None, tokens, prompt_lens))
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
    """Return the ids of rows, of those of turns."""
    ids = id_list(name, ids)
    if len(ids) != num_turns:
        raise ValueError(
            f"{name} has {counted(len(ids), 'item')}, but there are {counted(num_turns, 'turn')}; "
            "pass one per turn"
        )
    return list(map(ids.__getitem__, sources.tolist()))
