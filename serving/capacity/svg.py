"""Small pictures as SVG: bars, stacked bars and lines, with nothing but text."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT = 640, 220
LEFT, BOTTOM, TOP, RIGHT = 70, 40, 16, 16
COLOURS = ("#2f6f9f", "#d98c3f", "#9a9a9a", "#5b9a5b")


def _svg(body: Sequence[str], label: str, height: int = HEIGHT) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" '
        f'aria-label="{escape(label)}" font-family="sans-serif" font-size="12">'
        + "".join(body)
        + "</svg>"
    )


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def stacked(parts: Sequence[tuple[str, float]], unit: str, label: str) -> str:
    """One bar of several parts, with a legend.

    >>> "weights 15.0 GiB" in stacked([("weights", 15.0), ("cache", 5.0)], "GiB", "an L4")
    True
    """
    total = sum(max(0.0, size) for _, size in parts) or 1.0
    span = WIDTH - LEFT - RIGHT
    body, at = [_text(LEFT, TOP, label)], float(LEFT)
    for index, (name, size) in enumerate(parts):
        width = span * max(0.0, size) / total
        colour = COLOURS[index % len(COLOURS)]
        body.append(f'<rect x="{at:.1f}" y="26" width="{width:.1f}" height="34" fill="{colour}"/>')
        row = 80 + 18 * index
        body.append(f'<rect x="{LEFT}" y="{row - 10}" width="12" height="12" fill="{colour}"/>')
        body.append(_text(LEFT + 20, row, f"{name} {size:,.1f} {unit}"))
        at += width
    return _svg(body, label, 80 + 18 * len(parts))


def lines(
    points: Sequence[tuple[float, float]], x_label: str, y_label: str, mark: float | None = None
) -> str:
    """One line through points, from zero; `mark` is a level that is drawn across."""
    high_x = max((x for x, _ in points), default=1.0) or 1.0
    high_y = max([y for _, y in points] + ([mark] if mark else [0.0])) or 1.0

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + (WIDTH - LEFT - RIGHT) * x / high_x,
            HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * y / high_y,
        )

    path = " ".join("{:.1f},{:.1f}".format(*at(x, y)) for x, y in points)
    base = HEIGHT - BOTTOM
    body = [
        f'<line x1="{LEFT}" y1="{base}" x2="{WIDTH - RIGHT}" y2="{base}" stroke="#444"/>',
        f'<line x1="{LEFT}" y1="{TOP}" x2="{LEFT}" y2="{base}" stroke="#444"/>',
        f'<polyline points="{path}" fill="none" stroke="{COLOURS[0]}" stroke-width="2"/>',
        _text(LEFT - 6, TOP + 8, f"{high_y:,.4g}", "end"),
        _text(LEFT - 6, base, "0", "end"),
        _text(WIDTH - RIGHT, base + 16, f"{high_x:,.4g}", "end"),
        _text(LEFT, base + 32, f"{y_label} by {x_label}"),
    ]
    if mark is not None:
        y = at(0, mark)[1]
        body.append(
            f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" '
            f'stroke="{COLOURS[1]}" stroke-dasharray="6 4"/>'
        )
    return _svg(body, f"{y_label} by {x_label}")
