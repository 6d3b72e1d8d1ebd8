"""The quickstart of ksqlDB word for word, over HTTP: a push query sees what is written, a pull query the last state."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from logflume.log import connect
from logflume.sql import SqlEngine
from logflume.sql.rest import SqlServer

DEFINED = (
    """CREATE STREAM riderLocations (profileId VARCHAR, latitude DOUBLE, longitude DOUBLE)
  WITH (kafka_topic='locations', value_format='json', partitions=1);""",
    """CREATE TABLE currentLocation AS
  SELECT profileId,
         LATEST_BY_OFFSET(latitude) AS la,
         LATEST_BY_OFFSET(longitude) AS lo
  FROM riderlocations
  GROUP BY profileId
  EMIT CHANGES;""",
    """CREATE TABLE ridersNearMountainView AS
  SELECT ROUND(GEO_DISTANCE(la, lo, 37.4133, -122.1162), -1) AS distanceInMiles,
         COLLECT_LIST(profileId) AS riders,
         COUNT(*) AS count
  FROM currentLocation
  GROUP BY ROUND(GEO_DISTANCE(la, lo, 37.4133, -122.1162), -1);""",
)
WATCHED = """-- Mountain View lat, long: 37.4133, -122.1162
SELECT * FROM riderLocations
  WHERE GEO_DISTANCE(latitude, longitude, 37.4133, -122.1162) <= 5 EMIT CHANGES;"""
WRITTEN = """INSERT INTO riderLocations (profileId, latitude, longitude) VALUES ('c2309eec', 37.7877, -122.4205);
INSERT INTO riderLocations (profileId, latitude, longitude) VALUES ('18f4ea86', 37.3903, -122.0643);
INSERT INTO riderLocations (profileId, latitude, longitude) VALUES ('4ab5cbad', 37.3952, -122.0813);
INSERT INTO riderLocations (profileId, latitude, longitude) VALUES ('8b6eae59', 37.3944, -122.0813);
INSERT INTO riderLocations (profileId, latitude, longitude) VALUES ('4a7c7b41', 37.4049, -122.0822);
INSERT INTO riderLocations (profileId, latitude, longitude) VALUES ('4ddad000', 37.7857, -122.4011);"""
ASKED = "SELECT * from ridersNearMountainView WHERE distanceInMiles <= 10;"
NEAR = [["4ab5cbad", 37.3952, -122.0813], ["8b6eae59", 37.3944, -122.0813], ["4a7c7b41", 37.4049, -122.0822]]
GROUPED = {0.0: (["4ab5cbad", "8b6eae59", "4a7c7b41"], 3), 10.0: (["18f4ea86"], 1)}
PATIENCE_S = 60


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    with (
        connect(tmp_path / "log") as log,
        SqlEngine(log, tmp_path / "sql") as engine,
        SqlServer(engine) as server,
        httpx.Client(base_url=server.address, timeout=PATIENCE_S) as opened,
    ):
        yield opened


def pulled(client: httpx.Client) -> dict[float, tuple[list[str], int]]:
    """Return the riders by distance, those of a group in the order in which they came."""
    parts = client.post("/query", json={"ksql": ASKED}).json()
    return {miles: (riders, count) for miles, riders, count in (part["row"]["columns"] for part in parts if "row" in part)}


def test_the_quickstart_of_ksqldb(client: httpx.Client) -> None:
    for text in DEFINED:
        (told,) = client.post("/ksql", json={"ksql": text}).json()
        assert told["commandStatus"]["status"] == "SUCCESS", told
    with client.stream("POST", "/query-stream", json={"sql": WATCHED}) as answer:
        lines = answer.iter_lines()
        assert json.loads(next(lines))["columnNames"] == ["PROFILEID", "LATITUDE", "LONGITUDE"]
        assert client.post("/ksql", json={"ksql": WRITTEN}).json() == []
        assert [json.loads(next(lines)) for _ in NEAR] == NEAR
    deadline = time.monotonic() + PATIENCE_S
    while (found := pulled(client)) != GROUPED:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
