"""A topology is tested without a broker: python examples/delays_test.py"""

from delays import Airline, Flight, app

from logflume.streams.testing import TopologyTestDriver

HOUR_MS = 3_600_000

driver = TopologyTestDriver(app)
driver.input("airlines").send(Airline("UA", "United"), key="UA", timestamp_ms=0)
for minute, delay in ((1, 20.0), (2, 40.0), (3, 5.0), (70, 60.0)):
    driver.input("flights").send(Flight("UA", delay), key="UA", timestamp_ms=minute * 60_000)
found = [(record.key, record.value) for record in driver.output("delays").read()]
for key, value in found:
    print(key, value)
assert found[1][1] == {"flights": 2, "mean_delay": 30.0}
assert len(found) == 3
