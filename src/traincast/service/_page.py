"""The page: markup, style and scripts put into one document that fetches nothing from anywhere else."""

import base64
import hashlib
import json
from functools import cache
from pathlib import Path

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = (
    *("format.js", "charts.js", "asked.js", "state.js", "exports.js", "runs.js", "whatif.js"),
    *("forecast.js", "plan.js", "schedule.js", "main.js"),
)
"""In the order in which they build on each other."""


@cache
def compose_page() -> bytes:
    markup = (ASSETS / "index.html").read_text(encoding="utf-8")
    markup = markup.replace("/* style */", _read("style.css")).replace("/* asked */", _describe_asked())
    return markup.replace("/* script */", _script()).encode()


@cache
def _script() -> str:
    inner = "\n".join(_read(name) for name in SCRIPTS)
    return f'"use strict";\n(() => {{\n{inner}\n}})();'


def _describe_asked() -> str:
    """Every field of a question and every kind of file, from where the command has them; data, which no browser runs."""
    from traincast.configs import DESCRIBED
    from traincast.plan import EMITTERS
    from traincast.spec import QUESTION_FIELDS

    fields = [
        {
            "section": item.section,
            "name": item.name,
            "kind": item.kind.__name__,
            "panel": item.panel,
            "unit": item.unit,
            "help": item.description,
        }
        for item in QUESTION_FIELDS
    ]
    known = {"fields": fields, "emit": list(EMITTERS), "described": sorted(DESCRIBED)}
    return json.dumps(known, ensure_ascii=False).replace("<", "\\u003c")


def _read(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _content_policy() -> str:
    """Only our own script runs and only our own service is called, whatever a model is named."""
    digest = base64.b64encode(hashlib.sha256(_script().encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


CONTENT_POLICY = _content_policy()
