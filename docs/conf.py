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
    "numpydoc",
    "sphinx_copybutton",
    "llms_txt",
    "public_names",
    "repository_links",
]
exclude_patterns = ["extensions"]
nitpicky = True
# Code in docstrings, with a link where it is a name of the library.
default_role = "py:obj"
nitpick_ignore_regex = [("py:obj", ".*")]

autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
# Parameter sections have the types; overloads are then one signature.
autodoc_typehints = "none"
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False

myst_heading_anchors = 4

html_theme = "furo"
html_title = "fastcollate"
html_baseurl = "https://fastcollate.github.io/fastcollate/"
html_static_path = ["static"]
html_css_files = ["site.css"]

copybutton_prompt_text = ">>> "
