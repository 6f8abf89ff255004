"""The page of `traincast schedule --html` in a real browser."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from traincast.cli.schedule import Options, compare_cases
from traincast.report import format_page

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no /usr/bin/chromium; apt-get install chromium")
UNDER_POINTER = """words => {
    const bar = [...document.querySelectorAll('svg rect')].filter(r => r.querySelector('title')?.textContent.includes(words))
        .sort((a, b) => b.getBoundingClientRect().width - a.getBoundingClientRect().width)[0];
    bar.scrollIntoView({block: 'center', inline: 'center'});
    const box = bar.getBoundingClientRect();
    const found = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
    return [bar.querySelector('title').textContent, found === bar];
}"""
"""What a bar would say, and whether it is what lies under the pointer there."""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = Options(cluster=["3x4"], policy="fifo,easy", html=Path("page.html"))
    read, cases = compare_cases("synthetic:60", given)
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(format_page(read, cases), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


@pytest.mark.parametrize("width", [1280, 360])
def test_bars_answer_to_the_pointer_and_the_page_keeps_its_width(browser: Any, written: Path, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.goto(written.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    told, reached = page.evaluate(UNDER_POINTER, "fifo,")
    assert reached, told
    page.close()


SIDEWAYS = """() => [...document.querySelectorAll('table')].filter(t => t.getBoundingClientRect().right > innerWidth
    || t.parentElement.scrollWidth > t.parentElement.clientWidth).length"""
"""How many tables have to be moved sideways to be read."""


def test_on_a_telephone_no_table_has_to_be_moved_sideways_and_cells_say_what_they_are(
    browser: Any, written: Path
) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 800})
    page.goto(written.as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.evaluate(SIDEWAYS) == 0
    cell = page.locator("td[data-of='mean wait']").first
    assert "mean wait" in cell.evaluate("c => getComputedStyle(c, '::before').content")
    page.close()
