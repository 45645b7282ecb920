# The image of every Sickbay process: the wheel with its pinned requirements, and nothing to build or install with.
# It writes nowhere but to /tmp and runs as a user that owns nothing.

FROM python:3.11-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
COPY requirements/dev.txt requirements/runtime.txt requirements/
# the build backend with what it needs, as pinned for development; without a hash nothing is installed
RUN for name in hatchling packaging pathspec pluggy tomlkit trove-classifiers; do \
        sed -n "/^$name==/,/[^\\\\]\$/p" requirements/dev.txt; \
    done > requirements/build.txt \
    && pip install --quiet --require-hashes --no-deps -r requirements/build.txt \
    && python -m venv --without-pip /opt/sickbay \
    && pip --python /opt/sickbay/bin/python install --quiet --require-hashes --no-deps --only-binary :all: -r requirements/runtime.txt
COPY pyproject.toml README.md LICENSE ./
COPY sickbay sickbay
COPY ingest ingest
COPY streams streams
COPY projections projections
COPY responders responders
COPY migrations migrations
RUN pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist . \
    && pip --python /opt/sickbay/bin/python install --quiet --no-deps --no-index dist/*.whl

FROM python:3.11-slim
COPY --from=build /opt/sickbay /opt/sickbay
ENV PATH=/opt/sickbay/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
WORKDIR /tmp
USER 65532:65532
ENTRYPOINT ["sickbay"]
CMD ["--help"]
