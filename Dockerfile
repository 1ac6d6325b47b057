# Tidelog in a container: one process, numeric non-root user, nothing written outside the volume.
#
#   docker build -t tidelog .
#   docker run -p 9092:9092 -v tidelog:/var/lib/tidelog -e KAFKA_ADVERTISED_LISTENERS=PLAINTEXT://localhost:9092 tidelog
#
# Build arguments
#   BASE         the image that builds: any with python3 >= 3.11 and its venv module, such as a Debian with python3-venv
#   RUNTIME      the base of the final image, BASE by default: it needs the same python3, but not venv
#   EXTRAS       what to install beside the broker, as "[spark]"; nothing by default
#   PIP_OPTIONS  for pip, e.g. "--no-index --find-links=/wheels" to build from a directory of wheels
#
# Configuration is by Kafka's variables (KAFKA_LISTENERS, KAFKA_LOG_RETENTION_MS, ...; docs/configuration.md), or by a
# file mounted as /mnt/shared/config/server.properties, as with Apache's image.

ARG BASE=python:3.12-slim-bookworm
ARG RUNTIME=${BASE}

FROM ${BASE} AS build
ARG EXTRAS=
ARG PIP_OPTIONS=
WORKDIR /source
COPY pyproject.toml setup.py extensions.txt README.md LICENSE ./
COPY protocol protocol
COPY log log
COPY cleaner cleaner
COPY broker broker
COPY pipeline pipeline
COPY pyspark_tidelog pyspark_tidelog
COPY tidelog tidelog
COPY src src
# The compiler is only in the build stage, not in the final image.
RUN command -v gcc >/dev/null \
 || (apt-get update -qq && apt-get install -y -qq --no-install-recommends gcc libc6-dev python3-dev)
ENV TIDELOG_REQUIRE_EXTENSIONS=1
RUN python3 -m venv /opt/tidelog \
 && /opt/tidelog/bin/python -m pip install --no-cache-dir --no-compile ${PIP_OPTIONS} ".${EXTRAS}" \
 && /opt/tidelog/bin/python -m pip uninstall --yes --quiet pip setuptools
# Remove what only the developers of a dependency use: tests, headers, sources of compiled modules, types, symbols that
# no loader needs, and the backend of zstandard for other Pythons than CPython. The broker uses no random numbers,
# transforms or polynomials of numpy, which imports these on demand; packages of EXTRAS may use them. Of numpy only the
# modules that `import numpy` loads are compiled to bytecode.
# The libraries below *.libs were edited after they were linked, and would not load if they were stripped.
RUN cd /opt/tidelog/lib/python3*/site-packages \
 && find . -type d -name tests -prune -exec rm -rf {} + \
 && (cd numpy && rm -rf _core/include _core/_simd.* _core/*_tests.* distutils f2py) \
 && ([ -n "$EXTRAS" ] || (cd numpy && rm -rf fft polynomial random testing)) \
 && find . -type f \( -name '*.pyi' -o -name '*.pyx' -o -name '*.px[di]' -o -name '*.[cha]' \) -delete \
 && rm -f zstandard/_cffi.* \
 && find . -name '*.so' -not -path './*.libs/*' -exec strip --strip-unneeded {} + \
 && (/opt/tidelog/bin/python -m compileall -q -j 0 -x /numpy/ /opt/tidelog/lib || echo "some modules of dependencies do not compile") \
 && /opt/tidelog/bin/python -c 'import numpy'

FROM ${RUNTIME}
LABEL org.opencontainers.image.title="Tidelog" \
      org.opencontainers.image.description="A Kafka broker in Python" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/tidelog /opt/tidelog
RUN mkdir -p /var/lib/tidelog /etc/tidelog && chown 10001:10001 /var/lib/tidelog \
 && printf 'listeners=PLAINTEXT://0.0.0.0:9092\nlog.dirs=/var/lib/tidelog\n' > /etc/tidelog/server.properties
# The start script of Apache's image at its path: Testcontainers' modules and manifests for that image work unchanged.
COPY docker/image/entrypoint /usr/local/bin/tidelog-entrypoint
COPY docker/image/run /etc/kafka/docker/run
# The start scripts of Confluent's images: Testcontainers' modules for Go, Node and Python call them, and replace or
# extend some of them.
COPY --chown=10001:10001 docker/image/confluent /etc/confluent/docker
ENV PATH=/opt/tidelog/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    TIDELOG_CONFIG_FILES=/etc/tidelog/server.properties:/mnt/shared/config/server.properties
USER 10001:10001
VOLUME /var/lib/tidelog
EXPOSE 9092
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 CMD ["tidelog", "ping", "--local", "--quiet"]
ENTRYPOINT ["tidelog-entrypoint"]
CMD ["serve"]
