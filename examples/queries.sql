-- The same topics in SQL: logflume sql -f examples/queries.sql --bootstrap 127.0.0.1:9092
CREATE STREAM flights (
  k STRING KEY, carrier STRING, origin STRING, dest STRING, dep_delay DOUBLE, distance INT
) WITH (KAFKA_TOPIC = 'flights', VALUE_FORMAT = 'JSON', PARTITIONS = 4);

CREATE TABLE airlines (carrier STRING PRIMARY KEY, name STRING)
  WITH (KAFKA_TOPIC = 'airlines', VALUE_FORMAT = 'JSON', PARTITIONS = 4);

-- A windowed aggregate: flights, delays and miles per carrier and day.
CREATE TABLE daily WITH (KAFKA_TOPIC = 'daily') AS
  SELECT k, COUNT(*) AS flights, AVG(dep_delay) AS mean_delay, SUM(distance) AS miles
  FROM flights WINDOW TUMBLING (SIZE 1 DAY, RETENTION 400 DAYS, GRACE PERIOD 1 DAY)
  GROUP BY k EMIT CHANGES;

-- A stream-table join: flights that left more than three hours late, with the airline's name.
CREATE STREAM very_late WITH (KAFKA_TOPIC = 'very_late') AS
  SELECT f.k AS k, a.name AS airline, f.origin, f.dest, f.dep_delay AS delay
  FROM flights f JOIN airlines a ON f.k = a.carrier
  WHERE f.dep_delay > 180 EMIT CHANGES;
