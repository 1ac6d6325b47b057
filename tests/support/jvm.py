"""Options of the Java virtual machines of tests, which run for seconds: they start quickly, and optimize little.

Loading Kafka's classes from their jars takes a JVM a second or two. Java's class data sharing avoids that: one broker
runs once per checkout and writes the classes that it loaded into an archive below ``build``. Every later JVM with the
same class path maps this archive. It is written again after a change of Java or of the jars. The older Kafka has none:
to write it takes 7 s, and it saves 1 s in each of the six JVMs of a run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from confluent_kafka import Consumer, Producer

from benchmarks.rivals import apache_kafka as rival
from benchmarks.rivals.kafka_jars import BUILD, JAVA_INSTALL, KAFKA_3, KAFKA_4, build_lock, java
from tests.support.kafka_jars import broker_classpath
from tests.support.requirements import require_tool
from tests.support.toolchains import Run, installed, run_process

QUICK = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-XX:ReservedCodeCacheSize=240m")
"""One collector thread, no file of counters, and no optimizing compiler (C2), which only pays in long runs. Without it
a JVM reserves 48 MB for compiled code: Spark's needs more, and would sweep old code out and compile it again."""
WITHOUT_ARCHIVE = (*QUICK, "-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote")
"""The same for JVMs that have no archive of their classes: they do not verify them when they load them."""
QUICK_JAVAC = tuple(f"-J{option}" for option in QUICK)
"""The same for javac, which then takes 1.7 s of CPU time in place of 2.2."""
JAVAC = ("-nowarn", "-proc:none")
"""No search for annotation processors in the jars: 1.2 s."""
SMALL_HEAP = ("-Xmx256M",)
BROKER_HEAP = ("-Xmx512M",)
SILENT = ("-Xlog:disable", "-Xlog:all=error:stderr")
"""Options against log lines on a tool's standard output: a JVM that cannot use the archive logs that and runs on."""


TESTS = Path(__file__).resolve().parents[1]
NODE_SERVER, TOOL_SERVER = TESTS / "support/java/NodeServer.java", TESTS / "support/java/ToolServer.java"
KAFKA_PROTOCOL = TESTS / "contract/KafkaProtocol.java"
MIGRATION, SHARE_MEMBERS = TESTS / "clients/java/Roll.java", TESTS / "clients/java/Share.java"
METADATA_REPLAY = TESTS / "contract/java/MetadataReplay.java"
RECORD_FORMATS = TESTS / "contract/java/RecordFormats.java"
PROGRAMS = {
    KAFKA_3: (NODE_SERVER, TOOL_SERVER, KAFKA_PROTOCOL, RECORD_FORMATS),
    KAFKA_4: (NODE_SERVER, TOOL_SERVER, KAFKA_PROTOCOL, METADATA_REPLAY, MIGRATION, SHARE_MEMBERS),
}
"""Programs of tests that need no more jars than a broker of that version has: they are compiled together, because a
run of javac takes 1.2 s of CPU time, and 0.1 more with another program."""


@cache
def broker_options(version: str) -> tuple[str, ...]:
    """Return options of a JVM with the class path of a broker of that version; write the archive if there is none."""
    if version != KAFKA_4:
        return (*WITHOUT_ARCHIVE, *SILENT)
    jars = Path(broker_classpath(version)).parent
    directory = BUILD / "classes" / f"kafka-{version}"
    archive, marker = directory / "classes.jsa", directory / "complete"
    recipe = _recipe(jars)
    with build_lock(directory):
        if not marker.exists() or marker.read_text() != recipe:
            archive.unlink(missing_ok=True)
            _record(version, archive)
            marker.write_text(recipe)
    return (*QUICK, *SILENT, f"-XX:SharedArchiveFile={archive}") if archive.exists() else QUICK


def java_program(
    source: Path,
    version: str = KAFKA_4,
    more: str = "",
    *,
    log_level: str = "OFF",
    heap: tuple[str, ...] = SMALL_HEAP,
) -> list[str]:
    """Compile a Java program of one file; return its command.

    Its class path is that of a Kafka broker, then ``more``.
    """
    class_path = ":".join(filter(None, (broker_classpath(version), more)))
    directory = compile_java(source, version, class_path)
    return java_command(version, f"{class_path}:{directory}", f"-Dlog4j2.level={log_level}", source.stem, heap=heap)


def compile_java(source: Path, version: str, class_path: str) -> Path:
    """Compile a Java program of one file, and those of PROGRAMS with it; return the directory of the classes."""
    together = PROGRAMS.get(version, ())
    if source in together:
        return compile_together(f"programs-{version}", together, class_path)
    return compile_together(f"{source.stem}-{version}", (source,), class_path)


def compile_together(name: str, sources: Sequence[Path], class_path: str, run: Run = run_process) -> Path:
    """Compile Java programs, once for each content; return the directory of their classes, below ``build/clients``."""
    compiler = [require_tool("javac", JAVA_INSTALL), *QUICK_JAVAC, *JAVAC, "-cp", class_path]
    return installed(
        f"java-{name}",
        lambda target: [*compiler, "-d", str(target), *(str(target / source.name) for source in sources)],
        sources,
        may_be_missing=False,
        run=run,
    )


def java_command(version: str, class_path: str, *words: str, heap: tuple[str, ...] = SMALL_HEAP) -> list[str]:
    """Build a command of ``java``; ``class_path`` must begin with the class path of that version's broker, and
    ``words`` follow it.
    """
    return [require_tool("java", JAVA_INSTALL), *heap, *broker_options(version), "-cp", class_path, *words]


def _recipe(jars: Path) -> str:
    release = Path(java()).resolve().parents[1] / "release"
    stamps = sorted((jar.name, jar.stat().st_mtime_ns) for jar in jars.glob("*.jar"))
    return json.dumps([release.read_text() if release.exists() else "", str(jars), stamps])


class _Recorder(rival.ApacheKafka):
    """A broker that writes the classes it has loaded into a file when it ends."""

    def __init__(self, directory: Path, version: str, archive: Path) -> None:
        super().__init__(directory, version=version)
        self.java_options = (*BROKER_HEAP, *QUICK, *SILENT, f"-XX:ArchiveClassesAtExit={archive}")
        self.tool_options = (*SMALL_HEAP, *QUICK)


def _record(version: str, archive: Path) -> None:
    """Run a broker with a transaction and a group, so that it loads, and archives, the classes for both."""
    with TemporaryDirectory() as directory, _Recorder(Path(directory), version, archive) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "t"})
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce("topic", b"value", on_delivery=lambda *_: None)
        producer.commit_transaction(60)
        reader = {"bootstrap.servers": broker.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
        consumer = Consumer(reader)
        consumer.subscribe(["topic"])
        assert consumer.poll(60) is not None
        consumer.close()
