"""What SHOW, DESCRIBE and EXPLAIN give as entities of the REST interface: objects tagged `@type`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from logflume.log.interfaces import Admin
from logflume.sql import ast
from logflume.sql.catalog import Catalog, QueryInfo, SourceInfo
from logflume.sql.connectors import sources_over
from logflume.sql.engine import SqlEngine
from logflume.sql.results import Message, Result, Rows
from logflume.sql.session import Session
from logflume.streams.runtime import EngineState, EngineStatus

from .values import type_entity

Entity = dict[str, Any]


def entity_of(statement: ast.Statement, text: str, results: list[Result], engine: SqlEngine, session: Session) -> Entity | None:
    """Return the entity of a statement that was executed, None where ksqlDB gives none (INSERT VALUES, SET, DEFINE)."""
    common: Entity = {"statementText": text, "warnings": []}
    match statement:
        case ast.InsertValues() | ast.SetProperty() | ast.UnsetProperty() | ast.Define() | ast.Undefine():
            return None
        case ast.Show():
            return _show(statement, results, engine, session) | common
        case ast.Describe("SOURCE", name):
            source = engine.catalog.sources[name]
            described = _described(source, engine, session, is_extended=statement.is_extended)
            return {"@type": "sourceDescription", "sourceDescription": described} | common
        case ast.Describe("STREAMS" | "TABLES" as what):
            wanted = [s for s in engine.catalog.sources.values() if s.is_table == (what == "TABLES")]
            described_all = [
                _described(s, engine, session, is_extended=statement.is_extended) for s in sorted(wanted, key=lambda s: s.name)
            ]
            return {"@type": "source_descriptions", "sourceDescriptions": described_all} | common
        case ast.CreateConnector(name, is_source):
            if isinstance(results[0], Message) and "nothing was done" in results[0].text:
                return {"@type": "warning_entity", "message": results[0].text} | common
            config = {**engine.catalog.connectors[name].config, "name": name}
            info = {"name": name, "config": config, "tasks": [], "type": "source" if is_source else "sink"}
            return {"@type": "connector_info", "info": info} | common
        case ast.DropConnector(name):
            if isinstance(results[0], Message) and "nothing was done" in results[0].text:
                return {"@type": "warning_entity", "message": results[0].text} | common
            return {"@type": "drop_connector", "connectorName": name} | common
        case ast.Describe("CONNECTOR", name):
            return _connector(name, engine, session) | common
        case ast.Describe("FUNCTION", name):
            return _function(name, engine) | common
        case ast.Explain(is_analyzed=True):
            (rows,) = results
            assert isinstance(rows, Rows)
            return _rows(rows) | common
        case ast.Explain():
            return _explained(statement, text, results, engine, session) | common
        case ast.AssertTopic(topic):
            return {"@type": "assert_topic", "topicName": topic, "exists": not statement.is_absent} | common
        case ast.AssertSchema(subject, schema_id):
            return {"@type": "assert_schema", "subject": subject, "id": schema_id, "exists": not statement.is_absent} | common
    (result,) = results
    assert isinstance(result, Message), "a statement that changes something says what it did"
    return _status(statement, result, engine.following.last_command()) | common


def _status(statement: ast.Statement, result: Message, number: int) -> Entity:
    kind, name, action = command_of(statement)
    return {
        "@type": "currentStatus",
        "commandId": f"{kind}/{name}/{action}",
        "commandStatus": {"status": "SUCCESS", "message": result.text, "queryId": result.query_id},
        "commandSequenceNumber": number,
    }


def command_of(statement: ast.Statement) -> tuple[str, str, str]:
    """Return (type, entity, action) of a statement, as command ids have them."""
    match statement:
        case ast.CreateSource(name, is_table) | ast.CreateAs(name, is_table):
            return "table" if is_table else "stream", f"`{name}`", "create"
        case ast.InsertQuery(target):
            return "stream", f"`{target}`", "create"
        case ast.Drop(name, is_table):
            return "table" if is_table else "stream", f"`{name}`", "drop"
        case ast.AlterSource(name, is_table):
            return "table" if is_table else "stream", f"`{name}`", "alter"
        case ast.CreateType(name):
            return "type", f"`{name}`", "create"
        case ast.DropType(name):
            return "type", f"`{name}`", "drop"
        case ast.QueryControl(verb, query_id):
            return verb.lower(), query_id or "all", "execute"
        case ast.AlterSystem():
            return "cluster", "ALTERSYSTEM", "alter"
    return "cluster", type(statement).__name__.upper(), "execute"


def _show(s: ast.Show, results: list[Result], engine: SqlEngine, session: Session) -> Entity:
    catalog = engine.catalog
    (rows,) = results
    assert isinstance(rows, Rows)
    match s.what:
        case "STREAMS" | "TABLES":
            wanted = [x for x in catalog.sources.values() if x.is_table == (s.what == "TABLES")]
            return {"@type": s.what.lower(), s.what.lower(): [_source(x) for x in sorted(wanted, key=lambda x: x.name)]}
        case "TOPICS":
            topics = [{"name": name, "replicaInfo": [1] * partitions} for name, partitions, *_ in rows.rows]
            if s.is_extended:
                topics = [{**each, "consumerCount": 0, "consumerGroupCount": 0} for each in topics]
            return {"@type": "kafka_topics_extended" if s.is_extended else "kafka_topics", "topics": topics}
        case "QUERIES":
            status = engine.status(session.rights)
            queries = [_query(q, catalog, status) for q in catalog.queries.values()]
            if s.is_extended:
                described = [_query_description(q, engine, status) for q in catalog.queries.values()]
                return {"@type": "query_descriptions", "queryDescriptions": described}
            return {"@type": "queries", "queries": queries}
        case "FUNCTIONS":
            functions = [{"name": name, "type": kind, "category": ""} for name, kind, _ in rows.rows]
            return {"@type": "function_names", "functions": functions}
        case "TYPES":
            return {"@type": "type_list", "types": {name: type_entity(t) for name, t in catalog.types.items()}}
        case "PROPERTIES":
            found = [
                {"name": name, "scope": "KSQL", "value": value, "editable": True, "level": "SESSION"}
                for name, value, _ in rows.rows
            ]
            return {
                "@type": "properties",
                "properties": found,
                "overwrittenProperties": list(session.properties),
                "defaultProperties": [],
            }
        case "CONNECTORS" | "SOURCE CONNECTORS" | "SINK CONNECTORS":
            listed = [
                {"name": name, "type": kind.lower(), "className": plugin, "state": state}
                for name, kind, plugin, state, _ in rows.rows
            ]
            return {"@type": "connector_list", "connectors": listed}
        case "CONNECTOR PLUGINS":
            plugins = [{"className": name, "type": kind.lower(), "version": ""} for name, kind, _ in rows.rows]
            return {"@type": "connector_plugins_list", "connectorsPlugins": plugins}
        case "VARIABLES":
            return {"@type": "variables", "variables": [{"name": n, "value": v} for n, v in rows.rows]}
    return _rows(rows)


def _rows(rows: Rows) -> Entity:
    """Return rows of which ksqlDB has no entity."""
    found = {
        "@type": "rows",
        "title": rows.title,
        "columns": [c.name for c in rows.columns],
        "rows": [list(row) for row in rows.rows],
    }
    return found | ({"note": rows.note} if rows.note else {})


def _source(source: SourceInfo) -> Entity:
    return {
        "type": source.kind,
        "name": source.name,
        "topic": source.topic,
        "keyFormat": source.key_format.name,
        "valueFormat": source.value_format.name,
        "isWindowed": source.window is not None,
    }


def query_state(query: QueryInfo, status: Mapping[str, EngineStatus]) -> str:
    """Return the state of a query in ksqlDB's words: RUNNING, PAUSED, ERROR, UNRESPONSIVE."""
    found = status.get(query.id)
    if query.is_paused:
        return "PAUSED"
    if found is None:
        return "UNRESPONSIVE"
    return "ERROR" if found.state is EngineState.FAILED else "RUNNING"


def _query(query: QueryInfo, catalog: Catalog, status: Mapping[str, EngineStatus]) -> Entity:
    state = query_state(query, status)
    return {
        "queryString": query.statement,
        "sinks": [query.sink],
        "sinkKafkaTopics": [catalog.sources[query.sink].topic] if query.sink in catalog.sources else [],
        "id": query.id,
        "statusCount": {state: 1},
        "queryType": "PERSISTENT",
        "state": state,
        **({} if query.dead_letter_topic is None else {"deadLetterTopic": query.dead_letter_topic}),
    }


def _fields(source: SourceInfo) -> list[Entity]:
    key = [{"name": c.name, "schema": type_entity(c.type), "type": "KEY"} for c in source.key]
    return [*key, *({"name": c.name, "schema": type_entity(c.type)} for c in source.value)]


def _described(source: SourceInfo, engine: SqlEngine, session: Session, *, is_extended: bool) -> Entity:
    catalog, status = engine.catalog, engine.status(session.rights)

    def queries(ids: list[str]) -> list[Entity]:
        return [_query(catalog.queries[q], catalog, status) for q in ids]

    return {
        "name": source.name,
        "windowType": None if source.window is None else source.window.kind,
        "readQueries": queries(catalog.readers_of(source.name)),
        "writeQueries": queries(catalog.writers_to(source.name)),
        "fields": _fields(source),
        "type": source.kind,
        "timestamp": source.timestamp[0] if source.timestamp else "",
        "statistics": "",
        "errorStats": "",
        "extended": is_extended,
        "keyFormat": source.key_format.name,
        "valueFormat": source.value_format.name,
        "topic": source.topic,
        "partitions": _partitions(source.topic, engine.log.admin()) if is_extended else 0,
        "replication": 1 if is_extended else 0,
        "statement": source.statement,
        "queryOffsetSummaries": [],
        "sourceConstraints": [],
    }


def _partitions(topic: str, admin: Admin) -> int:
    known = topic in admin.list_topics(include_internal=True)
    return admin.describe_topics([topic])[topic].partitions if known else 0


def _query_description(query: QueryInfo, engine: SqlEngine, status: Mapping[str, EngineStatus]) -> Entity:
    catalog = engine.catalog
    sink, state = catalog.sources.get(query.sink), query_state(query, status)
    found = status.get(query.id)
    return {
        "id": query.id,
        "statementText": query.statement,
        "windowType": None if sink is None or sink.window is None else sink.window.kind,
        "fields": [] if sink is None else _fields(sink),
        "sources": list(query.sources),
        "sinks": [query.sink],
        "topology": "",
        "executionPlan": "",
        "overriddenProperties": dict(query.properties),
        "ksqlHostQueryStatus": {},
        "queryType": "PERSISTENT",
        "queryErrors": [{"errorMessage": found.error, "type": "UNKNOWN"}] if found is not None and found.error else [],
        "tasksMetadata": [],
        "state": state,
    }


def _explained(s: ast.Explain, text: str, results: list[Result], engine: SqlEngine, session: Session) -> Entity:
    (rows,) = results
    assert isinstance(rows, Rows)
    lines = [str(line) for (line,) in rows.rows]
    cut = lines.index("Topology") if "Topology" in lines else len(lines)
    known = engine.catalog.queries.get(s.query_id or "")
    described: Entity
    if known is not None:
        described = _query_description(known, engine, engine.status(session.rights))
    else:
        described = {
            "id": "",
            "statementText": text,
            "windowType": None,
            "fields": [],
            "sources": [],
            "sinks": [],
            "overriddenProperties": dict(session.properties),
            "ksqlHostQueryStatus": {},
            "queryType": "PUSH",
            "queryErrors": [],
            "tasksMetadata": [],
            "state": None,
        }
    described |= {"executionPlan": "\n".join(lines[1:cut]).strip(), "topology": "\n".join(lines[cut + 1 :])}
    return {"@type": "queryDescription", "queryDescription": described}


def _connector(name: str, engine: SqlEngine, session: Session) -> Entity:
    connector, state = engine.catalog.connectors[name], engine.holders.connector_state(name)
    status = {
        "name": name,
        "connector": {"state": state.state, "worker_id": "", "trace": state.trace},
        "tasks": [{"id": task.id, "state": task.state, "worker_id": "", "trace": task.trace} for task in state.tasks],
        "type": connector.kind.lower(),
    }
    sources = [_described(each, engine, session, is_extended=False) for each in sources_over(state.topics, engine.catalog)]
    return {
        "@type": "connector_description",
        "connectorClass": connector.config["connector"],
        "status": status,
        "sources": sources,
        "topics": state.topics,
    }


def _function(name: str, engine: SqlEngine) -> Entity:
    library = engine.functions
    found = library.find(name)
    assert found is not None, "the statement was executed"
    kind = str(library.kind_of(name)).upper()
    return {
        "@type": "describe_function",
        "name": name,
        "description": found.doc,
        "author": "",
        "version": "",
        "path": "internal",
        "type": kind,
        "functions": [{"signature": str(each.signature), "description": found.doc} for each in found.overloads],
    }
