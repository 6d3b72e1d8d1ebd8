"""Feature store: what a model wants to know of a user, up to date, and for months of history.

logflume connect run examples/data/payments.toml --once --bootstrap 127.0.0.1:9092
logflume run examples/features.py --bootstrap 127.0.0.1:9092
logflume backfill examples/features.py --bootstrap 127.0.0.1:9092      # history on Spark, then live from the cut
"""

import msgspec

import logflume as lf
from logflume import col


class Payment(msgspec.Struct):
    user: str
    cents: int
    shop: str


app = lf.App("features")
(
    app.stream("payments", Payment)
    .group_by(col.user)
    .aggregate(
        payments=lf.count(),
        total_cents=lf.sum(col.cents),
        mean_cents=lf.mean(col.cents),
        largest_cents=lf.max(col.cents),
        name="user-features",
    )
    .to("user-features")
)

if __name__ == "__main__":
    app.run()
