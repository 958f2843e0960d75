"""Every Python snippet of README.md and of docs, and every example of a docstring, in order.

`docs_setup.py` has the packages that pages and snippets need. The name of a test has the page and
the line, and the reason if the snippet is skipped or moved to the CPU.
"""

import doctest
import importlib
import pkgutil
import re
from importlib.util import find_spec

import pytest
from small_llama import llama
from snippets import (
    FENCE,
    HAS_TORCH,
    ROOT,
    SNIPPETS,
    Pages,
    begin,
    check,
    page_names,
    run,
)

import fastcollate as fc
from fastcollate.inspect.findings import KINDS


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    return Pages(tmp_path_factory.mktemp("pages"))


pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers; of a batch that is not pinned


@pytest.fixture(autouse=True)
def place(monkeypatch, pages):
    monkeypatch.chdir(pages.folder)
    monkeypatch.setenv("COLUMNS", "84")
    if HAS_TORCH:
        import torch

        # Compiling takes a minute.
        monkeypatch.setattr(torch, "compile", lambda function, **options: function)


def snippet_params():
    for page, found in SNIPPETS.items():
        for snippet in found:
            marks = [pytest.mark.skip(reason=snippet.skipped)] if snippet.skipped else []
            how = snippet.skipped or ("on the CPU" if snippet.is_moved else "")
            name = f"{page}:{snippet.line}" + f" {how}" * bool(how)
            yield pytest.param(snippet, id=name, marks=marks)


@pytest.mark.parametrize("snippet", list(snippet_params()))
def test_a_snippet(snippet, pages):
    pages.run_to(snippet)


# Results of pages


def names_after(page, pages):
    """Run a whole page, but for what is skipped, and return its names."""
    if SNIPPETS[page][0].skipped:
        pytest.skip(SNIPPETS[page][0].skipped)
    return pages.run_to(SNIPPETS[page][-1])


@pytest.mark.parametrize("layout", ["packed", "tree"])
def test_attention(layout):
    """The same lines do for packed rows and for trees, and give the loss of rows alone."""
    page = "docs/attention.md"
    if SNIPPETS[page][0].skipped:
        pytest.skip(SNIPPETS[page][0].skipped)
    import torch

    names, hidden = begin(page, SNIPPETS[page]), []
    for snippet in SNIPPETS[page]:
        if snippet.skipped:
            continue
        if layout == "tree":
            snippet = snippet._replace(code=snippet.code.replace("fc.Packed(", "fc.Tree("))
        run(snippet, names)
        if "hidden = " in snippet.code:
            hidden.append(names["hidden"].detach())
    assert names["batch"].plan.layout == layout
    assert_close = torch.testing.assert_close
    assert_close(hidden[0], hidden[1])  # with the registered attention
    assert_close(hidden[0], hidden[2])
    names["model"].set_attn_implementation("sdpa")  # the page ends with another
    expected = 0
    for prompt, response in zip(names["prompts"], names["responses"], strict=True):
        logits = names["model"](torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
        expected -= logits.log_softmax(-1).gather(-1, torch.tensor(response)[:, None]).sum()
    expected = expected.item() / sum(map(len, names["responses"]))
    assert names["loss"].item() == pytest.approx(expected, rel=1e-4)
    assert names["mask"].dtype == names["model"].dtype
    assert names["attn_type_map"].tolist().count(1) == len(names["q_ranges"]) or layout == "tree"


def test_steps(pages):
    names = names_after("docs/steps.md", pages)
    assert names["audit"].ok
    sampled = sum(map(len, names["responses"]))
    assert f"{sampled:,} sampled tokens of 256 turns" in str(names["audit"])


def test_trees(pages):
    names = names_after("docs/trees.md", pages)
    assert names["batch"].plan.layout == "tree"
    assert names["plan"].dp_size == 2


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
def test_a_loss_of_a_tree_is_that_of_packed_rows():
    import torch

    (code,) = (one.code for one in SNIPPETS["docs/trees.md"] if "loss = " in one.code)
    code = code.replace('"block"', "")  # a dense mask, with a backward pass on the CPU
    names = {"fc": fc, "prompts": [[1, 2, 3], [1, 2, 3], [4]], "responses": [[5], [5, 6], [7, 8]]}
    names["masks"] = names["old"] = [[1], [1, 0], [1, 1]]
    names |= {"adv": [[2.0], [-1, 3], [0.5, 1]], "model": llama()}
    found = []
    for layout in ("fc.Tree(", "fc.Packed("):
        exec(code.replace("fc.Tree(", layout), names)
        names["loss"].backward()
        parameters = list(names["model"].parameters())
        found.append([names["loss"].detach(), *(one.grad.clone() for one in parameters)])
        names["model"].zero_grad()
    assert names["batch"].plan.layout == "packed"
    torch.testing.assert_close(found[0], found[1])


def test_balance(pages):
    assert names_after("docs/balance.md", pages)["plan"].dp_size == 8


# Docstrings


def modules():
    for module in pkgutil.walk_packages(fc.__path__, "fastcollate."):
        if not module.name.endswith("__main__"):
            yield module.name


@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
@pytest.mark.parametrize("name", list(modules()))
def test_docstrings(name):
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        pytest.skip(str(error))
    for parsed in doctest.DocTestFinder().find(module, extraglobs={"fc": fc}):
        check(parsed, parsed.lineno or 0)


# Links


def anchors(path):
    """Return the anchors that GitHub gives to the headings of a page."""
    text = FENCE.sub("", path.read_text("utf-8"))
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


PUBLISHED = {
    r"https://fastcollate\.github\.io/fastcollate/(?:(.+)\.html)?": "docs/{}.md",
    r"https://github\.com/fastcollate/fastcollate/blob/main/(.+)": "{}",
    r"https://raw\.githubusercontent\.com/fastcollate/fastcollate/main/(.+)": "{}",
}


def source(address, page):
    """Return the file that a link leads to; None if it is another project's."""
    for pattern, path in PUBLISHED.items():
        if match := re.fullmatch(pattern, address):
            found = ROOT / path.format(match[1] or "index")
            others = (found.with_suffix(one) for one in (".ipynb", ".rst"))
            return found if found.exists() else next((one for one in others if one.exists()), found)
    if re.match(r"[a-z]+:", address):
        return None
    return page.parent / address if address else page


def links(page):
    return re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text("utf-8")))


@pytest.mark.parametrize("page", [*page_names(), "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links(page):
    broken = []
    for link in links(ROOT / page):
        address, _, anchor = link.partition("#")
        target = source(address, ROOT / page)
        if target and not (target.exists() and (not anchor or anchor in anchors(target))):
            broken.append(link)
    assert not broken


def test_links_of_the_readme_are_absolute():
    """It is shown on PyPI, too."""
    assert all(link.startswith("https://") for link in links(ROOT / "README.md"))


def test_the_page_has_all_kinds_of_findings_in_their_order():
    page = (ROOT / "docs" / "looking.md").read_text("utf-8")
    named = set()
    for table in page.split("| kind | found if |")[1:]:  # of batches, and of files
        lines = table.partition("\n\n")[0].splitlines()[2:]
        kinds = [re.findall(r"`(\w+)`", line.split("|")[1]) for line in lines]
        firsts = [min(map(KINDS.index, of_line)) for of_line in kinds]
        assert firsts == sorted(firsts)
        named.update(*kinds)
    assert named == set(KINDS)


def test_the_table_of_what_a_batch_has():
    """Each cell is the shape of that output in that layout; empty ones are not written."""
    _, _, section = (ROOT / "docs" / "batches.md").read_text("utf-8").partition("a batch has\n")
    kinds = {"field of responses": "gain", "field of whole": "whole", "`fc.PerRow`": "per_row"}
    table = {}
    for cells in re.findall(r"^\| (.*?) \|(.*?)\|(.*?)\|(.*?)\|(.*?)\|$", section, re.MULTILINE):
        own = [key for words, key in kinds.items() if words in cells[0]]
        for key in own or re.findall(r"`(\w+)`", cells[0]):
            table[key] = [cell.strip() for cell in cells[1:]]
    rows = {"prompts": [[1, 2, 3], [1, 2, 4, 5]], "responses": [[8, 9], [7]], "pad_token_id": 0}
    fields = {"gain": [[1, 2], [3]], "whole": [[1] * 5, [2] * 5], "per_row": fc.PerRow([1, 2])}
    values = dict.fromkeys(("rewards", "logprobs", "advantages"), ((-1, -2), (-3,)))
    options = {"fields": fields, "position_ids": True, "array_type": "numpy", **values}
    layouts = ("left", "jagged", fc.Packed(8, multiple_of=4), fc.Tree(8, fork_early=True))
    for column, layout in enumerate(layouts):
        made = [
            fc.build_batch(**rows, **options, layout=layout, labels=labels)
            for labels in ("aligned", "shifted")
        ]
        labels = {"labels": made[0].labels, "shift_labels": made[1].shift_labels}
        batch = {**made[0], **labels}
        width = batch["input_ids"].shape[-1]
        sizes = {"B": 2, "R": 2, "S": 3, "T": 10, "N": 2, "W": width, "sequences": 2}
        for key in {*table, *batch} - {"max_seqlen_padded", "row_cu_seqlens_padded"}:
            cell = table[key][column]
            assert bool(cell) == (key in batch), (key, layout)
            if cell.startswith("("):
                assert batch[key].shape == eval(cell, sizes), (key, layout)
