# Applications: real Kafka clients, and the small programs that use them.
ARG PYTHON_IMAGE
FROM ${PYTHON_IMAGE}
COPY requirements.txt /lock/
RUN python3 -m venv /opt/client && /opt/client/bin/python -m pip install --no-cache-dir --only-binary :all: -r /lock/requirements.txt
COPY clients/ /opt/client/clients/
ENV PATH=/opt/client/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 1000:1000
WORKDIR /opt/client/clients
# An application, for charts that name no command.
CMD ["python3", "produce.py", "--topic=orders"]
