#!/bin/sh
# The programs of Kafka's own bin/, by the names that they have there. /config/server.properties and $POD_IP: the broker's.
set -eu
options="-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xmx${HEAP:-256m}"
tool="-Dlog4j2.configurationFile=/opt/kafka/libs/tool-log4j2.xml"
run() { exec java $options "$@"; }
case "$(basename "$0" .sh)" in
kafka-server-start)
    sed "s/\$POD_IP/$POD_IP/g" /config/server.properties > /data/server.properties
    [ -e /data/log/meta.properties ] || java $options $tool -cp '/opt/kafka/libs/*' kafka.tools.StorageTool format \
        -t bXlrYWZrYWNsdXN0ZXJpZA -c /data/server.properties
    run $tool -cp '/opt/kafka/libs/*' kafka.Kafka /data/server.properties
    ;;
kafka-storage) run $tool -cp '/opt/kafka/libs/*' kafka.tools.StorageTool "$@" ;;
kafka-producer-perf-test) run $tool -cp '/opt/kafka/libs/*' org.apache.kafka.tools.ProducerPerformance "$@" ;;
kafka-consumer-perf-test) run $tool -cp '/opt/kafka/libs/*' org.apache.kafka.tools.ConsumerPerformance "$@" ;;
kafka-topics) run $tool -cp '/opt/kafka/libs/*' org.apache.kafka.tools.TopicCommand "$@" ;;
kafka-configs) run $tool -cp '/opt/kafka/libs/*' kafka.admin.ConfigCommand "$@" ;;
esac
