"""A Sphinx extension that writes formulas as MathML, which browsers draw themselves: pages need no script from afar."""

from __future__ import annotations

from html import escape
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the renderer, which `html_math_renderer` chooses."""
    app.add_html_math_renderer("mathml", inline_renderers=(_inline, None), block_renderers=(_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(_mathml(node, as_block=False))
    raise nodes.SkipNode


def _block(translator: Any, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="formula">{_mathml(node, as_block=True)}</div>\n')
    raise nodes.SkipNode


def _mathml(node: nodes.Element, *, as_block: bool) -> str:
    text = node.astext()
    try:
        return str(tex2mathml(text, as_block=as_block))
    except MathError as error:
        logging.getLogger(__name__).warning("formula %r: %s", text, error, location=node)
        return f"<code>{escape(text)}</code>"
