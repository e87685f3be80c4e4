# The node agent's image, without the solver and the Kubernetes client. Context: the repository.
#   docker build --tag muster-node-agent:0.1.0 --file service/node-agent.Dockerfile .
FROM python:3.11-slim AS build
RUN pip install --no-cache-dir uv==0.13.9
WORKDIR /src
COPY pyproject.toml uv.lock ./
ENV UV_PROJECT_ENVIRONMENT=/opt/muster UV_PYTHON_DOWNLOADS=never UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1
RUN uv sync --frozen --only-group node-agent --no-install-project
COPY service/muster /opt/muster/lib/python3.11/site-packages/muster
RUN /opt/muster/bin/python -m compileall -q /opt/muster/lib/python3.11/site-packages/muster

# The same Python in the same place: the environment points to it.
FROM python:3.11-slim
COPY --from=build /opt/muster /opt/muster
# Root, since only root may write to the kubelet's folders.
USER 0:0
ENTRYPOINT ["/opt/muster/bin/python", "-m", "muster.cli"]
