"""The page in a real browser: every control, every state it can be in, and nothing from anywhere else."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from service.conftest import Running
from service.test_answers import saved_graph
from traincast.service._page import compose_page
from traincast.spec import QUESTION_FIELDS

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no /usr/bin/chromium; apt-get install chromium")
PATIENCE_MS = 90_000
PHONE = {"width": 360, "height": 740}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as running:
        # In a container Chromium has no sandbox of its own; the only pages it opens are ours.
        opened = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Any, service: Running) -> Iterator[Any]:
    """A fresh page that must end without an error in its console and without a request to anybody else."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    context.set_default_timeout(PATIENCE_MS)
    opened = context.new_page()
    complaints: list[str] = []
    foreign: list[str] = []
    refused = re.compile(r"status of 4\d\d")
    opened.on("console", lambda said: said.type in ("error", "warning") and complaints.append(said.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("request", lambda sent: sent.url.startswith((service.url, "data:", "blob:")) or foreign.append(sent.url))
    yield opened
    context.close()
    assert not foreign
    # Chromium itself reports each answer of 4xx; those are the refusals that a test asks for.
    assert not [each for each in complaints if not refused.search(each)]


def visit(page: Any, service: Running, address: str = "") -> None:
    page.goto(f"{service.url}/{address}")


def wait_step(page: Any) -> str:
    page.wait_for_selector("#panel-forecast .cards")
    return str(page.inner_text("#panel-forecast .figure >> nth=0"))


def ask_after(page: Any, action: Any) -> dict[str, Any]:
    """The body of the forecast that an action causes, once it is answered; what the page asked before is let through first."""
    page.wait_for_load_state("networkidle")
    page.wait_for_selector("#ask:not([disabled])", state="attached")
    with page.expect_request(lambda request: request.url.endswith("/forecast")) as asked:
        action()
    assert asked.value.response() is not None
    sent: dict[str, Any] = json.loads(asked.value.post_data)
    return sent


def test_the_page_is_one_document_that_names_nothing_outside() -> None:
    text = compose_page().decode()
    assert "/* style */" not in text
    assert "/* script */" not in text
    assert not re.findall(r"(?:src|href|url\()\s*=?\s*[\"'(]?https?://", text)


def test_a_first_visit_shows_a_whole_forecast(page: Any, service: Running) -> None:
    visit(page, service)
    assert re.fullmatch(r"[\d.]+ (ms|s)", wait_step(page))
    shown = page.inner_text("#panel-forecast")
    for words in (
        "90% between",
        "What dominates",
        "Memory over the step",
        "Timeline of the step",
        "Slowest tasks",
        "sure",
    ):
        assert words in shown
    assert page.locator("#timeline-card svg rect").count() > 50
    assert "one step takes" in page.inner_text("#status")
    page.click("#fit")
    page.wait_for_selector("#fit-answer .notes")
    assert "largest batch" in page.inner_text("#fit-answer")


def test_every_field_of_the_job_reaches_the_service(page: Any, service: Running) -> None:
    visit(page, service, "#name=gpt2&batch=4&nodes=2&devices_per_node=4")
    wait_step(page)

    def set_all() -> None:
        values = {
            "seq": "256", "inter": "100Gb/s", "price": "2.5", "tensor": "2", "pipeline": "2", "context": "1", "expert": "1",
            "micro_batches": "4", "steps": "500",
        }  # fmt: skip
        for field, value in values.items():
            page.fill(f"#{field}", value)
        for field, value in {
            "precision": "bf16-amp",
            "optimizer": "adam",
            "recompute": "full",
            "order": "gpipe",
        }.items():
            page.select_option(f"#{field}", value)
        page.select_option("#zero", "1")
        page.check("#sequence_parallel")
        page.check("#compiled")
        page.click("#ask")

    sent = ask_after(page, set_all)
    assert sent["workload"] == {"name": "gpt2", "batch": 4, "seq": 256, "precision": "bf16-amp", "optimizer": "adam"}
    assert sent["cluster"] == {
        "device": "a100-80g", "nodes": 2, "devices_per_node": 4, "price_per_device": 2.5, "inter": "100Gb/s",
    }  # fmt: skip
    degrees = {"tensor": 2, "pipeline": 2, "context": 1, "expert": 1, "micro_batches": 4, "zero": 1}
    assert sent["parallelism"] == {**degrees, "recompute": "full", "order": "gpipe", "sequence_parallel": True}
    assert sent["job"] == {"steps": 500, "compiled": True}


def test_a_machine_can_be_chosen_instead_of_a_device(page: Any, service: Running) -> None:
    visit(page, service, "#name=gpt2&batch=1&nodes=1")
    wait_step(page)
    sent = ask_after(page, lambda: page.check("input[name=kind][value=machine]"))
    assert sent["cluster"] == {"machine": "aws-p4d.24xlarge", "nodes": 1}
    assert page.inner_text("#device-label") == "Machine"
    assert page.locator("#machines option").count() > 100


def test_the_address_holds_what_was_asked(page: Any, service: Running) -> None:
    visit(page, service, "#name=resnet50&batch=16&device=h100&nodes=1&devices_per_node=2&tab=scaling")
    page.wait_for_selector("#panel-scaling svg")
    assert page.input_value("#name") == "resnet50"
    page.fill("#batch", "32")
    page.press("#batch", "Enter")
    page.wait_for_url("**batch=32**")
    page.click("#share")
    page.wait_for_selector("#status:text-matches('link|address')")
    again = page.evaluate("location.href")
    page.goto("about:blank")
    page.goto(again)
    page.wait_for_selector("#panel-scaling svg")
    assert page.input_value("#batch") == "32"
    page.click("#reset")
    assert page.input_value("#name") == "gpt2-xl"


def test_scaling_draws_sizes_and_cost(page: Any, service: Running) -> None:
    visit(page, service, "#name=gpt2&batch=2&nodes=1&devices_per_node=4")
    wait_step(page)
    page.click("#tab-scaling")
    page.wait_for_selector("#panel-scaling tbody tr")
    counts = page.locator("#panel-scaling tbody tr td:first-child").all_inner_texts()
    assert counts[:3] == ["1", "2", "4"]
    assert page.locator("#panel-scaling svg[role=img]").count() == 2


def test_a_wrong_name_is_explained_where_the_answer_would_be(page: Any, service: Running) -> None:
    visit(page, service, "#device=b20")
    page.wait_for_selector("#panel-forecast [role=alert]")
    assert "did you mean 'b200'?" in page.inner_text("#panel-forecast")
    assert "error" in (page.get_attribute("#status", "class") or "")
    page.fill("#device", "b200")
    page.press("#device", "Enter")
    wait_step(page)


def test_a_graph_is_uploaded_and_forgotten_again(page: Any, service: Running, tmp_path: Path) -> None:
    file = tmp_path / "mlp.json"
    file.write_text(json.dumps(saved_graph()))
    visit(page, service, "#name=gpt2&batch=2&precision=&zero=&nodes=1&devices_per_node=1")
    wait_step(page)
    sent = ask_after(page, lambda: page.set_input_files("#file", str(file)))
    assert sent["workload"] == {"model": sent["workload"]["model"], "batch": 32}
    assert "mlp.json" in page.inner_text("#file-label")
    assert page.is_disabled("#name")
    assert "model=" in page.evaluate("location.hash")
    page.click("#forget")
    assert not page.is_disabled("#name")
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    page.set_input_files("#file", str(bad))
    page.wait_for_selector("#panel-forecast [role=alert]")
    assert "neither model_type nor architectures" in page.inner_text("#panel-forecast")


def test_a_config_whose_sizes_say_everything_is_asked_like_a_name(page: Any, service: Running, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    config = {"model_type": "llama", "hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 4, "vocab_size": 32000,
              "num_attention_heads": 8, "max_position_embeddings": 2048}  # fmt: skip
    file.write_text(json.dumps(config))
    visit(page, service, "#name=gpt2&nodes=1&devices_per_node=2")
    wait_step(page)
    sent = ask_after(page, lambda: page.set_input_files("#file", str(file)))
    assert sent["configs"][0]["name"] == "config.json"
    page.wait_for_selector("#command:has-text('--layers 4')")
    assert "--seq 2048" in page.inner_text("#command")


def test_plans_are_searched_and_one_is_taken_over(page: Any, service: Running) -> None:
    visit(page, service, "#tab=plan&name=gpt2&seq=256&nodes=1&devices_per_node=2&max_gpus=2&global_batch=4&top=20")
    page.fill("#deadline", "48")
    page.fill("#budget", "5000")
    page.select_option("#objective", "money")
    page.click("#plan-ask")
    page.wait_for_selector("#plans tbody tr, #plan-answer .problem")
    assert page.locator("#plan-answer .problem").count() == 0
    assert page.locator("#plan-answer svg circle").count() >= page.locator("#plans tbody tr").count() > 1
    sent = ask_after(page, lambda: page.click("#plans tbody tr >> nth=0 >> button"))
    assert sent["cluster"]["nodes"] >= 1
    assert page.get_attribute("#tab-forecast", "aria-selected") == "true"
    page.click("#tab-plan")
    page.fill("#budget", "0.0001")
    page.click("#plan-ask")
    page.wait_for_selector("#plan-answer .empty")
    assert "No plan keeps every limit" in page.inner_text("#plan-answer")


def make_rows(count: int) -> list[dict[str, Any]]:
    degrees = {"data": 4, "tensor": 2, "pipeline": 1, "context": 1, "expert": 1, "virtual_stages": 1, "micro_batches": 2,
               "zero": 1, "sequence_parallel": False, "recompute": "none", "order": "1f1b"}  # fmt: skip
    return [
        {"cluster": f"{place} x <b>box</b>", "device": "a100-sxm4-80g", "num_nodes": 1, "devices_per_node": 8, "num_devices": 8,
         "usd_per_hour": 20.0, "batch": 4, "parallelism": degrees, "step_s": 0.5, "job_s": 3600.0 + 37 * place % 991,
         "job_low_s": 3000.0, "job_high_s": 5000.0, "usd": 100.0 + 53 * place % 997, "energy_joules": 1e9, "peak_bytes": 4e10,
         "capacity_bytes": 8e10, "needed_bytes": 5e10,
         "fit_probability": 1.0, "deadline_probability": None, "on_front": place % 100 == 0}
        for place in range(count)
    ]  # fmt: skip


def test_a_thousand_plans_are_sorted_by_any_column(page: Any, service: Running) -> None:
    result = {"plans": make_rows(1000), "front": [], "num_plans": 5000, "num_evaluated": 4000, "num_pruned": 1000,
              "excluded": {"memory": 7}, "nearest": None, "notes": [], "num_clusters": 3, "left_out": {}}  # fmt: skip
    job = {"id": "0" * 32, "kind": "plan", "state": "done", "done": 1, "total": 1, "words": "", "error": None,
           "created_s": 0.0, "finished_s": 1.0, "result": result}  # fmt: skip
    # The search itself is tested elsewhere; here the table is, with as many rows as a search may give.
    page.route("**/plan", lambda route: route.fulfill(status=202, json=job))
    visit(page, service, "#tab=plan")
    page.click("#plan-ask")
    page.wait_for_selector("#plans tbody tr >> nth=999")
    assert page.locator("#plans b").count() == 0, "a name is never read as markup"
    for column, attribute in ((3, "ascending"), (3, "descending"), (4, "ascending")):
        page.click(f"#plans thead th >> nth={column} >> button")
        head = page.locator("#plans thead th").nth(column)
        assert head.get_attribute("aria-sort") == attribute
        texts = page.locator(f"#plans tbody tr td:nth-child({column + 1})").all_inner_texts()
        amounts = [float(re.sub(r"[^\d.]", "", text)) for text in texts]
        assert amounts == sorted(amounts, reverse=attribute == "descending")


def test_a_schedule_is_simulated_and_drawn(page: Any, service: Running, tmp_path: Path) -> None:
    visit(page, service, "#tab=schedule&trace_jobs=40&fleet=2x4:a100@2")
    page.check("#policies input[value=las]")
    page.uncheck("#policies input[value=easy]")
    page.click("#schedule-ask")
    page.wait_for_selector("#measures tbody tr, #schedule-answer .problem")
    assert page.locator("#measures tbody tr td:first-child").all_inner_texts() == ["fifo", "srtf", "las"]
    assert page.locator("#gantt svg rect").count() >= 40
    page.select_option("#gantt-policy", label="las")
    assert "las" in page.locator("#gantt svg").get_attribute("aria-label")
    log = tmp_path / "log.csv"
    log.write_text("job_id,submit_s,num_gpus,duration_s\na,0,1,60\nb,10,4,120\n")
    page.set_input_files("#trace-file", str(log))
    page.click("#schedule-ask")
    page.wait_for_selector("#schedule-answer h2:has-text('2 jobs')")
    page.click("#trace-forget")
    assert page.is_enabled("#trace_jobs")
    for name in ("fifo", "srtf", "las"):
        page.uncheck(f"#policies input[value={name}]")
    page.click("#schedule-ask")
    page.wait_for_selector("#schedule-answer .problem")
    assert "choose at least one" in page.inner_text("#schedule-answer")


def test_a_job_is_cancelled_from_the_page(page: Any, service: Running) -> None:
    visit(page, service, "#tab=schedule&trace_jobs=20000&fleet=64x8&policies=conservative")
    page.click("#schedule-ask")
    page.wait_for_selector("#schedule-answer .cancel")
    page.click("#schedule-answer .cancel")
    page.wait_for_selector("#schedule-answer .problem")
    assert "cancelled" in page.inner_text("#schedule-answer")


def test_a_job_is_cancelled_before_the_service_has_named_it(page: Any, service: Running) -> None:
    visit(page, service, "#tab=schedule&trace_jobs=20000&fleet=64x8&policies=conservative")
    # Both clicks in one turn of the page: no answer can come between them.
    page.evaluate(
        """() => { document.querySelector("#schedule-ask").click();
                   document.querySelector("#schedule-answer .cancel").click(); }"""
    )
    page.wait_for_selector("#schedule-answer .problem")
    assert "cancelled" in page.inner_text("#schedule-answer")


def test_the_page_works_from_the_keyboard_alone(page: Any, service: Running) -> None:
    visit(page, service, "#name=gpt2&batch=2&nodes=1")
    wait_step(page)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.focus("#tab-forecast")
    for key, wanted in (("ArrowRight", "scaling"), ("ArrowRight", "plan"), ("End", "runs"), ("ArrowRight", "forecast"),
                        ("ArrowLeft", "runs"), ("Home", "forecast")):  # fmt: skip
        page.keyboard.press(key)
        assert page.evaluate("document.activeElement.id") == f"tab-{wanted}"
        assert page.is_visible(f"#panel-{wanted}")
    page.focus("#batch")
    page.keyboard.press("Control+A")
    sent = ask_after(page, lambda: (page.keyboard.type("3"), page.keyboard.press("Enter")))
    assert sent["workload"]["batch"] == 3


def test_every_control_has_a_name_and_every_chart_a_description(page: Any, service: Running) -> None:
    visit(page, service)
    wait_step(page)
    nameless = page.evaluate(
        """[...document.querySelectorAll('input, select, button')].filter((each) => !(each.labels && each.labels.length)
        && !each.textContent.trim() && !each.getAttribute('aria-label')).map((each) => each.outerHTML)"""
    )
    assert nameless == []
    assert page.locator("svg.chart:not([aria-label])").count() == 0
    assert page.get_attribute("#status", "aria-live") == "polite"
    assert page.locator("html[lang=en]").count() == 1


def test_a_phone_shows_everything_without_sideways_scrolling(browser: Any, service: Running) -> None:
    context = browser.new_context(viewport=PHONE, has_touch=True, is_mobile=True, color_scheme="dark")
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    for tab in ("forecast", "scaling", "plan", "schedule", "runs"):
        page.goto("about:blank")
        visit(page, service, f"#name=gpt2&batch=2&nodes=1&tab={tab}")
        page.wait_for_selector(f"#panel-{tab} .card")
        page.wait_for_selector("#ask:not([disabled])", state="attached")
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert page.get_attribute("html", "data-theme") == "dark"
    # The answer stands first; the form is opened over it and goes away with the question.
    page.click("#tab-forecast")
    assert page.locator("#panel-forecast .cards").bounding_box()["y"] < PHONE["height"] / 2
    assert page.is_hidden("#form")
    page.click("#edit")
    assert page.get_attribute("#edit", "aria-expanded") == "true"
    assert page.evaluate("document.activeElement.id") == "name"
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    page.keyboard.press("Escape")
    assert page.is_hidden("#form")
    page.click("#edit")
    page.fill("#batch", "3")
    assert ask_after(page, lambda: page.click("#ask"))["workload"]["batch"] == 3
    assert page.is_hidden("#form")
    context.close()


def test_light_and_dark_are_chosen_and_kept(page: Any, service: Running) -> None:
    visit(page, service)
    assert page.get_attribute("html", "data-theme") == "light"
    page.click("#theme")
    assert page.get_attribute("html", "data-theme") == "dark"
    page.reload()
    assert page.get_attribute("html", "data-theme") == "dark"
    assert page.get_attribute("#theme", "aria-pressed") == "true"


def test_a_token_is_asked_for_once(page: Any, service: Running) -> None:
    def guard(route: Any) -> None:
        if route.request.headers.get("authorization") == "Bearer open sesame":
            route.continue_()
        else:
            route.fulfill(status=401, json={"detail": "a token is needed"})

    page.route("**/forecast", guard)
    page.route("**/catalog/**", guard)
    visit(page, service)
    page.fill("#token", "open sesame")
    page.keyboard.press("Enter")
    wait_step(page)


def test_a_service_that_went_away_is_named(page: Any, service: Running) -> None:
    visit(page, service)
    wait_step(page)
    page.route("**/forecast", lambda route: route.fulfill(status=429, json={"detail": "256 requests wait already"}))
    page.click("#ask")
    page.wait_for_selector("#panel-forecast [role=alert]")
    assert "256 requests wait already" in page.inner_text("#panel-forecast")


def test_what_was_assumed_and_what_the_answer_is_for_stand_on_the_page(page: Any, service: Running) -> None:
    visit(page, service, "#name=gpt2&batch=2&precision=bf16&nodes=1&devices_per_node=2&tensor=2&stack=megatron-core")
    wait_step(page)
    said = str(page.inner_text("#assumptions"))
    assert "bf16" in said
    assert "framework megatron-core" in said
    assert "splits the sequence along the tensor axis" in said


def test_a_regime_is_asked_for_and_its_phases_are_shown(page: Any, service: Running) -> None:
    visit(page, service, "#name=gpt2&batch=8&nodes=1&devices_per_node=8&zero=3")
    wait_step(page)

    def choose() -> None:
        page.select_option("#regime", "grpo")
        page.fill("#group_size", "4")
        page.fill("#prompt_tokens", "64")
        page.fill("#response_tokens", "128")
        page.click("#ask")

    sent = ask_after(page, choose)
    assert sent["job"] == {
        "steps": 10000,
        "regime": "grpo",
        "group_size": 4,
        "prompt_tokens": 64,
        "response_tokens": 128,
    }
    page.wait_for_selector("#phases")
    shown = page.inner_text("#phases")
    assert all(name in shown for name in ("rollout", "scoring", "training", "weight sync", "fits"))


SMALL_PLAN = "#tab=plan&name=gpt2&seq=256&nodes=1&devices_per_node=2&max_gpus=2&global_batch=4&top=20"
ONE_STEP = "#name=gpt2&batch=2&seq=256&nodes=1&devices_per_node=2"


def read_download(page: Any, action: Any) -> bytes:
    with page.expect_download() as found:
        action()
    return Path(found.value.path()).read_bytes()


def test_the_memory_on_the_page_is_that_of_the_command(page: Any, service: Running) -> None:
    visit(page, service, ONE_STEP)
    wait_step(page)
    card = page.inner_text("#panel-forecast .cards .figure >> nth=4")
    assert page.text_content("#memory-card .peak") == f"peak {card}"
    assert f"at most {card} of" in page.get_attribute("#memory-card svg", "aria-label")
    command = shlex.split(page.inner_text("#command"))
    said = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, check=True).stdout
    assert f"{card} of" in said
    assert page.inner_text("#panel-forecast .figure >> nth=0") in said


def test_runs_are_kept_named_and_compared(page: Any, service: Running, browser: Any) -> None:
    visit(page, service, ONE_STEP)
    wait_step(page)
    for batch in ("4", "8", "16", "32"):
        page.fill("#batch", batch)
        ask_after(page, lambda: page.click("#ask"))
        page.wait_for_selector(f"#command:text-matches('--batch {batch} ')")
    page.click("#tab-runs")
    page.fill("#runs tbody tr >> nth=0 >> .run-name", "the large batch")
    page.press("#runs tbody tr >> nth=0 >> .run-name", "Enter")
    page.reload()
    page.wait_for_selector("#runs tbody tr >> nth=4")
    assert page.input_value("#runs tbody tr >> nth=0 >> .run-name") == "the large batch"
    for row in range(4):
        page.check(f"#runs tbody tr >> nth={row} >> .compare")
    assert page.is_disabled("#runs tbody tr >> nth=4 >> .compare"), "four runs stand side by side, not more"
    heads = page.locator("#side-by-side thead th").all_inner_texts()
    assert heads[0] == "the large batch"
    assert len(heads) == 4
    assert page.locator("#side-by-side tr.setting th").all_inner_texts() == ["batch"]
    rows = read_download(page, lambda: page.click("#compared-csv")).decode().splitlines()
    assert rows[1].startswith("the large batch,")
    assert rows[1].endswith("--steps 10000")
    assert len(json.loads(read_download(page, lambda: page.click("#runs-json")))) == 5
    # Somebody else, with an empty browser, opens the comparison by its address.
    other = browser.new_context()
    other.set_default_timeout(PATIENCE_MS)
    guest = other.new_page()
    guest.goto(page.evaluate("location.href"))
    guest.wait_for_selector("#side-by-side")
    assert guest.locator("#side-by-side thead th").all_inner_texts() == heads
    other.close()
    page.click("#runs tbody tr >> nth=3 >> button:has-text('Open')")
    wait_step(page)
    assert page.input_value("#batch") == "4"


def test_a_search_survives_a_reload_and_its_link_opens_it(page: Any, service: Running, browser: Any) -> None:
    visit(page, service, SMALL_PLAN)
    page.click("#plan-ask")
    page.wait_for_url("**plan_job=**")
    page.reload()
    page.wait_for_selector("#plans tbody tr, #plan-answer .problem")
    rows = page.locator("#plans tbody tr").all_inner_texts()
    assert len(rows) > 1
    assert len(json.loads(read_download(page, lambda: page.click("#plans-json")))["plans"]) == len(rows)
    assert len(read_download(page, lambda: page.click("#plans-csv")).decode().splitlines()) == len(rows) + 1
    asked: list[str] = []
    other = browser.new_context()
    other.set_default_timeout(PATIENCE_MS)
    guest = other.new_page()
    guest.on("request", lambda sent: asked.append(f"{sent.method} {sent.url}"))
    guest.goto(page.evaluate("location.href"))
    guest.wait_for_selector("#plans tbody tr")
    assert guest.locator("#plans tbody tr").all_inner_texts() == rows
    assert not [each for each in asked if each.startswith("POST") and each.endswith("/plan")]
    guest.goto("about:blank")
    guest.goto(f"{service.url}/{SMALL_PLAN}&plan_job={'0' * 32}")
    guest.wait_for_selector("#plan-answer .problem")
    assert "too old to be kept" in guest.inner_text("#plan-answer")
    other.close()


def test_what_does_not_fit_is_said_first(page: Any, service: Running) -> None:
    visit(page, service, "#name=gpt2-xl&batch=64&nodes=1&devices_per_node=1&precision=fp32")
    page.wait_for_selector("#unfit")
    assert "It does not fit: a device needs" in page.inner_text("#panel-forecast > :first-child")
    page.click("#unfit-ask")
    page.wait_for_selector("#unfit-answer li:has-text('largest batch')")
    assert "NaN" not in page.inner_text("#unfit-answer")


def test_sliders_answer_while_they_move(page: Any, service: Running) -> None:
    visit(page, service, ONE_STEP)
    wait_step(page)
    before = page.inner_text("#panel-forecast .cards")
    page.focus("#what-if-batch")
    sent = ask_after(page, lambda: page.keyboard.press("ArrowRight"))
    assert (sent["workload"]["batch"], sent["detail"]) == (4, False)
    page.wait_for_selector("#what-if-answer:has-text('tokens per second')")
    sent = ask_after(page, lambda: (page.focus("#what-if-gpus"), page.keyboard.press("ArrowRight")))
    assert sent["cluster"]["devices_per_node"] * sent["cluster"]["nodes"] == 4
    sent = ask_after(page, lambda: (page.focus("#what-if-seq"), page.keyboard.press("ArrowRight")))
    assert sent["workload"]["seq"] == 512
    assert page.inner_text("#panel-forecast .cards") == before
    sent = ask_after(page, lambda: page.click("#what-if-use"))
    assert (sent["workload"]["batch"], sent["workload"]["seq"], sent["detail"]) == (4, 512, True)


def test_the_page_asks_all_that_the_command_asks(page: Any, service: Running, tmp_path: Path) -> None:
    visit(page, service, f"{ONE_STEP}&job.tokens=1.5B")
    wait_step(page)
    ids = set(page.evaluate("[...document.querySelectorAll('#form [id]')].map((each) => each.id)"))
    renamed = {"price_per_device": "price", "node": "device"}
    for item in QUESTION_FIELDS:
        assert {f"{item.section}.{item.name}", renamed.get(item.name, item.name)} & ids, item.name

    def tune() -> None:
        page.fill("[id='workload.adapter_rank']", "16")
        page.select_option("[id='workload.packing']", "no")
        page.click("summary")
        page.fill("[id='job.startup_s']", "5min")
        page.click("#ask")

    sent = ask_after(page, tune)
    assert sent["job"] == {"tokens": 1.5e9, "startup_s": 300}
    assert (sent["workload"]["adapter_rank"], sent["workload"]["packing"]) == (16, False)
    page.fill("[id='job.tokens']", "many")
    page.click("#ask")
    page.wait_for_selector("#panel-forecast [role=alert]:has-text('such as 10k')")
    file = tmp_path / "ds_config.json"
    file.write_text(
        json.dumps({"train_micro_batch_size_per_gpu": 3, "zero_optimization": {"stage": 2}, "bf16": {"enabled": True}})
    )
    page.set_input_files("#configs", str(file))
    page.wait_for_selector("#panel-forecast [role=alert]")
    page.fill("#name", "gpt2")
    sent = ask_after(page, lambda: page.click("#ask"))
    assert sent["configs"][0]["name"] == "ds_config.json"
    assert sent["workload"] == {"name": "gpt2"}
    page.wait_for_selector("#command:has-text('--zero 2')")
    assert "--batch 3" in page.inner_text("#command")
    # The link of the page carries the file to somebody who does not have it.
    link = page.url
    other = page.context.browser.new_context()
    fresh = other.new_page()
    fresh.set_default_timeout(PATIENCE_MS)
    fresh.goto(link)
    fresh.wait_for_selector("#command:has-text('--zero 2')")
    assert "ds_config.json" in fresh.inner_text("#configs-label")
    other.close()


def test_a_forecast_is_taken_along(page: Any, service: Running) -> None:
    visit(page, service, ONE_STEP)
    wait_step(page)
    kept = json.loads(read_download(page, lambda: page.click("#export-json")))
    assert kept["answer"]["step"]["seconds"] > 0
    head, row = read_download(page, lambda: page.click("#export-csv")).decode().splitlines()
    assert head.split(",")[:2] == ["name", "step_s"]
    assert str(kept["answer"]["step"]["seconds"]) in row
    drawing = read_download(page, lambda: page.click("#memory-card .chart-tools button >> nth=0")).decode()
    assert drawing.startswith("<svg")
    assert "var(" not in drawing
    assert read_download(page, lambda: page.click("#memory-card .chart-tools button >> nth=1"))[:4] == b"\x89PNG"
    page.select_option("#emit-kind", "torchrun")
    page.click("#emit")
    page.wait_for_selector("#emitted")
    assert "torchrun" in page.inner_text("#emitted")
    page.click("#advise")
    page.wait_for_selector("#advice li")
    assert "One step of gpt2" in page.inner_text("#advice")


COMPARED = [[f"batch {batch}", f"name=gpt2&nodes=1&batch={batch}"] for batch in (2, 4, 8, 16)]
AXE = Path(find_spec("axe_playwright_python").origin).with_name("axe.min.js")  # type: ignore[union-attr, arg-type]
STATES = {
    "forecast": ("#name=gpt2-xl", None, "#panel-forecast .cards"),
    "does-not-fit": ("#name=llama-2-7b&nodes=1&devices_per_node=1", None, "#panel-forecast .figure.bad"),
    "error": ("#device=b20", None, "#panel-forecast [role=alert]"),
    "regime": ("#name=gpt2&regime=grpo&group_size=4&zero=3&nodes=1", None, "#phases"),
    "scaling": ("#name=gpt2&tab=scaling", None, "#panel-scaling tbody tr"),
    "plan-empty": ("#tab=plan", None, "#plan-answer .empty"),
    "plan": (SMALL_PLAN, "#plan-ask", "#plans tbody tr"),
    "schedule": ("#tab=schedule&trace_jobs=60", "#schedule-ask", "#gantt svg"),
    "compared": (f"#tab=runs&{urlencode({'compare': json.dumps(COMPARED)})}", None, "#side-by-side"),
    "runs": ("#tab=runs", None, "#runs tbody tr"),
}


WIDTHS = [1440, 768, 390] if os.environ.get("TRAINCAST_ARTEFACTS") else [390]
"""Where nobody asks for pictures, the narrowest page is looked at."""


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
def test_every_state_has_a_picture(browser: Any, service: Running, tmp_path: Path, width: int) -> None:
    """Pictures go to TRAINCAST_ARTEFACTS, else to pytest's own folder."""
    folder = Path(os.environ.get("TRAINCAST_ARTEFACTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    # The page's own rules keep foreign scripts out, axe among them.
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme="light", bypass_csp=True)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    for name, (address, click, ready) in STATES.items():
        page.goto("about:blank")
        visit(page, service, address)
        if click is not None:
            page.click(click)
        page.wait_for_selector(ready)
        page.wait_for_selector("#ask:not([disabled])", state="attached")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{name} is wider than {width}"
        for _ in ("light", "dark"):
            path = folder / f"{name}-{width}-{page.get_attribute('html', 'data-theme')}.png"
            page.screenshot(path=str(path), full_page=True)
            assert path.stat().st_size > 5_000
            assert not find_barriers(page), f"{name} at {width} px: {find_barriers(page)}"
            page.click("#theme")
    context.close()


def find_barriers(page: Any) -> list[str]:
    """What axe finds for people who use a keyboard or a screen reader, folded parts opened."""
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run()")["violations"]
    return [f"{each['id']}: {node['html'][:90]}" for each in found for node in each["nodes"]]
