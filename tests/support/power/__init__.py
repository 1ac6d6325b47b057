"""Simulated power losses: a real broker's recorded effects on its files, and the disks that a power loss may leave.

    recorder.c   loaded into the process: every effect on a file, in order, into a trace
    trace        the trace, read and written
    disk         the model of a disk: durable and pending effects at a point of the trace
    crash        one power loss: which pending effects the disk kept; seeded, made smaller when it fails
    recording    a broker under the recorder, and notes in its trace of what was asked and acknowledged
    story        what a client asked for and was promised, up to a point of the trace
    workloads    what brokers are put through
    verdict      a broker started over a crashed disk must still have what it promised

Tests: ``tests/faults/test_power_loss.py``. docs/internals/faults.md says how to add a workload.
"""
