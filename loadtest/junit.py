"""A verdict as JUnit XML: one test case for each objective, one for the measurement itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from serving.judge.verdict import Answer, Gate, Verdict

if TYPE_CHECKING:
    from junitparser.junitparser import FinalResult


def write_junit(verdict: Verdict, name: str, path: Path) -> None:
    """Write the verdict for a CI server.

    FAIL is a failure; INCONCLUSIVE and INVALID are errors. Nothing is ever skipped: many servers
    take that for success.
    """
    from junitparser import JUnitXml, TestCase, TestSuite

    suite = TestSuite(f"galley judge {name}")
    measurement = TestCase("measurement", name)
    measurement.result = [_result(Answer.INVALID, str(fault.message)) for fault in verdict.faults]
    suite.add_testcase(measurement)
    for gate in verdict.gates:
        case = TestCase(gate.name, name)
        if gate.answer is not Answer.PASS:
            case.result = [_result(gate.answer, _told(gate))]
        suite.add_testcase(case)
    if not verdict.faults and all(gate.answer is Answer.PASS for gate in verdict.gates):
        # The verdict is the whole's; should it ever say less than its parts, CI must see it.
        whole = TestCase("verdict", name)
        if verdict.answer is not Answer.PASS:
            whole.result = [_result(verdict.answer, verdict.answer.value)]
        suite.add_testcase(whole)
    document = JUnitXml("galley judge")
    document.add_testsuite(suite)
    document.update_statistics()  # type: ignore[no-untyped-call]
    document.write(str(path), pretty=True)


def _result(answer: Answer, message: str) -> FinalResult:
    from junitparser import Error, Failure

    kind = Failure if answer is Answer.FAIL else Error
    return kind(message, answer.value)


def _told(gate: Gate) -> str:
    return f"{gate.reason}; {gate.would_help}" if gate.would_help else gate.reason
