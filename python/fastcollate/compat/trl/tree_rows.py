"""Rows of TRL's asynchronous trainer: samples of one rank, in a prefix tree."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from fastcollate._fastcollate import IGNORE_INDEX, GrowingTree
from fastcollate.build import build_batch
from fastcollate.common.arguments import suggests_names
from fastcollate.common.arrays import describe
from fastcollate.common.names import ListsNames
from fastcollate.plan.layouts import Tree
from fastcollate.plan.tree_plan import TreePlan
from fastcollate.rows.fields import Field

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray


KEYS = ("input_ids", "completion_mask", "old_log_probs", "advantage", "group_id")
"""The keys of a sample."""

VALUES = itemgetter(*KEYS)


@suggests_names
class TreeRow(ListsNames):
    """One rank's samples in a prefix tree, as TRL's class of this name.

    Samples share a token if they agree on the next one, too, so that each position predicts one
    token: forks are one token early, and only identical samples share their last token. A sample
    is a dict of NumPy arrays or CPU tensors ``input_ids``, ``completion_mask`` and
    ``old_log_probs``, (tokens,), with ``advantage``, a number, and ``group_id``.

    Attributes
    ----------
    samples : list[dict]
        The samples, in the order in which they were added.
    groups : set
        Their group ids.
    trained : int
        Sum of their completion masks.
    load : int
        Number of pairs of tokens in attention.

    Notes
    -----
    Written against TRL 1.16.0: ``trl.experimental.async_grpo.packing.TreeRow``. There are no
    ``children``, ``roots`` and ``sample_nodes``: the tree is in Rust, and compares spans of tokens.
    Unlike in TRL, a mask or log-probabilities of another length than the tokens are an error.

    Examples
    --------
    >>> import torch
    >>> row = TreeRow()
    >>> for ids in [5, 6, 7, 8], [5, 6, 7, 9]:
    ...     row.add({
    ...         "input_ids": torch.tensor(ids), "completion_mask": torch.tensor([0, 0, 1, 1]),
    ...         "old_log_probs": torch.zeros(4), "advantage": 1.0, "group_id": 0,
    ...     })
    >>> row.tokens
    [5, 6, 7, 8, 7, 9]
    >>> row.pack()["shift_labels"]
    tensor([-100,    7,    8, -100,    9, -100])
    """

    def __init__(self) -> None:
        self.samples: list[dict[str, Any]] = []
        self.groups: set[Any] = set()
        self.trained = 0
        self.load = 0
        self._tree = GrowingTree()
        self._shared: list[int] = []
        self._size = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"samples": self.samples}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickle, which may be of TRL's own class, from a process without `patch()`."""
        TreeRow.__init__(self)
        for sample in state["samples"]:
            self.add(sample)

    @property
    def tokens(self) -> list[int]:
        """The tokens in the order in which samples added them, shared ones once."""
        added = zip(self.samples, self._shared, strict=True)
        return [token for sample, shared in added for token in _ids(sample)[shared:].tolist()]

    def fits(self, sample: dict[str, Any], budget: int) -> bool:
        """Return True if the row stays within `budget` with one more sample.

        The budget limits both its tokens, counting shared ones once, and the trained tokens of all
        samples.
        """
        ids = _ids(sample)
        tokens = self._size + len(ids) - self._tree.shared(ids)
        return tokens <= budget and self.trained + _count(sample) <= budget

    def add(self, sample: dict[str, Any]) -> None:
        """Add a sample.

        Raises
        ------
        ValueError, TypeError
            The sample has no tokens, or tokens that are not integers.
        """
        ids, trained = _ids(sample), _count(sample)
        *_, group = VALUES(sample)
        groups = {group}
        shared = self._tree.add(ids)
        self._shared.append(shared)
        self._size += len(ids) - shared
        self.load += (len(ids) * (len(ids) + 1) - shared * (shared + 1)) // 2
        self.trained += trained
        self.groups |= groups
        self.samples.append(sample)

    def pack(self) -> dict[str, torch.Tensor]:
        """Lay out the tree for a model, and its trained tokens for the loss.

        Returns
        -------
        dict
            For N tokens in S segments, with K keys:

            - ``input_ids``, ``position_ids`` and ``shift_labels``, int64 (N,), depth-first with the
              oldest branch first; labels are -100 where no token trains
            - ``tree_kv_index``, int64 (K,), the positions from the root to the end of each segment
            - ``tree_cu_seqlens_q`` and ``tree_cu_seqlens_k``, int32 (S + 1,), offsets of segments
              and of these paths
            - ``tree_max_seqlens``, int64 (2,), the longest segment and the longest path

            For each of M trained tokens, sample by sample:

            - ``token_index``, int64 (M,), the position that predicts it
            - ``segment_id``, int64 (M,), its sample
            - ``old_log_probs`` and ``advantages``, float32 (M,)

        Raises
        ------
        ValueError
            There are no samples; a sample's mask or log-probabilities are not as long as its
            tokens; or K exceeds int32.
        """
        import torch

        if not self.samples:
            raise ValueError("the row has no samples; add at least one before pack()")
        columns = {name: [sample[name] for sample in self.samples] for name in KEYS}
        lens = np.array(list(map(len, columns["input_ids"])))
        for name in ("completion_mask", "old_log_probs"):
            for index, values in enumerate(columns[name]):
                if len(values) != lens[index]:
                    raise ValueError(
                        f"samples[{index}] has {len(values)} values of {name}, but "
                        f"{lens[index]} tokens; pass one value for each token"
                    )
        order, shared = self._tree.rows()
        plan = TreePlan._trusted(
            order=order, shared=shared, prompt_lens=np.ones_like(lens), response_lens=lens - 1
        )
        batch: Any = build_batch(
            sequences=columns["input_ids"],
            prompt_lens=plan.prompt_lens,
            loss_mask=Field(columns["completion_mask"], align="sequence"),
            logprobs=Field(columns["old_log_probs"], align="sequence"),
            layout=Tree(plan=plan),
            pad_token_id=0,
            array_type="numpy",
        )
        trained = np.flatnonzero(batch.loss_mask)
        predictors = batch.predictors[trained]
        labels = np.full_like(batch.input_ids[0], IGNORE_INDEX)
        labels[predictors] = batch.targets[trained]
        segments = np.repeat(np.arange(len(lens)), lens - 1)[trained]
        paths = batch.attention_paths()
        advantages = np.array(columns["advantage"], np.float32)
        arrays = {
            "input_ids": batch.input_ids[0],
            "position_ids": batch.position_ids[0],
            "shift_labels": labels,
            "tree_kv_index": paths.kv_index,
            "tree_cu_seqlens_q": paths.cu_seqlens_q,
            "tree_cu_seqlens_k": paths.cu_seqlens_k,
            "tree_max_seqlens": np.array([paths.max_seqlen_q, paths.max_seqlen_k]),
            "token_index": predictors,
            "old_log_probs": batch.logprobs[trained],
            "advantages": advantages[segments],
            "segment_id": segments,
        }
        return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _ids(sample: dict[str, Any]) -> NDArray[np.int64]:
    """Return the tokens of a sample."""
    if not isinstance(sample, (dict, Mapping)):
        raise TypeError(f"sample is {describe(sample)}; pass a dict of {', '.join(KEYS)}")
    ids = _array(sample["input_ids"])
    if len(ids) == 0 or ids.dtype.kind == "f":
        raise (ValueError if len(ids) == 0 else TypeError)(
            f"input_ids of the sample are {ids}; pass the ids of at least one token"
        )
    array: NDArray[np.int64] = ids if ids.dtype == np.int64 else ids.astype(np.int64)
    return array


def _count(sample: dict[str, Any]) -> int:
    """Return the number of trained tokens of a sample."""
    return int(np.add.reduce(_array(sample["completion_mask"])))  # half the time of `sum`


def _array(values: Any) -> Any:
    """Return whole numbers as an array: faster than by `on_host`."""
    if isinstance(values, np.ndarray):
        return values
    return values.numpy() if hasattr(values, "numpy") else np.array(values)
