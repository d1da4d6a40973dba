"""galley push, pull, versions, show."""

from pathlib import Path
from typing import Annotated

import typer

from serving.console import (
    Env,
    Json,
    byte_progress,
    mebibytes,
    print_json,
    print_line,
    print_table,
    say,
    short,
)

Model = Annotated[str, typer.Argument(help="Name of the model.")]
Version = Annotated[int, typer.Argument(help="Number of the version.")]


def push(
    model: Model,
    file: Annotated[
        Path | None, typer.Option(help="The model file or folder; shipped models make their own.")
    ] = None,
    version: Annotated[
        int | None, typer.Option(help="Number to publish under; the next one if not given.")
    ] = None,
    source: Annotated[str, typer.Option(help="Where the file comes from, for the record.")] = "",
    env: Env = "local",
    json: Json = False,
) -> None:
    """Publish a model version: blobs first, manifest last, never overwritten."""
    import tempfile
    from dataclasses import asdict
    from datetime import UTC, datetime

    from serving.environments import open_store, signing_key
    from serving.paths import specs_folder
    from serving.publish import gather, publish, spec_of
    from serving.registry.probing import check_conditional_writes

    spec = spec_of(model, specs_folder())
    with tempfile.TemporaryDirectory(prefix="galley-") as folder, open_store(env) as store:
        files = gather(spec, file, Path(folder), specs_folder())
        check_conditional_writes(store)
        total = sum(path.stat().st_size for path in files.values() if path.is_file())
        with byte_progress(f"push {model}", total) as progress:
            published = publish(
                store,
                spec,
                files,
                source=source or (str(file) if file else f"recipe {model}"),
                now=datetime.now(UTC),
                version=version,
                signing_key=signing_key(),
                progress=progress,
            )
    if json:
        print_json(asdict(published))
    elif published.created:
        print_line(
            f"published {model} version {published.version} ({short(published.digest)}), "
            f"{mebibytes(published.uploaded_bytes)} uploaded"
        )
    else:
        print_line(
            f"{model} version {published.version} holds these bytes already "
            f"({short(published.digest)}); nothing was written"
        )


def pull(
    model: Model,
    version: Version,
    to: Annotated[Path, typer.Option(help="Folder to make; it must not exist yet.")],
    env: Env = "local",
    json: Json = False,
) -> None:
    """Fetch a version into a folder, every byte verified."""
    from serving.environments import open_store, verify_key
    from serving.registry.registry import pull as pull_version
    from serving.registry.registry import show as show_version

    with open_store(env) as store:
        size = show_version(store, model, version).size_bytes
        with byte_progress(f"pull {model} {version}", size) as progress:
            manifest = pull_version(
                store,
                model=model,
                version=version,
                target=to,
                verify_key=verify_key(),
                progress=progress,
            )
    if json:
        print_json({**manifest.model_dump(mode="json"), "digest": manifest.digest, "to": str(to)})
    else:
        print_line(f"{model} version {version} ({short(manifest.digest)}) is in {to}, verified")


def versions(model: Model, env: Env = "local", json: Json = False) -> None:
    """List the published versions of a model."""
    from serving.environments import open_store
    from serving.registry import releases
    from serving.registry.registry import versions as list_versions

    with open_store(env) as store:
        found = list_versions(store, model)
        release = releases.read(store, env, model)
    serving = {target.version for target in release[0].targets} if release else set()
    rows = [
        {
            "version": each.version,
            "digest": each.digest,
            "size_bytes": each.size_bytes,
            "created": each.created,
            "source": each.source,
            "signed": each.signature is not None,
            "serving": each.version in serving,
        }
        for each in found
    ]
    if json:
        print_json(rows)
    elif not rows:
        say(f"{model} has no versions; run: galley push {model}")
    else:
        print_table(
            ("version", "digest", "size", "created", "source", "signed", f"serves {env}"),
            [
                (
                    row["version"],
                    short(str(row["digest"])),
                    mebibytes(int(str(row["size_bytes"]))),
                    row["created"],
                    row["source"],
                    "yes" if row["signed"] else "no",
                    "yes" if row["serving"] else "",
                )
                for row in rows
            ],
        )


def show(model: Model, version: Version, env: Env = "local", json: Json = False) -> None:
    """Show what a version is made of."""
    from serving.environments import open_store
    from serving.registry.registry import show as show_version

    with open_store(env) as store:
        manifest = show_version(store, model, version)
    if json:
        print_json({**manifest.model_dump(mode="json"), "digest": manifest.digest})
        return
    print_line(f"{model} version {version}, {manifest.format}, {manifest.digest}")
    print_line(f"created {manifest.created} from {manifest.source or 'an unnamed source'}")
    print_table(
        ("file", "bytes", "sha256"),
        [(file.path, file.size_bytes, file.sha256) for file in manifest.files],
    )


def add_to(app: typer.Typer) -> None:
    """Add the registry's commands."""
    for command in (push, pull, versions, show):
        app.command()(command)
