"""A simulated cluster: real cores and logs of several brokers, on virtual time, network and disks; seeded, no sleeps.

    clock, network   events in order of virtual time; delays, losses, one-way cuts; processes that freeze and end
    quorum           the metadata quorum: the model controller, and the metadata log that the real observers fetch
    disk             logs on a file system that loses unsynced bytes at a power loss
    event_loop       asyncio on virtual time: the real coroutines run on it; work in threads ends later
    broker           one broker: observer, lifecycle, roles, fetch loops, AlterPartition
    parts, serving   the object that the real handlers and roles use as their broker; the real fetch handler
    replicas         one replica: the real ``Partition`` over a real log
    truth            the committed records, and the invariants that are checked after every step
    producer         an idempotent client, which sends a record until it is acknowledged
    settings         sizes and times of a cluster
    schedule         faults and writes drawn from a seed, the run of a schedule, and its shrinking
    scenario         a cluster that a test drives step by step
    planted          bugs that the simulation must find

A schedule is a list of actions. ``run(Schedule)`` raises ``ViolationError`` when an invariant does not hold; equal
schedules have equal events.
"""
