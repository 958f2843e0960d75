"""The documentation site, built by `make docs`.

Sphinx, because it fails on warnings and on references without a target, and is what NumPy's
ecosystem uses; MkDocs 1 has had no release since 2024, and MkDocs 2 has no plugins. Pages are plain
Markdown that also reads well on GitHub. Nothing is fetched while building or viewing.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

project = "fastcollate"
author = "The fastcollate developers"
copyright = "The fastcollate developers"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "repository_links",
]
exclude_patterns = ["extensions"]
nitpicky = True

myst_heading_anchors = 4

html_theme = "furo"
html_title = "fastcollate"
html_baseurl = "https://fastcollate.github.io/fastcollate/"
html_static_path = ["static"]
html_css_files = ["site.css"]

copybutton_prompt_text = ">>> "
