"""MkDocs hooks: pages that are made of the code, pages from outside docs/, and Markdown as GitHub reads it.

Pages are written for GitHub and stay where they are. Three things are different on the site: README, SECURITY and so on
become pages of it, links to other files of the repository become their paths, and lists are indented by four spaces,
which is what Python-Markdown knows as "inside the item".
"""

from __future__ import annotations

import os.path
import posixpath
import re
import sys
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import markdown_of_code  # noqa: E402
import nav_of_folders  # noqa: E402

OUTSIDE: Final = {
    "README.md": "index.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing/index.md",
    "tests/README.md": "contributing/tests.md",
    "examples/README.md": "examples.md",
}
"""Pages of the repository that are pages of the site as well, and where."""

_LINK: Final = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
_FENCE: Final = re.compile(r"^\s*(```|~~~)")
_ITEM: Final = re.compile(r"^( *)([-*]|\d+\.) +")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """A folder in nav (`adr/*`) stands for its pages."""
    config.nav = nav_of_folders.spread(config.nav, ROOT / "docs")
    if not (ROOT / "CONTRIBUTING.md").exists():
        return config
    for section in config.nav or []:
        if "How it works" in section:
            section["How it works"].append({"Contributing": OUTSIDE["CONTRIBUTING.md"]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are no files of docs/."""
    for path, uri in OUTSIDE.items():
        if (ROOT / path).exists():
            files.append(File.generated(config, uri, content=(ROOT / path).read_text(encoding="utf-8")))
    for uri, text in markdown_of_code.pages().items():
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page with the site's links and indentation; the search finds users' pages only."""
    uri = page.file.src_uri
    if uri.startswith(("adr/", "contributing/")) or uri == "architecture.md":
        page.meta["search"] = {"exclude": True}
    source = next((path for path, own in OUTSIDE.items() if own == uri), f"docs/{uri}")
    return as_python_markdown(relink(markdown, source, uri))


def relink(text: str, source: str, uri: str) -> str:
    """Links of a page, which stands in the repository at `source` and on the site at `uri`.

    Raises PluginError for a link to a file that is not there.
    """

    def replace(match: re.Match[str]) -> str:
        image, label, target = match[1], match[2], match[3]
        path, hash_, anchor = target.partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return match[0]
        wanted = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if not (ROOT / wanted).exists() and not wanted.startswith("docs/reference/"):
            raise PluginError(f"{source}: link to {target}: there is no {wanted}")
        own = OUTSIDE.get(wanted) or (wanted.removeprefix("docs/") if wanted.startswith("docs/") else None)
        if own is not None:
            relative = os.path.relpath(own, posixpath.dirname(uri) or ".")
            return f"{image}[{label}]({relative}{hash_}{anchor})"
        return label if wanted in label else f"{label} (`{wanted}`)"

    return _outside_code(text, lambda prose: _LINK.sub(replace, prose))


def as_python_markdown(text: str) -> str:
    """Lists with four spaces for each level and an empty line before them; no backslashes in the code of tables."""
    result: list[str] = []
    levels: list[int] = []
    # columns at which the text of the open items begins
    fenced = False
    for line in text.splitlines():
        bare = line.lstrip(" ")
        indent = len(line) - len(bare)
        if fenced or not bare:
            fenced = fenced and not _FENCE.match(line)
            result.append(_moved(line, levels))
            continue
        while levels and indent < levels[-1]:
            levels.pop()
        item = _ITEM.match(line)
        if item and (not levels or indent >= levels[-1]):
            if result and result[-1].strip() and not levels and not _ITEM.match(result[-1]) and not _in_item(result):
                result.append("")
            result.append("    " * len(levels) + bare)
            levels.append(len(item[0]))
            continue
        if _FENCE.match(line):
            fenced = True
        if bare.startswith("|"):
            line = re.sub(r"`[^`]*`", lambda code: code[0].replace("\\|", "|"), line)
        result.append(_moved(line, levels))
    return "\n".join(result) + "\n"


def _in_item(lines: list[str]) -> bool:
    """The last paragraph belongs to a list."""
    for line in reversed(lines):
        if not line.strip():
            return False
        if _ITEM.match(line):
            return True
    return False


def _moved(line: str, levels: list[int]) -> str:
    return "    " * len(levels) + line[levels[-1] :] if levels and line.strip() else line


def _outside_code(text: str, change: Any) -> str:
    """The text with all changed that is not inside a fence; links may go on in the next line."""
    result: list[str] = []
    prose: list[str] = []
    fenced = False
    for line in text.split("\n"):
        fence = _FENCE.match(line) is not None
        if fence or fenced:
            if prose:
                result.append(change("\n".join(prose)))
                prose = []
            result.append(line)
        else:
            prose.append(line)
        fenced ^= fence
    if prose:
        result.append(change("\n".join(prose)))
    return "\n".join(result)
