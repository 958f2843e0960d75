"""Padding-free batches in place of ``transformers``' own."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from fastcollate._fastcollate import IGNORE_INDEX, FieldSpec, OutputSpec
from fastcollate.common.arguments import suggests_names
from fastcollate.common.arrays import like_of
from fastcollate.ops.collating import Request, collate
from fastcollate.plan.dtypes import ArrayType
from fastcollate.plan.layouts import JAGGED
from fastcollate.rows.tokens import Whole

LABELS = FieldSpec("labels", "labels", align="sequence", dtype="int64")


@suggests_names
@dataclass(eq=False)
class DataCollatorWithFlattening:
    """Join all examples into one row without padding, as transformers' class of this name does.

    Attention needs the starts of examples: from the positions, which restart there, or from the
    arguments of flash attention.

    Parameters
    ----------
    return_tensors
        ``"pt"`` for torch tensors or ``"np"`` for NumPy arrays.
    return_position_ids
        If True, add ``position_ids``.
    separator_id
        The label of each example's first token, which no token predicts.
    return_flash_attn_kwargs
        If True, add ``cu_seq_lens_q``, ``cu_seq_lens_k``, ``max_length_q`` and ``max_length_k``.
    return_seq_idx
        If True, add ``seq_idx``.
    position_ids_start
        The position of each example's first token; 2 for RoBERTa and similar models.

    Notes
    -----
    Written against transformers 5.24.0: ``DataCollatorWithFlattening`` of
    ``transformers.data.data_collator``. Unlike there, an example without tokens, and labels of
    another length than its tokens, are errors: in transformers, output lengths then differ.
    """

    return_tensors: str = "pt"
    _: KW_ONLY
    return_position_ids: bool = True
    separator_id: int = IGNORE_INDEX
    return_flash_attn_kwargs: bool = False
    return_seq_idx: bool = False
    position_ids_start: int = 0

    def __call__(
        self,
        features: Sequence[Mapping[str, Any]],
        return_tensors: str | None = None,
        separator_id: int | None = None,
    ) -> dict[str, Any]:
        """Return a batch of N examples with T tokens in all.

        Parameters
        ----------
        features
            N dicts: ``input_ids`` and, in all or none, ``labels``, each a list, array or tensor of
            as many integers. Other keys are ignored.
        return_tensors, separator_id
            In place of the constructor's.

        Returns
        -------
        dict
            ``input_ids``, ``labels`` and ``position_ids``, int64 (1, T); ``seq_idx``, the number of
            each token's example, int32 (1, T); ``cu_seq_lens_q`` and ``cu_seq_lens_k``, the offsets
            of examples, int32 (N + 1,); ``max_length_q`` and
            ``max_length_k``, ints. Without ``labels`` in the first example, the input ids are the
            labels.

        Raises
        ------
        IndexError
            There are no examples.
        KeyError
            An example has no ``input_ids``, or no ``labels`` while the first one has.
        ValueError
            An example has no tokens, or a different number of labels; invalid `return_tensors`.
        TypeError
            A value is not an integer.
        """
        array_type = self._array_type(return_tensors)
        if separator_id is None:
            separator_id = self.separator_id
        if len(features) == 0:
            raise IndexError("features is empty; pass at least one example")
        rows = [feature["input_ids"] for feature in features]
        labels = [feature["labels"] for feature in features] if "labels" in features[0] else None
        try:
            request = Request(
                Whole(rows),
                0,  # there is no padding
                [] if labels is None else [(labels, LABELS)],
                array_type,
                JAGGED.spec,
                OutputSpec(position_ids=("zero", "int64") if self.return_position_ids else None),
            )
            collated = collate(request)
        except (TypeError, ValueError) as error:
            raise _rename(error) from error
        flat, lengths = collated.data, collated.plan.response_lens
        starts = flat["offsets"][:-1]
        if not lengths.all():
            raise ValueError(
                f"features[{lengths.argmin()}]['input_ids'] has no tokens; pass at least one"
            )

        ids = flat["input_ids"]
        targets = _copy(ids) if labels is None else flat["labels"]
        targets[starts] = separator_id
        batch = {"input_ids": ids[None], "labels": targets[None]}
        if self.return_position_ids:
            positions = flat["position_ids"]
            positions += self.position_ids_start
            batch["position_ids"] = positions[None]
        if self.return_seq_idx:
            sequences = np.repeat(np.arange(len(rows), dtype=np.int32), lengths)[None]
            batch["seq_idx"] = like_of(sequences, ids)
        if self.return_flash_attn_kwargs:
            batch["cu_seq_lens_q"] = flat["cu_seqlens"]
            batch["cu_seq_lens_k"] = _copy(flat["cu_seqlens"])
            batch["max_length_q"] = batch["max_length_k"] = flat["max_seqlen"]
        return batch

    def _array_type(self, return_tensors: str | None) -> ArrayType:
        if return_tensors is None:
            return_tensors = self.return_tensors
        if return_tensors not in ("pt", "np"):
            raise ValueError(
                f"return_tensors is {return_tensors!r}; pass 'pt' or 'np' (no tokenizer)"
            )
        return "torch" if return_tensors == "pt" else "numpy"


def _rename(error: Exception) -> Exception:
    """Return an error about rows as one about features."""
    message = str(error).replace("sequences[", "input_ids[").replace("prompt and response ", "")
    message = re.sub(r"\b(input_ids|labels)\[(\d+)\]", r"features[\2]['\1']", message)
    return (ValueError if isinstance(error, ValueError) else TypeError)(message)


def _copy(array: Any) -> Any:
    return array.copy() if isinstance(array, np.ndarray) else array.clone()
