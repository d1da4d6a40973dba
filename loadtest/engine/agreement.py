"""How master and workers of one run agree on who does what, from when, and what came of it.

    master ── prepare: job, who is which worker ──► each worker builds its share
           ◄─ ready: digest of the schedule ──────  (a digest that differs ends the run)
           ── go: the moment to start ────────────►
           ◄─ rows: every half second ────────────
           ── stop: where the run is broken off ──►
           ◄─ done: its own health ───────────────
           ── closed: the run's account is written

One process alone goes through the same steps without sending anything. Locust says which workers
there are and carries the messages; a worker that is lost, or whose rows do not add up with the
schedule, is written into the account, and the judge refuses the run.
"""

from __future__ import annotations

import gc
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import gevent
import gevent.ssl

from loadtest import account, records
from loadtest.account import Account, Part
from loadtest.engine.askers import AskerOf, askers_of
from loadtest.engine.connection import Connection
from loadtest.engine.health import Health, Watch
from loadtest.engine.open_loop import OpenLoop
from loadtest.job import Job, job_from

if TYPE_CHECKING:
    from locust.env import Environment
    from locust.rpc.protocol import Message

PREPARE, READY, GO, ROWS, STOP, DONE = (
    f"galley_{word}" for word in ("prepare", "ready", "go", "rows", "stop", "done")
)
EVERY_SECONDS: Final = 0.5
LEAD_SECONDS: Final = 0.5
"""From the word to start until the start, so that it reaches every worker before."""
PATIENCE_SECONDS: Final = 60.0
"""For workers to build their share, and for the last of them to report."""


class WorkerSide:
    """What a process that sends requests does in a run; nothing of it survives the run.

    Args:
        job: the load test.
        worker: number of this process, from 0.
        workers: how many there are.
    """

    def __init__(self, job: Job, worker: int, workers: int) -> None:
        self.job = job
        self.asker_of: AskerOf = askers_of(job)
        self.loop = OpenLoop(job.schedule, worker, workers)
        self._watch = Watch()
        self._context: gevent.ssl.SSLContext | None = None
        self._greenlet: gevent.Greenlet[[Any], None] | None = None
        self._health: Health | None = None

    def connection(self) -> Connection:
        """A connection for one user."""
        job = self.job
        if self._context is None and job.url.startswith("https://"):
            # One for all: reading the certificate for each would take longer than the handshakes.
            self._context = gevent.ssl.create_default_context(cafile=job.ca)
        key = job.key()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return Connection(job.url, headers, job.timeout_seconds, self._context)

    def begin(self, at: float, told: Any) -> None:
        """Start at a moment of the wall clock, and tell `told` rows, then the health."""
        delay = at - time.time()
        # One reading of the wall clock: should it be set while the run goes on, nothing moves.
        self.loop.begin(time.monotonic_ns() + round(delay * 1e9))
        # What was built before the start lives until the end; looking at it again costs the run
        # pauses that would pass for slow answers.
        gc.collect()
        gc.freeze()
        self._greenlet = gevent.spawn(self._go_on, told)

    def stop(self) -> tuple[bytes, Health]:
        """Break off: the rows not yet told, open requests among them, and the health."""
        if self._greenlet is not None:
            self._greenlet.kill()
        return self._closed()

    def _go_on(self, told: Any) -> None:
        schedule, start = self.job.schedule, self.loop.dispatcher.start
        warm = (start + schedule.warmup_until) / 1e9
        end = (start + schedule.until) / 1e9 + self.job.timeout_seconds + 1.0
        over = (start + schedule.until) / 1e9
        watching = False
        while time.monotonic() < end and not self.loop.done:
            now = time.monotonic()
            if not watching and now >= warm:
                self._watch.begin()
                watching = True
            if watching and self._health is None and now >= over:
                self._health = self._watch.stop()
            told(self.loop.drain(), None)
            gevent.sleep(EVERY_SECONDS)
        told(*self._closed())

    def _closed(self) -> tuple[bytes, Health]:
        self.loop.close(time.monotonic_ns())
        if self._health is None:
            self._health = self._watch.stop()
        gc.unfreeze()
        return self.loop.drain(), self._health


@dataclass
class _Run:
    """What the master knows of the run that goes on."""

    job: Job
    folder: Path
    order: list[str]
    started: float = 0.0
    began_at: float = 0.0
    ready: dict[str, str] = field(default_factory=dict)
    parts: dict[str, Part] = field(default_factory=dict)
    recorded: dict[str, int] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    stopping: bool = False
    prepared_at: float = field(default_factory=time.monotonic)


class Agreement:
    """One process's side of every run that Locust starts in it.

    Args:
        environment: Locust's.
        job_of: settles the job of a run from Locust's options, and the folder it is kept in.
        follower: the process that started this one and follows the run; None where none does.
        concluded: is called with that folder when the account is written.
    """

    def __init__(
        self, environment: Environment, job_of: Any, concluded: Any, follower: int | None = None
    ) -> None:
        from locust.runners import MasterRunner, WorkerRunner

        self.environment, self._job_of, self._concluded = environment, job_of, concluded
        self._follower = follower
        runner: Any = environment.runner
        self._runner = runner
        self.is_worker = isinstance(runner, WorkerRunner)
        self.is_master = isinstance(runner, MasterRunner)
        self.side: WorkerSide | None = None
        self._run: _Run | None = None
        self._told_users = False
        if self.is_worker:
            runner.register_message(PREPARE, self._on_prepare)
            runner.register_message(GO, self._on_go)
            runner.register_message(STOP, self._on_stop)
        elif self.is_master:
            runner.register_message(READY, self._on_ready)
            runner.register_message(ROWS, self._on_rows)
            runner.register_message(DONE, self._on_done)
        environment.events.test_start.add_listener(self._on_test_start)
        environment.events.spawning_complete.add_listener(self._on_spawned)
        environment.events.test_stop.add_listener(self._on_test_stop)

    @property
    def finished(self) -> bool:
        """Whether every worker reported its end, or is lost."""
        run = self._run
        if run is None:
            return False
        if self._follower is not None and os.getppid() != self._follower:
            # Whoever follows the run is gone; nobody would stop it.
            return True
        if not run.stopping and (run.folder / account.STOP).exists():
            self._break_off(run)
        self._look_for_lost(run)
        lasts = run.job.schedule.until / 1e9 + run.job.timeout_seconds + PATIENCE_SECONDS
        if run.began_at and time.monotonic() - run.began_at > lasts:
            # Somebody is stuck; what there is will be judged, and found wanting.
            run.lost.update(set(run.order) - run.parts.keys())
        return set(run.order) <= run.parts.keys() | run.lost

    # What Locust tells.

    def _on_test_start(self, **_: Any) -> None:
        if self.is_worker:
            return
        job, folder = self._job_of(self.environment)
        order = [client.id for client in self._runner.clients.ready] if self.is_master else ["self"]
        for left in (account.RECORDS, account.ACCOUNT, account.STOP):
            (folder / left).unlink(missing_ok=True)
        self._run = _Run(job, folder, sorted(order))
        self._told_users = False
        if not self.is_master:
            self.side = WorkerSide(job, 0, 1)
            self._run.ready["self"] = job.schedule.digest
            return
        text = job.as_text()
        for client in self._run.order:
            self._runner.send_message(
                PREPARE, {"job": text, "order": self._run.order}, client_id=client
            )

    def _on_spawned(self, **_: Any) -> None:
        self._told_users = True
        self._start_if_ready()

    def _on_test_stop(self, **_: Any) -> None:
        if self.is_worker:
            self._on_stop()
            return
        run = self._run
        if run is None:
            return
        if self.side is not None and "self" not in run.parts:
            self._take(run, "self", *self.side.stop())
        deadline = time.monotonic() + 5
        while not self.finished and time.monotonic() < deadline:
            gevent.sleep(0.05)
        self.side = None
        self._write(run)
        self._run = None

    # The worker's side of the messages.

    def _on_prepare(self, msg: Message, **_: Any) -> None:
        data: Any = msg.data
        order = data["order"]
        job = job_from(data["job"])
        self.side = WorkerSide(job, order.index(self._runner.client_id), len(order))
        self._runner.send_message(READY, {"digest": job.schedule.digest})

    def _on_go(self, msg: Message, **_: Any) -> None:
        if self.side is not None:
            data: Any = msg.data
            self.side.begin(data["at"], self._report)

    def _on_stop(self, **_: Any) -> None:
        if self.side is not None:
            self._report(*self.side.stop())
            self.side = None

    def _report(self, rows: bytes, health: Health | None) -> None:
        if rows:
            self._runner.send_message(ROWS, {"rows": rows})
        if health is not None:
            self._runner.send_message(DONE, asdict(health))

    # The master's side of them.

    def _break_off(self, run: _Run) -> None:
        """Whoever follows the run has seen enough, and left a file that says so."""
        run.stopping = True
        if self.side is not None:
            self._take(run, "self", *self.side.stop())
            return
        for client in run.order:
            self._runner.send_message(STOP, {}, client_id=client)

    def _on_ready(self, msg: Message, **_: Any) -> None:
        if self._run is not None:
            data: Any = msg.data
            self._run.ready[msg.node_id] = data["digest"]
            self._start_if_ready()

    def _on_rows(self, msg: Message, **_: Any) -> None:
        if self._run is not None:
            data: Any = msg.data
            self._take(self._run, msg.node_id, data["rows"], None)

    def _on_done(self, msg: Message, **_: Any) -> None:
        if self._run is not None:
            data: Any = msg.data
            self._take(self._run, msg.node_id, b"", Health(**data))

    def _start_if_ready(self) -> None:
        run = self._run
        if run is None or run.started or not self._told_users:
            return
        if not set(run.order) <= run.ready.keys():
            return
        run.started, run.began_at = time.time() + LEAD_SECONDS, time.monotonic()
        if self.side is not None:
            self.side.begin(run.started, lambda rows, health: self._take(run, "self", rows, health))
            return
        for client in run.order:
            self._runner.send_message(GO, {"at": run.started}, client_id=client)

    def _take(self, run: _Run, client: str, rows: bytes, health: Health | None) -> None:
        if client not in run.order:
            return
        if rows:
            records.append(run.folder / account.RECORDS, rows)
            run.recorded[client] = run.recorded.get(client, 0) + len(rows) // records.ROW.itemsize
        if health is not None and client not in run.parts:
            run.parts[client] = Part(
                worker=run.order.index(client),
                recorded=run.recorded.get(client, 0),
                schedule_digest=run.ready.get(client, ""),
                cpu_ratio=health.cpu_ratio,
                loop_lag_p99_ms=health.loop_lag_p99_ms,
            )

    def _look_for_lost(self, run: _Run) -> None:
        if not self.is_master:
            return
        for client in run.order:
            node = self._runner.clients.get(client)
            if node is None or node.state == "missing":
                run.lost.add(client)
        if not run.started and time.monotonic() - run.prepared_at > PATIENCE_SECONDS:
            run.lost.update(set(run.order) - run.ready.keys())

    def _write(self, run: _Run) -> None:
        lost = sorted(run.order.index(client) for client in set(run.order) - run.parts.keys())
        made = Account(
            started_unix=run.started,
            ended_unix=time.time(),
            workers=len(run.order),
            parts=tuple(sorted(run.parts.values(), key=lambda part: part.worker)),
            lost=tuple(lost),
        )
        account.write(run.folder, made)
        self._concluded(run.folder, self.environment)
