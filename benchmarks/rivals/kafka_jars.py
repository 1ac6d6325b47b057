"""Apache Kafka's jars, resolved by Maven once and kept below ``build/kafka`` (others' too, in a place of their own).

A small POM is written per set of jars, ``mvn dependency:copy-dependencies`` copies the closure into ``jars/``, and a
``complete`` marker is made last: a directory without the marker is built again, so a killed Maven leaves nothing that
looks whole. A file lock makes parallel callers (pytest-xdist, a benchmark beside a test run) wait for one download.

Which registry Maven asks is Maven's own configuration; none is named here.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

KAFKA_4 = "4.3.1"
"""The Kafka that Tidelog is compared with: the newest whose tools resolve and which runs on Java 17."""
KAFKA_3 = "3.9.2"
"""The last line of Kafka that answers old clients and writes the old formats."""
SCALA = "2.13"
LOG4J = "2.24.3"
BUILD = Path(__file__).resolve().parents[2] / "build"
MAVEN_TIMEOUT_S = 900

JAVA_INSTALL = "apt-get install default-jdk-headless"
MAVEN_INSTALL = "apt-get install maven"


class MissingToolError(RuntimeError):
    """A program from outside Python is not installed; ``install`` is the command that installs it."""

    def __init__(self, tool: str, install: str) -> None:
        super().__init__(f"{tool} is missing; install it with: {install}")
        self.tool = tool
        self.install = install


@dataclass(frozen=True, slots=True)
class Artifact:
    """One Maven coordinate. ``bare`` leaves its transitive dependencies out; ``classifier`` names a jar beside the
    usual one."""

    group: str
    name: str
    version: str
    bare: bool = False
    classifier: str = ""

    def xml(self) -> str:
        """The ``<dependency>`` element of a POM."""
        kind = f"<classifier>{self.classifier}</classifier>" if self.classifier else ""
        none = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
        return (
            f"<dependency><groupId>{self.group}</groupId><artifactId>{self.name}</artifactId>"
            f"<version>{self.version}</version>{kind}{none if self.bare else ''}</dependency>"
        )


def find_tool(name: str, install: str) -> str:
    """The path of an executable.

    Raises MissingToolError where it is not on PATH.
    """
    path = shutil.which(name)
    if path is None:
        raise MissingToolError(name, install)
    return path


def java() -> str:
    """The ``java`` executable. Raises MissingToolError."""
    return find_tool("java", JAVA_INSTALL)


@contextmanager
def build_lock(directory: Path) -> Iterator[None]:
    """Hold the lock of one directory below ``build``; other processes and threads wait."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def resolve(name: str, artifacts: Sequence[Artifact], below: Path = BUILD / "kafka") -> Path:
    """The directory that holds these artifacts' jars and all they depend on; downloaded on the first call.

    ``name`` is the directory in ``below``. Raises MissingToolError without Maven or Java, RuntimeError with
    Maven's last lines where it fails. Any thread or process.
    """
    directory = below / name
    pom = _pom(artifacts)
    if _is_complete(directory, pom):
        return directory / "jars"
    maven = find_tool("mvn", MAVEN_INSTALL)
    java()
    with build_lock(directory):
        if not _is_complete(directory, pom):
            _copy_dependencies(maven, directory, pom)
    return directory / "jars"


def _is_complete(directory: Path, pom: str) -> bool:
    marker = directory / "complete"
    return marker.exists() and marker.read_text() == pom


def _copy_dependencies(maven: str, directory: Path, pom: str) -> None:
    (directory / "complete").unlink(missing_ok=True)
    shutil.rmtree(directory / "jars", ignore_errors=True)
    (directory / "pom.xml").write_text(pom)
    command = [maven, "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=jars", "-DincludeScope=runtime"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=MAVEN_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"Maven could not resolve {directory.name}:\n{(done.stdout + done.stderr)[-2000:]}")
    (directory / "complete").write_text(pom)


def _pom(artifacts: Sequence[Artifact]) -> str:
    dependencies = "\n".join(artifact.xml() for artifact in artifacts)
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0">\n<modelVersion>4.0.0</modelVersion>\n'
        "<groupId>tidelog</groupId><artifactId>rivals</artifactId><version>1</version>\n"
        f"<dependencies>\n{dependencies}\n</dependencies>\n</project>\n"
    )


def _kafka(name: str, version: str, *, bare: bool = False) -> Artifact:
    return Artifact("org.apache.kafka", name, version, bare)


def _logging(version: str) -> list[Artifact]:
    """Kafka 4 logs through log4j 2, which its own jars only need at run time; older ones bring what they need."""
    if int(version.split(".")[0]) < 4:
        return []
    group = "org.apache.logging.log4j"
    return [Artifact(group, "log4j-slf4j-impl", LOG4J), Artifact(group, "log4j-core", LOG4J)]


def broker_jars(version: str = KAFKA_4) -> Path:
    """The directory with the jars of the broker and its command-line tools. Raises as `resolve`."""
    artifacts = [_kafka(f"kafka_{SCALA}", version), _kafka("kafka-tools", version), _kafka("kafka-tools-api", version)]
    return resolve(version, [*artifacts, *_logging(version)])


def broker_classpath(version: str = KAFKA_4) -> str:
    """A Java class path that runs the broker and its tools. Raises as `resolve`."""
    return f"{broker_jars(version)}/*"


def shell_classpath(version: str = KAFKA_4) -> str:
    """A Java class path that runs ``kafka-metadata-shell``. Raises as `resolve`."""
    return f"{resolve(f'shell-{version}', [_kafka('kafka-shell', version), *_logging(version)])}/*"


def streams_classpath(version: str = KAFKA_4) -> str:
    """A Java class path with Kafka Streams and all it needs to run. Raises as `resolve`."""
    return f"{resolve(f'streams-{version}', [_kafka('kafka-streams', version), *_logging(version)])}/*"


def connect_classpath(version: str = KAFKA_4) -> str:
    """A Java class path that runs Kafka Connect, its file connectors and MirrorMaker 2. Raises as `resolve`."""
    names = ("connect-runtime", "connect-file", "connect-mirror")
    return f"{resolve(f'connect-{version}', [*(_kafka(name, version) for name in names), *_logging(version)])}/*"


def clients_jar(version: str = KAFKA_4) -> Path:
    """The one ``kafka-clients`` jar of a version, without its dependencies. Raises as `resolve`."""
    return resolve(f"clients-{version}", [_kafka("kafka-clients", version, bare=True)]) / f"kafka-clients-{version}.jar"


def client_classpath(version: str) -> str:
    """A Java class path with ``kafka-clients`` of a version and all it needs to run. Raises as `resolve`."""
    return f"{resolve(f'client-runtime-{version}', [_kafka('kafka-clients', version)])}/*"
