"""galley plan; its neighbour `simulator/commands.py` has galley simulate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from serving.commands import Specs
from serving.console import Env, Json, print_json, print_line, print_table, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from serving.capacity.plan import Plan, Settings
    from serving.spec import ModelSpec

ENVIRONMENTS = ("local", "dev", "staging", "prod")


def plan(
    models: Annotated[
        list[str] | None, typer.Argument(help="Names of models; all of them if none is given.")
    ] = None,
    env: Env = "local",
    specs: Specs = None,
    files: Annotated[
        Path | None,
        typer.Option(
            "--files",
            help="Folder with a folder of each model's name: config.json, *.safetensors, "
            "batch_curve.json; beside the specs if not given.",
        ),
    ] = None,
    lengths: Annotated[
        list[str] | None,
        typer.Option("--lengths", help="MODEL=PROMPT:OUTPUT, mean lengths in tokens."),
    ] = None,
    ramp_seconds: Annotated[
        float | None,
        typer.Option("--ramp-seconds", min=1, help="Time in which load goes from idle to peak."),
    ] = None,
    pool_gpus: Annotated[
        int | None, typer.Option("--pool-gpus", min=0, help="Most GPUs of the node pool.")
    ] = None,
    quota_vcpus: Annotated[
        int | None, typer.Option("--quota-vcpus", min=0, help="EC2's quota of vCPUs.")
    ] = None,
    machines: Annotated[
        bool,
        typer.Option("--machines", help="Machines, why others will not do, ways to buy."),
    ] = False,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write a page with pictures to this file.")
    ] = None,
    diff: Annotated[
        Path | None,
        typer.Option("--diff", help="Another spec, or folder of specs: show what it changes."),
    ] = None,
    json: Json = False,
) -> None:
    """Show how many replicas, GPUs and dollars the specs take, with every sum."""
    from serving.capacity.checks import Pool
    from serving.capacity.data import plan_data
    from serving.capacity.plan import Settings
    from serving.errors import InputError
    from serving.paths import specs_folder

    if env not in ENVIRONMENTS:
        raise InputError(f"env={env} is not one of {', '.join(ENVIRONMENTS)}; use one of these")
    folder = specs or specs_folder()
    settings = Settings(env, ramp_seconds, Pool(pool_gpus, quota_vcpus))
    wanted = _named(folder, models or [])
    found = _planned(wanted, files or folder, lengths or [], settings)
    if diff is not None:
        _show_differences(found, _other(diff, wanted, files, lengths or [], settings), json=json)
        return
    if html is not None:
        from serving.capacity.page import render_page

        html.write_text(render_page(found), encoding="utf-8")
        say(f"wrote {html}")
    if json:
        print_json(plan_data(found))
    else:
        _show(found, machines=machines)
    if found.refusals:
        raise typer.Exit(1)


def _named(folder: Path, names: Sequence[str]) -> tuple[ModelSpec, ...]:
    """The specs that were named, in the order of the folder.

    Raises:
        InputError: there is none of that name, or a spec is broken.
    """
    from serving.errors import InputError
    from serving.spec import load_specs

    specs = load_specs(folder)
    known = [spec.name for spec in specs]
    for name in names:
        if name not in known:
            raise InputError(f"{name}: no such model in {folder}; use one of {', '.join(known)}")
    return tuple(spec for spec in specs if not names or spec.name in names)


def _planned(
    specs: Sequence[ModelSpec], files: Path, lengths: Sequence[str], settings: Settings
) -> Plan:
    from serving.capacity.known import parse_mix, read_known
    from serving.capacity.measured import with_evidence
    from serving.capacity.plan import plan_fleet
    from serving.errors import InputError

    mixes = dict(parse_mix(text) for text in lengths)
    names = [spec.name for spec in specs]
    for name in mixes:
        if name not in names:
            raise InputError(
                f"lengths={name}: no such model is planned; use one of {', '.join(names)}"
            )
    known = {name: read_known(files / name, mixes.get(name)) for name in names}
    return plan_fleet(specs, with_evidence(settings.environment, known), settings)


def _other(
    path: Path,
    specs: Sequence[ModelSpec],
    files: Path | None,
    lengths: Sequence[str],
    settings: Settings,
) -> Plan:
    """The plan with the other spec in its namesake's place, or of the other folder."""
    from serving.spec import load_spec, load_specs

    if path.is_dir():
        return _planned(load_specs(path), files or path, lengths, settings)
    other = load_spec(path)
    together = {spec.name: spec for spec in specs} | {other.name: other}
    return _planned(tuple(together.values()), files or path.parent, lengths, settings)


def _show(found: Plan, *, machines: bool) -> None:
    from serving.capacity import report

    table = report.overview(found)
    print_table(table.columns, table.rows)
    for model in found.models:
        for line in report.details(model):
            print_line(line)
        if machines:
            for table in (report.machines(model), report.ladder(model)):
                print_table(table.columns, table.rows, table.title)
    for floor in found.floors:
        for line in report.floor_lines(floor):
            print_line(line)
    print_line(report.total(found))


def _show_differences(old: Plan, new: Plan, *, json: bool) -> None:
    from serving.capacity.data import differences, plan_data

    rows = [
        (path, before, after)
        for path, before, after in differences(plan_data(old), plan_data(new))
        if not path.endswith(("candidates", "ladder", "sums"))
    ]
    if json:
        print_json([{"where": path, "now": now, "then": then} for path, now, then in rows])
    elif rows:
        print_table(("where", "now", "then"), rows)
    else:
        print_line("nothing changes")


def add_to(app: typer.Typer) -> None:
    """Add the commands about capacity."""
    import serving.capacity.simulator.commands

    app.command()(plan)
    serving.capacity.simulator.commands.add_to(app)
