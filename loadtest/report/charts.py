"""The pictures of a report: SVG drawn here, coloured by the page's style sheet, no script needed.

Every picture is 640 wide and scales with its column. Colours are classes, so that one picture is
right by day and by night.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 640, 230
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 14, 34

Point = tuple[float, float | None]
Scale = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a chart: its name, its points, and the class that colours it."""

    name: str
    points: Sequence[Point]
    look: str
    area: bool = False


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on an axis."""

    at: float
    text: str


def time_chart(
    label: str,
    lines: Sequence[Line],
    unit: str,
    *,
    shaded_until: float = 0.0,
    limit: float | None = None,
) -> str:
    """Lines over the time of a run in seconds; what lies before `shaded_until` is shaded."""
    ends = [x for line in lines for x, _ in line.points]
    last = max(ends, default=1.0) or 1.0
    top = nice(max([y for line in lines for _, y in line.points if y is not None], default=0.0))
    if limit is not None and limit <= 4 * top:
        top = max(top, nice(limit * 1.05))
    x, y = _linear(0, last, LEFT, WIDTH - RIGHT), _linear(0, top, HEIGHT - BOTTOM, TOP)
    body = []
    if shaded_until > 0:
        wide = x(min(shaded_until, last)) - LEFT
        body.append(
            f'<rect class="warm" x="{LEFT}" y="{TOP}" width="{wide:.1f}" '
            f'height="{HEIGHT - TOP - BOTTOM}"/>'
        )
        if wide > 60:
            body.append(_text(LEFT + 5, TOP + 13, "warm-up", "quiet"))
    body += _axes(
        x, y, [Tick(at, f"{at:g}") for at in _steps(last, 6)], _ticks(top, 4), "seconds", unit
    )
    if limit is not None and limit <= top:
        body.append(_limit(y(limit), f"limit {limit:g}"))
    body += [_path(line, x, y) for line in lines]
    return _svg(label, body)


def cdf_chart(label: str, points: Sequence[tuple[float, float]], limits: Sequence[Tick]) -> str:
    """Latency by share of requests; the axis goes by nines, so that the tail has its room.

    Args:
        label: what it shows.
        points: (share, ms), shares rising to 1 at most.
        limits: levels in ms that must not be passed, with their names.
    """
    size = max((1 / max(1 - share, 1e-9) for share, _ in points if share < 1), default=10.0)
    nines = min(max(math.log10(size), 1.0) + 0.15, 6.0)
    values = [ms for _, ms in points] + [limit.at for limit in limits]
    low = 10 ** math.floor(math.log10(max(min(values, default=1.0), 1e-3)))
    high = 10 ** math.ceil(math.log10(max(max(values, default=10.0), low * 10)) + 1e-9)
    across = _linear(0, nines, LEFT, WIDTH - RIGHT)
    down = _linear(math.log10(low), math.log10(high), HEIGHT - BOTTOM, TOP)

    def x(share: float) -> float:
        return across(min(-math.log10(max(1 - share, 10.0**-nines)), nines))

    def y(ms: float) -> float:
        return down(math.log10(max(ms, low)))

    named = [(0.5, "50%"), (0.9, "90%"), (0.99, "99%"), (0.999, "99.9%"), (0.9999, "99.99%")]
    shares = [Tick(share, text) for share, text in named if -math.log10(1 - share) <= nines]
    decades = [
        Tick(10.0**n, f"{10.0**n:g}")
        for n in range(round(math.log10(low)), round(math.log10(high)) + 1)
    ]
    body = _axes(x, y, shares, decades, "share of requests", "ms")
    body += [_limit(y(limit.at), limit.text) for limit in limits]
    body.append(_path(Line("latency", points, "one"), x, y))
    return _svg(label, body)


def interval_bar(
    label: str, lower: float | None, upper: float | None, seen: float | None, allowed: float | None
) -> str:
    """The share of bad requests: what was seen, between which bounds it is, what is allowed."""
    known = [value for value in (lower, upper, seen, allowed) if value is not None]
    top = max([*known, 1e-6]) * 1.15
    x = _linear(0, top, 8, WIDTH - 8)
    body = [f'<line class="axis" x1="8" y1="30" x2="{WIDTH - 8}" y2="30"/>']
    if allowed is not None:
        body.append(
            f'<rect class="allowed" x="8" y="20" width="{x(allowed) - 8:.1f}" height="20"/>'
            f'<line class="limit" x1="{x(allowed):.1f}" y1="14" x2="{x(allowed):.1f}" y2="46"/>'
            + _text(
                min(x(allowed), WIDTH - 8),
                58,
                f"allowed {allowed:.3%}",
                "quiet",
                "end" if x(allowed) > WIDTH / 2 else "start",
            )
        )
    if lower is not None and upper is not None:
        body.append(
            f'<rect class="range" x="{x(lower):.1f}" y="25" '
            f'width="{max(x(upper) - x(lower), 2):.1f}" height="10"/>'
        )
    if seen is not None:
        body.append(f'<circle class="seen" cx="{x(seen):.1f}" cy="30" r="5"/>')
    return _svg(label, body, 66)


def nice(value: float) -> float:
    """The next number of the kind that people put at the end of an axis.

    >>> nice(0.37), nice(12), nice(70), nice(0)
    (0.5, 20.0, 100.0, 1.0)
    """
    if not value > 0 or not math.isfinite(value):
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= value * (1 - 1e-9))


def _linear(low: float, high: float, first: float, last: float) -> Scale:
    span = (high - low) or 1.0
    return lambda value: first + (last - first) * (value - low) / span


def _steps(last: float, count: int) -> list[float]:
    step = nice(last / count)
    return [step * n for n in range(int(last / step + 1e-9) + 1)]


def _ticks(top: float, count: int) -> list[Tick]:
    return [Tick(top * n / count, f"{top * n / count:,.4g}") for n in range(count + 1)]


def _axes(
    x: Scale, y: Scale, across: Sequence[Tick], up: Sequence[Tick], below: str, unit: str
) -> list[str]:
    base = HEIGHT - BOTTOM
    found = []
    for tick in up:
        found.append(
            f'<line class="grid" x1="{LEFT}" y1="{y(tick.at):.1f}" x2="{WIDTH - RIGHT}" '
            f'y2="{y(tick.at):.1f}"/>' + _text(LEFT - 6, y(tick.at) + 4, tick.text, "quiet", "end")
        )
    found += [_text(x(tick.at), base + 16, tick.text, "quiet", "middle") for tick in across]
    found.append(_text(WIDTH - RIGHT, base + 31, below, "quiet", "end"))
    found.append(_text(4, base + 31, unit, "quiet"))
    found.append(f'<line class="axis" x1="{LEFT}" y1="{base}" x2="{WIDTH - RIGHT}" y2="{base}"/>')
    return found


def _limit(y: float, text: str) -> str:
    return (
        f'<line class="limit" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>'
        + _text(LEFT + 6, y - 5 if y > TOP + 16 else y + 14, text, "over")
    )


def _path(line: Line, x: Scale, y: Scale) -> str:
    """The line, broken where there is no value."""
    parts: list[list[str]] = [[]]
    for at, value in line.points:
        if value is None or not math.isfinite(value):
            parts.append([])
        else:
            parts[-1].append(f"{x(at):.1f},{y(value):.1f}")
    drawn = []
    for part in parts:
        if len(part) == 1:
            cx, cy = part[0].split(",")
            drawn.append(f'<circle class="dot {line.look}" cx="{cx}" cy="{cy}" r="2"/>')
        elif part:
            if line.area:
                first, last = part[0].split(",")[0], part[-1].split(",")[0]
                base = HEIGHT - BOTTOM
                drawn.append(
                    f'<polygon class="area {line.look}" '
                    f'points="{first},{base} {" ".join(part)} {last},{base}"/>'
                )
            drawn.append(f'<polyline class="line {line.look}" points="{" ".join(part)}"/>')
    return "".join(drawn)


def _text(x: float, y: float, text: str, look: str, anchor: str = "start") -> str:
    return (
        f'<text class="{look}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def _svg(label: str, body: Sequence[str], height: int = HEIGHT) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}">'
        f"<title>{escape(label)}</title>{''.join(body)}</svg>"
    )
