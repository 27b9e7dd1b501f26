"""Pictures: a PNG with something in it, and a page that is whole, escaped and self-contained."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from educe.core.errors import EduceError
from educe.core.protocols import MetricRow
from educe.observability.history import History, smooth, visible_range
from educe.observability.plots import Curve, domain_curves, overall_curves, plot_png
from educe.observability.run_page import write_page
from educe.observability.run_store import RunStore
from educe.observability.svg import curve_svg, thin
from educe.observability.terminal_text import format_count, sparkline


def read_png(path: Path) -> Any:
    from matplotlib.image import imread

    return imread(path)


def test_the_png_shows_curves_and_alarms(run: RunStore, tmp_path: Path) -> None:
    pixels = read_png(plot_png(run, tmp_path / "out" / "run.png"))[..., :3]
    assert pixels.shape[0] > 300 and pixels.shape[1] == 1400

    def num_near(colour: tuple[int, int, int]) -> int:
        return int((np.abs(pixels * 255 - np.array(colour)).max(axis=-1) < 12).sum())

    assert num_near((31, 95, 153)) > 500  # smoothed curves
    assert num_near((192, 57, 43)) > 50  # the alarm's dashes


def test_many_domains_become_one_map(record_run: Callable[..., RunStore], tmp_path: Path) -> None:
    many = read_png(plot_png(record_run("many", num_domains=40), tmp_path / "many.png"))
    assert many.shape[0] < 1300  # as curves they would take ten more rows
    # viridis only appears in the map
    yellowish = (many[..., 0] > 0.8) & (many[..., 1] > 0.8) & (many[..., 2] < 0.3)
    assert yellowish.sum() > 100


def test_a_run_without_metrics_says_what_it_needs(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path / "empty", {})
    with pytest.raises(EduceError, match="no metrics to draw yet"):
        plot_png(store, tmp_path / "x.png")
    page = write_page(store, tmp_path / "x.html").read_text()
    assert "No metrics yet" in page and "No samples were recorded" in page


def test_single_points_and_gaps_are_drawn(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path / "r", {})
    store.record_metrics(MetricRow("rl", 1, {"rl/reward": math.nan, "rl/kl_k1": 1.0}))
    store.record_metrics(MetricRow("rl", 2, {"rl/reward": math.inf, "domain/d/score": 0.5}))
    store.close()
    assert plot_png(store, tmp_path / "x.png").stat().st_size > 5000
    page = write_page(store, tmp_path / "x.html").read_text()
    assert page.count("<svg") == 2 and 'class="dot"' in page


class Page(HTMLParser):
    """Checks that tags close in order and gathers what a browser would load or run."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.num_scripts = 0
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.num_scripts += tag == "script"
        named = dict(attrs)
        self.loads += [v for k, v in named.items() if k in ("src", "href", "action") and v]
        assert not any(k.startswith("on") for k in named)
        if tag not in ("meta", "input", "link", "br", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> at {self.getpos()}"

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_whole_escaped_and_needs_no_network(run: RunStore, tmp_path: Path) -> None:
    source = write_page(run, tmp_path / "run.html").read_text()
    page = Page()
    page.feed(source)
    assert page.open == [] and page.loads == [] and page.num_scripts == 1
    assert not re.search(r"https?://|@import|url\(", source)
    assert "\x1b" not in source and "<script>alert" not in source
    assert "<script>alert(1)</script> \\x1b[2J {{ title }}" in page.text
    for expected in ("demo", "status finished", "entropy fell", "rl: reward", "x$/<b>", "got 5"):
        assert expected in page.text


def test_the_page_shows_before_and_after_side_by_side(run: RunStore, tmp_path: Path) -> None:
    source = write_page(run, tmp_path / "run.html").read_text()
    pair = re.search(r'<div class="pair">(.*?)</details>', source, re.S)
    assert pair is not None
    before, after = pair[1].split("<h4>")[1:]
    assert before.startswith("before: 0.000") and "maybe 5" in before
    assert after.startswith("after: 1.000") and "<pre>4</pre>" in after
    assert "<td>0.250 <small>[0.100, 0.400]</small></td><td>0.750</td>" in source


def test_the_page_marks_trained_tokens(run: RunStore, tmp_path: Path) -> None:
    source = write_page(run, tmp_path / "run.html").read_text()
    trained = re.findall(r'<span class="trained">(.*?)</span>', source)
    assert trained == ["4", "&lt;end&gt;"] * 2


def test_the_page_holds_the_newest_samples_only(run: RunStore, tmp_path: Path) -> None:
    source = write_page(run, tmp_path / "run.html", max_samples=1).read_text()
    assert re.findall(r'data-verdict="(\w+)"', source) == ["unscored"]


def test_curves_are_where_their_values_are() -> None:
    figure = curve_svg("a<b", [(0, 0.0), (5, 0.5), (10, 1.0)], marks=(5, 99), limits=(0.0, 1.0))
    tree = ElementTree.fromstring(figure)
    (line,) = tree.iter("polyline")
    points = [tuple(map(float, p.split(","))) for p in line.attrib["points"].split()]
    assert points == [(56.0, 102.0), (174.0, 55.0), (292.0, 8.0)]
    assert [m.attrib["x1"] for m in tree.iter("line") if m.attrib["class"] == "mark"] == ["174.0"]
    assert tree.findtext("figcaption") == "a<b "
    assert curve_svg("none", [(1, math.nan)]) == ""


def test_long_series_are_thinned_without_moving() -> None:
    series = [(s, float(s)) for s in range(10_000)]
    thinned = thin(series, 100)
    assert len(thinned) == 100 and thinned[-1][0] == 9999
    assert sum(v for _, v in thinned) / 100 == pytest.approx(sum(range(10_000)) / 10_000)


def test_smoothing_does_not_trail_a_trend() -> None:
    line = [float(i) for i in range(20)]
    assert smooth(line, 5) == pytest.approx(line)
    assert smooth([0.0, 3.0, 0.0], 3) == [0.0, 1.0, 0.0]


def test_headlines_come_stage_by_stage_with_their_alarms(run: RunStore) -> None:
    history = History(run.metrics())
    curves = overall_curves(history, [("rl", 9)])
    assert [(c.title, c.alarm_steps) for c in curves] == [
        ("sft: loss", ()),
        ("rl: reward", (9,)),
        ("rl: entropy", (9,)),
    ]
    assert [c.title for c in domain_curves(history)] == ["rg/fam0", "rg/fam1", "x$/<b>"]


def test_a_later_single_point_does_not_hide_the_training_curve() -> None:
    history = History(MetricRow("rl", s, {"domain/d/score": 0.1 * s}) for s in (1, 2, 3))
    history.add(MetricRow("eval", 3, {"domain/d/score": 0.9}))
    assert domain_curves(history) == [Curve("d", history.domain("rl", "d", "score"))]


def test_rounding_noise_is_a_line_not_a_mountain(tmp_path: Path) -> None:
    noise = [(step, 1.0 + 1e-7 * (-1) ** step) for step in range(12)]
    (line, *_) = ElementTree.fromstring(curve_svg("noise", noise)).iter("polyline")
    heights = {float(p.split(",")[1]) for p in line.attrib["points"].split()}
    assert max(heights) - min(heights) < 0.2
    assert visible_range([0.0, 3e-9]) == pytest.approx((-0.5, 0.5))
    assert visible_range([0.0, 1e-3]) == (0.0, 1e-3)
    assert set(sparkline([v for _, v in noise])) == {"▁"}
    store = RunStore.create(tmp_path / "r", {})
    for step, value in noise:
        store.record_metrics(MetricRow("rl", step, {"rl/mismatch": (value - 1) / 10}))
    store.close()
    pixels = read_png(plot_png(store, tmp_path / "noise.png"))[..., :3]
    is_curve = np.abs(pixels * 255 - np.array((31, 95, 153))).max(axis=-1) < 12  # smoothed
    rows = np.flatnonzero(is_curve.any(axis=1))
    assert len(rows) > 0 and rows.max() - rows.min() < 8


def test_counts_are_said_in_a_fitting_unit() -> None:
    counts = (950, 37_216, 134_515_008, 999_960, 7_240_000_000)
    told = [format_count(c) for c in counts]
    assert told == ["950", "37.2 K", "134.5 M", "1.0 M", "7.24 B"]
