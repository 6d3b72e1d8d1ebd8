"""What a user reads when an expression or a topology cannot be meant."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

import logflume as lf
from logflume import col
from logflume.log import InvalidInput, UnknownName
from logflume.streams import Processor


class Flight(msgspec.Struct):
    carrier: str
    dep_delay: float | None


class Airline(msgspec.Struct):
    carrier: str
    name: str
    dep_delay: float


def test_an_unknown_column_names_the_near_match() -> None:
    with pytest.raises(UnknownName, match="'dep_dely' of 'flights'; did you mean 'dep_delay'"):
        lf.App("delays").stream("flights", Flight).filter(col.dep_dely > 15)


def test_an_unknown_column_without_near_match_lists_the_columns() -> None:
    with pytest.raises(UnknownName, match="there is carrier, dep_delay, key"):
        lf.App("delays").stream("flights", Flight).filter(col.xyzzy > 15)


def test_a_type_clash_names_both_types_and_the_expression() -> None:
    with pytest.raises(InvalidInput, match=r"\(col.carrier > 15\)` compares STRING with BIGINT"):
        lf.App("delays").stream("flights", Flight).filter(col.carrier > 15)


def test_a_column_that_is_no_condition_is_refused() -> None:
    with pytest.raises(InvalidInput, match="expected a condition"):
        lf.App("delays").stream("flights", Flight).filter(col.carrier)


def test_and_says_to_use_the_operator() -> None:
    with pytest.raises(InvalidInput, match=r"use & \| ~ instead"):
        bool(col.a > 1)


def test_columns_on_both_sides_of_a_join_ask_for_a_prefix() -> None:
    app = lf.App("delays")
    with pytest.raises(InvalidInput, match="both sides of the join have a column 'dep_delay': pass prefix="):
        app.stream("flights", Flight).join(app.table("airlines", Airline), on=col.carrier)


def test_a_clash_of_store_names_names_the_fix() -> None:
    stream = lf.App("delays").stream("flights", Flight)
    stream.filter(col.dep_delay > 1).group_by_key().count()
    with pytest.raises(InvalidInput, match=r"already something else named 'flights-count'.*pass name='...'"):
        stream.group_by_key().count()


def test_join_keys_of_different_types_are_refused_with_both_types() -> None:
    app = lf.App("delays")
    joined = app.stream("flights", Flight).join(app.table("planes", Airline), on=col.dep_delay, prefix="p_")
    joined.to("out")
    with pytest.raises(InvalidInput, match=r"the stream's key is \(DOUBLE\), the table's \(STRING\)"):
        app.plan()


def test_another_way_of_reading_a_topic_needs_a_name() -> None:
    app = lf.App("delays")
    app.stream("flights", Flight)
    with pytest.raises(InvalidInput, match=r"already something else named 'flights'.*pass name='...'"):
        app.table("flights", Flight)


def test_a_window_needs_a_size() -> None:
    with pytest.raises(InvalidInput, match="a window needs a size"):
        lf.tumbling()


def test_an_internal_topic_that_cannot_exist_asks_for_a_name() -> None:
    app = lf.App("delays")
    app.stream("flights", Flight).group_by(col.carrier, name="by carrier").count(name="n").to("out")
    with pytest.raises(InvalidInput, match=r"'delays-by carrier-repartition'.*pass a \(shorter\) name="):
        app.plan()


def test_a_store_name_that_is_too_long_is_refused() -> None:
    app = lf.App("delays")
    app.stream("flights", Flight).group_by_key().count(name="n" * 201).to("out")
    with pytest.raises(InvalidInput, match="store name"):
        app.plan()


def test_an_unknown_engine_option_names_the_near_one() -> None:
    app = lf.App("delays", comit_interval_ms=5)
    app.stream("flights", Flight).to("out")
    with pytest.raises(UnknownName, match="did you mean 'commit_interval_ms'"):
        app.run()


def test_a_processor_that_takes_no_records_is_refused() -> None:
    class Silent(Processor):
        pass

    with pytest.raises(InvalidInput, match=r"Silent takes no records: define process\(self, record\)"):
        lf.App("delays").stream("flights", Flight).process(Silent)


@pytest.mark.parametrize(
    "made",
    [
        lambda app, other: app.stream("a").join(other.stream("b"), within=lf.hours(1)),
        lambda app, other: app.stream("a").left_join(other.table("b")),
        lambda app, other: app.stream("a").join(other.global_table("b"), on=col.x.cast(str)),
        lambda app, other: app.stream("a").merge(other.stream("b")),
        lambda app, other: app.table("a").outer_join(other.table("b")),
        lambda app, other: app.table("a").join(other.table("b"), on=col.x.cast(str)),
        lambda app, other: app.stream("a").group_by_key().cogroup(_sum).cogroup(other.stream("b").group_by_key(), _sum),
    ],
)
def test_what_belongs_to_another_application_is_refused_where_it_stands(made: Callable[[lf.App, lf.App], object]) -> None:
    with pytest.raises(InvalidInput, match="'b' belongs to application 'other', this to 'delays': make both with one App"):
        made(lf.App("delays"), lf.App("other"))


def _sum(total: int, value: int) -> int:
    return total + value


@pytest.mark.parametrize(
    "keyed",
    [
        lambda s: s.select_key(lambda value: ("ann", 1), key={"user": str, "page": int}),
        lambda s: s.group_by(lambda value: ("ann", 1), key=Flight),
        lambda s: s.map(lambda value: (("ann", 1), value), key={"user": str, "page": int}),
        lambda s: s.flat_map(lambda value: [(("ann", 1), value)], key={"user": str, "page": int}),
    ],
)
def test_the_key_of_a_function_is_one(keyed: Callable[[lf.Stream], object]) -> None:
    with pytest.raises(InvalidInput, match=r"key= is the type of one key \(str, int, ...\), found"):
        keyed(lf.App("delays").stream("flights", Flight))


@pytest.mark.parametrize("value", [{"user": str}, [int], "VARCHAR", 5])
def test_what_is_no_type_of_values_is_told_what_may_be_one(value: object) -> None:
    with pytest.raises(InvalidInput, match=r"class with typed fields \(msgspec.Struct, dataclass, TypedDict.*found") as caught:
        lf.App("delays").stream("flights", value)
    assert ("write its fields as a class" in str(caught.value)) == isinstance(value, dict)
    with pytest.raises(InvalidInput, match="expected str, int, float, bool, bytes, Any or a column type"):
        lf.App("delays").stream("flights", Flight, key=[int])


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ({"num_standby_replicas": "1"}, "num_standby_replicas is a whole number, found '1'"),
        ({"memory_bytes": "1GB"}, "memory_bytes is a whole number, found '1GB'"),
        ({"commit_interval_ms": True}, "commit_interval_ms is a whole number, found True"),
        ({"transaction_timeout_ms": 2.5}, "transaction_timeout_ms is a whole number, found 2.5"),
        ({"state_dir": None}, "state_dir is a path, found None"),
        ({"endpoint_certificate": 5}, "endpoint_certificate is a path, found 5"),
        ({"dead_letter_topic": 5}, "dead_letter_topic is text, found 5"),
        ({"instance_id": 7}, "instance_id is text, found 7"),
    ],
)
def test_a_setting_of_another_kind_is_refused(setting: dict[str, object], told: str) -> None:
    app = lf.App("delays")
    app.stream("flights", Flight).to("out")
    with pytest.raises(InvalidInput, match=f"^{told}$"):
        app.settings(**setting)
