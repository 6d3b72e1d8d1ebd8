"""Clickstream: what users do in one visit. A visit ends after half an hour without a click; late clicks join two visits.

logflume connect run examples/data/clicks.toml --once --bootstrap 127.0.0.1:9092
logflume run examples/sessions.py --bootstrap 127.0.0.1:9092
"""

import msgspec

import logflume as lf
from logflume import col


class Click(msgspec.Struct):
    user: str
    page: str
    cents: int = 0


app = lf.App("clickstream")
(
    app.stream("clicks", Click)
    .group_by(col.user)
    .window(lf.session(minutes=30, grace=lf.hours(1)))
    .aggregate(clicks=lf.count(), spent_cents=lf.sum(col.cents), name="visits")
    .suppress(lf.until_window_closes())
    .to("visits")
)

if __name__ == "__main__":
    app.run()
