"""The documentation site, built by `make docs`.

Sphinx, because it fails on warnings and on references without a target, and is what NumPy's
ecosystem uses; MkDocs 1 has had no release since 2024, and MkDocs 2 has no plugins. Pages are plain
Markdown that also reads well on GitHub. Nothing is fetched while building or viewing.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

from repository_links import URL

project = "fastcollate"
author = "The fastcollate developers"
copyright = "The fastcollate developers"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "numpydoc",
    "sphinx_copybutton",
    "llms_txt",
    "notebooks",
    "parameter_types",
    "public_names",
    "repository_links",
    "search_words",
    "summaries",
    "word_breaks",
]
nitpicky = True
# Code in docstrings, with a link where it is a name of the library.
default_role = "py:obj"
nitpick_ignore_regex = [("py:obj", ".*")]

autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_mock_imports = [name for name in ("ray", "torch") if find_spec(name) is None]
# Types are in the parameters' descriptions (parameter_types); overloads are then one signature.
autodoc_typehints = "none"
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False

# The page has headings and no figures until `make gpu` has run.
if "Not measured yet" in (Path(__file__).parent / "gpu.md").read_text("utf-8"):
    exclude_patterns = ["gpu.*"]
    suppress_warnings = ["toc.excluded"]

highlight_language = "text"
myst_heading_anchors = 4

# All pages in one sidebar; no fonts or scripts from elsewhere. pydata-sphinx-theme puts captions
# into a menu at the top and leaves the sidebar empty, and shibuya changes every few days.
html_theme = "furo"
pygments_dark_style = "github-dark"
html_title = "fastcollate"
html_baseurl = "https://fastcollate.github.io/fastcollate/"
html_copy_source = False  # llms_txt writes Markdown with absolute links
ICON = """<svg viewBox="0 0 16 16" fill="none" stroke="currentColor" stroke-width="1.5"
aria-hidden="true">
<circle cx="4" cy="3" r="2"/><circle cx="4" cy="13" r="2"/><circle cx="12" cy="5" r="2"/>
<path d="M4 5v6M12 7c0 3-8 1-8 4"/></svg>"""
html_theme_options = {
    "source_repository": URL,
    "source_branch": "main",
    "source_directory": "docs/",
    "footer_icons": [{"name": "Repository on GitHub", "url": URL, "html": ICON, "class": ""}],
}
html_static_path = ["static"]
html_favicon = "static/favicon.svg"
SENTENCE = "Turn ragged RL rollouts into training tensors: padded, packed or prefix-shared."
# For previews of links.
myst_html_meta = {
    "description": SENTENCE,
    "property=og:site_name": project,
    "property=og:description": SENTENCE,
    "property=og:image": f"{html_baseurl}_static/preview.png",
    "name=twitter:card": "summary_large_image",
}
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]

copybutton_prompt_text = ">>> "
