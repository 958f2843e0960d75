"""The collator of TRL's ``SFTTrainer``, over :class:`fastcollate.Collator`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fastcollate.collator import Collator
from fastcollate.common.arguments import suggests_names
from fastcollate.common.arrays import offsets_of
from fastcollate.plan.layout import Right
from fastcollate.plan.layouts import Packed
from fastcollate.rows.fields import Field

if TYPE_CHECKING:
    import torch

PADDED = {
    "input_ids": "input_ids",
    "labels": "labels",
    "at": "position_ids",
    "attention_mask": "attention_mask",
}
PADDING_FREE = {
    "input_ids": "input_ids",
    "labels": "labels",
    "position_ids": "position_ids",
    "cu_seqlens": ("cu_seq_lens_q", "cu_seq_lens_k"),
    "max_seqlen": ("max_length_q", "max_length_k"),
    "sequence_ids": "seq_idx",
}


@suggests_names
@dataclass(eq=False)
class DataCollatorForLanguageModeling:
    """Make batches of samples for supervised fine-tuning, as TRL's class of this name.

    Parameters
    ----------
    pad_token_id
        The id on padding.
    padding_free
        If True, join all samples into one row, and return the offsets of their sequences.
    return_position_ids
        If True, padded batches have ``position_ids``, too.
    pad_to_multiple_of
        Round the width up to a multiple of this. Padding of a joined row counts as sequences of
        one token.
    return_tensors
        ``"pt"``, which is all that there is.

    Notes
    -----
    Written against TRL 1.16.0. Padded, a packed sample is one row, and first tokens have labels;
    joined, they have none. Unlike there, labels that differ from the ids of their tokens are
    errors, and so are lists of different lengths.
    """

    pad_token_id: int
    padding_free: bool = False
    return_position_ids: bool = False
    pad_to_multiple_of: int | None = None
    return_tensors: str = "pt"

    def __call__(
        self, features: Sequence[Mapping[str, Any]], return_tensors: str | None = None
    ) -> dict[str, Any]:
        """Return a batch of B samples.

        Parameters
        ----------
        features
            Dicts of ``input_ids`` and, in all or none, ``labels`` and ``seq_lengths``. Other keys
            are ignored, masks included.
        return_tensors
            In place of the constructor's.

        Returns
        -------
        dict
            ``input_ids`` and ``labels``, int64 (B, W), and ``attention_mask``; with `padding_free`
            int64 (1, T) and the arguments of flash attention, in the keys and dtypes of TRL.

        Raises
        ------
        ValueError, TypeError
            As :class:`fastcollate.Collator`; or `return_tensors` is not ``"pt"``.
        """
        kind = self.return_tensors if return_tensors is None else return_tensors
        if kind != "pt":
            raise ValueError(f"return_tensors is {kind!r}; pass 'pt'")
        return self.torch_call(features)

    def torch_call(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return a batch of B samples, as a call does."""
        keys = ("input_ids", "labels", "seq_lengths")
        samples = [{key: one[key] for key in keys if key in one} for one in examples]
        multiple = self.pad_to_multiple_of or 1
        if self.padding_free:
            padding = -sum(len(sample["input_ids"]) for sample in samples) % multiple
            samples += [self._padding(samples[0]) for _ in range(padding)]
            joined = Collator(
                pad_token_id=self.pad_token_id,
                layout=Packed.single_row(),
                outputs=PADDING_FREE,
                dtypes={"sequence_ids": "int32"},
            )
            return joined(samples)
        fields, outputs = {}, dict(PADDED)
        if self.return_position_ids:
            lengths = [one.get("seq_lengths", [len(one["input_ids"])]) for one in samples]
            rows = self.get_position_ids_from_packed_seq_lengths(lengths)
            samples = [{**one, "at": row} for one, row in zip(samples, rows, strict=True)]
            fields["at"] = Field("at", "sequence", dtype="int64")
        else:
            del outputs["at"]
        padded = Collator(
            pad_token_id=self.pad_token_id,
            layout=Right(multiple_of=multiple),
            fields=fields,
            ignore=["seq_lengths"],
            outputs=outputs,
        )
        batch = padded(samples)
        for row, one in zip(batch["labels"], samples, strict=True):
            first = one.get("labels", one["input_ids"])[:1]
            row[: len(first)] = int(first[0]) if len(first) else 0
        return batch

    def _padding(self, like: Mapping[str, Any]) -> dict[str, Any]:
        """Return a sample of one padding token, with the keys of another sample."""
        given = {"input_ids": [self.pad_token_id], "labels": [-100], "seq_lengths": [1]}
        return {key: given[key] for key in like}

    @staticmethod
    def get_position_ids_from_packed_seq_lengths(
        batch_seq_lengths: Sequence[Sequence[int]],
    ) -> list[torch.Tensor]:
        """Return the positions of tokens in their sequences.

        Parameters
        ----------
        batch_seq_lengths
            The lengths of the sequences of each packed sample.

        Returns
        -------
        list[torch.Tensor]
            int64 (tokens,) for each sample.
        """
        import torch

        lengths = np.array([one for row in batch_seq_lengths for one in row], np.int64)
        starts = offsets_of(lengths)
        at = np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)
        ends = np.cumsum([sum(row) for row in batch_seq_lengths])[:-1]
        return list(map(torch.from_numpy, np.split(at, ends)))
