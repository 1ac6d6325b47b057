"""Simulated power losses: a real broker's recorded effects on its files, and the disks that a power loss may leave.

    recorder.c   preloaded into the process: writes every effect on a file, in order, to a trace
    trace        reading and writing of traces
    disk         the model of a disk: durable and pending effects at a point of the trace
    crash        one power loss: which pending effects the disk kept; drawn from a seed, shrunk when a check fails
    recording    a broker under the recorder; its trace also has notes of requests and acknowledgements
    story        the requests and acknowledgements up to a point of the trace, as the state that must be kept
    workloads    the requests that are sent to brokers
    verdict      the check that a broker on a crashed disk still has everything that was acknowledged
    follower     the same for a follower's log: its process, story and check

Tests: ``tests/faults/test_power_loss.py``. docs/internals/faults.md says how to add a workload.
"""
