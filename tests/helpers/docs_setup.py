"""The packages that snippets and pages need."""

from importlib.util import find_spec

NEEDS = (  # the reason to skip a snippet that matches, unless the condition holds
    (r"\bskyrl\.(train|backends)\b", lambda: find_spec("skyrl") is not None, "needs skyrl"),
    (r"\bray\.(get|put_turns|plan_step|collate|data)\b", lambda: False, "in test_docs_ray.py"),
    (r"\b(SFT|GRPO)Trainer\(", lambda: False, "in test_trl_trainers.py"),
    *(
        (rf"\b{pattern}\b", lambda name=name: find_spec(name) is not None, f"needs {name}")
        for pattern, name in {
            "pyarrow": "pyarrow", "polars": "polars", "duckdb": "duckdb", "pandas": "pandas",
            "datasets": "datasets", "Trainer": "accelerate",
            "nemo_rl.distributed": "nemo_rl", "import transformers": "transformers",
            "tokenizer": "tokenizers", "model": "transformers", "flash_attn": "flash_attn",
            "verl.patch": "verl",
        }.items()
    ),
)  # fmt: skip

# Packages without which most of a page fails; by default torch alone.
PAGE_NEEDS = {
    "docs/balance.md": (), "docs/frameworks/index.md": ("transformers",),
    "docs/frameworks/trl.md": ("torch", "datasets"),
    "docs/frameworks/verl.md": ("torch", "tensordict"), "docs/looking.md": ("torch", "tokenizers"),
    "docs/merging.md": ("torch", "transformers", "tokenizers"),
    "docs/tables.md": ("torch", "pyarrow"),
    **{
        f"docs/{page}.md": ("torch", "transformers")
        for page in ("attention", "batches", "collators", "engine_fields", "packing", "steps",
                     "trees", "troubleshooting", "frameworks/transformers")
    },
}  # fmt: skip
