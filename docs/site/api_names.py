"""Names of the Python API lead to their entry in the reference, also where a signature names them by their module.

`tpujob` exports what modules of `orchestrator` define, and the reference describes it as part of `tpujob`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tpujob

if TYPE_CHECKING:
    from docutils.nodes import Element
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

PAGE = "docs/python-reference"


def _resolve(app: Sphinx, env: BuildEnvironment, node: Element, text: Element) -> Element | None:
    target = str(node.get("reftarget", ""))
    module, _, name = target.rpartition(".")
    if node.get("refdomain") != "py" or not module.startswith("orchestrator"):
        return None
    public = next((each for each in (name, name.replace("Preview", "")) if each in tpujob.__all__), None)
    if public is None:
        return None
    return env.domains["py"].resolve_xref(env, node["refdoc"], app.builder, "class", f"tpujob.{public}", node, text)  # type: ignore[arg-type]


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("missing-reference", _resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
