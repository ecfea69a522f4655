"""What the documentation needs beyond MkDocs: pictures that were measured, and examples in docstrings."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from recarc.board import Board, write_board

FOLDER = "measured"
KINDS = ("*.png", "*.svg")
QUOTES = r"<blockquote>\s*" * 3 + r"<p>(.*?)</p>\s*" + r"</blockquote>\s*" * 3


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Take pictures from paper/results/ without a second copy in the repository."""
    root = Path(config.docs_dir).parent / "paper" / "results"
    for path in sorted(p for kind in KINDS for p in root.rglob(kind)):
        files.append(File.generated(config, f"{FOLDER}/{path.relative_to(root).as_posix()}", abs_src_path=str(path)))
    return files


def on_post_build(config: MkDocsConfig) -> None:
    """The board as a page of its own, beside the documentation."""
    board = Path(config.docs_dir).parent / "paper" / "results" / "board.json"
    if board.exists():
        write_board(Board.read(board), Path(config.site_dir) / "board.html")


def on_page_markdown(markdown: str, **_: object) -> str:
    return markdown.replace("](../paper/results/", f"]({FOLDER}/")


def on_page_content(html: str, **_: object) -> str:
    """Lines that begin with >>> are code, not a quotation of a quotation of a quotation."""

    def code(found: re.Match[str]) -> str:
        lines = (re.sub(r"\s*# doctest:.*", "", line) for line in found[1].splitlines())
        return f'<div class="highlight"><pre><code>{chr(10).join(lines)}</code></pre></div>'

    return re.sub(QUOTES, code, html, flags=re.DOTALL)
