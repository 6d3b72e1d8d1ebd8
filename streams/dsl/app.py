"""The application: where a topology begins, and how it is run."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

from logflume.log import InvalidInput, UnknownName, default_where
from logflume.log.schemas import BIGINT, TIMESTAMP, FormatSpec, Kind, default_registry

from .. import graph as g
from ..expr import Cast, Expr
from ..functions.casts import can_convert
from ..missing import missing
from .binding import Scope, bind
from .fields import Value
from .mistakes import show_shortly
from .naming import Graph
from .schemas import check_registered, key_columns, key_format, registered_value, value_format, value_schema
from .stream import Stream
from .table import GlobalTable, Table
from .typevars import K, V
from .windows import Duration, milliseconds

if TYPE_CHECKING:
    from logflume.log import Log

    from ..query import StoreQuery
    from ..runtime import EngineOptions, EngineStatus
    from ..seams import Plan

_LOOK_MAX_S = 3600
_ENDPOINT = "127.0.0.1:0"
"""Where an application answers: to processes of this machine, on any free port."""

_log = logging.getLogger("logflume.streams")


class StreamOptions(TypedDict, total=False):
    """How a topic is read, see `App.stream`."""

    format: str | FormatSpec | None
    key_format: str | FormatSpec | None
    timestamp: Value | None
    name: str | None


class TableOptions(StreamOptions, total=False):
    """How a topic is read as a table, see `App.table`."""

    store: str | None
    history: Duration | None


class App:
    """A topology under construction, with a name: its consumer group, and the prefix of its internal topics.

    Args:
        name: letters, digits, `.`, `_` and `-`. Instances with one name share the work.
        log: a directory (the log is opened in this process), the address of a broker ("host:9092"), or an open log; by default
            $LOGFLUME_BOOTSTRAP, else $LOGFLUME_DATA, else `./data`.
        state_dir: where state is kept on disk; by default $LOGFLUME_STATE_DIR, else `<data directory>-state`, or `./state` for a
            broker.
        registry: where the schemas of AVRO, PROTOBUF and JSON_SR topics are, e.g. http://127.0.0.1:8081, or mock://name in tests;
            by default $LOGFLUME_REGISTRY, else that of `logflume serve` on this machine.
        options: of the engine, by name (see `EngineOptions`).

    >>> import logflume.streams as lf
    >>> from logflume.streams import col
    >>> app = lf.App("words")
    >>> app.stream("lines", str, key=str).filter(col.value != "").group_by(col.value).count().to("counts")
    >>> [sub for sub in app.topology().nodes]
    ['lines', 'lines-filter', 'lines-by-value', 'lines-by-value-count', 'counts']
    """

    def __init__(
        self,
        name: str,
        *,
        log: str | os.PathLike[str] | Log | None = None,
        state_dir: str | None = None,
        registry: str | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(name, str):
            raise InvalidInput(f"the name of an application is text, found {name!r}")
        show_shortly()
        where = default_where() if log is None else os.path.abspath(log) if isinstance(log, os.PathLike) else log
        self.name, self.log, self.options = name, where, options
        self.state_dir = state_dir or os.environ.get("LOGFLUME_STATE_DIR") or _default_state_dir(self.log)
        self._graph = Graph(name, default_registry() if registry is None else registry)

    if not TYPE_CHECKING:  # for it the names are those that there are

        def __getattr__(self, name: str) -> Any:
            raise missing("an application", name, dir(type(self)))

    @overload
    def stream(self, topic: str, value: type[V], *, key: type[K], **options: Unpack[StreamOptions]) -> Stream[K, V]: ...

    @overload
    def stream(self, topic: str, value: type[V], **options: Unpack[StreamOptions]) -> Stream[str, V]: ...

    @overload
    def stream(self, topic: str, value: None = None, *, key: type[K], **options: Unpack[StreamOptions]) -> Stream[K, Any]: ...

    @overload
    def stream(self, topic: str, value: Any = None, *, key: Any = str, **options: Unpack[StreamOptions]) -> Stream[Any, Any]: ...

    def stream(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = str,
        format: str | FormatSpec | None = None,
        key_format: str | FormatSpec | None = None,
        timestamp: Value | None = None,
        name: str | None = None,
    ) -> Stream[Any, Any]:
        """Read a topic as a stream of independent records, from the beginning when the application is new.

        Args:
            value: a class with typed fields (msgspec.Struct, dataclass, TypedDict), a primitive, or nothing: then any JSON, or
                the columns that the schema registry has for the topic.
            key: `str`, `int`, ..., several columns by name ({"user": str}), or None when keys do not matter.
            format, key_format: JSON, KAFKA, DELIMITED, AVRO, PROTOBUF, JSON_SR, PROTOBUF_NOSR; by default JSON values, and
                keys as Kafka's serializers write them. A `FormatSpec` says more: how subjects are named ...
            timestamp: an expression for the event time in ms, when it is not the record's own.
            name: of the source, by default the topic's: a topic that is read in several ways (as a stream and as a table, as
                records of several classes) needs one for each after the first. Each record goes all its way from the one that was
                made first before it goes to the next.
        """
        node = self._source(g.EdgeKind.STREAM, topic, value, key, format, key_format, timestamp, name, None)
        return Stream(self._graph, node, node.name)

    @overload
    def table(self, topic: str, value: type[V], *, key: type[K], **options: Unpack[TableOptions]) -> Table[K, V]: ...

    @overload
    def table(self, topic: str, value: type[V], **options: Unpack[TableOptions]) -> Table[str, V]: ...

    @overload
    def table(self, topic: str, value: None = None, *, key: type[K], **options: Unpack[TableOptions]) -> Table[K, Any]: ...

    @overload
    def table(self, topic: str, value: Any = None, *, key: Any = str, **options: Unpack[TableOptions]) -> Table[Any, Any]: ...

    def table(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = str,
        format: str | FormatSpec | None = None,
        key_format: str | FormatSpec | None = None,
        timestamp: Value | None = None,
        store: str | None = None,
        history: Duration | None = None,
        name: str | None = None,
    ) -> Table[Any, Any]:
        """Read a topic as a table: the latest value of each key, a null value deletes it. Arguments as in `stream`.

        `store`: keeps the rows under this name, so that they can be read; joined tables are kept anyway. `history` (ms) keeps the
        rows of that long ago too: joins see the row of their record's time (a versioned table).
        """
        history_ms = None if history is None else milliseconds(history)
        kept = (name or topic) if store is None and history_ms is not None else store
        node = self._source(g.EdgeKind.TABLE, topic, value, key, format, key_format, timestamp, name, kept, history_ms=history_ms)
        return Table(self._graph, node, node.name)

    def global_table(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = str,
        format: str | FormatSpec | None = None,
        key_format: str | FormatSpec | None = None,
        store: str | None = None,
        name: str | None = None,
    ) -> GlobalTable:
        """Read all partitions of a topic as one table that every task has, so that streams join it by any key they name.

        Its rows are taken as they come, at any time: they do not wait for the streams. Arguments as in `table`.
        """
        node = self._source(
            g.EdgeKind.TABLE, topic, value, key, format, key_format, None, name, store or name or topic, is_global=True
        )
        return GlobalTable(self._graph, node, node.name)

    def _source(
        self,
        kind: g.EdgeKind,
        topic: str,
        value: Any,
        key: Any,
        format: str | FormatSpec | None,
        key_format_name: str | FormatSpec | None,
        timestamp: Value | None,
        name: str | None,
        store: str | None,
        *,
        history_ms: int | None = None,
        is_global: bool = False,
    ) -> g.Source:
        if not isinstance(topic, str):
            raise InvalidInput(f"a topic is named by text, found {topic!r}")
        if timestamp is not None and not isinstance(timestamp, Value):
            raise InvalidInput(f"timestamp= takes a column expression (lf.col.at), in ms since 1970, found {timestamp!r:.100}")
        registry = self._graph.registry
        known = registered_value(topic, format, registry) if value is None else None
        columns, value_class = value_schema(value) if known is None else (known, None)
        schema = g.Schema(key_columns(key), columns, value_class=value_class)
        node = g.Source(
            name=name or topic, schema=schema, kind=kind, topic=topic,
            key_format=key_format(schema.key, key_format_name, topic, registry),
            value_format=value_format(schema, format, topic, registry),
            timestamp=None if timestamp is None else _event_time(timestamp, Scope(schema, f"{topic!r}")), store=store,
            history_ms=history_ms, is_global=is_global,
        )  # fmt: skip
        added = self._graph.add(node, fix="pass name='...'")
        assert isinstance(added, g.Source)
        return added

    def topology(self) -> g.Topology:
        """Return the graph as data: to look at (`describe()`, `source()`), to test, to run elsewhere."""
        if not self._graph.nodes:
            raise InvalidInput(f"{self.name!r} has no source yet: begin with app.stream(...) or app.table(...)")
        return self._graph.topology()

    def describe(self, *, rates_over_s: float | None = None) -> str:
        """Return the topology as it will run, as text.

        `rates_over_s`: look so long at all instances that run, here or elsewhere, and say how many rows a second leave each node.

        Raises:
            InvalidInput: nobody who runs it answers; instances do that at their `endpoint`.
        """
        found = self.topology().describe()
        if rates_over_s is None:
            return str(found)
        if not 0 < rates_over_s <= _LOOK_MAX_S:
            raise InvalidInput(f"rates_over_s must be above 0 and at most {_LOOK_MAX_S}, not {rates_over_s!r}")
        from ..runtime import looks, node_rates

        with self._reached() as log:
            both = looks(log, self.name, rates_over_s)
            before, _ = next(both)
            now, elapsed_s = next(both)
        return str(found.with_rates(node_rates(before, now, elapsed_s)))

    @contextmanager
    def _reached(self) -> Iterator[Log]:
        """Yield the application's log, opened for as long where only its address is known."""
        from logflume.log import connect

        if not isinstance(self.log, str):
            yield self.log
            return
        with connect(self.log) as log:
            yield log

    def plan(self) -> Plan:
        """Return what will run: checked, split at repartition topics, compiled."""
        from ..planner import plan

        return plan(self.topology())

    def run(self, *, until: Callable[[EngineStatus], bool] | None = None, **options: Any) -> EngineStatus:
        """Run until interrupted; blocks. State and positions survive, so that the next run goes on where this one ended.

        Options are those of `EngineOptions`; they come before the application's own.

        `until`: asked twice a second with the newest status; the run ends in order once it says so. So a thread is ended that
        runs an application, where no signal comes: `until=lambda status: stopping.is_set()`, with a `threading.Event`.

        Raises:
            InvalidInput: the class of a topic's values does not fit the schema that the registry has for it, or there is nothing
                here to keep state in; RegistryUnavailable.
        """
        from logflume.log import connect, default_broker

        from ..runtime import run_app

        if find_spec("rocksdict") is None:
            raise InvalidInput("to run an application needs rocksdict: pip install 'logflume[streams]'")
        plan = self.plan()
        for name in g.loose_ends(self.topology()):
            _log.warning("%s: nothing takes what %r gives: .to(topic) writes it", self.name, name)
        check_registered(self.topology())
        settings = self.settings(**options)
        if not isinstance(self.log, str):
            return run_app(plan, self.log, settings, until=until)
        with connect(self.log) as log:
            try:
                return run_app(plan, log, settings, until=until)
            except UnknownName as error:
                if error.what != "topic":
                    raise
                broker = default_broker() if Path(self.log, "meta.properties").exists() else ""
                elsewhere = f'; a broker listens on {broker}: App({self.name!r}, log="{broker}")' if broker else ""
                error.add_note(f"looked for in {self.log}{elsewhere}")
                raise

    def settings(self, **options: Any) -> EngineOptions:
        """Return what `run` with these options runs with.

        Raises:
            UnknownName: there is no such option.
        """
        from ..runtime import EngineOptions

        chosen = {"state_dir": Path(self.state_dir), "endpoint": _ENDPOINT, **self.options, **options}
        known = [field.name for field in fields(EngineOptions)]
        for name in chosen:
            if name not in known:
                raise UnknownName("option of the engine", name, known)
        return EngineOptions(**chosen)

    def query(self, store: str, *, timeout_s: float = 10.0, acceptable_lag: int | None = None) -> StoreQuery:
        """Return a store of this application to read while it runs, here or elsewhere: the instance that has a key answers.

        Instances answer on this machine only, unless they run with `endpoint="0.0.0.0:PORT"` and a certificate
        (`endpoint_certificate`): then those who may read the application's group are answered, by the login of their profile.

        acceptable_lag: where nobody who runs a task answers, a copy of its state is read that lacks at most so many records of
            its changelogs (a standby, or what is being restored); `copy_lags` then says of which partitions. None: only the
            newest state is read, and during a hand-over reads wait.

        Raises:
            UnknownName: no such store. InvalidInput: a lag below 0. StoreUnavailable: the application did not begin in time.
        """
        from logflume.log import connect

        from ..query import StoreQuery

        if not isinstance(self.log, str):
            return StoreQuery(self.topology(), store, self.log, timeout_s=timeout_s, acceptable_lag=acceptable_lag)
        log = connect(self.log)
        try:
            return StoreQuery(self.topology(), store, log, timeout_s=timeout_s, acceptable_lag=acceptable_lag, closes_log=True)
        except BaseException:
            log.close()
            raise

    def __repr__(self) -> str:
        where = self.log if isinstance(self.log, str) else self.log.where
        return f"App({self.name!r}, log={where!r})"

    def _repr_svg_(self) -> str:
        return str(self.topology().describe().svg())


def _event_time(timestamp: Value, scope: Scope) -> Expr:
    """Return an expression for event times in ms; what is no number of them is one that fails, record by record."""
    found = bind(timestamp, scope)
    if found.type.kind in (Kind.BIGINT, Kind.INTEGER, Kind.TIMESTAMP):
        return found
    wanted = TIMESTAMP if found.type.kind is Kind.DATE else BIGINT
    if not can_convert(found.type, wanted):
        raise InvalidInput(f"timestamp={timestamp!r} is {found.type}, expected ms since 1970, a date or a time with date")
    return Cast(found, wanted)


def _default_state_dir(log: str | Log) -> str:
    where = log if isinstance(log, str) else log.where
    return "state" if ":" in where else f"{where.rstrip('/')}-state"
