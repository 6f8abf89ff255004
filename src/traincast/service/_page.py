"""The pages: the service's own in one document, and that of the API; neither fetches anything from anywhere else."""

import base64
import hashlib
import importlib.resources
import json
from functools import cache, partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Response

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

    plain = ("section", "name", "panel", "unit")
    fields = [
        {**{key: getattr(item, key) for key in plain}, "kind": item.kind.__name__, "help": item.description}
        for item in QUESTION_FIELDS
    ]
    known = {"fields": fields, "emit": list(EMITTERS), "described": sorted(DESCRIBED)}
    return json.dumps(known, ensure_ascii=False).replace("<", "\\u003c")


def _read(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _content_policy(script: str, *, style: str) -> str:
    """Only our own script runs and only our own service is called, whatever a model is named."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'self' 'sha256-{digest}'; style-src {style}; img-src data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


CONTENT_POLICY = _content_policy(_script(), style="'unsafe-inline'").replace("'self' 'sha", "'sha")
DOCS_SCRIPT = 'SwaggerUIBundle({url: "/openapi.json", dom_id: "#docs", tryItOutEnabled: true})'
DOCS = f"""<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>traincast: API</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="stylesheet" href="/docs/swagger-ui.css"></head>
<body><div id="docs"></div><script src="/docs/swagger-ui-bundle.js"></script><script>{DOCS_SCRIPT}</script></body></html>"""
DOCS_FILES = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css"}
"""Swagger UI as the package fastapi-offline brings it."""


@cache
def _docs_file(name: str) -> bytes:
    return importlib.resources.files("fastapi_offline").joinpath("static", name).read_bytes()


def add_pages(app: FastAPI) -> None:
    def add(path: str, content: Any, kind: str, policy: str) -> None:
        headers = {"Content-Security-Policy": policy, "Cache-Control": "no-cache"}

        @app.get(path, include_in_schema=False)
        async def page() -> Response:
            return Response(content(), media_type=kind, headers=headers)

    html = "text/html; charset=utf-8"
    add("/", compose_page, html, CONTENT_POLICY)
    add("/docs", DOCS.encode, html, _content_policy(DOCS_SCRIPT, style="'self' 'unsafe-inline'"))
    for name, kind in DOCS_FILES.items():
        add(f"/docs/{name}", partial(_docs_file, name), kind, "default-src 'none'; frame-ancestors 'none'")

    @app.get("/favicon.ico", include_in_schema=False)
    async def icon() -> Response:
        return Response(status_code=204)
