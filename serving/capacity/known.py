"""What is known of a model besides its spec: files in a folder of its name.

batch_curve.json     milliseconds of one execution by batch size, measured on the spec's hardware
config.json          shape of a language model, as on Hugging Face
*.safetensors        its weights, or model.safetensors.index.json; only headers are read
model.*              a model of another kind; only its size is read
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from serving.capacity.architecture import Architecture, read_architecture
from serving.capacity.batching import BatchCurve, read_curve
from serving.capacity.llm_memory import LengthMix
from serving.capacity.measured import Maximum
from serving.capacity.safetensors_header import folder_weight_bytes
from serving.errors import InputError


@dataclass(frozen=True, slots=True)
class Known:
    """All of it; None where nobody said."""

    curve: BatchCurve | None = None
    architecture: Architecture | None = None
    stored_bytes: int | None = None
    mix: LengthMix | None = None
    maximum: Maximum | None = None
    """A rate that a load test has confirmed; see `measured`."""


def read_known(folder: Path, mix: LengthMix | None = None) -> Known:
    """What the folder of one model says; a folder that is not there says nothing.

    Raises:
        InputError: a file in it is broken.
    """
    curve, config = folder / "batch_curve.json", folder / "config.json"
    stored = folder_weight_bytes(folder)
    if stored is None:
        sizes = [path.stat().st_size for path in folder.glob("model.*") if path.suffix != ".json"]
        stored = sum(sizes) or None
    return Known(
        curve=read_curve(curve) if curve.is_file() else None,
        architecture=read_architecture(config) if config.is_file() else None,
        stored_bytes=stored,
        mix=mix,
    )


def parse_mix(text: str) -> tuple[str, LengthMix]:
    """`MODEL=PROMPT:OUTPUT`, in tokens.

    >>> parse_mix("chat=1024:256")
    ('chat', LengthMix(prompt_tokens=1024, output_tokens=256))

    Raises:
        InputError: it is written otherwise.
    """
    model, _, sizes = text.partition("=")
    prompt, _, output = sizes.partition(":")
    if not model or not prompt.isdecimal() or not output.isdecimal() or "0" in (prompt, output):
        raise InputError(
            f"lengths={text}: is not MODEL=PROMPT:OUTPUT in tokens; write it as chat=1024:256"
        )
    return model, LengthMix(int(prompt), int(output))
