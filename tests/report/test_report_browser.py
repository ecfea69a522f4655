"""The page in a real browser: Chromium without a network."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_runs import SCRIPT

from recarc.board import Board, Row, write_board
from recarc.evaluation import Evaluation
from recarc.report import build_report, load_runs, write_page

pytestmark = pytest.mark.xdist_group("report")  # one worker, so that the runs are made once
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="browser tests need: pip install 'recarc[browser]'")
    if CHROMIUM is None:
        pytest.skip("browser tests need Chromium: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS, headless=True)
        yield running
        running.close()


@pytest.fixture(scope="module")
def address(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    report = build_report(load_runs([runs]), title=f"A report on {SCRIPT}")
    return write_page(report, tmp_path_factory.mktemp("page") / "report.html").as_uri()


class Opened:
    """A page, and everything that went wrong on it."""

    def __init__(self, browser: Any, address: str, width: int = 1280, scheme: str = "light") -> None:
        viewport = {"width": width, "height": 850}
        self.context = browser.new_context(viewport=viewport, color_scheme=scheme, offline=True)
        self.page = self.context.new_page()
        self.problems: list[str] = []
        self.page.on("console", lambda message: self.problems.append(message.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.problems.append("a dialog"), dialog.dismiss()))
        requests: list[str] = []
        self.page.on("request", lambda request: requests.append(request.url))
        self.page.goto(address)
        self.problems += [url for url in requests if not url.startswith(("file:", "data:"))]

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()
        assert self.problems == []

    def rescored(self) -> dict[str, float]:
        rows = self.page.locator("#what-if [data-line]").all()
        return {r.get_attribute("data-line"): float(r.locator(".value").get_attribute("data-value")) for r in rows}

    def slide(self, name: str, value: float) -> None:
        move = "(e, v) => { e.value = v; e.dispatchEvent(new Event('input', { bubbles: true })); }"
        self.page.locator(f"#{name}").evaluate(move, value)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_opens_quietly_and_fits(browser: Any, address: str, width: int, scheme: str) -> None:
    with Opened(browser, address, width, scheme) as opened:
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
        assert opened.page.locator("h1").inner_text() == f"A report on {SCRIPT}"
        assert opened.page.locator("main h2").count() >= 6


def test_no_tick_is_cut_off_on_a_narrow_screen(browser: Any, runs: Path, tmp_path: Path) -> None:
    """Radii such as 8/255 are wide: those of the sweep are changed to such."""
    swept = load_runs([runs / "over_eps"])
    for run, eps in zip(swept, (2 / 255, 128 / 255)):
        run.configuration["ball"]["eps"] = eps
    page = write_page(build_report(swept), tmp_path / "page.html")
    outside = """() => [...document.querySelectorAll("svg.plot text")].filter((text) => {
      const [one, all] = [text.getBoundingClientRect(), text.ownerSVGElement.getBoundingClientRect()];
      return one.left < all.left - 0.5 || one.right > all.right + 0.5;
    }).map((text) => text.textContent)"""
    for width in (390, 1280):
        with Opened(browser, page.as_uri(), width) as opened:
            assert opened.page.locator("svg.plot text", has_text="128/255").count() == 1
            assert opened.page.evaluate(outside) == []


def test_names_show_as_text(browser: Any, address: str) -> None:
    with Opened(browser, address) as opened:
        opened.page.locator("summary", has_text="runs").click()
        assert SCRIPT in opened.page.locator("#repeat").inner_text()
        assert SCRIPT in opened.page.title()


def test_only_its_own_script_and_style_are_run(browser: Any, runs: Path, tmp_path: Path) -> None:
    page = write_page(build_report(load_runs([runs / "arc"])), tmp_path / "report.html")
    text, foreign = page.read_text(encoding="utf-8"), "<style>h1 { display: none }</style>"
    foreign += "<script>document.title = 'taken'</script><img src='data:,' onerror='document.title = 1'>"
    foreign += "<p id='odd' style='position: fixed'>text</p>"
    page.write_text(text.replace("<main>", f"<main>{foreign}"), encoding="utf-8")
    opened = Opened(browser, page.as_uri())
    opened.page.wait_for_timeout(200)
    assert opened.page.title() == build_report(load_runs([runs / "arc"])).title
    assert opened.page.locator("h1").is_visible()
    assert opened.page.evaluate("getComputedStyle(document.getElementById('odd')).position") == "static"
    assert len([p for p in opened.problems if "Content Security Policy" in p]) == 4 == len(opened.problems)
    opened.context.close()


@pytest.mark.parametrize("first", [0.0, 0.25, 0.5, 1.0])
def test_the_slider_shows_what_python_computes(browser: Any, address: str, runs: Path, first: float) -> None:
    with Opened(browser, address) as opened:
        before = opened.rescored()
        opened.slide("alpha-0", first)
        after = opened.rescored()
        assert after != before
        for name, folder in (("AdaptivePGD", "adaptive_pgd"), ("ARC", "arc"), ("Tight", "tight")):
            expected = Evaluation.load(runs / folder).robust_at([first, 1 - first]).value
            assert after[name] == pytest.approx(expected, abs=1e-9)
            shown = opened.page.locator(f'#what-if [data-line="{name}"] .value').inner_text()
            assert shown == f"{100 * expected:.2f}"
        found = build_report(load_runs([runs])).rescoring
        assert found is not None and after["worst"] == pytest.approx(found.worst([first, 1 - first]), abs=1e-9)
        assert opened.page.locator("#alpha-text-1").inner_text() == f"{1 - first:.2f}"
        opened.page.get_by_role("button", name="Back to the evaluated alpha").click()
        opened.page.locator("#alpha-text-0", has_text="0.60").wait_for()
        assert opened.rescored() == before


def test_three_sliders_are_normalised(browser: Any, runs_of_three: Path, tmp_path: Path) -> None:
    page = write_page(build_report(load_runs([runs_of_three])), tmp_path / "report.html")
    with Opened(browser, page.as_uri()) as opened:
        for k, weight in enumerate((1.0, 0.5, 0.5)):
            opened.slide(f"alpha-{k}", weight)
        expected = Evaluation.load(runs_of_three / "arc").robust_at([0.5, 0.25, 0.25]).value
        assert opened.rescored()["ARC"] == pytest.approx(expected, abs=1e-9)
        assert [opened.page.locator(f"#alpha-text-{k}").inner_text() for k in range(3)] == ["0.50", "0.25", "0.25"]


def test_a_series_can_be_switched_off_and_on(browser: Any, address: str) -> None:
    with Opened(browser, address) as opened:
        figure = opened.page.locator("#curves figure").first
        button = figure.locator('.legend button[data-series="AdaptivePGD"]')
        series = figure.locator('svg.plot .series[data-series="AdaptivePGD"]')
        assert series.is_visible() and button.get_attribute("aria-pressed") == "true"
        button.click()
        assert not series.is_visible() and button.get_attribute("aria-pressed") == "false"
        button.press("Enter")
        assert series.is_visible()


def test_hovering_tells_the_figures(browser: Any, address: str, runs: Path) -> None:
    with Opened(browser, address) as opened:
        plot = opened.page.locator("#curve-1")
        plot.scroll_into_view_if_needed()
        box = plot.bounding_box()
        assert box is not None
        opened.page.mouse.move(box["x"] + 0.11 * box["width"], box["y"] + 0.5 * box["height"])
        tip = opened.page.locator("#curves .tip").first
        expected = Evaluation.load(runs / "over_alpha" / "alpha=0.5" / "tight").robust_accuracy
        assert tip.is_visible() and f"Tight {100 * expected:.1f} %" in tip.inner_text()
        opened.page.mouse.move(2, 2)
        assert not tip.is_visible()


def test_dark_and_light(browser: Any, address: str) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    with Opened(browser, address, scheme="light") as opened, Opened(browser, address, scheme="dark") as dark:
        light = opened.page.evaluate(background)
        assert dark.page.evaluate(background) != light
        opened.page.locator("#theme").click()
        assert opened.page.evaluate(background) == dark.page.evaluate(background)
        opened.page.locator("#theme").click()
        assert opened.page.evaluate(background) == light


CONTRAST = """() => {
  const linear = (v) => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const bright = ([r, g, b]) => .2126 * linear(r) + .7152 * linear(g) + .0722 * linear(b);
  const parse = (text) => {
    const v = text.match(/[\\d.]+/g).map(Number);
    return { rgb: v.slice(0, 3), a: v.length > 3 ? v[3] : 1 };
  };
  const behind = (element) => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) layers.push(parse(getComputedStyle(e).backgroundColor));
    const over = (under, c) => c.rgb.map((v, i) => v * c.a + under[i] * (1 - c.a));
    return layers.reverse().reduce(over, [255, 255, 255]);
  };
  const low = [];
  for (const e of document.querySelectorAll("body *")) {
    if (!e.checkVisibility() || e.closest("svg, script, style")) continue;
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
    const [a, b] = [bright(parse(getComputedStyle(e).color).rgb), bright(behind(e))];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) low.push(`${ratio.toFixed(2)} ${e.tagName} ${e.textContent.trim().slice(0, 30)}`);
  }
  return low;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(browser: Any, address: str, scheme: str) -> None:
    with Opened(browser, address, scheme=scheme) as opened:
        assert opened.page.evaluate(CONTRAST) == []


def test_it_prints(browser: Any, address: str) -> None:
    with Opened(browser, address, scheme="dark") as opened:
        opened.page.emulate_media(media="print")
        assert not opened.page.locator("nav").is_visible()
        assert opened.page.pdf().startswith(b"%PDF")


def board_of(gains: dict[str, float]) -> Board:
    """One row a method, with these gains in points; every second is in l2."""
    figures = {"eps": 0.1, "samples": 100, "clean": 0.8, "adaptive_pgd": 0.5, "arc": 0.4, "floor": 0.3}
    board = Board()
    for k, (method, points) in enumerate(gains.items()):
        gain = {"value": points / 100, "low": points / 100 - 0.005, "high": points / 100 + 0.005}
        row = Row(
            method=method,
            norm="l2" if k % 2 else "linf",
            members=2 + k,
            alpha=[1 / (2 + k)] * (2 + k),
            tight={"value": 0.35, "low": 0.3, "high": 0.4},
            verdict="open",
            best_member=0.35 - points / 100,
            gain=gain,
            gain_at_floor=-0.05,
            most=0.01,
            alone=[0.3] * (2 + k),
            cross=[[0.4] * (2 + k)] * (2 + k),
            curve=[[0.0, 0.3, 0.3], [0.5, 0.32, 0.3], [1.0, 0.3, 0.3]],
            vote=0.31,
            flops=8.1e7,
            minutes=1.0 + k,
            provenance={
                "command": f"recarc evaluate {method}",
                "training": f"recarc train {method}",
                "rivals": {"vote": {"checked": {}, "signals": ["gradients_disagree", "random_beats_gradients"]}},
            },
            **figures,
        )
        board = board.with_row(row)
    return board


def test_the_board_sorts_filters_and_opens(browser: Any, tmp_path: Path) -> None:
    page = write_board(board_of({"b": 1.0, "a": -3.0, SCRIPT: 0.2}), tmp_path / "board.html").as_uri()
    for width in (1280, 1200, 390):
        with Opened(browser, page, width) as opened:
            assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
            names = "() => [...document.querySelectorAll('tbody:not([hidden]) .open')].map((b) => b.textContent)"
            assert opened.page.evaluate(names) == ["b", SCRIPT, "a"], "by gain from the start"
            opened.page.locator("button[data-sort=gain]").click()
            assert opened.page.evaluate(names) == ["a", SCRIPT, "b"]
            opened.page.locator("button[data-sort=gain]").click()
            assert opened.page.evaluate(names) == ["b", SCRIPT, "a"]
            opened.page.locator("#sort").select_option("minutes")  # also on a phone, which has the costs in the details
            assert opened.page.evaluate(names) == [SCRIPT, "a", "b"], "the longest training first"
            if width > 640:
                opened.page.locator("button[data-sort=minutes]").click()
                assert opened.page.evaluate(names) == ["b", "a", SCRIPT]
            opened.page.locator("#sort").select_option("gain")
            assert opened.page.evaluate(
                "(e => e.scrollWidth <= e.parentNode.clientWidth)(document.querySelector('.board'))"
            )
            marks = opened.page.locator(".board svg circle, .board svg polygon").all()
            drawn = [f"{m.evaluate('e => e.tagName')} {m.get_attribute('class')}" for m in marks]
            assert drawn == ["circle gain-up", "circle gain-none", "polygon gain-down"]
            opened.page.locator("#norm").select_option("l2")
            assert opened.page.evaluate(names) == ["a"] and opened.page.locator("#shown").inner_text() == "1 of 3 rows"
            assert not opened.page.locator("pre:visible").count()
            opened.page.locator(".open:visible").click()
            assert opened.page.locator("pre:visible").all_inner_texts() == ["recarc train a", "recarc evaluate a"]
            assert {"80.00 %", "50.00 %, 40.00 %", "31.00 %"} <= {*opened.page.locator("dd:visible").all_inner_texts()}
            assert opened.page.locator(".over-alpha:visible polyline").count() == 2
            assert opened.page.locator(".members:visible td").all_inner_texts()[:3] == ["0.3333", "30.00", "40.00"]
            assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
            opened.page.locator("#theme").click()
            assert opened.page.evaluate("document.documentElement.dataset.theme") == "dark"
