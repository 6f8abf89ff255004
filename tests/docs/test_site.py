import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
needs_mkdocs = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("mkdocs", "material", "mkdocstrings")),
    reason="needs traincast[docs]",
)


@needs_mkdocs
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "site" / "reference" / "forecast" / "index.html").read_text()
    assert "traincast.forecast.forecast" in page
    assert (tmp_path / "site" / "peers" / "index.html").exists()


def test_every_page_is_in_the_navigation() -> None:
    """A page that nobody can find is no documentation."""
    spec = importlib.util.spec_from_file_location("navigation", ROOT / "docs" / "navigation.py")
    assert spec is not None
    assert spec.loader is not None
    navigation = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(navigation)
    listed = set(re.findall(r"([\w/.-]+\.md)", str(navigation.list_pages())))
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert listed == pages
