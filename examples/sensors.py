"""IoT: hourly figures of sensors whose readings come late. One result an hour, final; what came too late is kept beside it.

logflume connect run examples/data/readings.toml --once --bootstrap 127.0.0.1:9092
logflume run examples/sensors.py --bootstrap 127.0.0.1:9092
"""

import msgspec

import logflume as lf
from logflume import col


class Reading(msgspec.Struct):
    sensor: str
    celsius: float | None


app = lf.App("sensors")
hourly = (
    app.stream("readings", Reading)
    .filter(col.celsius.is_not_null())
    .group_by(col.sensor)
    .window(lf.tumbling(hours=1, grace=lf.minutes(15)))
    .aggregate(readings=lf.count(), mean=lf.mean(col.celsius), hottest=lf.max(col.celsius), name="hourly")
)
hourly.suppress(lf.until_window_closes()).to("hourly")
hourly.late().to("too-late")

if __name__ == "__main__":
    app.run()
