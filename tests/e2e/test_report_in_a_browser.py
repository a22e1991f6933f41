"""The pages in a real browser: no error, no request, curves drawn, nothing hostile comes to life, and it fits a telephone.

Debian's Chromium does (`apt-get install chromium`); without one, these tests are skipped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.report.page import pages
from tests.cli_fixture import Tpujob
from tests.unit.report.page.test_page import HOSTILE, hostile_run
from tests.unit.report.page.world import plain_run, preempted_twice

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


pytestmark = pytest.mark.ci


@dataclass
class Seen:
    """A page, and everything that a browser had to say about it."""

    page: Page
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def drawn(self) -> list[int]:
        """Return for each chart how many pixels of it are not empty."""
        counted: list[int] = self.page.evaluate(
            """() => {
              const copy = canvas => { // for reading: the page's own need not be made for that
                const made = document.createElement("canvas");
                [made.width, made.height] = [canvas.width, canvas.height];
                const context = made.getContext("2d", { willReadFrequently: true });
                context.drawImage(canvas, 0, 0);
                return context;
              };
              return [...document.querySelectorAll(".plot canvas")].map(canvas => {
                const pixels = copy(canvas).getImageData(0, 0, canvas.width, canvas.height).data;
                let count = 0;
                for (let i = 3; i < pixels.length; i += 4) count += pixels[i] > 0;
                return count;
              });
            }"""
        )
        return counted

    def is_quiet(self) -> bool:
        return self.said == [] and self.asked == []


@contextmanager
def opened(browser: Browser, path: Path, **options: Any) -> Iterator[Seen]:
    context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
    seen = Seen(context.new_page())
    seen.page.on("console", lambda message: seen.said.append(message.text))
    seen.page.on("pageerror", lambda error: seen.said.append(str(error)))
    seen.page.on("request", lambda request: seen.asked.append(request.url))
    seen.page.on("dialog", lambda dialog: (seen.said.append(dialog.message), dialog.dismiss()))  # type: ignore[call-overload]
    seen.page.goto(path.as_uri())
    assert seen.asked.pop(0) == path.as_uri()
    seen.asked = [url for url in seen.asked if url != "data:,"]  # the icon: it is in the page
    yield seen
    context.close()


def written(path: Path, html: str) -> Path:
    path.write_text(html)
    return path


def test_the_page_of_a_run_is_drawn_without_an_error_and_without_a_request(browser: Browser, tpujob: Tpujob) -> None:
    job = """
name: fit
tpu: {zone: us-central1-a}
command: |
  for step in 1 2 3 4; do echo "{\\"step\\": $step, \\"loss\\": 0.$step}" >> "$TPUJOB_ARTIFACTS/metrics.jsonl"; done
"""
    assert tpujob("run", tpujob.job(job)).returncode == 0
    (path,) = tpujob.directory.glob("runs/*/report.html")
    with opened(browser, path) as seen:
        assert seen.is_quiet(), (seen.said, seen.asked)
        assert [count > 1000 for count in seen.drawn()] == [True]
        assert seen.page.inner_text("h1") == "fit" and "EMULATED" in seen.page.inner_text("header")
        seen.page.click("a:has-text('artifacts/metrics.jsonl')")
        assert seen.page.url.endswith("/worker0/artifacts/metrics.jsonl"), "links lead to the files beside the page"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_scheme_has_its_colors_and_text_that_can_be_read(browser: Browser, tmp_path: Path, scheme: Any) -> None:
    path = written(tmp_path / "page.html", preempted_twice(tmp_path / "a").page())
    with opened(browser, path, color_scheme=scheme) as seen:
        assert seen.is_quiet(), (seen.said, seen.asked)
        contrasts: dict[str, float] = seen.page.evaluate(CONTRASTS)
        assert {name: ratio for name, ratio in contrasts.items() if ratio < 4.5} == {}
        dark = seen.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 28)"
        assert dark == (scheme == "dark")


# The contrast (WCAG 2) of each kind of text with what is behind it.
CONTRASTS = """() => {
  const rgb = color => color.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map(v => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = element => {
    for (let e = element; e; e = e.parentElement) {
      const color = rgb(getComputedStyle(e).backgroundColor);
      if (color.length === 3 || color[3] > 0) return color;
    }
  };
  const found = {};
  const texts = "h1, h2, p, dt, dd, th, td, caption, small, a, summary, span, label, pre, li";
  for (const element of document.querySelectorAll(texts)) {
    if (!element.textContent.trim() || !element.getClientRects().length) continue;
    const [a, b] = [light(rgb(getComputedStyle(element).color)), light(behind(element))];
    const name = element.tagName + "." + element.className + " in " + element.parentElement.className;
    found[name] = Math.min(found[name] ?? 99, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05));
  }
  return found;
}"""


@pytest.mark.parametrize("kind", ["run", "runs", "preempted"])
def test_a_page_of_400_pixels_needs_no_scrolling_sideways(browser: Browser, tmp_path: Path, kind: str) -> None:
    one = plain_run(tmp_path / "a", name="a-name-that-is-longer-than-most-names-of-runs-are")
    if kind == "runs":
        two = plain_run(tmp_path / "b", run="9xk1abcdef")
        links = ["a", "b"]
        html = pages.runs_page([one.data(), two.data()], title="two", links=links, hide=lambda text: text)
    else:
        html = (one if kind == "run" else preempted_twice(tmp_path / "c")).page()
    with opened(browser, written(tmp_path / "page.html", html), viewport={"width": 400, "height": 800}) as seen:
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= 400
        assert seen.is_quiet() and min(seen.drawn()) > 1000


def test_nothing_hostile_comes_to_life(browser: Browser, tmp_path: Path) -> None:
    world = hostile_run(tmp_path / "a")
    world.write("logs/worker0.log", HOSTILE + "\n<meta http-equiv=refresh content='0;url=http://127.0.0.1:9/'>")
    world.write("worker0/artifacts/javascript:window.owned=1", "x")
    with opened(browser, written(tmp_path / "page.html", world.page())) as seen:
        seen.page.click("text=javascript:window.owned=1")
        seen.page.go_back()
        assert seen.page.evaluate("window.owned") is None and seen.page.query_selector("img") is None
        assert HOSTILE.replace("\u2028", "").strip() in seen.page.inner_text("pre.log >> nth=0").replace("\u2028", "")
        assert [text for text in seen.said if "ERR_FILE_NOT_FOUND" not in text] == []
        assert not any(url.startswith("http") for url in seen.asked)


def test_a_script_that_found_its_way_into_the_page_would_not_run(browser: Browser, tmp_path: Path) -> None:
    """The second line of defense: what is not the page's own script is refused, and so is every request."""
    smuggled = "<script>window.owned = 1</script><img src=http://127.0.0.1:9/x onerror='window.owned = 2'></body>"
    page = plain_run(tmp_path / "a").page().replace("</body>", smuggled)
    with opened(browser, written(tmp_path / "page.html", page)) as seen:
        assert seen.page.evaluate("window.owned") is None and min(seen.drawn()) > 1000
        assert any("Content Security Policy" in text for text in seen.said)


def test_curves_are_drawn_over_steps_and_over_time_and_the_keyboard_reads_them(
    browser: Browser, tmp_path: Path
) -> None:
    path = written(tmp_path / "page.html", plain_run(tmp_path / "a").page())
    with opened(browser, path) as seen:
        assert len(seen.drawn()) == 4 and min(seen.drawn()) > 1000, "loss, acc, throughput, seconds per step"
        plot = seen.page.locator(".plot").first
        plot.focus()
        seen.page.keyboard.press("End")
        assert seen.page.locator("[data-reading='0']").inner_text() == "step 200: 0.04213"
        seen.page.keyboard.press("ArrowLeft")
        assert seen.page.locator("[data-reading='0']").inner_text().startswith("step 199: ")
        seen.page.check("input[value=time]")
        plot.focus()
        seen.page.keyboard.press("End")
        assert seen.page.locator("[data-reading='0']").inner_text() == "21.96 s: 0.04213"
        seen.page.check("input[name=log]")
        assert min(seen.drawn()) > 1000 and seen.is_quiet()


def two_runs(directory: Path) -> Path:
    """Write the page of two runs that differ in a parameter; one of them has a reward, which is below 0 first."""
    one = plain_run(directory / "a", name="fit", spec={"params": {"lr": 0.1}})
    two = plain_run(directory / "b", name="fit", run="9xk1abcdef", spec={"params": {"lr": 0.3}})
    two.metrics({"step": step, "loss": 1 / step, "reward": step - 50} for step in range(1, 201))
    html = pages.runs_page([one.data(), two.data()], title="two", links=["a", "b"], hide=lambda text: text)
    return written(directory / "page.html", html)


def reading(seen: Seen, chart: int, key: str) -> str:
    """Return what a chart says under its cursor after this key."""
    seen.page.locator(".plot").nth(chart).focus()
    seen.page.keyboard.press(key)
    return seen.page.locator(f"[data-reading='{chart}']").inner_text()


def drawn_as(seen: Seen, what: str) -> list[str | None]:
    return [each.get_attribute(f"data-{what}") for each in seen.page.locator(".plot").all()]


def test_smoothing_is_a_moving_average_over_the_raw_values_and_off_by_default(browser: Browser, tmp_path: Path) -> None:
    path = written(tmp_path / "page.html", plain_run(tmp_path / "a").page())
    with opened(browser, path) as seen:
        assert drawn_as(seen, "curves") == ["1"] * 4 and seen.page.locator("output").inner_text() == "off"
        seen.page.get_by_label("smoothing").fill("0.5")
        assert drawn_as(seen, "curves") == ["2"] * 4, "the raw values stay"
        first, second = (2.3 * math.exp(-step / 50) for step in (1, 2))
        assert reading(seen, 0, "Home").endswith(f": {first:.4g} (smoothed {first:.4g})"), "no pull to 0"
        assert reading(seen, 0, "ArrowRight").endswith(f"(smoothed {(first + 2 * second) / 3:.4g})")
        seen.page.emulate_media(color_scheme="dark")  # it is drawn again
        assert drawn_as(seen, "curves") == ["2"] * 4 and seen.page.locator("output").inner_text() == "0.50"
        seen.page.get_by_label("smoothing").fill("0")
        assert drawn_as(seen, "curves") == ["1"] * 4 and seen.is_quiet()


def test_the_keyboard_switches_runs_off_in_all_charts_at_once(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, two_runs(tmp_path)) as seen:
        assert drawn_as(seen, "curves") == ["2", "1", "1", "2", "2"], "loss, acc, reward, throughput, seconds per step"
        assert "lr=0.1 0.04213 · lr=0.3 0.005" in reading(seen, 0, "End")
        seen.page.get_by_label("lr=0.3", exact=True).focus()
        seen.page.keyboard.press("Space")
        assert drawn_as(seen, "curves") == ["1", "1", "0", "1", "1"]
        assert reading(seen, 0, "End") == "step 200: lr=0.1 0.04213" and reading(seen, 2, "End") == ""
        seen.page.get_by_role("button", name="all off").press("Enter")
        assert drawn_as(seen, "curves") == ["0"] * 5
        assert not seen.page.get_by_label("lr=0.1", exact=True).is_checked()
        seen.page.get_by_role("button", name="all on").press("Enter")
        assert drawn_as(seen, "curves") == ["2", "1", "1", "2", "2"] and seen.is_quiet()


def test_a_logarithmic_axis_says_that_it_leaves_out_what_is_not_above_0(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, two_runs(tmp_path)) as seen:
        seen.page.get_by_label("logarithmic").check()
        assert drawn_as(seen, "y") == ["log"] * 5
        notes = [seen.page.locator(f"[data-note='{chart}']").inner_text() for chart in range(5)]
        assert [text[:38] for text in notes] == ["", "", "Values of 0 or less are left out: a lo", "", ""]
        assert reading(seen, 2, "Home") == "step 1:" and reading(seen, 2, "End") == "step 200: lr=0.3 150"
    world = plain_run(tmp_path / "c")
    world.metrics({"step": step, "loss": -step} for step in range(9))
    with opened(browser, written(tmp_path / "negative.html", world.page())) as seen:
        seen.page.get_by_label("logarithmic").check()
        assert drawn_as(seen, "y") == ["linear", "log", "log"], "a chart that has nothing else keeps its axis"
        assert seen.page.locator("[data-note='0']").inner_text() == "No value is above 0, so the axis is linear."
        assert seen.is_quiet()


def test_values_without_a_step_are_counted_and_have_no_time(browser: Browser, tmp_path: Path) -> None:
    world = plain_run(tmp_path / "a")
    world.metrics({"loss": 2 / number} for number in range(1, 51))
    with opened(browser, written(tmp_path / "page.html", world.page())) as seen:
        assert drawn_as(seen, "x") == ["value", "step", "step"] and reading(seen, 0, "End") == "value 50: 0.04"
        seen.page.get_by_label("time", exact=True).check()
        assert drawn_as(seen, "x") == ["value", "time", "time"] and reading(seen, 0, "End") == "value 50: 0.04"
        assert "It is not known when" in seen.page.locator("[data-note='0']").inner_text() and seen.is_quiet()


def test_what_is_seen_of_a_curve_stays_when_it_is_drawn_another_way(browser: Browser, tmp_path: Path) -> None:
    path = written(tmp_path / "page.html", plain_run(tmp_path / "a").page())
    with opened(browser, path) as seen:
        over = seen.page.locator(".u-over").first
        box = over.bounding_box()
        assert box is not None

        def in_the_middle() -> int:
            """Return the step under the middle of the chart."""
            seen.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 50)
            text = seen.page.locator("[data-reading='0']").inner_text()
            return int(text.removeprefix("step ").partition(":")[0])

        whole = in_the_middle()
        seen.page.mouse.move(box["x"], box["y"] + 50)
        seen.page.mouse.down()
        seen.page.mouse.move(box["x"] + box["width"] / 4, box["y"] + 50, steps=4)
        seen.page.mouse.up()
        zoomed = in_the_middle()
        assert zoomed < whole / 2
        seen.page.get_by_label("smoothing").fill("0.5")
        assert in_the_middle() == zoomed
        over.dblclick()
        seen.page.get_by_label("smoothing").fill("0")
        assert in_the_middle() == whole and seen.is_quiet()


def test_it_prints_in_light_colors_with_its_curves(browser: Browser, tmp_path: Path) -> None:
    path = written(tmp_path / "page.html", plain_run(tmp_path / "a").page())
    with opened(browser, path, color_scheme="dark") as seen:
        seen.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert seen.page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--ink')") == "#17202b"
        seen.page.emulate_media(media="print")
        edges = seen.page.evaluate(
            "[...document.querySelectorAll('.uplot')].map(plot => plot.getBoundingClientRect().right)"
        )
        assert min(seen.drawn()) > 1000 and max(edges) <= 700, "on a sheet no chart covers another"
        seen.page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert seen.page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--ink')") == "#e6eaf0"


def test_on_paper_the_legend_has_the_runs_that_are_drawn(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, two_runs(tmp_path)) as seen:
        seen.page.get_by_label("lr=0.3", exact=True).uncheck()
        seen.page.emulate_media(media="print")
        assert seen.page.locator(".controls").inner_text().split() == ["runs", "lr=0.1"]


def test_of_a_long_log_its_end_is_seen(browser: Browser, tmp_path: Path) -> None:
    world = plain_run(tmp_path / "a")
    for worker in (0, 1):
        world.write(f"logs/worker{worker}.log", "".join(f"line {number}\n" for number in range(500)))
    with opened(browser, written(tmp_path / "page.html", world.page())) as seen:
        summary, second = seen.page.locator("summary:has-text('worker 1')"), seen.page.locator("pre.log").nth(1)
        summary.click()
        second.evaluate("log => { log.scrollTop = 0; }")
        summary.click()
        summary.click()  # closed and opened again
        hidden = "log => log.scrollHeight - log.clientHeight - log.scrollTop"
        assert [log.evaluate(hidden) < 2 for log in seen.page.locator("pre.log").all()] == [True, True]


def test_a_screen_reader_gets_headings_captions_and_the_curves_in_words(browser: Browser, tmp_path: Path) -> None:
    path = written(tmp_path / "page.html", preempted_twice(tmp_path / "a").page())
    with opened(browser, path) as seen:
        missing = seen.page.evaluate(
            """() => ["table:not(:has(caption))", "svg[role=img]:not([aria-label])",
                      "section:not([aria-label]):not([aria-labelledby])"].flatMap(selector =>
                [...document.querySelectorAll(selector)].map(element => element.outerHTML.slice(0, 80)))"""
        )
        assert missing == []
        controls = "[...document.querySelectorAll('input, button')]"
        assert seen.page.evaluate(f"{controls}.filter(each => !each.labels.length && !each.innerText).length") == 0
        levels = [
            int(name[1])
            for name in seen.page.evaluate("[...document.querySelectorAll('h1,h2,h3')].map(h => h.tagName)")
        ]
        assert levels[0] == 1 and levels.count(1) == 1
        assert all(after - before <= 1 for before, after in pairwise(levels))
        seen.page.keyboard.press("Tab")
        assert seen.page.evaluate("document.activeElement.className") == "skip", "the first stop leads to the content"
