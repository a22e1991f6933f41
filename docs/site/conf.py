"""How Sphinx builds the docs site: `make site` writes build/site/index.html. Its source is this repository, as it is.

The source directory is the root of the checkout, so a relative link leads to the same place on a code host and on the site.
Nothing is loaded from another host, while building or while reading.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pygments.lexers.special import TextLexer

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]

from orchestrator import __version__  # noqa: E402 - the checkout is found by the line above

project = "tpujob"
author = "the authors of tpujob"
project_copyright = "the authors of tpujob. License: Apache-2.0"
version = release = __version__

# -- what is a page ------------------------------------------------------------------------------------------------------

root_doc = "docs/index"
source_suffix = {".md": "markdown"}
include_patterns = [
    "*.md",
    "docs/*.md",
    "orchestrator/README.md",
    "cloud_tpu_emulator/README.md",
    "payload/README.md",
    "bench/RESULTS.md",
    "tests/faults/*.md",
]
# Sphinx walks every folder that is not named here.
exclude_patterns = ["build", "dist", "runs", "jobs", "**/.*", "**/__pycache__", "**/*.egg-info", "**/node_modules"]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "navigation",  # these are beside this file
    "listings",
    "search_codes",
    "api_names",
]

# -- Markdown ------------------------------------------------------------------------------------------------------------

myst_heading_anchors = 6  # the same anchors as on a code host
myst_enable_extensions = ["deflist"]

# -- Python --------------------------------------------------------------------------------------------------------------

smartquotes = False
default_role = "py:obj"  # docstrings have code in single backticks; a name of the API leads to its entry
autodoc_default_options = {"members": True, "undoc-members": True}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 130

# -- HTML ----------------------------------------------------------------------------------------------------------------

html_theme = "furo"
html_theme_options = {
    "light_css_variables": {
        "sidebar-item-spacing-vertical": "0.28rem",
        "sidebar-caption-space-above": "1.1rem",
        "toc-spacing-vertical": "1rem",
    },
}
html_title = f"tpujob {__version__}"
html_short_title = "tpujob"
templates_path = ["templates"]
html_additional_pages = {"index": "home.html"}  # build/site/index.html leads to docs/index.html
html_static_path = ["static"]
html_favicon = "static/favicon.svg"
html_css_files = ["site.css"]
html_search_scorer = str(Path(__file__).with_name("scorer.js"))
html_copy_source = False
html_use_index = html_domain_indices = False  # the search finds more
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "github-dark"
highlight_language = "text"

copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True


def setup(app: Sphinx) -> None:
    app.add_lexer("cron", TextLexer)  # Pygments has none for it
