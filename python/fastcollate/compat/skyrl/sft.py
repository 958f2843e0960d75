"""Collators for supervised fine-tuning in place of ``skyrl.train``'s."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from operator import itemgetter, le
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fastcollate._fastcollate import (
    Bins,
    FieldSpec,
    LayoutSpec,
    OutputSpec,
    PackSpec,
    first_no_length,
    fix_lists,
)
from fastcollate.common.arguments import suggests_names, tally
from fastcollate.common.arrays import to_tensor
from fastcollate.compat.skyrl.installed import (
    packed_align_size,
    training_batch,
)
from fastcollate.ops.collating import Request, collate
from fastcollate.ops.writing import AS_LONGEST, pad_rows
from fastcollate.plan.layouts import Packed
from fastcollate.rows.lengths import Integers
from fastcollate.rows.tokens import Whole

logger = logging.getLogger(__name__)

Examples: TypeAlias = Sequence[Mapping[str, Any]]

LEFT_PADDED = OutputSpec(attention_mask="bool", bare=True)
PACKED = OutputSpec(bare=True)

LOSS_MASK = FieldSpec("loss_mask", "loss_mask", plain=True, weighs=True, any_length=True)

EXACT = 1 << 53
"""Integers below are exact as floats, as which fields take their fill."""


@suggests_names
def collate_sft_batch(examples: Examples, tokenizer: Any) -> Any:
    """Left-pad tokenized examples, as SkyRL's function of this name does.

    Parameters
    ----------
    examples
        ``B`` dicts, each of

        * ``input_ids`` and ``attention_mask``: as many numbers as the example has tokens;
        * ``num_actions``: the number of its last tokens that may be trained on;
        * ``loss_mask``: ``num_actions`` numbers, 1 for tokens that are trained on;
        * ``pixel_values`` and ``image_grid_thw``: arrays of any shape, in all examples or in none.
    tokenizer
        An object with ``pad_token_id``. It may be None if all examples are equally long.

    Returns
    -------
    TrainingInputBatch
        SkyRL's, or where that is not installed, a dict with the same keys and the attribute
        ``metadata``: ``sequences`` and ``attention_mask``, int64 (B, W); ``loss_mask``, int64
        (B, A), where A is the largest ``num_actions``, the masks being right-aligned;
        ``pixel_values`` and ``image_grid_thw``, a ``TensorList`` (or list) of B tensors or None.
        ``metadata["response_length"]`` is A.

    Raises
    ------
    ValueError
        No examples; images in some of them only; a list whose length differs from the example's
        tokens or ``num_actions``.
    KeyError
        An example without one of the keys.
    TypeError
        A value that is not a number; no padding token where one is needed.
    RuntimeError
        NaN or infinity.

    Notes
    -----
    Written against SkyRL 0.4.0: ``collate_sft_batch`` of ``skyrl.train.sft_trainer``. As there,
    floats are truncated to integers, so that a weight of 0.5 trains nothing. Unlike in SkyRL,
    arrays and tuples are accepted in place of lists; lists of wrong lengths are errors even if all
    of them have the same wrong length, or have one item, which SkyRL repeats; and NaN and infinity
    are RuntimeErrors, which are ValueError and OverflowError there.
    """
    if len(examples) == 0:
        raise ValueError("examples is empty; pass at least one")
    ids = [example["input_ids"] for example in examples]
    lengths = list(map(len, ids))
    actions = [example["num_actions"] for example in examples]
    with_images = _check_images(examples)
    attention_masks = [example["attention_mask"] for example in examples]
    loss_masks = [example["loss_mask"] for example in examples]
    found = list(map(len, attention_masks)), list(map(len, loss_masks))
    if found != (lengths, actions) or not all(map(le, actions, lengths)):
        for row, (length, count) in enumerate(zip(lengths, actions, strict=True)):
            if not 0 <= count <= length:
                raise ValueError(
                    f"examples[{row}]['num_actions'] is {count}, but the example has {length} "
                    f"tokens; pass a number from 0 to {length}"
                )
            _check_length(row, "attention_mask", attention_masks[row], length, "input_ids")
            _check_length(row, "loss_mask", loss_masks[row], count, "num_actions")

    pad_token_id = tokenizer.pad_token_id
    if pad_token_id is None and min(lengths) == max(lengths):
        pad_token_id = 0  # not used
    columns = {
        "sequences": _left_padded("input_ids", ids, pad_token_id),
        "attention_mask": _left_padded("attention_mask", attention_masks, 0),
        "loss_mask": _left_padded("loss_mask", loss_masks, 0),
        "pixel_values": _images("pixel_values", examples) if with_images else None,
        "image_grid_thw": _images("image_grid_thw", examples) if with_images else None,
    }
    return training_batch(columns, response_length=max(actions))


@suggests_names
@dataclass(eq=False)
class DefaultCollator:
    """Left-pad examples, and divide the loss mask by the number of tokens to train on.

    So the sum of all losses is their mean over the batch's tokens, for any split into ranks and
    micro-batches.

    Parameters
    ----------
    tokenizer
        An object with ``pad_token_id``.
    micro_train_batch_size_per_gpu
        Kept as an attribute; not used.

    Notes
    -----
    Written against SkyRL 0.4.0: ``DefaultCollator`` of ``skyrl.train.dataset.collators``.
    """

    tokenizer: Any
    micro_train_batch_size_per_gpu: int

    def __call__(self, examples: Examples, batch_size: int) -> Any:
        """Return the batch of :func:`collate_sft_batch`, with the loss mask divided, in float32.

        Parameters
        ----------
        examples
            As of :func:`collate_sft_batch`.
        batch_size
            Ignored, as in SkyRL.
        """
        batch = collate_sft_batch(examples, self.tokenizer)
        total = max(batch["loss_mask"].sum().item(), 1)
        batch["loss_mask"] = batch["loss_mask"].float().div_(total)
        return batch


@suggests_names
@dataclass(eq=False)
class PackedDataCollator:
    """Pack the examples of a training step into rows, several to a row.

    Parameters
    ----------
    tokenizer
        An object with ``pad_token_id``. Kept as an attribute that may be set.
    max_tokens_per_microbatch
        Most tokens of a row, before lengths are rounded up. With fp8, most positions of a row,
        lengths rounded up, at least one multiple.
    tp_size, cp_size, fp8_enabled, fp8_recipe
        Lengths are rounded up to a multiple of ``tp_size``, or of ``2 * tp_size * cp_size`` if
        ``cp_size`` is more than 1; with fp8 also of ``32 * tp_size * cp_size`` (``"mxfp8"``), else
        of ``16 * cp_size``, or ``128 * tp_size * cp_size`` if ``tp_size`` is more than 1.
    pp_size
        Kept as an attribute. All rows have the same width in any case.
    dp_size
        Number of ranks: the number of rows is a multiple of it.
    batch_size
        Examples of a training step. Batches of other sizes, as in evaluation, are not packed.
    micro_train_batch_size_per_gpu
        Kept for the :class:`DefaultCollator`.

    Raises
    ------
    ValueError
        `max_tokens_per_microbatch` is None.

    Notes
    -----
    Written against SkyRL 0.4.0: ``PackedDataCollator`` of ``skyrl.train.dataset.collators``. If
    SkyRL is installed, its own function gives the alignment, since its workers use it. Unlike in
    SkyRL, images are errors, as rows of several examples cannot have them (SkyRL, which does not
    pack batches with images, would leave them out), and so are floats as token ids.
    """

    tokenizer: Any
    max_tokens_per_microbatch: int
    tp_size: int
    pp_size: int
    cp_size: int
    dp_size: int
    batch_size: int
    micro_train_batch_size_per_gpu: int
    fp8_enabled: bool = False
    fp8_recipe: str | None = None

    def __post_init__(self) -> None:
        if self.max_tokens_per_microbatch is None:
            raise ValueError(
                "PackedDataCollator requires max_tokens_per_microbatch to be set, but "
                "max_tokens_per_microbatch is None; pass a number of tokens"
            )

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickle, which may be of SkyRL's own class, from a process without `patch()`."""
        if (inner := state.get("_default_collator")) is not None:
            size = inner.micro_train_batch_size_per_gpu
            state = {**state, "tokenizer": inner.tokenizer, "micro_train_batch_size_per_gpu": size}
        vars(self).update((one.name, state[one.name]) for one in fields(self))

    def __call__(self, examples: Examples, batch_size: int) -> Any:
        """Return the batch of a step, packed if it has the constructor's `batch_size`.

        Parameters
        ----------
        examples
            As in :func:`collate_sft_batch`, without images. Attention masks are ignored. Loss masks
            may hold floats.
        batch_size
            If it differs from the constructor's, a :class:`DefaultCollator` is used.

        Returns
        -------
        TrainingInputBatch
            SkyRL's, or where that is not installed, a dict with the same keys and the attribute
            ``metadata``: ``sequences`` and ``attention_mask``, int64 (N, W), the rows of each rank
            one after the other; ``loss_mask``, float32 (N, W - 1), where position ``p`` holds the
            loss mask of token ``p + 1``, divided by the sum of all, and 0 between examples;
            ``sub_seq_lengths``, a ``TensorList`` (or list) of N int64 tensors: the tokens of each
            example in the row. ``metadata["response_length"]`` is W - 1.

            Rows are bins of :func:`fastcollate.planning.pack` with first fit decreasing, dealt
            round robin to ranks. The first token of an example has no loss, even if it is trained.

        Raises
        ------
        ValueError
            An example that exceeds `max_tokens_per_microbatch`; fewer examples than rows; no token;
            images; a `fp8_recipe` ``"auto"``, which each machine resolves by itself.
        AssertionError
            A loss mask whose length is not ``num_actions``.
        KeyError
            An example without one of the keys.
        TypeError
            A value that is not a number; no padding token.
        OverflowError
            A loss mask holds infinity.
        """
        if batch_size != self.batch_size:
            collate_unpacked = DefaultCollator(self.tokenizer, self.micro_train_batch_size_per_gpu)
            return collate_unpacked(examples, batch_size)
        if _check_images(examples):
            raise ValueError(
                "examples have pixel_values, but packed rows cannot have images; leave images out, "
                "or pass another batch_size to pad without packing"
            )
        ids = list(map(itemgetter("input_ids"), examples))
        lengths = list(map(len, ids))
        loss_masks = _loss_masks(examples, lengths)
        size = packed_align_size(
            self.tp_size, self.cp_size, fp8_enabled=self.fp8_enabled, fp8_recipe=self.fp8_recipe
        )
        rows = self._rows(np.array(lengths, np.int64), size)
        layout = LayoutSpec.packed(None, 1, size, rows.bins, "next_token", "no_segment")
        try:
            request = Request(
                Whole(ids),
                self.tokenizer.pad_token_id,
                [(loss_masks, LOSS_MASK)],
                "numpy",
                layout,
                PACKED,
            )
            packed = collate(request)
        except (TypeError, ValueError) as error:
            raise _rename(error, "input_ids") from error
        logger.info(
            "sequence packing | packed %d samples into %d bins "
            "(~%d/DP rank, bin_capacity=%d tokens)",
            len(ids),
            len(rows.lengths),
            len(rows.lengths) // self.dp_size,
            rows.capacity,
        )
        return _as_packed_batch(packed.data, rows.lengths)

    def _rows(self, tokens: Integers, align_size: int) -> _PackedRows:
        """Pack the examples; the rows of each rank come one after the other."""
        capacity, places = self.max_tokens_per_microbatch, tokens
        if self.fp8_enabled:  # the limit is one of aligned lengths
            capacity, places = max(capacity, align_size), -(-tokens // align_size) * align_size
        if (row := first_no_length(places, capacity)) is not None:
            rounded = f" ({places[row]} rounded up)" if self.fp8_enabled else ""
            raise ValueError(
                f"examples[{row}] has {tokens[row]} tokens{rounded}, which exceeds "
                f"max_tokens_per_microbatch={self.max_tokens_per_microbatch}; pass a larger "
                "max_tokens_per_microbatch, or shorter examples"
            )
        try:
            packer = _packer(capacity, self.dp_size)
            bins, lengths, filled = packer.dealt_in_turn(tokens, places, align_size, self.dp_size)
        except ValueError as error:
            raise ValueError(f"with dp_size={self.dp_size}, {error}") from error
        if filled < len(lengths):
            raise ValueError(
                f"with dp_size={self.dp_size}, {tally(len(tokens), 'example')} would fill only "
                f"{filled} of {tally(len(lengths), 'bin')}, and no bin may be empty; pass an "
                "example for each"
            )
        return _PackedRows(bins, lengths, capacity)


class _PackedRows(NamedTuple):
    """The rows of packed examples."""

    bins: Bins
    lengths: list[Integers]
    """The tokens of each row's examples."""
    capacity: int


@functools.lru_cache(typed=True)
def _packer(capacity: int, dp_size: int) -> PackSpec:
    """Return the options of packing; checking them takes longer than packing a few examples."""
    packer = Packed(capacity, min_bins=dp_size, bins_multiple_of=dp_size).packer
    assert packer is not None
    return packer


def _loss_masks(examples: Examples, lengths: list[int]) -> list[Any]:
    """Return the loss masks of the examples' last tokens; checks their lengths."""
    actions = list(map(itemgetter("num_actions"), examples))
    masks = list(map(itemgetter("loss_mask"), examples))
    found = list(map(len, masks))
    pairs = zip(lengths, actions, strict=True)
    expected = [length if length <= count else count for length, count in pairs]  # min takes longer
    if found != expected:
        row = next(row for row, one in enumerate(found) if one != expected[row])
        raise AssertionError(
            f"examples[{row}] has {tally(lengths[row], 'token')} and num_actions={actions[row]}, "
            f"but a loss_mask of {found[row]}; pass a loss_mask of {expected[row]}"
        )
    return masks


def _as_packed_batch(packed: Mapping[str, Any], lengths: list[Integers]) -> Any:
    """Return a packed batch with SkyRL's keys, and the loss mask divided by its sum."""
    import torch

    width = packed["input_ids"].shape[1]
    if width == 0:
        raise ValueError("examples have no tokens; pass at least one token")
    loss_mask = packed["loss_mask"]
    loss_mask *= 1 / max(int(np.add.reduce(loss_mask, None)), 1)  # as SkyRL sums, by NumPy
    columns = {
        "sequences": torch.from_numpy(packed["input_ids"]),
        "attention_mask": torch.from_numpy(packed["attention_mask"]),
        "loss_mask": torch.from_numpy(loss_mask),
        "sub_seq_lengths": list(map(torch.from_numpy, lengths)),
    }
    return training_batch(columns, response_length=width - 1)


def _check_images(examples: Examples) -> bool:
    """Return True if examples have images; all or none must have them."""
    count = ["pixel_values" in example for example in examples].count(True)
    if 0 < count < len(examples):
        raise ValueError(
            f"Mixed text+image batches are not supported: {count} of {len(examples)} examples have "
            "pixel_values; pass all or none with images"
        )
    return count > 0


def _images(key: str, examples: Examples) -> list[Any]:
    import torch

    return [torch.as_tensor(fix_lists(example[key])) for example in examples]


def _check_length(row: int, key: str, values: Any, expected: int, source: str) -> None:
    if len(values) != expected:
        raise ValueError(
            f"examples[{row}][{key!r}] has {len(values)} items, but {source} is of {expected}; "
            "pass that many"
        )


def _left_padded(key: str, rows: list[Any], fill: Any) -> Any:
    """Return rows as one int64 tensor, right-aligned."""
    # As fields of one batch, ids and masks took longer.
    if type(fill) is int and (padded := _quickly_padded(rows, fill)) is not None:
        return padded
    try:
        try:
            return _collate_rows(rows, fill)
        except TypeError as error:
            return _collate_rows(_cut_off(rows, error), fill)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _rename(error, key) from error


def _collate_rows(rows: list[Any], fill: Any) -> Any:
    return collate(Request(Whole(rows), fill, outputs=LEFT_PADDED)).data["input_ids"]


def _quickly_padded(rows: list[Any], fill: int) -> Any:
    """Return rows of plain numbers as one int64 tensor, right-aligned; None for any others."""
    left = AS_LONGEST["left"]
    if abs(fill) >= EXACT:
        return None
    try:
        if len(rows[0]) == 0 or type(rows[0][0]) is not float:
            padded = pad_rows(rows, "int64", left, fill, "torch")
            return padded if padded.ndim == 2 else None
    except (TypeError, ValueError, LookupError):
        pass  # they may hold floats
    try:
        floats = pad_rows(rows, "float64", left, fill, "numpy")
    except (TypeError, ValueError):
        return None
    # One call finds nearly all floats exact; the others are left to the caller, as is NaN.
    is_exact = floats.ndim == 2 and np.vdot(floats, floats) < EXACT
    return to_tensor(floats.astype(np.int64)) if is_exact else None


def _cut_off(rows: list[Any], error: TypeError) -> list[Any]:
    """Return rows with their numbers truncated to integers, or raise the error."""
    import torch

    cut = []
    for row, values in enumerate(rows):
        try:
            cut.append(torch.as_tensor(fix_lists(values), dtype=torch.int64))
        except TypeError:
            raise error from None
        except (ValueError, RuntimeError) as refusal:  # beyond int64, or NaN
            raise type(refusal)(f"sequences[{row}] cannot be read: {refusal}") from refusal
    return cut


def _rename(error: Exception, key: str) -> Exception:
    """Return an error about sequences as one about a key of the examples."""
    message = re.sub(r"\bloss_mask(\[\d+\])", r"examples\1['loss_mask']", str(error))
    message = re.sub(r"\bsequences(\[\d+\])", rf"examples\1[{key!r}]", message)
    kinds = (kind for kind in (TypeError, ValueError, RuntimeError) if isinstance(error, kind))
    return next(kinds)(message.replace("sequences", key))
