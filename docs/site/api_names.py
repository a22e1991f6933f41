"""How the reference shows the Python API: as part of `tpujob`, which exports what modules of `orchestrator` define.

Names in signatures lead to their entry. Of the classes only a `Client` shows what makes one; a job, a
result and an error show their fields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from docutils import nodes

import tpujob

if TYPE_CHECKING:
    from docutils.nodes import Element
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment


_NAMES = {inside: public for public, (_, inside) in tpujob._HOMES.items()}


def _resolve(app: Sphinx, env: BuildEnvironment, node: Element, text: Element) -> Element | None:
    target = str(node.get("reftarget", ""))
    module, _, name = target.rpartition(".")
    if node.get("refdomain") != "py" or not module.startswith("orchestrator"):
        return None
    public = _NAMES.get(name, name)
    if public not in tpujob.__all__:
        return None
    if public != name:
        text = nodes.Text(public)
    return env.domains["py"].resolve_xref(env, node["refdoc"], app.builder, "class", f"tpujob.{public}", node, text)  # type: ignore[arg-type]


def _signature(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    made_by_callers = what not in ("class", "exception") or obj is tpujob.Client
    return (signature, returns) if made_by_callers else ("", None)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-signature", _signature)
    app.connect("missing-reference", _resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
