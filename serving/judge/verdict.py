"""`Verdict`: one of four answers, with the reason of each part, and the exit code it ends with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from serving.judge.objectives import Objective


class Answer(StrEnum):
    """What a verdict can say."""

    PASS = "PASS"  # noqa: S105  (no password)
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    """The evidence is sound and there is too little of it."""
    INVALID = "INVALID"
    """The measurement cannot be trusted, whatever it says."""

    @property
    def exit_code(self) -> int:
        """As every command of galley ends: 0 done, 1 no, 3 inconclusive, 4 invalid."""
        return {"PASS": 0, "FAIL": 1, "INCONCLUSIVE": 3, "INVALID": 4}[self.value]


@dataclass(frozen=True, slots=True)
class Gate:
    """How one objective was judged.

    `lower` and `upper` bound the share of bad requests with the confidence of the verdict each;
    `bad` counts what is unknown too. `bound_ms` is not exceeded by the quantile with that
    confidence; None where the sample is too small to say, inf where it is no answered request.
    """

    objective: Objective
    answer: Answer
    reason: str
    n: int = 0
    bad: int = 0
    n_eff: float = 0.0
    tau: float = 1.0
    observed_ratio: float | None = None
    lower: float | None = None
    upper: float | None = None
    allowed_ratio: float | None = None
    observed_ms: float | None = None
    bound_ms: float | None = None
    rule: str = ""
    would_help: str = ""

    @property
    def name(self) -> str:
        """As a spec spells it."""
        return self.objective.name


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a measurement cannot be trusted.

    `spares_fail`: it can only have made the service look better than it is, so FAIL stands.
    """

    what: str
    message: str
    spares_fail: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer, and everything it rests on."""

    answer: Answer
    gates: tuple[Gate, ...]
    faults: tuple[Fault, ...]
    notes: tuple[str, ...]
    alpha: float

    @property
    def exit_code(self) -> int:
        """0 PASS, 1 FAIL, 3 INCONCLUSIVE, 4 INVALID."""
        return self.answer.exit_code

    def as_json(self) -> dict[str, Any]:
        """Plain values; a time that never came is null, with `never` beside it."""
        return {
            "verdict": self.answer.value,
            "exit_code": self.exit_code,
            "confidence": 1 - self.alpha,
            "gates": [_gate_json(gate) for gate in self.gates],
            "faults": [{"what": fault.what, "message": fault.message} for fault in self.faults],
            "notes": list(self.notes),
        }


def _gate_json(gate: Gate) -> dict[str, Any]:
    objective = gate.objective
    return {
        "gate": gate.name,
        "verdict": gate.answer.value,
        "reason": gate.reason,
        "limit_ms": objective.limit_ms,
        "limit_rps": objective.limit_rps,
        "n": gate.n,
        "bad": gate.bad,
        "n_eff": round(gate.n_eff, 1),
        "tau": round(gate.tau, 3),
        "bad_ratio": gate.observed_ratio,
        "bad_ratio_lower": gate.lower,
        "bad_ratio_upper": gate.upper,
        "bad_ratio_allowed": gate.allowed_ratio,
        "observed_ms": finite(gate.observed_ms),
        "bound_ms": finite(gate.bound_ms),
        "rule": gate.rule,
        "would_help": gate.would_help,
    }


def finite(value: float | None) -> float | str | None:
    """A number as JSON can hold it; a time that never came is the word `never`."""
    return "never" if value == float("inf") else value


def combined(gates: Iterable[Gate], faults: Iterable[Fault]) -> Answer:
    """The answer of the whole. PASS takes at least one gate, and all of them.

    A measurement that cannot be trusted is INVALID before anything else; then one FAIL is enough,
    then one INCONCLUSIVE.
    """
    answers = {gate.answer for gate in gates}
    found = tuple(faults)
    if not answers or Answer.INVALID in answers or any(not fault.spares_fail for fault in found):
        return Answer.INVALID
    if Answer.FAIL in answers:
        return Answer.FAIL
    if found:
        return Answer.INVALID
    return Answer.PASS if answers == {Answer.PASS} else Answer.INCONCLUSIVE
