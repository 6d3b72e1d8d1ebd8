"""The queries in SQL: scripts by name, of which the last statement makes what is compared; its columns are named as in `batch`.

q10 is the query alone: where its rows are files, a sink connector writes them. q12 has windows of the time at which records were
written, which is that of a stream without a TIMESTAMP column. q6 keeps the closing bids of each seller as one list, from which a
bid that is overtaken is taken out again.
"""

from __future__ import annotations

SOURCES = """
CREATE STREAM bids (auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, `at` BIGINT)
  WITH (KAFKA_TOPIC = 'bids', VALUE_FORMAT = 'JSON', PARTITIONS = 1);
CREATE TABLE auctions (pk BIGINT PRIMARY KEY, id BIGINT, item STRING, expires BIGINT, seller BIGINT, category INT, `at` BIGINT)
  WITH (KAFKA_TOPIC = 'auctions', VALUE_FORMAT = 'JSON', PARTITIONS = 1);
CREATE STREAM sales (pk BIGINT KEY, id BIGINT, seller BIGINT)
  WITH (KAFKA_TOPIC = 'auctions', VALUE_FORMAT = 'JSON', PARTITIONS = 1);
CREATE TABLE persons (pk BIGINT PRIMARY KEY, name STRING, city STRING, state STRING)
  WITH (KAFKA_TOPIC = 'persons', VALUE_FORMAT = 'JSON', PARTITIONS = 1);
CREATE STREAM arrivals (pk BIGINT KEY, id BIGINT, name STRING)
  WITH (KAFKA_TOPIC = 'persons', VALUE_FORMAT = 'JSON', PARTITIONS = 1);
"""

_WINNING = """
CREATE TABLE winning AS SELECT b.auction AS auction, MAX(b.price) AS price, MAX(a.category) AS category
  FROM bids b JOIN auctions a ON b.auction = a.pk WHERE b.`at` BETWEEN a.`at` AND a.expires GROUP BY b.auction;
"""
_DAY = "`at` / 86400000"

QUERIES: dict[str, str] = {
    "q0": "CREATE STREAM o AS SELECT * FROM bids;",
    "q1": "CREATE STREAM o AS SELECT auction, bidder, price * 9.08E-1 AS price, `at` FROM bids;",
    "q2": "CREATE STREAM o AS SELECT auction, price FROM bids WHERE auction % 123 = 0;",
    "q3": """CREATE TABLE o AS SELECT a.pk AS pk, AS_VALUE(a.pk) AS auction, p.name AS name, p.city AS city, p.state AS state
        FROM auctions a JOIN persons p ON a.seller = p.pk WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA');""",
    "q4": _WINNING + "CREATE TABLE o AS SELECT category, AVG(price) AS price FROM winning GROUP BY category;",
    "q5": """CREATE TABLE counts AS SELECT auction, COUNT(*) AS n
          FROM bids WINDOW HOPPING (SIZE 10 SECONDS, ADVANCE BY 2 SECONDS) GROUP BY auction;
        CREATE STREAM counted (auction BIGINT KEY, n BIGINT)
          WITH (KAFKA_TOPIC = 'COUNTS', VALUE_FORMAT = 'JSON', WINDOW_TYPE = 'HOPPING', WINDOW_SIZE = '10 SECONDS');
        CREATE TABLE o AS SELECT WINDOWSTART AS start, MAX(n) AS most FROM counted GROUP BY WINDOWSTART;""",
    "q6": """CREATE TABLE won AS SELECT b.auction AS auction, MAX(b.price) AS price,
          MAX(a.seller) AS seller, MAX(a.expires) AS closed FROM bids b JOIN auctions a ON b.auction = a.pk
          WHERE b.`at` BETWEEN a.`at` AND a.expires GROUP BY b.auction;
        CREATE TABLE sold AS SELECT seller, ARRAY_SORT(COLLECT_LIST(closed * 1000000 + price), 'DESC') AS sales
          FROM won GROUP BY seller;
        CREATE TABLE o AS SELECT seller, REDUCE(sales, 0E0, (sum, sale) => sum + sale % 1000000) / ARRAY_LENGTH(sales)
          AS price FROM (SELECT seller, SLICE(sales, 1, LEAST(10, ARRAY_LENGTH(sales))) AS sales FROM sold) last;""",
    "q7": """CREATE TABLE o AS SELECT 'all' AS k, MAX(price) AS price
        FROM bids WINDOW TUMBLING (SIZE 10 SECONDS) GROUP BY 'all';""",
    "q8": """CREATE STREAM o AS SELECT p.pk AS pk, p.id AS person, p.name AS name, a.id AS auction
        FROM arrivals p JOIN sales a WITHIN (0 SECONDS, 10 SECONDS) GRACE PERIOD 1 MINUTE ON p.pk = a.seller;""",
    "q9": _WINNING,
    "q10": """CREATE STREAM o AS SELECT auction, bidder, price, FORMAT_TIMESTAMP(FROM_UNIXTIME(`at`), 'yyyy-MM-dd') AS day,
        FORMAT_TIMESTAMP(FROM_UNIXTIME(`at`), 'HH:mm') AS minute FROM bids;""",
    "q11": "CREATE TABLE o AS SELECT bidder, COUNT(*) AS count FROM bids WINDOW SESSION (10 SECONDS) GROUP BY bidder;",
    "q12": "CREATE TABLE o AS SELECT bidder, COUNT(*) AS n FROM bids WINDOW TUMBLING (SIZE 10 SECONDS) GROUP BY bidder;",
    "q13": """CREATE STREAM o AS SELECT b.auction AS k, AS_VALUE(b.auction) AS auction, b.price AS price, a.item AS item
        FROM bids b JOIN auctions a ON b.auction = a.pk;""",
    "q14": """CREATE STREAM o AS SELECT * FROM (SELECT auction, price * 9.08E-1 AS price,
          CASE `at` % 3 WHEN 0 THEN 'day' WHEN 1 THEN 'night' ELSE 'other' END AS kind FROM bids) found
        WHERE price > 1000 AND price < 50000;""",
    "q15": f"CREATE TABLE o AS SELECT {_DAY} AS day, COUNT(*) AS n, COUNT(DISTINCT bidder) AS bidders FROM bids GROUP BY {_DAY};",
    "q16": f"""CREATE TABLE o WITH (KEY_FORMAT = 'JSON') AS
        SELECT channel, {_DAY} AS day, COUNT(*) AS n, COUNT(DISTINCT bidder) AS bidders
        FROM bids GROUP BY channel, {_DAY};""",
    "q17": f"""CREATE TABLE o WITH (KEY_FORMAT = 'JSON') AS
        SELECT auction, {_DAY} AS day, COUNT(*) AS n, MIN(price) AS low, MAX(price) AS high,
        AVG(price) AS mean, SUM(price) AS total FROM bids GROUP BY auction, {_DAY};""",
    "q18": """CREATE TABLE o WITH (KEY_FORMAT = 'JSON') AS
        SELECT bidder AS b, auction AS a, AS_VALUE(auction) AS auction, AS_VALUE(bidder) AS bidder,
        LATEST_BY_OFFSET(price) AS price, LATEST_BY_OFFSET(channel) AS channel, LATEST_BY_OFFSET(url) AS url,
        LATEST_BY_OFFSET(`at`) AS `at` FROM bids GROUP BY bidder, auction;""",
    "q19": "CREATE TABLE o AS SELECT auction, TOPK(price, 10) AS prices FROM bids GROUP BY auction;",
    "q20": """CREATE STREAM o AS SELECT b.auction AS k, AS_VALUE(b.auction) AS auction, b.price AS price, a.item AS item,
        a.category AS category FROM bids b JOIN auctions a ON b.auction = a.pk WHERE a.category = 10;""",
    "q21": """CREATE STREAM o AS SELECT * FROM (SELECT auction, channel, CASE channel WHEN 'Apple' THEN '0' WHEN 'Google' THEN '1'
          ELSE REGEXP_EXTRACT('channel_id=([0-9]+)', url, 1) END AS number FROM bids) found WHERE number IS NOT NULL;""",
    "q22": "CREATE STREAM o AS SELECT auction, SPLIT(url, '/')[4] AS first, SPLIT(url, '/')[5] AS second FROM bids;",
}
