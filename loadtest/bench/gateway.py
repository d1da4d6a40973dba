"""What the gateway costs beside something simpler: `python -m loadtest.bench.gateway`.

    hop           the prediction hop / an application that does nothing
    end-to-end    the whole gateway / a bare Envoy, before the same Tritons
    stream        the path of streams / a bare Envoy
    proxies       the path of streams / LiteLLM's proxy, nginx, a bare Envoy

A run tells ratios, never whether a time is good enough: it exits with 0 whatever it finds.
"""

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Final

import typer

from loadtest.bench.end_to_end import ready_end_to_end
from loadtest.bench.hop import ready_hop
from loadtest.bench.machine import engine_versions, machine
from loadtest.bench.proxies import ready_proxies
from loadtest.bench.ratios import Measure, Part, Tell, joined
from loadtest.bench.results import (
    ABSOLUTE_COLUMNS,
    COLUMNS,
    absolute_rows,
    as_json,
    markdown,
    ratio_rows,
)
from loadtest.bench.sections import RESULTS, with_section
from loadtest.bench.sizes import FULL, QUICK, Sizes
from loadtest.bench.stream import ready_stream
from serving.console import Json, print_json, print_line, print_table, say, step_progress
from serving.errors import GalleyError, InputError
from serving.local.engines import find_engines
from serving.local.home import write_atomically

Ready = Callable[[Path, Sizes, Tell], AbstractContextManager[Measure]]


@dataclass(frozen=True)
class Benchmark:
    """One of the four; `ratios` are what it promises to tell."""

    name: str
    ready: Ready
    ratios: tuple[str, ...]


BENCHMARKS: Final = (
    Benchmark(
        "hop",
        ready_hop,
        ("hit_cpu_vs_empty_app", "hit_cpu_vs_empty_app_json", "miss_cpu_vs_hit"),
    ),
    Benchmark("end-to-end", ready_end_to_end, ("e2e_p50_vs_bare_envoy", "e2e_p99_vs_bare_envoy")),
    Benchmark("stream", ready_stream, ("stream_vs_bare_envoy",)),
    Benchmark(
        "proxies",
        ready_proxies,
        ("requests_per_cpu_vs_litellm", "requests_per_cpu_vs_nginx"),
    ),
)


def measure_all(benchmarks: Sequence[Benchmark], sizes: Sizes, folder: Path, tell: Tell) -> Part:
    """Everything that these benchmarks find; one that cannot run says why and stops no other."""
    start = _together if sizes.starts_together else _in_turn
    return joined(list(start(benchmarks, sizes, folder, tell)))


def _in_turn(
    benchmarks: Sequence[Benchmark], sizes: Sizes, folder: Path, tell: Tell
) -> Iterator[Part]:
    """Nothing else is there while something is measured."""
    for benchmark in benchmarks:
        try:
            with benchmark.ready(_own_folder(folder, benchmark), sizes, tell) as measure:
                part = measure()
        except GalleyError as error:
            part = _skipped(benchmark, error)
        yield part


def _together(
    benchmarks: Sequence[Benchmark], sizes: Sizes, folder: Path, tell: Tell
) -> Iterator[Part]:
    """All servers start at once, wait for their turn, and stop at once: half of the time."""
    contexts = [each.ready(_own_folder(folder, each), sizes, tell) for each in benchmarks]
    with ThreadPoolExecutor(len(benchmarks)) as workers:
        starting = [workers.submit(context.__enter__) for context in contexts]
        try:
            wait(starting)
            for benchmark, started in zip(benchmarks, starting, strict=True):
                try:
                    part = started.result()()
                except GalleyError as error:
                    part = _skipped(benchmark, error)
                yield part
        finally:
            wait(starting)
            for context, started in zip(contexts, starting, strict=True):
                if started.exception() is None:
                    workers.submit(context.__exit__, None, None, None)


def _own_folder(folder: Path, benchmark: Benchmark) -> Path:
    own = folder / benchmark.name
    own.mkdir()
    return own


def _skipped(benchmark: Benchmark, error: GalleyError) -> Part:
    return Part(skipped=dict.fromkeys(benchmark.ratios, str(error).partition("\n")[0]))


@contextmanager
def _ended_by_term() -> Iterator[None]:
    """SIGTERM ends the run as Ctrl-C does, so that no server is left behind."""

    def end(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def main(
    quick: Annotated[
        bool, typer.Option("--quick", help="Less of everything: under a minute, nothing installed.")
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option("--only", help="hop, end-to-end, stream or proxies.")
    ] = None,
    json: Json = False,
) -> None:
    """Measure the gateway beside an empty application, a bare Envoy, LiteLLM and nginx."""
    chosen = _chosen(only or [])
    about, versions = machine(), engine_versions(find_engines())
    with (
        _ended_by_term(),
        TemporaryDirectory(prefix="galley-bench-") as folder,
        step_progress("bench", 0) as progress,
    ):
        part = measure_all(
            chosen, QUICK if quick else FULL, Path(folder), lambda text: progress(0, text)
        )
    part = joined([part, Part(versions=versions)])
    if json:
        print_json(as_json(part, about))
    else:
        print_table(COLUMNS, ratio_rows(part))
        print_table(ABSOLUTE_COLUMNS, absolute_rows(part))
        for name, reason in part.skipped.items():
            print_line(f"{name}: {reason}")
    if not quick and len(chosen) == len(BENCHMARKS):
        page = with_section(RESULTS.read_text(), markdown(part, about))
        write_atomically(RESULTS, page)
        say(f"written: {RESULTS}")


def _chosen(names: Sequence[str]) -> tuple[Benchmark, ...]:
    known = {benchmark.name: benchmark for benchmark in BENCHMARKS}
    for name in names:
        if name not in known:
            raise InputError(f"only={name} is no benchmark; there are {', '.join(known)}")
    return tuple(benchmark for benchmark in BENCHMARKS if not names or benchmark.name in names)


if __name__ == "__main__":
    try:
        typer.run(main)
    except GalleyError as error:
        say(f"bench: {error}")
        sys.exit(error.exit_code)
