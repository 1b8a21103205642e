# fedbalancer without setting up Python. A comparison, its report kept in ./runs:
#   docker build -t fedbalancer .
#   docker run --rm -v "$PWD/runs:/home/fed/runs" fedbalancer compare --out runs/demo

# What both need: a C compiler for the kernels of training, which are compiled where they run.
FROM python:3.12-slim AS dev
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc git libc6-dev make \
    && rm -rf /var/lib/apt/lists/*

FROM dev AS run
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir -c constraints.txt '.[torch,demo]'
WORKDIR /home/fed
ENTRYPOINT ["fedbalancer"]
CMD ["--help"]
