"""Delayed flights per airline and hour: a filter, a join with a table, a windowed aggregate.

logflume run examples/delays.py --bootstrap 127.0.0.1:9092
"""

import msgspec

import logflume as lf
from logflume import col


class Flight(msgspec.Struct):
    carrier: str
    dep_delay: float | None


class Airline(msgspec.Struct):
    carrier: str
    name: str


app = lf.App("delays")
flights, airlines = app.stream("flights", Flight), app.table("airlines", Airline)
(
    flights.filter(col.dep_delay > 15)
    .join(airlines, on=col.carrier)
    .group_by(col.name)
    .window(lf.tumbling(hours=1, grace=lf.minutes(10)))
    .aggregate(flights=lf.count(), mean_delay=lf.mean(col.dep_delay))
    .to("delays")
)

if __name__ == "__main__":
    app.run()
