-- Pull queries answer from the state of a running query: logflume sql -f examples/pull.sql --bootstrap 127.0.0.1:9092
SELECT k, WINDOWSTART, flights, mean_delay FROM daily WHERE k = 'UA' LIMIT 5;
