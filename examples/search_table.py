"""CDC: changes of two database tables become one table to search in, each row as it would be found by a join in the database.

logflume connect run examples/data/makers.toml examples/data/products.toml --once --bootstrap 127.0.0.1:9092
logflume run examples/search_table.py --bootstrap 127.0.0.1:9092
"""

import msgspec

import logflume as lf
from logflume import col


class Product(msgspec.Struct):
    title: str
    maker: str


class Maker(msgspec.Struct):
    name: str
    country: str


app = lf.App("search")
products, makers = app.table("products", Product), app.table("makers", Maker)  # keyed by their primary keys
(
    products.join(makers, on=col.maker, name="with-makers")
    .select(text=col.title.lower() + " " + col.name.lower(), country=col.country, store="searchable")
    .to("searchable")
)

if __name__ == "__main__":
    app.run()
