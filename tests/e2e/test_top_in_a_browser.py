"""`tpujob top --open` in a real browser: it renews itself, keeps what was chosen, works by keyboard, and stays harmless."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.api.live.served import served
from tests.unit.report.page.test_page import HOSTILE, hostile_run
from tests.unit.report.page.world import World, plain_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.ci


@contextmanager
def looking(browser: Browser, address: str, **options: Any) -> Iterator[tuple[Page, list[str]]]:
    """Open an address where nothing else of a network is there; yield the page, and what the browser had to say."""
    context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
    page, said = context.new_page(), list[str]()
    context.route(
        "**/*", lambda route: route.continue_() if route.request.url.startswith(address[:20]) else route.abort()
    )
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("requestfailed", lambda request: said.append(request.url))
    page.goto(address)
    yield page, said
    context.close()


def going_on(directory: Path, steps: int = 50) -> World:
    world = World(directory)
    world.work(world.begin(), 30.0)
    write(world, steps)
    return world


def write(world: World, steps: int) -> None:
    world.metrics({"step": step, "loss": 2.0 / step} for step in range(1, steps))
    world.write("logs/worker0.log", "".join(f"line {step}\n" for step in range(1, steps)))


def test_the_curves_and_the_log_of_a_run_grow_and_what_was_chosen_stays(browser: Browser, tmp_path: Path) -> None:
    world = going_on(tmp_path / "a")
    with served(world) as server, looking(browser, f"{server.address}run/{world.run}/") as (page, said):
        page.locator('.plot[data-drawn="49"]').wait_for()
        page.locator("text=logarithmic").click()
        page.locator("summary", has_text="The job as it was run").click()
        page.locator("[name=smoothing]").fill("0.5")
        write(world, 80)
        page.locator('.plot[data-drawn="79"][data-y="log"]').wait_for()
        page.locator("pre.log", has_text="line 79").wait_for()
        assert page.locator("output").inner_text() == "0.50"
        assert page.locator("details[open] summary", has_text="The job as it was run").count() == 1
        assert page.evaluate("document.activeElement.name") == "smoothing", "the focus stays, too"
        assert said == []


def test_a_log_that_was_closed_stays_closed_however_much_of_it_is_left_out(browser: Browser, tmp_path: Path) -> None:
    world = going_on(tmp_path / "a", steps=9000)
    with served(world) as server, looking(browser, f"{server.address}run/{world.run}/") as (page, said):
        log = page.locator("summary", has_text="bytes are in the file only")
        log.focus()
        page.keyboard.press("Enter")
        before = log.inner_text()
        write(world, 9500)
        page.wait_for_function("before => !document.body.innerText.includes(before)", arg=before)
        assert log.count() == 1 and page.locator("details[open] summary", has_text="worker 0").count() == 0
        assert page.evaluate("document.activeElement.tagName") == "SUMMARY" and said == []


def test_what_is_selected_and_where_the_caret_is_stay(browser: Browser, tmp_path: Path) -> None:
    world = going_on(tmp_path / "a")
    with served(world, step=49) as server, looking(browser, server.address) as (page, said):
        page.locator("[name=filter]").fill("mnist step>4")
        page.evaluate("document.querySelector('[name=filter]').setSelectionRange(2, 4)")
        drawn = page.locator("header.top").evaluate_handle("each => each")
        page.wait_for_function("drawn => !drawn.isConnected", arg=drawn)
        found = "(({ selectionStart, selectionEnd }) => [selectionStart, selectionEnd])(document.activeElement)"
        assert page.evaluate(found) == [2, 4]
        page.evaluate("getSelection().selectAllChildren(document.querySelector('h1'))")
        page.evaluate("new Promise(done => setTimeout(done, 2 * document.documentElement.dataset.renews))")
        assert page.evaluate("getSelection().toString()") == "What goes on"
        drawn = page.locator("header.top").evaluate_handle("each => each")
        page.evaluate("getSelection().removeAllRanges()")
        page.wait_for_function("drawn => !drawn.isConnected", arg=drawn)
        assert said == []


def test_the_page_of_a_run_that_ends_says_so_and_asks_no_more(browser: Browser, tmp_path: Path) -> None:
    world = going_on(tmp_path / "a")
    with served(world) as server, looking(browser, f"{server.address}run/{world.run}/") as (page, said):
        page.locator("[role=status]", has_text="follows the run").wait_for()
        _, attempt = world.ledger.run(world.run)
        world.end(attempt.id, None)
        page.locator(".badge", has_text="succeeded").wait_for()
        assert page.evaluate("document.documentElement.dataset.renews") == ""
        assert said == []


def test_the_table_is_sorted_and_filtered_by_keyboard_and_leads_to_a_run(browser: Browser, tmp_path: Path) -> None:
    world = going_on(tmp_path / "a")
    with served(world, step=49, zone="us-central1-a") as server, looking(browser, server.address) as (page, said):
        page.locator("[name=filter]").focus()
        page.keyboard.type("nothing has this")
        page.locator("output", has_text="0 of 1 rows").wait_for()
        assert page.locator("tbody tr:visible").count() == 0
        page.locator("[name=filter]").fill("CENTRAL1 mnist")
        page.locator("output", has_text="1 of 1 rows").wait_for()
        page.locator("thead button", has_text="step").focus()
        page.keyboard.press("Enter")
        page.locator('th[aria-sort="descending"]', has_text="step").wait_for()
        page.keyboard.press("Enter")
        page.locator('th[aria-sort="ascending"]', has_text="step").wait_for()
        page.locator("tbody a").focus()
        page.keyboard.press("Enter")
        page.locator("h1", has_text="mnist").wait_for()
        page.locator(".brand a").click()
        page.locator("h1", has_text="What goes on").wait_for()
        assert said == []


def test_the_filter_takes_the_conditions_of_the_command(browser: Browser, tmp_path: Path) -> None:
    fields: dict[str, Any] = {"step": 1049, "usd_so_far": 0.05, "zone": "us-central1-a"}
    with served(going_on(tmp_path / "a"), **fields) as server, looking(browser, server.address) as (page, said):
        for typed, shown in {
            "state=RUN*": 1, "state=queued": 0, "state!=queued": 1, "cost>0.02": 1, "cost > 0.02 step>=1049": 1,
            "cost<0.02": 0, "step=1049 mnist": 1, "step=104?": 0, "zone='us-central1-?'": 1, "at_most=": 1, "hbm>0": 0,
        }.items():  # fmt: skip
            page.locator("[name=filter]").fill(typed)
            assert page.locator("output").inner_text() == f"{shown} of 1 rows", typed
        page.locator("[name=filter]").fill("foo=3")
        assert "1 of 1 rows · no column foo; there are name, run, state" in page.locator("output").inner_text()
        page.locator("[name=filter]").fill("cost>much")
        assert page.locator("output").inner_text() == "1 of 1 rows · > compares with a number"
        assert said == []


def test_a_reload_keeps_the_order_and_the_filter(browser: Browser, tmp_path: Path) -> None:
    with served(going_on(tmp_path / "a"), step=49) as server, looking(browser, server.address) as (page, said):
        page.locator("[name=filter]").fill("step>40")
        page.locator("thead button", has_text="step").click()
        page.reload()
        page.locator('th[aria-sort="descending"]', has_text="step").wait_for()
        assert page.locator("[name=filter]").input_value() == "step>40" and said == []


def test_a_column_in_which_no_row_has_anything_takes_no_room(browser: Browser, tmp_path: Path) -> None:
    with served(going_on(tmp_path / "a"), step=49) as server, looking(browser, server.address) as (page, _):
        assert page.locator("thead button", has_text="step").is_visible()
        assert page.locator("thead button", has_text="hbm").is_hidden()
        assert "-" not in page.locator("tbody tr :visible").all_inner_texts()


@pytest.mark.parametrize("width", [1200, 1440])
def test_a_window_of_a_desk_shows_all_columns(browser: Browser, tmp_path: Path, width: int) -> None:
    fields: dict[str, Any] = {
        "name": "a-name-of-a-job", "accelerator_type": "v5litepod-16", "zone": "us-central1-a", "step": 12_345,
        "metric": "loss", "value": 0.25, "rate": 1200.0, "rate_of": "images", "cpu_percent": 12.0,
        "hbm_percent": 45.0, "duty_percent": 80.0,
        "usd_so_far": 1.5, "usd_at_most": 12.0, "until": 1_700_009_000.0,
    }  # fmt: skip
    options = {"viewport": {"width": width, "height": 800}}
    with served(going_on(tmp_path / "a"), **fields) as server, looking(browser, server.address, **options) as (page, _):
        assert page.evaluate("(box => box.scrollWidth - box.clientWidth)(document.querySelector('.scroll'))") == 0
        head, label = page.locator("thead th").first.bounding_box(), page.locator("thead button").first.bounding_box()
        assert head and label and head["height"] < 1.6 * label["height"], "the heads are on one line"


def test_a_server_that_has_ended_is_said(browser: Browser, tmp_path: Path) -> None:
    with served(going_on(tmp_path / "a")) as server, looking(browser, server.address) as (page, _):
        server.close()
        page.locator("[role=status]", has_text="No answer").wait_for()
        assert page.locator("tbody tr").count() == 1, "what was seen last stays"


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 1200), ("light", 400), ("dark", 400)])
def test_all_can_read_it(browser: Browser, tmp_path: Path, scheme: Any, width: int) -> None:
    from axe_playwright_python.sync_playwright import Axe  # only where there is a browser

    world = going_on(tmp_path / "a")
    options = {"color_scheme": scheme, "viewport": {"width": width, "height": 800}}
    fields: dict[str, Any] = {
        "step": 49,
        "metric": "loss",
        "value": 0.25,
        "usd_so_far": 1.5,
        "remark": "held; `tpujob collect` fetches them",
    }
    with served(world, **fields) as server:
        for path in ("", f"run/{world.run}/"):
            with looking(browser, server.address + path, **options) as (page, said):
                page.locator("main section").first.wait_for()
                found = Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]})
                assert [each["id"] for each in found.response["violations"]] == []
                assert page.evaluate("document.documentElement.scrollWidth") <= width
                assert said == []


def test_nothing_hostile_comes_to_life_also_when_it_is_renewed(browser: Browser, tmp_path: Path) -> None:
    world = hostile_run(tmp_path / "a")
    world.write("logs/worker0.log", f"{HOSTILE}\n" * 5)
    fields: dict[str, Any] = {
        "metric": HOSTILE,
        "remark": HOSTILE,
        "zone": HOSTILE,
        "node": HOSTILE,
        "value": 1.0,
        "ended_at": None,
    }
    with served(world, **fields) as server, looking(browser, server.address) as (page, said):
        page.locator("tbody tr").wait_for()
        page.evaluate("document.querySelector('h1').dataset.seen = '1'")
        page.locator("h1:not([data-seen])").wait_for()  # it was renewed
        assert page.evaluate("window.owned") is None
        page.goto(f"{server.address}run/{world.run}/")
        page.locator("h1").wait_for()
        assert page.evaluate("window.owned") is None and said == []


def test_a_file_of_the_job_is_downloaded_not_shown(browser: Browser, tmp_path: Path) -> None:
    world = plain_run(tmp_path / "a")
    world.write("worker0/artifacts/page.html", "<script>document.title = 'owned'</script>")
    with served(world) as server, looking(browser, f"{server.address}run/{world.run}/") as (page, _):
        with page.expect_download() as download:
            page.click("text=artifacts/page.html")
        assert download.value.suggested_filename == "page.html" and "owned" not in page.title()
