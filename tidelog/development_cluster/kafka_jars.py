"""Apache Kafka's jars for a controller: from a given directory, or from a Maven repository, with known digests.

Downloaded jars are kept in the user's cache directory; a download with another digest is an error.
"""

from __future__ import annotations

import base64
import hashlib
import os
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple

MAVEN_CENTRAL = "https://repo1.maven.org/maven2"
KAFKA_VERSION = "4.3.1"
OLDER = ("0.", "1.", "2.", "3.")
"""Prefixes of versions whose controllers cannot register Tidelog's members, which need metadata.version 4.0-IV3."""
DOWNLOADS = 8
TIMEOUT_S = 60.0
"""Timeout of a connection without data, in seconds."""


class JarsError(Exception):
    """A directory has no jars of Apache Kafka 4, or a jar cannot be downloaded or has a wrong digest."""


class Artifact(NamedTuple):
    """A jar by its Maven coordinates, and its SHA-256 in base64."""

    group: str
    name: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        """The jar's file name."""
        return f"{self.name}-{self.version}.jar"

    def url(self, repository: str) -> str:
        """Return the jar's address in a Maven repository."""
        group = self.group.replace(".", "/")
        return f"{repository.rstrip('/')}/{group}/{self.name}/{self.version}/{self.file_name}"


_TABLE = """
sJir71/4eOdvYM1sVZubqlZjzLG1Xyg3VYsiwynTJCM= org.apache.kafka:kafka_2.13:4.3.1
UlAbe0dRDGb4mIca2vbSloq3JGVh1EztQ2Q6ilh/CzY= org.apache.kafka:kafka-clients:4.3.1
ZqhrjIlxghb/py/k5EudG980cuTLkgDDagdCol/rvbo= org.apache.kafka:kafka-coordinator-common:4.3.1
SrVtAC4WJBhch0GZ6eD/skPb659otNDK30jOL2F6ESY= org.apache.kafka:kafka-group-coordinator:4.3.1
2BvBo3Of9smyGBW6rgACIwY0KhbT2U5qJiEgG5mAow0= org.apache.kafka:kafka-group-coordinator-api:4.3.1
TXOpbGR0pOvdZ6HO4U2hqUz9a7nm4lJoW6VmfYq3+Jg= org.apache.kafka:kafka-metadata:4.3.1
Rqu/iYBt0i2Ejpl837FDFSTKtOyI44p9KAbiCySnBgk= org.apache.kafka:kafka-raft:4.3.1
Adc2WZ7DsM27BIDBUhkXCyjNrhiXhefwxvHyblKOrrw= org.apache.kafka:kafka-server:4.3.1
18cZ90lXmjmQEfDfdBTeinjxDwdKYSLKpVD9sUE1FXU= org.apache.kafka:kafka-server-common:4.3.1
jO7tc0YSfmUupcZQsheJCq/xSRn5Z9J/rc5CB0W9MGY= org.apache.kafka:kafka-share-coordinator:4.3.1
l+P6zd0pFKWPKOyR7zX42mmWPqs2URlul/SHkk9trJg= org.apache.kafka:kafka-storage:4.3.1
vCsiY5+lVElEYdEB1ZngG66EDZfE9G4Y/fPS/kGkcJg= org.apache.kafka:kafka-storage-api:4.3.1
3PZ4V0LgyKsRoPwJxi8RkuEemX3GKWaajbgqpA2TPDE= org.apache.kafka:kafka-tools-api:4.3.1
xkqqKojY/TgsSAAgSHKRdoblQgQ8eRbJ6Hl9k52OsxM= org.apache.kafka:kafka-transaction-coordinator:4.3.1
Zc62adiPYzBsaA+AiLv3ZbvKctKIphoDcDAAB2w9P1Y= net.sourceforge.argparse4j:argparse4j:0.7.0
7EEd/fDAPyUhhkjOiYYWMLcWgOWFippyeOusjlXKs9c= com.github.ben-manes.caffeine:caffeine:3.2.0
U8oIX0oVD3A/SeGqvZNb0DtD4eo9VdE1Q4KSryLO9Ws= com.fasterxml.jackson.core:jackson-annotations:2.21
EuhlWxACZ7RNDxTQGx9QgqUQXmFhdNxDB74adh6SQHs= com.fasterxml.jackson.core:jackson-core:2.21.2
jJgvAfFI2AXwqqwjOQESRHV+DffG/4lR8vo/QzuO2Ek= com.fasterxml.jackson.core:jackson-databind:2.21.2
aC+MeXfgKkJ0hCa/VJRuMuUuL4C4S2ZCgBqxK9VBNoo= com.fasterxml.jackson.dataformat:jackson-dataformat-csv:2.21.2
5YG78/xWItFrVzZt1B4Q/FaSH7ICh53i70h/h92bMOc= com.fasterxml.jackson.datatype:jackson-datatype-jdk8:2.21.2
3ybMWPI19HfbB/dTulo6skPr5Xidn4ns9o3WLqmmbCg= net.sf.jopt-simple:jopt-simple:5.0.4
cxSvUM3pyZ6Or0Pu5heiPtzGu0MDYiEGQ1UJSZnYN+8= org.bitbucket.b_c:jose4j:0.9.6
a3oUpvNMEPhoP3teLznfDwe1jH3/DkaOu8cTkFxGl5w= com.yammer.metrics:metrics-core:2.2.0
K77vV5eiQTAMT3UTzVRiOWKe197aT8DDHfkLuV9fE+8= org.pcollections:pcollections:4.0.2
e1LHIVbdf5izI3pbNcHTT7o4GyEEjIkgiROtgKRd+9c= com.google.re2j:re2j:1.8
ToXZb/e8fcYnmFUjw1QbmReqoI6VY5E4DELbIaLE5aA= org.scala-lang:scala-library:2.13.18
CtDD9NidU4s7bDABWFVeJmqmnPG19lIquotbrSOOuZQ= com.typesafe.scala-logging:scala-logging_2.13:3.9.6
aTX/GYKyrJPWlfFapmkhvi9gKSEnev4ALwGP2MfW4ps= org.scala-lang:scala-reflect:2.13.18
0+9XXj5JeWeNwBvx3M5RAhSTtNEft/G+itmCh3wWocA= org.slf4j:slf4j-api:1.7.36
QN7CURZNFXbgAJaM0C5WoRJfRrkftpSgbfoWjxM12kg= org.apache.logging.log4j:log4j-slf4j-impl:2.24.3
frQIRZauJb08YWmOSOjQq2WpJgdYiE7Vy7nG5VxEpWo= org.apache.logging.log4j:log4j-core:2.24.3
W0oKDNDnUd7UMcFiRCvb3VMyjR+Lsrrl/Bu+7g9m2A8= org.apache.logging.log4j:log4j-api:2.24.3
7XRxGnjXk8o39gdeSh6T0QcjPf0g0LsX4yutiNOOVqo= commons-validator:commons-validator:1.10.1
bXp0TkAnZJ+7UIld+Ul9EJ+Yx2amNwYv6NLqu7MUC6Q= commons-logging:commons-logging:1.3.5
IwKKP9AG5TC/SV9VEIMggYfK/Y+AYk0EjrpWRC8WpQ4= com.dynatrace.hash4j:hash4j:0.22.0
ItHUMWxOwTpotVnpjIJW1pBxWTcx2pYTZkD4ZPoU+tg= org.hdrhistogram:HdrHistogram:2.2.2
THZss/hVQV7nNLI5KUmgtvEqYIeTNKdFGN6vYnDTLjY= org.xerial.snappy:snappy-java:1.1.10.7
tsMjfiS4JSpanDoOGuMO+PMjQS50vTWFSLep5SfWdt8= com.github.luben:zstd-jni:1.5.6-10
JS2r1YbSIUmjFmGor8GlB0dxTrGimL1KbngMjJGhOGY= at.yawk.lz4:lz4-java:1.10.2
"""


def _parse(line: str) -> Artifact:
    digest, _, coordinates = line.partition(" ")
    group, name, version = coordinates.split(":")
    return Artifact(group, name, version, digest)


ARTIFACTS = tuple(map(_parse, _TABLE.split("\n")[1:-1]))
"""All jars that a controller of KAFKA_VERSION needs."""


def class_path_of(directory: Path) -> str:
    """Return the class path of the jars in a directory, or in ``libs`` of an unpacked Kafka. Raises JarsError."""
    for jars in (directory, directory / "libs"):
        for jar in jars.glob("kafka-clients-*.jar"):
            version = jar.stem.removeprefix("kafka-clients-")
            if version.startswith(OLDER):
                raise JarsError(f"{jars} has Apache Kafka {version}: the controller must be of Apache Kafka 4")
            return f"{jars}/*"
    raise JarsError(
        f"{directory} has no kafka-clients-*.jar, neither itself nor in libs: expected an unpacked release of Apache "
        "Kafka 4, or a directory with its jars"
    )


def default_cache(environment: dict[str, str] | os._Environ[str]) -> Path:
    """Return the directory in which downloaded jars are kept."""
    cache = environment.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(cache) / "tidelog" / f"kafka-{KAFKA_VERSION}"


def download(directory: Path, repository: str, artifacts: Sequence[Artifact] = ARTIFACTS) -> list[str]:
    """Download the jars that the directory lacks, and return their names. Raises JarsError, OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    missing = [one for one in artifacts if not (directory / one.file_name).exists()]
    with ThreadPoolExecutor(DOWNLOADS) as threads:
        for done in [threads.submit(_fetch, one, directory, repository) for one in missing]:
            done.result()
    return [one.file_name for one in missing]


def _fetch(artifact: Artifact, directory: Path, repository: str) -> None:
    """Download one jar, which gets its name when it is complete. Raises JarsError, OSError."""
    url = artifact.url(repository)
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            data: bytes = answer.read()
    except (OSError, HTTPException, ValueError) as error:  # no connection, no valid answer, no URL
        reason = getattr(error, "reason", error)
        text = (reason.strerror if isinstance(reason, OSError) else None) or reason
        raise JarsError(
            f"{url} cannot be downloaded: {text}; --kafka DIR takes an unpacked release of Apache Kafka instead"
        ) from error
    found = base64.b64encode(hashlib.sha256(data).digest()).decode()
    if found != artifact.sha256:
        raise JarsError(f"{url} has the SHA-256 {found}, expected {artifact.sha256}")
    temporary = directory / f".{artifact.file_name}.{os.getpid()}"
    temporary.write_bytes(data)
    temporary.rename(directory / artifact.file_name)
