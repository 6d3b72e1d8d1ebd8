"""Files of a log in human form, and whether they are good: also those of Apache Kafka. Reads only; memory is bounded.

for entry in dump_file("data/flights-0/00000000000000000000.log"):
    print(entry)
"""

from .dump import Entry, dump_file, file_kind
from .verify import Finding, verify_path

__all__ = ["Entry", "Finding", "dump_file", "file_kind", "verify_path"]
