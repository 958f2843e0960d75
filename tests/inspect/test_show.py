"""`batch.show()`: prompts, trained and masked tokens and padding, as text and as HTML."""

import io
import re
import sys

import numpy as np
import pytest
from html_page import Html

import fastcollate as fc
from fastcollate.inspect import styles
from fastcollate.inspect.token_view import width_of
from fastcollate.planning import MissingPlanError

LEGEND = "prompt «trained» ‹masked› ·padding· …n… left out"
LAYOUTS = [
    *("left", "right", "two_segment", "jagged"),
    fc.Packed(capacity=8),
    fc.Packed(capacity=9, multiple_of=3, shift="next_token"),
]
PROMPTS = [[11, 12], [13], [], [14, 15, 16]]
RESPONSES = [[21, 22, 23], [24], [25, 26], []]
MASKS = [[1, 0, 0.5], [0], [0, 1], []]
LOGPROBS = [[-1.0, -0.5, -2.0], [-4.0], [0.0, -7.0], []]
PAIRS = [[[21, 2], [22, 2], [23, 2]], [[24, 2]], [[0, 0], [26, 2]], []]


class Words:
    """A tokenizer of fixed words, which has a length as those of Hugging Face."""

    def __init__(self, words):
        self.words = words
        self.decoded = 0

    def __len__(self):
        return len(self.words)

    def decode(self, ids, skip_special_tokens=True):
        self.decoded += len(ids)
        words = [self.words[one] for one in ids if one < len(self.words)]  # others are left out
        return "".join(word for word in words if not (skip_special_tokens and word == "<eos>"))


def build(layout="left", array_type="numpy", **columns):
    columns = {"prompts": PROMPTS, "responses": RESPONSES, "loss_mask": MASKS} | columns
    return fc.build_batch(**columns, pad_token_id=0, layout=layout, array_type=array_type)


def of_text(words, trains, **columns):
    """Return a batch of one row whose tokens are words, the first of them a prompt."""
    ids = list(range(len(words)))
    masks = [trains] if isinstance(trains, list) else [[trains] * (len(words) - 1)]
    return fc.build_batch([ids[:1]], [ids[1:]], loss_mask=masks, pad_token_id=0, **columns)


KINDS = {"«": "trained", "‹": "masked"}
TOKENS = re.compile(r"·([\d,]+) padding·|([«‹])([\d ]+)[»›]|([\d]+)")


def read(text):
    """Read text in long lines: of each row its tokens by kind, and how much padding there is."""
    rows, padding = {}, 0
    for line in text.splitlines()[1:]:
        if title := re.match(r" *row (\d+), (?:tokens|prompt)", line):
            tokens = rows.setdefault(int(title[1]), [])
            continue
        if line.startswith("bin") or not line:
            continue
        for pad, mark, run, token in TOKENS.findall(line):
            if pad:
                padding += int(pad.replace(",", ""))
            else:
                kind = KINDS.get(mark, "prompt")
                tokens += [(int(one), kind) for one in (run or token).split()]
    return rows, padding


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_each_token_is_shown_as_what_it_is(layout, array_type):
    batch = build(layout, array_type)
    rows, padding = read(batch.show(range(4), fold=None).text(10_000))
    is_first = [not prompt for prompt in PROMPTS]
    for row, (prompt, response, mask) in enumerate(zip(PROMPTS, RESPONSES, MASKS, strict=True)):
        expected = [(token, "prompt") for token in prompt]
        for place, (token, weight) in enumerate(zip(response, mask, strict=True)):
            trains = weight != 0 and not (is_first[row] and place == 0)
            expected.append((token, "trained" if trains else "masked"))
        assert rows[row] == expected
    positions = batch.plan.num_positions
    assert padding == positions - int(batch.metrics["batch/tokens"])


def test_text_of_a_block():
    assert build().show().text(60) == "\n".join(
        [
            LEGEND,
            "",
            "row 0, prompt 2, response 3, 2 trained",
            "  11 12 «21» ‹22› «23»",
            "",
            "row 1, prompt 1, response 1, 0 trained",
            "  ·3 padding· 13 ‹24›",
            "",
            "row 2, prompt 0, response 2, 1 trained",
            "  ·3 padding· ‹25› «26»",
            "",
            "row 3, prompt 3, response 0, 0 trained",
            "  ·2 padding· 14 15 16",
        ]
    )


def test_text_of_bins():
    batch = build(fc.Packed(capacity=8, multiple_of=2))
    assert batch.show([1, 2]).text(40) == "\n".join(
        [
            "prompt «trained» ‹masked› ·padding· …n…",
            "left out",
            "",
            "bin 0: 2 sequences, 7 of 8 positions",
            "  …1 sequence, 5 tokens… ·1 padding·",
            "  row 2, prompt 0, response 2, 1 trained",
            "    ‹25› «26»",
            "",
            "bin 1: 2 sequences, 5 of 8 positions",
            "  …1 sequence, 3 tokens… ·1 padding·",
            "  row 1, prompt 1, response 1, 0 trained",
            "    13 ‹24›",
            "  ·2 padding·",
        ]
    )


def test_parts_of_a_row_that_was_split():
    batch = fc.build_batch(
        [[11, 12]], [[21, 22, 23]], pad_token_id=0, layout=fc.Packed(3, algorithm="concat")
    )
    assert batch.show().text(60).splitlines()[2:] == [
        "bin 0: 1 sequence, 3 of 3 positions",
        "  row 0, tokens 0 to 2 of 5, prompt 2, response 3, 2 trained",
        "    11 12 «21»",
        "",
        "bin 1: 1 sequence, 2 of 3 positions",
        "  row 0, tokens 3 to 4 of 5, prompt 2, response 3, 2 trained",
        "    ‹22› «23»",
        "  ·1 padding·",
    ]


WORD = re.compile(r"·\d+ padding·|\S+")


def beneath(text, row):
    """Read a grid in long lines: the values beneath each token of a row, by field."""
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if f"row {row}," in line) + 1
    ends = [found.end() for found in WORD.finditer(lines[at])]
    names = [re.sub(r"[«»‹›]", "", word) for word in WORD.findall(lines[at])]
    found = {}
    for line in lines[at + 1 :]:
        if not (key := re.match(r" *([a-z]+)", line)):
            break
        starts = [key.end(), *ends]
        cells = [line[start:end].strip() for start, end in zip(starts, ends, strict=False)]
        found[key[1]] = dict(zip(names, cells, strict=True))
    return found


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_values_stand_beneath_their_tokens(layout, array_type):
    tokens = [prompt + response for prompt, response in zip(PROMPTS, RESPONSES, strict=True)]
    batch = build(
        layout,
        array_type,
        logprobs=LOGPROBS,
        fields={
            "entropy": fc.Field([[id / 8 for id in row] for row in tokens], align="sequence"),
            "pairs": fc.Field(PAIRS, dtype="int64"),
            "difficulty": fc.PerRow([0.5, 1.5, 2.5, 3.5]),
        },
    )
    for row, of_row in enumerate(tokens):
        view = batch.show(row, fields=["logprobs", "entropy", "pairs", "difficulty"])
        text = view.text(10_000)
        assert f"difficulty {row + 0.5}" in text
        found = beneath(text, row)
        # With shift="next_token", nothing holds what belongs to a token that nothing predicts.
        start = 1 if batch.plan.is_shifted and not PROMPTS[row] else 0
        names = list(map(str, RESPONSES[row]))[start:]
        logprobs = dict(zip(names, (f"{x:.3g}" for x in LOGPROBS[row][start:]), strict=True))
        pairs = dict(zip(names, (f"{x},{y}" for x, y in PAIRS[row][start:]), strict=True))
        entropy = {str(token): f"{token / 8:.3g}" for token in of_row}
        for name, expected in {"logprobs": logprobs, "pairs": pairs, "entropy": entropy}.items():
            cells = {key: cell for key, cell in found.get(name, {}).items() if cell}
            assert cells == expected


def test_a_grid_in_a_narrow_terminal():
    batch = build(logprobs=LOGPROBS)
    assert batch.show(0, fields="logprobs").text(26).splitlines()[3:] == [
        "row 0, prompt 2,",
        "response 3, 2 trained",
        "           11 12 «21» ‹22›",
        "  logprobs         -1 -0.5",
        "           «23»",
        "  logprobs   -2",
    ]


def test_folded_text():
    words = ["Hello ", "my ", "dear ", "old ", "friend"]
    batch = of_text(words, [1, 1, 1, 1])
    view = batch.show(tokenizer=Words(words), fold=1)
    assert view.text(60).splitlines()[3:] == ["  Hello «my » …2… «friend»"]
    assert view.text(20).splitlines()[-2:] == ["  Hello «my » …2…", "  «friend»"]
    packed = build(fc.Packed(capacity=8, multiple_of=2)).show(1, tokenizer=str)
    assert "\n  …1 sequence, 3 tokens… ·1 padding·\n" in packed.text()


def test_a_grid_without_values():
    batch = build(logprobs=LOGPROBS)
    assert batch.show(3, fields="logprobs").text(60).splitlines()[3:] == [
        "           ·2 padding· 14 15 16"
    ]


def test_bins_are_shown_in_their_order():
    prompts = [[1] * length for length in (1, 2, 3, 4, 5, 6)]
    batch = fc.build_batch(prompts, [[2]] * 6, pad_token_id=0, layout=fc.Packed(capacity=8))
    text = batch.show().text()
    shown = [int(row) for row in re.findall(r"row (\d)", text)]
    assert shown == batch.bin_plan.indices.tolist()[:4] != [0, 1, 2, 3]


@pytest.mark.parametrize("fold", [1, 2, 5])
def test_long_runs_are_folded(fold, array_type):
    prompt, response = list(range(100, 120)), list(range(200, 260))
    mask = [1] * 30 + [0] * 3 + [1] * 27
    batch = fc.build_batch(
        [prompt], [response], loss_mask=[mask], pad_token_id=0, array_type=array_type
    )
    text = batch.show(fold=fold).text(10_000).splitlines()[3]
    left_out = sum(map(int, re.findall(r"…(\d+)…", text)))
    shown = [int(one) for one in re.findall(r"\d+", re.sub(r"…\d+…", "", text))]
    assert left_out + len(shown) == 80
    boundaries = [*(119, 200), *(229, 230), *(232, 233), 259]
    assert set(boundaries) <= set(shown)
    assert shown == sorted(shown)
    assert len(shown) <= 8 * fold + 1


def test_rows_of_many_runs_are_folded_in_the_middle():
    mask = [i % 2 for i in range(1000)]
    batch = fc.build_batch([[1]], [[2] * 1000], loss_mask=[mask], pad_token_id=0)
    text = batch.show().text(200).splitlines()[3]
    assert text == "  1 ‹2› «2» ‹2› …993… ‹2› «2» ‹2› «2»"


def test_a_tokenizer_makes_text():
    words = ["Hi<eos>", "there", " you", "<eos>"]
    tokenizer = Words(words)
    batch = of_text(words, [1, 0, 1])
    assert batch.show(tokenizer=tokenizer).text().splitlines()[3:] == [
        "  Hi<eos>«there»‹ you›«<eos>»"
    ]
    for decode in (lambda ids: "".join(words[one] for one in ids), tokenizer):
        assert batch.show(tokenizer=decode).text() == batch.show(tokenizer=tokenizer).text()


def test_only_what_is_shown_is_decoded():
    tokenizer = Words(["a"] * 10)
    batch = fc.build_batch([[1] * 5000] * 50, [[2] * 5000] * 50, pad_token_id=0)
    batch.show(tokenizer=tokenizer)
    assert 0 < tokenizer.decoded < 1000


def raises(ids):
    if max(ids) > 11:
        raise KeyError(max(ids))
    return "".join(map("<{}>".format, ids))


@pytest.mark.parametrize("tokenizer", [Words([f"<{i}>" for i in range(12)]), raises])
def test_ids_that_the_tokenizer_does_not_have_are_marked(tokenizer):
    batch = fc.build_batch([[10, 999]], [[11, 12]], pad_token_id=0)
    text = batch.show(tokenizer=tokenizer).text(200)
    assert text.splitlines()[3:] == [
        "  <10>⟨?999⟩«<11>⟨?12⟩»",
        "",
        "⟨?id⟩ is an id that the tokenizer does not have, such as 999, 12: pass the tokenizer of "
        "the model",
    ]
    assert "⟨?-3⟩" in fc.build_batch([[-3]], [[1]], pad_token_id=0).show(tokenizer=tokenizer).text()


@pytest.mark.parametrize(
    "tokenizer", ["tokenizer.json", b"x", 5, object(), lambda ids: b"bytes", lambda ids: None]
)
def test_what_is_no_tokenizer(tokenizer):
    with pytest.raises(TypeError, match=r"^tokenizer "):
        build().show(tokenizer=tokenizer)


def test_bad_arguments():
    batch = build(fields={"images": fc.PerRow([np.zeros(2)] * 4, concat=True)})
    for error, options, message in [
        (IndexError, {"rows": 4}, "rows is 4, but there are 4; pass an index from 0 to 3"),
        (IndexError, {"rows": [0, -1]}, r"rows\[1\] is -1, but there are 4"),
        (TypeError, {"rows": "12"}, "rows is '12'; pass an index"),
        (TypeError, {"rows": [0.5]}, r"rows\[0\] is 0.5; pass an index"),
        (ValueError, {"fields": "reward"}, "fields has 'reward', .* pass some of 'input_ids'"),
        (ValueError, {"fields": ["images"]}, "fields has 'images', which has no value per token"),
        (ValueError, {"fold": 0}, "fold is 0; pass a number of tokens, or None, 1 or more"),
        (TypeError, {"row": 3}, "did you mean 'rows'"),
    ]:
        with pytest.raises(error, match=message):
            batch.show(**options)
    with pytest.raises(MissingPlanError):
        fc.Batch(batch).show()


@pytest.mark.parametrize("rows", [[2, 1], range(1, 3), slice(1, 3), np.array([1, 2])])
def test_rows_are_named_in_any_way(rows):
    text = build().show(rows).text()
    assert re.findall("row .", text) == ["row 1", "row 2"]
    assert re.findall("row .", build().show(np.int64(3)).text()) == ["row 3"]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_few_rows_are_shown_by_themselves(layout):
    batch = fc.build_batch([[1]] * 9, [[2]] * 9, pad_token_id=0, layout=layout)
    text = batch.show().text()
    assert len(re.findall(r"row \d", text)) == 4
    assert text.endswith("and 5 more rows")


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_rows_without_tokens(layout):
    batch = fc.build_batch([[], [1]], [[], [2]], pad_token_id=0, layout=layout)
    text = batch.show([0]).text()
    assert "row 0, prompt 0, response 0, 0 trained" in text


def test_padding_rows_say_so():
    plan = fc.plan_step([2, 2, 2], dp_size=2)
    batch = fc.build_batch([[1]] * 3, [[2]] * 3, pad_token_id=0, shard=plan.shard(0, 1))
    assert re.findall("row .*", batch.show().text())[-1].startswith("row 1, a padding row, prompt")


def test_merged_turns_show_observations_as_masked():
    batch = fc.build_batch(
        *([[1], [1, 2, 3]], [[2], [4]]),
        pad_token_id=0,
        merge="exact",
        is_last_step=[False, True],
    )
    assert batch.show().text().splitlines()[3] == "  1 «2» ‹3› «4»"


HOSTILE = [
    *("a", "<script>alert(1)</script>", "\x1b[31mred", "\u202eright", "\r\x07\x00", "&lt;", "\t"),
    *('"><img src=x onerror=alert(1)>', "</div></style>", "\ud800", "\n\n", "\xa0", "語" * 30),
]


@pytest.mark.parametrize("width", [20, 40, 80, 200])
@pytest.mark.parametrize("fields", [[], ["logprobs", "response_mask", "position_ids"]])
def test_no_line_is_wider_than_the_terminal(width, fields):
    words = [*HOSTILE, "long" * 100, *["word "] * 50]
    masks = [(i // 3) % 2 for i in range(len(words) - 1)]
    batch = of_text(
        words, masks, logprobs=[[-1.0] * len(masks)], position_ids="zero", layout="right"
    )
    text = batch.show(tokenizer=Words(words), fields=fields).text(width)
    lines = text.split("\n")
    assert max(map(width_of, lines)) <= width
    assert len(lines) > 3
    assert all(char == "\n" or char.isprintable() for char in text)


def test_widths_of_characters():
    assert width_of("ab") == 2
    assert width_of("語") == 2
    assert width_of("e\u0301") == 1


def test_text_that_cannot_be_printed_is_escaped():
    batch = of_text(HOSTILE, 1, fields={"name": fc.PerRow(["a \x1b[31m\nb"])})
    text = batch.show(tokenizer=Words(HOSTILE), fields="name", fold=None).text(10_000)
    assert "name a \\x1b[31m↵ b" in text
    for escape in (r"\x1b[31mred", r"\u202eright", r"\r\x07\x00", r"\t", r"\ud800", "↵\n", r"\xa0"):
        assert escape in text
    text.encode()


@pytest.mark.parametrize("fields", [[], ["logprobs"]])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_html_is_escaped_and_well_formed(layout, fields):
    layout = fc.Packed(capacity=30) if isinstance(layout, fc.Packed) else layout
    names = fc.PerRow(["<b>bold</b>"])
    batch = of_text(
        HOSTILE, 1, layout=layout, logprobs=[[-1.0] * (len(HOSTILE) - 1)], fields={"name": names}
    )
    view = batch.show(tokenizer=Words(HOSTILE), fields=[*fields, "name"], fold=None)
    html = view._repr_html_()
    found = Html(html)
    words = ("<b>bold</b>", "&lt;") if fields else ("<script>alert(1)</script>", "</div></style>")
    for word in words:  # tokens with values below are shortened
        assert word in found.text
    assert "<script" not in html
    for kind in styles.KINDS:
        assert f'class="{kind}"' in html
    html.encode()


def test_kinds_differ_without_colours():
    of_kinds = [styles.STYLES[kind] for kind in styles.KINDS]
    assert len({style.marks for style in of_kinds}) == 4
    rich = pytest.importorskip("rich.style")
    parsed = [rich.Style.parse(style.rich) for style in of_kinds]
    assert len({(one.bold, one.italic, one.dim) for one in parsed}) == 4


def test_a_terminal_has_the_same_text_in_colours(monkeypatch):
    console = pytest.importorskip("rich.console")
    view = build(fc.Packed(capacity=8), logprobs=LOGPROBS).show()
    for width in (40, 80):
        terminal = console.Console(
            file=io.StringIO(), width=width, force_terminal=True, color_system="standard"
        )
        terminal.print(view)
        printed = terminal.file.getvalue()
        assert "\x1b[1;32m" in printed  # bold and green
        lines = re.sub(r"\x1b\[[\d;]*m", "", printed).splitlines()
        assert [line.rstrip() for line in lines] == view.text(width).splitlines()


def test_what_print_and_a_prompt_show(monkeypatch):
    view = build().show()
    monkeypatch.setenv("COLUMNS", "60")
    assert str(view) == view.text(60)
    assert repr(view) == str(view)  # in a pipe
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert repr(view) == str(view)  # without rich
    monkeypatch.undo()
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    for name, value in {"COLUMNS": "60", "FORCE_COLOR": "1", "TERM": "xterm-256color"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[1;32m" in repr(view)
    assert "\x1b" not in str(view)


def test_bfloat16_is_shown(array_type):
    if array_type == "numpy":
        pytest.skip("NumPy has no bfloat16")
    batch = build(array_type="torch", logprobs=LOGPROBS, dtypes={"logprobs": "bfloat16"})
    assert "-0.5" in batch.show(0, fields="logprobs").text()


def test_rows_of_a_tree_show_where_they_fork():
    batch = fc.build_batch(
        [[1, 2, 3], [1, 2, 3], [1, 2, 4], [9], [1, 2, 3]],
        [[5, 6], [5, 7, 8], [6], [8, 8], [5]],
        loss_mask=[[1, 1], [0, 1, 1], [1], [1, 0], [1]],
        logprobs=[[-0.1, -0.2], [-0.3, -0.4, -0.5], [-0.6], [-0.7, -0.8], [-0.9]],
        fields={"entropy": fc.Field([[0.5] * n for n in (5, 6, 4, 3, 4)], align="sequence")},
        pad_token_id=0,
        layout=fc.Tree(12, multiple_of=4),
    )
    assert batch.show(range(5)).text(60).splitlines()[2:] == [
        "bin 0: 4 sequences, 9 of 12 positions",
        "  row 4, prompt 3, response 1, 1 trained",
        "    1 2 3 «5»",
        "  row 0, prompt 3, response 2, 2 trained",
        "    …4 in common with row 4, 1 trained… «6»",
        "  row 1, prompt 3, response 3, 2 trained",
        "    …4 in common with row 0… «7 8»",
        "  row 2, prompt 3, response 1, 1 trained",
        "    …2 in common with row 1… 4 «6»",
        "  ·3 padding·",
        "",
        "bin 1: 1 sequence, 3 of 12 positions",
        "  row 3, prompt 1, response 2, 1 trained",
        "    9 «8» ‹8›",
        "  ·9 padding·",
    ]
    assert batch.show(2).text(60).splitlines()[2:] == [
        "bin 0: 4 sequences, 9 of 12 positions",
        "  …3 sequences, 7 tokens…",
        "  row 2, prompt 3, response 1, 1 trained",
        "    …2 in common with row 1… 4 «6»",
        "  ·3 padding·",
    ]
    assert batch.show(1, fields=["logprobs", "entropy"]).text(80).splitlines()[-6:-2] == [
        "  row 1, prompt 3, response 3, 2 trained",
        "             …4 in common with row 0…  «7»  «8»",
        "    logprobs                          -0.4 -0.5",
        "     entropy                           0.5  0.5",
    ]


@pytest.mark.gpu
@pytest.mark.parametrize("layout", [*LAYOUTS, fc.Tree(8)], ids=str)
def test_a_batch_on_a_device_shows_what_it_does_on_the_host(layout):
    batch = build(layout, "torch", logprobs=LOGPROBS, dtypes={"logprobs": "bfloat16"})
    moved = batch.to("cuda")
    for one in (batch, moved):
        assert one.input_ids.is_cuda == (one is moved)
    fields = ["logprobs", "input_ids"]
    assert moved.show(fields=fields).text() == batch.show(fields=fields).text()
    assert repr(moved.check(vocab_size=20)) == repr(batch.check(vocab_size=20)) != "no findings"
    sizes = {key: value for key, value in batch.metrics.items() if key.startswith("batch/")}
    assert sizes.items() <= moved.metrics.items()
    assert "row 0" in moved._repr_html_()


@pytest.mark.parametrize("layout", ["left", "jagged", fc.Packed(8, shift="next_token"), "tree"])
def test_lists_of_tokens_are_shown_below_them(layout, array_type):
    support = [[[7, 70], [], [9, 90, 91, 92, 93, 94]], [[10]]]
    batch = fc.build_batch(
        [[1, 2], [3]], [[7, 8, 9], [10]], pad_token_id=0, layout=layout, array_type=array_type,
        fields={"support": fc.Field(support, ragged=True)},
    )  # fmt: skip
    lines = [line.split() for line in batch.show(fields="support").text().splitlines()]
    found = [line[1:] for line in lines if line[:1] == ["support"]]
    assert found == [["7,70", "9,90,91,92,…2…"], ["10"]]
