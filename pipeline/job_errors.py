"""Errors of jobs, beside those of reading: one line each, for the person who ran the job."""

from __future__ import annotations

from tidelog.pipeline.errors import PipelineError


class JobError(PipelineError):
    """The job could not do what it was asked for; the message says what stands, and what to do."""


class ConflictError(JobError):
    """Another run of the job was faster; nothing of this one was kept."""


class BadRequestError(JobError):
    """An option has an impossible value, or options contradict each other."""


class MissingPackageError(JobError):
    """A package that the job needs is not installed."""


class SparkEndedError(JobError):
    """The session's JVM has ended, or its context was stopped: this process has no Spark any more."""


SPARK_INSTALL = "pip install 'tidelog[spark]'"
ICEBERG_INSTALL = "pip install 'tidelog[iceberg]'"
DELTA_INSTALL = "pip install 'tidelog[delta]'"
REGISTRY_INSTALL = "pip install 'tidelog[registry]'"
PACKAGES = {
    **dict.fromkeys(("pyarrow", "pandas", "pyspark", "py4j", "matplotlib"), SPARK_INSTALL),
    **dict.fromkeys(("pyiceberg", "sqlalchemy"), ICEBERG_INSTALL),
    "deltalake": DELTA_INSTALL,
    **dict.fromkeys(("fastavro", "google", "confluent_kafka"), REGISTRY_INSTALL),
}
"""Packages that jobs import and only an extra installs, each with the command that installs it."""


def missing(package: str, install: str) -> MissingPackageError:
    """Build the error for a package that is not installed."""
    return MissingPackageError(f"{package} is not installed: {install}")
