"""Jars of Apache Kafka, fetched once by Maven and kept below ``build/kafka``; other jars have directories of their own.

A small POM is written per set of jars, ``mvn dependency:copy-dependencies`` copies the jars and their dependencies into
``jars/``, and the marker ``complete`` is written last. A directory without the marker is built again, because a
killed Maven may have left it incomplete. A file lock makes parallel callers (pytest-xdist, a benchmark beside a test
run) wait for one download. ``python -m benchmarks.rivals.kafka_jars`` fetches all of Kafka's jars that tests use in one
run of Maven, which saves a dozen starts.

Which registry Maven asks is Maven's own configuration; none is named here.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

KAFKA_4 = "4.3.1"
"""The Kafka that Tidelog is compared with: the newest that runs on Java 17 and whose tools Maven finds."""
KAFKA_3 = "3.9.2"
"""A release of the last Kafka 3 line: it answers old clients and writes the old formats."""
SCALA = "2.13"
LOG4J = "2.24.3"
OLD_CLIENTS = ("0.8.2.2", "0.9.0.1", "0.10.2.2", "1.0.2", "2.0.1")
"""Releases of kafka-clients before KAFKA_3 that the tests use, from the first with KafkaProducer."""
BUILD = Path(__file__).resolve().parents[2] / "build"
MAVEN_TIMEOUT_S = 900
MAVEN_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options for a JVM that runs for seconds: Maven takes 2.3 s of CPU time instead of 3.9."""

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
        """Write the ``<dependency>`` element of a POM."""
        kind = f"<classifier>{self.classifier}</classifier>" if self.classifier else ""
        none = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
        return (
            f"<dependency><groupId>{self.group}</groupId><artifactId>{self.name}</artifactId>"
            f"<version>{self.version}</version>{kind}{none if self.bare else ''}</dependency>"
        )


def find_tool(name: str, install: str) -> str:
    """Find the path of an executable.

    Raises MissingToolError if it is not on PATH.
    """
    path = shutil.which(name)
    if path is None:
        raise MissingToolError(name, install)
    return path


def java() -> str:
    """Find the ``java`` executable. Raises MissingToolError."""
    return find_tool("java", JAVA_INSTALL)


@contextmanager
def build_lock(directory: Path) -> Iterator[None]:
    """Hold the lock of one directory below ``build``; other processes and threads wait."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


class JarSet(NamedTuple):
    """Artifacts whose jars are kept in one directory, with the dependencies of those that are not ``bare``."""

    name: str
    artifacts: tuple[Artifact, ...]


def resolve(name: str, artifacts: Sequence[Artifact], below: Path = BUILD / "kafka") -> Path:
    """Return the directory that holds the jars of these artifacts and their dependencies; the first call downloads
    them.

    ``name`` is the directory in ``below``. Raises MissingToolError without Maven or Java, RuntimeError with
    Maven's last lines if it fails, subprocess.TimeoutExpired after MAVEN_TIMEOUT_S. Any thread or process may call it.
    """
    resolve_all([JarSet(name, tuple(artifacts))], below)
    return below / name / "jars"


def resolve_all(jar_sets: Sequence[JarSet], below: Path = BUILD / "kafka") -> None:
    """Download those of these sets that are missing, in one run of Maven. Raises as `resolve`."""
    poms = {below / name: _pom(name, artifacts) for name, artifacts in sorted(jar_sets)}
    if all(_is_complete(directory, pom) for directory, pom in poms.items()):
        return
    maven = find_tool("mvn", MAVEN_INSTALL)
    java()
    with ExitStack() as locks:
        for directory in poms:
            locks.enter_context(build_lock(directory))
        absent = {directory: pom for directory, pom in poms.items() if not _is_complete(directory, pom)}
        if absent:
            _copy_dependencies(maven, absent, below)


def _is_complete(directory: Path, pom: str) -> bool:
    marker = directory / "complete"
    return marker.exists() and marker.read_text() == pom


def _copy_dependencies(maven: str, poms: dict[Path, str], below: Path) -> None:
    """Run Maven over these directories, as the modules of one project if there are several."""
    for directory, pom in poms.items():
        (directory / "complete").unlink(missing_ok=True)
        shutil.rmtree(directory / "jars", ignore_errors=True)
        (directory / "pom.xml").write_text(pom)
    project = next(iter(poms)) if len(poms) == 1 else below / "all"
    if len(poms) > 1:
        project.mkdir(exist_ok=True)
        (project / "pom.xml").write_text(_parent_pom(poms))
    command = [maven, "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=jars", "-DincludeScope=runtime"]
    environment = {**os.environ, "MAVEN_OPTS": f"{MAVEN_OPTIONS} {os.environ.get('MAVEN_OPTS', '')}"}
    done = subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, timeout=MAVEN_TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"Maven could not resolve {project.name}:\n{(done.stdout + done.stderr)[-2000:]}")
    for directory, pom in poms.items():
        (directory / "complete").write_text(pom)


def _pom(name: str, artifacts: Sequence[Artifact]) -> str:
    """Write the POM of one set."""
    dependencies = "\n".join(artifact.xml() for artifact in artifacts)
    return _project(f"rivals-{name}", f"<dependencies>\n{dependencies}\n</dependencies>")


def _parent_pom(directories: Iterable[Path]) -> str:
    """Write the POM of a project whose modules are the directories beside its own."""
    modules = "\n".join(f"<module>../{directory.name}</module>" for directory in directories)
    return _project("rivals", f"<packaging>pom</packaging>\n<modules>\n{modules}\n</modules>")


def _project(name: str, content: str) -> str:
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0">\n<modelVersion>4.0.0</modelVersion>\n'
        f"<groupId>tidelog</groupId><artifactId>{name}</artifactId><version>1</version>\n{content}\n</project>\n"
    )


def _kafka(name: str, version: str, *, bare: bool = False) -> Artifact:
    return Artifact("org.apache.kafka", name, version, bare)


def _logging(version: str) -> list[Artifact]:
    """Return the log4j 2 jars, which Kafka 4's own jars do not bring along; older releases bring their logging."""
    if int(version.split(".")[0]) < 4:
        return []
    group = "org.apache.logging.log4j"
    return [Artifact(group, "log4j-slf4j-impl", LOG4J), Artifact(group, "log4j-core", LOG4J)]


def broker_set(version: str = KAFKA_4) -> JarSet:
    """Name the jars of the broker and its command-line tools."""
    artifacts = [_kafka(f"kafka_{SCALA}", version), _kafka("kafka-tools", version), _kafka("kafka-tools-api", version)]
    return JarSet(version, (*artifacts, *_logging(version)))


def shell_set(version: str = KAFKA_4) -> JarSet:
    """Name the jars of ``kafka-metadata-shell``."""
    return JarSet(f"shell-{version}", (_kafka("kafka-shell", version), *_logging(version)))


def streams_set(version: str = KAFKA_4) -> JarSet:
    """Name the jars of Kafka Streams."""
    return JarSet(f"streams-{version}", (_kafka("kafka-streams", version), *_logging(version)))


def connect_set(version: str = KAFKA_4) -> JarSet:
    """Name the jars of Kafka Connect, its file connectors and MirrorMaker 2."""
    names = ("connect-runtime", "connect-file", "connect-mirror")
    return JarSet(f"connect-{version}", (*(_kafka(name, version) for name in names), *_logging(version)))


def clients_set(version: str = KAFKA_4) -> JarSet:
    """Name the jar of ``kafka-clients`` without its dependencies."""
    return JarSet(f"clients-{version}", (_kafka("kafka-clients", version, bare=True),))


def client_set(version: str) -> JarSet:
    """Name the jars of ``kafka-clients`` and its dependencies."""
    return JarSet(f"client-runtime-{version}", (_kafka("kafka-clients", version),))


def broker_jars(version: str = KAFKA_4) -> Path:
    """Return the directory with the jars of the broker and its command-line tools. Raises as `resolve`."""
    return resolve(*broker_set(version))


def broker_classpath(version: str = KAFKA_4) -> str:
    """Return a Java class path that runs the broker and its tools. Raises as `resolve`."""
    return f"{broker_jars(version)}/*"


def shell_classpath(version: str = KAFKA_4) -> str:
    """Return a Java class path that runs ``kafka-metadata-shell``. Raises as `resolve`."""
    return f"{resolve(*shell_set(version))}/*"


def streams_classpath(version: str = KAFKA_4) -> str:
    """Return a Java class path with Kafka Streams and all it needs to run. Raises as `resolve`."""
    return f"{resolve(*streams_set(version))}/*"


def connect_classpath(version: str = KAFKA_4) -> str:
    """Return a Java class path that runs Kafka Connect, its file connectors and MirrorMaker 2. Raises as `resolve`."""
    return f"{resolve(*connect_set(version))}/*"


def clients_jar(version: str = KAFKA_4) -> Path:
    """Return the one ``kafka-clients`` jar of a version, without its dependencies. Raises as `resolve`."""
    return resolve(*clients_set(version)) / f"kafka-clients-{version}.jar"


def client_classpath(version: str) -> str:
    """Return a Java class path with ``kafka-clients`` of a version and all it needs to run. Raises as `resolve`."""
    return f"{resolve(*client_set(version))}/*"


def resolve_for_tests() -> None:
    """Download all sets of Kafka's jars that the tests use."""
    versions = (KAFKA_4, KAFKA_3)
    both = [make(version) for version in versions for make in (broker_set, clients_set, client_set)]
    old = [client_set(version) for version in OLD_CLIENTS]
    resolve_all([*both, *old, shell_set(), streams_set(), connect_set()])


if __name__ == "__main__":
    resolve_for_tests()
