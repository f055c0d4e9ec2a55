# The broker (`twinbus serve`) as an image. compose.yaml starts two of them, for a pair.
#
#     docker build --tag twinbus .
#     docker run --publish 127.0.0.1:5672:5672 --volume twinbus:/data twinbus
#
# The first lines of its output are the connection strings, with keys: treat the container's log like
# a password. Inside the container the broker listens on every address, or no published port would
# reach it, so it also accepts connections without TLS. Publish its ports on 127.0.0.1 only, or add
# --tls-only to the command.

# The version with which the tests are run.
FROM python:3.11-slim-bookworm AS build

WORKDIR /source
COPY pyproject.toml requirements.lock README.md LICENSE ./
COPY src ./src
# The versions of the lock file. Its hashes cannot be used: they would be needed for twinbus as well.
RUN grep --only-matching --extended-regexp '^[A-Za-z0-9._-]+==[^ ;\\]+' requirements.lock > /constraints.txt \
    && pip install --no-cache-dir --constraint /constraints.txt hatchling \
    && pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheel . \
    && python -m venv /opt/twinbus \
    && /opt/twinbus/bin/pip install --no-cache-dir --constraint /constraints.txt /wheel/*.whl


FROM python:3.11-slim-bookworm

# A fixed number, so that a directory of the host can be given to this user.
RUN useradd --system --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin twinbus \
    && install --directory --owner twinbus --group twinbus --mode 0700 /data
COPY --from=build /opt/twinbus /opt/twinbus
ENV PATH="/opt/twinbus/bin:$PATH" \
    PYTHONUNBUFFERED=1

# Its number, so that Kubernetes can see that it is not root.
USER 10001
WORKDIR /data
# Messages, keys and the certificate. A new named volume gets the owner and the mode of /data.
VOLUME ["/data"]
# AMQP and administration of the first namespace, with and without TLS; health and HTTP administration.
EXPOSE 5672 5300

# Answers 503, which is an error here, when the disk of a namespace has failed.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:5300/health', timeout=4)"]

ENTRYPOINT ["twinbus"]
CMD ["serve", "--data", "/data", "--host", "0.0.0.0", "--namespace", "twinbus:5672", "--admin-port", "5300"]
