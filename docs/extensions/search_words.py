"""Words that readers search for, and the page to find first; pages that the search leaves out."""

from __future__ import annotations

from typing import Any

from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms import SphinxTransform

WORDS = {
    "advantage": "concepts#groups-and-advantages",
    "advantages": "concepts#groups-and-advantages",
    "attention mask": "attention",
    "bf16": "batches#dtypes",
    "cuda out of memory": "troubleshooting#out-of-memory",
    "dataloader": "collators",
    "ddp": "steps",
    "deepspeed": "steps",
    "dpo": "frameworks/trl",
    "eos": "looking#mistakes",
    "flash attention": "attention",
    "fsdp": "steps",
    "gae": "faq#which-algorithms-does-it-implement",
    "grpo": "tutorials/grpo_loop",
    "install": "index",
    "kl": "batches#what-trains",
    "logprobs": "batches#from-model-outputs-back-to-rows",
    "loss mask": "concepts#the-loss-and-its-mask",
    "max_length": "collators#truncation",
    "megatron": "packing#context-parallelism",
    "moe": "engine_fields#captured-fields",
    "nan": "troubleshooting#the-loss-is-nan",
    "nemo_rl": "frameworks/nemo_rl",
    "off by one": "troubleshooting#mistakes-that-raise-no-error",
    "oom": "troubleshooting#out-of-memory",
    "openai": "rollouts",
    "out of memory": "troubleshooting#out-of-memory",
    "packing": "packing",
    "padding": "which_layout",
    "parquet": "tables",
    "position_ids": "batches#positions",
    "ppo": "faq#which-algorithms-does-it-implement",
    "prefix caching": "trees",
    "ray": "ray",
    "remove_unused_columns": "collators",
    "router replay": "engine_fields#captured-fields",
    "sft": "tutorials/sft_packing",
    "sglang": "rollouts",
    "skyrl": "frameworks/skyrl",
    "tokenizer": "faq#does-it-tokenise",
    "tool calls": "tutorials/tool_use",
    "trl": "frameworks/trl",
    "truncation": "faq#does-it-truncate-long-rows",
    "verl": "frameworks/verl",
    "vllm": "rollouts",
}
"""A word, in lower case, to a page and the id of a section."""

LEFT_OUT = ("architecture", "changelog", "contributing", "internals")


class Words(SphinxTransform):
    """Give each page its words, as main entries of the index."""

    default_priority = 845  # before Sphinx collects the index

    def apply(self, **options: Any) -> None:
        """Add the entries of one page."""
        entries = []
        for word, target in WORDS.items():
            page, _, section = target.partition("#")
            if page == self.env.docname:
                if section and section not in self.document.ids:
                    raise ValueError(f"{page} has no section {section}")
                entries.append(("single", word, section, "main", None))
        if entries:
            self.document.insert(0, addnodes.index(entries=entries))


def pages_of_words(
    app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]
) -> list[str]:
    """Read pages with words in every build: Sphinx drops index entries of pages not read."""
    pages = {target.partition("#")[0] for target in WORDS.values()}
    return sorted(pages & env.found_docs) if added | changed | removed else []


def leave_out(app: Sphinx, env: BuildEnvironment) -> None:
    """Leave the text of pages on the project itself out of the search."""
    unknown = {target.partition("#")[0] for target in WORDS.values()} - env.found_docs
    if unknown:
        raise ValueError(f"search words lead to unknown pages: {sorted(unknown)}")
    for name in LEFT_OUT:
        env.metadata[name]["nosearch"] = ""


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the transform and the handlers."""
    app.add_transform(Words)
    app.connect("env-get-outdated", pages_of_words)
    app.connect("env-updated", leave_out)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
