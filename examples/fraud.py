"""Fraud: an order and a withdrawal by one card within five minutes, in different countries. Either may come first.

logflume connect run examples/data/withdrawals.toml examples/data/orders.toml --once --bootstrap 127.0.0.1:9092
logflume run examples/fraud.py --bootstrap 127.0.0.1:9092
"""

import msgspec

import logflume as lf
from logflume import col


class Order(msgspec.Struct):
    cents: int
    country: str


class Withdrawal(msgspec.Struct):
    atm: str
    atm_country: str


app = lf.App("fraud")
orders, withdrawals = app.stream("orders", Order), app.stream("withdrawals", Withdrawal)  # both keyed by the card
(
    orders.join(withdrawals, within=lf.minutes(5), grace=lf.minutes(1))
    .filter(col.country != col.atm_country)
    .select(cents=col.cents, bought_in=col.country, atm=col.atm)
    .to("suspicious")
)

if __name__ == "__main__":
    app.run()
