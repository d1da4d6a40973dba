"""`filetype`: the first and last bytes of a file → what kind of file it is.

The model inside the `magika` package, a production classifier. Its own Python API answers the same
question by another route, so every answer of a server can be checked (`reference`).

    file → directory, empty, special file (unknown), under 8 bytes (txt or unknown): by rule
         → any other: 2,048 tokens → model → 214 scores → label; txt or unknown if the score is low
"""

from __future__ import annotations

import io
import json
import os
import stat
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from serving.errors import ArtifactError, InputError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    import numpy as np
    from numpy.typing import NDArray

INPUT = "bytes"
OUTPUT = "target_label"


class Labels(BaseModel):
    """What reading a file and naming an answer take besides the weights: `labels.json`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(description="name of the model in its package")
    target_labels: tuple[str, ...] = Field(description="label of each score, in order")
    thresholds: dict[str, float] = Field(description="lowest trusted score of a label")
    default_threshold: float = Field(description="lowest trusted score of the other labels")
    overwrite_map: dict[str, str] = Field(description="label of the model → label that is told")
    is_text: dict[str, bool] = Field(description="whether a low score means txt or unknown")
    block_size_bytes: int = Field(description="read from each end of a file")
    head_size_bytes: int = Field(description="tokens of the beginning", gt=0)
    tail_size_bytes: int = Field(description="tokens of the end", gt=0)
    min_size_bytes: int = Field(description="shorter files are decided by rule")
    padding_token: int = Field(description="token where a file has no byte")


def build(folder: Path) -> dict[str, Path]:
    """The two files of a version: the weights as published, and `labels.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {name: folder / name for name in ("model.onnx", "labels.json")}
    published = package_labels()
    files["model.onnx"].write_bytes((_model_folder() / "model.onnx").read_bytes())
    files["labels.json"].write_text(published.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return files


def read_labels(path: Path) -> Labels:
    """The `labels.json` of a version.

    Raises:
        ArtifactError: if the file cannot be read as such.
    """
    try:
        return Labels.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        fields = ", ".join(".".join(map(str, e["loc"])) or "file" for e in error.errors())
        raise ArtifactError(f"{path}: not the labels of filetype; wrong: {fields}") from error


@cache
def package_labels() -> Labels:
    """The labels of the installed package.

    Raises:
        ArtifactError: if its model is fed in a way that `encode` does not know.
    """
    folder = _model_folder()
    config = json.loads((folder / "config.min.json").read_bytes())
    kinds = json.loads(
        (resources.files("magika") / "config/content_types_kb.min.json").read_bytes()
    )
    if config["mid_size"] or config["use_inputs_at_offsets"]:
        raise ArtifactError(f"{folder.name}: reads more than both ends of a file; use magika 1.x")
    told = sorted({*config["target_labels_space"], *config["overwrite_map"].values()})
    return Labels(
        model=folder.name,
        target_labels=tuple(config["target_labels_space"]),
        thresholds=config["thresholds"],
        default_threshold=config["medium_confidence_threshold"],
        overwrite_map=config["overwrite_map"],
        is_text={label: kinds[label]["is_text"] for label in told},
        block_size_bytes=config["block_size"],
        head_size_bytes=config["beg_size"],
        tail_size_bytes=config["end_size"],
        min_size_bytes=config["min_file_size_for_dl"],
        padding_token=config["padding_token"],
    )


def encode(source: Path | bytes, labels: Labels | None = None) -> NDArray[np.int32] | str:
    """Tokens for the model, or the label where a rule decides without it.

    Symbolic links are followed. At most two blocks are read, however large the file is.

    Shapes: [2048]

    Raises:
        InputError: if the file is missing or may not be read.
    """
    labels = labels or package_labels()
    if isinstance(source, bytes):
        return _encode_stream(io.BytesIO(source), labels)
    try:
        mode = source.stat().st_mode
        if stat.S_ISDIR(mode):
            return "directory"
        if not stat.S_ISREG(mode):
            return "unknown"  # never opened: a pipe would block, a device would never end
        with source.open("rb") as stream:
            return _encode_stream(stream, labels)
    except OSError as error:
        raise InputError(f"{source}: cannot be read: {error.strerror}") from error


def decode(scores: NDArray[np.float32], labels: Labels | None = None) -> tuple[str, float]:
    """Label and score of one row of the output, in the package's high-confidence mode.

    Shapes: [214]

    Raises:
        InputError: if the row is not one score per label.
    """
    import numpy as np

    labels = labels or package_labels()
    if scores.size != len(labels.target_labels) or np.isnan(scores).any():
        raise InputError(
            f"{OUTPUT}: shape {list(scores.shape)}, expected {len(labels.target_labels)} numbers"
        )
    best = int(scores.argmax())
    score = float(scores.flat[best])
    guess = labels.target_labels[best]
    label = labels.overwrite_map.get(guess, guess)
    if score < labels.thresholds.get(guess, labels.default_threshold):
        label = "txt" if labels.is_text[label] else "unknown"
    return label, score


def reference(paths: Sequence[Path]) -> list[str]:
    """The labels that the package's own Python API gives.

    Raises:
        InputError: if a file is missing or may not be read.
    """
    from magika import Magika

    found = []
    magika = Magika()
    for path in paths:
        result = magika.identify_path(path)
        if not result.ok:
            raise InputError(f"{path}: cannot be read: {result.status}")
        found.append(str(result.output.label))
    return found


def _encode_stream(stream: BinaryIO, labels: Labels) -> NDArray[np.int32] | str:
    import numpy as np

    size = stream.seek(0, os.SEEK_END)
    if size == 0:
        return "empty"
    first = _block(stream, 0, labels.block_size_bytes)
    last = _block(stream, max(0, size - labels.block_size_bytes), labels.block_size_bytes)
    head = first.lstrip()[: labels.head_size_bytes]
    tail = last.rstrip()[-labels.tail_size_bytes :]
    if len(head) < labels.min_size_bytes:
        return "txt" if _is_utf8(first) else "unknown"
    width = labels.head_size_bytes + labels.tail_size_bytes
    tokens = np.full(width, labels.padding_token, dtype=np.int32)
    tokens[: len(head)] = np.frombuffer(head, dtype=np.uint8)
    tokens[width - len(tail) :] = np.frombuffer(tail, dtype=np.uint8)
    return tokens


def _block(stream: BinaryIO, offset: int, size: int) -> bytes:
    stream.seek(offset)
    return stream.read(size)


def _is_utf8(block: bytes) -> bool:
    try:
        block.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _model_folder() -> Traversable:
    """Folder of the package's default model."""
    from magika import Magika

    return resources.files("magika") / "models" / Magika._get_default_model_name()
