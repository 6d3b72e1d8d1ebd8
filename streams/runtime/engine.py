"""Runs one application on a log, in one thread: embeddable, several per process (they share nothing)."""

from __future__ import annotations

import logging
import socket
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping

import msgspec

from logflume.log import InvalidInput, LogflumeError
from logflume.log.interfaces import Log, OffsetAndMetadata
from logflume.log.loopback import refuse_exposed
from logflume.log.page_door import PageDoor, asking_rights
from logflume.log.records import TopicPartition
from logflume.streams.seams import Plan
from logflume.streams.state import DiskMemory, StateDirectory, StoreReader

from .closing import Closer, within
from .endpoint import Endpoint, parse_endpoint
from .failures import is_fatal, is_replaced
from .handlers import OnUncaught, StreamsError, decide_uncaught
from .metrics import CONTENT_TYPE, exposition
from .opening import Surroundings, check_stores
from .options import EngineOptions
from .problems import Place
from .queries import StoreReaders, StoreView
from .reads import Ask, answer
from .session import Session
from .status import CommitTimes, EngineState, EngineStatus, InputStatus, LeftOut, RateMeter, TaskStatus, added_up
from .task import Ending, Task, TaskCounts
from .topic_look import TopicLook
from .topics import TopicMap, ensure_dead_letter_topic, prepare_topics
from .watch import Watch, Watches

_decode_ask = msgspec.msgpack.Decoder(Ask).decode

_log = logging.getLogger("logflume.streams")
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.1, 5.0


class Engine:
    """See the module. `start`, then `stop`; or `run_app` for a whole process. Thread-safe.

    `topics`: as `prepare_topics` has just left them; None: it prepares them when it starts. `look`: shared with other engines on
    the same log, so that all their inputs are asked about at once; `watches`: with others of the process, so that one thread
    looks after all of them.
    """

    def __init__(
        self,
        plan: Plan,
        log: Log,
        options: EngineOptions | None = None,
        *,
        topics: TopicMap | None = None,
        look: TopicLook | None = None,
        watches: Watches | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self.plan = plan
        self.options = options or EngineOptions()
        self._log_handle = log
        self._topics, self._look = topics, look
        self._watches = watches or Watches()
        self._monotonic_s = monotonic_s
        self._wall_s = wall_s
        specs = {spec.name: spec for sub in plan.subtopologies for spec in sub.program.stores}
        self._readers = StoreReaders(specs)
        self._commit_times = CommitTimes()
        self._watch = Watch(plan.application, blocked_after_ms=self.options.blocked_after_ms, monotonic_s=monotonic_s)
        self._stopping = threading.Event()
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._session: Session | None = None
        self._endpoint: Endpoint | None = None
        self._directory: StateDirectory | None = None
        self._state = EngineState.STARTING
        self._error: BaseException | None = None
        self._before: Counter[str] = Counter()
        self._dropped_before: Counter[Place] = Counter()
        self._samples_before: dict[Place, str] = {}
        self._unsettled: list[Ending] = []
        self._rate_in = RateMeter(monotonic_s())
        self._rate_out = RateMeter(monotonic_s())

    # -- life ------------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Check topics and state directory, then go on in a thread.

        Raises:
            UnknownName: a source topic does not exist. InvalidInput: topics do not fit. DataDirLocked, StorageError: no state.
        """
        assert self._thread is None, "an engine is started once"
        admin = self._log_handle.admin()
        check_stores(self.plan, admin, self.options.drops)
        topics = self._topics or prepare_topics(self.plan, admin)
        if self.options.dead_letter_topic is not None:
            ensure_dead_letter_topic(admin, self.options.dead_letter_topic)
        self._directory = StateDirectory(self.options.state_dir, self.plan.application, host=socket.gethostname())
        if self.options.endpoint is not None:
            self._endpoint = self._open_endpoint(self.options.endpoint, self._directory)
        address = self._endpoint.address if self._endpoint else ""
        around = Surroundings(
            self.plan,
            self.options,
            self._directory,
            topics,
            admin,
            self._wall_s,
            DiskMemory(self.options.memory_bytes),
            self._look or TopicLook(admin, monotonic_s=self._monotonic_s),
            address,
        )
        self._thread = threading.Thread(target=self._run, args=(around,), name=f"engine-{self.plan.application}", daemon=True)
        self._watches.add(self._watch)
        self._thread.start()

    def _open_endpoint(self, where: str, directory: StateDirectory) -> Endpoint:
        pages = {
            ("GET", "/status"): lambda _: ("application/json", msgspec.json.encode(self.status())),
            ("GET", "/metrics"): lambda _: (CONTENT_TYPE, exposition(self.status())),
            ("POST", "/read"): lambda body: ("application/msgpack", self._answer(body)),
        }
        try:
            return Endpoint(where, pages, door=self._door(where))
        except LogflumeError:
            directory.close()
            raise

    def _door(self, where: str) -> PageDoor | None:
        """Return who is let in; None: whoever reaches the endpoint. Raises InvalidInput: strangers would."""
        certificate, security = self.options.endpoint_certificate, self._log_handle.security
        has_users = security is not None and (security.has_sasl or bool(security.certificate_subject()))
        refuse_exposed(
            f"the endpoint of {self.plan.application!r}",
            parse_endpoint(where)[0],
            has_users=has_users,
            has_tls=certificate is not None,
            advice="`logflume cert issue NAME --host HOST` makes what endpoint_certificate takes"
            if has_users
            else "`logflume secure init --host HOST` makes a broker with users, and the profile to log in by",
            is_insecure=self.options.endpoint_insecure,
            order="endpoint_insecure=True",
        )
        if certificate is None:
            return None
        if security is None or not has_users:
            raise InvalidInput(
                f"endpoint_certificate={str(certificate)!r} is for a log with users, by whose logins it answers; this one "
                "has none: connect by a profile with a login, or leave the certificate out"
            )
        return PageDoor(security, certificate, asking_rights(self._log_handle.where, self.plan.application))

    def _answer(self, body: bytes) -> bytes:
        """Answer a read by another process. Raises InvalidInput for what is none."""
        try:
            ask = _decode_ask(body)
        except msgspec.MsgspecError as error:
            raise InvalidInput(f"expected a read of a store: {error}") from error
        lags: dict[int, int | None] = {}
        session = self._session
        for task in list(session.tasks.values()) if session else ():
            if task.state and ask.store in task.state.stores:
                found = [session.lags.get(source) for source in task.inputs] if session else [None]
                known = [lag for lag in found if lag is not None]
                lags[task.partition] = sum(known) + task.buffered_records if len(known) == len(found) else None
        copies = session.copies_of(ask.store) if session and ask.copy_lag_max is not None else {}
        return msgspec.msgpack.encode(answer(ask, self._readers.of(ask.store), lags, copies))

    def stop(self, *, timeout_s: float = 60.0) -> None:
        """Process no more, commit, leave the group, close. Idempotent.

        Raises:
            StreamsError: it did not end in time. Whatever made the engine fail before.
        """
        self._stopping.set()
        session = self._session
        if session is not None:
            session.consumer.wakeup()
        self.wait(timeout_s=timeout_s)

    def wait(self, *, timeout_s: float | None = None) -> None:
        """Wait until the engine has ended; raises what made it fail, StreamsError when it has not ended in time."""
        if self._thread is None:
            return
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise StreamsError(
                f"the engine of {self.plan.application!r} has not ended within {timeout_s} s (is the log gone?); what was "
                "committed is safe, the rest is processed again at the next start"
            )
        if self._error is not None:
            raise self._error

    @property
    def has_ended(self) -> bool:
        return self._done.is_set()

    def _run(self, around: Surroundings) -> None:
        closer = Closer()
        try:
            self._keep_going(around, closer)
            self._state = EngineState.STOPPED
        except BaseException as error:  # noqa: BLE001 - kept for wait() and status(), whatever it is
            self._error = error
            self._state = EngineState.FAILED
            _log.error("application %s failed: %s", self.plan.application, error)
        finally:
            try:
                if self._endpoint:
                    self._endpoint.close()
                self._readers.publish({})
                closer.finish()
                around.directory.close()
            finally:
                self._watches.remove(self._watch)
                self._done.set()

    def _keep_going(self, around: Surroundings, closer: Closer) -> None:
        """Run session after session: being fenced or losing the log ends one, and the next begins from what was committed."""
        pause_s = _PAUSE_MIN_S
        while not self._stopping.is_set():
            commits = self._commit_times.commits
            session: Session | None = None
            try:
                session = self._new_session(around, closer)
                session.run(self._stopping.is_set)
            except LogflumeError as error:
                self._abandon(session)
                if is_fatal(error) and not self._goes_on(error):
                    self._leave(session)
                    raise
                if is_replaced(error):
                    self._change_identity(around, error)
                if self._commit_times.commits > commits:
                    pause_s = _PAUSE_MIN_S
                pause_s = self._pause(pause_s, error)
            except BaseException as error:
                self._abandon(session)
                if not self._goes_on(error):
                    self._leave(session)
                    raise
                pause_s = self._pause(pause_s, error)
            else:
                return

    def _leave(self, session: Session | None) -> None:
        """What ends for good does not keep its partitions until its session runs out."""
        if session is not None and session.has_joined:
            within(_PAUSE_MAX_S, session.leave_group)

    def _pause(self, pause_s: float, error: BaseException) -> float:
        """Wait before joining again; return how long to wait the next time."""
        _log.warning("%s: %s; joining again in %.1f s", self.plan.application, error, pause_s)
        self._state = EngineState.REBALANCING
        self._stopping.wait(pause_s)
        return min(pause_s * 2, _PAUSE_MAX_S)

    def _goes_on(self, error: BaseException) -> bool:
        """Whether an error that would end the application shall not."""
        return isinstance(error, Exception) and decide_uncaught(self.options.on_uncaught, error) is OnUncaught.RESTART

    def _change_identity(self, around: Surroundings, error: LogflumeError) -> None:
        """Another process has taken the instance id: one that was given stops here, else this one takes another."""
        if self.options.instance_id is not None:
            raise StreamsError(
                f"instance_id {self.options.instance_id!r} of {self.plan.application!r} was taken by another process, which runs "
                "instead of this one now; give each instance its own"
            ) from error
        before = around.directory.instance_id
        around.directory.renew(uuid.uuid4())
        _log.warning(
            "%s: another process runs as instance %s too; this one goes on as %s",
            self.plan.application, before, around.directory.instance_id,
        )  # fmt: skip

    def _new_session(self, around: Surroundings, closer: Closer) -> Session:
        self._session = Session(
            around,
            self._log_handle,
            monotonic_s=self._monotonic_s,
            commit_times=self._commit_times,
            watch=self._watch,
            closer=closer,
            on_tasks=self._tasks_changed,
            on_release=self._task_released,
            on_committed=self._settle,
        )
        return self._session

    def _abandon(self, session: Session | None) -> None:
        if session is not None:
            session.abandon()
        self._session = None

    def _tasks_changed(self) -> None:
        """Publish readers of the tasks that are ready."""
        session = self._session
        assert session is not None
        readers: dict[str, dict[int, StoreReader]] = {}
        for task in sorted(session.tasks.values(), key=lambda each: each.partition):
            if task.state and not session.is_restoring(task):
                same_everywhere = readers.keys() & task.subtopology.global_stores().keys()
                for name in task.state.stores.keys() - same_everywhere:
                    readers.setdefault(name, {})[task.partition] = task.state.reader(name)
        self._readers.publish(readers)
        self._state = EngineState.RUNNING if session.is_ready else EngineState.RESTORING

    def _task_released(self, task: Task) -> None:
        """Keep the counts of a task that is closed; what it had not committed is done, and counted, once more."""
        self._before.update(task.committed.since(TaskCounts()))
        self._dropped_before.update(task.committed_problems)
        self._samples_before = task.problems.samples | self._samples_before
        if task.ending is not None:
            self._unsettled.append(task.ending)

    def _settle(self, committed: Mapping[TopicPartition, OffsetAndMetadata | None]) -> None:
        """Count what was committed after all, though nobody was told: the answer was lost, or the state was not written."""
        unsettled, self._unsettled = self._unsettled, []
        for ending in unsettled:
            if ending.partition not in committed:
                self._unsettled.append(ending)
            elif (offset := committed[ending.partition]) is not None and offset.offset >= ending.offset:
                self._before.update(ending.counts)
                self._dropped_before.update(ending.dropped)

    # -- looking in ------------------------------------------------------------------------------------------------------

    def store(self, name: str) -> StoreView:
        """Return a thread-safe view of a store's committed entries on this instance. Raises UnknownName."""
        return self._readers.view(name)

    def status(self) -> EngineStatus:
        """Return what the engine is doing."""
        session = self._session
        tasks = list(session.tasks.values()) if session else []
        rows = tuple(self._task_status(session, task) for task in tasks if session)
        left_out = added_up(
            LeftOut(*place, records, samples.get(place, ""))
            for places, samples in [
                (Counter(self._dropped_before), self._samples_before),
                *((Counter(task.problems.places), task.problems.samples) for task in tasks),
            ]
            for place, records in places.items()
        )
        dropped: Counter[str] = Counter()
        for each in left_out:
            dropped[each.reason] += each.records
        records_in = self._before["records_in"] + sum(row.records_in for row in rows)
        records_out = self._before["records_out"] + sum(row.records_out for row in rows)
        now_s = self._monotonic_s()
        self._rate_in.mark(now_s, records_in)
        self._rate_out.mark(now_s, records_out)
        lags = [each.lag_records for row in rows for each in row.inputs]
        return EngineStatus(
            self.plan.application,
            self._state,
            self.options.instance_id or (self._directory.instance_id if self._directory else ""),
            rows,
            records_in,
            records_out,
            self._rate_in.rate(now_s, records_in),
            self._rate_out.rate(now_s, records_out),
            dict(dropped),
            None if None in lags or not lags else sum(lag for lag in lags if lag is not None),
            self._commit_times.status(),
            session.restorer.remaining_records + session.tables.remaining_records if session else 0,
            session.restorer.records_per_s if session else 0.0,
            session.standbys.status if session else (),
            self._watch.blocked,
            str(self._error) if self._error else None,
            self._before["repartitioned"] + sum(row.repartitioned for row in rows),
            left_out,
        )

    def _task_status(self, session: Session, task: Task) -> TaskStatus:
        inputs = []
        for partition, each in task.inputs.items():
            unfetched = session.lags.get(partition)
            lag = None if unfetched is None else unfetched + each.buffered_records
            lag_ms = 0 if lag == 0 else None if each.time_ms < 0 else max(int(self._wall_s() * 1000) - each.time_ms, 0)
            inputs.append(InputStatus(partition.topic, partition.partition, each.position, lag, each.buffered_records, lag_ms))
        return TaskStatus(
            task.name,
            session.is_restoring(task),
            max((each.time_ms for each in task.inputs.values()), default=-1),
            task.counts.records_in,
            task.counts.records_out,
            dict(task.problems.counts),
            tuple(inputs),
            sum(store.resident_count for store in task.state.stores.values()) if task.state else 0,
            task.state.disk_bytes() if task.state else 0,
            dict(task.function.rows_by_node),
            task.counts.repartitioned,
        )
