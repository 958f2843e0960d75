"""Checks of batches for probable mistakes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fastcollate._fastcollate import IGNORE_INDEX
from fastcollate.common.arguments import check_count, check_int, tally
from fastcollate.common.arrays import describe, is_array, is_float, offsets_of, on_host, ranges_of
from fastcollate.inspect.findings import KINDS, SHOWN, Finding, Findings, whole_batch, whole_rows
from fastcollate.ops.loss_positions import targets
from fastcollate.ops.metrics import PLACEHOLDER
from fastcollate.plan.dtypes import labels_key
from fastcollate.plan.layouts import Packed
from fastcollate.plan.packing import pack
from fastcollate.plan.plan_tables import PlanTables, Spans
from fastcollate.rows.fields import ADVANTAGES, LOGPROBS, LOSS_MASK, REWARDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fastcollate.ops.batch_state import BatchState
    from fastcollate.rows.lengths import Integers

MOST_PADDING = 0.5
"""Least share of padding at which packing is suggested."""

LEAST_SHIFTED = 8
MOST_ZEROS = 0.1
"""Rows from which on all may seem shifted, and the share of other values that may be 0."""

FINITE = (REWARDS.key, ADVANTAGES.key)
"""Outputs that are never infinite."""

POSITIVE = 1e-4
"""Largest valid log-probability; above 0 to allow for rounding."""


def check(state: BatchState, vocab_size: int | None, eos_token_id: Any) -> Findings:
    """See :meth:`fastcollate.Batch.check`."""
    if vocab_size is not None:
        vocab_size = check_count("vocab_size", vocab_size, "the number of token ids")
    ends = None if eos_token_id is None else _parse_ids(eos_token_id)
    facts = _Facts.of(state)
    findings = [
        *_without_loss(facts),
        *_find_trained_first_tokens(facts),
        *_trained_padding(facts),
        *_bad_masks(facts),
        *_bad_numbers(facts),
        *_find_untrained_rewards(facts),
        *_outside_vocabulary(facts, vocab_size),
        *_padded_rows(facts),
        *_repeated_prompts(facts),
        *(() if ends is None else _ends_of_answers(facts, ends)),
        *_duplicates(facts),
        *_padding(facts),
    ]
    return Findings(sorted(findings, key=lambda one: KINDS.index(one.kind)))


def _parse_ids(eos_token_id: Any) -> list[int]:
    """Return the ids that may end a response."""
    advice = "the id of the token that ends an answer, or several"
    if is_array(eos_token_id):
        eos_token_id = eos_token_id.reshape(-1).tolist()
    if isinstance(eos_token_id, (str, bytes)) or not isinstance(eos_token_id, Iterable):
        return [check_int("eos_token_id", eos_token_id, advice)]
    ids = [check_int(f"eos_token_id[{i}]", one, advice) for i, one in enumerate(eos_token_id)]
    if not ids:
        raise ValueError(f"eos_token_id is {describe(eos_token_id)}; pass {advice}")
    return ids


class _Facts(NamedTuple):
    """A batch, with data that several checks share."""

    state: BatchState
    places: PlanTables
    ids: Integers
    """The token ids, flat."""
    is_real: NDArray[np.bool_]
    """True for rows that are not padding."""
    mask: np.ndarray
    """Nonzero where a response token trains, flat."""
    trained: Integers
    """The positions where it is not 0, ascending."""
    counts: Integers
    """Number of trained tokens of each row."""

    @classmethod
    def of(cls, state: BatchState) -> _Facts:
        places = PlanTables(state.plan)
        mask = on_host(state.data["loss_mask"]).reshape(-1)
        trained = np.flatnonzero(mask != 0)  # faster on booleans
        counts = places.responses.counts_in(trained, state.plan.num_rows)
        ids = on_host(state.data["input_ids"]).reshape(-1)
        return cls(state, places, ids, state.is_real, mask, trained, counts)

    def rows_with(self, is_found: np.ndarray, spans: Spans) -> _Found:
        """Return the real rows with findings, in order."""
        rows, tokens, places = spans.located(np.flatnonzero(is_found))
        firsts = np.flatnonzero(np.diff(rows, prepend=-1))
        counts = np.diff(firsts, append=len(rows))
        is_real = self.is_real[rows[firsts]]
        firsts, counts = firsts[is_real], counts[is_real]
        rows, positions = rows[firsts], tokens[firsts]
        if spans is self.places.responses:
            positions = positions + self.places.prompt_lens[rows]
        return _Found(rows, positions, places[firsts], counts)


class _Found(NamedTuple):
    """The rows with a finding, and its positions: int64 (rows,) each."""

    rows: Integers
    positions: Integers
    """The first position in each row, as an index into the row's tokens."""
    places: Integers
    """The same as flat indices into the output."""
    counts: Integers
    """Number of positions in each row."""

    def where(self, is_kept: NDArray[np.bool_]) -> _Found:
        """Return some of the rows."""
        return _Found(*(column[is_kept] for column in self))

    def findings(self, kind: str, reason: Callable[[int], str], advice: str) -> Iterator[Finding]:
        """Yield the finding, with the reason for the first position of a row."""
        if len(self.rows) == 0:
            return
        reasons = []
        for place, count in zip(self.places[:SHOWN].tolist(), self.counts[:SHOWN], strict=True):
            more = f" ({count:,} such tokens in the row)" if count > 1 else ""
            reasons.append(reason(place) + more)
        yield Finding(kind, self.rows, self.positions, reasons, advice)


def _without_loss(facts: _Facts) -> Iterator[Finding]:
    """Find rows without trained tokens, or report once that no row has any."""
    response_lens = facts.places.response_lens
    rows = np.flatnonzero((facts.counts == 0) & facts.is_real)
    if 0 < len(rows) == np.count_nonzero(facts.is_real):
        tokens = int(response_lens[facts.is_real].sum())
        of = f"{tally(len(rows), 'row')} with {tally(tokens, 'response token')}"
        advice = "pass a loss_mask that is 1 on response tokens that train"
        if tokens == 0:
            advice = "pass responses, or prompt_lens that are smaller than the lengths of sequences"
        yield whole_batch("all_masked", f"nothing trains: none of {of} has a loss", advice)
        return

    def reason_of(row: int) -> str:
        if response_lens[row] == 0:
            return "it has no response token, so nothing trains"
        return f"none of its {tally(int(response_lens[row]), 'response token')} trains"

    advice = "drop the row, or correct its response and loss_mask"
    yield from whole_rows("trains_nothing", rows, reason_of, advice)


def _find_trained_first_tokens(facts: _Facts) -> Iterator[Finding]:
    """Find labels and loss masks of tokens that no token predicts."""
    # Positions that rows share are first or last in all of them.
    state, spans = facts.state, facts.places.written.nonempty()
    plan = state.plan
    kind, advice = "trains_first_token", "set it to {}: no token before it predicts it"
    is_first = np.full(len(spans.rows), True) if plan.is_packed else spans.starts == 0
    labels = state.spec.outputs.labels
    if labels is not None:
        # With shifted labels, a last position would hold the label of a first token.
        is_shifted = labels[0]
        ends = spans.starts + spans.lengths
        lens = facts.places.prompt_lens + facts.places.response_lens
        is_last = is_first if plan.is_packed else ends == lens[spans.rows]
        places = spans.places + (spans.lengths - 1 if is_shifted else 0)
        places = places[is_last if is_shifted else is_first]
        values = on_host(state.data[labels_key(is_shifted)]).reshape(-1)
        is_found = np.zeros(len(values), np.bool_)
        is_found[places] = values[places] != IGNORE_INDEX
        what = "last position, which predicts nothing," if is_shifted else "first token"
        yield from facts.rows_with(is_found, facts.places.written).findings(
            kind,
            lambda place: f"the {what} has the label {values[place]}",
            advice.format(IGNORE_INDEX),
        )
    if plan.is_shifted:
        return  # the mask of a first token has no place there
    rows, tokens = np.arange(plan.num_rows), np.zeros(plan.num_rows, np.int64)
    if plan.is_packed:
        rows, tokens = spans.rows, spans.starts
    tokens = tokens - facts.places.prompt_lens[rows]
    rows, tokens = rows[tokens >= 0], tokens[tokens >= 0]
    places = facts.places.responses.places_of(rows, tokens)
    is_found = np.zeros(len(facts.mask), np.bool_)
    is_found[places[places >= 0]] = facts.mask[places[places >= 0]] != 0
    yield from facts.rows_with(is_found, facts.places.responses).findings(
        kind,
        lambda place: f"the first token has the loss mask {facts.mask[place]}",
        advice.format(0),
    )


def _trained_padding(facts: _Facts) -> Iterator[Finding]:
    """Find a loss mask that was changed to train padding."""
    if (count := len(facts.trained) - int(facts.counts[facts.is_real].sum())) > 0:
        reason = f"loss_mask is not 0 on padding, at {tally(count, 'position')}"
        advice = "leave it 0 there, such as by batch.loss_mask[row] *= 0.5"
        yield whole_batch("trains_padding", reason, advice)


def _bad_masks(facts: _Facts) -> Iterator[Finding]:
    """Find negative weights in the loss mask, labels in its place, and weights besides labels.

    Batches of frameworks' functions may be built with them.
    """
    state, spans = facts.state, facts.places.responses
    table = state.spec.table
    if LOSS_MASK.key not in table or table[LOSS_MASK.key].align != "response":
        return
    mask = on_host(state.data[LOSS_MASK.key]).reshape(-1)
    is_odd = (mask != 0) & (mask != 1)
    if not is_odd.any():
        return
    own = state.data.get("targets")
    found = targets(state.plan, state.data["input_ids"]) if own is None else own
    tokens = on_host(found).reshape(-1)
    # Labels are the tokens' ids or -100; 0 also stands where a mask has no value.
    is_label = (mask == 0) | (mask == IGNORE_INDEX) | (mask == tokens)
    is_odd &= is_label
    others = spans.counts_in(np.flatnonzero(~is_label), len(facts.counts))
    rows, _, places = spans.located(np.flatnonzero(is_odd))
    is_odd[:] = False
    is_odd[places[others[rows] == 0]] = True
    labels = facts.rows_with(is_odd, spans)
    yield from labels.findings(
        "labels_as_mask",
        lambda place: f"loss_mask is {mask[place]:g} on the token {tokens[place]}, as labels are",
        "pass labels != -100 as the loss mask",
    )
    negative = facts.rows_with(mask < 0, spans)
    yield from negative.where(~np.isin(negative.rows, labels.rows)).findings(
        "negative_mask",
        lambda place: f"loss_mask is {mask[place]:.4g}, a negative weight",
        "set it to 0 on tokens that do not train",
    )
    if state.spec.outputs.labels is not None and len(labels.rows) == 0 and mask.min() >= 0:
        weight = mask[(mask != 0) & (mask != 1)][0]
        reason = f"loss_mask has weights, such as {weight:g}, but labels hold none"
        advice = "multiply losses by loss_mask: a model's own loss ignores weights"
        yield whole_batch("weighted_labels", reason, advice)


def _sampled(facts: _Facts, rows: Integers, tokens: Integers) -> Integers:
    """Return the ids of response tokens, given by row and index in its response."""
    if "targets" in facts.state.data:
        places = facts.places.responses.places_of(rows, tokens)
        return on_host(facts.state.data["targets"]).reshape(-1)[places]
    tokens = facts.places.prompt_lens[rows] + tokens
    return facts.ids[facts.places.written.places_of(rows, tokens)]


def _bad_numbers(facts: _Facts) -> Iterator[Finding]:
    """Find NaN in any float output, and invalid log-probabilities."""
    state = facts.state
    places = facts.places
    sizes = {
        "sequence": (places.written, len(facts.ids)),
        "response": (places.responses, len(facts.mask)),
        "stream": (places.streams, int(places.streams.lengths.sum())),
    }
    for output in state.spec.table:
        if output.align not in sizes or not is_float(state.data[output.key]):
            continue
        spans, positions = sizes[output.align]
        values = on_host(state.data[output.key])
        # Other outputs may have infinite log-probabilities.
        is_bad = ~np.isfinite(values) if output.key in FINITE else np.isnan(values)
        if len(is_bad := is_bad.reshape(-1)) != positions:
            is_bad = is_bad.reshape(positions, -1).any(1)
        yield from facts.rows_with(is_bad, spans).findings(
            "nan",
            partial(_is_bad, output.key, values, positions),
            f"check where {output.key} is computed; a mask does not remove NaN, so pass a number "
            "also where loss_mask is 0",
        )
        if output.key == LOGPROBS.key and values.size == len(facts.mask):
            yield from _bad_logprobs(facts, values.reshape(-1))


def _is_bad(key: str, values: np.ndarray, positions: int, place: int) -> str:
    """Describe the first value at a position that is not finite."""
    found = values.reshape(positions, -1)[place]
    found = found[~np.isfinite(found)][0]
    return f"{key} has {'NaN' if np.isnan(found) else found}"


def _bad_logprobs(facts: _Facts, values: np.ndarray) -> Iterator[Finding]:
    """Find invalid log-probabilities."""
    spans, key = facts.places.responses, LOGPROBS.key
    counts = spans.counts_in(np.flatnonzero((values != 0) & (facts.mask != 0)), len(facts.counts))

    def zero(row: int) -> str:
        tokens = tally(int(facts.counts[row]), "trained token")
        return f"{key} is 0, a probability of 1, on all of its {tokens}"

    rows = np.flatnonzero((counts == 0) & (facts.counts > 0) & facts.is_real)
    advice = "pass what the sampler returned, or omit the field"
    yield from whole_rows("zero_logprobs", rows, zero, advice)
    yield from facts.rows_with(values > POSITIVE, spans).findings(
        "positive_logprob",
        lambda place: f"{key} has {values[place]:.4g}, a probability of more than 1",
        "pass log-probabilities, which are at most 0, not probabilities, losses or logits",
    )
    yield from facts.rows_with((values <= PLACEHOLDER) & (facts.mask != 0), spans).findings(
        "infinite_logprob",
        lambda place: f"{key} has {values[place]:g}, a probability of 0, for a token that trains",
        "check where they are computed: ratios to it are infinite",
    )
    yield from _shifted_logprobs(facts, values)


def _shifted_logprobs(facts: _Facts, values: np.ndarray) -> Iterator[Finding]:
    """Find log-probabilities that are 0 at one end of all rows, and hardly elsewhere."""
    spans, lens = facts.places.responses, facts.places.response_lens
    rows = np.flatnonzero((facts.counts > 1) & facts.is_real)
    zeros = values[facts.trained] == 0
    for name, tokens in (("first", np.zeros_like(rows)), ("last", lens[rows] - 1)):
        ends = spans.places_of(rows, tokens)
        is_zero = (values[ends] == 0) & (facts.mask[ends] != 0)
        if len(rows) < LEAST_SHIFTED or not is_zero.all():
            continue
        if zeros.sum() - len(rows) < MOST_ZEROS * (len(zeros) - len(rows)):
            where = f"on the {name} token of all {len(rows):,} rows"
            reason = f"{LOGPROBS.key} is 0 {where}, as if values were shifted by one"
            advice = "check that value i is that of response token i"
            yield whole_batch("shifted_logprobs", reason, advice)


def _find_untrained_rewards(facts: _Facts) -> Iterator[Finding]:
    """Find rewards on tokens that do not train, in rows that do."""
    state = facts.state
    table = state.spec.table
    if REWARDS.key not in table or table[REWARDS.key].align != "response":
        return
    rewards = on_host(state.data[REWARDS.key]).reshape(-1)
    if len(rewards) != len(facts.mask):
        return  # a field of that name, with several values per token
    is_found = (rewards != 0) & (facts.mask == 0)
    found = facts.rows_with(is_found, facts.places.responses)
    yield from found.where(facts.counts[found.rows] > 0).findings(
        "untrained_reward",
        lambda place: f"the reward {rewards[place]:.4g} is on a token that does not train",
        "put it on a token that trains, or correct loss_mask",
    )


def _outside_vocabulary(facts: _Facts, vocab_size: int | None) -> Iterator[Finding]:
    """Find ids outside the vocabulary, or below 0 if its size is not given."""
    ids, pad = facts.ids, facts.state.spec.pad_token_id
    kind, advice = "outside_vocabulary", "use the tokenizer of the model, or its vocab_size"
    limits = "from 0 on" if vocab_size is None else f"from 0 to {vocab_size - 1}"
    tokens = int(facts.places.written.lengths.sum())
    if (pad < 0 or (vocab_size is not None and pad >= vocab_size)) and tokens < len(ids):
        reason = f"pad_token_id is {pad}, but ids go {limits}"
        yield whole_batch(kind, reason, "pass another pad_token_id")
    is_outside = ids < 0 if vocab_size is None else (ids < 0) | (ids >= vocab_size)
    found = facts.rows_with(is_outside, facts.places.written)
    is_label = ids[found.places] == IGNORE_INDEX
    for_labels = "pass ids, not labels; padding is removed by fc.unpad(rows, mask=rows != -100)"
    for some, advised in ((is_label, for_labels), (~is_label, advice)):
        yield from found.where(some).findings(
            kind, lambda place: f"the id {ids[place]} is not {limits}", advised
        )


def _padded_rows(facts: _Facts) -> Iterator[Finding]:
    """Find rows whose prompt or response was padded before: an end is twice the padding id."""
    pad = facts.state.spec.pad_token_id
    prompt_lens = facts.places.prompt_lens
    lens = prompt_lens + facts.places.response_lens
    rows = np.flatnonzero(facts.is_real & (lens > 2))
    ends = np.stack([np.ones_like(rows), prompt_lens[rows] - 1, lens[rows] - 1])
    at = np.stack([ends, ends - 1])
    places = facts.places.written.places_of(np.tile(rows, 6), at.reshape(-1)).reshape(at.shape)
    is_pad = (places >= 0) & (facts.ids[places] == pad)
    yield from whole_rows(
        "padded_row",
        rows[is_pad.all(0).any(0)],
        lambda _: f"its prompt begins or ends, or the row ends, with {pad} twice, the pad_token_id",
        "pass rows without padding, for example by fc.unpad(...)",
    )


def _repeated_prompts(facts: _Facts) -> Iterator[Finding]:
    """Find responses that begin with their prompts, as what `generate` returns, if all do."""
    prompt_lens, response_lens = facts.places.prompt_lens, facts.places.response_lens
    rows = np.flatnonzero(facts.is_real & (prompt_lens > 0))
    if len(rows) == 0 or (response_lens < prompt_lens)[rows].any():
        return
    spans = facts.places.tokens.in_order()
    for part in (rows[:1], *np.array_split(rows, len(rows) // 4096 + 1)):  # often the first differs
        counts, lens = prompt_lens[part], (prompt_lens + response_lens)[part]
        ids = facts.ids[spans.places_in(part)]
        if len(ids) != lens.sum():
            return
        begins = offsets_of(lens)[:-1]
        if (ids[ranges_of(begins, counts)] != ids[ranges_of(begins + counts, counts)]).any():
            return
    yield from whole_rows(
        "repeated_prompt",
        rows,
        lambda row: f"the response begins with all {tally(int(prompt_lens[row]), 'prompt token')}",
        "cut the prompts off, or pass sequences with prompt_lens",
    )


def _ends_of_answers(facts: _Facts, ends: list[int]) -> Iterator[Finding]:
    """Find rows whose last trained token ends no response, or repeats the end before it."""
    lasts = facts.places.responses.lasts_in(facts.trained, len(facts.counts))
    rows = np.flatnonzero(lasts >= 0)  # padding rows do not train
    ids = _sampled(facts, rows, lasts[rows])
    names = " or ".join(map(str, ends))
    is_cut = ~np.isin(ids, ends)
    if is_cut.any():
        reasons = [
            f"the last token that trains is {last}, not {names}: the answer is cut off"
            for last in ids[is_cut][:SHOWN].tolist()
        ]
        advice = "sample more tokens, or mask answers that are cut off"
        tokens = lasts[rows] + facts.places.prompt_lens[rows]
        yield Finding("cut_off", rows[is_cut], tokens[is_cut], reasons, advice)
    rows, ids = rows[~is_cut], ids[~is_cut]
    befores = facts.places.responses.places_of(rows, lasts[rows] - 1)
    is_again = (befores >= 0) & (lasts[rows] > 0)
    is_again &= (_sampled(facts, rows, lasts[rows] - 1) == ids) & (facts.mask[befores] != 0)
    if is_again.any():
        rows, ids = rows[is_again], ids[is_again]
        reasons = [f"the token {last} ends the answer more than once" for last in ids[:SHOWN]]
        advice = "take padding out, for example by fc.unpad(...), or mask it"
        tokens = lasts[rows] + facts.places.prompt_lens[rows]
        yield Finding("repeated_end", rows, tokens, reasons, advice)


def _duplicates(facts: _Facts) -> Iterator[Finding]:
    """Find rows with the same prompt and response as an earlier one."""
    places = facts.places
    most = int(places.response_lens.max(initial=0)) + 1
    lens = places.prompt_lens * most + places.response_lens
    # Rows with unique lengths need not be read.
    rows = np.flatnonzero(facts.is_real)
    _, index, counts = np.unique(lens[rows], return_inverse=True, return_counts=True)
    rows = rows[counts[index] > 1]
    if len(rows) == 0:
        return
    rows, firsts = _repeated(facts, rows, lens)
    if (uids := facts.state.uids) is not None:  # samples of a prompt are often equal
        pairs = zip(rows.tolist(), firsts.tolist(), strict=True)
        is_other = np.array([uids[row] != uids[first] for row, first in pairs], np.bool_)
        rows, firsts = rows[is_other], firsts[is_other]
    first_of = dict(zip(rows[:SHOWN].tolist(), firsts[:SHOWN].tolist(), strict=True))
    yield from whole_rows(
        "duplicate",
        rows,
        lambda row: f"it has the same tokens as row {first_of[row]}",
        "drop it unless it should count twice, as equal samples of a prompt do",
    )


def _repeated(facts: _Facts, rows: Integers, lens: Integers) -> tuple[Integers, Integers]:
    """Return those of some rows that have the tokens and lengths of an earlier one, and that one.

    Rows with the same hash are compared with the first of them.
    """
    spans = facts.places.tokens.in_order()
    counts = np.bincount(spans.rows, spans.lengths, len(lens)).astype(np.int64)
    weights = np.random.default_rng(0).integers(1 << 62, size=int(counts.max()))
    hashes = lens[rows]
    for part, sizes in _parts(counts[rows]):
        values = facts.ids[spans.places_in(rows[part])].astype(np.int64)
        values *= weights[ranges_of(np.zeros_like(sizes), sizes)]
        hashes[part] += _sums(values, sizes)
    _, index, same = np.unique(hashes, return_index=True, return_inverse=True)
    firsts = rows[index[same]]
    is_same = (firsts < rows) & (lens[firsts] == lens[rows]) & (counts[firsts] == counts[rows])
    rows, firsts = rows[is_same], firsts[is_same]
    is_same = np.ones(len(rows), np.bool_)
    for part, sizes in _parts(counts[rows]):
        of_both = (facts.ids[spans.places_in(some[part])] for some in (rows, firsts))
        is_same[part] = _sums(np.not_equal(*of_both), sizes) == 0
    return rows[is_same], firsts[is_same]


def _parts(sizes: Integers) -> Iterator[tuple[slice, Integers]]:
    """Yield parts of rows of these sizes, small enough for the cache, and the sizes of each."""
    # Rows without tokens take time, too.
    ends = np.cumsum(sizes + 1)
    begin = 0
    while begin < len(sizes):
        done = ends[begin - 1] if begin > 0 else 0
        end = max(begin + 1, int(np.searchsorted(ends, done + (1 << 18), "right")))
        yield slice(begin, end), sizes[begin:end]
        begin = end


def _sums(values: np.ndarray, sizes: Integers) -> Integers:
    """Return the sums of spans of these sizes, modulo 2**64."""
    sums: Integers = np.diff(offsets_of(values)[offsets_of(sizes)])
    return sums


def _padding(facts: _Facts) -> Iterator[Finding]:
    """Report a batch that is mostly padding, which packing would reduce."""
    plan = facts.state.plan
    lens = (facts.places.prompt_lens + facts.places.response_lens)[facts.is_real]
    # Padding rows fill up the number of rows in any layout.
    tokens, positions = int(lens.sum()), len(lens) * plan.width
    if plan.has_bins or plan.is_jagged or tokens == 0 or tokens > (1 - MOST_PADDING) * positions:
        return
    bins = pack(lens, Packed(plan.width))
    share = 1 - tokens / positions
    packed = 1 - tokens / (bins.num_bins * int(bins.loads.max()))
    reason = f"{share:.0%} padding: packed at {plan.width:,} it would be {packed:.0%}"
    advice = f"pass layout=fc.Packed(capacity={plan.width})"
    yield whole_batch("padding", reason, advice)
