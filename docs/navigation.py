"""The navigation of the docs site: every page there is, in the order in which a reader needs them."""

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
Entry = dict[str, Any]


def list_pages() -> list[Entry]:
    return [
        {"Home": "index.md"},
        {"Getting started": "getting-started.md"},
        {"Is it right for me?": "right-for-me.md"},
        {"Tutorials": list_folder("tutorials")},
        {"How-to": [*list_folder("how-to"), {"Regimes": list_folder("how-to/regimes")}]},
        {"Accuracy": "accuracy.md"},
        {"Beside other tools": "peers.md"},
        {
            "Theory": [
                {"Concepts": "concepts.md"},
                {"Glossary": "glossary.md"},
                *list_folder("theory"),
                *list_folder("model-cards"),
            ]
        },
        {"Reference": list_folder("reference")},
        {"Extend": list_folder("extend")},
        {"Development": [{"Layout": "layout.md"}, *list_folder("adr")]},
        *[{title_of(page): page.name} for page in sorted(DOCS.glob("*.md")) if page.name not in PLACED],
    ]


PLACED = {
    "index.md", "getting-started.md", "right-for-me.md", "accuracy.md", "peers.md", "concepts.md", "glossary.md", "layout.md"
}  # fmt: skip


def list_folder(name: str) -> list[Entry]:
    return [{title_of(page): f"{name}/{page.name}"} for page in sorted((DOCS / name).glob("*.md"))]


def title_of(page: Path) -> str:
    first = page.read_text(encoding="utf-8").partition("\n")[0]
    return first.lstrip("# ") or page.stem


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for every page: the site does not hold `research/`, so links into it become plain text there."""
    return re.sub(
        r"\[([^\]]*)\]\((?:\.\./)+((?:research|benchmarks|src|tests)/[^)]*|[A-Z]+\.md)\)", r"\1 (`\2`)", markdown
    )


def on_config(config: Any) -> Any:
    """Called by mkdocs before it builds."""
    config["nav"] = list_pages()
    return config
