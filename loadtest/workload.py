"""`Workload`: what is sent and when, whatever the model; a YAML file with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Discriminator, Field, Tag, ValidationError

from loadtest.arrivals import Arrivals, Replay
from serving.errors import InputError, SpecError
from serving.slo import Because, Positive
from serving.spec import Name
from serving.strict import Fault, Strict, sentence, sentences, tagged
from serving.yaml_file import read_mapping

WORKLOADS: Final = Path(__file__).parent / "workloads"


class TritonHttp(Strict):
    """An inference over HTTP."""

    kind: Literal["triton_http"]
    framing: Literal["binary", "json"] = Field(description="how tensors are written")
    batch_size: int = Field(default=1, ge=1, description="rows in a request")


class TritonGrpc(Strict):
    """An inference over gRPC."""

    kind: Literal["triton_grpc"]
    batch_size: int = Field(default=1, ge=1, description="rows in a request")


class Chat(Strict):
    """A chat completion in OpenAI's form; lengths are log-normal around their means."""

    kind: Literal["chat"]
    prompt_tokens: int = Field(ge=1, description="mean length of a prompt")
    output_tokens: int = Field(ge=1, description="mean of the most tokens asked for")
    stream: bool = Field(default=True, description="whether tokens come as they are made")


class Completions(Strict):
    """A completion in OpenAI's form; lengths are log-normal around their means."""

    kind: Literal["completions"]
    prompt_tokens: int = Field(ge=1, description="mean length of a prompt")
    output_tokens: int = Field(ge=1, description="mean of the most tokens asked for")
    stream: bool = Field(default=True, description="whether tokens come as they are made")


Request = Annotated[
    Annotated[TritonHttp, Tag("triton_http")]
    | Annotated[TritonGrpc, Tag("triton_grpc")]
    | Annotated[Chat, Tag("chat")]
    | Annotated[Completions, Tag("completions")],
    Discriminator(tagged),
]


class Workload(Strict):
    """One profile of load."""

    name: Name = Field(description="name of the workload and of its file")
    because: Because = Field(description="what it is for, and why these numbers")
    arrivals: Arrivals = Field(description="when requests arrive")
    warmup_seconds: float = Field(default=5.0, ge=0, le=3600, description="left out of all counts")
    seconds: Positive = Field(default=60.0, description="measured time, at least")
    exact: bool = Field(default=False, description="no longer, though a PASS would take it")
    seed: int = Field(default=1, ge=0, description="all that is drawn is drawn from it")
    request: Request = Field(description="what is asked")
    distinct_ratio: float = Field(
        default=1.0, gt=0, le=1, description="share of requests that no other one equals"
    )
    timeout_seconds: Positive | None = Field(
        default=None, description="after which a request is given up; 10 times the strictest limit"
    )


def load_workload(path: Path) -> Workload:
    """The workload of a file, which is named for it.

    Raises:
        SpecError: with everything that is wrong with the file.
    """
    mapping = read_mapping(path)
    name, faults = mapping.get("name"), []
    if isinstance(name, str) and name != path.stem:
        fault = Fault(("name",), name, "is not the file's own", f"write name: {path.stem}")
        faults.append(sentence(path.name, fault))
    try:
        found = Workload.model_validate(mapping)
    except ValidationError as error:
        raise SpecError([*faults, *sentences(path.name, error)]) from None
    if faults:
        raise SpecError(faults)
    if isinstance(found.arrivals, Replay):
        # A job is read elsewhere: a path beside this file must be one from anywhere.
        trace = str(path.parent.absolute() / found.arrivals.trace)
        found = found.model_copy(
            update={"arrivals": found.arrivals.model_copy(update={"trace": trace})}
        )
    return found


def workload_of(name_or_path: str, folder: Path = WORKLOADS) -> Workload:
    """A workload by its name, or by the path of its file.

    Raises:
        InputError: there is none, or it has faults.
    """
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml"):
        return load_workload(path)
    known = sorted(each.stem for each in folder.glob("*.yaml"))
    if name_or_path not in known:
        raise InputError(
            f"workload={name_or_path}: is not known; use one of {', '.join(known)}, or the path "
            "of a YAML file"
        )
    return load_workload(folder / f"{name_or_path}.yaml")


def workloads(folder: Path = WORKLOADS) -> tuple[Workload, ...]:
    """Every workload of a folder, by name."""
    return tuple(load_workload(path) for path in sorted(folder.glob("*.yaml")))
