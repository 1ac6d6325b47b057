"""The cost of validating produced batches, in plain Python and compiled: ``python -m benchmarks.validation``.

One uncompressed batch of records with values of 100 bytes at a time goes through ``LogValidator`` as an append does it:
CRC, structure of every record, timestamps, offsets in place. The aim is 30 ns per record compiled. Apache Kafka has no
such benchmark outside its JVM; its produce rows in ``benchmarks.run`` contain the same work.
"""

from __future__ import annotations

import argparse
import timeit

from benchmarks.machine import require_compiled
from benchmarks.saving import Page, add_save
from tidelog.log.records import engine, reference, section_walk
from tidelog.log.validation import validator
from tidelog.log.validation.params import AppendOrigin, ValidationParams
from tidelog.log.validation.validator import LogValidator
from tidelog.protocol.record.record_batch import Record, build_batch

NOW_MS = 1_700_000_000_000
COUNTS = (1, 10, 100, 1_000, 9_000)
VALUE_BYTES = 100
REPEATS = 5
SECONDS = 0.2


def nanoseconds_per_record(count: int) -> float:
    """Measure the best of REPEATS runs over one batch of ``count`` records."""
    batch = build_batch([Record(n, NOW_MS + n, b"key", b"v" * VALUE_BYTES) for n in range(count)])
    check = LogValidator(ValidationParams()).validate_and_assign_offsets
    view = memoryview(batch)

    def work() -> None:
        batch[0:8] = bytes(8)  # as in a producer's batch, whose offsets begin at 0
        check(view, 1_000_000, 3, NOW_MS, AppendOrigin.CLIENT)

    timer = timeit.Timer(work)
    work()
    number = max(1, int(SECONDS / max(timer.timeit(1), 1e-7)))
    return min(timer.repeat(REPEATS, number)) / number / count * 1e9


def choose(*, is_compiled: bool) -> None:
    """Choose the compiled routines, or the plain references, for the checks of batches; it replaces the choice at
    import.
    """
    setattr(validator, "_IS_COMPILED", is_compiled)  # noqa: B010 - a name of another module
    setattr(engine, "check_section", (section_walk if is_compiled else reference).check_section)  # noqa: B010


def main() -> None:
    """Print a table."""
    require_compiled()
    parser = argparse.ArgumentParser(prog="benchmarks.validation", description=__doc__.partition("\n")[0])
    add_save(parser)
    with Page("Validation of produced batches", "validation", save=parser.parse_args().save) as page:
        measure(page)


def measure(page: Page) -> None:
    """Write the table."""
    page.print_line("| records in the batch | plain Python, ns/record | compiled, ns/record |")
    page.print_line("|---:|---:|---:|")
    for count in COUNTS:
        found = []
        for is_compiled in (False, True):
            choose(is_compiled=is_compiled)
            found.append(nanoseconds_per_record(count))
        page.print_line(f"| {count:,} | {found[0]:,.0f} | {found[1]:,.0f} |")


if __name__ == "__main__":
    main()
