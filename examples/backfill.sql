-- A query over the whole history: logflume backfill -e "$(cat examples/backfill.sql)" --bootstrap 127.0.0.1:9092
CREATE TABLE weekly WITH (KAFKA_TOPIC = 'weekly') AS
  SELECT k, COUNT(*) AS flights, SUM(distance) AS miles, MAX(dep_delay) AS worst, AVG(dep_delay) AS mean_delay
  FROM flights WINDOW TUMBLING (SIZE 7 DAYS, GRACE PERIOD 1 DAY)
  GROUP BY k;
