"""Dollars: by the hour, by the month, for a million predictions, and the ways to buy."""

from __future__ import annotations

from dataclasses import dataclass

from serving.hardware.instances import Instance, read_instances

HOURS_PER_MONTH = 730
"""365 x 24 / 12, as AWS counts."""


def per_month(usd_per_hour: float) -> float:
    """Dollars of a month that is paid for whole.

    >>> per_month(0.8048)
    587.504
    """
    return usd_per_hour * HOURS_PER_MONTH


def per_million(usd_per_hour: float, per_second: float) -> float:
    """Dollars for a million of what is made at this rate all the time.

    One g6.xlarge at 0.8048 dollars an hour and 400 requests a second:

    >>> round(per_million(0.8048, 400), 4)
    0.5589
    """
    return usd_per_hour / (per_second * 3600) * 1_000_000


def usd_per_gpu_hour(name: str) -> float | None:
    """Dollars an hour of one GPU, on the machine that has it cheapest; None without a price.

    >>> usd_per_gpu_hour("l4"), usd_per_gpu_hour("h100")
    (0.8048, 6.88)
    """
    prices = [
        instance.usd_per_hour / instance.gpus
        for instance in read_instances().instances
        if instance.gpus and instance.usd_per_hour is not None and _gpu_of(instance) == name
    ]
    return min(prices, default=None)


def _gpu_of(instance: Instance) -> str | None:
    return instance.gpu.name if instance.gpu else None


@dataclass(frozen=True, slots=True)
class Rung:
    """One way to buy the same machines."""

    name: str
    usd_per_hour: float | None
    """Of all of them; None where the price changes by the day and is not in the table."""
    fits: str
    beware: str


_BLOCKS = ("p4d", "p4de", "p5", "p5e", "p5en", "p6-b200", "p6-b300", "trn1", "trn2")


def ladder(instance: Instance, floor: int, most: int) -> tuple[Rung, ...]:
    """Ways to buy so many instances: `floor` always, up to `most` at the peak.

    Source: EC2's pages on Spot Instances, On-Demand Capacity Reservations and Capacity Blocks for
    ML, as of 2026-05. A reservation costs the on-demand price whether it is used or not.
    """
    price = instance.usd_per_hour
    rungs = [
        Rung(
            "on demand",
            price and price * most,
            f"all {most} of the peak: simplest, and the price that this plan reckons with",
            "a large GPU may not be to be had at the hour of the peak",
        ),
        Rung(
            "capacity reservation",
            price and price * floor,
            f"the {floor} of the warm floor: there when they are needed, after a failure too",
            "paid for when idle; cheaper only with a savings plan on top",
        ),
        Rung(
            "spot",
            None,
            f"the {most - floor} above the warm floor, and batch jobs"
            if most > floor
            else "batch jobs",
            "taken back with two minutes' notice: the drain must end in that time",
        ),
    ]
    if instance.family in _BLOCKS:
        rungs.append(
            Rung(
                "capacity block",
                None,
                "a launch or a load test on a known date, 1 to 182 days",
                "paid in advance, and it ends on time whatever runs on it",
            )
        )
    return tuple(rungs)
