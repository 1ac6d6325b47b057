"""Jobs over logs: export, audit, index, compact, replay and backfill, each a function and a command.

    driver     options -> plan rows -> RDD -> commit rows -> the result; an export repeats this for each of its commits
    workers    a plan row -> the work, in plain Python with numpy and pyarrow -> one commit row

No record crosses into the JVM: the workers read and write records in their own Python processes. Every job may be
killed at any point and run again, with the same result; replay and backfill within the broker's
``offsets.retention.minutes``. ``spark=None`` runs the same work in this process, task after task.

Imports: all other subpackages of ``tidelog.pipeline``.
"""
