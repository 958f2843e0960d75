from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, Literal, final

from numpy import bool_, float64, int32, int64, uint8, uint64
from numpy.typing import NDArray

from fastcollate.plan.costs import Weights
from fastcollate.rows.tokens import Tokens

__all__ = [
    "BODY_ADVICE",
    "COSTS",
    "IGNORE_INDEX",
    "LAYOUTS",
    "MASK_DRIFTS",
    "MERGE_REWARDS",
    "PADDED_RUN",
    "PAD_ROWS",
    "POLICIES",
    "SYNTHETIC_LENS",
    "Bins",
    "BufferPool",
    "CallNodes",
    "CallSchema",
    "CostSpec",
    "FieldSpec",
    "GrowingTree",
    "LayoutSpec",
    "Merge",
    "MergeSpec",
    "Output",
    "OutputSpec",
    "OutputTable",
    "Owner",
    "PackSpec",
    "Plan",
    "PrefixTree",
    "RowSpans",
    "RowStore",
    "ShardSpec",
    "SomeTokens",
    "StoredRow",
    "__version__",
    "after_fork",
    "are_computed",
    "arrow_chunks",
    "arrow_lists",
    "arrow_nested_chunks",
    "before_fork",
    "check_range",
    "collate",
    "compact_ids",
    "counts_in",
    "deal_bins",
    "first_no_length",
    "fix_lists",
    "forked",
    "group_offsets",
    "hash_prompts",
    "have_padded_edges",
    "lists_of",
    "make_calls",
    "mask_offsets",
    "mask_spans",
    "merge_turns",
    "partition",
    "prompt_spans",
    "read_calls",
    "share_prefixes",
    "shared_defect",
    "split_micro_batches",
    "split_step",
    "step_defect",
    "stored_columns",
    "token_ids",
    "write_rows",
]

__version__: str
BODY_ADVICE: str
IGNORE_INDEX: int
COSTS: tuple[str, ...]
LAYOUTS: tuple[str, ...]
MASK_DRIFTS: tuple[str, ...]
MERGE_REWARDS: tuple[str, ...]
PADDED_RUN: int
PAD_ROWS: tuple[str, ...]
POLICIES: tuple[str, ...]
SYNTHETIC_LENS: tuple[int, int]

@final
class FieldSpec:
    """Specification for reading and writing a field."""

    def __new__(
        cls,
        key: str,
        name: str,
        align: str = "response",
        plain: bool = False,
        spread: str | None = None,
        weighs: bool = False,
        any_length: bool = False,
        fill: float = ...,
        gap_fill: float = ...,
        num_experts: int | None = None,
        dtype: str | None = ...,
        default: float | None = None,
        layers: tuple[int, int] | None = None,
        own_token: str = "keep",
    ) -> FieldSpec: ...
    @property
    def key(self) -> str: ...
    @property
    def align(self) -> str: ...
    @staticmethod
    def row_lens(
        align: str, prompt_lens: NDArray[int64], response_lens: NDArray[int64]
    ) -> NDArray[int64] | None: ...
    @property
    def weighs(self) -> bool: ...
    @property
    def is_written(self) -> bool: ...
    @property
    def dtype(self) -> str | None: ...
    def number(self, number: Any, index: int) -> float | None: ...
    def nested_row(self, row: Any, index: int) -> tuple[Any, Any]: ...
    def with_align(self, align: str, default: float | None) -> FieldSpec: ...
    def with_dtype(self, dtype: str | None) -> FieldSpec: ...

@final
class LayoutSpec:
    """A layout, with the widths that do not depend on the data."""

    def __new__(
        cls,
        name: str,
        pad_to: int | None,
        pad_prompt_to: int | None,
        pad_response_to: int | None,
        multiple_of: int,
    ) -> LayoutSpec: ...
    @staticmethod
    def packed(
        pad_to: int | None,
        pad_to_multiple_of: int,
        multiple_of: int,
        bins: PackSpec | Bins | Sequence[Sequence[int]] | None,
        shift: Any,
        padding_as: Any,
    ) -> LayoutSpec: ...
    @property
    def name(self) -> str: ...
    @staticmethod
    def of_tree(
        pad_to: int | None,
        pad_to_multiple_of: int,
        multiple_of: int,
        plan: str | PrefixTree | Bins,
        pack: PackSpec | None,
        same_inputs: NDArray[int64] | None,
        limits: tuple[bool, int, CostSpec | None],
    ) -> LayoutSpec: ...
    @property
    def forks_early(self) -> bool: ...
    @property
    def is_padded(self) -> bool: ...
    @property
    def has_bins(self) -> bool: ...
    @property
    def packer(self) -> PackSpec | None: ...
    @property
    def shares_by_uid(self) -> bool: ...

@final
class OutputSpec:
    """The outputs other than fields: their dtypes, and the optional ones."""

    def __new__(
        cls,
        input_ids: str = "int64",
        attention_mask: str = "int64",
        response_mask: str = "int64",
        position_ids: tuple[str, str] | None = None,
        labels: tuple[bool, str] | None = None,
        sequence_ids: str = "int64",
        bare: bool = False,
        loss_mask: str | None = None,
    ) -> OutputSpec: ...
    @property
    def input_ids(self) -> str: ...
    @property
    def position_ids(self) -> tuple[str, str]: ...
    @property
    def labels(self) -> tuple[bool, str] | None: ...
    @property
    def loss_mask(self) -> str | None: ...

@final
class CostSpec:
    """Costs of tokens, pairs, sequences and bins, checked."""

    def __new__(
        cls,
        per_token: float,
        per_pair: float,
        per_sequence: float,
        per_bin: float,
        per_segment: float,
        per_key: float,
        window: tuple[int, float] | None,
        chunk: tuple[int, float] | None,
    ) -> CostSpec: ...
    def pairs(self, lengths: NDArray[int64]) -> NDArray[float64]: ...
    def of(self, lengths: NDArray[int64]) -> NDArray[float64]: ...

@final
class PackSpec:
    """Packing options, checked."""

    def __new__(
        cls,
        algorithm: Any,
        oversize: Any | None,
        capacity: int | None,
        max_sequences: int | None,
        multiple_of: int,
        max_cost: float,
        cost: str | CostSpec | Callable[[NDArray[int64]], NDArray[float64]],
        min_bins: int,
        bins_multiple_of: int,
        grow_by: Any,
        num_bins: int | None,
        allow_fewer_bins: bool,
    ) -> PackSpec: ...
    @property
    def oversize(self) -> str: ...
    def pack_for_ranks(
        self,
        lengths: NDArray[int64],
        groups: NDArray[int64] | None,
        limited: NDArray[float64] | None,
        first_row: int,
        ranks: tuple[int, bool, NDArray[float64] | None, float],
    ) -> tuple[NDArray[int64], NDArray[int64], int]: ...
    def dealt_in_turn(
        self, lengths: NDArray[int64], places: NDArray[int64], multiple_of: int, ranks: int
    ) -> tuple[Bins, list[NDArray[int64]], int]: ...
    def pack(
        self,
        lengths: NDArray[int64],
        groups: NDArray[int64] | None,
        costs: NDArray[float64] | None,
    ) -> list[NDArray[int64]]: ...
    def grow(
        self, bins: Bins, costs: NDArray[float64] | None
    ) -> tuple[NDArray[int64], NDArray[int64]]: ...

@final
class GrowingTree:
    """Rows in a prefix tree, in which each token has one successor."""

    def __new__(cls) -> GrowingTree: ...
    def shared(self, row: NDArray[int64]) -> int: ...
    def add(self, row: NDArray[int64]) -> int: ...
    def rows(self) -> tuple[NDArray[int64], NDArray[int64]]: ...

@final
class PrefixTree:
    """Rows in lexical order, each with the length of the prefix shared with the one before."""

    def __new__(
        cls, order: NDArray[int64], shared: NDArray[int64], lengths: NDArray[int64]
    ) -> PrefixTree: ...
    @property
    def attention_pairs(self) -> int: ...
    def nodes(self) -> list[NDArray[int64]]: ...
    def select(self, rows: NDArray[int64]) -> tuple[NDArray[int64], NDArray[int64]]: ...
    def parted(self, offsets: NDArray[int64]) -> list[PrefixTree]: ...
    def within(self, layout: LayoutSpec) -> NDArray[int64]: ...
    def pack(self, spec: PackSpec) -> list[NDArray[int64]]: ...
    def pack_for_ranks(
        self,
        spec: PackSpec,
        shared: NDArray[int64],
        shared_costs: NDArray[float64],
        bin_cost: float,
        ranks: tuple[int, bool, NDArray[float64] | None, float],
    ) -> tuple[NDArray[int64], NDArray[int64], int, NDArray[int64]]: ...

@final
class Bins:
    """Bins of sequences, or of rows that share tokens: their pieces, checked."""

    def __new__(
        cls,
        offsets: NDArray[int64],
        indices: NDArray[int64],
        starts: NDArray[int64],
        lengths: NDArray[int64],
        sequences: int,
        multiple_of: int,
        shares: bool,
    ) -> Bins: ...

@final
class Output:
    """An output of a batch without its values.

    Its alignment, the fill of positions without a value, the dtype, and the field's index.
    """

    def __new__(
        cls,
        key: str,
        align: str,
        fill: float | Literal["indices", "repeat_last"] | None,
        dtype: str | None,
        field: int | None,
    ) -> Output: ...
    @property
    def key(self) -> str: ...
    @property
    def align(self) -> str: ...
    @property
    def fill(self) -> float | Literal["indices", "repeat_last"] | None: ...
    @property
    def dtype(self) -> str | None: ...
    @property
    def field(self) -> int | None: ...

@final
class OutputTable:
    """The outputs of a batch in order, without their values."""

    def __new__(cls, outputs: Sequence[Output]) -> OutputTable: ...
    @staticmethod
    def of_layout(
        layout: str,
        rounds_up: bool,
        pad_token_id: int,
        fields: Sequence[FieldSpec],
        spec: OutputSpec,
    ) -> OutputTable: ...
    def __getitem__(self, key: str, /) -> Output: ...
    def __contains__(self, key: str, /) -> bool: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Output]: ...

@final
class RowSpans:
    """Rows that are spans of arrays, adjacent or not."""

    def __new__(cls, arrays: Sequence[tuple[Any, NDArray[int64], NDArray[int64]]]) -> RowSpans: ...
    @property
    def lengths(self) -> NDArray[int64]: ...
    @property
    def are_missing(self) -> bool: ...

@final
class SomeTokens:
    """Rows of a field, and the tokens that they have values for."""

    @staticmethod
    def beginning(rows: Any, name: str, starts: NDArray[int64]) -> SomeTokens:
        """Rows whose values belong to the tokens from these on."""

    @staticmethod
    def within(rows: Any, runs: NDArray[int64]) -> SomeTokens:
        """Rows with a value for every token, of which those in runs are used.

        A run is a row, its first token, and one past its last: int64 (runs, 3), in order.
        """

@final
class RowStore:
    """Memory for the values of rows, in chunks that never move."""

    def __new__(cls) -> RowStore: ...
    def write(
        self,
        index: int,
        tokens: Tokens,
        columns: Sequence[tuple[FieldSpec | None, Any]],
        kind: object,
    ) -> StoredRow: ...
    def open(self, row: StoredRow) -> None: ...
    def take_over(self, other: RowStore) -> None: ...

@final
class StoredRow:
    """The arrays of one row, in a chunk that stays reserved until the store opens it."""

    @property
    def num_tokens(self) -> int: ...

@final
class Owner:
    """Keeps the memory of a batch's outputs."""

    def bytes(self) -> NDArray[uint8]: ...

@final
class BufferPool:
    """Recycles the memory of batches."""

    def __new__(cls, max_bytes: int) -> BufferPool: ...
    @property
    def max_bytes(self) -> int: ...
    @property
    def idle_bytes(self) -> int: ...
    @property
    def live_bytes(self) -> int: ...
    def clear(self) -> None: ...

@final
class MergeSpec:
    """Merging options: a policy and its parameters."""

    def __new__(
        cls,
        policy: str,
        mask_drift: str,
        max_drift_tokens: int,
        fork_threshold: int | None,
        merge_rewards: str,
    ) -> MergeSpec: ...

@final
class Merge:
    """The turns of each merged row. Immutable; holds no tokens but those around breaks."""

    @property
    def num_rows(self) -> int: ...
    @property
    def ends(self) -> NDArray[int64]: ...
    @property
    def trajectories(self) -> NDArray[int64]: ...
    @property
    def sources(self) -> NDArray[int64]: ...
    @property
    def turn_rows(self) -> NDArray[int64]: ...
    @property
    def merge_rewards(self) -> Literal["error", "sum", "last"]: ...
    @property
    def prompt_lens(self) -> NDArray[int64]: ...
    @property
    def response_lens(self) -> NDArray[int64]: ...
    @property
    def turn_prompt_lens(self) -> NDArray[int64]: ...
    @property
    def turn_response_lens(self) -> NDArray[int64]: ...
    @property
    def sampled_lens(self) -> NDArray[int64]: ...
    @property
    def num_breaks(self) -> int: ...
    @property
    def break_turns(self) -> NDArray[int64]: ...
    def break_kinds(self) -> list[tuple[str, int]]: ...
    def break_at(
        self, index: int
    ) -> tuple[
        int, int, int, Literal["shorter", "drift", "diverged"], bool, list[int], list[int]
    ]: ...
    def to_dict(self) -> dict[str, Any]: ...
    @classmethod
    def _from_dict(cls, tables: dict[str, Any]) -> Merge: ...
    @staticmethod
    def joined(merges: Sequence[Merge]) -> Merge: ...

@final
class Plan:
    """Lengths of a batch's rows and their positions in the outputs. Immutable; holds no tokens."""

    @property
    def layout(self) -> str: ...
    @property
    def is_jagged(self) -> bool: ...
    @property
    def has_bins(self) -> bool: ...
    @property
    def is_packed(self) -> bool: ...
    @property
    def is_tree(self) -> bool: ...
    @property
    def num_turns(self) -> int: ...
    @property
    def num_rows(self) -> int: ...
    @property
    def sources(self) -> NDArray[int64]: ...
    @property
    def num_output_rows(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def response_width(self) -> int: ...
    @property
    def num_placed(self) -> int: ...
    def count_in_responses(self, flags: NDArray[bool_]) -> NDArray[int64]: ...
    @property
    def num_positions(self) -> int: ...
    @property
    def longest_row(self) -> int: ...
    @property
    def prompt_lens(self) -> NDArray[int64]: ...
    @property
    def response_lens(self) -> NDArray[int64]: ...
    def first_in_view(self, shard: ShardSpec) -> int | None: ...
    def layout_for(self, shard: ShardSpec) -> LayoutSpec: ...
    def leading_shape(self, of_sequence: bool) -> tuple[int, ...]: ...
    def pick(self, shard: ShardSpec, layout: LayoutSpec) -> Plan: ...
    def part(self, shard: ShardSpec) -> tuple[Plan, NDArray[int64]] | None: ...
    def gather_positions(
        self,
        of_sequence: bool,
        next_token: bool = False,
        width: int | None = None,
        per_turn: bool = False,
        gaps: bool = True,
        padding: bool = True,
        may_miss: bool = True,
    ) -> tuple[NDArray[int64], NDArray[int64]]: ...
    def row_starts(self) -> tuple[NDArray[int64], NDArray[int64]]: ...
    def subtree_ends(self) -> NDArray[int32]: ...
    def depths(self) -> NDArray[int32]: ...
    def stream_positions(self) -> NDArray[int64] | None: ...
    def read_segments(self) -> NDArray[int64]: ...
    def block_tables(
        self, block_size: int, window: int | None
    ) -> tuple[NDArray[int32], NDArray[int32], int]: ...
    def attention_ranges(self) -> tuple[NDArray[int32], NDArray[int32], NDArray[bool_]]: ...
    def path_sizes(self) -> tuple[int, int]: ...
    def attention_paths(self) -> tuple[NDArray[int64], list[NDArray[int32]], int, int]: ...
    def of_bin(self, bin: int, multiple_of: int) -> Plan: ...
    def select_bins(self, bins: NDArray[int64]) -> tuple[NDArray[int64], Plan]: ...
    def tree_positions(self) -> tuple[NDArray[int64], NDArray[int64]]: ...
    def bins(self) -> list[NDArray[int64]] | None: ...
    def chunks(self, size: int, rank: int) -> tuple[NDArray[int64], NDArray[int64]]: ...
    @property
    def multiple_of(self) -> int: ...
    @property
    def is_shifted(self) -> bool: ...
    @property
    def num_lost(self) -> int: ...
    @property
    def num_unpredicted(self) -> int: ...
    def to_dict(self) -> dict[str, Any]: ...
    @classmethod
    def _from_dict(cls, tables: dict[str, Any]) -> Plan: ...
    @staticmethod
    def joined(plans: Sequence[dict[str, Any]]) -> Plan: ...

@final
class ShardSpec:
    """The compiled form of a shard."""

    def __new__(
        cls,
        rows: NDArray[int64],
        is_padding: NDArray[bool_],
        num_rows: int,
        widths: tuple[int, int, int] | None,
        lengths: NDArray[int64] | None,
        prompt_lengths: NDArray[int64] | None,
        bin_offsets: NDArray[int64] | None,
        bin_width: int,
        shared: NDArray[int64] | None,
        is_narrow: bool,
    ) -> ShardSpec: ...

def before_fork() -> None: ...
def after_fork() -> None: ...
def forked() -> None: ...
def stored_columns(rows: Sequence[StoredRow]) -> list[RowSpans]: ...
def compact_ids(name: str, row: Any, index: int) -> NDArray[Any]: ...
def token_ids(name: str, rows: Any) -> tuple[NDArray[int32], NDArray[int64]]: ...
def collate(
    tokens: Tokens,
    row_source: Merge | tuple[MergeSpec, tuple[NDArray[int64], str]] | Plan | None,
    shard: ShardSpec | None,
    cp: tuple[int, int] | None,
    pad_token_id: int,
    fields: Sequence[tuple[Any, FieldSpec]],
    ids: dict[str, Sequence[Any]],
    uids: NDArray[int64] | None,
    layout: LayoutSpec,
    outputs: OutputSpec,
    torch: ModuleType | None,
    pool: BufferPool | None,
    allocator: Callable[[int], NDArray[uint8] | None] | None,
) -> tuple[
    Plan,
    list[FieldSpec],
    OutputTable,
    dict[str, Any],
    Owner | None,
    Merge | None,
    int,
    list[tuple[str, int]],
    tuple[bool, bool, bool],
]: ...
def write_rows(
    rows: Any, field: FieldSpec, layout: LayoutSpec, pool: BufferPool | None, torch: Any = None
) -> Any: ...
def merge_turns(
    tokens: Tokens,
    trajectories: tuple[NDArray[int64], str],
    spec: MergeSpec,
    loss_mask: tuple[Any, FieldSpec] | None,
    drop_untrainable: bool,
) -> Merge: ...
def share_prefixes(
    tokens: Tokens,
    merge: Merge | None,
    share: Any,
    uids: NDArray[int64] | None,
    same_inputs: NDArray[int64] | None,
) -> list[NDArray[int64]]: ...
def hash_prompts(tokens: Tokens) -> NDArray[uint64]: ...
def arrow_lists(
    values: NDArray[Any], offsets: NDArray[int64], requested_schema: object | None
) -> tuple[object, object]: ...
def arrow_nested_chunks(
    object: Any, location: str
) -> list[tuple[NDArray[Any], NDArray[int64], NDArray[int64], NDArray[int64]]] | None: ...
def arrow_chunks(
    object: Any, location: str
) -> list[tuple[NDArray[Any], NDArray[int64]]] | None: ...
def group_offsets(ids: list[Any], name: str, are_required: bool) -> tuple[NDArray[int64], bool]: ...
def prompt_spans(uids: Any) -> list[tuple[int, int]] | None: ...
def split_step(
    mini_batches: NDArray[int64],
    groups: NDArray[int64] | None,
    ranks: tuple[int, bool, NDArray[float64] | None, float],
    padding: str,
) -> tuple[NDArray[int64], NDArray[bool_], NDArray[int64], tuple[int, int] | None]: ...
def step_defect(
    rows: NDArray[int64],
    is_padding: NDArray[bool_],
    mini_batch_offsets: NDArray[int64],
    ranks: int,
    num_rows: int,
    prompt_offsets: NDArray[int64],
    mini_batch_prompts: NDArray[int64],
    bin_offsets: NDArray[int64] | None,
) -> str | None: ...
def counts_in(given: object, most: int) -> NDArray[int64] | None: ...
def shared_defect(
    shared: NDArray[int64],
    lengths: NDArray[int64],
    is_padding: NDArray[bool_],
    bin_offsets: NDArray[int64],
) -> str | None: ...
def deal_bins(costs: NDArray[float64], ranks: int) -> NDArray[int64]: ...
def check_range(value: object) -> None: ...
def fix_lists(value: object) -> Any: ...
def are_computed(rows: object) -> bool: ...
def have_padded_edges(rows: object, pad: int) -> bool: ...
def mask_offsets(mask: NDArray[uint8]) -> NDArray[int64]: ...
def mask_spans(mask: object) -> tuple[NDArray[int64], NDArray[int64]] | None: ...
def first_no_length(lengths: NDArray[int64], most: int) -> int | None: ...
def lists_of(offsets: NDArray[int64], items: NDArray[int64]) -> list[list[int]]: ...
def partition(
    weights: Weights, parts: int, algorithm: str, equal_size: bool
) -> tuple[NDArray[int64], NDArray[int64]]: ...
def split_micro_batches(
    costs: Weights,
    lengths: NDArray[int64],
    capacity: int,
    first: int,
    step: int,
    all: bool,
    ranks: tuple[int, Any] | None,
) -> tuple[NDArray[int64], NDArray[int64]] | None: ...

@final
class CallSchema:
    def __new__(
        cls, calls: list[str], paths: list[tuple[str, str]], are_nodes: bool
    ) -> CallSchema: ...

def read_calls(
    bodies: bytes | list[bytes],
    schema: CallSchema,
    bad_logprobs: str,
    place: tuple[str, int, str],
) -> dict[str, Any]: ...
def make_calls(
    given: list[tuple[str, list[Any]]],
    bits: int | None,
    may_have_lists: bool,
    places: list[tuple[int, int, int]],
    num_bodies: int,
    bad_logprobs: str,
    are_nodes: bool,
    bodies: tuple[str, int, str],
) -> dict[str, Any]: ...

@final
class CallNodes:
    def join(
        self,
        parents: NDArray[int64],
        are_dropped: NDArray[bool_],
        bad_logprobs: str,
        place: tuple[str, int, str],
    ) -> dict[str, Any]: ...
