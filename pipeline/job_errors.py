"""Errors of jobs, in addition to those of reading: one line each, for the user who ran the job."""

from __future__ import annotations

from tidelog.pipeline.errors import PipelineError


class JobError(PipelineError):
    """The job failed; the message says why, and what the user can do if there is anything."""


class ConflictError(JobError):
    """Another writer committed first; of this run only its earlier commits were kept."""


class BadRequestError(JobError):
    """An option has an invalid value, or options contradict each other."""


class MissingPackageError(JobError):
    """A package that the job needs is not installed."""


class SparkEndedError(JobError):
    """The session's JVM has ended, or its context was stopped: this process cannot use Spark any more."""


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
"""Packages that only extras install -> the command that installs them."""


def missing_package_error(package: str, install: str) -> MissingPackageError:
    """Build the error for a package that is not installed."""
    return MissingPackageError(f"{package} is not installed: {install}")
