"""A callable that makes batches of samples, for use in data loaders."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    TypeVar,
    cast,
    overload,
)

from fastcollate.batch import Batch
from fastcollate.build import build_batch, build_rows, weight_of
from fastcollate.common.arguments import (
    id_list,
    spells_out,
    suggests_names,
    warn_user,
    wrong_name,
)
from fastcollate.memory.pools import BufferPool
from fastcollate.ops.masks import (
    FLASH_KEYS,
    MASK_KEYS,
    Kernel,
    ModelCall,
    check_kernel,
    needs_kernel,
)
from fastcollate.ops.model_inputs import check_own_positions, left_out_message
from fastcollate.options import Options, RowOptions
from fastcollate.plan.dtypes import Outputs
from fastcollate.plan.layout import Jagged, Layout, Right
from fastcollate.plan.layouts import Packed, Tree
from fastcollate.rows.fields import LABELS, AnyField, check_mask_is_used
from fastcollate.rows.padded_blocks import padding_message
from fastcollate.rows.per_row import GRIDS
from fastcollate.rows.samples import check_columns, check_sources, columns_of
from fastcollate.rows.truncation import Limit

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from typing_extensions import Unpack

    from fastcollate.ops.batch_state import BatchState
    from fastcollate.plan.dtypes import ArrayType, Labels
    from fastcollate.rows.truncation import Keep

    class CollatorOptions(RowOptions, total=False):
        """Options of collators that do not depend on their outputs."""

        fields: Mapping[str, AnyField] | None
        columns: Mapping[str, str] | None
        ignore: Collection[str] | Literal["rest"]
        kernel: Kernel | None
        model: Any
        max_length: int | None
        keep: Keep


_OFFSETS = {
    f"{name}{kind}" for name in ("cu_seqlens", "row_cu_seqlens") for kind in ("", "_padded")
}
"""Outputs that say where rows begin."""

Made = TypeVar("Made", covariant=True)
"""Type of a collator's result: a :class:`Batch`, or a dict if it has ``outputs``."""


@suggests_names
class Collator(Generic[Made]):
    """Makes a batch of samples: a ``collate_fn`` for torch, Hugging Face and Ray Data.

    A sample is a row of the batch, as a mapping. All samples of a call have the same keys:

    ``prompt`` and ``response``
        Token ids, in any form that a row of :func:`build_batch` may have.
    ``input_ids``
        A whole sequence, for supervised fine-tuning. All of it trains, unless a sample also has

        - ``prompt_len``, the number of prompt tokens
        - ``labels``, the id of a token, or -100 if it does not train, as in Hugging Face
        - ``completion_mask`` or ``assistant_masks``, 0 or 1 per token, as in TRL's ``SFTTrainer``:
          of both, tokens train where both are 1; beside ``labels``, they are ignored

        All tokens before the first that trains are the prompt, and ``loss_mask`` marks the trained
        tokens of the rest. An ``attention_mask`` is accepted if it is 1 throughout.
    ``seq_lengths`` with ``input_ids``
        Number of tokens of each sequence of a packed sample, as in ``pack_dataset`` of TRL and of
        :mod:`fastcollate.compat.trl`. Each sequence is a row of the batch; besides ``labels`` or
        masks, samples may have fields of one value per token (``align="sequence"``). With
        ``ignore=["seq_lengths"]`` a sample is one row, whose sequences attend to each other.
    ``prompt_ids``, ``chosen_ids`` and ``rejected_ids``
        A preference pair, as in TRL's ``DPOTrainer``, which makes two rows of the batch: of ``n``
        pairs, row ``i`` is the chosen response of pair ``i`` and row ``n + i`` the rejected one,
        both with its ``uid``, or ``i`` without one. The batch has ``completion_mask``, 1 on
        responses, along ``input_ids``. ``ref_chosen_logps`` and ``ref_rejected_logps``, one number
        each, become ``ref_logps`` of all rows; under their own names `outputs` has either half.
    ``rewards``, ``loss_mask``, ``logprobs``, ``advantages``
        One number per response token; for rewards and advantages also one per row. Not for pairs.
    ``uid``, ``trajectory_id``, ``is_last_step``
        Kept per row. Pairs take ``uid`` only.

    Besides a list of samples, a call takes columns: a mapping from these keys to rows (the NumPy
    batches of Ray Data), a table of Arrow, Polars or pandas, or a ``Dataset`` of ``datasets``,
    whose columns are read as Arrow in the order of its rows.

    A collator has no state: it may be called from many threads, and forked or pickled to worker
    processes unless it has its own pool.

    Parameters
    ----------
    pad_token_id
        As :func:`build_batch`.
    fields
        More fields by the keys of their outputs, each with the samples' key in place of the rows:
        ``{"values": fc.Field("critic"), "images": fc.PerRow("pixel_values", concat=True)}``. For
        pairs, a tuple of the chosen row's and the rejected row's key, or one key for both:
        ``{"margins": fc.PerRow(("chosen_margin", "rejected_margin"))}``.
    columns
        Other names that the samples have for the keys above, such as
        ``{"question_ids": "prompt", "completion_ids": "response"}``. Arguments of
        :func:`build_batch` are accepted, too: ``"prompts"``, ``"responses"``, ``"sequences"``,
        ``"prompt_lens"``, ``"uids"`` and ``"trajectory_ids"``.
    ignore
        Keys of samples to ignore, or ``"rest"`` for all unknown ones. Other unknown keys are an
        error, so that misspelled keys are found.
    outputs
        None returns a :class:`Batch` whose keys are the arguments of a model
        (:meth:`Batch.model_inputs`); all other outputs are its attributes.

        Otherwise, the keys of the outputs to return as a plain dict, in this order. A mapping
        renames them, each to one name or several:
        ``{"cu_seqlens": ("cu_seq_lens_q", "cu_seq_lens_k")}``. Pairs may have either half of an
        output with one value per row: ``"chosen_margins"`` and ``"rejected_margins"``.

        With labels and ``input_ids``, name the outputs by which a model separates rows, too:

        - right padding: none
        - left padding: ``attention_mask`` and ``position_ids``
        - joined rows: ``position_ids``, and a mask, ``use_cache`` or ``cu_seqlens`` (if widths are
          rounded, ``cu_seqlens_padded``)

        With `model`, this model has to find them.
    kernel, model
        As :meth:`Batch.model_inputs`: all layouts but padded ones need one of them, unless
        `outputs` has no mask. Only the model's config and dtype are kept.
    **options
        Options of :class:`BatchBuilder`: those of :func:`build_batch` that do not depend on the
        rows. Samples give ``labels``, except in trees, and except pairs and rollouts (samples with
        ``rewards``, ``logprobs`` or ``advantages``), which do if `outputs` names them.

    Raises
    ------
    ValueError, TypeError
        As :func:`build_batch`, for invalid options. Calls also raise them, naming the sample or the
        row and position, for samples with different keys, for pairs that `max_length` would leave
        without a response, for values of response tokens with `max_length`, and for weights in
        ``loss_mask`` if `outputs` has labels without it.

    Warns
    -----
    UserWarning
        Calls for a :class:`Batch` with labels warn of weights in ``loss_mask``, which labels cannot
        hold. Calls also warn of images that are not joined or not counted as such, as
        :meth:`Batch.model_inputs` does, and of rows that look padded.

    Notes
    -----
    Hugging Face's ``Trainer`` removes every key that is not a parameter of the model's ``forward``:
    pass ``TrainingArguments(remove_unused_columns=False)``.

    Examples
    --------
    >>> collate = fc.Collator(pad_token_id=0, layout="right", array_type="numpy")
    >>> collate([
    ...     {"input_ids": [5, 6, 7], "labels": [-100, 6, 7]},
    ...     {"input_ids": [8, 9], "labels": [-100, 9]},
    ... ]).labels
    array([[-100,    6,    7],
           [-100,    9, -100]])
    """

    @overload
    def __init__(
        self: Collator[Batch[torch.Tensor]],
        *,
        pad_token_id: int,
        outputs: None = None,
        array_type: Literal["torch"] = "torch",
        **options: Unpack[CollatorOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: Collator[Batch[NDArray[Any]]],
        *,
        pad_token_id: int,
        outputs: None = None,
        array_type: Literal["numpy"],
        **options: Unpack[CollatorOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: Collator[dict[str, Any]],
        *,
        pad_token_id: int,
        outputs: Sequence[str] | Mapping[str, str | Sequence[str]],
        array_type: ArrayType = "torch",
        **options: Unpack[CollatorOptions],
    ) -> None: ...
    @spells_out(RowOptions.__optional_keys__, build_batch)
    def __init__(
        self,
        *,
        pad_token_id: int,
        fields: Mapping[str, AnyField] | None = None,
        columns: Mapping[str, str] | None = None,
        ignore: Collection[str] | Literal["rest"] = (),
        outputs: Sequence[str] | Mapping[str, str | Sequence[str]] | None = None,
        kernel: Kernel | None = None,
        model: Any = None,
        max_length: int | None = None,
        keep: Keep = "start",
        array_type: ArrayType = "torch",
        **options: Unpack[RowOptions],
    ) -> None:
        if (message := wrong_name(Collator, options)) is not None:
            raise TypeError(f"{message} (columns of rows come with the samples)")
        self._options = Options.check_early(
            pad_token_id=pad_token_id, array_type=array_type, **options
        )
        layout = self._options.layout_of(None)
        self._is_tree = isinstance(layout, Tree)
        check_kernel(kernel, array_type == "numpy", self._is_tree)
        self._call = ModelCall.of(kernel, model)
        self._limit = Limit.check(max_length, keep)
        self._fields = check_sources(fields or {})
        self._ignore = None if ignore == "rest" else frozenset(_names("ignore", ignore))
        columns = {} if columns is None else columns
        self._columns = check_columns(columns, self._fields, self._ignore)
        self._keys = None if outputs is None else _name(outputs)
        self._check_masks(layout)
        # With labels, which samples may have.
        self._with_labels = self._options
        if not self._is_tree and options.get("labels") is None:
            of_outputs = options.get("dtypes", "default"), options.get("position_ids")
            labels: Labels = "shifted" if "shift_labels" in (self._keys or ()) else "aligned"
            labelled = Outputs.check(*of_outputs, labels)
            self._with_labels = self._options._replace(outputs=labelled)
        kind = {} if array_type == "torch" else {"array_type": array_type}
        self._given = {**kind, **options}

    if not TYPE_CHECKING:

        def __setattr__(self, name, value):
            if not name.startswith("_"):
                raise AttributeError(f"{name} of a Collator cannot be changed; make another one")
            object.__setattr__(self, name, value)

    def __call__(self, samples: Any) -> Made:
        """Make a batch of samples.

        Parameters
        ----------
        samples
            A sequence of mappings, or columns as a mapping, table or ``Dataset``.
        """
        arguments, has_labels, ids, truncated = columns_of(
            samples, self._fields, self._ignore, self._columns, self._limit
        )
        check_mask_is_used(self._fields, arguments.get("loss_mask"))
        has_labels = has_labels or not {*LABELS}.isdisjoint(self._keys or ())
        options = self._with_labels if has_labels else self._options
        made: Any = build_rows(options, **arguments, warns_of_weights=self._keys is None)
        for name, rows in ids.items():
            if (message := padding_message(name, rows, options.pad_token_id)) is not None:
                warn_user(message)
        made = made._replace(call=self._call, truncated=truncated)
        if "loss_mask" in arguments and made.spec.outputs.labels is not None:
            self._check_weights(made._state)
        check_own_positions(made._state)
        if (message := left_out_message(made._state, self._keys)) is not None:
            warn_user(message)
        if self._keys is not None:
            outputs = self._keys.items()
            are_pairs = "chosen_ids" in ids
            made = {
                name: _output(made, key, self._keys, are_pairs=are_pairs)
                for key, names in outputs
                for name in names
            }
        return cast("Made", made)

    def for_ray_data(self) -> Any:
        """Return a ``collate_fn`` for Ray Data's ``iter_torch_batches`` that takes Arrow tables.

        A collator passed directly gets each batch as NumPy arrays, and Ray (from 2.47 on) warns. In
        both cases Ray Data converts the batch to a plain dict, without plan and uids; to keep them,
        call the collator with the tables of ``iter_batches(batch_format="pyarrow")``.

        Returns
        -------
        ray.data.collate_fn.ArrowBatchCollateFn
            As picklable as the collator.

        Raises
        ------
        ImportError
            If Ray is not installed, or pandas, which Ray Data needs.
        """
        from fastcollate.ray.data_collator import ArrowCollator

        return ArrowCollator(self)

    def _check_masks(self, layout: Layout) -> None:
        """Check that a model which is called with the outputs knows where rows begin."""
        keys = MASK_KEYS if self._keys is None else self._keys.keys()
        is_joined = isinstance(layout, (Jagged, Packed, Tree))
        has_mask = is_joined and not MASK_KEYS.isdisjoint(keys)
        if has_mask and not self._call.knows_masks:
            raise needs_kernel()
        if "input_ids" not in keys:
            return
        if self._is_tree and not has_mask and "subtree_end" not in keys:
            raise ValueError(
                f"outputs are {list(keys)}, with the tokens of trees, but without a mask; add "
                "'subtree_end', or 'attention_mask' with kernel='dense' or 'block', or with "
                f"kernel='paths' {sorted(key for key in MASK_KEYS if key.startswith('tree_'))}"
            )
        if not self._is_tree and {*LABELS}.isdisjoint(keys):
            return
        needed, why = self._needed(layout, keys, has_mask)
        if missing := [key for key in needed if key not in keys]:
            raise ValueError(
                f"outputs are {list(keys)}, which do not tell a model where the rows of "
                f"layout={layout.name!r} begin; add {' and '.join(map(repr, missing))}{why}"
            )

    def _needed(
        self, layout: Layout, keys: Collection[str], has_mask: bool
    ) -> tuple[Collection[str], str]:
        """Return the keys by which a model knows where rows begin, and why it needs them."""
        are_own = self._options.outputs.positions == "omitted"
        positions = ["position_ids"] if not are_own and {*GRIDS}.isdisjoint(self._fields) else []
        apart = positions, " (most models would count across the rows of an output row)"
        if self._is_tree or has_mask:
            return apart
        is_joined = isinstance(layout, (Jagged, Packed))
        given = sorted(_OFFSETS.intersection(keys))
        kernel: Kernel | None = "flash" if given else None
        if self._call.config is not None:
            has_positions = is_joined or "position_ids" in keys
            of_model = self._call._replace(kernel=None)
            kernel = of_model.kernel_for(layout.name, False, has_positions)
        self._call.check_labels()
        if isinstance(layout, Right):
            return [], ""
        is_one_row = isinstance(layout, Jagged) or getattr(layout, "plan", None) == "single_row"
        if isinstance(layout, Packed):
            _check_offsets(layout, given, is_one_row)
        if kernel == "flash" and given:
            return apart
        if kernel == "flash" and not is_one_row:
            return FLASH_KEYS, " (flash attention finds the rows of a single output row only)"
        if kernel == "dense":
            return ["attention_mask"], " (the model ignores the positions of rows)"
        if is_joined:
            why = " (a model with a cache ignores the positions of rows)"
            return ["position_ids", "use_cache"], why
        why = " (most models would count the padding)" if positions else ""
        return ["attention_mask", *positions], why

    def _check_weights(self, state: BatchState) -> None:
        """Refuse weights beside labels alone, which have none."""
        keys = self._keys or ()
        if "loss_mask" in keys or {*LABELS}.isdisjoint(keys):
            return
        if (weight := weight_of(state)) is not None:
            raise ValueError(
                f"loss_mask has weights, such as {weight:g}, but outputs are {list(keys)}, and "
                "labels hold none; add 'loss_mask' to outputs, or pass a loss_mask of 0 and 1"
            )

    def __getstate__(self) -> dict[str, Any]:
        if isinstance(self._options.pool, BufferPool):
            raise TypeError(
                "a Collator with a BufferPool cannot be pickled: memory belongs to a process; "
                "pass pool='default'"
            )
        return self.__dict__

    def __repr__(self) -> str:
        state = {
            "pad_token_id": self._options.pad_token_id,
            "fields": self._fields or None,
            "columns": self._columns or None,
            "ignore": "rest" if self._ignore is None else sorted(self._ignore) or None,
            "outputs": self._keys,
            "kernel": self._call.kernel,
            "model": getattr(self._call.config, "model_type", None),
            **({} if self._limit is None else self._limit._asdict()),
            **self._given,
        }
        given = (f"{name}={value!r}" for name, value in state.items() if value is not None)
        return f"Collator({', '.join(given)})"


def _check_offsets(layout: Packed, given: list[str], is_one_row: bool) -> None:
    """Check that outputs with offsets have those of the positions at which rows begin."""
    multiple = max(layout.multiple_of, getattr(layout.plan, "multiple_of", 1))
    if given and multiple > 1 and not any(key.endswith("_padded") for key in given):
        raise ValueError(
            f"outputs has {given[0]!r}, which counts tokens, but rows of layout={layout.name!r} "
            f"with multiple_of={multiple} begin at other positions; pass '{given[0]}_padded', or "
            "both if the kernel takes both"
        )
    of_bins = [key for key in given if not key.startswith("row_")]
    if of_bins and layout.padding_as == "no_segment" and not is_one_row:
        raise ValueError(
            f"outputs has {of_bins[0]!r}, which leaves out the padding of each bin with "
            "padding_as='no_segment', so that rows of later bins begin at other positions; pass "
            f"'row_{of_bins[0]}', or another padding_as"
        )


def _names(argument: str, names: Any) -> list[str]:
    """Return a collection of keys as a list."""
    if isinstance(names, str):
        raise TypeError(f"{argument} is {names!r}; pass a list of keys: {argument}=[{names!r}]")
    if isinstance(names, (set, frozenset)):
        names = sorted(names)
    keys = id_list(argument, names)
    for key in keys:
        if not isinstance(key, str):
            raise TypeError(f"{argument} has {key!r}; pass strings as keys")
    return keys


def _name(outputs: Any) -> dict[str, list[str]]:
    """Return the requested outputs, each with its names in the dict."""
    if not isinstance(outputs, Mapping):
        keys = _names("outputs", outputs)
        outputs = dict(zip(keys, keys, strict=True))
        if len(outputs) < len(keys):
            twice = next(key for at, key in enumerate(keys) if key in keys[:at])
            raise ValueError(f"outputs has {twice!r} twice; pass each key once")
    named: dict[str, list[str]] = {}
    owners: dict[str, str] = {}
    for key in _names("outputs", list(outputs)):
        names = outputs[key]
        named[key] = [names] if isinstance(names, str) else _names(f"outputs[{key!r}]", names)
        for name in named[key]:
            if name in owners:
                raise ValueError(
                    f"outputs[{key!r}] has the name {name!r}, which outputs[{owners[name]!r}] has "
                    "too; pass another name for one of them"
                )
            owners[name] = key
    return named


def _output(batch: Batch[Any], key: str, keys: Collection[str], *, are_pairs: bool) -> Any:
    """Return an output by its key; a key that the batch lacks is an error."""
    if f"{key}_offsets" in keys and key in batch._data:  # by rows, as the offsets
        return batch._data[key]
    try:
        return batch[key]
    except KeyError as error:
        half = _half(batch, key) if are_pairs else None
        if half is not None:
            return half
        call = batch._state.call
        has_masks = not batch.plan.is_tree or (call is not None and call.knows_masks)
        inputs = batch if has_masks else batch._inputs_of("input_ids")
        known = sorted({*inputs, *batch._data})
        raise ValueError(
            f"outputs has {key!r}, which is not an output of the batch; pass some of {known} (a "
            "mapping is from these to their names in the dict)"
        ) from error


def _half(batch: Batch[Any], key: str) -> Any:
    """Return the chosen or the rejected rows of an output with one value per row, if named so."""
    words, pairs = key.split("_"), batch.plan.num_rows // 2
    for word, rows in ("chosen", slice(pairs)), ("rejected", slice(pairs, None)):
        whole = "_".join(one for one in words if one != word)
        if word in words and whole in batch.spec.table and batch.spec.table[whole].align == "row":
            return batch[whole][rows]
    return None
