"""galley check, render, predict."""

from pathlib import Path
from typing import Annotated

import typer

from serving.console import Json, print_json, print_line, print_table

Specs = Annotated[
    Path | None, typer.Option("--specs", help="Folder of specs; the shipped ones if not given.")
]


def check(specs: Specs = None, json: Json = False) -> None:
    """Check every model spec; all faults of all files are told at once."""
    from serving.paths import specs_folder
    from serving.spec import load_specs

    folder = specs or specs_folder()
    found = load_specs(folder)
    if json:
        print_json({"specs": [spec.name for spec in found], "faults": []})
        return
    print_table(
        ("model", "engine", "inputs", "outputs", "SLO", "peak rps"),
        [
            (
                spec.name,
                spec.engine.kind,
                ", ".join(tensor.name for tensor in spec.inputs),
                ", ".join(tensor.name for tensor in spec.outputs),
                ", ".join(
                    f"{key}={value:g}"
                    for key, value in spec.slo.model_dump(exclude={"because"}).items()
                    if isinstance(value, int | float)
                ),
                spec.traffic.peak_rps,
            )
            for spec in found
        ],
    )
    print_line(f"{len(found)} specs are good")


def render(
    model: Annotated[str, typer.Argument(help="Name of the model.")],
    cpu: Annotated[bool, typer.Option("--cpu", help="As the local stack runs it.")] = False,
    specs: Specs = None,
    json: Json = False,
) -> None:
    """Print the config.pbtxt that a Triton model's spec comes to."""
    from serving.console import say
    from serving.engines.triton import on_cpu, render_config, to_pbtxt
    from serving.paths import specs_folder
    from serving.publish import spec_of

    config = render_config(spec_of(model, specs or specs_folder()))
    notes: tuple[str, ...] = ()
    if cpu:
        config, notes = on_cpu(config)
    if json:
        print_json({"model": model, "config.pbtxt": to_pbtxt(config), "notes": list(notes)})
        return
    for note in notes:
        say(note)
    print_line(to_pbtxt(config).rstrip())


def predict(
    model: Annotated[str, typer.Argument(help="Name of a deployed model.")],
    file: Annotated[list[Path], typer.Option("--file", help="Input; may be given several times.")],
    home: Annotated[Path | None, typer.Option("--home", help="Folder of the stack.")] = None,
    json: Json = False,
) -> None:
    """Ask a model through the gateway with the operator's key, and print its answers."""
    from serving.local.access import operator_client
    from serving.local.commands import home_of
    from serving.predict import predict_files

    where = home_of(home)
    with operator_client(where, where.running_state()) as client:
        answers = predict_files(client, model, file)
    if json:
        print_json([{"file": str(path), "answer": answer} for path, answer in answers])
        return
    for path, answer in answers:
        text = " ".join(f"{part:.4f}" if isinstance(part, float) else str(part) for part in answer)
        print_line(text if len(answers) == 1 else f"{path}: {text}")


def add_to(app: typer.Typer) -> None:
    """Add the commands about specs and predictions."""
    for command in (check, render, predict):
        app.command()(command)
