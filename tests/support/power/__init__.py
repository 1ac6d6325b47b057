"""Power loss on purpose: what a real broker process did to its files, and the disks a power loss could leave of it.

    recorder.c   loaded into the process: every effect on a file, in order, into a trace
    trace        the trace, read and written
    disk         the model of a disk: what is durable at a point of the trace, and what is pending
    crash        one power loss: which pending effects the disk kept; seeded, made smaller when it fails
    recording    a broker under the recorder, and notes in its trace of what was asked and acknowledged
    story        what a client asked for and was promised, up to a point of the trace
    workloads    what brokers are put through
    verdict      a broker started over a crashed disk must still have what it promised

Tests: ``tests/faults/test_power_loss.py``. docs/internals/faults.md says how to add a workload.
"""
