"""Errors of the library as those of the command line."""

from __future__ import annotations

import re

OF_THE_LIBRARY = (
    (r"^Invalid value for '(--[\w-]+)'( / '-\w')?: it is", r"\1 is"),
    (r"^Invalid value for '(--[\w-]+)': (\S+) is not one of", r"\1 is \2; pass one of"),
    (r"^Invalid value for '(--[\w-]+)': file '(.*)' (?=does not)", r"\1 is \2, but this "),
    (r"^(Missing argument .*|Option .* an argument)$", r"\1; pass --help for examples"),
    (
        r"trajectory id (.*) appears in non-contiguous positions.*",
        r"the turns of trajectory \1 are not next to each other; sort the file, or name other "
        "ids with --trajectory-ids COLUMN",
    ),
    (
        r"uid (.*) appears in non-contiguous positions.*",
        r"the rows of prompt \1 are not next to each other; sort the file, or name other "
        "ids with --uids COLUMN",
    ),
    (
        r"is_last_step of row (\d+) is (.*); pass True or False",
        r"row \1 has \2 in the column of --is-last-step; name a column of booleans",
    ),
    (
        r"^([^;]*, line \d+, byte \d+: [^;]*)(; (it is cut off|correct it).*)?$",
        r"\1; correct this line, or remove it",
    ),
    (r"(?<=\d): call 0 (?=has )", " "),
    (r"(?<=is not JSON); pass the body of a successful response$", "; correct or remove this line"),
    (r"(?<=is not UTF-8 text); pass JSON.*", "; write the file in UTF-8"),
    (
        r"ask the server for them, .* as responses$",
        "name their column with --responses COLUMN, or remove this line",
    ),
    (r"; pass one list or array of numbers per row.*", "; write a list for each row, or for none"),
    (r": Schema\(loss_mask=\.\.\.\), or --loss-mask.*", " with --loss-mask COLUMN"),
    (r"or pass a schema with other paths$", "or name other columns"),
    (r"^No module named '(\w+).*", r"\1 is not installed; run pip install 'fastcollate[cli]'"),
    (r"^frameworks has", "--framework is"),
    (
        r"^seconds(?= is)|\w+_per_mini_batch(?= (and|are))",
        lambda found: "--" + found[0].replace("_", "-"),
    ),
)
"""Errors that name arguments of the library, and what they are on the command line."""


def in_flags(text: str) -> str:
    """Return an error of the library as one of the command line."""
    for pattern, ours in OF_THE_LIBRARY:
        text = re.sub(pattern, ours, text)
    return text
