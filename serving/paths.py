"""Where this checkout is, and where its installed servers are."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SPECS = ROOT / "serving" / "specs"


def specs_folder() -> Path:
    """Folder of the model specs: `GALLEY_SPECS`, or the shipped ones."""
    return Path(os.environ.get("GALLEY_SPECS", SPECS)).resolve()


def engines_folder() -> Path:
    """Environment that holds the servers: `GALLEY_ENGINES`, or `.engines` in the checkout."""
    return Path(os.environ.get("GALLEY_ENGINES", ROOT / ".engines")).absolute()


def home_folder() -> Path:
    """Folder of the local stack: `GALLEY_HOME`, or `.galley` in the checkout.

    A second stack beside the first needs only another folder.
    """
    return Path(os.environ.get("GALLEY_HOME", ROOT / ".galley")).absolute()
