# Apache Kafka as its own image has it: jars in /opt/kafka/libs, programs in /opt/kafka/bin.
ARG PYTHON_IMAGE
FROM ${PYTHON_IMAGE}
RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/*
COPY libs/ /opt/kafka/libs/
COPY run-class.sh /opt/kafka/bin/run-class.sh
RUN chmod 0755 /opt/kafka/bin/run-class.sh \
    && for name in kafka-server-start kafka-storage kafka-producer-perf-test kafka-consumer-perf-test kafka-topics kafka-configs; do \
       ln -s run-class.sh /opt/kafka/bin/$name.sh; done
USER 1000:1000
ENTRYPOINT ["/opt/kafka/bin/kafka-server-start.sh"]
