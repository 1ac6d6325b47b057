"""A simulated cluster: real cores and logs of several brokers, on virtual time, network and disks; seeded, no sleeps.

    clock, network   events in order of virtual time; delays, losses, one-way cuts; processes that freeze and end
    quorum           the model controller behind a metadata log that the real observers fetch
    disk             logs on a file system that forgets unsynced bytes at a power loss
    event_loop       asyncio on virtual time: the real coroutines run on it; work of threads ends later
    broker           one broker: observer, lifecycle, roles, fetch loops, AlterPartition
    parts, serving   what the real handlers and roles take from a broker; the real fetch handler
    replicas         its partitions: the real ``Partition`` over real logs
    producer         clients that write, and remember what was acknowledged
    truth            the committed records, and the invariants that are checked after every step
    schedule         faults drawn from a seed, the run of a schedule, and its shrinking

A schedule is a list of actions. ``run(Schedule)`` raises ``ViolationError`` where an invariant breaks; equal schedules
have equal events.
"""
