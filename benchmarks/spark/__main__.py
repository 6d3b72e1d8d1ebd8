"""Runs the measures; `benchmarks.spark` says what they are."""

from benchmarks._report import main

from .cores import measure_topologies, measure_two_cores
from .handing_over import measure_state
from .history import measure_history, measure_kafka
from .reading import measure_archives, measure_reading
from .sharing import measure_sharing
from .starting import measure_start
from .stores import measure_stores

if __name__ == "__main__":
    main(
        measure_history,
        measure_kafka,
        measure_reading,
        measure_archives,
        measure_topologies,
        measure_two_cores,
        measure_state,
        measure_sharing,
        measure_start,
        measure_stores,
    )
