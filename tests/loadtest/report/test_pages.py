"""A report says the same in every form, whatever is in it, and needs nothing but itself."""

import math
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from loadtest import account, oversight
from loadtest.concluding import JUNIT, conclude, replay_command
from loadtest.judging import read
from loadtest.oversight import Oversight
from loadtest.records import DROPPED, OPEN
from loadtest.report.charts import cdf_chart, interval_bar, nice, time_chart
from loadtest.report.markdown import render_markdown
from loadtest.report.page import render_page
from loadtest.report.report import Report, as_text, report_from
from loadtest.server_stats import Sample
from serving.errors import IntegrityError
from serving.judge.run import NEVER
from tests.loadtest.runs import bad, job_of, kept, rows_of
from tests.loadtest.test_judging import with_flight

HOSTILE = "<script>alert(1)</script>\"'&|`\n# @everyone"
VOID = {"meta", "br", "line", "rect", "circle", "polyline", "polygon"}


def made(folder: Path, mean_ms: float = 30.0, **fields: Any) -> Report:
    job = job_of(**({"seconds": 60.0, "error_ratio": 0.01} | fields))
    times = np.random.default_rng(1).gamma(4, mean_ms / 4, len(job.schedule))
    kept(folder, job, with_flight(rows_of(job, times)))
    samples = tuple(Sample(round(n * 1e9), 40, 20, 2.0, 9.0, 2.0) for n in range(65))
    oversight.write(folder, Oversight(samples=samples, restarts=0, calibrated_rps=500.0))
    return conclude(folder).report


class Page(HTMLParser):
    """Reads a page, and sees to it that every element is closed in its order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_a_run_leaves_every_form_of_its_report(tmp_path: Path) -> None:
    report = made(tmp_path)
    assert report.verdict["verdict"] == "PASS"
    for name in (account.REPORT_PAGE, account.REPORT_MARKDOWN, account.REQUESTS_CSV, JUNIT):
        assert (tmp_path / name).stat().st_size > 100
    assert report_from((tmp_path / account.REPORT_JSON).read_bytes()) == report
    ElementTree.parse(tmp_path / JUNIT)  # noqa: S314 - written by this very test


def test_concluding_again_gives_the_same_bytes(tmp_path: Path) -> None:
    made(tmp_path)
    names = (account.REPORT_JSON, account.REPORT_PAGE, account.REPORT_MARKDOWN)
    first = [(tmp_path / name).read_bytes() for name in names]
    conclude(tmp_path)
    assert [(tmp_path / name).read_bytes() for name in names] == first


def test_the_verdict_comes_first_and_every_picture_has_words(tmp_path: Path) -> None:
    page = Page(render_page(made(tmp_path)))
    assert not page.open
    body = [word.strip() for word in page.words if word.strip()]
    start = body.index("PASS")
    assert body[start : start + 3] == ["PASS", "filetype", "keeps what is promised"]
    pictures = [attributes for tag, attributes in page.tags if tag == "svg"]
    assert len(pictures) == 8
    assert all(one["role"] == "img" and one["aria-label"] for one in pictures)


def test_a_page_needs_no_network_and_no_script(tmp_path: Path) -> None:
    text = render_page(made(tmp_path))
    page = Page(text)
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in page.tags}
    assert not [a for _, a in page.tags if {"src", "href", "onclick"} & a.keys()]
    assert "http" not in text.split("</style>")[0].replace("https://www.w3.org", "")
    assert "url(" not in text


@pytest.mark.parametrize("render", [render_page, render_markdown])
def test_nothing_from_outside_becomes_markup(tmp_path: Path, render: Any) -> None:
    report = made(tmp_path)
    fault = {"what": HOSTILE, "message": HOSTILE}
    gate = {**report.verdict["gates"][0], "reason": HOSTILE, "would_help": HOSTILE}
    wild = replace(
        report,
        model=HOSTILE,
        environment=HOSTILE,
        because=HOSTILE,
        workload={"name": HOSTILE, "because": HOSTILE},
        outcomes={HOSTILE: 3},
        verdict={**report.verdict, "faults": [fault], "gates": [gate], "notes": [HOSTILE]},
    )
    text = render(wild)
    assert "<script>" not in text
    if render is render_page:
        assert not Page(text).open
    else:
        assert "\n# @everyone" not in text
        assert "@everyone" not in text


def emptied(report: Report) -> Report:
    return replace(
        report,
        requests=0,
        seconds=0.0,
        percentiles_ms=dict.fromkeys(report.percentiles_ms),
        service_percentiles_ms={},
        cdf=(),
        series=(),
        outcomes={},
        server=None,
        version=None,
        digest=None,
        generator=replace(
            report.generator, cpu_ratio=None, loop_lag_p99_ms=None, calibrated_rps=None
        ),
    )


def test_a_report_of_nothing_is_drawn_all_the_same(tmp_path: Path) -> None:
    empty = emptied(made(tmp_path))
    assert not Page(render_page(empty)).open
    assert "never" in render_markdown(empty)


@pytest.mark.parametrize("left", ["failed", "dropped", "open", "none"])
def test_runs_that_went_wrong_have_a_report_too(tmp_path: Path, left: str) -> None:
    job = job_of(seconds=10.0)
    rows = rows_of(job)
    if left == "failed":
        rows = bad(rows, slice(None), 503)
    elif left == "dropped":
        rows = bad(rows, slice(None), DROPPED, sent=NEVER, ended=NEVER)
    elif left == "open":
        rows = bad(rows, slice(None), OPEN, ended=NEVER)
    else:
        rows = rows[:0]
    kept(tmp_path, job, rows)
    found = conclude(tmp_path)
    assert found.verdict.answer.value in ("FAIL", "INVALID", "INCONCLUSIVE")
    assert not Page(render_page(found.report)).open
    assert found.report.percentiles_ms["p99"] is None


def test_pictures_survive_any_numbers() -> None:
    for top in (0.0, 1e-9, 3.0, 1e12, math.nan, math.inf):
        assert math.isfinite(nice(top))
    time_chart("x", [], "ms")
    cdf_chart("x", [(1.0, 5.0)], [])
    cdf_chart("x", [], [])
    interval_bar("x", None, None, None, None)


def test_the_replay_command_names_all_that_was_drawn_from() -> None:
    job = job_of(seed=7, salt=9, latency_p99_ms=80.0)
    words = replay_command(job).split()
    assert words[:3] == ["galley", "loadtest", "filetype"]
    for option, value in (("--seed", "7"), ("--salt", "9"), ("--p99-ms", "80")):
        assert words[words.index(option) + 1] == value


def test_a_report_of_another_kind_is_refused(tmp_path: Path) -> None:
    text = as_text(made(tmp_path))
    with pytest.raises(IntegrityError, match="schema"):
        report_from(text.replace("galley loadtest 1", "galley loadtest 9"))
    with pytest.raises(IntegrityError, match="cannot be read"):
        report_from("{}")


def test_a_token_report_shows_first_token_and_pace(tmp_path: Path) -> None:
    job = job_of(workload="chat", seconds=20.0)
    rows = rows_of(job, 500.0)
    rows["first"], rows["inter_token"] = rows["sent"] + 50_000_000, 5_000_000
    rows["tokens"] = 90
    kept(tmp_path, job, with_flight(rows))
    report = conclude(tmp_path).report
    assert report.token_percentiles_ms["time to first token"]["p99"] == pytest.approx(50.1, 0.01)
    assert report.token_percentiles_ms["inter-token latency"]["p50"] == pytest.approx(5.0, 0.01)
    assert "first token" in render_page(report)


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; CI installs it")
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", [0, 1], ids=["dark", "light"])
def test_a_browser_draws_it_within_its_width(tmp_path: Path, width: int, scheme: int) -> None:
    made(tmp_path)
    page = tmp_path / account.REPORT_PAGE
    # A window is never narrower than 500 pixels; a frame is.
    frame = tmp_path / "frame.html"
    frame.write_text(
        f'<iframe id="f" src="{page.name}" style="border:0;width:{width}px;height:900px"></iframe>'
        "<script>f.onload=()=>{const d=f.contentDocument;"
        "document.title=[d.documentElement.scrollWidth,d.querySelectorAll('svg').length,"
        "getComputedStyle(d.body).backgroundColor].join(' ')}</script>"
    )
    done = subprocess.run(
        [
            str(CHROMIUM),
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"),
            *(f"--blink-settings=preferredColorScheme={scheme}", "--dump-dom"),
            *("--virtual-time-budget=3000", f"--user-data-dir={tmp_path / 'profile'}"),
            frame.as_uri(),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    title = done.stdout.split("<title>")[1].split("</title>")[0]
    wide, pictures, *colour = title.split(" ", 2)
    assert int(wide) <= width
    assert int(pictures) == 8
    assert colour == [["rgb(21, 24, 28)"], ["rgb(251, 251, 249)"]][scheme]


def test_reading_a_run_again_does_not_need_the_schedule_to_be_kept(tmp_path: Path) -> None:
    report = made(tmp_path)
    assert read(tmp_path).job.schedule.digest == report.schedule_digest
